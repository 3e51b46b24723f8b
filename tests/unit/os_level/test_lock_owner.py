"""An owner that is silent: who calls it stale, what is kept when its lease is taken away, and how it learns of it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, GittrixError, InvalidInput, LeaseLost
from pytest_gittrix.os_level.lease import Lease, LeaseState, Owner
from pytest_gittrix.os_level.lock_owner import LockSnapshot, time_text

NOW = 1_893_456_000.0
SECOND = 1_000_000_000
ME = json.dumps(Owner.current().to_json()).encode()


class Time:
    """A clock that a test sets; seconds since 1970 UTC."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    """Now is 2030-01-01T00:00:00Z until the test says otherwise."""
    return Time()


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """Where evidence is to be kept; no directory yet."""
    return tmp_path / "kept" / "evidence"


@pytest.fixture
def lease(path: Path, clock: Time) -> Callable[..., Lease]:
    """A lease on the lock file that is stale after a minute and waits for nobody, unless told otherwise."""

    def made(**settings: object) -> Lease:
        return Lease(path, **({"wait": 0, "stale_after": 60, "now": clock} | settings))  # type: ignore[arg-type]

    return made


# States ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "note", "silent", "stale_after", "state"),
    [
        (False, b"", 0, None, "available"),
        (False, ME, 10**6, 60, "available"),
        (False, b"garbage", -100, 60, "available"),
        (True, ME, 0, 60, "active"),
        (True, ME, 60, 60, "active"),
        (True, ME, 61, 60, "stale"),
        (True, ME, 10**6, None, "active"),
        (True, ME, -5, 60, "active"),
        (True, ME, -6, 60, "ambiguous"),
        (True, ME, -6, None, "ambiguous"),
        (True, b"", 0, 60, "ambiguous"),
        (True, b"{}", 0, 60, "ambiguous"),
        (True, ME[:-1], 100, 60, "ambiguous"),
        (True, b"\xff\xfe", 100, 60, "ambiguous"),
        (True, b"[" * 4096, 100, 60, "ambiguous"),
    ],
)
def test_a_lock_file_is_judged_by_its_lock_its_note_and_its_heartbeat(
    held: bool, note: bytes, silent: int, stale_after: float | None, state: LeaseState
) -> None:
    now_ns = int(NOW) * SECOND
    assert LockSnapshot(held, note, now_ns - silent * SECOND).judged(now_ns=now_ns, stale_after=stale_after) == state


def test_a_lease_is_available_then_active_then_stale_then_available_again(lease: Callable[..., Lease], clock: Time) -> None:
    looker = lease()
    assert looker.state() == "available"
    with lease():
        assert looker.state() == "active"
        clock.now += 60
        assert looker.state() == "active"
        clock.now += 1
        assert looker.state() == "stale"
    assert looker.state() == "available"


def test_a_lease_that_somebody_without_a_name_has_is_ambiguous(lease: Callable[..., Lease], path: Path) -> None:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(path, (NOW, NOW))
        assert lease().state() == "ambiguous"


def test_a_heartbeat_in_the_future_is_ambiguous(lease: Callable[..., Lease], path: Path) -> None:
    with lease():
        os.utime(path, (NOW + 5, NOW + 5))
        assert lease().state() == "active"
        os.utime(path, (NOW + 6, NOW + 6))
        assert lease().state() == "ambiguous"


def test_without_a_limit_an_owner_is_never_stale(path: Path) -> None:
    with Lease(path):
        os.utime(path, (0, 0))
        assert Lease(path).state() == "active"


def test_looking_takes_nothing_makes_nothing_and_leaves_nothing_open(lease: Callable[..., Lease], path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = os.listdir(descriptors) if descriptors.exists() else []
    assert lease().state() == "available"
    assert not path.exists()
    path.touch()
    assert lease().state() == "available"
    with lease() as held:
        assert lease().state() == "active"
        assert held.held
    with Lease(path, wait=0):
        pass
    assert (os.listdir(descriptors) if descriptors.exists() else []) == before


def test_a_lock_that_cannot_be_looked_at_is_named(path: Path) -> None:
    path.symlink_to(path)
    with pytest.raises(AdapterUnavailable, match=r"\.lock cannot be used"):
        Lease(path).state()


@pytest.mark.parametrize("settings", [{"stale_after": 0}, {"stale_after": -1}, {"stale_after": float("nan")}, {"on_stale": "ask"}])
def test_settings_that_make_no_sense_are_refused(path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Lease(path, **settings)  # type: ignore[arg-type]


def test_a_file_dated_after_the_year_9999_still_has_a_time_to_show() -> None:
    assert time_text(int(NOW) * SECOND) == "2030-01-01T00:00:00.000Z"
    assert time_text(10**21) == f"{10**21} ns after 1970"


# Heartbeats -----------------------------------------------------------------------------------------------------------------------


def test_an_owner_that_beats_is_active_however_long_it_works(lease: Callable[..., Lease], clock: Time) -> None:
    with lease() as owner:
        for _ in range(5):
            clock.now += 59
            owner.beat()
        clock.now += 59
        assert lease().state() == "active"


def test_taking_a_lease_is_its_first_heartbeat(lease: Callable[..., Lease], path: Path, clock: Time) -> None:
    path.touch()
    os.utime(path, (0, 0))
    with lease():
        assert path.stat().st_mtime == clock.now


def test_by_the_systems_clock_a_heartbeat_is_now(path: Path) -> None:
    with Lease(path, stale_after=3600) as owner:
        os.utime(path, (0, 0))
        assert owner.state() == "stale"
        owner.beat()
        assert owner.state() == "active"


def beaten(path: Path) -> bool:
    """Make the last heartbeat an old one; whether there is a new one soon."""
    os.utime(path, (0, 0))
    for _ in range(1000):
        if path.stat().st_mtime > 0:
            return True
        time.sleep(0.01)
    return False


def beaters(path: Path) -> list[threading.Thread]:
    """The threads that beat for a lock file."""
    return [thread for thread in threading.enumerate() if thread.name == f"heartbeat of {path}"]


def test_while_it_is_beating_nobody_needs_to_call_beat(path: Path) -> None:
    with Lease(path, stale_after=3600) as owner, owner.beating(0.005) as same:
        assert same is owner
        assert beaten(path)
        assert beaten(path)
        assert owner.state() == "active"


def test_beating_ends_with_its_block_and_leaves_no_thread_and_no_descriptor(path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    with Lease(path) as owner:
        before = os.listdir(descriptors) if descriptors.exists() else []
        with pytest.raises(ZeroDivisionError), owner.beating(0.005):
            1 / 0  # noqa: B018
        assert beaters(path) == []
        assert (os.listdir(descriptors) if descriptors.exists() else []) == before
        assert owner.held


def test_beating_ends_when_the_lease_is_released_in_its_block(path: Path) -> None:
    owner = Lease(path).acquire()
    with owner.beating(0.005):
        (thread,) = beaters(path)
        owner.release()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("interval", [0, -1, 60, 61, float("nan")])
def test_beating_too_seldom_to_keep_the_lease_is_refused(lease: Callable[..., Lease], interval: float) -> None:
    with lease() as owner, pytest.raises(InvalidInput, match="heartbeat"), owner.beating(interval):
        pass


@pytest.mark.parametrize("act", [Lease.check, Lease.beat, lambda lease: lease.beating().__enter__()])
def test_what_is_not_held_cannot_be_checked_or_kept_alive(path: Path, act: Callable[[Lease], object]) -> None:
    with pytest.raises(LeaseLost, match="is not held") as caught:
        act(Lease(path))
    assert caught.value.code == "LEASE_LOST"
    assert isinstance(caught.value, EvictionRace)


# Losing -----------------------------------------------------------------------------------------------------------------------------


def test_an_owner_whose_file_was_removed_or_replaced_has_lost_its_lease(path: Path) -> None:
    with Lease(path) as owner:
        owner.check()
        assert not owner.lost
        path.unlink()
        assert owner.lost
        path.touch()
        assert owner.lost
        with pytest.raises(LeaseLost, match="was taken away from this process"):
            owner.check()
    assert not owner.lost
    with owner:
        owner.check()


def test_who_lost_a_lease_neither_frees_nor_renews_that_of_its_successor(path: Path) -> None:
    first = Lease(path).acquire()
    with first.beating(0.005):
        (thread,) = beaters(path)
        path.unlink()
        with Lease(path, wait=0) as second:
            os.utime(path, (0, 0))
            with pytest.raises(LeaseLost):
                first.beat()
            thread.join(60)
            assert not thread.is_alive()
            assert path.stat().st_mtime == 0
            first.release()
            with pytest.raises(EvictionRace):
                Lease(path, wait=0).acquire()
            second.check()


# Taking away ------------------------------------------------------------------------------------------------------------------------


def test_an_active_lease_is_not_taken_away(lease: Callable[..., Lease], evidence: Path) -> None:
    with lease() as owner:
        with pytest.raises(EvictionRace, match=r"is active: its last heartbeat was at 2030-01-01T00:00:00\.000Z"):
            lease().force_release("impatience", evidence)
        owner.check()
    assert not evidence.exists()


def test_an_available_lease_is_left_alone(lease: Callable[..., Lease], path: Path, evidence: Path) -> None:
    assert lease().force_release("tidiness", evidence) is None
    assert not path.exists()
    with lease():
        pass
    before = path.stat().st_ino
    assert lease().force_release("tidiness", evidence) is None
    assert path.stat().st_ino == before
    assert not evidence.exists()


def test_a_stale_lease_is_taken_away_and_evidence_kept(lease: Callable[..., Lease], path: Path, evidence: Path, clock: Time) -> None:
    owner = lease().acquire()
    clock.now += 61
    file = lease().force_release("It hangs: é\n", evidence)
    assert file is not None
    assert file.parent == evidence
    assert re.fullmatch(r"20300101T000101-[0-9a-f]{16}-[0-9a-f]{6}\.json", file.name)
    assert json.loads(file.read_bytes()) == {
        "version": 1,
        "purpose": "lease_release",
        "lease": str(path),
        "state": "stale",
        "reason": "It hangs: é\n",
        "owner": Owner.current().to_json(),
        "note": None,
        "last_heartbeat": "2030-01-01T00:00:00.000Z",
        "last_heartbeat_ns": int(NOW) * SECOND,
        "stale_after_s": 60,
        "released_at": "2030-01-01T00:01:01.000Z",
        "released_by": Owner.current().to_json(),
    }
    assert not path.exists()
    assert owner.lost
    with lease() as successor:
        successor.check()
        owner.release()
        successor.check()


def test_evidence_of_one_lease_shares_part_of_its_name_and_never_all(lease: Callable[..., Lease], evidence: Path, clock: Time) -> None:
    owners = []
    for _ in range(3):
        owners.append(lease().acquire())
        clock.now += 61
        assert lease().force_release("again", evidence)
        clock.now -= 61
    names = [file.stem.split("-") for file in evidence.iterdir()]
    assert len({digest for _, digest, _ in names}) == 1
    assert len({random for _, _, random in names}) == 3
    for owner in owners:
        owner.release()


def test_an_ambiguous_lease_is_taken_away_with_what_stood_in_it(lease: Callable[..., Lease], path: Path, evidence: Path) -> None:
    with path.open("wb") as file:
        file.write(b"wrl_01 \xff\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        written = lease().force_release("nobody knows whose it is", evidence)
    assert written is not None
    stored = json.loads(written.read_bytes())
    assert (stored["state"], stored["owner"], stored["note"]) == ("ambiguous", None, "wrl_01 �")
    with lease():
        pass


def test_without_evidence_nothing_is_taken_away(lease: Callable[..., Lease], path: Path, clock: Time) -> None:
    with lease() as owner:
        clock.now += 61
        with pytest.raises(AdapterUnavailable):
            lease().force_release("no place for evidence", path / "below a file")
        owner.check()


def test_a_lease_is_not_taken_away_while_somebody_takes_it_and_the_other_way_round(
    lease: Callable[..., Lease], path: Path, evidence: Path, clock: Time
) -> None:
    turnstile = os.open(f"{path}.turn", os.O_RDONLY | os.O_CREAT)
    with lease() as owner:
        clock.now += 61
        fcntl.flock(turnstile, fcntl.LOCK_SH)
        for act in (lambda: lease().force_release("meanwhile", evidence), lambda: lease(on_stale="break").acquire()):
            with pytest.raises(EvictionRace):
                act()
        owner.check()
    fcntl.flock(turnstile, fcntl.LOCK_EX)
    with pytest.raises(EvictionRace):
        lease().acquire()
    with Lease(path, wait=0):
        pass
    os.close(turnstile)
    with lease():
        pass


# Waiting for a stale owner --------------------------------------------------------------------------------------------------------


def test_a_stale_owner_blocks_and_is_named_with_its_last_heartbeat(lease: Callable[..., Lease], clock: Time) -> None:
    with lease() as owner:
        clock.now += 61
        with pytest.raises(EvictionRace) as caught:
            lease().acquire()
        assert "is stale: process" in caught.value.fact
        assert f"process {os.getpid()} on " in caught.value.fact
        assert "last heartbeat was at 2030-01-01T00:00:00.000Z, more than 60 s ago" in caught.value.fact
        assert "on_stale" in caught.value.opt_out
        owner.check()


def test_an_active_owner_blocks_who_would_break_a_stale_one(lease: Callable[..., Lease], path: Path) -> None:
    with lease() as owner:
        with pytest.raises(EvictionRace, match="did not let go"):
            lease(on_stale="break").acquire()
        owner.check()
    assert not (path.parent / "releases").exists()


def test_an_ambiguous_owner_is_not_broken_without_asking(lease: Callable[..., Lease], path: Path) -> None:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(path, (0, 0))
        with pytest.raises(EvictionRace, match="held by another process"):
            lease(on_stale="break").acquire()
    assert not (path.parent / "releases").exists()


def test_a_stale_owner_is_broken_by_who_was_told_to(lease: Callable[..., Lease], path: Path, clock: Time) -> None:
    owner = lease().acquire()
    clock.now += 61
    with lease(on_stale="break") as successor:
        assert owner.lost
        assert successor.state() == "active"
        successor.check()
        owner.release()
        with pytest.raises(EvictionRace, match="did not let go"):
            lease(on_stale="break").acquire()
    (file,) = (path.parent / "releases").iterdir()
    assert json.loads(file.read_bytes())["state"] == "stale"


def test_a_lease_that_can_go_stale_needs_its_directory_too(tmp_path: Path) -> None:
    with pytest.raises(AdapterUnavailable, match="gone"):
        Lease(tmp_path / "gone" / ".lock", stale_after=1).acquire()


def test_who_catches_the_error_of_a_held_lease_catches_a_lost_one() -> None:
    assert issubclass(LeaseLost, EvictionRace)
    assert issubclass(EvictionRace, GittrixError)
