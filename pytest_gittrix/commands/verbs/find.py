"""The verbs that find sessions: ``list``, and Gas Town's ``find`` and ``chain``, and Pixir's ``tree``.

They change nothing, but that without a daemon a list of orchestrated sessions polls those first.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import SESSION, arg, verb
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.render import NO_SESSIONS, gastown_table, notes_of, overlap_table, record_table, session_table, text_of
from pytest_gittrix.commands.values import generations, moment, number
from pytest_gittrix.errors import GittrixError, SessionNotFound
from pytest_gittrix.extensions import OURS, Names

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.queries import Node
    from pytest_gittrix.record.state.records import SessionMetadata

STATES = ("active", "promoted", "discarded", "expired")
OUTCOMES = ("done", "crash", "killed", "handoff")

_FOUND = 20
_GENERATIONS = 4
# The options that select by Gas Town's query, which lists the newest first.
_QUERY_OPTIONS = ("agent", "rig", "work_unit", "outcome", "since", "until", "limit")


AS_SYSTEM = arg(
    "--as",
    dest="view",
    choices=Names("views"),
    metavar=f"{{{','.join(OURS['views'])}}}",
    default="gittrix",
    help="show the fields of this system (gittrix)",  # argparse of Python 3.14 reads all choices for a help with a percent sign
)
_RIG = arg("--rig", metavar="R", help="only sessions of this rig")
_SINCE = arg("--since", type=moment, metavar="TIME", help="only sessions started then or later: 24h ago, or an instant")


@verb(
    arg("-s", "--status", choices=(*STATES, "all"), help="only sessions in this state", by_place=True),
    arg("-d", "--durable", metavar="PATH", help="only sessions of this repository"),
    arg("--agent", metavar="A", help="only sessions of this agent"),
    _RIG,
    arg("--work-unit", metavar="W", help="only sessions of this work unit"),
    _SINCE,
    arg("--until", type=moment, metavar="TIME", help="only sessions started before: 24h ago, or an instant"),
    arg("--outcome", choices=OUTCOMES, help="only sessions with this result"),
    arg("-n", "--limit", type=number, metavar="N", help="how many at most; 0 for all"),
    arg("--beside", action="store_true", help="look into each workspace for work that is in no file, such as a stash"),
    AS_SYSTEM,
    name="list",
    examples=(
        "gittrix session list",
        "gittrix session list --status active",
        "gittrix session list --as gastown --rig gastown --since 1h",
        "gittrix session list -d . --json",
    ),
    aliases=("ls",),
    only_looks=True,
)
def list_sessions(options: Namespace) -> CommandResult:
    """List sessions."""
    with context.engine(options) as gittrix:
        if options.view == "orchestrator":
            context.poll_projects(gittrix, options)
        found, records = _found(gittrix, options)
        problems, now = gittrix.problems(), gittrix.clock.now()
        lines_of = _beside(gittrix, found or records) if options.beside else {}
    if not records:
        return CommandResult([], NO_SESSIONS, notes_of(problems))
    notes = (*notes_of(problems), *(f"Not part of {id_}: {line}." for id_, lines in lines_of.items() for line in lines))
    if options.view == "gastown":
        table = gastown_table(found, records, now, {})
    else:
        records = [record | {"beside": lines_of[record["id"]]} if record.get("id") in lines_of else record for record in records]
        table = (
            session_table(records, now, {record["id"]: record["life"]["state"] for record in records if "life" in record})
            if options.view == "gittrix"
            else record_table(records, options.view, now)
        )
    return CommandResult(records, table, notes)


@verb(
    arg("--look", action="store_true", help="look at every file of each workspace first, for what programs changed there"),
    examples=("gittrix session overlaps", "gittrix session overlaps --look --json"),
    only_looks=True,
)
def overlaps(options: Namespace) -> CommandResult:
    """Show which live sessions touch the same paths, or what durable changed."""
    with context.engine(options) as gittrix:
        found = gittrix.overlaps(look=options.look)
    problems = tuple(f"{one.id}: {one.problem}" for one in found if one.problem)
    return CommandResult([one.to_wire() for one in found], overlap_table(found) if found else NO_SESSIONS, problems)


@verb(
    arg("--agent", required=True, metavar="A", help="whose"),
    _RIG,
    _SINCE,
    arg("-n", "--limit", type=number, default=_FOUND, metavar="N", help="how many at most (%(default)s); 0 for all"),
    examples=("gittrix session find --agent gastown/polecats/Toast --since 24h",),
    defaults={**dict.fromkeys(("status", "durable", "work_unit", "outcome", "until")), "view": "gastown", "beside": False},
    only_looks=True,
)
def find(options: Namespace) -> CommandResult:
    """Find the sessions of an agent, newest first."""
    return list_sessions(options)


@verb(
    arg("of", metavar="ID", help="the id of a lineage or of one of its sessions, or a work unit"),
    examples=("gittrix session chain td-7", "gittrix session chain sess_V1StGXR8Z5jd --json"),
    only_looks=True,
)
def chain(options: Namespace) -> CommandResult:
    """Show a lineage, oldest first."""
    with context.engine(options) as gittrix:
        found = _chain_of(gittrix, options.of)
        records = [record_in(gittrix, one.id, "gastown") for one in found]
        now = gittrix.clock.now()
    chains: dict[str, list[tuple[SessionMetadata, dict[str, Any]]]] = {}
    for one, record in zip(found, records, strict=True):
        chains.setdefault(record["chain_id"], []).append((one, record))
    drawn = [pair for pairs in chains.values() for pair in pairs]
    marks = {one.id: mark for pairs in chains.values() for (one, _), mark in zip(pairs, _strokes(len(pairs)), strict=True)}
    table = gastown_table([one for one, _ in drawn], [record for _, record in drawn], now, marks)
    return CommandResult(records, table)


@verb(
    SESSION,
    arg("--depth", type=generations, default=_GENERATIONS, metavar="N", help="how many generations below it (%(default)s)"),
    examples=("gittrix session tree sess_V1St", "gittrix session tree sess_V1St --depth 10"),
    only_looks=True,
)
def tree(options: Namespace) -> CommandResult:
    """Show a session with its handoffs, successors and forks."""
    with context.engine(options) as gittrix:
        root = gittrix.tree(context.full_id(gittrix, options.id), depth=options.depth)
    return CommandResult(root.to_wire(), text_of(_branches(root)))


def record_in(gittrix: GitTrix, id_: str, name: str) -> dict[str, Any]:
    """A session's record in the schema of a system. A session of a TypeScript store is shown as if it already had a log."""
    return gittrix.view(id_, name)


def before(now: datetime, then: timedelta | datetime) -> datetime:
    """An instant, or the one that is a duration before ``now``; the earliest instant there is, if that would be earlier."""
    if isinstance(then, datetime):
        return then
    try:
        return now - then
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _found(gittrix: GitTrix, options: Namespace) -> tuple[list[SessionMetadata], list[dict[str, Any]]]:
    """The sessions, and the record of each in the terms that were asked for; the records alone where nothing else is needed."""
    state = None if options.status in (None, "all") else options.status
    exact = state is None and options.durable is None
    if all(getattr(options, name) is None for name in _QUERY_OPTIONS):
        if options.durable is None and options.view == "gittrix" and not options.beside:
            return [], gittrix.records.documents(state)
        found = gittrix.list_sessions(state)
    else:
        now = gittrix.clock.now()
        found = gittrix.query(
            agent=options.agent,
            rig=options.rig,
            work_unit=options.work_unit,
            outcome=options.outcome,
            since=None if options.since is None else before(now, options.since),
            until=None if options.until is None else before(now, options.until),
            limit=(options.limit or 0) if exact else 0,
        )
    found = [one for one in found if state in (None, one.state)]
    if options.durable is not None:
        path = context.repository_path(gittrix, options.durable)
        found = [one for one in found if one.durable_path is not None and os.path.realpath(one.durable_path) == path]
    found = found[: options.limit or None]
    return found, [one.wire() if options.view == "gittrix" else record_in(gittrix, one.id, options.view) for one in found]


def _beside(gittrix: GitTrix, found: Sequence[SessionMetadata | Mapping[str, Any]]) -> dict[str, list[str]]:
    """What the agents' own git holds that is in no touched file, a line each, by the ids of the sessions among ``found`` that live."""
    lines_of: dict[str, list[str]] = {}
    for one in found:
        id_, state = (one["id"], one["state"]) if isinstance(one, Mapping) else (one.id, one.state)
        if state != "active":
            continue
        try:
            lines_of[id_] = [*gittrix.info(id_).beside]
        except GittrixError as problem:
            lines_of[id_] = [f"its workspace cannot be looked into: {problem.fact}"]
    return lines_of


def _chain_of(gittrix: GitTrix, of: str) -> list[SessionMetadata]:
    """The chain with that id; or of the session with that id; or all chains of that work unit; or of the session whose id begins so."""
    from pytest_gittrix.record.store.store import ID

    if found := gittrix.chain(of):
        return found
    is_id = ID.fullmatch(of) is not None
    if is_id and gittrix.store.directory(of).is_dir():
        return gittrix.chain(gittrix.store.load(of).chain)
    if found := gittrix.chain(work_unit=of):
        return found
    if is_id:
        try:
            return gittrix.chain(gittrix.store.load(gittrix.records.resolve(of)).chain)
        except SessionNotFound:
            pass
    raise SessionNotFound(
        f"There is no line, session or work unit {of!r} in {gittrix.store.root}.",
        fix="`gittrix session list --as gastown` shows who worked on what.",
    )


def _strokes(length: int) -> Sequence[str]:
    """The line drawing before each session of a chain."""
    return ("─ ",) if length == 1 else ("┌ ", *("├ ",) * (length - 2), "└ ")


def _branches(node: Node, stem: str = "", below: str = "") -> Iterator[str]:
    yield f"{stem}{node.id}  {_described(node)}"
    for child in node.children:
        last = child is node.children[-1]
        yield from _branches(child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))


def _described(node: Node) -> str:
    """The description of a session in a tree."""
    origins = {"handoff": "by a handoff", "crash": "after a crash", "fork": f"fork at {node.at_seq}"}
    marks = {"cycle": "comes from itself", "truncated": "there is more below", "missing": "is not in the store"}
    parts = [
        origins.get(node.relation or ""),
        f"{node.state} ({node.outcome})" if node.outcome else node.state,
        node.parent_missing and f"its parent {node.parent_missing} is not in the store",
        marks.get(node.mark),
    ]
    return ", ".join(part for part in parts if part)
