"""What goes to a terminal, a pipe, a full disk or nobody; and how the command ends when it is interrupted or breaks."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from support.cli import Cli, Terminal

from pytest_gittrix.commands import engine_context
from pytest_gittrix.commands.output import working


def test_names_that_are_not_utf8_come_out_as_they_are(cli: Cli) -> None:
    id_ = cli.start()
    name = os.fsdecode(b"caf\xe9.txt")
    cli.ok("session", "write", id_, name, stdin="x\n")

    assert cli.ok("session", "touched", id_).out == b"caf\xe9.txt\n"
    assert cli.ok("session", "read", id_, name).out == b"x\n"
    assert cli.data("session", "touched", id_) == [name]
    assert "macOS allows only names in UTF-8" in cli("promote", id_, name).err
    assert cli.git("diff", "--name-only", "HEAD^", "HEAD") == '"caf\\351.txt"\n'


def test_what_would_steer_a_terminal_is_made_visible_there_only(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "a\x1b[2Jb", stdin="x\n")
    terminal = Terminal()

    assert cli.ok("session", "touched", id_).out == b"a\x1b[2Jb\n"
    monkeypatch.setattr(sys, "stdout", terminal)
    cli("session", "touched", id_)

    assert terminal.shown == "a\\x1b[2Jb\n"


def test_a_task_cannot_draw_in_the_table(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    id_ = cli.ok("session", "start", "[bold]one[/]\nsess_fake  active \x1b[1m").lines[0]

    _, row = cli.ok("session", "list").lines

    assert "[bold]one[/]\\nsess_fake  active \\x1b[1m" in row
    assert row.startswith(id_)


def test_a_task_or_a_message_steers_no_terminal_behind_a_pipe(cli: Cli) -> None:
    id_ = cli.ok("session", "start", "one\x1b[31m\ntwo").lines[0]
    (cli.workspace(id_) / "app.py").write_text("new\n", encoding="utf-8")
    cli.git("add", "--all", cwd=cli.workspace(id_))
    cli.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "say\x1b[31m", cwd=cli.workspace(id_))

    assert cli.ok("session", "info", id_).lines[1:3] == ["task        one\\x1b[31m", "            two"]
    assert cli.ok("session", "log", id_).text.endswith("say\\x1b[31m\n")
    cli.ok("promote", id_)
    assert cli.git("log", "-1", "--format=%B").startswith("gittrix: one\\x1b[31m\n")


@pytest.mark.parametrize(("variable", "coloured"), [(None, True), ("NO_COLOR", False), ("TERM", False)])
def test_colour_is_for_terminals_and_for_nobody_who_said_no(
    cli: Cli, variable: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="x\n")
    if variable:
        monkeypatch.setenv(variable, "dumb")
    shown = {}
    for verb in (("session", "list"), ("session", "diff", id_)):
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            cli(*verb)
        shown[verb[1]] = terminal.shown

    assert {verb: "\x1b[" in text for verb, text in shown.items()} == {"list": coloured, "diff": coloured}
    assert "active" in shown["list"]
    assert "+x" in shown["diff"]


def test_a_list_is_cut_to_a_terminal_and_never_to_a_pipe(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    task = "long " * 60
    id_ = cli.ok("session", "start", task).lines[0]
    terminal = Terminal()

    assert task.strip() in cli.ok("session", "list").text
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    cli("session", "list")

    heading, row = terminal.shown.splitlines()
    assert max(len(heading), len(row)) <= 100
    assert row.startswith(f"{id_}  active  long ")
    assert row.endswith(" 0")


def test_a_real_terminal_gets_colour_and_a_pipe_gets_none(cli: Cli) -> None:
    cli.start()
    controller, terminal = pty.openpty()

    piped = cli.process("session", "list")
    shown = cli.process("session", "list", stdout=terminal)
    os.close(terminal)
    plain, _ = piped.communicate(timeout=60)
    shown.communicate(timeout=60)

    assert b"\x1b[" in os.read(controller, 65536)
    assert b"\x1b[" not in plain
    os.close(controller)


def test_long_work_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    monkeypatch.setattr(sys, "stderr", os.fdopen(terminal, "w"))

    with working("Sweeping", after=0):
        seen = b""
        while b"Sweeping ..." not in seen and select.select([controller], [], [], 60)[0]:
            seen += os.read(controller, 4096)

    sys.stderr.close()
    os.close(controller)
    assert b"Sweeping ..." in seen


def test_short_work_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    with working("Sweeping", after=3600):
        pass

    assert terminal.shown == ""


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "big.txt", stdin="line\n" * 1_000_000)

    command = f'"{sys.executable}" -m pytest_gittrix.cli session read {id_} big.txt | head -1; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"line\n", b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [["session", "list"], ["session", "list", "--json"], ["--help"]])
def test_a_full_disk_is_told_in_a_sentence(cli: Cli, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        process = cli.process(*arguments, stdout=full)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert err == b"gittrix: Standard output cannot be written to: No space left on device.\n"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into the process by /proc")
def test_an_interrupt_ends_quietly(cli: Cli) -> None:
    id_ = cli.start()
    process = cli.process("session", "write", id_, "app.py")
    assert process.stdin
    process.stdin.write(b"half")
    process.stdin.flush()
    _wait_until_reading(process)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, b"", b"")
    assert cli.ok("session", "touched", id_).text == ""


def _wait_until_reading(process: subprocess.Popen[bytes]) -> None:
    """Until the process has emptied its standard input: it is inside the command then."""
    import fcntl
    import termios

    descriptor = os.open(f"/proc/{process.pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4), sys.byteorder) and process.poll() is None:
            time.sleep(0.001)
    finally:
        os.close(descriptor)


def test_an_endless_input_is_refused(cli: Cli) -> None:
    id_ = cli.start()

    with open("/dev/zero", "rb") as endless:
        process = cli.process("session", "write", id_, "app.py", "--json", stdin=endless)
        out, _ = process.communicate(timeout=60)

    assert process.returncode == 1
    assert b'"WRITE_REJECTED"' in out
    assert cli.ok("session", "touched", id_).text == ""


def test_closed_standard_streams_are_told_and_not_fallen_over(cli: Cli) -> None:
    id_ = cli.start()
    command = f'"{sys.executable}" -m pytest_gittrix.cli session'

    unread = subprocess.run(["sh", "-c", f"{command} write {id_} app.py <&-"], capture_output=True, timeout=60, check=False)
    unheard = subprocess.run(["sh", "-c", f"{command} touched {id_} >&-"], capture_output=True, timeout=60, check=False)

    assert (unread.returncode, unread.stderr.splitlines()[0]) == (1, b"gittrix: Standard input is closed.")
    assert (unheard.returncode, unheard.stderr) == (0, b"")


def test_an_unexpected_error_is_a_sentence_unless_debugging(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the engine is broken")

    monkeypatch.setattr(engine_context, "engine", broken)

    assert cli.refused("sweep") == "gittrix: ZeroDivisionError: the engine is broken\n"
    monkeypatch.setenv("GITTRIX_DEBUG", "1")
    ran = cli("sweep")
    assert ran.status == 1
    assert "Traceback (most recent call last)" in ran.err


def test_an_error_puts_the_fact_first_and_the_rest_below(cli: Cli) -> None:
    fact, *rest = cli.refused("session", "info", "sess_nobody").splitlines()

    assert fact.startswith("gittrix: There is no session 'sess_nobody' in ")
    assert rest == ["  `gittrix session list` shows the existing ones."]
