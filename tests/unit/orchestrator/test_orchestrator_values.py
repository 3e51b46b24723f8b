"""What an orchestrator is told and gives out, as values: agents that are commands, spawn configurations, the document's Session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.orchestrator import Watched, at, write_activity

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.orchestrator.config import CommandAgent, Project, SpawnConfig, branch_for, prompt_as
from pytest_gittrix.orchestrator.flat_files import session_of
from pytest_gittrix.orchestrator.session import PRInfo, RuntimeHandle, Session, is_restorable, is_terminal_session, session_from
from pytest_gittrix.record.state.agent_activity import SqliteQuery
from pytest_gittrix.views.orchestrator import record
from pytest_gittrix.views.orchestrator_status import STATUSES

AGENT = CommandAgent("sh", ("sh", "-c"))


def whole() -> Session:
    """A session of which everything is known."""
    session = Watched(issue="7", branch="topic", agent="sh", runtime="process", agent_session="abc")
    session.tell(1, "runtime.observed", state="alive", pid=7, start_time=8)
    session.tell(2, "pr.observed", state="open", number=3, url="https://x/acme/app/pull/3", title="T", branch="topic", draft=True)
    session.tell(3, "user_message", text="Mend the login")
    session.tell(4, "provider_usage", input_tokens=5)
    session.tell(5, "session.restored")
    session.tell(6, "runtime.observed", state="alive", pid=9, start_time=10)
    return session_from(record(session.events))


def test_a_session_speaks_the_documents_json_and_comes_back_from_it() -> None:
    session = whole()
    wire = session.to_wire()

    assert session_from(json.loads(json.dumps(wire))) == session
    assert session.runtime_handle == RuntimeHandle("9", "process", {"pid": 9, "startTime": 10})
    assert session.pr == PRInfo(3, "https://x/acme/app/pull/3", "T", "", "", "topic", "", True)
    assert session.agent_info is not None
    assert (session.agent_info.summary, session.agent_info.summary_is_fallback) == ("Mend the login", True)
    assert wire["agentInfo"]["cost"] == {"inputTokens": 5, "outputTokens": 0, "estimatedCostUsd": 0}
    assert wire["restoredAt"] == "2030-01-01T00:05:00.000Z"
    assert "restoredAt" not in session_from(record(Watched().events)).to_wire()


@pytest.mark.parametrize("handle", ["{}", '{"id":"t","runtimeName":"tmux","data":7}', '{"id":"t","runtimeName":"tmux","more":1}'])
def test_a_file_with_an_odd_handle_is_a_session_all_the_same(handle: str) -> None:
    session = session_from(session_of("app-1", {"runtimeHandle": handle}, modified_ns=at(0)))

    assert session.runtime_handle in (None, RuntimeHandle("t", "tmux", {}))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("activity", [None, "active", "exited"])
def test_when_a_session_is_over_and_can_come_back_is_as_documented(status: str, activity: str | None) -> None:
    session = session_from({**whole().to_wire(), "status": status, "activity": activity})
    over = status in ("killed", "terminated", "done", "cleanup", "errored", "merged") or activity == "exited"

    assert is_terminal_session(session) == over
    assert is_restorable(session) == (over and status != "merged")
    assert is_restorable(session, dialect="head") == over


def test_an_agent_that_is_a_command_gets_its_prompt_last_or_by_its_input(tmp_path: Path) -> None:
    reads = CommandAgent("cat", ("cat",), prompt_as="input", variables={"A": "b"})

    assert [*AGENT.command("do it", tmp_path)] == ["sh", "-c", "do it"]
    assert [*AGENT.command(None, tmp_path)] == ["sh", "-c"]
    assert [*reads.command("do it", tmp_path)] == ["cat"]
    assert (prompt_as(AGENT), prompt_as(reads), reads.environment(tmp_path)) == ("argument", "input", {"A": "b"})


def test_an_agent_that_is_a_command_tells_by_its_log(tmp_path: Path) -> None:
    write_activity(tmp_path / ".ao" / "activity.jsonl", "waiting_input", at(0))
    found = AGENT.activity(tmp_path, at(1))

    assert found is not None
    assert (found.state, found.observed_ns, found.source) == ("waiting_input", at(0), "native")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"argv": ()}, "has no command"),
        ({"argv": "sh"}, "has no command"),
        ({"prompt_as": "telepathy"}, "argument or input"),
        ({"database": "x.db"}, "one of database and query"),
        ({"query": SqliteQuery("SELECT 1, 2")}, "one of database and query"),
    ],
)
def test_what_is_no_agent_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        CommandAgent(**{"name": "x", "argv": ("sh",), **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "-app"}, "is not the id of a project"),
        ({"prefix": "a b"}, "is not the id of a session"),
        ({"prefix": 7}, "prefix is int"),
        ({"workspace": "cloud"}, "cloud"),
        ({"agents": (AGENT, AGENT)}, "has the agents sh, sh"),
    ],
)
def test_what_is_no_project_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Project(**{"id": "app", "durable": "/repo", "agents": (AGENT,), **options})


@pytest.mark.parametrize(
    ("id", "owned"), [("app-1", True), ("app-10", True), ("app-orchestrator", True), ("app-orchestrator-2", True)]
    + [(id, False) for id in ("app", "app-", "app-x", "my-app-1", "app-1-2", "app-1x", "apps-1")],
)  # fmt: skip
def test_a_project_knows_the_ids_of_its_sessions(id: str, owned: bool) -> None:
    assert Project("app", "/repo", agents=(AGENT,)).owns(id) == owned


@pytest.mark.parametrize("options", [{"branch": "../x"}, {"branch": "a b"}, {"project_id": 7}, {"agent": "a\0"}, {"prompt": b"bytes"}])
def test_a_configuration_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        SpawnConfig(**{"project_id": "app", **options}).check()


def test_a_branch_is_called_by_the_first_who_says_so() -> None:
    config = SpawnConfig("app", issue_id="7", branch="refs/heads/mine")

    assert branch_for(config, "tracked", "app-1") == "mine"
    assert branch_for(SpawnConfig("app", issue_id="7"), "tracked", "app-1") == "tracked"
    assert branch_for(SpawnConfig("app", issue_id="7"), None, "app-1") == "feat/7"
    assert branch_for(SpawnConfig("app"), None, "app-1") == "session/app-1"
