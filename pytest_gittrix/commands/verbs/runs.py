"""The verbs that run an agent's program with a model whose exchanges are kept: from the beginning, or another way from one of them."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import SESSION, Argument, arg, limit_of, verb
from pytest_gittrix.commands.output import CommandResult, message_of, put
from pytest_gittrix.commands.render import text_of
from pytest_gittrix.commands.values import duration
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.os_level.command import LEVELS

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.lineage.exchange_point import ExchangePoint
    from pytest_gittrix.engine.model_runs import AgentRun
    from pytest_gittrix.engine.user_session import UserSession

_MODEL: Final = "live, live:NAME, a tape (.jsonl) or a script (.py)"


def run_arguments(group: str = "") -> tuple[Argument, ...]:
    """The arguments of how a program is run."""
    return (
        arg("command", nargs="*", metavar="COMMAND", help="the agent's program and its arguments, behind --", group=group),
        arg("--home", metavar="DIR", help="files that the program's home begins with", group=group),
        arg("--readable", action="append", default=[], metavar="PATH", help="what the program may read; repeatable", group=group),
        arg("--network", action="append", default=[], metavar="WHAT", help="what it reaches beside the model; repeatable", group=group),
        arg("--confine", choices=LEVELS, default="auto", help="how the program is confined (%(default)s)", group=group),
        limit_of("of the program")._replace(group=group),
        arg("--timeout", type=duration, metavar="TIME", help="end the program after this time, such as 10m", group=group),
    )


@verb(
    SESSION,
    arg("--model", default="live", metavar="MODEL", help=f"who answers: {_MODEL} (%(default)s)"),
    *run_arguments(),
    examples=(
        'gittrix session run sess_V1St -- claude -p "Mend the sum in app.py."',
        "gittrix session run sess_V1St --model recorded.jsonl --home settings -- codex exec 'Mend it'",
    ),
    terminal_only=True,
)
def run(options: Namespace) -> CommandResult:
    """Run an agent's program in a session with a model, and keep what they say to each other."""
    with context.engine(options) as gittrix:
        return run_in(gittrix, gittrix.get_session(context.full_id(gittrix, options.id)), options)


@verb(
    SESSION,
    examples=("gittrix session tape sess_V1St > recorded.jsonl",),
    only_looks=True,
)
def tape(options: Namespace) -> CommandResult:
    """Print what an agent and its model said to each other as a tape; of ended sessions too."""
    from pytest_gittrix.engine.agents.exchanges import tape_of

    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        gittrix.store.load(id_)
        found = tape_of(gittrix.store.directory(id_), gittrix.store.log(id_).read())
    if not found.exchanges:
        raise InvalidInput(
            f"No exchange of session {id_} was kept.",
            why="A tape has what was said.",
            fix="Run the agent with `gittrix session run`, or in a test with gittrix_model.keep_content = True.",
        )
    return CommandResult({"id": id_, "exchanges": len(found.exchanges), "tape": found.text}, found.text)


def fork_and_run(gittrix: GitTrix, parent: str, options: Namespace) -> CommandResult:
    """Start a session in which a run of another one is repeated up to an exchange, and run the agent there.

    Args:
        gittrix: the engine.
        parent: the session whose run it is.
        options: those of ``session fork``.

    Raises:
        InvalidInput: there is no such exchange, or no program is named.
    """
    from pytest_gittrix.engine.lineage.exchange_point import ExchangePoint

    if options.files != "then" or options.summary is not None:
        raise InvalidInput(
            "--model does not go with --files or --summary.",
            why="The run begins with the files that it began with, and is repeated from there.",
            fix="Leave them out.",
        )
    point = ExchangePoint.of(gittrix.services.recorder(parent), options.at)
    command = command_of(options)
    child = gittrix.fork(parent, point.begin, task=options.task)
    return run_in(gittrix, child, options, command=command, parent=parent, point=point)


def command_of(options: Namespace) -> list[str]:
    """The program that is to run, with whole paths. Raises InvalidInput: none is named, or there is none of this name."""
    from pytest_gittrix.engine.agents.start import find_program

    if context.remote_caller.get() is not None:
        raise InvalidInput("A daemon runs no program for somebody else.", fix="Run it on the store directly: --no-daemon.")
    if not options.command:
        raise InvalidInput(
            "No program is named.",
            why="An agent's program asks the model.",
            fix="Name it behind --: gittrix session run ID -- claude -p TASK",
        )
    if options.home is not None and not os.path.isdir(options.home):
        raise InvalidInput(f"There is no directory {options.home}.", why="The program's home begins with its files.")
    return [os.path.abspath(find_program(options.command[0], os.getcwd(), os.environ.get("PATH", os.defpath))), *options.command[1:]]


def run_in(
    gittrix: GitTrix,
    session: UserSession,
    options: Namespace,
    *,
    command: list[str] | None = None,
    parent: str | None = None,
    point: ExchangePoint | None = None,
) -> CommandResult:
    """Run the program in a session; the exit status is the program's, or 1 if the exchanges were not as they should be."""
    from pytest_gittrix.confine.limits import check_limits
    from pytest_gittrix.engine.model_runs import ModelRun

    words = command_of(options) if command is None else command
    settings = {
        "confine": options.confine,
        "limits": check_limits(options.limit or None),
        "readable": [words[0], *map(os.path.abspath, options.readable)],
    }
    home = None if options.home is None else Path(options.home).absolute()
    lenient = bool(getattr(options, "lenient", False))
    made = ModelRun(gittrix.services, session, options.model, parent, point, lenient, home, settings, options.network)
    quiet = options.json
    try:
        done = made.run(
            words,
            out=None if quiet else put,
            err=None if quiet else _put_error,
            timeout=None if options.timeout is None else options.timeout.total_seconds(),
        )
    except GittrixError:  # it was not started
        if point is not None:
            session.discard(force=True)
        raise
    return _result(session, done, parent, point)


def _without_conversation(problem: GittrixError) -> GittrixError:
    """The error without all that was said, which the session has."""
    return problem.__cause__ if isinstance(problem.__cause__, GittrixError) else problem


def _put_error(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


def _result(session: UserSession, done: AgentRun, parent: str | None, point: ExchangePoint | None) -> CommandResult:
    from pytest_gittrix.engine.agents.programs import timeout_code

    status = timeout_code(done.ended)
    touched = [] if done.ended.ended else session.touched_files()
    data: dict[str, Any] = {
        "id": session.id,
        "workspace": str(session.workspace_path),
        "status": status,
        "exchanges": done.exchanges,
        "replayed": done.replayed,
        "touched": touched,
        "problem": None if done.problem is None else done.problem.fact,
    }
    data |= {"parent": parent, "at": point.seq} if point is not None else {}
    notes = [
        f"session {session.id}: {done.exchanges} exchange{'s' * (done.exchanges != 1)}"
        + (f", {done.replayed} of them as recorded" if point is not None else "")
    ]
    notes += [] if done.problem is None else [message_of(_without_conversation(done.problem))]
    notes += [f"to look at it: gittrix session page {session.id}"]
    return CommandResult(data, text_of([]), tuple(notes), status=status or int(done.problem is not None))
