"""Agents, plugins and people who do what nobody expects of them: no log is spoilt by it, and no session of others stands still."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.orchestrator import ENVIRONMENT, Fleet, on_linux

from pytest_gittrix.errors import AdapterUnavailable, LogDamaged
from pytest_gittrix.orchestrator.agents import Agents
from pytest_gittrix.orchestrator.board import Board
from pytest_gittrix.orchestrator.config import AgentPlugin
from pytest_gittrix.orchestrator.session import Session
from pytest_gittrix.record.state.observations import Activity

pytestmark = on_linux


class Teller:
    """A plugin that tells what a test says of what its agent does."""

    name = "agent"

    def __init__(self, runs: AgentPlugin, answer: Any) -> None:
        self.runs, self.answer = runs, answer

    def command(self, prompt: str | None, workspace: Path) -> Sequence[str]:
        return self.runs.command(prompt, workspace)

    def environment(self, workspace: Path) -> Mapping[str, str]:
        return self.runs.environment(workspace)

    def activity(self, workspace: Path, now_ns: int) -> Any:
        return self.answer


# Plugins -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        "active",
        Activity("sleeping", "native"),
        Activity("active", "rumour"),
        Activity("active", "native", 1.5),  # type: ignore[arg-type]
        Activity("active", "native", True),
        Activity(["active"], "native"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_what_no_plugin_can_tell_is_a_look_that_failed_and_nothing_of_it_is_stored(fleet: Fleet, answer: Any) -> None:
    lead = fleet.another(fleet.project(agents=(Teller(fleet.agent(), answer),)))
    session = fleet.spawn(lead)

    assert [one.id for one in lead.poll()] == [session.id]
    assert fleet.decided(session.id)[-1] == ("detecting", "probe_failure")
    assert "activity.observed" not in fleet.site.types(session.id)
    assert lead.get(session.id) is not None
    assert fleet.errors == []


def test_what_a_plugin_tells_more_of_is_cut_to_what_a_log_can_hold(fleet: Fleet) -> None:
    activity = Activity("blocked", "native", None, "half a character \ud800" + "x" * 10_000)
    lead = fleet.another(fleet.project(agents=(Teller(fleet.agent(), activity),)))
    session = fleet.spawn(lead)
    lead.poll()

    (seen,) = [event.data for event in fleet.site.events(session.id) if event.type == "activity.observed"]
    assert seen["detail"] == ("half a character ?" + "x" * 10_000)[:500]


def test_a_look_that_ends_in_a_strangers_error_stops_no_other(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fleet.spawn(), fleet.spawn()
    observe = Agents.observe

    def strange(self: Agents, seen: Any) -> Any:
        if seen.id == first.id:
            raise RuntimeError("nobody thought of this")
        return observe(self, seen)

    monkeypatch.setattr(Agents, "observe", strange)
    assert [one.id for one in fleet.lead.poll()] == [second.id]
    assert fleet.errors == ["nobody thought of this"]


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("activity.observed", {"state": "sleeping", "source": "native"}),
        ("pr.observed", {"state": "open", "ci": "on fire"}),
        ("pr.observed", {"state": "open", "number": "7"}),
        ("status.decided", {"session": "working", "reason": "why not"}),
    ],
)
def test_what_no_reader_could_fold_is_not_stored(fleet: Fleet, type: str, data: dict[str, Any]) -> None:
    session = fleet.spawn()
    before = fleet.site.types(session.id)

    with pytest.raises(LogDamaged):
        fleet.lead._board.append(session.id, (type, data))
    assert fleet.site.types(session.id) == before
    assert fleet.now(session.id).status == "working"


# People ------------------------------------------------------------------------------------------------------------------------


def test_a_fork_that_is_named_like_a_spawned_session_is_its_owners_and_is_neither_led_nor_undone(fleet: Fleet) -> None:
    session = fleet.spawn()
    fork = fleet.site.engine.get_session(session.id).fork(id="app-99")
    fork.write("mine.txt", "my own work\n")

    assert [one.id for one in fleet.lead.poll()] == [session.id]
    fleet.another().recover()
    assert fleet.lead.get("app-99") is None
    assert (fork.info().state, fork.read("mine.txt")) == ("active", b"my own work\n")


def test_a_restore_that_cannot_be_recorded_leaves_no_agent(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    session = fleet.spawn()
    fleet.lead.kill(session.id)
    append = Board.append

    def full(self: Board, id: str, *arguments: Any) -> None:
        if arguments[0][0] == "session.restored":
            raise AdapterUnavailable("The disk is full.")
        append(self, id, *arguments)

    monkeypatch.setattr(Board, "append", full)
    with pytest.raises(AdapterUnavailable, match="full"):
        fleet.lead.restore(session.id)
    monkeypatch.undo()

    assert fleet.process(session.id).directory.name == "agent-2"
    assert fleet.process(session.id).observe().state == "exited"
    assert (fleet.now(session.id).status, fleet.site.events(session.id)[-1].data["state"]) == ("killed", "missing")


# Agents ------------------------------------------------------------------------------------------------------------------------


def told_by(fleet: Fleet, session: Session, name: str) -> str:
    """What the agent of a session wrote into a file of its workspace, once it did."""
    assert fleet.process(session.id).wait(60).state == "exited"
    return (Path(str(session.workspace_path)) / name).read_text()


def test_an_agent_gets_the_token_of_the_forge_neither_itself_nor_from_its_supervisor(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITTRIX_FORGE_TOKEN", "a-very-secret-token")
    monkeypatch.setenv("OF_THE_PERSON", "is not passed on")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("MODEL_KEY", "is named")
    line = 'tr "\\0" "\\n" </proc/self/environ >mine; tr "\\0" "\\n" </proc/$PPID/environ >supervisors'
    agent = fleet.agent()
    object.__setattr__(agent, "argv", ("/bin/sh", "-c", line))
    lead = fleet.another(fleet.project(agents=(agent,)), environment=None, pass_env=["MODEL_KEY", "NOT_SET"])
    session = fleet.spawn(lead)

    mine, supervisors = told_by(fleet, session, "mine"), told_by(fleet, session, "supervisors")
    assert "OF_THE_PERSON" not in mine + supervisors
    assert {"LC_TIME=C", "MODEL_KEY=is named", f"PATH={os.environ['PATH']}"} <= {*mine.splitlines()}
    assert "secret" not in mine + supervisors
    assert "GITTRIX_AGENT_MARK=" in supervisors


def test_who_says_what_agents_get_says_all_of_it(fleet: Fleet) -> None:
    agent = fleet.agent()
    object.__setattr__(agent, "argv", ("/bin/sh", "-c", 'echo "$GITTRIX_FORGE_TOKEN" >mine'))
    lead = fleet.another(fleet.project(agents=(agent,)), environment={**ENVIRONMENT, "GITTRIX_FORGE_TOKEN": "on purpose"})

    assert told_by(fleet, fleet.spawn(lead), "mine") == "on purpose\n"
    assert os.environ.get("GITTRIX_FORGE_TOKEN") is None
