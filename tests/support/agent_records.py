"""The records that published coding agents wrote while they worked, and a program that writes them again, where and when a test wants."""

from __future__ import annotations

import copy
import json
import os
import sqlite3
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from support.daemon import wait_until

from pytest_gittrix.durations import format_instant, instant_at

RECORDINGS: Final = Path(__file__).resolve().parents[2] / "fixtures/agent_logs"
VERSIONS: Final = {
    "claude": "claude-code-2.1.197",
    "codex": "codex-0.171.0",
    "pi": "pi-0.73.1",
    "gemini": "gemini-cli-0.61.0",
    "opencode": "opencode-1.18.33",
}
"""The agents, and the versions that the recordings are of."""

Carry = Callable[[dict[str, Any]], object]
"""Carries a command to whoever writes: ``{"append": path, "text": text}`` or ``{"database": path, "sql": ..., "values": ...}``."""


@dataclass
class AgentFiles:
    """The files of one conversation of an agent.

    Attributes:
        agent: one of ``VERSIONS``.
        workspace: its working directory.
        carry: writes, by default here and now; paths are relative to the agent's home.
        name: a different one for each conversation.
    """

    agent: str
    workspace: str
    carry: Carry
    name: str = "6f1c"
    _made: list[str] = field(default_factory=list)

    def write(self, name: str, at_ns: int, **changes: Any) -> None:
        """Write a record of a name, with the present time; ``changes`` are more values of it, ``__`` in a key stands for a dot."""
        if self.agent == "opencode":
            return self._store(name, at_ns, changes)
        if not self._made and self.agent != "claude":
            self._made.append(name)
            self.write("header", at_ns)
        record = timed(recorded(self.agent, name), at_ns)
        _put_directory(self.agent, record, self.workspace)
        for key, value in changes.items():
            _put(record, key.split("__"), value)
        return self._append(json.dumps(record, ensure_ascii=False) + "\n")

    def tear(self, name: str, at_ns: int) -> None:
        """Write the first half of a record, as a kill in the middle of a write does."""
        text = json.dumps(timed(recorded(self.agent, name), at_ns))
        self._append(text[: len(text) // 2])

    @property
    def path(self) -> str:
        """The file, in the agent's home."""
        dashed = self.workspace.replace("/", "-")
        return {
            "claude": f".claude/projects/{dashed}/{self.name}.jsonl",
            "codex": f".codex/sessions/2030/01/01/rollout-2030-01-01T12-00-00-{self.name}.jsonl",
            "pi": f".pi/agent/sessions/-{dashed}--/2030-01-01T12-00-00-000Z_{self.name}.jsonl",
            "gemini": f".gemini/tmp/workspace/chats/session-2030-01-01T12-00-{self.name}.jsonl",
            "opencode": ".local/share/opencode/opencode.db",
        }[self.agent]

    def _append(self, text: str) -> None:
        self.carry({"append": self.path, "text": text})

    def _store(self, name: str, at_ns: int, changes: dict[str, Any]) -> None:
        if not self._made:
            for sql in (one["record"] for one in recording(self.agent) if one["name"] == "schema"):
                self.carry({"database": self.path, "sql": sql.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"), "values": []})
            self._made.append("schema")
            self._row("project", at_ns, {})
            self._row("session", at_ns, {"directory": self.workspace})
        if name == "call":
            self._row("step", at_ns, {"data__finish": None, "data__time__completed": None})
            changes = {"data__state__status": "running", **changes}
        if name == "result":
            changes = {"data__state__status": "completed", **changes}
        self._row("call" if name == "result" else name, at_ns, changes)

    def _row(self, name: str, at_ns: int, changes: dict[str, Any]) -> None:
        found = next(one for one in recording(self.agent) if one["name"] == name)
        row = copy.deepcopy(found["record"]) | {"time_created": at_ns // 1_000_000, "time_updated": at_ns // 1_000_000}
        for key, value in changes.items():
            _put(row, key.split("__"), value)
        values = [json.dumps(value) if isinstance(value, dict) else value for value in row.values()]
        sql = f"INSERT OR REPLACE INTO {found['table']} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        self.carry({"database": self.path, "sql": sql, "values": values})


def recording(agent: str) -> list[dict[str, Any]]:
    """The records of an agent, by name, as they were recorded."""
    return [json.loads(line) for line in (RECORDINGS / f"{VERSIONS[agent]}.jsonl").read_text(encoding="utf-8").splitlines()]


def recorded(agent: str, name: str) -> dict[str, Any]:
    """The record of a name."""
    found: dict[str, Any] = next(one["record"] for one in recording(agent) if one["name"] == name)
    return found


def timed(record: dict[str, Any], at_ns: int) -> dict[str, Any]:
    """A record as it would have been written at another time."""
    found = copy.deepcopy(record)
    for key in ("timestamp", "startTime", "lastUpdated"):
        if key in found:
            found[key] = format_instant(instant_at(at_ns))
    if isinstance(found.get("message"), dict) and "timestamp" in found["message"]:
        found["message"]["timestamp"] = at_ns // 1_000_000
    return found


def _put_directory(agent: str, record: dict[str, Any], workspace: str) -> None:
    if "projectHash" in record:
        record["projectHash"] = sha256(workspace.encode()).hexdigest()
    for place in (record, record.get("payload")):
        if isinstance(place, dict) and "cwd" in place:
            place["cwd"] = workspace


def _put(record: Any, keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        record = record[int(key) if isinstance(record, list) else key]
    record[keys[-1]] = value


def obey(home: Path, command: dict[str, Any]) -> None:
    """Do what a command says, below a home."""
    if "append" in command:
        path = home / command["append"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(command["text"])
    elif "database" in command:
        path = home / command["database"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(command["sql"], command["values"])


PROGRAM: Final = textwrap.dedent(
    """
    import json, os, sqlite3, sys
    from pathlib import Path

    def obey(home, command):
        if "exit" in command:
            sys.exit(command["exit"])
        path = home / (command.get("append") or command["database"])
        path.parent.mkdir(parents=True, exist_ok=True)
        if "append" in command:
            with path.open("a", encoding="utf-8") as file:
                file.write(command["text"])
        else:
            database = sqlite3.connect(path)
            with database:
                database.execute(command["sql"], command["values"])
            database.close()

    home = Path.home()
    for name in ("commands", "answers"):
        (home / name).unlink(missing_ok=True)
        os.mkfifo(home / name)
    (home / "ready").touch()
    while True:
        with open(home / "commands", encoding="utf-8") as commands:
            command = json.loads(commands.read())
        try:
            obey(home, command)
        finally:
            with open(home / "answers", "w") as answers:
                answers.write("done")
    """
)
"""A small program that writes what it is told to write into its home, which is all that an observer sees of a coding agent."""


@dataclass(frozen=True)
class Puppet:
    """The test's side of ``PROGRAM``, which runs in some home."""

    home: Path

    def carry(self, command: dict[str, Any]) -> None:
        """Have the program do something, and wait until it has done it."""
        fd = os.open(self.home / "answers", os.O_RDONLY | os.O_NONBLOCK)
        try:
            wait_until(lambda: self._send(command), "a reader of commands")
            wait_until(lambda: _read(fd) == b"done", "its answer")
        finally:
            os.close(fd)

    def _send(self, command: dict[str, Any]) -> bool:
        try:
            fd = os.open(self.home / "commands", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            return False
        os.set_blocking(fd, True)
        with open(fd, "w", encoding="utf-8") as commands:
            json.dump(command, commands)
        return True

    def exit(self, code: int) -> None:
        """Have the program end."""
        (self.home / "ready").unlink()
        self.carry({"exit": code})

    @property
    def ready(self) -> bool:
        """Whether it waits for commands."""
        return (self.home / "ready").exists()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 10)
    except BlockingIOError:
        return b""


def write_program(directory: Path) -> list[str]:
    """Write ``PROGRAM`` into a directory; the command that runs it."""
    path = directory / "agent.py"
    path.write_text(PROGRAM)
    return [sys.executable, str(path)]


def conversation(agent: str, home: Path, workspace: str, name: str = "6f1c") -> AgentFiles:
    """The files of a conversation, written by the test itself."""
    return AgentFiles(agent, os.path.realpath(workspace), lambda command: obey(home, command), name)
