"""Directories with owners: the janitor removes what dead owners left, ends what still runs there, and touches nobody who lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from support.evals import write

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.evals.runs.work_dirs import MARK, TTL, make_work_dir, owners, scratch_root, sweep
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.process_tree import process

OWNER = """
import os, subprocess, sys
from pathlib import Path
from pytest_gittrix.evals.runs.work_dirs import MARK, make_work_dir
work_dir = make_work_dir(Path(sys.argv[1]), "run")
(work_dir.path / "work").mkdir()
(work_dir.path / "work" / "locked").mkdir(mode=0o500)
command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
agent = subprocess.Popen(command, env={**os.environ, MARK: work_dir.mark}, start_new_session=True, stdout=subprocess.PIPE)
agent.stdout.readline()
print(work_dir.path.name, agent.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(root: Path) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A process with a work directory and an agent: itself, the name of the directory, and the agent's pid."""
    command = [sys.executable, "-c", OWNER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        name, pid = started.stdout.readline().split()
        try:
            yield started, name, int(pid)
        finally:
            started.kill()


def alive(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.alive


def test_the_home_that_git_had_for_a_killed_process_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = "import os; from pytest_gittrix.git.environment import hermetic_env; hermetic_env(); os._exit(0)"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)
    (left,) = tmp_path.glob("gittrix-home-*")
    living = tmp_path / "gittrix-home-living"
    living.mkdir()
    (living / ".owner.json").write_text(json.dumps(Owner.current().to_json()))

    sweep(scratch_root(tmp_path / "scratch"))

    assert (left.exists(), living.exists()) == (False, True)


def test_a_lease_says_whose_it_is_and_goes_when_it_is_released(tmp_path: Path) -> None:
    root = scratch_root(tmp_path / "scratch")
    work_dir = make_work_dir(root, "runs/a")

    assert owners(root) == {work_dir.path.name: (Owner.current(), "runs/a")}
    room = work_dir.make_sample_dir()
    (room / "file").write_text("x")
    assert not (work_dir.make_sample_dir() / "file").exists()

    work_dir.release()
    assert list(root.iterdir()) == []


def test_what_a_killed_owner_left_goes_with_the_agent_that_still_ran(tmp_path: Path) -> None:
    root = scratch_root(tmp_path / "scratch")
    with owner(root) as (started, name, pid):
        started.send_signal(signal.SIGKILL)
        started.wait()
        assert alive(pid)

        swept = sweep(root)

    assert swept.removed == (name,)
    assert pid in swept.ended
    assert not alive(pid)
    assert list(root.iterdir()) == []
    assert sweep(root).removed == ()


def test_a_living_owner_is_never_touched(tmp_path: Path) -> None:
    root = scratch_root(tmp_path / "scratch")
    with owner(root) as (_, name, pid):
        clock = FrozenClock(separate_files=False)
        clock.advance(TTL * 1000)

        assert sweep(root, clock=clock).removed == ()
        assert sweep(root).removed == ()
        assert alive(pid)
        assert (root / name / "work").is_dir()
        os.kill(pid, signal.SIGKILL)


def test_an_owner_elsewhere_is_given_its_time(tmp_path: Path) -> None:
    root = scratch_root(tmp_path / "scratch")
    clock = FrozenClock(separate_files=False)
    work_dir = make_work_dir(root, "run", clock=clock, ttl=timedelta(hours=2))
    note = work_dir.path / "owner.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "host": "another-machine"}))

    clock.advance(hours=1)
    assert sweep(root, clock=clock).removed == ()
    clock.advance(hours=2)
    assert sweep(root, clock=clock).removed == (work_dir.path.name,)


def test_an_owner_of_an_earlier_boot_is_dead(tmp_path: Path) -> None:
    root = scratch_root(tmp_path / "scratch")
    work_dir = make_work_dir(root, "run")
    note = work_dir.path / "owner.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "boot_id": "00000000-0000-0000-0000-000000000000"}))

    assert sweep(root).removed == (work_dir.path.name,)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"pid": "x"}'])
def test_a_directory_that_nobody_signed_is_left_for_a_day(tmp_path: Path, text: str | None) -> None:
    root = scratch_root(tmp_path / "scratch")
    place = root / "12-0123456789ab"
    place.mkdir()
    if text is not None:
        (place / "owner.json").write_text(text)

    assert sweep(root).removed == ()
    old = place.stat().st_mtime - TTL.total_seconds() - 10
    os.utime(place, (old, old))
    assert sweep(root).removed == (place.name,)


@pytest.mark.parametrize("name", ["photos", ".dead-end", ".new-stuff", "2029-reports", "12-0123456789ab-old"])
def test_a_directory_of_the_users_own_is_never_touched_however_old(tmp_path: Path, name: str) -> None:
    root = scratch_root(tmp_path)
    write(root, {f"{name}/precious": "x"})
    os.utime(root / name, (0, 0))
    (root / "12-0123456789ab").symlink_to(root / name)

    assert sweep(root).removed == ()
    assert (root / name / "precious").read_text() == "x"


def test_what_a_killed_janitor_left_is_removed_by_the_next(tmp_path: Path) -> None:
    root = scratch_root(tmp_path / "scratch")
    (root / ".dead-1-0123456789ab-00000000" / "deep").mkdir(parents=True)

    sweep(root)

    assert list(root.iterdir()) == []


def test_unpacked_repositories_are_no_leases(tmp_path: Path) -> None:
    root = scratch_root(tmp_path / "scratch")
    (root / "cases").mkdir()
    os.utime(root / "cases", (1, 1))

    sweep(root)

    assert (root / "cases").is_dir()


def test_a_root_that_is_no_directory_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").write_text("")

    for name in ("link", "file"):
        with pytest.raises(AdapterUnavailable):
            scratch_root(tmp_path / name)


def test_the_mark_is_told_to_programs_of_a_sample(tmp_path: Path) -> None:
    from support.evals import ran, suite

    agent = f"sh -c 'echo ${MARK} > mark; pwd >> mark'"
    summary = ran(suite(tmp_path), tmp_path, agent)
    mark, place = summary.store.objects.file(summary.records[0].final, "mark").decode().split()

    assert f"/{mark}/" in place
