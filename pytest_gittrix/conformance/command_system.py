"""Any program with the documented ``gittrix`` command line, as a session system.

Each verb is one command, in the place's hermetic environment, answered by one JSON envelope; ``docs/reference/cli.md`` describes both.
"""

from __future__ import annotations

import binascii
import builtins
import os
import re
import shlex
import shutil
import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from pytest_gittrix.clock.propagation import CLOCK_VARIABLE, faketime_library
from pytest_gittrix.conformance.base.outcome import NotExpressible
from pytest_gittrix.conformance.command_line import CommandBroken, CommandOutput, CommandRefused, run_command
from pytest_gittrix.durations import format_duration
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.repos.journal import CommandRun
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.protocol import BASE, VERBS, Capability, Promoted

ClockSource = Literal["file", "faketime", "none"]
Dialect = Literal["gittrix", "typescript"]

HOME_VARIABLE: Final = "GITTRIX_HOME"
TYPESCRIPT: Final = BASE | {Capability.DELETE, Capability.STRATEGIES, Capability.RESUME, Capability.SHELL, Capability.PROCESSES}
"""The capabilities that the TypeScript GitTrix documents for its command line; with libfaketime it has ``clock`` too."""
_SCRIPT: Final = 4096
_FACTS: Final = re.compile(r"\{(?:durable|branch|home)\}")
UNSUPPORTED: Final = frozenset(
    {
        Capability.HISTORY,
        Capability.TURNS,
        Capability.FORKS,
        Capability.LINES,
        Capability.MEMBERS,
        Capability.STATUS,
        Capability.ARCHIVE,
        Capability.SIDE_WORK,
    }
)
"""Capabilities that no command line has: they need a callback into the test, or verbs that are no documented commands."""


class CommandSystem:
    """A session system that is driven by its command line. Commands run in the durable repository, without a shell.

    Args:
        command: the program and its first arguments; a text is split as a shell splits it. Files among the arguments need full paths.
        name: the name that reports show; the command by default.
        capabilities: the capabilities that the program has.
        home_variable: the environment variable that tells the program where to keep its sessions, such as ``GITTRIX_HOME`` or ``HOME``.
        clock: how the program gets the time: ``file`` (it reads the file that ``PYTEST_GITTRIX_CLOCK`` names), ``faketime`` (libfaketime
            is loaded into it), or ``none`` (it uses the real time).
        timeout: seconds that a command may take.
        env: more environment variables for every command. ``{durable}``, ``{branch}`` and ``{home}`` in a value stand for the durable
            repository, its branch and the directory for sessions; the same holds for ``command`` and ``cwd``. Reports do not show the other
            values, since they may be secret.
        cwd: the directory that commands run in; the durable repository by default.
        separator: the text between the paths of ``--files``. With an empty text, a selection is passed as one ``--files`` for each path.
        dialect: ``gittrix`` for the whole command line; ``typescript`` for a program that has only the verbs and flags of the TypeScript
            GitTrix: no ``sweep`` (each command sweeps first), no flags for eviction, and paths with a comma cannot be selected.
        waivers: the reasons why the program need not keep a promise, by the code of a clause or the name of an invariant.

    Attributes:
        name, capabilities: as given, but without the capabilities in ``UNSUPPORTED``, and without ``clock`` where the program cannot get
            the time of the place.
        reasons: why a capability was left out, by capability.
        secret: the variables of ``env`` whose values reports do not show.
        waivers: as given.

    Raises:
        InvalidInput: the program does not exist, or ``clock`` or ``dialect`` has none of the listed values.
    """

    def __init__(
        self,
        command: Sequence[str] | str,
        *,
        name: str | None = None,
        capabilities: Iterable[Capability] = BASE,
        home_variable: str = HOME_VARIABLE,
        clock: ClockSource = "file",
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        separator: str = ",",
        dialect: Dialect = "gittrix",
        waivers: Mapping[str, str] | None = None,
    ) -> None:
        _check_choice("clock", clock, get_args(ClockSource))
        _check_choice("dialect", dialect, get_args(Dialect))
        argv = shlex.split(command) if isinstance(command, str) else [os.fspath(argument) for argument in command]
        self.command = (_program(argv, env), *argv[1:])
        self.name = name if name is not None else shlex.join(argv)
        reason = _no_clock(clock)
        declared = frozenset(capabilities)
        left_out = dict.fromkeys(UNSUPPORTED, "a system that is driven by its command line is not asked for it")
        left_out |= {Capability.CLOCK: reason} if reason else {}
        self.reasons: Mapping[Capability, str] = {one: why for one, why in left_out.items() if one in declared}
        self.capabilities = declared - self.reasons.keys()
        self.timeout = timeout
        self.dialect = dialect
        self.home_variable = home_variable
        self._clock = clock
        self.separator = separator
        self._env = dict(env or {})
        self.secret = frozenset(name for name, value in self._env.items() if not _FACTS.search(value))
        self._cwd = cwd
        self.waivers: Mapping[str, str] = waivers or {}

    def __repr__(self) -> str:
        return f"CommandSystem({shlex.join(self.command)!r})"

    @classmethod
    def own(cls, *, timeout: float = 60.0) -> CommandSystem:
        """The command line of this package, in this interpreter, with every capability that a command line can have."""
        # -P: a file of the durable repository must never be taken for a module.
        command = (sys.executable, "-P", "-m", "pytest_gittrix.cli")
        return cls(command, name="gittrix (command line)", capabilities=frozenset(Capability) - UNSUPPORTED, timeout=timeout)

    @classmethod
    def typescript(cls, command: Sequence[str] | str = "gittrix", *, timeout: float = 60.0) -> CommandSystem:
        """The command line of the TypeScript GitTrix, as it is documented.

        Raises:
            InvalidInput: it is not installed, or the program that was found is the command of this package.
        """
        _refuse_our_own(command)
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
        """Open an engine on a place. Nothing is held open between commands, since each is a separate process.

        If the place has sessions already and the system can recover, ``recover`` is run first, as every engine does when it is opened.
        """
        engine = CommandEngine(self, place)
        if Capability.CRASH in self.capabilities and place.home.exists():
            engine.recover()
        return engine

    def directory(self, place: Place) -> str:
        """The directory that a command runs in."""
        return str(place.directory) if self._cwd is None else _filled(self._cwd, place)

    def environment(self, place: Place) -> Mapping[str, str]:
        """The environment variables of a command in a place, at the current instant of the place's clock."""
        variables = {name: value for name, value in place.env.items() if name != HOME_VARIABLE}
        if self._clock == "none":
            del variables[CLOCK_VARIABLE]
        own = {name: _filled(value, place) for name, value in self._env.items()}
        faked = place.clock.faketime_environment() if self._clock == "faketime" else None
        return MappingProxyType(variables | (faked or {}) | {self.home_variable: str(place.home)} | own)


class CommandEngine:
    """The verbs of ``testing.systems.protocol.Engine`` and ``OptionalVerbs``, each as one command.

    All verbs raise CommandRefused, with the program's ``code``, if the program refuses; CommandBroken if the command does not end with an
    envelope; and InvalidInput for text that cannot stand on a command line.
    """

    def __init__(self, system: CommandSystem, place: Place) -> None:
        self._system = system
        self._place = place
        self._expired: set[str] = set()
        self._workspaces: dict[str, Path] = {}
        system.environment(place)  # attaches the clock's file before several threads could do so at once
        for verb in (verb for capability, verbs in VERBS.items() if capability not in system.capabilities for verb in verbs):
            setattr(self, verb, None)  # an engine has only the verbs of its capabilities

    def _run(self, *arguments: str, of: Sequence[str] = (), stdin: bytes = b"") -> CommandOutput:
        """Run a command. Text from callers goes behind ``--`` or behind the ``=`` of a flag, so that none is taken for an option."""
        program = [_filled(part, self._place) for part in self._system.command]
        command = [*program, *arguments, "--json", *(["--", *of] if of else [])]
        place, variables = self._place, self._system.environment(self._place)
        own = {name: value for name, value in variables.items() if place.env.get(name) != value or name == self._system.home_variable}
        step = CommandRun(tuple(command), self._system.directory(place), own, self._system.secret, stdin, tuple(program))
        place.journal.steps.append(step)
        try:
            answer = run_command(command, env=variables, cwd=step.directory, stdin=stdin, timeout=self._system.timeout)
        except CommandRefused as refused:
            step.ended, step.answer = str(refused.details["code"]), refused.details
            raise
        step.answer, step.ended, step.printed = answer.data, "ok", answer.ran.out
        return answer

    def start(self, task: str, policy: EvictionPolicy) -> str:
        """``session start``. Raises NotExpressible for a policy that the dialect has no flags for."""
        durable = self._place.durable
        flags = _policy_flags(policy)
        if flags and self._system.dialect == "typescript":
            raise NotExpressible(f"{self._system.name} has no flags for an eviction policy: {', '.join(flags)}.")
        arguments = (f"--task={task}", f"--durable={durable.path}", f"--branch={durable.branch}", *flags)
        answer = self._run("session", "start", *arguments)
        id = answer.get(str, "id", "sessionId")
        if (workspace := answer.find(str, "workspacePath")) is not None:
            self._workspaces[id] = Path(workspace)
        return id

    def read(self, id: str, path: str) -> bytes:
        """``session read``."""
        answer = self._run("session", "read", of=[id, path])
        try:
            return b64decode(answer.get(str, "contentBase64"), validate=True)
        except binascii.Error as problem:
            raise CommandBroken(f"The answer's data.contentBase64 is not base64: {problem}.", answer.ran) from None

    def write(self, id: str, path: str, data: bytes) -> None:
        """``session write``, with the contents on standard input."""
        self._run("session", "write", of=[id, path], stdin=data)

    def list(self, id: str) -> Iterable[str]:
        """``session list-files``, without directories."""
        answer = self._run("session", "list-files", of=[id])
        entries = [answer.of(entry) for entry in answer.each(dict)]
        return [entry.get(str, "path") for entry in entries if entry.get(str, "type") != "dir"]

    def touched(self, id: str) -> Iterable[str]:
        """``session touched``."""
        return self._run("session", "touched", of=[id]).each(str)

    def promote(
        self,
        id: str,
        files: Sequence[str] | None = None,
        message: str | None = None,
        hunks: Mapping[str, Sequence[int]] | None = None,
        strategy: str = "commit",
    ) -> Promoted:
        """``promote``. Raises NotExpressible for a selection that the dialect cannot express."""
        flags, positional = self._selected(files)
        flags += [f"--hunks={path}:{','.join(map(str, numbers))}" for path, numbers in (hunks or {}).items()]
        if message is not None:
            flags.append(f"--message={message}")
        answer = self._run("promote", f"--strategy={strategy}", *flags, of=[id, *positional])
        if (patch := answer.find(str, "patch")) is not None:
            return Promoted("", None, patch)
        branch = answer.get(str, "branch")
        return Promoted(answer.get(str, "sha"), None if branch == self._place.durable.branch else branch)

    def _selected(self, files: Sequence[str] | None) -> tuple[builtins.list[str], Sequence[str]]:
        """A selection as flags, or as positional arguments if a comma-separated list could not hold the paths."""
        if files is None:
            return [], ()
        separator = self._system.separator
        if not separator:
            return [f"--files={path}" for path in files], ()
        if all(path and separator not in path and path == path.strip() for path in files):
            return [f"--files={separator.join(files)}"], ()
        if self._system.dialect == "typescript":
            raise NotExpressible(f"{self._system.name} separates paths by {separator!r}, and cannot select {', '.join(map(repr, files))}.")
        return [], files

    def evict(self, id: str) -> None:
        """``session evict``."""
        self._run("session", "evict", of=[id])
        self._expired.add(id)

    def sweep(self) -> Iterable[str]:
        """``sweep``; in a dialect without that command, the sessions that have expired since the last call."""
        if self._system.dialect == "gittrix":
            return self._run("sweep").each(str, "evicted")
        expired = {id for id, state in self.sessions().items() if state == "expired"} - self._expired
        self._expired |= expired
        return sorted(expired)

    def recover(self) -> None:
        """``recover``: repair what a killed process left."""
        self._run("recover")

    def sessions(self) -> Mapping[str, str]:
        """``session list``: the states, by id."""
        answer = self._run("session", "list")
        records = [answer.of(record) for record in answer.each(dict)]
        return {record.get(str, "id"): record.get(str, "state") for record in records}

    def delete(self, id: str, path: str) -> None:
        """``session delete``."""
        self._run("session", "delete", of=[id, path])

    def discard(self, id: str) -> None:
        """``session discard``."""
        self._run("session", "discard", of=[id])

    def commit(self, id: str, message: str) -> str:
        """``session commit``."""
        return self._run("session", "commit", f"--message={message}", of=[id]).get(str, "sha")

    def hunks(self, id: str) -> Mapping[str, Sequence[int]]:
        """``session diff --hunks``: the numbers of the hunks, by path."""
        answer = self._run("session", "diff", "--hunks", of=[id])
        of_paths = answer.of(answer.get(dict, "hunks"))
        return {path: [answer.of(hunk).get(int, "index") for hunk in of_paths.each(dict, path)] for path in of_paths.data}

    def extend(self, id: str, ttl: timedelta) -> None:
        """``session extend``."""
        self._run("session", "extend", of=[id, format_duration(ttl)])

    def workspace(self, id: str) -> Path:
        """The workspace's path, from ``session start`` or else from ``session info``; it never changes."""
        if id not in self._workspaces:
            self._workspaces[id] = Path(self._run("session", "info", of=[id]).get(str, "workspacePath"))
        return self._workspaces[id]

    def events(self, id: str) -> Sequence[Mapping[str, Any]]:
        """``session info --events``."""
        return self._run("session", "info", "--events", of=[id]).each(dict, "events")

    def close(self) -> None:
        """Do nothing: nothing is held open between commands."""


def _policy_flags(policy: EvictionPolicy) -> list[str]:
    """The parts of a policy that are not the default, as flags of ``session start``."""
    usual = EvictionPolicy()
    limits = (("--ttl", policy.ttl_idle, usual.ttl_idle), ("--ttl-absolute", policy.ttl_absolute, usual.ttl_absolute))
    flags = [f"{flag}={'none' if limit is None else format_duration(limit)}" for flag, limit, default in limits if limit != default]
    return [*flags, *(["--manual"] if policy.manual else []), *([] if policy.until_promote else ["--keep-after-promote"])]


def _no_clock(clock: ClockSource) -> str | None:
    """Why a program cannot get the time of the place; None if it can."""
    if clock == "none":
        return "the command runs on the real time (clock='none')"
    if clock == "faketime" and faketime_library() is None:
        return "libfaketime is not installed, and the command has no other source of the time (clock='faketime')"
    return None


def _program(argv: Sequence[str], env: Mapping[str, str] | None) -> str:
    found = shutil.which(argv[0], path=(env or {}).get("PATH")) if argv else None
    if found is None:
        raise InvalidInput(
            f"There is no program {argv[0]!r}." if argv else "The command is empty.",
            why="Each verb of the system is run as a command of it.",
            fix="Give the program, by its full path if it is not on PATH, and its first arguments: ['node', '/full/path/cli.js'].",
        )
    return os.path.abspath(found)


def _refuse_our_own(command: Sequence[str] | str) -> None:
    """See that a command is not the one that this package installs under the same name."""
    argv = shlex.split(command) if isinstance(command, str) else [*command]
    found = _program(argv, None)
    with open(found, "rb") as file:
        beginning = file.read(_SCRIPT)
    if beginning.startswith(b"#!") and b"pytest_gittrix" in beginning:
        raise InvalidInput(
            f"{found} is the command of this package, and not the TypeScript GitTrix.",
            why="Both install a program called gittrix, and this one comes first on PATH: it would be judged under the other's name.",
            fix='Give the other program by its full path: CommandSystem.typescript(["node", "/full/path/cli.js"]).',
            opt_out="CommandSystem.own() judges the command of this package.",
        )


def _filled(text: str, place: Place) -> str:
    """A text in which the names of things of the place are filled in."""
    facts = {"{durable}": str(place.durable.path), "{branch}": place.durable.branch, "{home}": str(place.home)}
    return _FACTS.sub(lambda found: facts[found[0]], text)


def _check_choice(argument: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidInput(f"{argument}={value!r} is none of its values.", fix=f"Use one of: {', '.join(choices)}.")
