"""What was said and done in sessions, at the terminal: read, added to, and written out as Gas Town has it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli, Terminal
from support.git import GitRepo

from pytest_gittrix.gastown.files import read_index, read_town_events


def say(cli: Cli, id_: str, text: str, type: str = "user_message") -> int:
    """Record something that was said; gives its place in the log."""
    return int(cli.ok("session", "record", id_, type, stdin=json.dumps({"text": text})).text)


def seqs(events: list[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


class TestHistory:
    def test_is_all_that_happened_in_order(self, cli: Cli, id_: str) -> None:
        say(cli, id_, "hello")
        cli.ok("session", "discard", id_)

        events = cli.data("session", "history", id_)

        assert seqs(events) == list(range(len(events)))
        assert events == cli.data("session", "info", id_, "--events")["events"]

    def test_can_be_of_some_types_and_after_an_event(self, cli: Cli, id_: str) -> None:
        one, two, three = say(cli, id_, "one"), say(cli, id_, "two", "assistant_message"), say(cli, id_, "three")

        assert seqs(cli.data("session", "history", id_, "--types", "user_message, assistant_message")) == [one, two, three]
        assert seqs(cli.data("session", "history", id_, "--types", "user_message", "--after", str(one))) == [three]
        assert seqs(cli.data("session", "history", id_, "--after", "0"))[0] == 1
        assert cli.data("session", "history", id_, "--after", "99") == []

    def test_is_a_table_for_people(self, cli: Cli, id_: str) -> None:
        cli.freeze()
        seq = say(cli, id_, "Grüße\nsess_fake")

        heading, row = cli.ok("session", "history", id_, "--types", "user_message").lines

        assert heading.split() == ["SEQ", "TIME", "ACTOR", "TYPE", "DATA"]
        assert row.split() == [str(seq), "2030-01-01T12:00:00.000Z", "human", "user_message", '{"text":', '"Grüße\\nsess_fake"}']

    def test_is_cut_to_the_width_of_a_terminal_and_never_in_a_pipe(self, cli: Cli, id_: str, monkeypatch: pytest.MonkeyPatch) -> None:
        say(cli, id_, "short")
        say(cli, id_, "long" * 100)
        terminal = Terminal()

        _, short, long = cli.ok("session", "history", id_, "--types", "user_message").lines
        assert "long" * 100 in long
        assert short.endswith('{"text": "short"}')
        monkeypatch.setattr(sys, "stdout", terminal)
        assert cli("session", "history", id_, "--types", "user_message").status == 0

        _, short_shown, long_shown = terminal.shown.splitlines()
        assert short_shown == short
        assert (len(long_shown), long_shown[-1]) == (100, "…")

    def test_can_be_a_json_object_a_line(self, cli: Cli, id_: str) -> None:
        say(cli, id_, "Grüße")

        ran = cli.ok("session", "history", id_, "--json-lines")

        assert ran.out.isascii()
        assert [json.loads(line) for line in ran.lines] == cli.data("session", "history", id_, "--json-lines")

    def test_without_an_event_says_so(self, cli: Cli, id_: str) -> None:
        assert cli.ok("session", "history", id_, "--types", "tool_call").text == "There are no events.\n"
        assert cli.ok("session", "history", id_, "--types", "tool_call", "--json-lines").text == ""

    @pytest.mark.parametrize(
        ("line", "code"),
        [(["sess_nobody"], "SESSION_NOT_FOUND"), (["../x"], "INVALID_INPUT"), (["sess", "--types", "tea_time"], "INVALID_INPUT")],
    )
    def test_of_nobody_or_of_what_never_happens_is_refused(self, cli: Cli, id_: str, line: list[str], code: str) -> None:
        assert cli.error("session", "history", *line)["code"] == code

    def test_of_a_damaged_log_is_refused(self, cli: Cli, id_: str) -> None:
        (cli.home / "sessions" / id_ / "events.jsonl").write_text("not an event\nnor this\n")

        assert cli.error("session", "history", id_)["code"] == "LOG_DAMAGED"


class TestRecord:
    def test_stores_an_event_and_prints_its_place(self, cli: Cli, id_: str) -> None:
        event = cli.data("session", "record", id_, "tool_call", stdin='{"call_id": "c1", "name": "shell", "args": {"command": ["ls"]}}')

        assert (event["type"], event["data"]["args"]) == ("tool_call", {"command": ["ls"]})
        assert cli.data("session", "history", id_, "--types", "tool_call") == [event]
        assert say(cli, id_, "next") == event["seq"] + 1

    @pytest.mark.parametrize(
        ("type_", "data"),
        [
            ("user_message", ""),
            ("user_message", "hello"),
            ("user_message", '["hello"]'),
            ("user_message", '{"text": "hello"} {}'),
            ("user_message", '{"text": "one", "text": "two"}'),
            ("user_message", '{"text": "one", "metadata": {"a": 1, "a": 2}}'),
            ("user_message", '{"text": "\\ud800"}'),
            ("user_message", '{"text": NaN}'),
            ("user_message", b'{"text": "\xff"}'),
            ("user_message", '{"text": ' + "[" * 900 + "]" * 900 + "}"),
            ("user_message", '{"text": ' + "[" * 90_000 + "]" * 90_000 + "}"),
            ("user_message", '{"colour": "red"}'),
            ("session.ended", '{"state": "promoted"}'),
            ("text_delta", '{"chunk": "x"}'),
            ("tea_time", "{}"),
        ],
    )
    def test_stores_nothing_that_is_no_event(self, cli: Cli, id_: str, type_: str, data: str | bytes) -> None:
        before = cli.data("session", "history", id_)

        assert cli.error("session", "record", id_, type_, stdin=data)["code"] == "INVALID_INPUT"
        assert cli.data("session", "history", id_) == before

    def test_in_a_session_that_has_ended_is_refused(self, cli: Cli, id_: str) -> None:
        cli.ok("session", "discard", id_)

        assert cli.error("session", "record", id_, "user_message", stdin='{"text": "x"}')["code"] == "SESSION_EXPIRED"


class TestExport:
    def test_writes_the_files_of_gas_town(self, cli: Cli, id_: str) -> None:
        agent = "gastown/polecats/Toast"
        other = cli.start("--agent", agent)
        cli.ok("session", "discard", id_, "--outcome", "crash")
        town = cli.root / "town"

        done = cli.data("session", "export", str(town))

        assert done.items() >= {"sessions": 2, "archived": 0, "problems": []}.items()
        assert sorted(line["id"] for line in read_index(town / ".sessions" / "index.jsonl")) == sorted([id_, other])
        assert json.loads((town / ".sessions" / f"{other}.json").read_text())["agent"] == agent
        assert done["events"] == len(read_town_events(town / ".events.jsonl")) == 3

    def test_archives_what_ended_long_ago(self, cli: Cli, id_: str) -> None:
        clock = cli.freeze()
        old, new = cli.start("--manual"), cli.start("--manual")
        cli.ok("session", "discard", old)
        clock.advance(days=30, minutes=1)
        cli.ok("session", "discard", new)

        shown = cli.ok("session", "export", str(cli.root / "town"), "--archive-older-than", "30d").lines

        archive = cli.root / "town" / ".sessions" / "archive"
        assert [path.name for path in archive.iterdir()] == [f"{old}.json"]
        assert [line.split() for line in shown][:2] == [["sessions", "3"], ["archived", "1"]]
        assert cli.data("session", "export", str(cli.root / "town"), "--archive-older-than", "9999999d")["archived"] == 0

    def test_names_what_it_could_not_read(self, cli: Cli, id_: str) -> None:
        bad = cli.start()
        (cli.home / "sessions" / bad / "events.jsonl").write_text("not an event\nnor this\n")

        ran = cli("session", "export", "town")

        assert (ran.status, ran.lines[0].split()) == (0, ["sessions", "1"])
        assert bad in ran.err
        assert [one["id"] for one in cli.data("session", "export", "town")["problems"]] == [bad]

    def test_refuses_a_place_that_is_none_or_is_a_towns_own(self, cli: Cli, id_: str) -> None:
        (cli.root / "file").write_text("")
        (cli.root / "town").mkdir()
        (cli.root / "town" / ".events.jsonl").write_text('{"type": "mail"}\n')

        assert cli.error("session", "export", str(cli.root / "file"))["code"] == "ADAPTER_UNAVAILABLE"
        assert cli.error("session", "export", str(cli.root / "town"))["code"] == "INVALID_INPUT"
        assert (cli.root / "town" / ".events.jsonl").read_text() == '{"type": "mail"}\n'


class TestTimeline:
    def test_tells_what_happened_with_the_agents_own_commits_also_of_an_ended_session(self, cli: Cli, id_: str) -> None:
        workspace = Path(cli.data("session", "info", id_)["workspacePath"])
        say(cli, id_, "hello")
        cli.ok("session", "write", id_, "app.py", stdin="v2\n")
        GitRepo(workspace).text("commit", "-qam", "By git itself")
        live = cli.data("session", "log", id_, "--timeline")
        cli.ok("session", "discard", id_)
        ended = cli.ok("session", "log", id_, "--timeline").text.splitlines()

        told = [(one["what"], one["text"]) for one in live]
        assert ("said", "user: hello") in told
        assert ("file", "wrote app.py") in told
        assert [text.partition(" ")[2] for what, text in told if what == "commit"] == ["By git itself"]
        assert [one["seq"] for one in live if one["what"] == "commit"] == [None]
        assert "began at" in ended[0]
        assert any("ended: discarded" in line for line in ended)

    def test_without_the_flag_is_the_list_of_commits(self, cli: Cli, id_: str) -> None:
        assert cli.data("session", "log", id_) == []
