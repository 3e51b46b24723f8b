"""The verbs for a session among others: its identity, its record in another system's terms, its handoff and its forks."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.find_verbs import record_in, view_argument
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.render import facts_text, info_data, info_facts, text_of
from pytest_gittrix.commands.values import fact, number
from pytest_gittrix.errors import InvalidInput, SessionNotFound

if TYPE_CHECKING:
    from argparse import _ActionsContainer

    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.user_session import SessionInfo

FILES = ("then", "now", "baseline")
IDENTITY = ("agent", "rig", "role", "work_unit")
"""The parts of a session's identity that have a flag; ``identify`` takes all parts."""
EXAMPLES = {
    "show": ["gittrix session show sess_V1St", "gittrix session show sess_V1St --as gastown --json", "gittrix session show --as pixir"],
    "handoff": ["gittrix session handoff sess_V1St", "gittrix session handoff sess_V1St --task 'the second half' --agent town/crew/ada"],
    "fork": ["gittrix session fork sess_V1St", "gittrix session fork sess_V1St --at 12 --summarize --files now"],
    "identify": ["gittrix session identify sess_V1St agent=town/crew/ada work_unit=td-7", "gittrix session identify sess_V1St role="],
}


def arguments(add: Callable[..., ArgumentParser]) -> None:
    """Declare the verbs; ``add`` makes one of a name, a command and a sentence."""
    showing = add("show", show, "show a session in the terms of another system; ended ones too")
    showing.add_argument("id", nargs="?", metavar="ID", help="the session's id, or enough of its beginning; this process's by default")
    view_argument(showing)
    handing = add("handoff", handoff, "end a session and go on in a new one, with its workspace; prints as start", of_session=True)
    handing.add_argument("--task", metavar="TEXT", help="what the new one is for; the same by default")
    identity_arguments(handing)
    forking = add("fork", fork, "start a session that begins as another one was; prints as start", of_session=True)
    forking.add_argument("--at", type=number, metavar="SEQ", help="after this event of it; the last by default")
    left_out = forking.add_mutually_exclusive_group()
    left_out.add_argument("--summary", metavar="TEXT", help="a summary of the events after that one")
    left_out.add_argument("--summarize", dest="summary", action="store_true", default=None, help="the same, written by counting the events")
    forking.add_argument("--files", choices=FILES, default="then", help="which files it begins with (%(default)s)")
    forking.add_argument("--task", metavar="TEXT", help="what the new one is for; the same by default")
    add("identify", identify, "replace the agent, the work unit or other identity of a session", of_session=True).add_argument(
        "facts",
        nargs="+",
        type=fact,
        metavar="NAME=VALUE",
        help="agent, rig, role, work_unit and so on; without a value the entry is removed",
    )


def identity_arguments(verb: _ActionsContainer) -> None:
    """Declare the flags for a session's identity: who works in it, and on what."""
    for name in IDENTITY:
        what = f"the {name.replace('_', ' ')}{' (Gas Town)' if name == 'rig' else ''}"
        verb.add_argument(f"--{name.replace('_', '-')}", metavar="NAME", help=what)


def identity_in(options: Namespace) -> dict[str, Any]:
    """The identity that was given by flags, as keyword arguments."""
    return {name: value for name in IDENTITY if (value := getattr(options, name)) is not None}


def show(options: Namespace) -> CommandResult:
    """A session's record in the terms of GitTrix or another system; without an id, of the session that this process belongs to."""
    with context.engine(options) as gittrix:
        id_ = _own_id(gittrix) if options.id is None else context.full_id(gittrix, options.id)
        if options.view == "gittrix":
            wire = gittrix.info(id_).to_wire()
            return CommandResult(info_data(wire), facts_text(info_facts(wire, gittrix.clock.now())))
        record = record_in(gittrix, id_, options.view)
    return CommandResult(record, facts_text(record.items()))


def handoff(options: Namespace) -> CommandResult:
    """End a session, and start its successor in the same workspace (Gas Town)."""
    with context.session(options) as session:
        return started(session.handoff(options.task, **identity_in(options)).info())


def fork(options: Namespace) -> CommandResult:
    """Start a session from an event of another one, which is only read (Pixir)."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        forked = gittrix.fork(id_, options.at, task=options.task, summary=options.summary, files=options.files)
        left_out = [line for event in forked.history(["workspace.kept"]) for line in event.data.get("left_out", ())]
        return started(forked.info())._replace(notes=tuple(f"Not in this session: {line}." for line in left_out))


def identify(options: Namespace) -> CommandResult:
    """Change a session's identity: who works in it, and on what."""
    facts = dict(options.facts)
    if len(facts) < len(options.facts):
        raise InvalidInput("A name is given twice.", why="One of the two values would be lost.", fix="Give each name once.")
    with context.session(options) as session:
        session.identify(**facts)
        one = session.info()
    return CommandResult(info_data(one.to_wire()), facts_text((name.replace("_", " "), value) for name, value in one.identity.items()))


def started(one: SessionInfo) -> CommandResult:
    """The result of starting a session; people get its id and its workspace, a line each, for a shell to split."""
    return CommandResult(info_data(one.to_wire()), text_of([one.session_id, one.workspace_path or ""]))


def _own_id(gittrix: GitTrix) -> str:
    """The id of the session that this process belongs to, from its environment, standard input or working directory."""
    from pytest_gittrix.engine.agents.runtime_id import FILE, VARIABLES, resolve

    def nobody() -> NoReturn:
        raise SessionNotFound(
            "No session was named, and this process does not know which one it belongs to.",
            why=f"The command searched {', '.join(VARIABLES)}, standard input and {FILE}.",
            fix="Give its id; `gittrix session list` shows all sessions.",
        )

    found = resolve(os.environ, stdin=sys.stdin, directory=os.curdir, generate=nobody)
    if not gittrix.store.directory(found.id).is_dir():
        raise SessionNotFound(
            f"There is no session {found.id!r} in {gittrix.store.root}.",
            why=f"This process belongs to it, according to {found.source}.",
            fix="Give the id of another, or name the store it is in with --store.",
        )
    return found.id
