"""DUR: sessions outlive the process they are in, however it ends (DESIGN rules 9 and 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.conformance.base.clause import needs
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import lands, refused
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.faults.faults import Call, Fault, Kill, Run, TornKill
from pytest_gittrix.testing.faults.supervisor import supervise_function, supported
from pytest_gittrix.testing.oracle import invariant_promote_is_one_commit
from pytest_gittrix.testing.systems.driver import DrivenEngine, DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

Operation = Callable[[DrivenEngine, DrivenSession], object]
"""What is done with an engine, to a session of it."""

FaultAt = Callable[[Call], Fault | None]
"""How an operation is killed at one of its calls."""


POINTS = 8
"""At how many of its calls an operation is killed. Killing it at each one is the business of the system's own tests."""

WORK: Mapping[str, bytes] = {"app.py": b"agent\n", "new/file.txt": b"agent\n"}
LATER = b"a later version of it\n" * 100


@dataclass(frozen=True)
class Struck:
    """What a kill left.

    Attributes:
        stage: where.
        engine: opened after it.
        session: the one that was at work before it, as the new engine knows it.
        workspace: that session's directory, None where the system has no ``shell``.
        fired: the call that was the last.
    """

    stage: Stage
    engine: DrivenEngine
    session: DrivenSession
    workspace: Path | None
    fired: Call | None


class DurabilityClauses(Clauses):
    """Restarts, crashes and events."""

    @needs(Capability.RESUME)
    def test_dur_01_work_survives_a_restart(self, stage: Stage) -> None:
        """Or a server that is restarted at night has lost what its agents did all day."""
        session = _at_work(stage)

        again = _after_a_restart(stage, session)

        assert again.state == "active"
        assert again.touched_files() == sorted(WORK)
        lands(stage, again, WORK)

    @needs(Capability.RESUME)
    def test_dur_02_the_baseline_survives_a_restart(self, stage: Stage) -> None:
        """Or a restart hides what a person committed meanwhile, and it is overwritten."""
        session = _at_work(stage)
        theirs = stage.rival.commit({"app.py": "human\n"})

        again = _after_a_restart(stage, session)

        refused("BASELINE_CONFLICT", again.promote)
        assert stage.judge.head() == theirs

    @needs(Capability.RESUME)
    def test_dur_03_what_was_promoted_stays_promoted(self, stage: Stage) -> None:
        """Or the same work is offered to a person, and committed, a second time."""
        session = _at_work(stage)
        made = session.promote()

        again = _after_a_restart(stage, session)

        assert again.state == "promoted"
        refused("SESSION_EXPIRED", again.promote)
        assert stage.judge.head() == made.sha

    @needs(Capability.RESUME)
    def test_dur_04_what_was_evicted_stays_evicted(self, stage: Stage) -> None:
        """Or a restart brings back a session without its files."""
        session = _at_work(stage)
        session.evict()

        again = _after_a_restart(stage, session)

        assert again.state == "expired"
        refused("SESSION_EXPIRED", again.write, "app.py", "late\n")

    @needs(Capability.RESUME, Capability.CLOCK)
    def test_dur_05_time_goes_on_while_nobody_is_there(self, stage: Stage) -> None:
        """Or every restart gives forgotten sessions all their time again, and none ever ends."""
        policy = EvictionPolicy(ttl_idle="4h")
        older = stage.start(eviction=policy)
        stage.clock.advance(hours=3)
        younger = stage.start(eviction=policy)

        stage.gittrix.close()
        stage.clock.advance(hours=2)
        again = stage.reopen()
        again.sweep()

        assert again.states() == {older.id: "expired", younger.id: "active"}

    @needs(Capability.RESUME, Capability.CRASH)
    def test_dur_06_a_killed_promotion_was_made_or_can_be(self, stage: Stage) -> None:
        """Or the work is committed and offered again, or it is neither in the repository nor in the session, and a person must find out."""
        baseline = stage.judge.head()
        for struck in killed(stage, _promote, self.files()):
            judge = struck.stage.judge
            if struck.session.state == "active":
                struck.session.promote()
            assert struck.session.state == "promoted"
            invariant_promote_is_one_commit(judge, judge.head(), onto=baseline, selection=WORK)

    @needs(Capability.RESUME, Capability.CRASH)
    def test_dur_07_a_killed_promotion_leaves_a_whole_repository(self, stage: Stage) -> None:
        """Or a person who never heard of the session has to delete a lock, or to mend their files, before they can go on."""
        for struck in killed(stage, _promote, self.files()):
            person = struck.stage.durable
            assert person.git("status", "--porcelain") == ""
            person.git("fsck", "--strict", "--no-dangling", "--no-progress")
            person.git("commit", "-q", "--allow-empty", "-m", "The person goes on")

    @needs(Capability.RESUME, Capability.CRASH)
    def test_dur_08_a_killed_start_leaves_no_session_half_made(self, stage: Stage) -> None:
        """Or the list shows a session that nothing can be done with."""
        for struck in killed(stage, _start, self.files()):
            states = struck.engine.states()
            assert states.pop(struck.session.id) == "active"
            for session in (struck.engine.get_session(id_) for id_, state in states.items() if state == "active"):
                session.write("app.py", "agent\n")
                assert session.touched_files() == ["app.py"]
                assert session.files() == sorted(self.files())

    @needs(Capability.RESUME, Capability.CRASH)
    def test_dur_09_a_killed_write_leaves_the_old_bytes_or_the_new(self, stage: Stage) -> None:
        """Or half a file is promoted."""
        for struck in killed(stage, _write, self.files()):
            assert struck.session.read("app.py") in (WORK["app.py"], LATER)
            assert struck.session.touched_files() == sorted(WORK)

    @needs(Capability.RESUME, Capability.CRASH)
    def test_dur_10_a_killed_eviction_is_finished_or_never_began(self, stage: Stage) -> None:
        """Or a session is active without its files, or has ended and keeps its workspace for good."""
        for struck in killed(stage, _evict, self.files()):
            session = struck.session
            if session.state == "active":
                assert {path: session.read(path) for path in session.touched_files()} == WORK
                session.evict()
            assert session.state == "expired"
            assert struck.workspace is None or not struck.workspace.exists()

    @needs(Capability.EVENTS)
    def test_dur_11_events_are_numbered_without_a_gap(self, stage: Stage) -> None:
        """Or whoever follows a session cannot tell whether something was missed."""
        session = _at_work(stage)
        stage.rival.commit({"app.py": "human\n"})
        refused("BASELINE_CONFLICT", session.promote)
        session.promote(files=["new/file.txt"])

        _has_no_gap(session.events())

    @needs(Capability.EVENTS, Capability.RESUME)
    def test_dur_12_events_survive_a_restart(self, stage: Stage) -> None:
        """Or the history of a session is what happened since the last restart."""
        session = _at_work(stage)
        before = session.events()

        again = _after_a_restart(stage, session)
        again.write("app.py", "later\n")

        assert again.events()[: len(before)] == before
        _has_no_gap(again.events())

    @needs(Capability.EVENTS, Capability.RESUME, Capability.CRASH)
    def test_dur_13_an_event_cut_short_by_a_kill_is_none(self, stage: Stage) -> None:
        """Or the last line of a log, half written, makes all of the session unreadable."""
        for struck in killed(stage, _write, self.files(), _half_of):
            struck.session.write("app.py", "later\n")

            assert struck.session.read("app.py") == b"later\n"
            _has_no_gap(struck.session.events())


def _kill(call: Call) -> Fault | None:
    return Kill(call.index)


def _half_of(call: Call) -> Fault | None:
    return TornKill(call.index, call.size // 2) if call.size is not None and call.size > 1 else None


def killed(stage: Stage, operation: Operation, files: Mapping[str, Any], fault_at: FaultAt = _kill) -> Iterator[Struck]:
    """Kill an operation at calls spread over its run, each time on a stage of its own, and open the system again.

    Args:
        stage: on this one the operation is run to its end, for its calls to be known. A session is at work there, as on all the others.
        operation: what is done, by a process of its own.
        files: what durable holds at first on the other stages.
        fault_at: how it is killed at a call; None leaves the call out.
    """
    if (why := supported()) is not None:
        pytest.skip(why)
    clean = _supervised(stage, operation, _at_work(stage))
    assert clean.exit_code == 0, f"nobody disturbed it, and it failed: {clean.stderr.decode(errors='replace')}"
    faults = [fault for call in clean.calls if (fault := fault_at(call)) is not None]
    if not faults:
        pytest.skip("no call of it that could be struck was seen")
    for fault in spread(faults, POINTS):
        with Stage.open(stage.system, files=files) as struck:
            session = _at_work(struck)
            workspace = session.workspace_path
            run = _supervised(struck, operation, session, fault)
            assert run.killed or run.exit_code == 0, run.stderr.decode(errors="replace")
            engine = struck.reopen()
            yield Struck(struck, engine, engine.get_session(session.id), workspace, run.fired)


def spread(values: Sequence[Any], number: int) -> list[Any]:
    """Some of the values, the first and the last among them, evenly apart."""
    if len(values) <= number:
        return [*values]
    return [values[round(index * (len(values) - 1) / (number - 1))] for index in range(number)]


def _supervised(stage: Stage, operation: Operation, session: DrivenSession, fault: Fault | None = None) -> Run:
    stage.gittrix.close()

    def act() -> None:
        engine = stage.reopen()
        operation(engine, engine.get_session(session.id))

    return supervise_function(act, fault=fault, within=stage.path)


def _promote(_: DrivenEngine, session: DrivenSession) -> None:
    session.promote()


def _start(engine: DrivenEngine, _: DrivenSession) -> None:
    engine.start_session("A second task")


def _write(_: DrivenEngine, session: DrivenSession) -> None:
    session.write("app.py", LATER)


def _evict(_: DrivenEngine, session: DrivenSession) -> None:
    session.evict()


def _at_work(stage: Stage) -> DrivenSession:
    """A session with ``WORK`` in it."""
    session = stage.start()
    for path, data in WORK.items():
        session.write(path, data)
    return session


def _after_a_restart(stage: Stage, session: DrivenSession) -> DrivenSession:
    stage.gittrix.close()
    return stage.reopen().get_session(session.id)


def _has_no_gap(events: Sequence[Mapping[str, Any]]) -> None:
    assert len(events) > 1
    assert [event["seq"] for event in events] == [*range(len(events))]
