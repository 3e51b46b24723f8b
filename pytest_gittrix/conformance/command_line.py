"""One command of a program, run and read: arguments in, the documented JSON envelope out (DESIGN 4.6).

No shell is in between, and no command is waited for without end. It must not know what any command means.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pytest_gittrix.errors import GittrixError, InvalidInput

JSON_KINDS: Final[Mapping[type, str]] = {str: "text", int: "number", list: "array", dict: "object"}
_SHOWN: Final = 2000
_GRACE: Final = 5.0

Kind = TypeVar("Kind", str, int, list[Any], dict[str, Any])


class CommandRefused(Exception):
    """The program answered ``{"ok": false, "error": {...}}``: it will not, or cannot, do what was asked.

    Attributes:
        code: the error's code, as the program gave it; INVALID_INPUT for USAGE, since a misused command is to programs what a wrong
            argument is to a library.
        conflicting_files: the error's ``conflictingFiles``; empty if it has none.
        details: the whole ``error`` object.
    """

    def __init__(self, command: Sequence[str], error: Mapping[str, Any]) -> None:
        self.code = "INVALID_INPUT" if error["code"] == "USAGE" else str(error["code"])
        self.conflicting_files: list[str] = [*(error.get("conflictingFiles") or ())]
        self.details = error
        untold = "\n(The error names no conflictingFiles.)" if self.code == "BASELINE_CONFLICT" and not self.conflicting_files else ""
        super().__init__(f"{error['message']}{untold}\nCommand: {shlex.join(command)}")


class CommandBroken(GittrixError):
    """A command did not do what every command does: end in time, by itself, with one envelope that its exit status agrees with.

    Attributes:
        ran: the command, and how it ended.
    """

    code = "COMMAND_BROKEN"

    def __init__(self, fact: str, ran: Ran) -> None:
        self.ran = ran
        super().__init__(
            fact,
            why=f"Command: {shlex.join(ran.command)}\nIt {ran.end}.",
            fix=f"Standard output: {_shown(ran.out)}\nStandard error: {_shown(ran.err)}",
        )


@dataclass(frozen=True)
class Ran:
    """A command that has ended.

    Attributes:
        command: the program and its arguments.
        status: its exit status; minus the number of the signal that ended it; None if it was ended for taking too long.
        out: its standard output.
        err: its standard error.
    """

    command: tuple[str, ...]
    status: int | None
    out: bytes
    err: bytes

    @property
    def end(self) -> str:
        """How it ended, in words."""
        if self.status is None:
            return "took too long and was ended"
        if self.status >= 0:
            return f"exited with status {self.status}"
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"was ended by signal {-self.status}"


@dataclass(frozen=True)
class Answer:
    """The ``data`` of a command that did what was asked.

    Attributes:
        data: the data.
        ran: the command it is the answer to.
    """

    data: Any
    ran: Ran

    def find(self, kind: type[Kind], *names: str) -> Kind | None:
        """The member of an object that has one of these names and is of that kind, if there is one."""
        members = self.data if isinstance(self.data, dict) else {}
        return next((members[name] for name in names if isinstance(members.get(name), kind)), None)

    def get(self, kind: type[Kind], *names: str) -> Kind:
        """The same. Raises CommandBroken if there is none."""
        found = self.find(kind, *names)
        if found is None:
            raise CommandBroken(f"The answer has no {JSON_KINDS[kind]} {' or '.join(f'data.{name}' for name in names)}.", self.ran)
        return found

    def each(self, kind: type[Kind], *names: str) -> list[Kind]:
        """The elements of an array: the data itself, or its member of that name. Raises CommandBroken if one is of another kind."""
        elements = self.get(list, *names) if names else self.data
        if isinstance(elements, list) and all(isinstance(element, kind) for element in elements):
            return elements
        raise CommandBroken(f"The answer's {'.'.join(('data', *names))} is not an array of {JSON_KINDS[kind]}s.", self.ran)

    def of(self, member: object) -> Answer:
        """A part of the data, to be read the same way."""
        return Answer(member, self.ran)


def ask(command: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: bytes, timeout: float) -> Answer:
    """Run one command and read its envelope.

    Args:
        command: the program and its arguments.
        env: the whole environment.
        cwd: where it is run.
        stdin: all it can read.
        timeout: seconds, after which it is ended with all that it started.

    Raises:
        CommandRefused: the envelope says so.
        CommandBroken: it could not be started, took too long, was ended by a signal, or answered with anything but an envelope.
        InvalidInput: an argument that no command line can carry.
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
        return Answer(envelope["data"], ran)
    error: Any = envelope.get("error")
    if envelope.get("ok") is not False or not _is_error(error):
        raise CommandBroken('The answer is neither {"ok": true, "data": ...} nor {"ok": false, "error": {"code", "message"}}.', ran)
    if ran.status == 0:
        raise CommandBroken("The answer says that it was refused, the exit status that it was done.", ran)
    raise CommandRefused(ran.command, error)


def _envelope(ran: Ran) -> dict[str, Any]:
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


def _run(command: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: bytes, timeout: float) -> Ran:
    told = tuple(command)
    try:
        # A session of its own, so that it can be ended with all that it started.
        process = subprocess.Popen(told, stdin=-1, stdout=-1, stderr=-1, env=env, cwd=cwd, start_new_session=True)
    except ValueError as problem:  # NUL bytes, and surrogates that stand for no byte
        raise _unspeakable(told, str(problem)) from None
    except OSError as problem:
        if problem.errno == errno.E2BIG:
            raise _unspeakable(told, "it is too long") from None
        raise CommandBroken(f"The command could not be started: {problem}.", Ran(told, 127, b"", b"")) from None
    try:
        out, err = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired:
        _end(process)
        with suppress(subprocess.TimeoutExpired):
            out, err = process.communicate(timeout=_GRACE)
            return Ran(told, None, out, err)
        return Ran(told, None, b"", b"")  # something that left its process group holds the pipes
    except BaseException:
        _end(process)
        raise
    return Ran(told, process.returncode, out, err)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _unspeakable(command: Sequence[str], problem: str) -> InvalidInput:
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
