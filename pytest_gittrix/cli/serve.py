"""``gittrix serve``: the daemon, in the foreground until a signal ends it."""

from __future__ import annotations

import os
import sys
import threading
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gittrix.commands.declaration import TEAM, arg, verb
from pytest_gittrix.commands.output import CommandResult, put, put_json
from pytest_gittrix.commands.render import facts_text

if TYPE_CHECKING:
    from pytest_gittrix.commands.team_file import Team
    from pytest_gittrix.server.daemon_file import DaemonFile

_PORT: Final = 8484
_LARGEST: Final = 65535


def port(text: str) -> int:
    """Read a port."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) <= _LARGEST):
        raise ArgumentTypeError(f"{text!r} is no port: write a number from 0 to {_LARGEST}.")
    return int(text)


@verb(
    arg("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (%(default)s); beyond loopback only with a token"),
    arg("--port", type=port, default=_PORT, metavar="N", help="at which port (%(default)s); 0 takes one that is free"),
    arg("--token-file", metavar="FILE", help="a file with the token that requests must carry, readable by you alone"),
    TEAM,
    examples=(
        "gittrix serve",
        "gittrix serve --port 0 --json",
        "gittrix serve --team ~/blue.toml --host 0.0.0.0 --token-file ~/.gittrix/token",
    ),
)
def serve(options: Namespace) -> CommandResult:
    """Serve until a signal, and print the address as soon as the daemon listens."""
    from pytest_gittrix.commands.engine_context import store_of
    from pytest_gittrix.extras import needs

    with needs("serve"):
        from pytest_gittrix.server.run import Serving, Settings

    settings = Settings(
        host=options.host,
        port=options.port,
        store=store_of(options),
        team=None if options.team is None else Path(options.team),
        token_file=None if options.token_file is None else Path(options.token_file),
    )

    def listening(file: DaemonFile) -> None:
        if options.json:
            put_json({"ok": True, "data": data_of(file)})
        else:
            put(facts_text([("listens at", address_of(file)), ("store", file.store), *_managed(serving.daemon.team)]).encode())

    serving = Serving(settings, listening=listening)
    serving.run()
    _exit_if_threads_are_left()
    return CommandResult(None, printed=True)


def data_of(file: DaemonFile) -> dict[str, object]:
    """A daemon's data for programs, without its key, which only its file has."""
    return {
        "host": file.host,
        "port": file.port,
        "pid": file.pid,
        "url": address_of(file),
        "team": file.team,
        "store": file.store,
        "startedAt": file.started_at,
        "tokenFile": file.token_file,
    }


def address_of(file: DaemonFile) -> str:
    """The address of a daemon."""
    from pytest_gittrix.server.daemon_file import at

    return f"http://{at(file.host, file.port)}"


def _managed(team: Team) -> list[tuple[str, object]]:
    return [
        ("team", team.team),
        ("members", ", ".join(team.members)),
        ("repositories", ", ".join(one.name for one in team.repositories)),
        ("projects", ", ".join(one.id for one in team.projects)),
    ]


def _exit_if_threads_are_left() -> None:
    """End the process even if a request has not finished in time: the interpreter would wait for its thread for ever."""
    if any(not thread.daemon and thread is not threading.main_thread() for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
