"""DUR: sessions outlive the process that they are in, however it ends (rules 9 and 10, docs/explanation/rules.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import at_work, lands, refused
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.faults.fault_sweep import describe_call, kind_of, plan
from pytest_gittrix.testing.faults.faults import Fault, FileCall, KillAt, SupervisedRun, TornKill
from pytest_gittrix.testing.faults.supervisor import supervise_function, supported
from pytest_gittrix.testing.oracle import invariant_promote_is_one_commit
from pytest_gittrix.testing.systems.driver import DrivenEngine, DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

Value = TypeVar("Value")

Operation = Callable[[DrivenEngine, DrivenSession], object]
"""Does something with an engine, to one of its sessions."""

FaultAt = Callable[[FileCall], Fault | None]
"""Gives the fault that kills an operation at one of its calls; None leaves that call out."""


POINTS = 8
"""At how many of its calls an operation is killed, unless the stage has a budget for crashes: then at as many as there is time for."""

WORK: Mapping[str, bytes] = {"app.py": b"agent\n", "new/file.txt": b"agent\n"}
LATER = b"a later version of it\n" * 100


@dataclass(frozen=True)
class KilledOperation:
    """What the kill of an operation left.

    Attributes:
        stage: the stage that the operation ran on.
        engine: an engine that was opened after the kill.
        session: the session that the operation worked on, as the new engine knows it.
        workspace: that session's directory, None where the system has no ``shell``.
        fired: the call at which the process was killed.
    """

    stage: Stage
    engine: DrivenEngine
    session: DrivenSession
    workspace: Path | None
    fired: FileCall | None


class DurabilityClauses(Clauses):
    """Restarts, crashes and events."""

    @needs(Capability.RESUME)
    @protects_work
    def test_dur_01_work_survives_a_restart(self, stage: Stage) -> None:
        """Otherwise restarting a server at night loses what its agents did all day."""
        session = at_work(stage, *WORK)

        restarted = _after_a_restart(stage, session)

        assert restarted.state == "active"
        assert restarted.touched_files() == sorted(WORK)
        lands(stage, restarted, WORK)

    @needs(Capability.RESUME)
    @protects_work
    def test_dur_02_the_baseline_survives_a_restart(self, stage: Stage) -> None:
        """Otherwise a restart hides what a person committed meanwhile, and a promotion overwrites it."""
        session = at_work(stage, *WORK)
        theirs = stage.rival.commit({"app.py": "human\n"})

        restarted = _after_a_restart(stage, session)

        refused("BASELINE_CONFLICT", restarted.promote)
        assert stage.judge.head() == theirs

    @needs(Capability.RESUME)
    def test_dur_03_what_was_promoted_stays_promoted(self, stage: Stage) -> None:
        """A promoted session stays promoted after a restart.

        Otherwise the same work is offered to a person, and committed, a second time.
        """
        session = at_work(stage, *WORK)
        made = session.promote()

        restarted = _after_a_restart(stage, session)

        assert restarted.state == "promoted"
        refused("SESSION_EXPIRED", restarted.promote)
        assert stage.judge.head() == made.sha

    @needs(Capability.RESUME)
    @protects_work
    def test_dur_04_what_was_evicted_stays_evicted(self, stage: Stage) -> None:
        """An evicted session stays evicted after a restart. Otherwise a restart brings back a session without its files."""
        session = at_work(stage, *WORK)
        session.evict()

        restarted = _after_a_restart(stage, session)

        assert restarted.state == "expired"
        refused("SESSION_EXPIRED", restarted.write, "app.py", "late\n")

    @needs(Capability.RESUME)
    @protects_work
    def test_dur_15_an_untouched_session_keeps_its_baseline_over_a_restart(self, stage: Stage) -> None:
        """A session in which nothing was written keeps its baseline over a restart.

        Otherwise an edit that a person made meanwhile counts as seen, and the agent's first write takes it back.
        """
        session = stage.start()
        stage.durable.commit({"app.py": "human\n"})
        stage.gittrix.close()

        again = stage.reopen().get_session(session.id)

        assert again.read("app.py") == b"one\ntwo\nthree\n"
        assert again.touched_files() == []

    @needs(Capability.RESUME, Capability.CLOCK)
    def test_dur_05_time_goes_on_while_nobody_is_there(self, stage: Stage) -> None:
        """Time passes while no engine runs. Otherwise every restart gives abandoned sessions their full time again, and none ever ends."""
        policy = EvictionPolicy(ttl_idle="4h")
        older = stage.start(eviction=policy)
        stage.clock.advance(hours=3)
        younger = stage.start(eviction=policy)

        stage.gittrix.close()
        stage.clock.advance(hours=2)
        reopened = stage.reopen()
        reopened.sweep()

        assert reopened.states() == {older.id: "expired", younger.id: "active"}

    @needs(Capability.RESUME, Capability.CRASH)
    @protects_work
    def test_dur_06_a_killed_promotion_was_made_or_can_be(self, stage: Stage) -> None:
        """A killed promotion is either complete or can be repeated.

        Otherwise work is offered again although it is committed, or is in neither place, and a person must find out.
        """
        baseline = stage.judge.head()
        for killed in kill_during(stage, promote, self.files()):
            judge = killed.stage.judge
            if killed.session.state == "active":
                killed.session.promote()
            assert killed.session.state == "promoted"
            invariant_promote_is_one_commit(judge, judge.head(), onto=baseline, selection=WORK)

    @needs(Capability.RESUME, Capability.CRASH)
    def test_dur_07_a_killed_promotion_leaves_a_whole_repository(self, stage: Stage) -> None:
        """A killed promotion leaves the repository intact.

        Otherwise a person who never heard of the session has to delete a lock, or repair files, before they can go on.
        """
        for killed in kill_during(stage, promote, self.files()):
            person = killed.stage.durable
            assert person.git("status", "--porcelain") == ""
            person.git("fsck", "--strict", "--no-dangling", "--no-progress")
            person.git("commit", "-q", "--allow-empty", "-m", "The person goes on")

    @needs(Capability.RESUME, Capability.CRASH)
    def test_dur_08_a_killed_start_leaves_no_session_half_made(self, stage: Stage) -> None:
        """A killed start leaves no half-made session. Otherwise the list shows a session that cannot be used."""
        for killed in kill_during(stage, _start, self.files()):
            states = killed.engine.states()
            assert states.pop(killed.session.id) == "active"
            for session in (killed.engine.get_session(id_) for id_, state in states.items() if state == "active"):
                session.write("app.py", "agent\n")
                assert session.touched_files() == ["app.py"]
                assert session.files() == sorted(self.files())

    @needs(Capability.RESUME, Capability.CRASH)
    @protects_work
    def test_dur_09_a_killed_write_leaves_the_old_bytes_or_the_new(self, stage: Stage) -> None:
        """A killed write leaves either the old bytes or the new. Otherwise half a file is promoted."""
        for killed in kill_during(stage, _write, self.files()):
            assert killed.session.read("app.py") in (WORK["app.py"], LATER)
            assert killed.session.touched_files() == sorted(WORK)

    @needs(Capability.RESUME, Capability.CRASH)
    @protects_work
    def test_dur_14_a_killed_write_of_a_new_file_leaves_it_whole_or_not_at_all(self, stage: Stage) -> None:
        """A killed write of a new file leaves the whole file or none.

        Otherwise an empty file, or half of one, is promoted as if the agent had written it.
        """
        for killed in kill_during(stage, _write_a_new_file, self.files()):
            if "late.txt" in killed.session.files():
                assert killed.session.read("late.txt") == LATER
            else:
                assert killed.session.touched_files() == sorted(WORK)

    @needs(Capability.RESUME, Capability.CRASH)
    @protects_work
    def test_dur_10_a_killed_eviction_is_finished_or_never_began(self, stage: Stage) -> None:
        """Otherwise a session is active without its files, or has ended and keeps its workspace for good."""
        for killed in kill_during(stage, _evict, self.files()):
            session = killed.session
            if session.state == "active":
                assert {path: session.read(path) for path in session.touched_files()} == WORK
                session.evict()
            assert session.state == "expired"
            assert killed.workspace is None or not killed.workspace.exists()

    @needs(Capability.EVENTS)
    def test_dur_11_events_are_numbered_without_a_gap(self, stage: Stage) -> None:
        """The numbers of events have no gap. Otherwise a subscriber cannot tell whether it missed an event."""
        session = at_work(stage, *WORK)
        stage.rival.commit({"app.py": "human\n"})
        refused("BASELINE_CONFLICT", session.promote)
        session.promote(files=["new/file.txt"])

        _has_no_gap(session.events())

    @needs(Capability.EVENTS, Capability.RESUME)
    def test_dur_12_events_survive_a_restart(self, stage: Stage) -> None:
        """Otherwise the history of a session holds only what happened since the last restart."""
        session = at_work(stage, *WORK)
        before = session.events()

        restarted = _after_a_restart(stage, session)
        restarted.write("app.py", "later\n")

        assert restarted.events()[: len(before)] == before
        _has_no_gap(restarted.events())

    @needs(Capability.EVENTS, Capability.RESUME, Capability.CRASH)
    @protects_work
    def test_dur_13_an_event_cut_short_by_a_kill_is_none(self, stage: Stage) -> None:
        """An event cut short by a kill is ignored. Otherwise a half-written last line of the log makes the whole session unreadable."""
        for killed in kill_during(stage, _write, self.files(), _half_of):
            killed.session.write("app.py", "later\n")

            assert killed.session.read("app.py") == b"later\n"
            _has_no_gap(killed.session.events())


def _kill(call: FileCall) -> Fault | None:
    return KillAt(call.index)


def _half_of(call: FileCall) -> Fault | None:
    return TornKill(call.index, call.size // 2) if call.size is not None and call.size > 1 else None


def kill_during(stage: Stage, operation: Operation, files: Mapping[str, Any], fault_at: FaultAt = _kill) -> Iterator[KilledOperation]:
    """Kill an operation at calls spread over its run, each time on a fresh stage, and open the system again.

    Each stage has a session with ``WORK`` in it. With a budget for crashes, the operation is killed at all of its calls, and in the midst
    of its writes, for as long as that lasts.

    Args:
        stage: the operation is first run to its end on this stage, to learn its calls.
        operation: the operation; it runs in a separate process.
        files: what durable holds at first on the other stages.
        fault_at: the fault for a call; None leaves the call out.
    """
    if (why := supported()) is not None:
        pytest.skip(why)
    clean = _supervised(stage, operation, at_work(stage, *WORK))
    assert clean.exit_code == 0, f"it failed without a fault: {clean.stderr.decode(errors='replace')}"
    faults = _faults(clean.calls, fault_at, every=stage.budget.crash > 0)
    if not faults:
        pytest.skip("no call of it that could be struck was seen")
    chosen = far_apart(faults) if stage.budget.crash else spread(faults, POINTS)
    began = real_seconds()
    for tried, fault in enumerate(chosen):
        if tried and stage.budget.crash and real_seconds() - began >= stage.budget.crash:
            break
        with stage.another(files=files) as fresh:
            session = at_work(fresh, *WORK)
            workspace = session.workspace_path
            run = _supervised(fresh, operation, session, fault)
            struck = describe_call(run.fired, fresh.path) if run.fired is not None else "none of its calls"
            what = operation.__name__.strip("_").replace("_", " ")
            fresh.journal.scene = (
                f"Another process, which was to {what}, met {kind_of(fault)} at call {fault.at} of {len(clean.calls)}: {struck}"
            )
            if stage.budget.crash:
                stage.journal.covered = f"{tried + 1} of {len(faults)} kills at calls that change a file were tried"
            assert run.killed or run.exit_code == 0, run.stderr.decode(errors="replace")
            engine = fresh.reopen()
            yield KilledOperation(fresh, engine, engine.get_session(session.id), workspace, run.fired)


def _faults(calls: Sequence[FileCall], fault_at: FaultAt, *, every: bool) -> list[Fault]:
    """The faults for an operation with these calls; ``every`` adds the writes that a kill cuts short."""
    if every and fault_at is _kill:
        return plan(calls, ("kill", "torn")) if calls else []
    return [fault for call in calls if (fault := fault_at(call)) is not None]


def far_apart(values: Sequence[Value]) -> list[Value]:
    """All of the values, in an order in which the first few are spread over the whole: every 16th, then those half-way, and so on."""
    found: dict[int, None] = {}
    for step in (16, 8, 4, 2, 1):
        found |= dict.fromkeys(range(0, len(values), step))
    return [values[index] for index in found]


def spread(values: Sequence[Value], number: int) -> list[Value]:
    """At most ``number`` of the values, evenly spaced, with the first and the last."""
    if len(values) <= number:
        return [*values]
    return [values[round(index * (len(values) - 1) / (number - 1))] for index in range(number)]


def _supervised(stage: Stage, operation: Operation, session: DrivenSession, fault: Fault | None = None) -> SupervisedRun:
    stage.gittrix.close()

    def act() -> None:
        engine = stage.reopen()
        operation(engine, engine.get_session(session.id))

    return supervise_function(act, fault=fault, within=stage.path)


def promote(_: DrivenEngine, session: DrivenSession) -> None:
    """Promote a session: an operation to be killed."""
    session.promote()


def _start(engine: DrivenEngine, _: DrivenSession) -> None:
    engine.start_session("A second task")


def _write(_: DrivenEngine, session: DrivenSession) -> None:
    session.write("app.py", LATER)


def _write_a_new_file(_: DrivenEngine, session: DrivenSession) -> None:
    session.write("late.txt", LATER)


def _evict(_: DrivenEngine, session: DrivenSession) -> None:
    session.evict()


def _after_a_restart(stage: Stage, session: DrivenSession) -> DrivenSession:
    stage.gittrix.close()
    return stage.reopen().get_session(session.id)


def _has_no_gap(events: Sequence[Mapping[str, Any]]) -> None:
    assert len(events) > 1
    assert [event["seq"] for event in events] == [*range(len(events))]
