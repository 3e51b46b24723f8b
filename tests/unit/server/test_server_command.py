"""A command gives the same answer whether a daemon runs it or it works on the store itself; that it does where no daemon answers."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli, Terminal
from support.daemon import DaemonClient, http_answer, impostor, listener, serving

from pytest_gittrix.cli.main import main
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.server import client
from pytest_gittrix.server.run import Settings

READING = [
    ("session", "list"),
    ("session", "list", "--as", "gastown"),
    ("session", "list", "-d", "."),
    ("session", "list", "-d", "src"),
    ("session", "list", "-d", "nowhere"),
    ("session", "export", "app.py"),
    ("session", "start", "x", "-d", "nowhere"),
    ("session", "list", "--agent", "東京"),
    ("session", "list", "--status", "promoted"),
    ("session", "find", "--agent", "ada"),
    ("session", "chain", "{id}"),
    ("session", "tree", "{id}"),
    ("session", "show", "{id}", "--as", "pixir"),
    ("session", "info", "{id}"),
    ("session", "read", "{id}", "app.py"),
    ("session", "read", "{id}", "bytes.bin"),
    ("session", "list-files", "{id}"),
    ("session", "list-files", "{id}", "src"),
    ("session", "touched", "{id}"),
    ("session", "diff", "{id}"),
    ("session", "diff", "{id}", "--hunks"),
    ("session", "log", "{id}"),
    ("session", "history", "{id}"),
    ("session", "history", "{id}", "--json-lines"),
    ("session", "inspect", "{id}"),
    ("session", "inspect", "{member}"),
    ("session", "show", "{member}", "--as", "botminter"),
    ("session", "cleanup", "{member}", "--dry-run"),
    ("session", "finalize", "{member}"),
    ("member", "status"),
    ("member", "list"),
    ("member", "history", "--since", "24h"),
    ("sweep",),
    ("recover",),
    # What is refused is refused alike.
    ("session", "info", "nothing"),
    ("session", "info", "a/b"),
    ("session", "read", "{id}", "missing.txt"),
    ("session", "read", "{id}", "../../etc/passwd"),
    ("session", "diff", "{id}", "README.md"),
    ("session", "list", "-d", "/"),
    ("session", "cleanup", "--all"),
    ("session", "cleanup"),
    ("session", "cleanup", "--all", "--member", "ada"),
    ("session", "list", "--status", "odd"),
    ("session", "find"),
    ("session", "spawn", "nothing"),
    ("session", "report", "{id}", "working"),
    ("member", "lock", "{id}", "x"),
    ("promote", "{id}", "README.md"),
]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    made = Cli(tmp_path, monkeypatch, capfdbinary)
    made.freeze()
    return made


@contextmanager
def daemon_of(cli: Cli) -> Iterator[DaemonClient]:
    with serving(Settings(port=0, store=cli.home / "sessions")) as asked:
        yield asked


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that daemons were sent."""
    lines: list[list[str]] = []
    real = client.Client.command

    def command(self: client.Client, argv: Any, *rest: Any) -> dict[str, Any]:
        lines.append([*argv])
        return real(self, argv, *rest)

    monkeypatch.setattr(client.Client, "command", command)
    return lines


def test_every_command_that_looks_gives_the_same_bytes_through_a_daemon(cli: Cli, sent: list[list[str]]) -> None:
    id_ = cli.start("--agent", "ada")
    cli.ok("session", "write", id_, "app.py", stdin="print('v2')\n")
    cli.ok("session", "write", id_, "bytes.bin", stdin=b"\x00\xff\xfe\n")
    cli.ok("session", "commit", id_, "-m", "Zwei, in Umlauten: äöü")
    member = cli.ok("member", "start", "eve", "--kind", "interactive").lines[0]
    with daemon_of(cli):
        for words in READING:
            argv = [word.format(id=id_, member=member) for word in words]
            for form in ((), ("--json",)):
                cli(*argv, *form, "--no-daemon")  # what looking itself leaves behind is there from now on
                direct = cli(*argv, *form, "--no-daemon")
                sent.clear()
                through = cli(*argv, *form)
                assert through == direct, argv
                assert bool(sent) is (direct.status != 2), argv


def test_what_changes_a_session_changes_it_alike(cli: Cli, sent: list[list[str]]) -> None:
    with daemon_of(cli):
        id_ = cli.start("--agent", "ada", "--history", "full")
        cli.ok("session", "write", id_, "new.py", stdin=b"\x00new\n")
        seq = cli.ok("session", "record", id_, "user_message", stdin='{"text": "hello"}').lines[0]
        assert cli.ok("session", "read", id_, "new.py").out == b"\x00new\n"
        assert cli.data("session", "history", id_, "--types", "user_message")[0]["seq"] == int(seq)
        cli.ok("promote", id_, "-m", "Through the daemon")
    assert len(sent) == 6
    assert cli.git("log", "--format=%s", "-1", "--all").strip() == "Through the daemon"
    assert cli.data("session", "list")[0]["state"] == "promoted"


def test_paths_are_meant_where_the_command_is_typed(cli: Cli, sent: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    other = cli.repository("other")
    with daemon_of(cli):
        here = cli.start()
        monkeypatch.chdir(other / "src")
        there = cli.start()
        cli.ok("session", "export", "town")
        assert [one["id"] for one in cli.data("session", "list", "-d", "..")] == [there]
        assert [one["id"] for one in cli.data("session", "list", "-d", "../../project")] == [here]
    assert (other / "src" / "town" / ".events.jsonl").is_file()
    assert len(sent) == 5


def test_a_session_that_another_engine_started_is_seen_at_once(cli: Cli) -> None:
    with daemon_of(cli):
        id_ = cli.start("--no-daemon")
        assert [one["id"] for one in cli.data("session", "list")] == [id_]
        cli.ok("session", "discard", id_)
        assert cli.data("session", "list", "--no-daemon")[0]["state"] == "discarded"


# Who is not asked ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["flag", "variable", "store", "clock", "team", "bytes", "forge", "forge of a start", "gone", "odd"])
def test_a_daemon_is_left_alone_where_it_could_not_answer_the_same(
    cli: Cli, sent: list[list[str]], monkeypatch: pytest.MonkeyPatch, way: str, tmp_path: Path
) -> None:
    arguments = ["session", "list"]
    with daemon_of(cli):
        match way:
            case "flag":
                arguments.append("--no-daemon")
            case "variable":
                monkeypatch.setenv("GITTRIX_DAEMON", "0")
            case "store":
                arguments += ["--store", str(cli.home / "others")]
            case "clock":
                monkeypatch.delenv("PYTEST_GITTRIX_CLOCK")
            case "team":
                (tmp_path / "blue.toml").write_text("team = 'blue'")
                arguments = ["member", "list", "--team", str(tmp_path / "blue.toml")]
            case "bytes":
                arguments = ["session", "export", "town\udcff"]
            case "forge":
                monkeypatch.setenv("GITTRIX_FORGE_TOKEN", "secret")
                id_ = cli.start("--no-daemon")
                cli.ok("session", "write", id_, "app.py", "--no-daemon", stdin="new\n")
                arguments = ["promote", id_]
            case "forge of a start":
                monkeypatch.setenv("GITTRIX_FORGE_TOKEN", "secret")
                arguments = ["session", "start", "x"]
            case "gone" | "odd":
                place = tmp_path / "caf\udce9"
                place.mkdir()
                monkeypatch.chdir(place)
                if way == "gone":
                    place.rmdir()
        cli.ok(*arguments, "--json")

    assert sent == []


def test_a_person_is_asked_here_and_not_by_the_daemon(cli: Cli, sent: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon_of(cli):
        id_ = cli.start()
        cli.ok("session", "write", id_, "app.py", stdin="new\n")
        sent.clear()
        monkeypatch.setattr(sys, "stdin", Terminal(b"\n"))
        monkeypatch.setattr(sys, "stderr", Terminal())
        assert main(["promote", id_]) == 0

    assert sent == []


def test_standard_input_is_read_before_a_connection_is_made_that_would_not_wait_for_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    greet = client.Client.greet

    def greeted(self: client.Client) -> None:
        happened.append("greeted")
        greet(self)

    class Typed(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            happened.append("read")
            return super().read(size)

    monkeypatch.setattr(client.Client, "greet", greeted)
    id_ = cli.start()
    with daemon_of(cli):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Typed(b"slowly\n")))
        assert main(["session", "write", id_, "new.txt"]) == 0

    assert happened[0] == "read"
    assert happened.count("greeted") == 1
    assert cli.ok("session", "read", id_, "new.txt").out == b"slowly\n"


def test_help_and_misuse_are_told_without_a_daemon(cli: Cli, sent: list[list[str]]) -> None:
    with daemon_of(cli):
        assert cli("session", "list", "--help").out.startswith(b"usage: gittrix session list")
        assert cli("session", "start").status == 2
        assert cli("session", "nothing", "--json").envelope["error"]["code"] == "USAGE"


# Daemons that do not answer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, b"SSH-2.0-OpenSSH\r\n", http_answer("200 OK", {"ok": True}), http_answer("500 No", [])])
def test_where_somebody_else_answers_or_nobody_the_store_is_worked_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    id_ = cli.start()
    monkeypatch.setattr(client.Client.__init__, "__kwdefaults__", {"patience": 0.2})
    with listener(answer) as port:
        impostor(cli.home, port)
        ran = cli("session", "list", "--json")

    assert ran.status == 0
    assert [one["id"] for one in ran.envelope["data"]] == [id_]
    assert ran.err.startswith("gittrix: The daemon does not answer (")


def test_somebody_else_who_answers_does_not_get_the_key(cli: Cli) -> None:
    heard: list[bytes] = []
    with listener(http_answer("200 OK", {"ok": True}), heard=heard) as port:
        impostor(cli.home, port, key="the-key-of-the-daemon")
        cli("session", "list")

    assert len(heard) == 1
    assert heard[0].startswith(b"GET /health ")
    assert b"the-key-of-the-daemon" not in heard[0]


def test_a_file_that_a_dead_daemon_left_is_not_even_tried(cli: Cli) -> None:
    id_ = cli.start()
    gone = Owner.current().to_json() | {"start_time": 1}
    impostor(cli.home, 1, owner=gone)

    assert [one["id"] for one in cli.data("session", "list")] == [id_]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "x"}', "\x00"])
def test_a_file_that_is_none_is_taken_for_no_daemon(cli: Cli, text: str) -> None:
    id_ = cli.start()
    (cli.home / "daemon.json").write_text(text)

    assert [one["id"] for one in cli.data("session", "list")] == [id_]


def test_a_daemon_that_goes_away_in_the_middle_is_done_without_if_nothing_can_be_done_twice(cli: Cli) -> None:
    id_ = cli.start()
    greeting = http_answer("200 OK", {"ok": True, "store": str(cli.home / "sessions")})
    with listener(b"", greeting=greeting) as port:
        impostor(cli.home, port)
        looked = cli("session", "list", "--json")
        changed = cli("session", "record", id_, "user_message", "--json", stdin='{"text": "once"}')

    assert [one["id"] for one in looked.envelope["data"]] == [id_]
    assert looked.err.startswith("gittrix: The daemon went away (")
    assert (changed.status, changed.envelope["error"]["code"]) == (1, "DAEMON_LOST")


@pytest.mark.parametrize("refusal", [http_answer("400 Bad Request", {"ok": False, "error": {"code": "INVALID_INPUT", "message": "odd"}})])
def test_what_standard_input_held_is_not_lost_where_the_daemon_refuses_the_command(cli: Cli, refusal: bytes) -> None:
    id_ = cli.start()
    greeting = http_answer("200 OK", {"ok": True, "store": str(cli.home / "sessions")})
    with listener(refusal, greeting=greeting) as port:
        impostor(cli.home, port)
        ran = cli("session", "write", id_, "new.txt", stdin=b"precious\n")

    assert (ran.status, ran.err) == (0, "gittrix: The daemon refuses the command (odd).\n")
    assert cli.ok("session", "read", id_, "new.txt", "--no-daemon").out == b"precious\n"


# The request itself ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv", [["serve"], ["conform"], ["torture", "--oracle", "true", "true"], ["mcp"], ["session"], ["--help"], ["--version"], ["nothing"]]
)
def test_what_is_no_command_about_sessions_is_refused(cli: Cli, argv: list[str]) -> None:
    with daemon_of(cli) as asked:
        reply = asked.command(*argv, cwd=cli.project)

    assert reply.status == 400


def test_a_command_that_needs_to_know_who_asks_is_refused(cli: Cli) -> None:
    with daemon_of(cli) as asked:
        assert asked.command("session", "show", cwd=cli.project).error == (400, "INVALID_INPUT")


def test_standard_input_that_is_closed_is_closed_for_the_daemon_too(cli: Cli) -> None:
    with daemon_of(cli) as asked:
        id_ = cli.start()
        reply = asked.command("session", "write", id_, "x", cwd=cli.project, stdin=None)
        assert reply.json["answer"]["error"]["code"] == "INVALID_INPUT"
        assert asked.command("session", "write", id_, "x", cwd=cli.project, stdin="not base64!").error == (400, "INVALID_INPUT")
        reply = asked.command("session", "write", id_, "x", cwd=cli.project, stdin=base64.b64encode(b"x").decode())
        assert reply.json == {"status": 0, "answer": {"data": {"path": "x", "size": 1}, "shown": {"text": ""}, "notes": []}}


def test_a_start_through_a_daemon_takes_the_id_of_the_caller_s_runtime(
    cli: Cli, sent: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon_of(cli):
        monkeypatch.setenv("CLAUDE_SESSION_ID", "f81d4fae-7dec")
        first, second = cli.start(), cli.start()
        monkeypatch.setenv("CLAUDE_SESSION_ID", "../elsewhere")
        third = cli.start()

    assert len(sent) == 3
    assert first == "f81d4fae-7dec"
    assert second != first, "an id is never used twice"
    assert third.startswith("sess_")
