"""Any program that speaks the documented ``gittrix`` command line, as a session system.

Each verb is one command, in the place's hermetic environment, answered by one JSON envelope; ``docs/reference/cli.md`` describes both. It
must not know pytest, nor the language the program is written in.
"""

from __future__ import annotations

import binascii
import builtins
import os
import shlex
import shutil
import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from pytest_gittrix.clock.carriers import CLOCK_VARIABLE, faketime_library
from pytest_gittrix.conformance.command_line import Answer, CommandBroken, ask
from pytest_gittrix.durations import format_duration
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.protocol import BASE, VERBS, Capability, Promoted

HowTimed = Literal["file", "faketime", "none"]
Dialect = Literal["gittrix", "typescript"]

HOME_VARIABLE: Final = "GITTRIX_HOME"
TYPESCRIPT: Final = BASE | {Capability.DELETE, Capability.STRATEGIES, Capability.RESUME, Capability.SHELL, Capability.PROCESSES}
"""What the document of the TypeScript GitTrix claims of its command line; ``clock`` besides, where libfaketime is installed."""
UNSPEAKABLE: Final = frozenset(
    {Capability.HISTORY, Capability.TURNS, Capability.FORKS, Capability.LINES, Capability.MEMBERS, Capability.STATUS}
)
"""What no command line is asked for: it needs somebody to call back, or has no words in the documented commands."""


class CommandSystem:
    """A session system that is driven by its command line. Commands run in the durable repository, without a shell.

    Args:
        command: the program and its first arguments; a text is taken apart at its spaces, as a shell would. Files among the arguments
            need their full paths.
        name: shown in reports; the command by default.
        capabilities: what it can do.
        home_variable: the variable by which it is told where to keep its sessions, ``GITTRIX_HOME`` or ``HOME`` for instance.
        clock: how it is told the time: ``file`` (it reads the file that ``PYTEST_GITTRIX_CLOCK`` names), ``faketime`` (libfaketime is
            loaded into it), or ``none`` (it sees the real time).
        timeout: seconds that a command may take.
        env: variables to set besides.
        dialect: ``gittrix`` for the whole command line; ``typescript`` for a program that has only the verbs and flags of the TypeScript
            GitTrix: no ``sweep`` (each command sweeps first), no flags for eviction, and paths with a comma cannot be selected.

    Attributes:
        name, capabilities: as given; ``clock`` is taken out where the program cannot be told the time, and what ``UNSPEAKABLE`` has.
        reasons: for each capability that was taken out, why.

    Raises:
        InvalidInput: the program is not there, or an argument is none of those listed.
    """

    def __init__(
        self,
        command: Sequence[str] | str,
        *,
        name: str | None = None,
        capabilities: Iterable[Capability] = BASE,
        home_variable: str = HOME_VARIABLE,
        clock: HowTimed = "file",
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        dialect: Dialect = "gittrix",
    ) -> None:
        _check_choice("clock", clock, get_args(HowTimed))
        _check_choice("dialect", dialect, get_args(Dialect))
        words = shlex.split(command) if isinstance(command, str) else [os.fspath(word) for word in command]
        self.command = (_program(words, env), *words[1:])
        self.name = name if name is not None else shlex.join(words)
        reason = _no_clock(clock)
        declared = frozenset(capabilities)
        left_out = dict.fromkeys(UNSPEAKABLE, "a system that is driven by its command line is not asked for it")
        left_out |= {Capability.CLOCK: reason} if reason else {}
        self.reasons: Mapping[Capability, str] = {one: why for one, why in left_out.items() if one in declared}
        self.capabilities = declared - self.reasons.keys()
        self.timeout = timeout
        self.dialect = dialect
        self._home_variable = home_variable
        self._clock = clock
        self._env = dict(env or {})

    def __repr__(self) -> str:
        return f"CommandSystem({shlex.join(self.command)!r})"

    @classmethod
    def own(cls, *, timeout: float = 60.0) -> CommandSystem:
        """Our own command line, in this interpreter, with everything that a command line is asked for."""
        # -P: a file of the durable repository must never be taken for a module.
        command = (sys.executable, "-P", "-m", "pytest_gittrix.cli")
        return cls(command, name="gittrix (command line)", capabilities=frozenset(Capability) - UNSPEAKABLE, timeout=timeout)

    @classmethod
    def typescript(cls, command: Sequence[str] | str = "gittrix", *, timeout: float = 60.0) -> CommandSystem:
        """The command line of the TypeScript GitTrix, with what its document claims. Raises InvalidInput if it is not installed."""
        return cls(
            command,
            name="gittrix (TypeScript)",
            capabilities=TYPESCRIPT | {Capability.CLOCK},
            home_variable="HOME",
            clock="faketime",
            timeout=timeout,
            dialect="typescript",
        )

    def open(self, place: Place) -> CommandEngine:
        """A way to the sessions of a place. Nothing is held open: each command is a process of its own.

        Where sessions were kept before, ``recover`` is run first, if the system says that it can recover: so an engine does that is opened.
        """
        engine = CommandEngine(self, place)
        if Capability.CRASH in self.capabilities and place.home.exists():
            engine.recover()
        return engine

    def environment(self, place: Place) -> Mapping[str, str]:
        """The variables a command sees in a place, at the instant its clock shows."""
        variables = {name: value for name, value in place.env.items() if name != HOME_VARIABLE}
        if self._clock == "none":
            del variables[CLOCK_VARIABLE]
        faked = place.clock.faketime_environment() if self._clock == "faketime" else None
        return MappingProxyType(variables | (faked or {}) | {self._home_variable: str(place.home)} | self._env)


class CommandEngine:
    """The verbs of ``testing.systems.protocol.Engine`` and ``OptionalVerbs``, a command each.

    All verbs raise CommandRefused, with the program's own ``code``, for what the program refuses; CommandBroken, if a command does not
    answer as commands do; and InvalidInput for text that no command line can carry.
    """

    def __init__(self, system: CommandSystem, place: Place) -> None:
        self._system = system
        self._place = place
        self._expired: set[str] = set()
        self._workspaces: dict[str, Path] = {}
        system.environment(place)  # attaches the clock's file, before several threads could want to
        for verb in (verb for capability, verbs in VERBS.items() if capability not in system.capabilities for verb in verbs):
            setattr(self, verb, None)  # an engine has the verbs of its capabilities, and no other

    def _ask(self, *words: str, of: Sequence[str] = (), stdin: bytes = b"") -> Answer:
        """Run a command: its words are ours, and what callers chose stands behind ``--`` or behind the ``=`` of a flag."""
        command = [*self._system.command, *words, "--json", *(["--", *of] if of else [])]
        place = self._place
        return ask(command, env=self._system.environment(place), cwd=str(place.durable.path), stdin=stdin, timeout=self._system.timeout)

    def start(self, task: str, policy: EvictionPolicy) -> str:
        """``session start``. Raises CapabilityMissing for a policy that the dialect has no words for."""
        durable = self._place.durable
        flags = _policy_flags(policy)
        if flags and self._system.dialect == "typescript":
            raise CapabilityMissing(f"{self._system.name} has no flags for an eviction policy: {', '.join(flags)}.")
        words = (f"--task={task}", f"--durable={durable.path}", f"--branch={durable.branch}", *flags)
        answer = self._ask("session", "start", *words)
        id = answer.get(str, "id", "sessionId")
        if (workspace := answer.find(str, "workspacePath")) is not None:
            self._workspaces[id] = Path(workspace)
        return id

    def read(self, id: str, path: str) -> bytes:
        """``session read``."""
        answer = self._ask("session", "read", of=[id, path])
        try:
            return b64decode(answer.get(str, "contentBase64"), validate=True)
        except binascii.Error as problem:
            raise CommandBroken(f"The answer's data.contentBase64 is not base64: {problem}.", answer.ran) from None

    def write(self, id: str, path: str, data: bytes) -> None:
        """``session write``, with the contents on standard input."""
        self._ask("session", "write", of=[id, path], stdin=data)

    def list(self, id: str) -> Iterable[str]:
        """``session list-files``, without directories."""
        answer = self._ask("session", "list-files", of=[id])
        entries = [answer.of(entry) for entry in answer.each(dict)]
        return [entry.get(str, "path") for entry in entries if entry.get(str, "type") != "dir"]

    def touched(self, id: str) -> Iterable[str]:
        """``session touched``."""
        return self._ask("session", "touched", of=[id]).each(str)

    def promote(
        self,
        id: str,
        files: Sequence[str] | None = None,
        message: str | None = None,
        hunks: Mapping[str, Sequence[int]] | None = None,
        strategy: str = "commit",
    ) -> Promoted:
        """``promote``. Raises CapabilityMissing for a selection that the dialect has no words for."""
        flags, places = self._selected(files)
        flags += [f"--hunks={path}:{','.join(map(str, numbers))}" for path, numbers in (hunks or {}).items()]
        if message is not None:
            flags.append(f"--message={message}")
        answer = self._ask("promote", f"--strategy={strategy}", *flags, of=[id, *places])
        if (patch := answer.find(str, "patch")) is not None:
            return Promoted("", None, patch)
        branch = answer.get(str, "branch")
        return Promoted(answer.get(str, "sha"), None if branch == self._place.durable.branch else branch)

    def _selected(self, files: Sequence[str] | None) -> tuple[builtins.list[str], Sequence[str]]:
        """A selection as flags, and as places for paths that would not come out of a list as they went in."""
        if files is None:
            return [], ()
        if all(path and "," not in path and path == path.strip() for path in files):
            return [f"--files={','.join(files)}"], ()
        if self._system.dialect == "typescript":
            raise CapabilityMissing(f"{self._system.name} separates paths by commas, and cannot select {', '.join(map(repr, files))}.")
        return [], files

    def evict(self, id: str) -> None:
        """``session evict``."""
        self._ask("session", "evict", of=[id])
        self._expired.add(id)

    def sweep(self) -> Iterable[str]:
        """``sweep``; where there is no such command, what has expired since the last look."""
        if self._system.dialect == "gittrix":
            return self._ask("sweep").each(str, "evicted")
        expired = {id for id, state in self.sessions().items() if state == "expired"} - self._expired
        self._expired |= expired
        return sorted(expired)

    def recover(self) -> None:
        """``recover``: put in order what a kill left."""
        self._ask("recover")

    def sessions(self) -> Mapping[str, str]:
        """``session list``, the states."""
        answer = self._ask("session", "list")
        records = [answer.of(record) for record in answer.each(dict)]
        return {record.get(str, "id"): record.get(str, "state") for record in records}

    def delete(self, id: str, path: str) -> None:
        """``session delete``."""
        self._ask("session", "delete", of=[id, path])

    def discard(self, id: str) -> None:
        """``session discard``."""
        self._ask("session", "discard", of=[id])

    def commit(self, id: str, message: str) -> str:
        """``session commit``."""
        return self._ask("session", "commit", f"--message={message}", of=[id]).get(str, "sha")

    def hunks(self, id: str) -> Mapping[str, Sequence[int]]:
        """``session diff --hunks``, the numbers."""
        answer = self._ask("session", "diff", "--hunks", of=[id])
        of_paths = answer.of(answer.get(dict, "hunks"))
        return {path: [answer.of(hunk).get(int, "index") for hunk in of_paths.each(dict, path)] for path in of_paths.data}

    def extend(self, id: str, ttl: timedelta) -> None:
        """``session extend``."""
        self._ask("session", "extend", of=[id, format_duration(ttl)])

    def workspace(self, id: str) -> Path:
        """Where the workspace is, as ``session start`` said, or else ``session info`` says; it does not move."""
        if id not in self._workspaces:
            self._workspaces[id] = Path(self._ask("session", "info", of=[id]).get(str, "workspacePath"))
        return self._workspaces[id]

    def events(self, id: str) -> Sequence[Mapping[str, Any]]:
        """``session info --events``."""
        return self._ask("session", "info", "--events", of=[id]).each(dict, "events")

    def close(self) -> None:
        """Nothing is held between commands."""


def _policy_flags(policy: EvictionPolicy) -> list[str]:
    """What a policy says other than by default, as flags of ``session start``."""
    usual = EvictionPolicy()
    limits = (("--ttl", policy.ttl_idle, usual.ttl_idle), ("--ttl-absolute", policy.ttl_absolute, usual.ttl_absolute))
    flags = [f"{flag}={'none' if limit is None else format_duration(limit)}" for flag, limit, default in limits if limit != default]
    return [*flags, *(["--manual"] if policy.manual else []), *([] if policy.until_promote else ["--keep-after-promote"])]


def _no_clock(clock: HowTimed) -> str | None:
    """Why a program cannot be told the time, if it cannot."""
    if clock == "none":
        return "the command runs on the real time (clock='none')"
    if clock == "faketime" and faketime_library() is None:
        return "libfaketime is not installed, and the command has no other way to be told the time (clock='faketime')"
    return None


def _program(words: Sequence[str], env: Mapping[str, str] | None) -> str:
    found = shutil.which(words[0], path=(env or {}).get("PATH")) if words else None
    if found is None:
        raise InvalidInput(
            f"There is no program {words[0]!r}." if words else "The command is empty.",
            why="Each verb of the system is run as a command of it.",
            fix="Give the program, by its full path if it is not on PATH, and its first arguments: ['node', '/full/path/cli.js'].",
        )
    return os.path.abspath(found)


def _check_choice(argument: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidInput(f"{argument}={value!r} is none of its values.", fix=f"Use one of: {', '.join(choices)}.")
