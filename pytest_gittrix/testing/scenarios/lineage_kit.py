"""Lines of sessions at times that the test chooses, and a check that sessions are one whole line: none missing, none twice.

The check needs a few facts of each session (``Link``), so it works for the sessions of any system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.durations import format_instant, instant_at
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.state.records import Eviction, EvictionPolicy
from pytest_gittrix.record.store.store import Store

if TYPE_CHECKING:
    from pytest_gittrix.engine.user_session import UserSession

ENDS: Final = ("handoff", "crash", "done", "killed", "active")
"""How a session of a line can end; one that is ``active`` has not ended."""
_GOES_ON: Final = frozenset({"handoff", "crash"})
_TEN_MINUTES: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Link:
    """One session of a line.

    Attributes:
        id: its id.
        chain: the id that all sessions of the line share.
        started_ns: when it started, in nanoseconds since 1970.
        parent: the id of the session whose work it goes on with; None for the first of a line.
        successor: the id of the session that goes on with its work.
        stopped_ns: when it stopped working; None while it works.
        outcome: ``handoff``, ``crash``, ``done`` or ``killed``; None while it is live, or if its end has no outcome.
    """

    id: str
    chain: str
    started_ns: int
    parent: str | None = None
    successor: str | None = None
    stopped_ns: int | None = None
    outcome: str | None = None

    @classmethod
    def of(cls, events: Sequence[Event]) -> Link:
        """The link of a session, from its events. A session that was handed on stopped at its intent, before its child started.

        Raises:
            GittrixError: the events are not a session's.
        """
        state = fold(events)
        line = state.lineage if state.lineage is not None and state.lineage.relation != "fork" else None
        return cls(
            state.id,
            state.chain,
            state.created_ns,
            line.parent if line is not None else None,
            state.successor,
            _stopped(state, events),
            state.outcome,
        )


def _stopped(state: SessionState, events: Sequence[Event]) -> int | None:
    intents = [event.ts for event in events if event.type == "handoff.intent" and event.data["child"] == state.successor]
    return intents[-1] if state.ended and intents else state.ended_ns


class ChainKit:
    """Makes lines of sessions in an engine, and checks them.

    Args:
        gittrix: the engine.
        clock: its clock.
    """

    def __init__(self, gittrix: GitTrix, clock: FrozenClock) -> None:
        self._gittrix = gittrix
        self._clock = clock

    def __call__(
        self,
        agent: str,
        ends: Sequence[str],
        *,
        every: timedelta | str = _TEN_MINUTES,
        work_unit: str | None = None,
        task: str = "fix the bug",
        eviction: Eviction | None = None,
        **options: Any,
    ) -> list[UserSession]:
        """Make a line: ``gittrix_chain("toast", ["handoff", "crash", "done"])`` makes three sessions in one line.

        Each ends ``every`` after it started, and its child starts at that instant. A session that stays ``active`` starts now.

        Args:
            agent: the agent of all of them.
            ends: how each ends: ``handoff``, ``crash``, ``done`` or ``killed``; the last may stay ``active``.
            every: how long each lasts, as a timedelta or a text such as ``"10m"``; the clock is advanced.
            work_unit: the work unit of them all.
            task: the task of them all.
            eviction: the policy of them all; manual by default, so that a line of days does not expire.
            options: as for ``GitTrix.start_session``, for all that start from a branch; a handoff passes ``rig`` and so on to its child.

        Raises:
            InvalidInput: an end is unknown, or an end has a child that it cannot have, or lacks the child that it must have.
        """
        _check_ends(ends)
        facts = {"agent": agent, **({"work_unit": work_unit} if work_unit is not None else {}), **options}
        given = {"eviction": eviction if eviction is not None else EvictionPolicy(manual=True), **facts}
        session = self._gittrix.start_session(task, **given)
        line = [session]
        for end in ends:
            if end == "active":
                break
            self._clock.advance(every)
            if end == "handoff":
                session = session.handoff()
            else:
                session.discard(end)
                if end == "crash" and len(line) < len(ends):
                    session = self._gittrix.start_session(task, parent=session.id, **given)
            if session is not line[-1]:
                line.append(session)
        return line

    def links(self, members: Iterable[UserSession | str | Link]) -> list[Link]:
        """The links of sessions, in the order given; ids are looked up in the engine's store."""
        return [one if isinstance(one, Link) else self._link(one if isinstance(one, str) else one.id) for one in members]

    def check(self, members: Iterable[UserSession | str | Link]) -> None:
        """Check that sessions are one whole line, in the order given, and that no other session in the store goes on with one of them.

        Args:
            members: sessions, ids, or the links of sessions of another system.

        Raises:
            AssertionError: they are not; the message has a line for each thing that is wrong.
        """
        given = list(members)
        links = self.links(given)
        ours = any(not isinstance(one, Link) for one in given)
        ids = {link.id for link in links}
        others = [link for link in stored_links(self._gittrix.store) if link.id not in ids] if ours else []
        check_line(links, others=others)

    def _link(self, id: str) -> Link:
        return Link.of(self._gittrix.store.log(id).read())


def stored_links(store: Store) -> list[Link]:
    """The links of all sessions of a store; sessions whose log is missing or damaged are skipped."""
    found: list[Link] = []
    for id in store.ids():
        try:
            found.append(Link.of(store.log(id).read()))
        except GittrixError:
            continue
    return found


def check_line(links: Sequence[Link], *, others: Iterable[Link] = ()) -> None:
    """Raise an AssertionError with every problem of a line, if it has any; see ``line_problems``."""
    problems = line_problems(links, others=others)
    if problems:
        raise AssertionError("\n".join([f"These {len(links)} sessions are not one line:", *problems]))


def line_problems(links: Sequence[Link], *, others: Iterable[Link] = ()) -> list[str]:
    """The problems of a line of sessions, one text each; none for a sound line.

    Args:
        links: the line, the first session first.
        others: other sessions, none of which may go on with one of the line.
    """
    known = {link.id: link for link in links}
    roots = [link.id for link in links if link.parent is None]
    problems = [f"{id} is there {count} times" for id, count in Counter(link.id for link in links).items() if count > 1]
    if len(roots) != 1:
        problems.append(f"there are {len(roots)} roots, not one" + (f": {', '.join(roots)}" if roots else ""))
    problems += _cycles(known)
    problems += _chains(links, roots)
    for link in links:
        problems += _parent_problems(link, known)
    problems += _child_problems(links, known, [*others])
    return problems


def _cycles(known: Mapping[str, Link]) -> list[str]:
    """Each cycle once, beginning with its smallest id."""
    found: dict[frozenset[str], str] = {}
    for start in sorted(known):
        path: list[str] = []
        at: str | None = start
        while at is not None and at in known and at not in path:
            path.append(at)
            at = known[at].parent
        if at == start:
            found.setdefault(frozenset(path), f"there is a cycle: {' came from '.join([*path, start])}")
    return [*found.values()]


def _chains(links: Sequence[Link], roots: Sequence[str]) -> list[str]:
    chains = sorted({link.chain for link in links})
    if len(chains) > 1:
        return [f"they do not share one chain id: {', '.join(chains)}"]
    if chains and len(roots) == 1 and chains != [roots[0]]:
        return [f"the chain id is {chains[0]}, and the first session is {roots[0]}"]
    return []


def _parent_problems(link: Link, known: Mapping[str, Link]) -> list[str]:
    if link.parent is None:
        return []
    parent = known.get(link.parent)
    if parent is None:
        return [f"{link.id} is an orphan: its parent {link.parent} is not in the line"]
    if parent.successor != link.id:
        return [f"{link.id} is an orphan: its parent {parent.id} names {parent.successor or 'no session'} as its successor"]
    if parent.stopped_ns is None:
        return [f"{parent.id} has not ended, and its child {link.id} has started"]
    if parent.stopped_ns > link.started_ns:
        return [f"{parent.id} ended at {_time(parent.stopped_ns)}, after its child {link.id} started at {_time(link.started_ns)}"]
    if parent.outcome not in _GOES_ON:
        return [f"{parent.id} ended as {parent.outcome or 'unknown'}, and {link.id} goes on with it"]
    return []


def _child_problems(links: Sequence[Link], known: Mapping[str, Link], others: Sequence[Link]) -> list[str]:
    problems: list[str] = []
    children: dict[str, list[str]] = {id: [] for id in known}
    for link in {one.id: one for one in [*others, *links]}.values():
        if link.parent in children:
            children[link.parent].append(link.id)
    for id, ids in children.items():
        if len(ids) > 1:
            problems.append(f"{id} has two children: {', '.join(sorted(ids))}")
        successor = known[id].successor
        if successor is not None and successor not in known:
            problems.append(f"{id} names {successor} as its successor, which is not in the line")
        elif successor is not None and known[successor].parent != id:
            problems.append(f"{id} names {successor} as its successor, which came from {known[successor].parent or 'none'}")
        if known[id].outcome == "handoff" and successor is None:
            problems.append(f"{id} was handed on without a successor")
    return problems


def _time(ns: int) -> str:
    return format_instant(instant_at(ns))


def _check_ends(ends: Sequence[str]) -> None:
    if isinstance(ends, str) or not ends:
        raise InvalidInput(f"{ends!r} is no line of sessions.", fix='Give how each ends, such as ["handoff", "done"].')
    unknown = [end for end in ends if end not in ENDS]
    if unknown:
        raise InvalidInput(f"A session of a line cannot end as {unknown[0]!r}.", fix=f"Use: {', '.join(ENDS)}.")
    early = [end for end in ends[:-1] if end not in _GOES_ON]
    if early:
        raise InvalidInput(
            f"A session that is {early[0]!r} has no successor.", why="A line goes on by handoffs and after crashes.", fix="Put it last."
        )
    if ends[-1] == "handoff":
        raise InvalidInput(
            "The last session of a line cannot end as a handoff.",
            why="A handoff has a child that goes on.",
            fix='Say how the child ends, or "active".',
        )
