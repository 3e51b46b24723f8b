"""Agents at work in sessions, confined: ``gittrix acp`` serves an editor, and ``gittrix agent`` runs Claude Code or tells a story.

Standard output belongs to the editor, or to the agent's program; messages for people go to standard error.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import Argument, arg, limit_of, verb
from pytest_gittrix.commands.output import CommandResult, put_error
from pytest_gittrix.commands.render import text_of
from pytest_gittrix.commands.values import number
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.extras import needs
from pytest_gittrix.os_level.command import LEVELS
from pytest_gittrix.safe_text import visible_line

if TYPE_CHECKING:
    from pytest_gittrix.confine.command_line import Confinement
    from pytest_gittrix.engine.agents.agent_session import AgentSession
    from pytest_gittrix.engine.agents.programs import Programs

_TASK = "a conversation with Claude Code"
_SHOWN = 20


def _confinement(reached: str) -> tuple[Argument, ...]:
    return (
        arg("--readable", action="append", default=[], metavar="PATH", help="a file or directory that the agent may read; repeatable"),
        arg("--network", action="append", default=[], metavar="WHAT", help=f"what the agent reaches: {reached}; repeatable"),
        arg("--confine", choices=LEVELS, default="auto", help="how the agent is confined (%(default)s)"),
        limit_of("of the agent"),
    )


@verb(
    arg("program", nargs="?", choices=("claude",), metavar="claude", help="run Claude Code in a session, in this terminal"),
    arg("arguments", nargs="*", metavar="ARGUMENT", help="its own arguments, behind --"),
    arg("--session", metavar="ID", help="the session; by default a new one of the repository around the current directory"),
    arg("--demo", action="store_true", help="show a scripted agent of the Agent Client Protocol at work instead"),
    arg("--times", type=number, default=1, metavar="N", help="repeat the demo N times, in one process (%(default)s)"),
    *_confinement("model:anthropic by default, or host:port"),
    examples=(
        "gittrix agent claude",
        'gittrix agent claude -- -p "Mend the sum in app.py." --permission-mode acceptEdits',
        "gittrix agent claude --session sess_V1St --limit memory=4GB -- --continue",
        "gittrix agent --demo --times 100",
    ),
)
def agent(options: argparse.Namespace) -> CommandResult:
    """Run the agent that was named, or the story."""
    if options.demo != (options.program is None):
        raise InvalidInput(
            "No agent is named." if options.program is None else "`claude` and --demo exclude each other.",
            fix="Give `claude` or --demo.",
        )
    return _demo(options) if options.demo else _claude(options)


def _claude(options: argparse.Namespace) -> CommandResult:
    """Run Claude Code to its end, and say what it leaves to its user; the exit status is that of the program."""
    from pytest_gittrix.confine.limits import check_limits
    from pytest_gittrix.integrations.claude_program import run_claude

    durable = context.local_durable(None, None) if options.session is None else None
    with context.engine(options, durable) as gittrix:
        session = gittrix.start_session(_TASK) if durable else gittrix.get_session(context.full_id(gittrix, options.session))
        try:
            status = run_claude(
                session.for_agent(),
                options.arguments,
                confine=options.confine,
                network=options.network or ("model:anthropic",),
                limits=check_limits(options.limit or None),
                readable=[*map(os.path.abspath, options.readable)],
            )
        except GittrixError:  # it was not started
            if durable:
                session.discard()
            raise
        touched = session.touched_files()
    more = [] if len(touched) <= _SHOWN else [f"and {len(touched) - _SHOWN} more"]
    notes = (
        f"{session.id} differs in {', '.join([*map(visible_line, touched[:_SHOWN]), *more]) or 'nothing'}",
        *([f"to look at it: gittrix session diff {session.id}", f"to promote it: gittrix promote {session.id}"] if touched else []),
        f"to go on: gittrix agent claude --session {session.id}",
    )
    shown = status if status >= 0 else 128 - status  # as a shell gives a signal
    return CommandResult({"id": session.id, "status": shown, "touched": touched}, notes=notes, status=shown)


def _demo(options: argparse.Namespace) -> CommandResult:
    """Tell the story, and count what it leaves; exit status 1 if that is anything."""
    with needs("acp"):
        from pytest_gittrix.testing.acp_story import run_stories

    story: list[str] = []
    left = run_stories(options.times, confine=options.confine, tell=story.append)
    shown = [*(story if options.times == 1 else []), f"{options.times} {'time' if options.times == 1 else 'times'}, left behind: {left}."]
    return CommandResult({"times": options.times, "left": asdict(left), "story": story}, text_of(shown), status=1 if left else 0)


@verb(
    arg("command", nargs="+", metavar="COMMAND", help="the agent that works in each session, behind --; it speaks the protocol"),
    arg("--workspace", choices=("clone", "copy", "worktree"), default="clone", help="what sessions work in (%(default)s)"),
    *_confinement("model:anthropic or host:port"),
    examples=("gittrix acp -- my-agent", "gittrix acp --network model:anthropic --readable ~/.npm -- my-agent --acp"),
)
def acp(options: argparse.Namespace) -> CommandResult:
    """Serve an editor until it goes away."""
    import asyncio

    from pytest_gittrix.backends.local import LocalEphemeral

    with needs("acp"):
        from pytest_gittrix.acp.editor import EditorAgent, serve
    confined, command = _confined(options), _command(options.command)
    with context.engine(options, ephemeral=LocalEphemeral(options.workspace)) as gittrix:
        if not options.json:
            put_error(f"serving an editor; sessions are in {gittrix.store.root}, agents run at level {confined.level}")
        asyncio.run(serve(EditorAgent(gittrix, command, _repository, partial(_programs, options, command))))
    return CommandResult({})


def _command(words: list[str]) -> list[str]:
    """The agent's command line with whole paths, since it runs elsewhere. Raises InvalidInput if there is no such program."""
    from pytest_gittrix.engine.agents.start import find_program

    program = find_program(words[0], os.getcwd(), os.environ.get("PATH", os.defpath))
    return [os.path.abspath(program), *(os.path.abspath(word) if "/" in word and os.path.isfile(word) else word for word in words[1:])]


def _programs(options: argparse.Namespace, command: list[str], session: AgentSession) -> Programs:
    """Runs the agent and its terminals, which may read the agent's own files."""
    from pytest_gittrix.confine.limits import check_limits

    return session.programs(
        confine=options.confine,
        network=options.network or "none",
        limits=check_limits(options.limit or None),
        readable=[*(word for word in command if os.path.isabs(word) and os.path.isfile(word)), *map(os.path.abspath, options.readable)],
    )


def _repository(directory: str) -> tuple[str, str]:
    """The repository around a directory, and the branch that it is on. Raises AdapterUnavailable if there is none."""
    durable = context.local_durable(directory, None)
    durable.close()
    return durable.path, durable.branch


def _confined(options: argparse.Namespace) -> Confinement:
    """How agents are confined. Raises ConfinementMissing if nothing does: they could promote by themselves."""
    from pytest_gittrix.confine.levels import confinement

    return confinement(options.confine, options.network or "none", options.limit or None)
