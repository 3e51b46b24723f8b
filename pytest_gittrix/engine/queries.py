"""Finding sessions: lists, queries, chains and trees, from the index and never from a workspace. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.durations import ns_of
from pytest_gittrix.errors import Advice, InvalidInput, SessionNotFound
from pytest_gittrix.record.state.fold import StateName
from pytest_gittrix.record.state.values import OUTCOMES
from pytest_gittrix.record.store.index import Index, IndexRow, Query
from pytest_gittrix.record.store.store import Problem

if TYPE_CHECKING:
    from pytest_gittrix.record.state.records import SessionMetadata


DEPTH: Final = 4
"""How many generations a tree shows by default (Pixir)."""
_SHOWN: Final = 3
_DEEPEST: Final = 200


@dataclass(frozen=True, slots=True)
class Node:
    """A session in a tree.

    Attributes:
        id: its id.
        relation: how it came from its parent: ``handoff``, ``crash`` or ``fork``; None without a parent.
        state: its state; None if it is missing.
        outcome: how its agent did, if the caller that ended it said.
        at_seq: the event of its parent after which a fork was made.
        mark: ``cycle`` (it is its own ancestor), ``truncated`` (it has children below the requested depth), ``missing`` (another session
            names it, and it is not in the store), or nothing.
        parent_missing: its parent, if that is not in the store.
        children: its children, oldest first.
    """

    id: str
    relation: str | None = None
    state: str | None = None
    outcome: str | None = None
    at_seq: int | None = None
    mark: str = ""
    parent_missing: str | None = None
    children: tuple[Node, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """The same as JSON, camelCase, without empty fields."""
        fields = {
            "id": self.id,
            "relation": self.relation,
            "state": self.state,
            "outcome": self.outcome,
            "atSeq": self.at_seq,
            "mark": self.mark or None,
            "parentMissing": self.parent_missing,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        return {**known, "children": [child.to_wire() for child in self.children]}


@dataclass(frozen=True)
class Records:
    """The sessions of a store, as of now.

    Attributes:
        index: of the store.
    """

    index: Index

    def every(self, state: StateName | None = None) -> list[SessionMetadata]:
        """Every session that can be read, or those in a state, oldest first."""
        return list(self.each(state))

    def each(self, state: StateName | None = None) -> Iterator[SessionMetadata]:
        """The same one after the other, in memory that does not grow with their number."""
        self.index.sync()
        return _each(self.index.each(state=state))

    def documents(self, state: StateName | None = None) -> list[dict[str, Any]]:
        """What ``SessionMetadata.wire`` gives for every session of :meth:`every`, without the cost of loading pydantic."""
        self.index.sync()
        return [row.metadata for row in self.index.rows(state=state)]

    def problems(self) -> list[Problem]:
        """The records that cannot be read."""
        self.index.sync()
        return self.index.problems()

    def query(
        self,
        *,
        agent: str | None = None,
        rig: str | None = None,
        work_unit: str | None = None,
        chain: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        outcome: str | None = None,
        limit: int = 0,
    ) -> list[SessionMetadata]:
        """The sessions that match every given criterion, newest first (Gas Town).

        Args:
            agent, rig, work_unit, chain: equal to this.
            outcome: ``done`` (promoted sessions too), ``handoff``, ``crash`` or ``killed`` (discarded and expired ones too).
            since: started then or later.
            until: started before.
            limit: the most sessions to return; 0 or less for all.

        Raises:
            InvalidInput: a time is naive, there is no such outcome, or the limit is no whole number.
        """
        known = (*OUTCOMES, "handoff")
        if outcome is not None and outcome not in known:
            raise InvalidInput(f"{outcome!r} is not an outcome.", fix=f"Use one of: {', '.join(known)}.")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise InvalidInput(f"limit={limit!r} is not a number of sessions.", fix="Give a whole number; 0 means all.")
        self.index.sync()
        query = Query(
            agent=agent,
            rig=rig,
            work_unit=work_unit,
            chain=chain,
            outcome=outcome,
            since_ns=ns_of(since) if since else None,
            until_ns=ns_of(until) if until else None,
            limit=max(limit, 0),
        )
        return _read(self.index.query(query))

    def chain(self, chain: str | None = None, *, work_unit: str | None = None) -> list[SessionMetadata]:
        """The sessions of a chain of handoffs, oldest first; none for an unknown chain (Gas Town).

        Args:
            chain: its id, which is that of its first session.
            work_unit: take all whole chains instead in which a session worked on this.

        Raises:
            InvalidInput: not exactly one of the two is given.
        """
        if (chain is None) == (work_unit is None):
            raise InvalidInput("Exactly one of chain and work_unit is needed.", fix="Give the id of a chain, or work_unit=.")
        self.index.sync()
        if chain is not None:
            rows = self.index.query(Query(chain=chain))
            generation = _generations(rows)
            return _read(sorted(rows, key=lambda row: (generation[row.id], row.created_ns, row.id)))
        chains = {_chain_of(row) for row in self.index.query(Query(work_unit=work_unit))}
        rows = [row for one in chains for row in self.index.query(Query(chain=one))]
        generation = _generations(rows)
        return _read(sorted(rows, key=lambda row: (row.created_ns, generation[row.id], row.id)))

    def resolve(self, prefix: str) -> str:
        """The id that a prefix stands for, if only one does; a whole id stands for itself.

        Raises:
            SessionNotFound: no session's id begins so.
            InvalidInput: several do; the message names the first of them.
        """
        self.index.sync()
        ids = self.index.ids_from(prefix, _SHOWN + 1)
        if not ids:
            raise SessionNotFound(f"There is no session {prefix!r}.", fix="`gittrix session list` shows the existing ones.")
        if len(ids) > 1 and ids[0] != prefix:
            shown = ", ".join(ids[:_SHOWN]) + (" and more" if len(ids) > _SHOWN else "")
            raise InvalidInput(f"{prefix!r} is ambiguous: {shown}.", fix="Give more characters of the id.")
        return ids[0]

    def tree(self, id_: str, *, depth: int = DEPTH) -> Node:
        """A session and its descendants by handoffs, crashes and forks (Pixir).

        Args:
            id_: the session.
            depth: how many generations to show below it, at most 200.

        Raises:
            SessionNotFound: there is no such session.
            InvalidInput: the depth is out of bounds.
        """
        if not 0 <= depth <= _DEEPEST:
            raise InvalidInput(
                f"depth={depth} is out of bounds.",
                fix=Advice(
                    f"Give 0 to {_DEEPEST}; chain() shows a chain of any length.",
                    f"Give 0 to {_DEEPEST}; `gittrix session chain` shows a chain of any length.",
                ),
            )
        self.index.sync()
        row = self.index.row(id_)
        if row is None:
            raise SessionNotFound(f"There is no session {id_!r}.", fix="`gittrix session list` shows the existing ones.")
        return self._node(row, frozenset(), depth)

    def baselines(self) -> set[str]:
        """The baselines of sessions that are active or have a workspace, which may be needed again. As of the last ``sync``."""
        rows = [*self.index.rows(state="active"), *self.index.rows(workspace_present=True)]
        return {baseline for row in rows for baseline in _baselines(row)}

    def promoted(self) -> set[str]:
        """The commits that promotions made."""
        self.index.sync()
        promoted: set[str] = set()
        for row in self.index.each(promoted=True):
            result = row.metadata["promote"]["result"]
            promoted.update(_promoted_baselines(row), [result["sha"]] if result else [])
        return promoted

    def _node(self, row: IndexRow, above: frozenset[str], depth: int) -> Node:
        known: Any = row.metadata
        lineage, successor = known.get("lineage") or {}, known.get("successor")
        parent = lineage.get("parent")
        node = Node(row.id, lineage.get("relation"), row.state, known.get("outcome"), lineage.get("at_seq"))
        if parent is not None and self.index.row(parent) is None:
            node = replace(node, parent_missing=parent)
        if row.id in above:
            return replace(node, mark="cycle")
        below = self.index.query(Query(parent=row.id))[::-1]
        lost = successor is not None and all(child.id != successor for child in below) and self.index.row(successor) is None
        if not depth:
            return replace(node, mark="truncated" if below or lost else "")
        children = [self._node(child, above | {row.id}, depth - 1) for child in below]
        children += [Node(successor, "handoff" if known.get("outcome") == "handoff" else "crash", mark="missing")] * lost
        return replace(node, children=tuple(children))


def _baselines(row: IndexRow) -> list[str]:
    """Every baseline that a session has had, oldest first."""
    return [*row.metadata.get("earlierBaselines", ()), row.metadata["baselineSha"]]


def _promoted_baselines(row: IndexRow) -> list[str]:
    """The baselines of a session that its promotions made: all but the first, and but those that it was rebased onto."""
    rebased = frozenset(row.metadata.get("rebasedOnto", ()))
    return [commit for commit in _baselines(row)[1:] if commit not in rebased]


def _chain_of(row: IndexRow) -> str:
    lineage = row.metadata.get("lineage") or {}
    return str(lineage.get("chain", row.id))


def _generations(rows: Iterable[IndexRow]) -> dict[str, int]:
    """The number of ancestors of each session in its chain. Times do not order them: clocks are set back, and two starts can be equal."""
    parents = {row.id: (row.metadata.get("lineage") or {}).get("parent") for row in rows}
    generations: dict[str, int] = {}
    for id_ in parents:
        above = [id_]
        while (parent := parents[above[-1]]) in parents and parent not in generations and parent not in above:
            above.append(parent)
        for one in reversed(above):
            generations[one] = generations.get(parents[one] or "", -1) + 1
    return generations


def _read(rows: Iterable[IndexRow]) -> list[SessionMetadata]:
    return list(_each(rows))


def _each(rows: Iterable[IndexRow]) -> Iterator[SessionMetadata]:
    from pytest_gittrix.record.state.records import SessionMetadata

    return (SessionMetadata.model_validate(row.metadata) for row in rows)
