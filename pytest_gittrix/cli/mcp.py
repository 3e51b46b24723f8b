"""``gittrix mcp``: a session for an agent that speaks the Model Context Protocol, on standard input and output.

Standard output carries the protocol; messages for people go to standard error.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import OPTIONAL_SESSION, WORKSPACE, arg, verb
from pytest_gittrix.commands.output import CommandResult, put_error
from pytest_gittrix.commands.values import history
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.command import LEVELS

if TYPE_CHECKING:
    from pytest_gittrix.engine.agents.programs import Programs
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.user_session import UserSession


@verb(
    OPTIONAL_SESSION,
    arg("-t", "--task", metavar="TEXT", help="start a session for this, instead of naming one"),
    arg("-d", "--durable", metavar="PATH", help="its durable repository; by default the one around the current directory"),
    arg("-b", "--branch", metavar="NAME", help="its durable branch; by default the one the repository is on"),
    WORKSPACE,
    arg("--history", type=history, default="none", metavar="none|N|full", help="how much of the past it may see (%(default)s)"),
    arg(
        "--confine",
        choices=LEVELS,
        default="auto",
        help="how its programs are confined; with auto, if nothing can confine them, the tool run is missing (%(default)s)",
    ),
    examples=(
        "gittrix mcp sess_V1St",
        'gittrix mcp --task "fix the bug" --durable ~/project',
        'gittrix mcp -t "fix the bug" -d ~/project --confine jail',
    ),
)
def mcp(options: argparse.Namespace) -> CommandResult:
    """Serve one session until the client goes away."""
    from pytest_gittrix.extras import required
    from pytest_gittrix.mcp.server import serve
    from pytest_gittrix.mcp.tools import SessionTools

    if (options.id is None) == (options.task is None):
        raise InvalidInput(
            "No session is named, and none is to be started." if options.id is None else "A session is named, and one is to be started.",
            why="A server is for one session.",
            fix="Give an id, or --task; not both.",
        )
    required("mcp.server.mcpserver", "mcp")
    with _engine(options) as gittrix:
        session = _session(gittrix, options)
        programs, note = _programs(session, gittrix, options.confine)
        if not options.json:
            put_error(f"serving {session.id}\nworkspace {session.workspace_path or 'has no files'}; {note}")
        try:
            serve(SessionTools(session.for_agent(), gittrix.store.root, programs))
        finally:
            if programs is not None:
                programs.close()
    return CommandResult({"id": session.id})


def _engine(options: argparse.Namespace) -> Any:
    if options.task is None:
        return context.engine(options)
    from pytest_gittrix.backends.protocol import registered_ephemeral

    ephemeral = registered_ephemeral(options.workspace, options.history)
    return context.engine(options, context.durable_named(options.durable, options.branch), ephemeral)


def _session(gittrix: GitTrix, options: argparse.Namespace) -> UserSession:
    if options.task is None:
        return gittrix.get_session(context.full_id(gittrix, options.id))
    return gittrix.start_session(options.task)


def _programs(session: UserSession, gittrix: GitTrix, level: str) -> tuple[Programs | None, str]:
    """The runner of programs, if any, and a note about it. Unconfined programs need ``--confine off``: they could promote by themselves."""
    from pytest_gittrix.engine.agents.programs import Programs

    try:
        programs = Programs(session.for_agent(), gittrix.clock, level)
    except CapabilityMissing as error:
        if level != "auto":
            raise
        return None, f"no tool runs programs: {error.command_message()}".replace("\n", " ")
    return programs, f"programs run at level {programs.confinement.level}"
