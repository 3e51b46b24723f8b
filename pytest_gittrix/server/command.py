"""Running a command line of ``gittrix`` for another process, on the daemon's engine: the same functions, and so the same results.

The result goes back as it is (data, tables, diffs, bytes), and the caller prints it, because only the caller knows its terminal.
"""

from __future__ import annotations

import base64
import binascii
from argparse import Namespace
from contextvars import copy_context
from typing import Any

from starlette.responses import Response

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.output import error_data, message_of
from pytest_gittrix.commands.parser import Misuse, parser
from pytest_gittrix.commands.verbs.catalogue import COMMANDS
from pytest_gittrix.commands.wire import encode_result
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.server.responses import AsciiResponse
from pytest_gittrix.server.schema import CommandRequest
from pytest_gittrix.server.state import Daemon


class _Usage(InvalidInput):
    """The command line cannot be parsed."""

    code = "USAGE"


def run_command(daemon: Daemon, body: CommandRequest) -> Response:
    """Run a command, and answer with its result.

    Raises:
        InvalidInput: it is no command, or one that cannot be run for another process.
    """
    options = _parsed(body.argv)
    caller = context.RemoteCaller(
        body.cwd,
        _stdin(body.stdin_base64),
        daemon.engine,
        daemon.members,
        daemon.orchestrator,
        daemon.team,
        body.runtime_session_id or "",
    )
    return AsciiResponse(copy_context().run(_run, caller, options))


def _run(caller: context.RemoteCaller, options: Namespace) -> dict[str, Any]:
    context.remote_caller.set(caller)
    try:
        result = options.run(options)
    except Exception as error:  # noqa: BLE001  (the caller gets every error as the command line shows it)
        answer = {"error": error_data(error, of_command=True), "shown": message_of(error)}
        return {"status": options.verb.failure, "answer": answer}
    return {"status": result.status, "answer": encode_result(result)}


def _parsed(argv: list[str]) -> Namespace:
    try:
        options = parser(COMMANDS, argv).parse_args(argv)
    except Misuse as misuse:
        raise _Usage(f"That is no command: {misuse}") from None
    except SystemExit:  # --help and --version have been printed here, and not at the caller's terminal
        raise InvalidInput("Help is given where it is asked for.") from None
    if options.verb.is_of_own_session(options):
        raise InvalidInput(
            f"`gittrix session {options.verb.name}` needs the id of a session here.",
            why="Only the process that sent the command knows which session it belongs to.",
            fix="Name the session.",
        )
    if options.verb.terminal_only:
        raise InvalidInput("A daemon does not run this command.", why="It needs the terminal of the caller.", fix="Run it there.")
    return options


def _stdin(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput("stdin_base64 is not base64.", fix="Omit it when standard input is closed.") from None
