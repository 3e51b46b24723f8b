"""The commands that the documents of Gas Town and Pixir name, typed at ``gittrix``: one test for each, and for each of its flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support.cli import Cli
from support.walkthrough import LONG, NUX, TOAST

OF_TOAST = ("--agent", TOAST["agent"], "--rig", "gastown", "--role", "polecat", "--work-unit", "gt-xyz")
OF_NUX = ("--agent", NUX["agent"], "--rig", "beads")


def ids(records: list[dict[str, Any]]) -> list[str]:
    """Their ids."""
    return [record["id"] for record in records]


class TestList:
    """``gt sessions list [--agent=<addr>] [--rig=<rig>] [--since=1h]``."""

    def test_list_shows_the_sessions(self, cli: Cli) -> None:
        started = {cli.start(*OF_TOAST), cli.start(*OF_NUX)}
        assert set(ids(cli.data("session", "list", "--as", "gastown"))) == started

    def test_list_shows_them_in_the_document_s_fields(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        (record,) = cli.data("session", "list", "--as", "gastown")
        assert record.items() >= {"id": id_, "agent": TOAST["agent"], "rig": "gastown", "work_unit": "gt-xyz", "chain_id": id_}.items()

    @pytest.mark.parametrize(("flag", "value"), [("--agent", NUX["agent"]), ("--rig", "beads")])
    def test_list_by_agent_and_by_rig(self, cli: Cli, flag: str, value: str) -> None:
        cli.start(*OF_TOAST)
        wanted = cli.start(*OF_NUX)
        assert ids(cli.data("session", "list", f"{flag}={value}")) == [wanted]

    def test_list_since(self, cli: Cli) -> None:
        clock = cli.freeze()
        cli.start(*OF_TOAST)
        clock.advance(hours=2)
        wanted = cli.start(*OF_TOAST)
        assert ids(cli.data("session", "list", "--since=1h")) == [wanted]

    def test_list_for_people_has_a_row_for_each_with_its_activity(self, cli: Cli) -> None:
        cli.freeze()
        id_ = cli.start(*OF_TOAST)
        heading, row = cli.ok("session", "list", "--as", "gastown").lines
        assert heading.lower().split()[:2] == ["id", "agent"]
        assert row.split() == [id_, TOAST["agent"], "2030-01-01T12:00:00Z", "gt-xyz", "green"]


class TestSessions:
    """``gt sessions ...``, as the document writes it."""

    def test_sessions_is_written_as_the_document_writes_it(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        assert ids(cli.data("sessions", "list", f"--agent={TOAST['agent']}", "--rig=gastown", "--since=1h")) == [id_]
        assert cli.data("sessions", "show", id_)["sessionId"] == id_
        assert ids(cli.data("sessions", "chain", "gt-xyz")) == [id_]
        assert ids(cli.data("sessions", "find", f"--agent={TOAST['agent']}", "--since=24h")) == [id_]

    def test_start_takes_the_runtime_s_session_id(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
        monkeypatch.setenv("CLAUDE_SESSION_ID", runtime)
        assert cli.start(*OF_TOAST) == runtime
        assert cli.start(*OF_TOAST) != runtime, "an id is never used twice"
        assert cli.start("--id", "chosen") == "chosen"
        monkeypatch.setenv("CLAUDE_SESSION_ID", "../elsewhere")
        assert cli.start(*OF_TOAST).startswith("sess_")

    def test_start_takes_terminal_molecule_step_and_directory(self, cli: Cli) -> None:
        facts = {"tmux_session": "gt-gastown-Toast", "molecule_id": "mol-1", "step_ref": "build", "cwd": "/town/toast"}
        id_ = cli.start(*(word for name, value in facts.items() for word in (f"--{name.replace('_', '-')}", value)))
        assert cli.data("session", "show", id_, "--as", "gastown").items() >= facts.items()

    def test_handoff_takes_an_id_and_who_was_handed_on_names_its_successor(self, cli: Cli) -> None:
        first = cli.start(*OF_TOAST)
        second = cli.ok("session", "handoff", first, "--id", "abc-123", "--step-ref", "test").lines[0]
        assert (second, cli.data("session", "show", second, "--as", "gastown")["step_ref"]) == ("abc-123", "test")
        refused = cli.error("session", "write", first, "app.py")
        assert refused["code"] == "SESSION_EXPIRED"
        assert "was handed on" in refused["message"]
        assert "Go on in session abc-123" in refused["message"]

    def test_a_second_end_with_the_same_outcome_is_no_error(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        first = cli.data("session", "discard", id_, "--outcome", "crash")
        assert cli.data("session", "discard", id_, "--outcome", "crash") == first
        assert cli.error("session", "discard", id_, "--outcome", "done")["code"] == "SESSION_EXPIRED"


class TestShow:
    """``gt sessions show <session-id>``."""

    def test_show_has_the_record(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        record = cli.data("session", "show", id_, "--as", "gastown")
        assert (record["id"], record["agent"], record["work_unit"]) == (id_, TOAST["agent"], "gt-xyz")

    def test_show_has_ended_ones_too(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        cli.ok("session", "discard", id_, "--outcome", "crash")
        assert cli.data("session", "show", id_, "--as", "gastown")["outcome"] == "crash"

    def test_show_takes_the_beginning_of_an_id(self, cli: Cli) -> None:
        id_ = cli.start("--id", "abc-123")
        assert cli.data("session", "show", "abc", "--as", "gastown")["id"] == id_

    def test_show_without_an_id_is_of_this_process_s_session(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        id_ = cli.start(*OF_TOAST)
        monkeypatch.setenv("GT_SESSION_UUID", id_)
        assert cli.data("session", "show", "--as", "gastown")["id"] == id_

    def test_show_as_pixir_has_its_info(self, cli: Cli) -> None:
        id_ = cli.start()
        record = cli.data("session", "show", id_, "--as", "pixir")
        assert (record["id"], record["role"], record["seq"], record["turn_running?"]) == (id_, "build", 0, False)


class TestChain:
    """``gt sessions chain <bead-id>``: by a work item, while the API is by a line's id; both are taken."""

    @pytest.mark.parametrize("by", ["work unit", "chain", "session"])
    def test_chain_shows_the_line_oldest_first(self, cli: Cli, by: str) -> None:
        clock = cli.freeze()
        first = cli.start(*OF_TOAST)
        clock.advance(minutes=1)
        second = cli.ok("session", "handoff", first).lines[0]
        cli.start(*OF_NUX)
        asked = {"work unit": "gt-xyz", "chain": first, "session": second}[by]
        assert ids(cli.data("session", "chain", asked)) == [first, second]

    def test_chain_of_what_nobody_worked_on_says_so(self, cli: Cli) -> None:
        assert cli.error("session", "chain", "gt-none")["code"] == "SESSION_NOT_FOUND"


class TestFind:
    """``gt sessions find --agent=gastown/polecats/Toast --since=24h``."""

    def test_find_has_an_agent_s_sessions_newest_first(self, cli: Cli) -> None:
        clock = cli.freeze()
        cli.start(*OF_TOAST)
        clock.advance(hours=30)
        wanted = [cli.start(*OF_TOAST)]
        cli.start(*OF_NUX)
        clock.advance(minutes=1)
        wanted.insert(0, cli.start(*OF_TOAST))
        assert ids(cli.data("session", "find", "--agent=gastown/polecats/Toast", "--since=24h")) == wanted


class TestTriggers:
    """Session States: the commands that end a session, and what they are called here."""

    def test_gt_handoff_is_session_handoff(self, cli: Cli) -> None:
        parent = cli.start(*OF_TOAST)
        child = cli.ok("session", "handoff", parent).lines[0]
        assert cli.data("session", "show", parent, "--as", "gastown").items() >= {"outcome": "handoff", "child_id": child}.items()

    def test_gt_handoff_of_an_agent_that_only_knows_its_environment(self, cli: Cli) -> None:
        parent = cli.start(*OF_TOAST)
        command = [sys.executable, "-m", "pytest_gittrix.cli", "session", "handoff", "--agent", "gastown/polecats/Nux", "--json"]
        done = subprocess.run(command, env={**os.environ, "GT_SESSION_UUID": parent}, capture_output=True, timeout=LONG, check=True)
        child = json.loads(done.stdout)["data"]["id"]
        assert cli.data("session", "show", child, "--as", "gastown")["parent_id"] == parent

    def test_gt_done_is_a_promotion(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        cli.ok("session", "write", id_, "app.py", stdin="v2\n")
        cli.ok("promote", id_)
        assert cli.data("session", "show", id_, "--as", "gastown")["outcome"] == "done"

    def test_gt_done_of_an_agent_that_only_knows_its_environment(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        script = '"$0" -m pytest_gittrix.cli session discard --outcome done'
        environment = {**os.environ, "GT_SESSION_UUID": id_}
        subprocess.run(["/bin/sh", "-c", script, sys.executable], env=environment, capture_output=True, timeout=LONG, check=True)
        assert cli.data("session", "show", id_, "--as", "gastown")["outcome"] == "done"

    def test_gt_polecat_nuke_is_an_end_as_killed(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        cli.ok("session", "evict", id_, "--outcome", "killed")
        assert cli.data("session", "show", id_, "--as", "gastown")["outcome"] == "killed"

    def test_a_respawn_is_a_start_with_a_parent(self, cli: Cli) -> None:
        crashed = cli.start(*OF_TOAST)
        cli.ok("session", "discard", crashed, "--outcome", "crash")
        respawned = cli.start(*OF_TOAST, "--parent", crashed)
        assert cli.data("session", "show", respawned, "--as", "gastown")["parent_id"] == crashed

    def test_the_files_of_the_document_are_an_export(self, cli: Cli) -> None:
        id_ = cli.start(*OF_TOAST)
        cli.ok("session", "export", str(cli.root / "town"))
        (line,) = (cli.root / "town/.sessions/index.jsonl").read_text().splitlines()
        assert json.loads(line)["id"] == id_


class TestConversationsAtTheTerminal:
    """Pixir's document names no commands. Those of its tool that read and branch a conversation have their like here."""

    def test_history_and_record(self, cli: Cli) -> None:
        id_ = cli.start()
        cli.ok("session", "record", id_, "user_message", stdin='{"text": "hello"}')
        (event,) = cli.data("session", "history", id_, "--types", "user_message")
        assert event["data"] == {"text": "hello"}

    def test_fork_and_tree(self, cli: Cli) -> None:
        id_ = cli.start()
        child = cli.ok("session", "fork", id_, "--summarize").lines[0]
        root = cli.data("session", "tree", id_)
        assert [(node["id"], node["relation"]) for node in root["children"]] == [(child, "fork")]
