"""EVC: a session ends when its time is up and never sooner, and what has ended is over (rules 7 and 8, docs/explanation/rules.md)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import allowed_to_refuse, at_work, refused, run
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

HOUR = timedelta(hours=1)
FOUR_HOURS = EvictionPolicy(ttl_idle=4 * HOUR)
_LATER = 1_000_000
"""A version that no system has reached."""


class EvictionClauses(Clauses):
    """Times to live, and ends."""

    @needs(Capability.SHELL)
    def test_evc_01_an_evicted_session_has_no_workspace(self, stage: Stage) -> None:
        """Otherwise workspaces fill the disk, and the agent goes on working where its work leads nowhere."""
        session = at_work(stage, "new.txt")
        workspace = _directory(session)

        session.evict()

        assert not workspace.exists()

    @protects_work
    def test_evc_02_an_evicted_session_can_do_nothing(self, stage: Stage) -> None:
        """An evicted session refuses every operation. Otherwise an agent goes on working, and all its later work is silently lost."""
        session = at_work(stage)

        session.evict()

        _can_do_nothing(stage, session)

    @needs(Capability.SHELL)
    def test_evc_03_a_late_write_brings_nothing_back(self, stage: Stage) -> None:
        """A write after the eviction recreates nothing.

        Otherwise an agent that does not know of the eviction recreates a workspace that is never removed.
        """
        session = stage.start()
        late = stage.gittrix.get_session(session.id)
        late.write("new.txt", "agent\n")
        workspace = _directory(session)
        session.evict()

        refused("SESSION_EXPIRED", late.write, "new.txt", "late\n")

        assert late.state == "expired"
        assert not workspace.exists()

    def test_evc_04_what_was_promoted_cannot_expire(self, stage: Stage) -> None:
        """A promoted session cannot expire. Otherwise the record says that work was discarded although it is in the repository."""
        session = at_work(stage)
        session.promote()

        allowed_to_refuse("SESSION_EXPIRED", session.evict)

        assert session.state == "promoted"

    def test_evc_05_what_was_promoted_can_do_nothing_more(self, stage: Stage) -> None:
        """A promoted session refuses every further operation.

        Otherwise the same work is committed twice, or more is added to work that a person took for finished.
        """
        session = at_work(stage)
        session.promote()

        _can_do_nothing(stage, session)

    @needs(Capability.DISCARD)
    def test_evc_06_what_was_discarded_can_do_nothing_more(self, stage: Stage) -> None:
        """A discarded session refuses every further operation. Otherwise work that a person rejected gets into the repository after all."""
        session = at_work(stage)

        session.discard()

        _can_do_nothing(stage, session)

    @needs(Capability.SHELL)
    @protects_work
    def test_evc_07_a_promoted_session_keeps_its_workspace_only_if_asked_to(self, stage: Stage) -> None:
        """A promoted session keeps its workspace only on request.

        Otherwise workspaces of finished work fill the disk, or one that a person wanted to inspect is removed.
        """
        keeping = stage.start(eviction=EvictionPolicy(until_promote=False))
        usual = stage.start()
        keeping.write("app.py", "agent\n")
        usual.write("new.txt", "agent\n")
        directories = [_directory(session) for session in (keeping, usual)]

        keeping.promote()
        usual.promote()

        assert [directory.exists() for directory in directories] == [True, False]

    @needs(Capability.CLOCK)
    @protects_work
    def test_evc_08_a_session_lives_to_the_last_instant_of_its_time(self, stage: Stage) -> None:
        """A session stays active until the last instant of its time.

        Otherwise an agent that came back in time loses its work; a session has expired only strictly after its time.
        """
        session = stage.start(eviction=FOUR_HOURS)

        stage.clock.advance(4 * HOUR)

        assert stage.gittrix.sweep() == []
        assert session.read("app.py") == b"one\ntwo\nthree\n"

    @needs(Capability.CLOCK)
    def test_evc_09_a_session_is_evicted_once_its_time_is_up(self, stage: Stage) -> None:
        """Otherwise abandoned sessions stay for good."""
        session = stage.start(eviction=FOUR_HOURS)

        stage.clock.advance(4 * HOUR + timedelta(seconds=1))

        assert stage.gittrix.sweep() == [session.id]
        _can_do_nothing(stage, session)

    @needs(Capability.CLOCK)
    @protects_work
    def test_evc_10_a_sweep_evicts_all_that_are_due_and_no_other(self, stage: Stage) -> None:
        """A sweep evicts every expired session and no other.

        Otherwise a session is lost too early, or an expired one keeps its workspace.
        """
        hours = (1, 2, 3, 4, 5)
        started = [stage.start(eviction=EvictionPolicy(ttl_idle=number * HOUR)) for number in hours]

        stage.clock.advance(3 * HOUR)

        assert stage.gittrix.sweep() == sorted(session.id for session in started[:2])
        assert [session.state for session in started] == ["expired", "expired", "active", "active", "active"]

    @needs(Capability.CLOCK)
    @protects_work
    def test_evc_11_every_use_starts_the_idle_time_again(self, stage: Stage) -> None:
        """Every use restarts the idle time. Otherwise a busy agent loses its session in the middle of its work."""
        session = stage.start(eviction=FOUR_HOURS)

        stage.clock.advance(3 * HOUR)
        session.write("app.py", "agent\n")
        stage.clock.advance(3 * HOUR)
        session.read("app.py")
        stage.clock.advance(3 * HOUR)

        assert stage.gittrix.sweep() == []
        stage.clock.advance(HOUR + timedelta(seconds=1))
        assert stage.gittrix.sweep() == [session.id]

    @needs(Capability.CLOCK, Capability.SHELL)
    @protects_work
    def test_evc_12_what_the_agents_programs_write_counts_as_use(self, stage: Stage) -> None:
        """Writes by the agent's programs count as use.

        Otherwise an agent that works only with a shell, as most do, is taken for abandoned.
        """
        busy, idle = stage.start(eviction=FOUR_HOURS), stage.start(eviction=FOUR_HOURS)
        directory = _directory(busy)

        stage.clock.advance(3 * HOUR)
        run(stage, busy, "echo agent > app.py")
        stage.clock.touch(directory / "app.py")
        stage.clock.advance(3 * HOUR)

        assert stage.gittrix.sweep() == [idle.id]
        stage.clock.advance(HOUR + timedelta(seconds=1))
        assert stage.gittrix.sweep() == [busy.id]

    @needs(Capability.CLOCK, Capability.ABSOLUTE)
    def test_evc_13_no_use_extends_the_absolute_time(self, stage: Stage) -> None:
        """Otherwise an agent that never rests keeps its session for ever, which the limit is there to prevent."""
        session = stage.start(eviction=EvictionPolicy(ttl_idle=4 * HOUR, ttl_absolute=6 * HOUR))

        for _ in range(2):
            stage.clock.advance(3 * HOUR)
            session.write("app.py", "agent\n")
        assert stage.gittrix.sweep() == []
        stage.clock.advance(seconds=1)

        assert stage.gittrix.sweep() == [session.id]

    @needs(Capability.CLOCK, Capability.EXTEND)
    def test_evc_14_an_extension_counts_from_now(self, stage: Stage) -> None:
        """Otherwise a person who gives an agent ten more hours cannot tell when they end."""
        session = stage.start(eviction=FOUR_HOURS)

        stage.clock.advance(3 * HOUR)
        session.extend(10 * HOUR)
        stage.clock.advance(10 * HOUR)

        assert stage.gittrix.sweep() == []
        stage.clock.advance(seconds=1)
        assert stage.gittrix.sweep() == [session.id]

    @needs(Capability.CLOCK)
    @protects_work
    def test_evc_15_a_manual_session_is_never_swept(self, stage: Stage) -> None:
        """Otherwise work that a person wanted to keep until they end the session is gone after the weekend."""
        session = stage.start(eviction=EvictionPolicy(ttl_idle=HOUR, manual=True))
        session.write("app.py", "agent\n")

        stage.clock.advance(days=365)

        assert stage.gittrix.sweep() == []
        assert session.read("app.py") == b"agent\n"
        session.evict()
        assert session.state == "expired"

    @needs(Capability.CLOCK, Capability.SHELL)
    def test_evc_16_a_workspace_that_is_gone_does_not_stop_the_sweep(self, stage: Stage) -> None:
        """A missing workspace does not stop the sweep.

        Otherwise one agent that removed its own directory keeps every other session from being evicted.
        """
        _others_are_evicted(stage, lambda session: shutil.rmtree(_directory(session)))

    @needs(Capability.CLOCK)
    def test_evc_17_a_damaged_record_does_not_stop_the_sweep(self, stage: Stage) -> None:
        """Otherwise one damaged file keeps every other session from being evicted, without a word about it."""

        def spoil(session: DrivenSession) -> None:
            if not _damage(stage.place.home, session.id):
                pytest.skip(f"{stage.system.name} keeps no file for one session alone")

        _others_are_evicted(stage, spoil)

    @needs(Capability.CLOCK)
    def test_evc_21_what_is_no_record_does_not_stop_the_sweep(self, stage: Stage) -> None:
        """A record that is missing, and files that are no records, do not stop the sweep.

        Otherwise a backup, a file of the desktop or a stray file next to the sessions keeps every one of them from being evicted.
        """

        def spoil(session: DrivenSession) -> None:
            own = [path for path in stage.place.home.rglob("*") if session.id in path.name]
            if not own:
                pytest.skip(f"{stage.system.name} keeps no file for one session alone")
            _remove_files(own)
            for parent in {path.parent for path in own}:
                (parent / "backup").mkdir(exist_ok=True)
                (parent / "notes.txt").write_text("not a session\n")

        _others_are_evicted(stage, spoil)

    @needs(Capability.CLOCK)
    def test_evc_22_a_record_of_a_later_version_does_not_stop_the_sweep(self, stage: Stage) -> None:
        """Otherwise who goes back to an earlier version of the system has sessions that are never evicted."""

        def spoil(session: DrivenSession) -> None:
            if not _date_forward(stage.place.home, session.id):
                pytest.skip(f"{stage.system.name} writes no version into a record of one session alone, in JSON")

        _others_are_evicted(stage, spoil)

    @needs(Capability.CLOCK)
    def test_evc_18_the_time_zone_does_not_matter(self, stage: Stage) -> None:
        """Otherwise sessions end hours too soon or too late when a server moves or the clocks change."""
        with _in_time_zone("Pacific/Kiritimati"):
            session = stage.start(eviction=FOUR_HOURS)

        with _in_time_zone("Pacific/Niue"):
            stage.clock.advance(4 * HOUR)
            assert stage.gittrix.sweep() == []
            stage.clock.advance(seconds=1)
            assert stage.gittrix.sweep() == [session.id]

    @needs(Capability.CLOCK)
    def test_evc_19_a_second_sweep_finds_nothing_to_do(self, stage: Stage) -> None:
        """Otherwise a session is evicted twice, and statistics count it twice."""
        session = stage.start(eviction=FOUR_HOURS)
        stage.clock.advance(5 * HOUR)
        assert stage.gittrix.sweep() == [session.id]

        assert stage.gittrix.sweep() == []
        assert session.state == "expired"

    @needs(Capability.CLOCK)
    def test_evc_20_a_sweep_leaves_what_was_promoted_alone(self, stage: Stage) -> None:
        """A sweep leaves promoted sessions alone. Otherwise the record says a day later that promoted work has expired."""
        session = stage.start(eviction=FOUR_HOURS)
        session.write("app.py", "agent\n")
        session.promote()

        stage.clock.advance(days=1)
        stage.gittrix.sweep()

        assert session.state == "promoted"


def _directory(session: DrivenSession) -> Path:
    """The workspace, checked to exist: a wrong path would make every workspace look removed."""
    directory = session.workspace_path
    assert directory is not None
    assert directory.is_dir()
    return directory


def _others_are_evicted(stage: Stage, spoil: Callable[[DrivenSession], object]) -> None:
    """Check that a sweep evicts two of three sessions whatever happened to the one between them."""
    first, second, third = (stage.start(eviction=FOUR_HOURS) for _ in range(3))
    spoil(second)

    stage.clock.advance(5 * HOUR)
    stage.gittrix.sweep()

    states = stage.gittrix.states()
    assert [states[first.id], states[third.id]] == ["expired", "expired"]


def _can_do_nothing(stage: Stage, session: DrivenSession) -> None:
    """Check that every base verb refuses an ended session, that durable does not change, and that the session's state stays."""
    state = session.state
    assert state != "active"
    with stage.durable.unchanged():
        refused("SESSION_EXPIRED", session.read, "app.py")
        refused("SESSION_EXPIRED", session.write, "app.py", "late\n")
        refused("SESSION_EXPIRED", session.files)
        refused("SESSION_EXPIRED", session.touched_files)
        refused("SESSION_EXPIRED", session.promote)
    assert session.state == state


def _files_of(home: Path, id_: str) -> list[Path]:
    """Every file below a directory whose path names one session."""
    own = [path for path in home.rglob("*") if any(id_ in part for part in path.relative_to(home).parts)]
    return [path for path in own if path.is_file() and not path.is_symlink()]


def _overwrite(path: Path, data: bytes) -> None:
    """Write another file in the place of one that may share its contents with other sessions by a hard link."""
    path.unlink()
    path.write_bytes(data)


def _damage(home: Path, id_: str) -> int:
    """Overwrite every file of one session; gives how many there were."""
    files = _files_of(home, id_)
    for path in files:
        _overwrite(path, b"\0 no record at all \xff\n")
    return len(files)


def _date_forward(home: Path, id_: str) -> int:
    """Raise the version of every JSON object, whole files or lines, in the records of one session; gives how many files have one."""
    dated = 0
    for path in _files_of(home, id_):
        if any((above / ".git").exists() for above in path.parents):  # a file of the workspace
            continue
        data = path.read_bytes()
        whole = _of_a_later_version(data)
        parts = [whole] if whole is not None else [_of_a_later_version(line) or line for line in data.splitlines()]
        if parts not in ([], data.splitlines()):
            _overwrite(path, b"\n".join(parts) + b"\n")
            dated += 1
    return dated


def _of_a_later_version(text: bytes) -> bytes | None:
    """A JSON object as a later version could have written it; None if the text is no JSON object that has a version."""
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    versions = {name for name in fields if name == "v" or name.lower().endswith("version")} if isinstance(fields, dict) else ()
    later = {name: type(fields[name])(_LATER) for name in versions if isinstance(fields[name], int | str)}
    return json.dumps({**fields, **later, "of_a_later_version": True}).encode() if later else None


def _remove_files(paths: Iterable[Path]) -> None:
    """Remove the records below some paths, and leave the workspaces: no file of a directory that holds a git directory is removed."""
    for top in paths:
        for path in [top, *top.rglob("*")]:
            if path.is_file() and not path.is_symlink() and not any((above / ".git").exists() for above in path.parents):
                path.unlink()


@contextmanager
def _in_time_zone(zone: str) -> Iterator[None]:
    """Set the local time zone of this process and of those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        try:
            yield
        finally:
            patch.undo()
            time.tzset()
