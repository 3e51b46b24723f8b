"""The supervisor of an agent's process: a separate program that starts it, adopts its orphans, and writes down how it ended.

It outlives the process that asked for the agent, and ends when no process of the agent is left. It reads on its standard input what to
start, reports on its standard output, and starts nothing for a caller that is gone before it sends ``go``. It loads as little as it can.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.proc import start_time
from pytest_gittrix.os_level.process_tree import lead

RECORD: Final = "agent.json"
OUTPUT: Final = "output"
INPUT: Final = "input"
EXIT: Final = "exit.json"
FRESH: Final = ".exit.json.tmp"
LIMIT: Final = "limit"
"""Made by a launcher that ends its agent, with the name of the limit that the agent passed."""
FILES: Final = (RECORD, OUTPUT, INPUT, EXIT, FRESH, LIMIT)
GO: Final = b"go\n"

_DEAF_TO: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTSTP")
_TRIES, _NAP = 120, 0.5


def main(directory: str, attendance: str | None = None) -> None:
    """Be the supervisor of the agent whose files are in a directory; the process that calls this ends at once, and a child goes on.

    Args:
        directory: the directory.
        attendance: the number of an open file whose lock shows that the agent runs; the agent does not get it.
    """
    if os.fork():
        os._exit(0)
    lead()
    if attendance is not None:
        os.set_inheritable(int(attendance), False)
    os.chdir("/")
    for name in _DEAF_TO:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    requests, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.close(nothing)
    agent = _start(directory, requests, reports)
    os.close(requests)
    os.close(reports)
    if agent is not None:
        _reap(directory, *agent)
    if attendance is not None:
        with suppress(OSError):
            os.utime(int(attendance))  # idle time counts from here


def _start(directory: str, requests: int, reports: int) -> tuple[int, int] | None:
    """Start the agent, if the caller stays until it is started; returns its pid and start time."""
    spec, rest = _line(requests)
    if spec is None:
        clear(directory)
        return None
    asked = json.loads(spec)
    go, send_go = os.pipe()
    problem_read, problem_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(send_go)
        _be_agent(asked, directory, go, problem_write)
    if asked.get("terminal") is not None:
        os.close(asked["terminal"])
    os.close(go)
    os.close(problem_write)
    started = start_time(pid)
    supervisor = os.getpid()
    _report(reports, {"pid": pid, "start_time": started, "keeper": supervisor, "keeper_start_time": start_time(supervisor)})
    if _line(requests, rest)[0] is None:
        os.close(send_go)
        os.waitpid(pid, 0)
        clear(directory)
        return None
    with suppress(OSError):  # killed meanwhile: it is waited for below
        os.write(send_go, b"g")
    os.close(send_go)
    problem = _all(problem_read)
    os.close(problem_read)
    if problem:
        os.waitpid(pid, 0)
        _report(reports, {"failed": json.loads(problem)})
        return None
    _report(reports, {"running": True})
    return pid, started


def _be_agent(spec: dict[str, Any], directory: str, go: int, problems: int) -> NoReturn:
    try:
        os.setsid()
        if os.read(go, 1):
            os.chdir(spec["workspace"])
            _take_streams(spec, directory)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                with suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execve(spec["executable"], spec["command"], spec["environment"])
    except OSError as problem:
        os.write(problems, json.dumps({"errno": problem.errno, "text": problem.strerror, "file": problem.filename}).encode())
    except Exception as problem:  # noqa: BLE001  (the caller that waits gets a report of any failure)
        os.write(problems, json.dumps({"errno": 0, "text": f"{type(problem).__name__}: {problem}", "file": None}).encode())
    finally:
        os._exit(127)


def _take_streams(spec: dict[str, Any], directory: str) -> None:
    """Take the terminal that the agent was given; or else its input and its output, which are files."""
    terminal = spec.get("terminal")
    if terminal is None:
        # Open for reading and writing, so that it never finds the end of its input between two writers.
        os.dup2(os.open(os.path.join(directory, INPUT), os.O_RDWR), 0)
        output = os.open(os.path.join(directory, OUTPUT), os.O_WRONLY | os.O_APPEND)
        streams = {1: output, 2: output}
    else:
        streams = dict.fromkeys((0, 1, 2), terminal)
    for number, fd in streams.items():
        os.dup2(fd, number)
    if terminal is not None:
        os.close(terminal)
        if spec["leads"]:
            import fcntl
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _reap(directory: str, agent: int, started: int) -> None:
    """Wait for the agent and all its orphans; how the agent ended is on the disk before its pid is free for others."""
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            if ended is None:
                continue
            if ended.si_pid == agent:
                by_signal = ended.si_code != os.CLD_EXITED
                status = {"code": None, "signal": ended.si_status} if by_signal else {"code": ended.si_status, "signal": None}
                _write_exit(directory, {"pid": agent, "start_time": started, **status, "at_ns": time.time_ns()})
            os.waitpid(ended.si_pid, 0)


def _write_exit(directory: str, record: dict[str, Any]) -> None:
    """Write how the agent ended, whole or not at all; on a disk that refuses, with retries for a minute."""
    fresh = os.path.join(directory, FRESH)
    for _ in range(_TRIES):
        try:
            return write_file(os.path.join(directory, EXIT), json.dumps(record).encode() + b"\n", sync=True, temporary=fresh)
        except FileNotFoundError:
            return None  # the directory was removed, so the record has no reader
        except OSError:
            time.sleep(_NAP)
    return None


def clear(directory: str) -> None:
    """Remove an agent's files and their directory, unless something else is in it."""
    for name in FILES:
        with suppress(OSError):
            os.unlink(os.path.join(directory, name))
    with suppress(OSError):
        os.rmdir(directory)


def _report(reports: int, fields: dict[str, Any]) -> None:
    with suppress(OSError):  # the caller is gone; its missing answer shows that
        os.write(reports, json.dumps(fields).encode() + b"\n")


def _line(requests: int, begun: bytes = b"") -> tuple[bytes | None, bytes]:
    """The next line, and what was read beyond it; None if the caller is gone."""
    data = begun
    while b"\n" not in data:
        chunk = os.read(requests, 1 << 16)
        if not chunk:
            return None, b""
        data += chunk
    line, _, rest = data.partition(b"\n")
    return line, rest


def _all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 1 << 16):
        data += chunk
    return data


if __name__ == "__main__":
    main(sys.argv[1])
