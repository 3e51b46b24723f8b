"""The program of a scripted agent: it does the steps of a script, one after another.

It is run by its path, without this package, so that it starts fast and works in any environment. ``agent_kit`` writes the scripts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

MARK = "GITTRIX_AGENT_KIT"
_ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_FAILED = 70  # EX_SOFTWARE


class Play:
    """One run of a script.

    Args:
        spec: the script, as ``agent_kit`` writes it.
        ready: a descriptor to write to when the script waits for something for the first time.
    """

    def __init__(self, spec: dict[str, Any], ready: int | None) -> None:
        self.spec = spec
        self.ready = ready
        self.kit = Path(spec["kit"])
        self.news = opened(self.kit / "news", os.O_WRONLY)

    def run(self) -> int:
        """Do the steps; gives the exit status."""
        self.tell(begun=self.spec["name"], pid=os.getpid(), start_time=start_time())
        for step, arguments in self.spec["steps"]:
            getattr(self, f"do_{step}")(**arguments)
        self.is_ready()
        return int(self.spec["code"])

    def tell(self, **message: Any) -> None:
        """Send the test a message, whole or not at all."""
        with suppress(OSError):
            os.write(self.news, json.dumps(message).encode() + b"\n")

    def is_ready(self) -> None:
        """Let the parent script go on."""
        if self.ready is not None:
            os.write(self.ready, b"r")
            os.close(self.ready)
            self.ready = None

    def do_at(self, point: str, pipe: str) -> None:
        """Report the point, and wait until the test lets it go on."""
        self.is_ready()
        self.tell(at=point)
        fd = opened(Path(pipe), os.O_RDONLY)
        if not os.read(fd, 1):
            os._exit(_FAILED)  # the test is gone
        os.close(fd)

    def do_hang(self) -> None:
        """Wait until the test is gone."""
        self.is_ready()
        os.read(opened(self.kit / "stay", os.O_RDONLY), 1)
        os._exit(_FAILED)

    def do_deaf(self) -> None:
        """Ignore the signals that ask a process to end."""
        for name in _ENDING:
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def do_polite(self, code: int) -> None:
        """Exit with a status on a signal that asks a process to end."""

        def end(number: int, _frame: object) -> NoReturn:
            self.tell(asked=signal.Signals(number).name, pid=os.getpid())
            sys.stdout.flush()
            os._exit(code)

        for name in _ENDING:
            signal.signal(getattr(signal, name), end)

    def do_say(self, text: str, error: bool) -> None:
        """Write a line to standard output, or to standard error."""
        print(text, file=sys.stderr if error else sys.stdout, flush=True)

    def do_fill(self, size: int) -> None:
        """Write many bytes to standard output, in lines of 64 bytes."""
        lines, rest = divmod(size, 64)
        for first in range(0, lines, 1024):
            sys.stdout.write("".join(f"{number:063}\n" for number in range(first, min(first + 1024, lines))))
        sys.stdout.write("." * rest)
        sys.stdout.flush()

    def do_read(self) -> None:
        """Read a line from standard input, and report it to the test."""
        self.is_ready()
        line = sys.stdin.readline()
        self.tell(heard=line.removesuffix("\n"), pid=os.getpid())

    def do_write(self, path: str, text: str, more: bool) -> None:
        """Write a file, or append to it."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a" if more else "w", encoding="utf-8") as file:
            file.write(text)

    def do_line(self, path: str, fields: dict[str, Any]) -> None:
        """Append a line of JSON to a file, with the real time unless it has one."""
        now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.do_write(path, json.dumps({"ts": now, **fields}) + "\n", True)

    def do_facts(self, path: str) -> None:
        """Write facts about this process to a file, whole or not at all."""
        facts = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "group": os.getpgrp(),
            "session": os.getsid(0),
            "directory": str(Path.cwd()),
            "arguments": sys.argv[2:],
            "environment": {name: value for name, value in os.environ.items() if name != MARK},
        }
        fresh = Path(f"{path}.{os.getpid()}")
        fresh.write_text(json.dumps(facts), encoding="utf-8")
        fresh.rename(path)

    def do_run(self, command: list[str]) -> None:
        """Run a program; exit with its status if it failed."""
        sys.stdout.flush()
        code = subprocess.run(command, check=False).returncode
        if code:
            print(f"{command[0]} ended with {code}", file=sys.stderr, flush=True)
            os._exit(code if code > 0 else _FAILED)

    def do_commit(self, message: str, files: dict[str, str], git: str) -> None:
        """Commit files, or everything that changed, with git."""
        for path, text in files.items():
            self.do_write(path, text, False)
        me = ["-c", "user.name=Agent", "-c", "user.email=agent@example.org"]
        self.do_run([git, "add", "--all", "--", *(files or ["."])])
        self.do_run([git, *me, "commit", "--quiet", "--allow-empty", f"--message={message}"])

    def do_spawn(self, script: str, daemon: bool, scrub: bool) -> None:
        """Start another script, as a child or as a daemon, and wait until it waits for something or has ended."""
        here, there = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._become(script, there, daemon, scrub)
            finally:
                os._exit(_FAILED)
        os.close(there)
        if daemon:
            os.waitpid(pid, 0)
        os.read(here, 1)
        os.close(here)

    def _become(self, script: str, ready: int, daemon: bool, scrub: bool) -> None:
        if daemon:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.chdir("/")
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(nothing, fd)
        os.set_inheritable(ready, True)
        argv = [sys.executable, "-I", "-S", __file__, script, f"--ready={ready}"]
        os.execve(sys.executable, argv, {} if scrub else dict(os.environ))

    def do_kill(self, number: int) -> None:
        """Die by a signal."""
        self.is_ready()
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def opened(pipe: Path, flags: int) -> int:
    """Open a pipe whose other end the test has open; if the test is gone, this process ends."""
    try:
        fd = os.open(pipe, flags | os.O_NONBLOCK)
    except OSError:
        os._exit(_FAILED)
    os.set_blocking(fd, True)
    return fd


def start_time() -> int | None:
    """Clock ticks from boot to the start of this process; None where the system does not say."""
    try:
        return int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    except OSError:
        return None


def main() -> None:
    """Run the script that the first argument names."""
    ready = next((int(one.removeprefix("--ready=")) for one in sys.argv[2:] if one.startswith("--ready=")), None)
    if ready is not None:
        os.set_inheritable(ready, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = Play(json.loads(Path(sys.argv[1]).read_bytes()), ready).run()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
