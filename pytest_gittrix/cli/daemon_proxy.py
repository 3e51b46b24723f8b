"""Running a command by the daemon of its store, if there is one, and in this process otherwise.

A daemon has its engine loaded, and manages the store's sessions. Where there is none, or it does not answer, the command works on the store
directly, with the same functions. Loads nothing but the standard library until a daemon is found.
"""

from __future__ import annotations

import io
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands.output import CommandResult, put_error
from pytest_gittrix.commands.wire import decode_result
from pytest_gittrix.errors import DaemonLost, GittrixError
from pytest_gittrix.record.store.home import home

if TYPE_CHECKING:
    from pytest_gittrix.server.daemon_file import DaemonFile

SWITCH: Final = "GITTRIX_DAEMON"
"""Set to 0, it keeps commands away from a daemon."""

_CLOCK: Final = "PYTEST_GITTRIX_CLOCK"
_FORGE: Final = "GITTRIX_FORGE_"
_RUNTIME: Final = "CLAUDE_SESSION_ID"
_EXTRAS: Final = {"conflictingFiles": "conflicting_files", "durableSha": "durable_sha", "baselineSha": "baseline_sha"}


class RemoteError(GittrixError):
    """An error that a daemon reported, with the fields that it was raised with there; ``text`` is what people are shown."""

    def __init__(self, error: Mapping[str, Any], text: str) -> None:
        super().__init__(str(error["message"]))
        self.code = str(error["code"])  # type: ignore[misc]
        self.text = text
        for wire, value in error.items():
            if wire not in ("code", "message"):
                setattr(self, _EXTRAS.get(wire, wire), value)
        self.message = str(error["message"])


def run(options: Namespace, arguments: Sequence[str]) -> CommandResult:
    """Run a command: by the daemon of its store, if there is one that runs such commands; in this process otherwise.

    Raises:
        GittrixError: any error of the command, or DaemonLost.
        Misuse: the command line cannot be parsed.
    """
    daemon, directory = _daemon_for(options, arguments), _directory()
    if daemon is None or directory is None:
        return _directly(options)
    from pytest_gittrix.server.client import Client, Lost, Refused, Silent

    stdin = _stdin(options)  # before the greeting: typing it may take longer than a daemon keeps an idle connection
    client = Client(daemon)
    try:
        client.greet()
        runtime_id = os.environ.get(_RUNTIME, "")
        reply = client.command(arguments, directory, stdin, runtime_id if _is_text(runtime_id) else "")
    except Refused as problem:
        return _directly(options, "" if problem.code == "USAGE" else f"The daemon refuses the command ({problem}).", stdin)
    except Silent as problem:
        return _directly(options, f"The daemon does not answer ({problem}); working on the store directly.", stdin)
    except Lost as problem:
        if options.verb.only_looks:
            return _directly(options, f"The daemon went away ({problem}); working on the store directly.")
        raise DaemonLost(
            f"The daemon went away while it ran the command: {problem}.",
            why="It may have been done, or not; done twice, it could do harm.",
            fix="Look how things stand (gittrix session list, gittrix session history), and run it again if it was not done.",
        ) from None
    finally:
        client.close()
    answer = reply["answer"]
    if "error" in answer:
        raise RemoteError(answer["error"], answer["shown"])
    return decode_result(answer, reply["status"])


def _directly(options: Namespace, why: str = "", stdin: bytes | None = None) -> CommandResult:
    """Run a command in this process; ``stdin`` is what has been read of standard input already."""
    if why:
        put_error(why)
    if stdin and options.verb.reads_stdin:
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    result: CommandResult = options.run(options)
    return result


def _daemon_for(options: Namespace, arguments: Sequence[str]) -> DaemonFile | None:
    """The daemon that is to run a command, if any."""
    if options.direct or os.environ.get(SWITCH) == "0":
        return None
    from pathlib import Path

    store = Path(options.store).absolute() if options.store else Path(home(), "sessions")
    directory = store.parent
    if not (directory / "daemon.json").exists() or _is_personal(options) or not all(map(_is_text, arguments)):
        return None
    from pytest_gittrix.server.daemon_file import found

    daemon = found(directory)
    if daemon is None or os.path.realpath(daemon.store) != os.path.realpath(store) or daemon.clock != _clock():
        return None
    return daemon


def _is_personal(options: Namespace) -> bool:
    """Whether a command needs what only this process has: a person to ask, a token, its own session, or its own team file."""
    from pytest_gittrix.commands.engine_context import has_person

    given = vars(options).get
    if options.verb.is_of_own_session(options) or given("team") is not None or given("forge_repo") or given("forge_url") or given("forge"):
        return True
    if options.verb.name == "fork" and given("model") is not None:  # it runs a program in this terminal
        return True
    if not options.verb.only_looks and any(name.startswith(_FORGE) for name in os.environ):
        return True
    return given("strategy") == "auto" and has_person(options)


def _is_text(argument: str) -> bool:
    """Whether an argument can be sent: JSON cannot carry a name that is not UTF-8."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _directory() -> str | None:
    """The working directory; None if it is gone, or if its name cannot be sent."""
    try:
        directory = os.getcwd()
    except OSError:
        return None
    return directory if _is_text(directory) else None


def _clock() -> str | None:
    clock = os.environ.get(_CLOCK)
    return os.path.abspath(clock) if clock else None


def _stdin(options: Namespace) -> bytes | None:
    if not options.verb.reads_stdin:
        return b""
    from pytest_gittrix.commands.engine_context import standard_input

    return None if sys.stdin is None else standard_input("what the daemon is to have")
