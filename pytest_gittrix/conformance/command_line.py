"""Runs one command of a program and reads its answer, a JSON envelope as docs/reference/cli.md describes it.

No shell is involved, and every command has a time limit.
"""

from __future__ import annotations

import errno
import json
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.os_level.process_tree import end_tree

JSON_KINDS: Final[Mapping[type, str]] = {str: "text", int: "number", list: "array", dict: "object"}
_SHOWN: Final = 2000
_GRACE: Final = 5.0

Kind = TypeVar("Kind", str, int, list[Any], dict[str, Any])


class CommandRefused(Exception):
    """The program answered ``{"ok": false, "error": {...}}``: it refused the command.

    Attributes:
        code: the error's code, as the program gave it; INVALID_INPUT for USAGE, since a misused command corresponds to a wrong argument of
            a function.
        conflicting_files: the error's ``conflictingFiles``; empty if it has none.
        details: the whole ``error`` object.
    """

    def __init__(self, command: Sequence[str], error: Mapping[str, Any]) -> None:
        self.code = "INVALID_INPUT" if error["code"] == "USAGE" else str(error["code"])
        self.conflicting_files: list[str] = [*(error.get("conflictingFiles") or ())]
        self.details = error
        missing = "\n(The error names no conflictingFiles.)" if self.code == "BASELINE_CONFLICT" and not self.conflicting_files else ""
        super().__init__(f"{error['message']}{missing}\nCommand: {shlex.join(command)}")


class CommandBroken(GittrixError):
    """A command did not end in time, by itself, with one envelope that agrees with its exit status.

    Attributes:
        ran: the command, its exit status and its output.
    """

    code = "COMMAND_BROKEN"

    def __init__(self, fact: str, ran: CompletedCommand) -> None:
        self.ran = ran
        super().__init__(
            fact,
            why=f"Command: {shlex.join(ran.command)}\nIt {ran.end}.",
            fix=f"Standard output: {_shown(ran.out)}\nStandard error: {_shown(ran.err)}",
        )


@dataclass(frozen=True)
class CompletedCommand:
    """A command that has ended, with its exit status and output.

    Attributes:
        command: the program and its arguments.
        status: its exit status; minus the number of the signal that ended it; None if it was killed at its time limit.
        out: what it wrote to standard output.
        err: what it wrote to standard error.
    """

    command: tuple[str, ...]
    status: int | None
    out: bytes
    err: bytes

    @property
    def end(self) -> str:
        """How the command ended, as a phrase."""
        if self.status is None:
            return "took too long and was ended"
        if self.status >= 0:
            return f"exited with status {self.status}"
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"was ended by signal {-self.status}"


@dataclass(frozen=True)
class CommandOutput:
    """The ``data`` of a successful command.

    Attributes:
        data: the data, or a part of it.
        ran: the command.
    """

    data: Any
    ran: CompletedCommand

    def find(self, kind: type[Kind], *names: str) -> Kind | None:
        """The first member of the data that has one of these names and this type; None if there is none."""
        members = self.data if isinstance(self.data, dict) else {}
        return next((members[name] for name in names if isinstance(members.get(name), kind)), None)

    def get(self, kind: type[Kind], *names: str) -> Kind:
        """The first member of the data that has one of these names and this type. Raises CommandBroken if there is none."""
        found = self.find(kind, *names)
        if found is None:
            raise CommandBroken(f"The answer has no {JSON_KINDS[kind]} {' or '.join(f'data.{name}' for name in names)}.", self.ran)
        return found

    def each(self, kind: type[Kind], *names: str) -> list[Kind]:
        """The elements of an array: the data itself, or its member of that name. Raises CommandBroken if one has another type."""
        elements = self.get(list, *names) if names else self.data
        if isinstance(elements, list) and all(isinstance(element, kind) for element in elements):
            return elements
        raise CommandBroken(f"The answer's {'.'.join(('data', *names))} is not an array of {JSON_KINDS[kind]}s.", self.ran)

    def of(self, member: object) -> CommandOutput:
        """A part of the data, as an answer of the same command."""
        return CommandOutput(member, self.ran)


def run_command(command: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: bytes, timeout: float) -> CommandOutput:
    """Run one command and read its envelope.

    Args:
        command: the program and its arguments.
        env: all environment variables of the command.
        cwd: the directory that the command runs in.
        stdin: the bytes on its standard input.
        timeout: seconds after which the command is killed, with every process that it started in its group.

    Raises:
        CommandRefused: the envelope has an error.
        CommandBroken: the command could not be started, took too long, was ended by a signal, or did not print an envelope.
        InvalidInput: an argument cannot stand on a command line.
    """
    ran = _run(command, env=env, cwd=cwd, stdin=stdin, timeout=timeout)
    if ran.status is None:
        raise CommandBroken(f"The command did not end within {timeout:g} seconds.", ran)
    if ran.status < 0:
        raise CommandBroken("The command did not end by itself.", ran)
    envelope = _envelope(ran)
    if envelope.get("ok") is True and "data" in envelope:
        if ran.status != 0:
            raise CommandBroken("The answer says that it was done, the exit status that it was not.", ran)
        return CommandOutput(envelope["data"], ran)
    error: Any = envelope.get("error")
    if envelope.get("ok") is not False or not _is_error(error):
        raise CommandBroken('The answer is neither {"ok": true, "data": ...} nor {"ok": false, "error": {"code", "message"}}.', ran)
    if ran.status == 0:
        raise CommandBroken("The answer says that it was refused, the exit status that it was done.", ran)
    raise CommandRefused(ran.command, error)


def _envelope(ran: CompletedCommand) -> dict[str, Any]:
    try:
        envelope = json.loads(ran.out)
    except ValueError:
        raise CommandBroken("The answer is not JSON." if ran.out.strip() else "There is no answer.", ran) from None
    if not isinstance(envelope, dict):
        raise CommandBroken("The answer is JSON, but no object.", ran)
    return envelope


def _is_error(error: Any) -> bool:
    if not isinstance(error, dict) or not isinstance(error.get("code"), str) or not isinstance(error.get("message"), str):
        return False
    files = error.get("conflictingFiles") or []
    return isinstance(files, list) and all(isinstance(path, str) for path in files)


def _run(command: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: bytes, timeout: float) -> CompletedCommand:
    argv = tuple(command)
    try:
        # In a new session, so that the command can be killed with the processes that it started.
        process = subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=-1, env=env, cwd=cwd, start_new_session=True)
    except ValueError as problem:  # NUL bytes, and surrogates that no byte decodes to
        raise _not_an_argument(argv, str(problem)) from None
    except OSError as problem:
        if problem.errno == errno.E2BIG:
            raise _not_an_argument(argv, "it is too long") from None
        raise CommandBroken(f"The command could not be started: {problem}.", CompletedCommand(argv, 127, b"", b"")) from None
    try:
        out, err = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        with suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=_GRACE)
            return CompletedCommand(argv, None, out, err)
        return CompletedCommand(argv, None, b"", b"")  # a process that left the group keeps the pipes open
    except BaseException:
        _end(process)
        raise
    return CompletedCommand(argv, process.returncode, out, err)


def _end(process: subprocess.Popen[bytes]) -> None:
    end_tree(process.pid)
    process.wait()


def _not_an_argument(command: Sequence[str], problem: str) -> InvalidInput:
    return InvalidInput(
        f"No command line can carry this: {problem}.",
        why=f"The arguments were: {', '.join(_clipped(repr(part)) for part in command[1:])}.",
        fix="The system was not asked, and so has refused it.",
    )


def _shown(stream: bytes) -> str:
    text = stream.decode("utf-8", "backslashreplace").strip()
    return _clipped(text) if text else "(empty)"


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"
