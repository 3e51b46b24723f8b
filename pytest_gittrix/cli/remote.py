"""Commands that a daemon runs: whether there is one for the store, what it is sent, and what becomes of its answer.

A daemon has its engine loaded; and it is the one who should know. Where there is none, or it does not answer, a command works on the store
directly, with the same functions. Loads nothing but the standard library until a daemon is found. Must not know what a command does.
"""

from __future__ import annotations

import io
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands.output import Answer, put_error
from pytest_gittrix.commands.wire import REMOTE, decoded
from pytest_gittrix.errors import DaemonLost, GittrixError

if TYPE_CHECKING:
    from pytest_gittrix.server.daemon_file import DaemonFile

SWITCH: Final = "GITTRIX_DAEMON"
"""Set to 0, it keeps commands away from a daemon."""

_CLOCK: Final = "PYTEST_GITTRIX_CLOCK"
_FORGE: Final = "GITTRIX_FORGE_"
_READS_STDIN: Final = frozenset({"session write", "session record"})
_CHANGE_NOTHING: Final = frozenset(
    f"session {verb}"
    for verb in ("list", "find", "chain", "tree", "show", "info", "read", "list-files", "touched", "diff", "log", "history", "inspect")
) | {"member status", "member list", "member history"}
_EXTRAS: Final = {"conflictingFiles": "conflicting_files", "durableSha": "durable_sha", "baselineSha": "baseline_sha"}


class Told(GittrixError):
    """An error that a daemon told of, as it was raised there."""

    def __init__(self, error: Mapping[str, Any], shown: str) -> None:
        super().__init__(str(error["message"]))
        self.code = str(error["code"])  # type: ignore[misc]
        self.shown = shown
        for wire, value in error.items():
            if wire not in ("code", "message"):
                setattr(self, _EXTRAS.get(wire, wire), value)
        self.message = str(error["message"])


def shown(error: Exception) -> str:
    """An error for people."""
    return error.shown if isinstance(error, Told) else str(error)


def run(options: Namespace, arguments: Sequence[str]) -> Answer:
    """Run a command: by the daemon of its store, if there is one and the command is of a kind that it runs; here otherwise.

    Raises:
        GittrixError: whatever the command raises, or DaemonLost.
        Misuse: it is none.
    """
    daemon, directory = _daemon_for(options, arguments), _directory()
    if daemon is None or directory is None:
        return _directly(options)
    from pytest_gittrix.server.client import Client, Lost, Refused, Silent

    stdin = _stdin(options)  # before the greeting: whoever types it may take longer than a daemon keeps a connection that says nothing
    client = Client(daemon)
    try:
        client.greet()
        reply = client.command(arguments, directory, stdin)
    except Refused as problem:
        return _directly(options, "" if problem.code == "USAGE" else f"The daemon refuses the command ({problem}).", stdin)
    except Silent as problem:
        return _directly(options, f"The daemon does not answer ({problem}); working on the store directly.", stdin)
    except Lost as problem:
        if options.words in _CHANGE_NOTHING:
            return _directly(options, f"The daemon went away ({problem}); working on the store directly.")
        raise DaemonLost(
            f"The daemon went away while it ran the command: {problem}.",
            why="It may have been done, or not; done twice, it could do harm.",
            fix="Look how things stand (gittrix session list, gittrix session history), and run it again if it was not done.",
        ) from None
    finally:
        client.close()
    return _answer(reply)


def _answer(reply: Mapping[str, Any]) -> Answer:
    told = reply["answer"]
    if "error" in told:
        raise Told(told["error"], told["shown"])
    return decoded(told, reply["status"])


def _directly(options: Namespace, why: str = "", stdin: bytes | None = None) -> Answer:
    """Run a command here; ``stdin`` is what was read of standard input already."""
    if why:
        put_error(why)
    if stdin and options.words in _READS_STDIN:
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    answer: Answer = options.run(options)
    return answer


def _daemon_for(options: Namespace, arguments: Sequence[str]) -> DaemonFile | None:
    """The daemon that is to run a command, if any."""
    if options.words.partition(" ")[0] not in REMOTE or options.direct or os.environ.get(SWITCH) == "0":
        return None
    store = Path(options.store).absolute() if options.store else _home() / "sessions"
    home = store.parent
    if not (home / "daemon.json").exists() or _is_personal(options) or not all(map(_is_text, arguments)):
        return None
    from pytest_gittrix.server.daemon_file import found

    daemon = found(home)
    if daemon is None or os.path.realpath(daemon.store) != os.path.realpath(store) or daemon.clock != _clock():
        return None
    return daemon


def _is_personal(options: Namespace) -> bool:
    """Whether a command needs what only this process has: somebody to ask, a token, its own session, or a team file of its own."""
    from pytest_gittrix.commands.engine_context import has_person

    if options.words == "session show":
        return options.id is None
    if options.words not in _CHANGE_NOTHING and any(name.startswith(_FORGE) for name in os.environ):
        return True
    if options.words == "promote":
        return (options.strategy == "auto" and has_person(options)) or bool(options.forge_repo or options.forge_url)
    return getattr(options, "team", None) is not None


def _is_text(argument: str) -> bool:
    """Whether it can be sent: a name that is no UTF-8 has no place in JSON that everybody reads alike."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _directory() -> str | None:
    """Where the command is typed; None if that directory is gone, or if its name cannot be sent."""
    try:
        directory = os.getcwd()
    except OSError:
        return None
    return directory if _is_text(directory) else None


def _home() -> Path:
    home = os.environ.get("GITTRIX_HOME")
    return Path(home).absolute() if home else Path("~/.gittrix").expanduser()


def _clock() -> str | None:
    clock = os.environ.get(_CLOCK)
    return os.path.abspath(clock) if clock else None


def _stdin(options: Namespace) -> bytes | None:
    if options.words not in _READS_STDIN:
        return b""
    from pytest_gittrix.commands.engine_context import standard_input

    return None if sys.stdin is None else standard_input("what the daemon is to have")
