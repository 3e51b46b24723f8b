"""Programs that stay, at each level of confinement: their output as it comes, their input later, their terminal, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.confined import JAILS, LONG, PATH, Confined, available
from support.escapes import CONFINEMENTS

from pytest_gittrix.confine import Finished, Running, start
from pytest_gittrix.confine.program_streams import Changes, Output
from pytest_gittrix.confine.started_program import Opening
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.proc import open_descriptors

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")


@pytest.fixture(params=CONFINEMENTS)
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Confined]:
    confined = Confined.make(tmp_path, available(request.param))
    confined.shell("true")  # the first program may start the zygote, which keeps a descriptor
    before = {*open_descriptors()}
    yield confined
    assert {*open_descriptors()} <= before


def started(confined: Confined, *argv: str, **options: Any) -> Running:
    return start(argv, confined.place(), confined.confinement, environment={"PATH": PATH}, **{"timeout": LONG} | options)


def until(running: Running, text: bytes) -> bytes:
    """What the program wrote, up to a text."""
    found = b""
    while text not in found:
        piece = running.stdout.read(LONG)
        assert piece, f"{text!r} never came: {found!r}"
        found += piece
    return found


def test_output_comes_while_it_runs_and_input_is_written_later(confined: Confined) -> None:
    running = started(confined, "sh", "-c", "echo ready; read line; echo got $line; echo bad >&2; cat; exit 3")

    assert until(running, b"\n") == b"ready\n"
    with pytest.raises(TimeoutError):
        running.stdout.read(0.01)
    assert running.poll() is None
    running.write(b"a word\nthe rest")
    assert until(running, b"got a word\nthe rest") == b"got a word\nthe rest"
    running.close_stdin()
    with pytest.raises(InvalidInput, match="standard input of the program is closed"):
        running.write(b"more")

    assert running.wait(LONG) == Finished(3, None, b"", b"bad\n")
    assert running.stderr.read() == b"bad\n"
    assert running.stdout.read() == b""


def test_a_kill_ends_the_program_with_all_that_it_started(confined: Confined) -> None:
    os.mkfifo(confined.workspace / "one")
    with started(confined, "sh", "-c", "(trap '' TERM; read line <> one) & echo up; wait") as running:
        until(running, b"up")

    ended = running.wait()

    assert (ended.signal, ended.timed_out) == (signal.SIGKILL, True)
    with pytest.raises(OSError, match="No such device"):  # nobody has the fifo open
        os.open(confined.workspace / "one", os.O_WRONLY | os.O_NONBLOCK)


def test_a_program_that_is_told_to_end_while_it_starts_hears_of_it(confined: Confined) -> None:
    def tell_as_it_starts(running: Running) -> None:
        opening = running._opening

        def opened(held: ExitStack) -> Opening:
            try:
                return opening(held)
            finally:
                running.end("expired", LONG)

        running._opening = opened

    ended = started(confined, "sleep", "600", admit=tell_as_it_starts, timeout=None).wait()

    assert (ended.signal, ended.timed_out, ended.ended) == (signal.SIGTERM, False, "expired")


def test_what_a_program_leaves_behind_ends_with_it(confined: Confined) -> None:
    os.mkfifo(confined.workspace / "one")
    running = started(confined, "sh", "-c", "(trap '' HUP; read line <> one) & exit 5")

    assert running.wait(LONG).code == 5
    with pytest.raises(OSError, match="No such device"):
        os.open(confined.workspace / "one", os.O_WRONLY | os.O_NONBLOCK)


def test_a_signal_reaches_the_program_itself(confined: Confined) -> None:
    running = started(confined, "sh", "-c", "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.02; done")
    until(running, b"up")

    running.send_signal(signal.SIGTERM)

    assert running.wait(LONG) == Finished(7, None, b"bye\n", b"")
    running.send_signal(signal.SIGTERM)  # it has ended, and nobody gets it
    with pytest.raises(InvalidInput, match="SIGTERM, SIGINT"):
        running.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGPIPE])
def test_a_program_hears_signals_that_this_process_ignores(confined: Confined, number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        ended = confined.shell(f"kill -{int(number)} $$; echo heard nothing")
        missing = confined.run("there-is-none")
    finally:
        signal.signal(number, before)

    assert (ended.signal, ended.stdout) == (number, b"")
    assert (missing.code, b"there-is-none" in missing.stderr) == (127, True)


def test_a_terminal_has_a_size_and_ctrl_c(confined: Confined) -> None:
    script = "trap 'echo caught; exit 8' INT; trap 'stty size' WINCH; stty -echo; stty size; : > /dev/tty; while :; do sleep 0.02; done"
    running = started(confined, "sh", "-c", script, pty=True, size=(30, 90))

    until(running, b"30 90")
    running.resize(40, 100)
    until(running, b"40 100")
    running.write(b"\x03")

    ended = running.wait(LONG)
    assert (ended.code, b"caught" in ended.stdout, ended.stderr) == (8, True, b"")
    with pytest.raises(InvalidInput, match="no size"):
        running.resize(0, 80)


def test_a_terminal_ends_the_input_as_ctrl_d_does(confined: Confined) -> None:
    for text in (b"words\n", b"words"):
        ended = started(confined, "sh", "-c", "stty -echo; cat; echo end >&2", stdin=text, pty=True).wait(LONG)

        assert ended.stdout.replace(b"\r\n", b"\n").endswith(text + b"end\n")


def test_what_is_written_to_a_program_that_closed_its_input_is_dropped(confined: Confined) -> None:
    with started(confined, "sh", "-c", "exec < /dev/null; echo closed; while :; do sleep 0.02; done") as running:
        until(running, b"closed")
        for _ in range(3):
            running.write(b"x" * (1 << 17))
        running.close_stdin()

        with pytest.raises(InvalidInput, match="standard input of the program is closed"):
            running.write(b"more")


def test_output_in_many_small_pieces_takes_no_more_room_than_its_bytes() -> None:
    output = Output(Changes(), lambda: None, 20_000, "unread")
    tracemalloc.start()
    for number in range(20_000):
        output.add(b"%d" % (number % 10))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert held < 60_000
    assert output.full


def test_a_program_that_is_not_there_ends_as_in_a_shell(confined: Confined) -> None:
    for pty in (False, True):
        assert started(confined, "there-is-none", pty=pty).wait(LONG).code == 127


def test_errors_come_on_the_output_in_order_if_that_is_wanted(confined: Confined) -> None:
    script = "echo a; echo b >&2; echo c"

    assert started(confined, "sh", "-c", script, merged=True).wait(LONG) == Finished(0, None, b"a\nb\nc\n", b"")
    assert confined.shell(script, merged=True).stdout == b"a\nb\nc\n"


@pytest.fixture
def off(tmp_path: Path) -> Confined:
    return Confined.make(tmp_path, CONFINEMENTS["off"])


def test_what_is_kept_of_much_output(off: Confined) -> None:
    script = "i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i + 1)); done"

    first = started(off, "sh", "-c", script, keep="first", most_output=4).wait(LONG)
    last = started(off, "sh", "-c", script, keep="last", most_output=8).wait(LONG)
    unread = started(off, "sh", "-c", script, most_output=1)
    pieces = b"".join(unread.stdout)

    assert (first.stdout, first.truncated) == (b"0\n1\n", True)
    assert (last.stdout, last.truncated) == (b"998\n999\n", True)
    assert (pieces, unread.wait().truncated) == (b"".join(b"%d\n" % number for number in range(1000)), False)


def test_the_time_of_a_program_that_stays_can_be_over(off: Confined) -> None:
    assert started(off, "sleep", "600", timeout=0.05).wait(LONG).timed_out


def test_tasks_read_and_wait_and_a_cancelled_one_leaves_the_program(off: Confined) -> None:
    async def main() -> tuple[list[bytes], Finished]:
        async with started(off, "sh", "-c", "echo a; read line; echo b") as running:
            waiting = asyncio.create_task(running.wait_async())
            pieces = [await running.stdout.read_async()]
            waiting.cancel()
            running.write(b"\n")
            pieces += [piece async for piece in running.stdout]
            return pieces, await running.wait_async()

    pieces, ended = asyncio.run(main())

    assert (pieces, ended.code) == ([b"a\n", b"b\n"], 0)


def test_arguments_that_are_none_are_refused_before_anything_starts(off: Confined) -> None:
    for wrong in ({"keep": "all"}, {"size": (0, 0)}, {"most_output": -1}, {"timeout": float("nan")}, {"cwd": "nowhere"}):
        with pytest.raises(InvalidInput):
            started(off, "true", **wrong)
    with pytest.raises(InvalidInput, match="3 cannot be given"):
        off.shell("true", environment={"NUMBER": 3})  # type: ignore[dict-item]
    with pytest.raises(InvalidInput, match="no terminal"):
        started(off, "true").resize(24, 80)


@pytest.mark.parametrize("name", JAILS)
def test_a_jail_has_the_sockets_that_are_named_and_no_other(name: str, tmp_path: Path) -> None:
    confined = Confined.make(tmp_path, available(name))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        server.listen()
        place = confined.place(sockets=((tmp_path / "server", "/run/model"),))
        code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'hello')"
        ended = confined.python(code, "/run/model", place=place)
        assert ended.code == 0, ended
        connection, _ = server.accept()
        with connection:
            assert connection.recv(9) == b"hello"
        assert confined.python(code, str(tmp_path / "server"), place=place).code != 0
    with pytest.raises(InvalidInput, match="no socket"):
        confined.place(sockets=((tmp_path / "none", "/run/model"),))


def test_a_guard_shows_no_sockets(tmp_path: Path) -> None:
    confined = Confined.make(tmp_path, available("guard by landlock"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
        with pytest.raises(CapabilityMissing, match="no sockets"):
            confined.shell("true", place=confined.place(sockets=((tmp_path / "server", "/run/model"),)))
