"""A session among others at the terminal: in whose terms it is shown, who goes on with it, what forks off it, and who works in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.cli import FILES, NOON, TOAST, WHO, Cli, cells, handed_on, ids

from pytest_gittrix.gastown.runtime_id import persist


class TestStart:
    def test_tells_who_works_in_the_session(self, cli: Cli) -> None:
        data = cli.data("session", "start", "x", *WHO, "--role", "polecat")

        assert data["identity"] == {"agent": TOAST, "rig": "gastown", "role": "polecat", "work_unit": "td-7"}

    def test_takes_an_id_that_somebody_else_chose(self, cli: Cli) -> None:
        assert cli.start("--id", "20300101T120000-abc123") == "20300101T120000-abc123"
        assert "already" in cli.refused("session", "start", "x", "--id", "20300101T120000-abc123")

    @pytest.mark.parametrize("chosen", ["../x", "", "a b"])
    def test_refuses_an_id_that_is_none(self, cli: Cli, chosen: str) -> None:
        assert cli.error("session", "start", "x", "--id", chosen)["code"] == "INVALID_INPUT"
        assert cli.data("session", "list") == []

    @pytest.mark.parametrize("ending", ["discard", "evict"])
    def test_goes_on_with_a_session_that_crashed(self, cli: Cli, ending: str) -> None:
        crashed = cli.start()
        cli.ok("session", ending, crashed, "--outcome", "crash")

        data = cli.data("session", "start", "again", "--parent", crashed)

        assert (data["parent"], data["relation"], data["chain"]) == (crashed, "crash", crashed)

    @pytest.mark.parametrize("ending", [(), ("--outcome", "done"), ("--outcome", "killed")])
    def test_refuses_a_parent_that_did_not_crash_and_leaves_nothing(self, cli: Cli, ending: tuple[str, ...]) -> None:
        parent = cli.start()
        cli.ok("session", "evict", parent, *ending)

        error = cli.error("session", "start", "again", "--parent", parent)

        assert (error["code"], error["state"]) == ("SESSION_EXPIRED", "expired")
        assert ids(cli.data("session", "list")) == [parent]


class TestShow:
    def test_shows_by_default_what_gittrix_knows(self, cli: Cli) -> None:
        cli.freeze()
        first = cli.start(*WHO)
        second = handed_on(cli, first)

        shown, data = cli.ok("session", "show", first).lines, cli.data("session", "show", first)

        assert {f"agent       {TOAST}", "work unit   td-7", "outcome     handoff", f"successor   {second}"} <= set(shown)
        assert (data["id"], data["outcome"], data["successor"], data["chain"]) == (first, "handoff", second, first)
        assert f"parent      {first} (handoff)" in cli.ok("session", "show", second).lines
        assert cli.data("session", "info", first) == data

    def test_shows_the_record_of_gas_town(self, cli: Cli) -> None:
        cli.freeze()
        id_ = cli.start(*WHO)
        cli.ok("session", "discard", id_, "--outcome", "crash")

        record = cli.data("session", "show", id_, "--as", "gastown")

        assert (record["id"], record["agent"], record["work_unit"], record["chain_id"]) == (id_, TOAST, "td-7", id_)
        assert (record["started_at"], record["ended_at"], record["outcome"]) == (
            "2030-01-01T12:00:00Z",
            "2030-01-01T12:00:00Z",
            "crash",
        )
        assert ["outcome", "crash"] in [cells(line) for line in cli.ok("session", "show", id_, "--as", "gastown").lines]

    def test_shows_the_record_of_pixir(self, cli: Cli) -> None:
        id_ = cli.start("--role", "plan")
        cli.ok("session", "record", id_, "user_message", stdin='{"text": "hello"}')

        record = cli.data("session", "show", id_, "--as", "pixir")

        assert record == {
            "id": id_,
            "workspace": str(cli.workspace(id_)),
            "role": "plan",
            "seq": 1,
            "fork_root_session_id": id_,
            "turn_running?": False,
        }
        assert "turn_running?         no" in cli.ok("session", "show", id_, "--as", "pixir").lines

    def test_names_the_first_of_those_that_a_beginning_fits(self, cli: Cli) -> None:
        for name in ("twin-d", "twin-b", "twin-c", "twin-a"):
            cli.start("--id", name)

        refusal = cli.refused("session", "show", "twin")

        assert "twin-a, twin-b, twin-c and more" in refusal
        assert "twin-d" not in refusal
        assert cli.data("session", "show", "twin-d")["id"] == "twin-d"

    def test_without_an_id_shows_the_session_that_the_environment_tells(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        id_ = cli.start()
        cli.start()
        monkeypatch.setenv("GT_SESSION_UUID", id_)

        assert cli.data("session", "show")["id"] == id_

    def test_without_an_id_shows_the_session_that_the_work_directory_tells(self, cli: Cli) -> None:
        id_ = cli.start()
        persist(cli.project, id_, NOON)

        assert cli.data("session", "show", "--as", "gastown")["id"] == id_

    def test_without_an_id_shows_the_session_that_a_runtime_tells(self, cli: Cli) -> None:
        id_ = cli.start()
        shown = cli.process("session", "show", "--json")

        out, err = shown.communicate(json.dumps({"session_id": id_, "source": "resume"}).encode(), timeout=60)

        assert (shown.returncode, err) == (0, b"")
        assert json.loads(out)["data"]["id"] == id_

    def test_without_any_id_says_where_it_looked(self, cli: Cli) -> None:
        shown = cli.process("session", "show", "--json", stdin=subprocess.DEVNULL)
        out, _ = shown.communicate(timeout=60)

        assert shown.returncode == 1
        assert json.loads(out)["error"]["code"] == "SESSION_NOT_FOUND"
        assert "GITTRIX_SESSION_ID" in json.loads(out)["error"]["message"]

    def test_names_who_told_of_a_session_that_is_not_there(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CLAUDE_SESSION_ID", "nobody")

        refusal = cli.refused("session", "show")

        assert "'nobody'" in refusal
        assert "CLAUDE_SESSION_ID" in refusal

    def test_an_id_in_the_environment_that_is_none_is_refused(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITTRIX_SESSION_ID", "../x")

        assert cli.error("session", "show")["code"] == "INVALID_INPUT"

    @pytest.mark.parametrize("variable", ["GT_SESSION_UUID", "GITTRIX_SESSION_ID", "CLAUDE_SESSION_ID"])
    def test_without_an_id_the_session_of_the_environment_is_handed_on_and_discarded(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, variable: str
    ) -> None:
        parent, other = cli.start(), cli.start()
        monkeypatch.setenv(variable, parent)
        child = cli.ok("session", "handoff").lines[0]
        assert cli.data("session", "info", parent)["successor"] == child
        assert cli.refused("session", "discard")  # the environment still names the one that ended
        monkeypatch.setenv(variable, child)
        cli.ok("session", "discard", "--outcome", "done")
        assert (cli.data("session", "info", child)["state"], cli.data("session", "info", child)["outcome"]) == ("discarded", "done")
        assert cli.data("session", "info", other)["state"] == "active"

    @pytest.mark.parametrize("verb", ["handoff", "discard"])
    def test_without_an_id_and_a_session_in_the_environment_nothing_ends(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        id_ = cli.start()
        persist(cli.project, id_, NOON)  # where an agent works says enough to show a session, and not to end it
        refusal = cli.refused("session", verb)
        assert "GT_SESSION_UUID" in refusal
        assert "standard input" not in refusal
        monkeypatch.setenv("GT_SESSION_UUID", "nobody")
        assert "'nobody'" in cli.refused("session", verb)
        assert cli.data("session", "info", id_)["state"] == "active"

    @pytest.mark.parametrize("verb", ["handoff", "discard"])
    def test_an_id_that_is_given_counts_before_the_environment(self, cli: Cli, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        mine, given = cli.start(), cli.start()
        monkeypatch.setenv("GT_SESSION_UUID", mine)
        cli.ok("session", verb, given)
        assert (cli.data("session", "info", mine)["state"], cli.data("session", "info", given)["state"]) == ("active", "discarded")

    @pytest.mark.parametrize("view", ["gittrix", "gastown", "pixir", "orchestrator", "botminter"])
    def test_a_session_of_nobody_is_named_in_any_terms(self, cli: Cli, view: str) -> None:
        assert cli.error("session", "show", "sess_nobody", "--as", view)["code"] == "SESSION_NOT_FOUND"

    def test_a_task_cannot_tell_facts(self, cli: Cli) -> None:
        id_ = cli.ok("session", "start", "one\nstate       promoted").lines[0]

        assert "state       promoted" not in cli.ok("session", "show", id_).lines


class TestHandoff:
    def test_prints_the_new_session_with_the_workspace_of_the_old(self, cli: Cli) -> None:
        first = cli.start(*WHO)
        cli.ok("session", "write", first, "new.py", stdin="x\n")

        second, workspace = cli.ok("session", "handoff", first, "--task", "go on", "--agent", "mayor").lines

        info = cli.data("session", "info", second)
        assert (Path(workspace) / "new.py").read_text() == "x\n"
        assert (info["task"], info["parent"], info["chain"]) == ("go on", first, first)
        assert info["identity"] == {"agent": "mayor", "rig": "gastown", "work_unit": "td-7"}

    def test_of_a_session_that_has_ended_is_refused(self, cli: Cli) -> None:
        id_ = cli.start()
        cli.ok("session", "discard", id_)

        assert cli.error("session", "handoff", id_)["code"] == "SESSION_EXPIRED"
        assert ids(cli.data("session", "list")) == [id_]


class TestFork:
    def test_begins_as_the_other_was_after_an_event(self, cli: Cli) -> None:
        first = cli.start(*WHO)
        for text in ("one", "two"):
            cli.ok("session", "write", first, "app.py", stdin=text)
            cli.ok("session", "record", first, "user_message", stdin=json.dumps({"text": text}))
        said = cli.data("session", "history", first, "--types", "user_message")

        forked = cli.data("session", "fork", first, "--at", str(said[0]["seq"]), "--task", "another way", "--summarize")

        assert (forked["task"], forked["parent"], forked["relation"], forked["forkRoot"]) == ("another way", first, "fork", first)
        assert cli.ok("session", "read", forked["id"], "app.py").text == "one"
        events = cli.data("session", "history", forked["id"], "--types", "user_message,branch_summary")
        assert [event["data"].get("text") for event in events] == ["one", None]
        assert cli.ok("session", "read", first, "app.py").text == "two"

    def test_begins_with_the_files_that_were_asked_for(self, cli: Cli) -> None:
        first = cli.start()
        cli.ok("session", "write", first, "app.py", stdin="now")

        now, baseline = (cli.ok("session", "fork", first, "--at", "1", "--files", which).lines[0] for which in ("now", "baseline"))

        assert cli.ok("session", "read", now, "app.py").text == "now"
        assert cli.ok("session", "read", baseline, "app.py").text == FILES["app.py"]

    def test_says_what_was_left_out(self, cli: Cli) -> None:
        first = cli.start()
        cli.ok("session", "record", first, "user_message", stdin='{"text": "hello"}')

        forked = cli.ok("session", "fork", first, "--at", "1", "--summary", "greetings").lines[0]

        (summary,) = cli.data("session", "history", forked, "--types", "branch_summary")
        assert summary["data"]["summary"] == "greetings"

    def test_after_an_event_that_there_is_not_is_refused(self, cli: Cli) -> None:
        id_ = cli.start()

        assert cli.error("session", "fork", id_, "--at", "99")["code"] == "INVALID_INPUT"
        assert ids(cli.data("session", "list")) == [id_]


class TestIdentify:
    def test_tells_anew_and_takes_away(self, cli: Cli) -> None:
        id_ = cli.start(*WHO)

        shown = cli.ok("session", "identify", id_, "agent=mayor", "work-unit=", "molecule_id=mol-1").lines

        assert shown == ["agent        mayor", "rig          gastown", "molecule id  mol-1"]
        assert cli.data("session", "info", id_)["identity"] == {"agent": "mayor", "rig": "gastown", "molecule_id": "mol-1"}

    @pytest.mark.parametrize("facts", [("agent=mayor", "planet=earth"), ("agent=mayor", "agent=dog"), ("work_unit=1", "work-unit=2")])
    def test_changes_nothing_when_a_fact_is_wrong(self, cli: Cli, facts: tuple[str, ...]) -> None:
        id_ = cli.start(*WHO)
        before = cli.data("session", "history", id_, "--types", "session.identified")

        assert cli.error("session", "identify", id_, *facts)["code"] == "INVALID_INPUT"
        assert cli.data("session", "history", id_, "--types", "session.identified") == before
