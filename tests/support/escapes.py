"""A program of an agent that tries to get out, a host that shows whether it did, and what is expected of each level.

The program is real and so is everything it reaches for; the host judges by what happened to it, not by what the program says. It uses the
standard library alone, so that it can be run as another user by another Python: ``python escapes.py DIRECTORY`` prints what got out.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_gittrix.confine.command_line import Confinement, wrapped
from pytest_gittrix.confine.filesystem_layout import Place, toolchain
from pytest_gittrix.confine.levels import missing
from pytest_gittrix.confine.runner import run
from pytest_gittrix.git.environment import hermetic_env, run_git

OUT, IN = True, False
LEVELS = ("off", "guard", "jail")
EXPECTED: Mapping[str, tuple[bool, bool, bool]] = {
    "write outside": (OUT, IN, IN),
    "read a secret outside": (OUT, IN, IN),
    "see that a path outside exists": (OUT, OUT, IN),
    "chmod outside": (OUT, OUT, IN),
    "watch changes outside": (OUT, OUT, IN),
    "TCP to the host": (OUT, IN, IN),
    "UDP to the host": (OUT, IN, IN),
    "Unix socket of the host, by path": (OUT, IN, IN),
    "Unix socket of the host, abstract": (OUT, IN, IN),
    "datagrams to a host's Unix socket, from a pair": (OUT, IN, IN),
    "see host processes": (OUT, OUT, IN),
    "signal a host process": (OUT, IN, IN),
    "choose the processors of a host process": (OUT, OUT, IN),
    "set the I/O priority of a host process": (OUT, OUT, IN),
    "a daemon outlives the command": (OUT, IN, IN),
    "read durable": (OUT, IN, IN),
    "write durable": (OUT, IN, IN),
    "push into durable by path": (OUT, IN, IN),
    "read the store": (OUT, IN, IN),
    "read another session": (OUT, IN, IN),
}
"""What gets out, by level; ``docs/reference/confinement.md`` tells the same."""

IDLE = 3 << 13
"""The I/O priority of a process that is served when no other waits."""

CONFINEMENTS: Mapping[str, Confinement] = {
    "off": Confinement("off", "none"),
    "guard by landlock": Confinement("guard", "landlock"),
    "jail by namespaces": Confinement("jail", "namespaces"),
    "jail by bwrap": Confinement("jail", "bwrap"),
}

AGENT = """
import ctypes, json, os, socket, subprocess, sys
there = json.load(sys.stdin)
token = there["token"]

def show(path):
    print(open(path).read())

def daemon():
    ready, reporting = os.pipe()
    os.set_inheritable(reporting, True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = "import os, select, sys; f = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK); os.write(int(sys.argv[2]), b'x');"
            code += "[os.close(n) for n in (0, 1, 2, int(sys.argv[2]))]; p = select.poll(); p.register(f); p.poll()"
            os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, there["fifo"], str(reporting)], {})
        os._exit(0)
    os.wait()
    os.read(ready, 1)

def send(family, kind, address):
    with socket.socket(family, kind) as talk:
        talk.settimeout(5)
        talk.connect(address)
        talk.sendall(token.encode())

def from_a_pair():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(token.encode(), there["datagrams"])

def watch():
    libc = ctypes.CDLL(None)
    if libc.inotify_add_watch(libc.inotify_init(), there["outside"].encode(), 0x100) >= 0:
        print(token)

def set_io_priority():
    number = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
    ctypes.CDLL(None).syscall(number, 1, there["pid"], there["idle"])

def processes():
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            print(open(f"/proc/{name}/cmdline").read())
        except OSError:
            pass

{
    "write outside": lambda: open(there["outside"] + "/written", "w").write(token),
    "read a secret outside": lambda: show(there["outside"] + "/secret"),
    "see that a path outside exists": lambda: print(token, os.stat(there["outside"] + "/secret").st_size),
    "chmod outside": lambda: os.chmod(there["outside"] + "/plain", 0o777),
    "watch changes outside": watch,
    "TCP to the host": lambda: send(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", there["tcp"])),
    "UDP to the host": lambda: send(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", there["udp"])),
    "Unix socket of the host, by path": lambda: send(socket.AF_UNIX, socket.SOCK_STREAM, there["unix"]),
    "Unix socket of the host, abstract": lambda: send(socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + there["abstract"]),
    "datagrams to a host's Unix socket, from a pair": from_a_pair,
    "see host processes": processes,
    "signal a host process": lambda: os.kill(there["pid"], there["signal"]),
    "choose the processors of a host process": lambda: os.sched_setaffinity(there["pid"], {there["processor"]}),
    "set the I/O priority of a host process": set_io_priority,
    "a daemon outlives the command": daemon,
    "read durable": lambda: show(there["durable"] + "/app.py"),
    "write durable": lambda: open(there["durable"] + "/written", "w").write(token),
    "push into durable by path": lambda: subprocess.run(["git", "push", "-q", there["durable"], "HEAD:refs/heads/pushed"], check=True),
    "read the store": lambda: show(there["store"]),
    "read another session": lambda: show(there["other"]),
}[sys.argv[1]]()
"""


@dataclass(frozen=True)
class Target:
    """What the agent is after.

    Attributes:
        workspace: of the agent's session: a repository with a commit.
        durable: a repository whose ``app.py`` has ``durable_text`` in it.
        durable_text: that.
        store: a file of the store.
        store_text: what is in it.
        other: a file of another session, which has ``other_text`` in it.
        other_text: that.
    """

    workspace: Path
    durable: Path
    durable_text: str
    store: Path
    store_text: str
    other: Path
    other_text: str


class Host:
    """The machine around an agent: files, servers and a process, and whether the agent got at them."""

    def __init__(self, root: Path, target: Target, held: ExitStack) -> None:
        self.target = target
        self.token = uuid.uuid4().hex
        self.outside = root / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text(f"secret {self.token}")
        (self.outside / "plain").write_text("plain")
        (self.outside / "plain").chmod(0o600)
        self.fifo = target.workspace / ".git" / "lives"
        os.mkfifo(self.fifo)
        self._short = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="gx-")))
        self._tcp = self._server(held, socket.AF_INET, ("127.0.0.1", 0))
        self._udp = self._server(held, socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM)
        self._unix = self._server(held, socket.AF_UNIX, str(self._short / "s"))
        self._datagrams = self._server(held, socket.AF_UNIX, str(self._short / "d"), socket.SOCK_DGRAM)
        self._abstract = self._server(held, socket.AF_UNIX, f"\0{self.token}")
        self._victim = self._start_victim(held)
        self._processor = min(os.sched_getaffinity(0))
        os.sched_setaffinity(self._victim.pid, range(os.cpu_count() or 1))
        self._judges: Mapping[str, Callable[[bytes], bool]] = {
            "write outside": lambda _: (self.outside / "written").exists(),
            "read a secret outside": lambda printed: self.token.encode() in printed,
            "see that a path outside exists": lambda printed: self.token.encode() in printed,
            "chmod outside": lambda _: (self.outside / "plain").stat().st_mode & 0o777 == 0o777,
            "watch changes outside": lambda printed: self.token.encode() in printed,
            "TCP to the host": lambda _: self._heard(self._tcp),
            "UDP to the host": lambda _: self._heard(self._udp),
            "Unix socket of the host, by path": lambda _: self._heard(self._unix),
            "Unix socket of the host, abstract": lambda _: self._heard(self._abstract),
            "datagrams to a host's Unix socket, from a pair": lambda _: self._heard(self._datagrams),
            "see host processes": lambda printed: self.token.encode() in printed,
            "signal a host process": lambda _: self._was_signalled(),
            "choose the processors of a host process": lambda _: os.sched_getaffinity(self._victim.pid) == {self._processor},
            "set the I/O priority of a host process": lambda _: _io_priority(self._victim.pid) == IDLE,
            "a daemon outlives the command": lambda _: self._daemon_lives(),
            "read durable": lambda printed: target.durable_text.encode() in printed,
            "write durable": lambda _: (target.durable / "written").exists(),
            "push into durable by path": lambda _: b"pushed" in run_git(["branch", "--list"], cwd=target.durable),
            "read the store": lambda printed: target.store_text.encode() in printed,
            "read another session": lambda printed: target.other_text.encode() in printed,
        }

    @staticmethod
    def _server(held: ExitStack, family: int, address: object, kind: int = socket.SOCK_STREAM) -> socket.socket:
        made = held.enter_context(socket.socket(family, kind))
        made.setblocking(False)
        made.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            made.listen()
        return made

    def _start_victim(self, held: ExitStack) -> subprocess.Popen[bytes]:
        # It blocks the signal, which then stays pending: that it was sent can be seen without waiting for anything.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        try:
            victim = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", f"victim-{self.token}"])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        held.callback(victim.wait)
        held.callback(victim.kill)
        return victim

    @staticmethod
    def _heard(server: socket.socket) -> bool:
        try:
            if server.type == socket.SOCK_DGRAM:
                return bool(server.recv(100))
            talk, _ = server.accept()
            with talk:
                return bool(talk.recv(100))
        except BlockingIOError:
            return False

    def _was_signalled(self) -> bool:
        lines = Path(f"/proc/{self._victim.pid}/status").read_text().splitlines()
        pending = next(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))
        return bool(pending & 1 << signal.SIGUSR1 - 1)

    def _daemon_lives(self) -> bool:
        """Whether somebody reads from the fifo; when this closes it, they end."""
        try:
            os.close(os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    @property
    def there(self) -> dict[str, object]:
        """What ``AGENT`` is told of the host, as JSON on its standard input."""
        return {
            "token": self.token,
            "outside": str(self.outside),
            "tcp": self._tcp.getsockname()[1],
            "udp": self._udp.getsockname()[1],
            "unix": str(self._short / "s"),
            "datagrams": str(self._short / "d"),
            "abstract": self.token,
            "pid": self._victim.pid,
            "signal": int(signal.SIGUSR1),
            "processor": self._processor,
            "idle": IDLE,
            "fifo": str(self.fifo),
            "durable": str(self.target.durable),
            "store": str(self.target.store),
            "other": str(self.target.other),
        }

    def attempt(self, escape: str, confinement: Confinement, *, stays: bool = False) -> bool:
        """Whether the agent gets out that way; it may be started as one that stays is."""
        with tempfile.TemporaryDirectory(prefix="gx-home-") as apart:
            home = Path(apart, "home")
            variables = hermetic_env(home, base={"PATH": os.environ["PATH"]})
            place = Place(self.target.workspace, home, toolchain())
            argv = [sys.executable, "-I", "-c", AGENT, escape]
            if stays:
                launch = wrapped(argv, place, confinement, environment=variables)
                argv, confinement, variables = launch.argv, CONFINEMENTS["off"], launch.environment
            ended = run(argv, place, confinement, environment=variables, stdin=json.dumps(self.there).encode(), timeout=60)
        assert not ended.timed_out, ended
        assert ended.code in (0, 1), ended
        return self.judge(escape, ended.stdout)

    def judge(self, escape: str, printed: bytes) -> bool:
        """Whether an attempt that printed this got out."""
        return self._judges[escape](printed)


def _io_priority(pid: int) -> int:
    priority: int = ctypes.CDLL(None).syscall({"x86_64": 252, "aarch64": 31}[os.uname().machine], 1, pid)
    return priority


@contextmanager
def open_host(root: Path, target: Target) -> Iterator[Host]:
    """A host around a target, whose own things are made below a directory."""
    with ExitStack() as held:
        yield Host(root, target, held)


def plain_target(root: Path) -> Target:
    """What an engine would have made, made by git and by hand; for a Python without the engine's libraries."""
    durable, workspace = root / "durable", root / "sessions/one/workspace"
    for path, text in ((durable, "durable text"), (workspace, "a copy")):
        path.mkdir(parents=True)
        run_git(["init", "-q"], cwd=path)
        (path / "app.py").write_text(text)
        run_git(["add", "."], cwd=path)
        run_git(["commit", "-qm", "first"], cwd=path)
    log, other = root / "sessions/one/events.jsonl", root / "sessions/two/workspace/app.py"
    log.write_text("an event")
    other.parent.mkdir(parents=True)
    other.write_text("of another")
    return Target(workspace, durable, "durable text", log, "an event", other, "of another")


def main(root: Path) -> None:
    """Print, as JSON, what got out of each confinement that this user has, or why it has none."""
    found: dict[str, object] = {}
    for name, confinement in CONFINEMENTS.items():
        if why := missing(confinement.by):
            found[name] = why
            continue
        place = root / confinement.by
        place.mkdir()
        with open_host(place, plain_target(place)) as host:
            found[name] = {escape: host.attempt(escape, confinement) for escape in EXPECTED}
        with suppress(OSError):
            shutil.rmtree(place)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
