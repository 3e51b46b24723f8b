"""The entry point of ``gittrix``: parse the command line, run one command, print its result.

Exit status 0 is done, 1 refused or failed, 2 misused, 130 interrupted. ``gittrix --help`` loads no engine: commands do that when they run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pytest_gittrix.cli.quick_look import quick_look
from pytest_gittrix.commands.output import FAILED, OutputLost, error_data, message_of, print_result, put_error, put_json
from pytest_gittrix.errors import GittrixError

MISUSED, INTERRUPTED = 2, 130
DEBUG_VARIABLE = "GITTRIX_DEBUG"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after the program's name; ``sys.argv[1:]`` by default.

    Returns:
        The exit status. Nothing is raised: an error is printed to standard error, or in the envelope with ``--json``.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except SystemExit as end:  # --help and --version
        return int(end.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  (the last line of defence: people get a sentence, never a traceback)
        return _failed(error, as_json=_wants_json(arguments))


def _run(arguments: list[str]) -> int:
    if (seen := quick_look(arguments)) is not None:
        result, as_json = seen
        print_result(result, as_json=as_json)
        return result.status
    from pytest_gittrix.cli import daemon_proxy
    from pytest_gittrix.cli.verbs import command_line
    from pytest_gittrix.commands.parser import Misuse

    try:
        options = command_line(arguments).parse_args(arguments or ["--help"])
        try:
            result = daemon_proxy.run(options, arguments)
        except GittrixError as error:
            return _failed(error, as_json=options.json, status=options.verb.failure)
    except Misuse as misuse:
        if _wants_json(arguments):
            put_json({"ok": False, "error": {"code": "USAGE", "message": str(misuse)}})
        else:
            put_error(f"{misuse}\n{misuse.usage}")
        return MISUSED
    print_result(result, as_json=options.json)
    return result.status


def _failed(error: Exception, *, as_json: bool, status: int = FAILED) -> int:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        import traceback

        traceback.print_exception(error)
    if as_json and not isinstance(error, OutputLost):
        try:
            put_json({"ok": False, "error": error_data(error, of_command=True)})
            return status
        except OutputLost as lost:
            error = lost
    # An error that a daemon reported has the text that the daemon would have printed.
    reported = getattr(error, "text", None) if isinstance(error, GittrixError) else None
    put_error(reported or message_of(error))
    return status


def _wants_json(arguments: list[str]) -> bool:
    """Whether ``--json`` is given, without parsing: a command line that cannot be parsed gets an envelope too."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return not {"--json", "-j"}.isdisjoint(options)


if __name__ == "__main__":
    sys.exit(main())
