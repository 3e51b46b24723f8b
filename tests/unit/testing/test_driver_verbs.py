"""The verbs that not every system has, as they are driven: refused where they are not declared, and left out of command lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.conformance.command_system import UNSUPPORTED, CommandSystem
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.testing.systems.driver import DrivenEngine, DrivenSession, Stage
from pytest_gittrix.testing.systems.driver_members import DrivenMembers, DrivenRules
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem
from pytest_gittrix.testing.systems.protocol import BASE, VERBS, Capability, OptionalVerbs

FILES = {"app.py": "v1\n"}

OF_SESSIONS: dict[str, Callable[[DrivenSession], Any]] = {
    "record": lambda session: session.record("user_message", {"text": "x"}),
    "emit": lambda session: session.emit("text_delta", {"chunk": "x"}),
    "subscribe": lambda session: session.subscribe(print),
    "start_turn": lambda session: session.start_turn(print),
    "interrupt": lambda session: session.interrupt(),
    "turn_running": lambda session: session.turn_running,
    "fork": lambda session: session.fork(),
    "handoff": lambda session: session.handoff(),
    "finish": lambda session: session.finish("done"),
    "succeed": lambda session: session.succeed(),
    "lineage": lambda session: session.lineage(),
    "archived": lambda session: session.archived(),
    "side_work": lambda session: session.side_work(),
}
OF_ENGINES: dict[str, Callable[[DrivenEngine], Any]] = {
    "query": lambda engine: engine.query(),
    "chain": lambda engine: engine.chain("x"),
    "members": lambda engine: engine.members,
    "rules": lambda engine: engine.rules,
}
BY_HANDLES = {*VERBS[Capability.MEMBERS], *VERBS[Capability.STATUS]}
"""What is driven by the handles that ``members`` and ``rules`` give."""


class Modest(GitTrixSystem):
    """Our engine, declared to do no more than every system."""

    def __init__(self) -> None:
        super().__init__("lazy")
        self.capabilities = BASE


@pytest.fixture
def stage() -> Iterator[Stage]:
    """With a system that declares nothing."""
    with Stage.open(Modest(), files=FILES) as opened:
        yield opened


@pytest.mark.parametrize("verb", OF_SESSIONS)
def test_a_verb_that_is_not_declared_is_refused_and_does_nothing(stage: Stage, verb: str) -> None:
    session = stage.start()

    with pytest.raises(CapabilityMissing, match="does not declare"):
        OF_SESSIONS[verb](session)

    assert stage.gittrix.states() == {session.id: "active"}


@pytest.mark.parametrize("verb", OF_ENGINES)
def test_a_question_that_is_not_declared_is_refused(stage: Stage, verb: str) -> None:
    with pytest.raises(CapabilityMissing, match="does not declare"):
        OF_ENGINES[verb](stage.gittrix)


def test_each_verb_that_is_driven_is_declared_and_described() -> None:
    driven = {verb for capability in UNSUPPORTED for verb in VERBS[capability]}

    assert driven == {*OF_SESSIONS, *OF_ENGINES, *BY_HANDLES} - {"members", "rules"}
    assert sorted(verb for verbs in VERBS.values() for verb in verbs if not getattr(OptionalVerbs, verb).__doc__) == []


class RecordingEngine:
    """An engine that records which verbs are called."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def answer(*_: Any, **__: Any) -> Any:
            self.called.add(verb)
            return {"repositories": {"app": "/w/app"}, "life": {"state": "active"}, "lives": {}}.get(verb, "x")

        return answer


def test_handles_drive_every_verb_of_members_and_of_statuses() -> None:
    raw, day = RecordingEngine(), timedelta(days=1)
    members, rules = DrivenMembers(raw), DrivenRules(raw)
    session = members.begin("ada", {"app": "file:///app.git"})
    session.stop(force=True)
    session.conclude()
    session.finalize()
    members.keep_for(day, day, day)

    assert (session.state, session.repository(), session.acquire("gt-1")) == ("active", Path("/w/app"), "x")
    assert (members.states(), members.scan(), members.cleanup(all=True)) == ({}, ["x"], ["x"])
    assert (rules.of(), rules.look_through({"after": 0})) == ("x", ["x"])
    assert rules.is_terminal("done", None) is rules.is_restorable("done", None) is rules.is_polled("done") is True
    assert raw.called == BY_HANDLES


def test_our_engine_as_a_system_does_all_there_is() -> None:
    assert GitTrixSystem("clone").capabilities == frozenset(Capability)
    with Stage.open(GitTrixSystem("clone"), files=FILES) as stage:
        session = stage.start(agent="rig/toast")
        turn = session.start_turn(lambda context: context.record("assistant_message", {"text": "hi"}))

        assert turn.wait(60.0)
        assert [event["data"] for event in session.events() if event["type"] == "assistant_message"] == [{"text": "hi"}]
        assert stage.gittrix.query(agent="rig/toast") == stage.gittrix.chain(session.id) == [session.id]


def test_a_command_line_claims_nothing_that_it_has_no_words_for() -> None:
    system = CommandSystem([sys.executable], capabilities=BASE | UNSUPPORTED | {Capability.DELETE}, clock="none")

    assert system.capabilities == BASE | {Capability.DELETE}
    assert system.reasons.keys() == UNSUPPORTED
    assert CommandSystem.own().capabilities.isdisjoint(UNSUPPORTED)
