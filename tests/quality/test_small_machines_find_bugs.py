"""The machines for histories, turns and lines find what they are for: engines broken on purpose, each in one place, are caught."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pytest_gittrix.engine import user_session
from pytest_gittrix.engine.agents import agent_session, turns
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.turns import Turns
from pytest_gittrix.engine.lineage import handoff
from pytest_gittrix.engine.lineage.fork import Fork
from pytest_gittrix.engine.lineage.handoff import Handoff, Succession
from pytest_gittrix.engine.operations import conversation
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.errors import TurnBusy
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.state import fold
from pytest_gittrix.record.state.fold import EventRule, SessionState
from pytest_gittrix.record.store import index
from pytest_gittrix.record.store.index import Index, Query
from pytest_gittrix.testing.machines.lineage_machine import LineMachine
from pytest_gittrix.testing.machines.log_machine import LogMachine
from pytest_gittrix.testing.machines.machine_base import WorldMachine, machine_of, steps_of
from pytest_gittrix.testing.machines.turn_machine import TurnMachine
from pytest_gittrix.testing.profiles import profile

Defect = Callable[[], AbstractContextManager[object]]


# Histories -----------------------------------------------------------------------------------------------------------------------


def announces_first() -> AbstractContextManager[object]:
    """An event is announced, and then stored."""
    exact = Recorder.append

    def append(self: Recorder, type_: str, data: Mapping[str, Any], **options: Any) -> SessionState:
        emit, self.emit = self.emit, lambda _event: None
        try:
            seq = self._state.seq + 1 if self._state is not None else 0
            emit(Event(seq, self.clock.now_ns(), self.id, type_, options.get("actor", "system"), dict(data)))
            return exact(self, type_, data, **options)
        finally:
            self.emit = emit

    return patch.object(Recorder, "append", append)


def stores_what_passes() -> AbstractContextManager[object]:
    """What is only to be announced is stored, where it can be."""
    exact = AgentSession.emit

    def emit(self: AgentSession, type: str, data: Mapping[str, Any]) -> None:
        if type in ("tool_call", "user_message"):
            self.record(type, data)
        else:
            exact(self, type, data)

    return patch.object(AgentSession, "emit", emit)


def is_alone() -> AbstractContextManager[object]:
    """Nobody else writes a log, so there is no need to look before one writes."""
    return patch.object(EventLog, "_catch_up", lambda _self, _fd, _ts: None)


def says_nothing_of_torn_ends() -> AbstractContextManager[object]:
    """A torn end is cut off in silence."""
    exact = EventLog._store

    def store(self: EventLog, fd: int, drafts: Sequence[Any], *rest: Any) -> Sequence[Event | None]:
        return [None] if [draft[0] for draft in drafts] == ["log.recovered"] else exact(self, fd, drafts, *rest)

    return patch.object(EventLog, "_store", store)


def announces_what_is_refused() -> AbstractContextManager[object]:
    """A message that cannot be recorded is announced all the same."""
    exact = AgentSession.record

    def record(self: AgentSession, type: str, data: Mapping[str, Any]) -> Event:
        try:
            return exact(self, type, data)
        except Exception:
            self._recorder.emit(Event(-1, 0, self.id, type, "agent", {}))
            raise

    return patch.object(AgentSession, "record", record)


def loses_keys() -> AbstractContextManager[object]:
    """Of two keys that come to the same text the last one counts."""
    return patch.object(agent_session, "normalised", lambda data: {str(key): _texts(value) for key, value in data.items()})


def _texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _texts(inner) for key, inner in value.items()}
    return [_texts(inner) for inner in value] if isinstance(value, list | tuple) else value


def hears_everybody() -> AbstractContextManager[object]:
    """Who listens to a session hears all sessions."""
    return patch.object(user_session.UserSession, "subscribe", lambda self, listener, types=None: self._services.emitter.on("*", listener))


# Turns ---------------------------------------------------------------------------------------------------------------------------


def closes_no_orphans() -> AbstractContextManager[object]:
    """What a turn left open stays open, once it was interrupted."""
    exact = conversation.close_orphans

    def close(recorder: Recorder, now: SessionState, reason: str, **options: Any) -> SessionState:
        return now if reason == "interrupt" else exact(recorder, now, reason, **options)

    return patch.object(turns, "close_orphans", close)


def closes_orphans_as_they_came() -> AbstractContextManager[object]:
    """In the order of the calls, not of their ids."""
    exact = conversation.close_orphans

    def close(recorder: Recorder, now: SessionState, reason: str, **options: Any) -> SessionState:
        for call_id, tool in [*now.calls.items()]:
            now = exact(recorder, replace(now, calls={call_id: tool}), reason, **options)
        return now

    return patch.object(turns, "close_orphans", close)


def takes_lost_turns_for_done() -> AbstractContextManager[object]:
    """A turn that died with its engine ended well."""
    exact = Recorder.append

    def append(self: Recorder, type_: str, data: Mapping[str, Any], **options: Any) -> SessionState:
        changed = {**data, "status": "done"} if data.get("status") == "lost" else data
        return exact(self, type_, changed, **options)

    return patch.object(Recorder, "append", append)


def lets_threads_go_on() -> AbstractContextManager[object]:
    """A thread that was interrupted can still write."""
    return patch.object(Recorder, "revoke", lambda _self, _refusal: None)


def runs_two_turns() -> AbstractContextManager[object]:
    """A session that is busy starts another turn."""
    exact = Turns._claim

    def claim(self: Turns, recorder: Recorder, *begun: threading.Event) -> Lease:
        with suppress(TurnBusy):
            return exact(self, recorder, *begun)
        return Lease(recorder.directory / ".turn.2").acquire()

    return patch.object(Turns, "_claim", claim)


def drops_late_answers() -> AbstractContextManager[object]:
    """The answer to a call that is not open is thrown away."""
    exact = Recorder.append

    def append(self: Recorder, type_: str, data: Mapping[str, Any], **options: Any) -> SessionState:
        if type_ == "tool_result" and data["call_id"] not in self.read().calls:
            self.last = self.log.twin().read()[-1]
            return self.read()
        return exact(self, type_, data, **options)

    return patch.object(Recorder, "append", append)


def knows_a_call_by_its_first_name() -> AbstractContextManager[object]:
    """A call under an id that is open changes nothing."""
    return _with_rule("tool_call", lambda now, event: now.calls.setdefault(event.data["call_id"], event.data["name"]))


def takes_failures_for_results() -> AbstractContextManager[object]:
    """A turn that raised is done."""
    exact = Turns._end

    def end(self: Turns, recorder: Recorder, held: AgentSession, turn: Any, lease: Lease) -> None:
        turn.error = None
        exact(self, recorder, held, turn, lease)

    return patch.object(Turns, "_end", end)


def _with_rule(type_: str, apply: Callable[[SessionState, Event], object]) -> AbstractContextManager[object]:
    old = fold.RULES[type_]

    def change(now: SessionState, event: Event) -> None:
        apply(now, event)

    changed = EventRule(old.when, use=old.use, apply=change)
    return patch.object(fold, "RULES", {**fold.RULES, type_: changed})


# Lines ---------------------------------------------------------------------------------------------------------------------------


def begins_a_line_with_each_handoff() -> AbstractContextManager[object]:
    """A child is the first of a line of its own."""
    exact = handoff.after
    return patch.object(handoff, "after", lambda parent, relation: exact(parent, relation)._replace(chain=parent.id))


def lets_two_succeed() -> AbstractContextManager[object]:
    """A session that crashed may have any number of successors."""
    exact = handoff.require_crashed

    def require_crashed(parent: SessionState) -> SessionState:
        return parent if parent.outcome == "crash" else exact(parent)

    return patch.object(handoff, "require_crashed", require_crashed)


def lets_the_killed_be_succeeded() -> AbstractContextManager[object]:
    """Any end is as good as a crash."""
    return patch.object(handoff, "require_crashed", lambda parent: parent)


def forgets_the_successor() -> AbstractContextManager[object]:
    """A session that was handed on does not say to whom."""
    return _changing("session.ended", lambda data: {key: value for key, value in data.items() if key != "successor"})


def _changing(type_: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> AbstractContextManager[object]:
    exact = Recorder.append

    def append(self: Recorder, name: str, data: Mapping[str, Any], **options: Any) -> SessionState:
        return exact(self, name, change(data) if name == type_ else data, **options)

    return patch.object(Recorder, "append", append)


def writes_to_the_parent_of_a_fork() -> AbstractContextManager[object]:
    """A fork is recorded in the log of its parent."""
    exact = Fork.fill

    def fill(self: Fork, child: Recorder, workspace: Any) -> None:
        with self.parent.leased() as now:
            if not now.ended:
                self.parent.append("session.accessed", {"op": "fork"})
        exact(self, child, workspace)

    return patch.object(Fork, "fill", fill)


def forks_from_no_further_back() -> AbstractContextManager[object]:
    """The root of a fork is its parent."""
    exact = Fork.lineage
    return patch.object(Fork, "lineage", lambda self, id_: exact(self, id_)._replace(root=self.parent.id))


def forks_all_that_was_said() -> AbstractContextManager[object]:
    """Whatever event a fork is made after."""
    exact = Fork.fill

    def fill(self: Fork, child: Recorder, workspace: Any) -> None:
        exact(replace(self, events=self.parent.log.twin().read()), child, workspace)

    return patch.object(Fork, "fill", fill)


def leaves_the_stillborn_as_successors() -> AbstractContextManager[object]:
    """A child that never came to be keeps its parent from having another."""
    return patch.object(Succession, "undo", lambda _self, _id: None)


def leaves_handoffs_half_done() -> AbstractContextManager[object]:
    """A handoff that was killed is called off, though there is a child."""

    def finish(self: Handoff, child_id: str) -> SessionState:
        return self.recorder.append("handoff.aborted", {"child": child_id, "reason": "killed"})

    return patch.object(Handoff, "finish", finish)


def takes_until_in() -> AbstractContextManager[object]:
    """A query has the instant that it ends with, too."""
    exact = Index.query

    def query(self: Index, asked: Query) -> list[Any]:
        return exact(self, asked if asked.until_ns is None else replace(asked, until_ns=asked.until_ns + 1000))

    return patch.object(Index, "query", query)


def files_handoffs_only() -> AbstractContextManager[object]:
    """The index knows no outcome but a handoff."""
    exact = index._fields

    def fields(now: SessionState) -> tuple[Any, ...]:
        return exact(now if now.outcome == "handoff" else replace(now, outcome=None))

    return patch.object(index, "_fields", fields)


HISTORIES: list[tuple[Defect, str]] = [
    (announces_first, "is announced once it is stored"),
    (stores_what_passes, "is what was recorded|hears what it asked for"),
    (is_alone, "is what was recorded|can be read from the first|LOG_DAMAGED|have no gap|is cut off"),
    (says_nothing_of_torn_ends, "is cut off, and said so"),
    (announces_what_is_refused, "hears what it asked for"),
    (loses_keys, "must answer INVALID_INPUT"),
    (hears_everybody, "hears what it asked for|announced once it is stored"),
]
TURNS: list[tuple[Defect, str]] = [
    (closes_no_orphans, "is what happened"),
    (closes_orphans_as_they_came, "is what happened"),
    (takes_lost_turns_for_done, "is what happened"),
    (lets_threads_go_on, "must answer TURN_OVER"),
    (runs_two_turns, "must answer TURN_BUSY|Of two turns at once one begins"),
    (drops_late_answers, "is what happened"),
    (knows_a_call_by_its_first_name, "is what happened|are those without an answer"),
    (takes_failures_for_results, "is what happened|says how it ended"),
]
LINES: list[tuple[Defect, str]] = [
    (begins_a_line_with_each_handoff, "is as it must be|whole line"),
    (lets_two_succeed, "must answer SESSION_EXPIRED|LOG_DAMAGED"),
    (lets_the_killed_be_succeeded, "must answer SESSION_EXPIRED"),
    (forgets_the_successor, "is as it must be"),
    (writes_to_the_parent_of_a_fork, "by what is not about it"),
    (forks_from_no_further_back, "is as it must be"),
    (forks_all_that_was_said, "takes along what was said"),
    (leaves_the_stillborn_as_successors, "is as it must be|must answer OK|has the successor"),
    (leaves_handoffs_half_done, "leaves no more|is as it must be|SESSION_EXPIRED|recovered"),
    (takes_until_in, "finds what fits"),
    (files_handoffs_only, "finds what fits|is what came of it"),
]


def caught(machine: type[WorldMachine], defect: Defect, complaint: str) -> list[str]:
    """Run a machine on an engine with a defect; gives the steps that showed it.

    The examples of the quick profile nearly always suffice, but which they are differs from process to process. So as not to fail for
    that, it is given more of them, and if need be others.
    """
    quick = profile("quick")
    quiet = settings(
        quick, max_examples=4 * quick.max_examples, database=None, report_multiple_bugs=False, print_blob=False, phases=[Phase.generate]
    )
    for drawn in (quiet, settings(quiet, derandomize=False), settings(quiet, derandomize=False)):
        found = complaint_of(machine, defect, drawn)
        if found is not None:
            break
    assert found is not None, f"{machine.__name__} did not find it in {3 * quiet.max_examples} examples"
    steps = [*steps_of(found)]
    assert re.search(complaint, str(found)), (str(found), steps)
    return steps


def complaint_of(machine: type[WorldMachine], defect: Defect, drawn: settings) -> AssertionError | None:
    """What a machine has against an engine with a defect, if it finds it."""
    try:
        with defect():
            run_state_machine_as_test(machine_of(machine), settings=drawn)
    except AssertionError as failed:
        return failed
    return None


@pytest.mark.parametrize(("defect", "complaint"), HISTORIES)
def test_a_broken_history_is_caught(defect: Defect, complaint: str) -> None:
    assert caught(LogMachine, defect, complaint)


@pytest.mark.parametrize(("defect", "complaint"), TURNS)
def test_a_broken_turn_is_caught(defect: Defect, complaint: str) -> None:
    assert caught(TurnMachine, defect, complaint)


@pytest.mark.parametrize(("defect", "complaint"), LINES)
def test_a_broken_line_is_caught(defect: Defect, complaint: str) -> None:
    assert caught(LineMachine, defect, complaint)
