"""The verbs that find sessions: ``list``, and Gas Town's ``find`` and ``chain``, and Pixir's ``tree``.

They change nothing, but that without a daemon a list of orchestrated sessions polls those first.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.render import gastown_table, notes_of, record_table, session_table, text_of
from pytest_gittrix.commands.values import generations, moment, number
from pytest_gittrix.errors import GittrixError, SessionNotFound
from pytest_gittrix.extensions import OURS, Names

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.queries import Node
    from pytest_gittrix.record.state.records import SessionMetadata

OUTCOMES = ("done", "crash", "killed", "handoff")
EXAMPLES = {
    "list": [
        "gittrix session list",
        "gittrix session list --status active",
        "gittrix session list --as gastown --rig gastown --since 1h",
        "gittrix session list -d . --json",
    ],
    "find": ["gittrix session find --agent gastown/polecats/Toast --since 24h"],
    "chain": ["gittrix session chain td-7", "gittrix session chain sess_V1StGXR8Z5jd --json"],
    "tree": ["gittrix session tree sess_V1St", "gittrix session tree sess_V1St --depth 10"],
}

_FOUND = 20
_GENERATIONS = 4
# The options that select by Gas Town's query, which lists the newest first.
_QUERY_OPTIONS = ("agent", "rig", "work_unit", "outcome", "since", "until", "limit")
_NONE = "There are no sessions.\n"


def arguments(add: Callable[..., ArgumentParser]) -> None:
    """Declare the verbs but ``list``; ``add`` makes one of a name, a command and a sentence."""
    finding = add("find", list_sessions, "find the sessions of an agent, newest first")
    finding.add_argument("--agent", required=True, metavar="A", help="whose")
    _narrowing(finding, "rig", "since")
    finding.add_argument("-n", "--limit", type=number, default=_FOUND, metavar="N", help="how many at most (%(default)s); 0 for all")
    finding.set_defaults(status=None, durable=None, work_unit=None, outcome=None, until=None, view="gastown", beside=False)
    add("chain", chain, "show a lineage, oldest first").add_argument(
        "of", metavar="ID", help="the id of a lineage or of one of its sessions, or a work unit"
    )
    add("tree", tree, "show a session with its handoffs, successors and forks", of_session=True).add_argument(
        "--depth", type=generations, default=_GENERATIONS, metavar="N", help="how many generations below it (%(default)s)"
    )


def list_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of ``list`` other than states and repositories."""
    _narrowing(verb, "agent", "rig", "work-unit", "since", "until")
    verb.add_argument("--outcome", choices=OUTCOMES, help="only sessions with this result")
    verb.add_argument("-n", "--limit", type=number, metavar="N", help="how many at most; 0 for all")
    verb.add_argument("--beside", action="store_true", help="look into each workspace for work that is in no file, such as a stash")
    view_argument(verb)


def view_argument(verb: ArgumentParser) -> None:
    """Declare ``--as``: the system in whose terms a session is shown."""
    ours = f"{{{','.join(OURS['views'])}}}"
    shown = "show the fields of this system (%(default)s)"
    verb.add_argument("--as", dest="view", choices=Names("views"), metavar=ours, default="gittrix", help=shown)


def _narrowing(verb: ArgumentParser, *flags: str) -> None:
    times = {
        "since": "only sessions started then or later: 24h ago, or an instant",
        "until": "only sessions started before: 24h ago, or an instant",
    }
    for flag in flags:
        if flag in times:
            verb.add_argument(f"--{flag}", type=moment, metavar="TIME", help=times[flag])
        else:
            verb.add_argument(f"--{flag}", metavar=flag[0].upper(), help=f"only sessions of this {flag.replace('-', ' ')}")


def list_sessions(options: Namespace) -> CommandResult:
    """The sessions of the store that every given option selects."""
    with context.engine(options) as gittrix:
        if options.view == "orchestrator":
            context.poll_projects(gittrix, options)
        found, records = _found(gittrix, options)
        problems, now = gittrix.problems(), gittrix.clock.now()
        beside = _beside(gittrix, found or records) if options.beside else {}
    if not records:
        return CommandResult([], _NONE, notes_of(problems))
    notes = (*notes_of(problems), *(f"Not part of {id_}: {line}." for id_, lines in beside.items() for line in lines))
    if options.view == "gastown":
        table = gastown_table(found, records, now, {})
    else:
        records = [record | {"beside": beside[record["id"]]} if record.get("id") in beside else record for record in records]
        table = (
            session_table(records, now, {record["id"]: record["life"]["state"] for record in records if "life" in record})
            if options.view == "gittrix"
            else record_table(records, options.view, now)
        )
    return CommandResult(records, table, notes)


def chain(options: Namespace) -> CommandResult:
    """A chain of handoffs; of a work unit, each chain with a session that worked on it."""
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


def tree(options: Namespace) -> CommandResult:
    """A session and the sessions that descend from it by handoffs, crashes and forks (Pixir)."""
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
    beside: dict[str, list[str]] = {}
    for one in found:
        id_, state = (one["id"], one["state"]) if isinstance(one, Mapping) else (one.id, one.state)
        if state != "active":
            continue
        try:
            beside[id_] = [*gittrix.info(id_).beside]
        except GittrixError as problem:
            beside[id_] = [f"its workspace cannot be looked into: {problem.fact}"]
    return beside


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
