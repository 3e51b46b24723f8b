"""Running a command line of ``gittrix`` for somebody else, on the daemon's engine: the same functions, and so the same answers.

The answer goes back as what it is (data, tables, diffs, bytes) and is put out by who asked, because only they know their terminal. It must
not know which commands there are: who asks says a command line, and the parser knows the rest.
"""

from __future__ import annotations

import base64
import binascii
from argparse import Namespace
from contextvars import copy_context
from typing import Any, Final

from starlette.responses import Response

from pytest_gittrix.commands import engine_context as on
from pytest_gittrix.commands.output import FAILED, error_data
from pytest_gittrix.commands.parser import Misuse, parser
from pytest_gittrix.commands.wire import encoded
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.server.answers import Ascii
from pytest_gittrix.server.schema import Command
from pytest_gittrix.server.state import Daemon

_OWN_ID: Final = "session show"


class _Usage(InvalidInput):
    """The command line is none."""

    code = "USAGE"


def run_command(daemon: Daemon, asked: Command) -> Response:
    """Run a command, and answer with what it came to.

    Raises:
        InvalidInput: it is no command, or none that can be run for somebody else.
    """
    options = _parsed(asked.argv)
    who = on.Caller(asked.cwd, _stdin(asked.stdin_base64), daemon.engine, daemon.members, daemon.orchestrator, daemon.team)
    return Ascii(copy_context().run(_run, who, options))


def _run(who: on.Caller, options: Namespace) -> dict[str, Any]:
    on.caller.set(who)
    try:
        answer = options.run(options)
    except Misuse as misuse:
        raise _Usage(str(misuse)) from None
    except Exception as error:  # noqa: BLE001  (whatever it is, who asked is told as the command line tells it)
        known = isinstance(error, GittrixError)
        shown = str(error) if known else f"{type(error).__name__}: {error}"
        return {"status": getattr(options, "failure", FAILED), "answer": {"error": error_data(error), "shown": shown}}
    return {"status": answer.status, "answer": encoded(answer)}


def _parsed(argv: list[str]) -> Namespace:
    try:
        options = parser().parse_args(argv)
    except Misuse as misuse:
        raise _Usage(f"That is no command: {misuse}") from None
    except SystemExit:  # --help and --version have been printed here, where nobody reads it
        raise InvalidInput("Help is given where it is asked for.") from None
    if options.words == _OWN_ID and options.id is None:
        raise InvalidInput(
            f"`gittrix {options.words}` is not run for somebody else without an id.",
            why="Which session is theirs can be told only where they are.",
            fix="Name the session.",
        )
    return options


def _stdin(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("stdin_base64 is not base64.", fix="Leave it away if standard input is closed.") from None
