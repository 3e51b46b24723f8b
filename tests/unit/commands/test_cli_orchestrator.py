"""The commands for orchestrated sessions: what they say to people and to programs, without a daemon."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.acp_program import MEMBER
from support.cli import Cli
from support.daemon import LONG, wait_until

from pytest_gittrix.confine.levels import strongest
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(tmp_path, monkeypatch, capfdbinary)


@pytest.fixture
def agents(cli: Cli, tmp_path: Path) -> Iterator[AgentKit]:
    """A project whose agent reads a line, then hangs."""
    with AgentKit(tmp_path / "kit", timeout=LONG) as kit:
        argv = kit.script("stub").polite().at("up").read().hang().command
        cli.home.mkdir()
        # The agent obeys a script outside of its workspace.
        lines = [
            'confine = "off"',
            "[[projects]]",
            'id = "parser"',
            f"durable = {json.dumps(str(cli.project))}",
            'branch = "trunk"',
            'prefix = "par"',
        ]
        lines += ["[projects.agents]", f"stub = {json.dumps(argv)}", 'other = ["sleep", "600"]']
        (cli.home / "team.toml").write_text("\n".join(lines) + "\n")
        yield kit


def created(cli: Cli, id_: str) -> dict[str, Any]:
    """What is stored of the start of a session."""
    data: dict[str, Any] = cli.data("session", "info", id_, "--events")["events"][0]["data"]
    return data


def test_limits_of_an_agent_are_told_with_its_confinement(cli: Cli, agents: AgentKit) -> None:
    if strongest().level == "off":
        pytest.skip("nothing confines programs here")
    spawned = cli("session", "spawn", "parser", "--agent", "other", "--confine", "auto", "--limit", "processes=40", "--limit", "memory=2GB")

    assert "limits processes=40 memory=2GB" in spawned.err
    assert cli.error("session", "spawn", "parser", "--limit", "memory")["code"] == "INVALID_INPUT"


def test_spawn_prints_the_id_and_the_workspace_and_the_agent_goes_on(cli: Cli, agents: AgentKit) -> None:
    id_, workspace = cli.ok("session", "spawn", "parser", "--issue", "INT-7").lines
    agents.step("up")

    assert id_ == "par-1"
    assert (Path(workspace) / "app.py").is_file()
    (record,) = cli.data("session", "list", "--as", "orchestrator")
    assert (record["id"], record["projectId"], record["issueId"], record["branch"]) == (id_, "parser", "INT-7", "feat/INT-7")
    assert len(agents.alive("stub")) == 1
    assert created(cli, id_)["keep_after_promote"] is True


def test_who_leads_a_project_is_one_and_works_on_no_issue(cli: Cli, agents: AgentKit) -> None:
    first = cli.ok("session", "spawn", "parser", "--lead", "--prompt", "see to the issues").lines
    agents.step("up")

    assert cli.ok("session", "spawn", "parser", "--lead").lines == first
    assert len(agents.alive("stub")) == 1
    assert cli.error("session", "spawn", "parser", "--lead", "--issue", "INT-7")["code"] == "INVALID_INPUT"
    assert cli.error("session", "spawn", "parser", "--lead", "--end-after-promote")["code"] == "INVALID_INPUT"


def test_what_is_sent_reaches_the_agent(cli: Cli, agents: AgentKit) -> None:
    id_ = cli.data("session", "spawn", "parser", "--end-after-promote")["id"]
    agents.step("up")

    assert "keep_after_promote" not in created(cli, id_)
    assert cli.data("session", "send", id_, "look at it") == {"id": id_, "sent": True}

    wait_until(lambda: agents.heard == ["look at it"], "the line")


def test_kill_ends_the_agent_once_and_restore_begins_another(cli: Cli, agents: AgentKit) -> None:
    id_ = cli.data("session", "spawn", "parser")["id"]
    agents.step("up")

    assert cli.data("session", "kill", id_) == {"id": id_, "cleaned": True, "alreadyTerminated": False, "archives": []}
    assert agents.gone("stub")
    assert cli.ok("session", "kill", id_).text == f"{id_} was over already\n"
    assert cli.data("session", "restore", id_)["status"] == "working"
    agents.step("up")
    assert len(agents.alive("stub")) == 1
    assert cli.error("session", "restore", id_)["code"] == "SESSION_NOT_RESTORABLE"


def looked(cli: Cli, id_: str) -> tuple[str, str | None]:
    """The status and the activity of a session, as ``list`` shows them."""
    (found,) = [one for one in cli.data("session", "list", "--as", "orchestrator") if one["id"] == id_]
    return found["status"], found["activity"]


def test_a_program_with_a_log_or_a_database_of_its_own_is_seen_by_the_rules_of_the_team_file(cli: Cli, agents: AgentKit) -> None:
    clock = cli.freeze()
    with (cli.home / "team.toml").open("a") as team:
        team.write(
            """
            [projects.agents.logs]
            command = ["sleep", "600"]
            log = "trace/*.jsonl"
            time = "at"
            unit = "s"
            rules = [{when = {kind = ["ask", "confirm"]}, state = "waiting_input"}, {when = {kind = "*"}, state = "active"}]

            [projects.agents.stores]
            command = ["sleep", "600"]
            database = "trace.db"
            query = "SELECT state, at FROM now"
            unit = "s"
            """
        )
    ids = {name: cli.data("session", "spawn", "parser", "--agent", name)["id"] for name in ("logs", "stores")}
    workspaces = {name: cli.workspace(id_) for name, id_ in ids.items()}
    at = int(clock.now().timestamp())
    (workspaces["logs"] / "trace").mkdir()
    (workspaces["logs"] / "trace/1.jsonl").write_text(f'{{"kind": "work", "at": {at}}}\n')
    with closing(sqlite3.connect(workspaces["stores"] / "trace.db")) as database, database:
        database.execute("CREATE TABLE now AS SELECT 'blocked' AS state, ? AS at", [at])
    assert [looked(cli, ids[name]) for name in ("logs", "stores")] == [("working", "active"), ("stuck", "blocked")]

    (workspaces["logs"] / "trace/1.jsonl").write_text(f'{{"kind": "work", "at": {at}}}\n{{"kind": "confirm", "at": {at}}}\n{{"ki')
    assert looked(cli, ids["logs"]) == ("needs_input", "waiting_input")
    for id_ in ids.values():
        cli.ok("session", "kill", id_)


def test_an_agent_of_the_protocol_gets_prompts_and_is_seen_by_its_updates(cli: Cli, agents: AgentKit) -> None:
    with (cli.home / "team.toml").open("a") as team:
        team.write(f"speaks = {json.dumps(MEMBER)}\n")
    id_ = cli.data("session", "spawn", "parser", "--agent", "speaks", "--prompt", "say('up')")["id"]
    wait_until(lambda: looked(cli, id_) == ("working", "ready"), "the end of the first turn")
    cli.ok("session", "send", id_, "if True:\n    say('again')\n    reason = 'refusal'")

    def told(kind: str) -> list[dict[str, Any]]:
        return [one["data"] for one in cli.data("session", "history", id_) if one["type"] == kind]

    wait_until(lambda: len(told("turn.ended")) == 2, "the end of the second turn")
    prompts = [one["text"] for one in told("user_message")]
    assert prompts == ["say('up')", "if True:\n    say('again')\n    reason = 'refusal'"], "each once"
    assert [one["text"] for one in told("assistant_message")] == ["up", "again"]
    cli.ok("session", "kill", id_)


def test_retire_removes_what_is_over_and_leaves_who_works(cli: Cli, agents: AgentKit) -> None:
    kept, lost, killed = (cli.data("session", "spawn", "parser", "--agent", "other")["id"] for _ in range(3))
    for id_ in (lost, killed):
        (cli.workspace(id_) / "new.py").write_text("x = 1\n")
    cli.ok("session", "kill", killed)
    (one,) = [one for one in cli.data("session", "list", "--as", "orchestrator") if one["id"] == lost]
    os.kill(int(one["runtimeHandle"]["id"].partition(":")[0]), signal.SIGKILL)
    wait_until(lambda: cli.data("session", "retire", "--dry-run")["killed"] == [lost], "the end of its agent")

    done = cli("session", "retire")
    assert (done.status, done.lines) == (0, [f"{lost} is retired"])
    assert f"The work of {lost} is in {cli.home / 'sessions' / lost}" in done.err
    assert cli.ok("session", "retire").lines == ["Nothing to retire."]
    record = cli.data("session", "retire", "--ended", "--project", "parser")
    assert (record["killed"], record["skipped"], record["errors"]) == ([killed], [kept], {})
    assert looked(cli, kept)[0] == "working"
    cli.ok("session", "kill", kept)


def test_a_report_is_believed_or_refused_with_the_reason(cli: Cli, agents: AgentKit) -> None:
    id_ = cli.data("session", "spawn", "parser")["id"]
    agents.step("up")

    assert cli.data("session", "report", id_, "working", "--note", "the lexer") == {"id": id_, "accepted": True, "reason": None}
    refused = cli("session", "report", id_, "merged", "--json")
    assert (refused.status, refused.envelope["data"]["accepted"]) == (1, False)
    assert refused.envelope["data"]["reason"]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("spawn", "nothing"), "INVALID_INPUT"),
        (("spawn", "parser", "--agent", "nobody"), "INVALID_INPUT"),
        (("kill", "par-9"), "SESSION_NOT_FOUND"),
        (("restore", "par-9"), "SESSION_NOT_FOUND"),
        (("send", "par-9", "hello"), "SESSION_NOT_FOUND"),
        (("report", "par-9", "working"), "SESSION_NOT_FOUND"),
        (("claim-pr", "par-9", "1"), "SESSION_NOT_FOUND"),
    ],
)
def test_what_is_not_there_is_told_by_its_code(cli: Cli, agents: AgentKit, argv: tuple[str, ...], code: str) -> None:
    assert cli.error("session", *argv)["code"] == code


def test_a_pull_request_of_a_project_without_a_forge_cannot_be_claimed(cli: Cli, agents: AgentKit) -> None:
    id_ = cli.data("session", "spawn", "parser", "--agent", "other")["id"]

    assert cli.error("session", "claim-pr", id_, "3")["code"] == "INVALID_INPUT"
    cli.ok("session", "kill", id_, "--purge")
    assert cli.data("session", "list", "--status", "active") == []
