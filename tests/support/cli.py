"""The ``gittrix`` command as a person has it: a project on real git, a home, a terminal; run in this process or in one of its own."""

from __future__ import annotations

import atexit
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.cli.main import main
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.git.environment import hermetic_env

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
FILES = {"app.py": "print('v1')\n", "README.md": "# A project\n", "src/util.py": "".join(f"line {n}\n" for n in range(1, 31))}
SPREAD = FILES["src/util.py"].replace("line 2\n", "line two\n").replace("line 15\n", "line fifteen\n").replace("line 29\n", "line 29!\n")
TOAST = "gastown/polecats/Toast"
_MADE: dict[str, Path] = {}  # a repository to copy, by its branch
WHO = ("--agent", TOAST, "--rig", "gastown", "--work-unit", "td-7")


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        """Its lines."""
        return self.text.splitlines()

    @property
    def envelope(self) -> dict[str, Any]:
        """The one object on standard output."""
        envelope: dict[str, Any] = json.loads(self.out)
        return envelope


class Terminal(io.TextIOWrapper):
    """Text over bytes that says it is a terminal."""

    def __init__(self, contents: bytes = b"") -> None:
        super().__init__(io.BytesIO(contents), encoding="utf-8")

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        """What was written to it."""
        self.flush()
        return str(self.buffer.getvalue().decode())  # type: ignore[attr-defined]


class Cli:
    """Runs commands in a project of three files on branch ``trunk``, with nothing of the environment's but a home of their own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]) -> None:
        self.root = root
        self.home = root / "gittrix"
        self._monkeypatch = monkeypatch
        self._capture = capture
        hermetic = hermetic_env(root / "home")
        for name in os.environ.keys() - hermetic.keys():
            monkeypatch.delenv(name)
        for name, value in (hermetic | {"GITTRIX_HOME": str(self.home), "COLUMNS": "100", "TERM": "xterm-256color"}).items():
            monkeypatch.setenv(name, value)
        for name in ("NO_COLOR", "FORCE_COLOR", "GITTRIX_DEBUG", "PYTEST_GITTRIX_CLOCK"):
            monkeypatch.delenv(name, raising=False)
        self.project = self.repository("project")
        monkeypatch.chdir(self.project)

    def repository(self, name: str, *, branch: str = "trunk") -> Path:
        """A repository of three files and one commit. Git makes the first one of a branch, and the others are copies of it."""
        path = self.root / name
        if branch in _MADE:
            shutil.copytree(_MADE[branch], path)
            return path
        path.mkdir()
        self.git("init", "-q", f"--initial-branch={branch}", cwd=path)
        self.git("config", "user.name", "Ada", cwd=path)
        self.git("config", "user.email", "ada@example.org", cwd=path)
        self.commit(FILES, "first", cwd=path)
        home = tempfile.mkdtemp(prefix="gittrix-cli-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _MADE[branch] = shutil.copytree(path, Path(home, name))
        return path

    def commit(self, files: Mapping[str, str], message: str = "more", *, cwd: Path | None = None) -> str:
        """Write files and commit them, as the person does; gives the sha."""
        where = cwd or self.project
        for path, contents in files.items():
            (where / path).parent.mkdir(parents=True, exist_ok=True)
            (where / path).write_text(contents, encoding="utf-8")
        self.git("add", "--all", cwd=where)
        self.git("commit", "-q", f"--message={message}", cwd=where)
        return self.git("rev-parse", "HEAD", cwd=where).strip()

    def git(self, *arguments: str, cwd: Path | None = None, stdin: bytes = b"") -> str:
        """What git prints."""
        done = subprocess.run(["git", *arguments], cwd=cwd or self.project, input=stdin, capture_output=True, timeout=60, check=True)
        return done.stdout.decode()

    def freeze(self) -> FrozenClock:
        """Let the commands run by a clock that stands at noon until it is moved."""
        clock = FrozenClock(NOON)
        self._monkeypatch.setenv("PYTEST_GITTRIX_CLOCK", str(clock.attach_file(self.root / "clock")))
        return clock

    def __call__(self, *arguments: str, stdin: bytes | str = b"") -> Ran:
        """Run a command in this process."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        self._capture.readouterr()
        status = main(arguments)
        out, err = self._capture.readouterr()
        return Ran(status, out, err.decode())

    def ok(self, *arguments: str, stdin: bytes | str = b"") -> Ran:
        """Run a command that must succeed, and say at most where work is archived and that an agent is not confined."""
        ran = self(*arguments, stdin=stdin)
        said = [line for line in ran.err.splitlines() if "is not confined" not in line and "Its work is in" not in line]
        assert (ran.status, said) == (0, []), f"$ gittrix {shlex.join(arguments)}\n{ran.out!r}\n{ran.err}"
        return ran

    def data(self, *arguments: str, stdin: bytes | str = b"") -> Any:
        """The data of a command that must succeed."""
        envelope = self.ok(*arguments, "--json", stdin=stdin).envelope
        assert envelope["ok"] is True
        assert envelope.keys() == {"ok", "data"}
        return envelope["data"]

    def error(self, *arguments: str, stdin: bytes | str = b"") -> dict[str, Any]:
        """The error of a command that must fail."""
        ran = self(*arguments, "--json", stdin=stdin)
        assert (ran.status, ran.err) == (1, "")
        assert ran.envelope["ok"] is False
        assert ran.envelope.keys() == {"ok", "error"}
        error: dict[str, Any] = ran.envelope["error"]
        return error

    def refused(self, *arguments: str, stdin: bytes | str = b"") -> str:
        """What people are told by a command that must fail."""
        ran = self(*arguments, stdin=stdin)
        assert (ran.status, ran.out) == (1, b"")
        assert "Traceback" not in ran.err
        return ran.err

    def start(self, *arguments: str) -> str:
        """Start a session; its id."""
        return self.ok("session", "start", "--task", "say hello", *arguments).lines[0]

    def workspace(self, id_: str) -> Path:
        """Where a session's agent works."""
        return Path(self.data("session", "info", id_)["workspacePath"])

    def process(self, *arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
        """Start a command as a process of its own."""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-m", "pytest_gittrix.cli", *arguments], **pipes | settings)


def ids(records: list[dict[str, Any]]) -> list[str]:
    """The ids of records, in order."""
    return [record["id"] for record in records]


def handed_on(cli: Cli, id_: str, *arguments: str) -> str:
    """Hand a session on; gives the id of the next."""
    return cli.ok("session", "handoff", id_, *arguments).lines[0]


def cells(line: str) -> list[str]:
    """The words of a table's line."""
    return line.split()


def started(cli: Cli, member: str, *arguments: str) -> str:
    """Start a session; its id."""
    return cli.ok("member", "start", member, *arguments).lines[0]
