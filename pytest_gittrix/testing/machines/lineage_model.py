"""The model of ``lineage_machine``: which session came from which, how each ended, and what each took along from its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.testing.machines.machine_base import BASELINE

STILLBORN: Final = "stillborn"
"""A child that was created, and that a recovery ended because it never became ready."""
DEATHS: Final[Mapping[str, Mapping[str, str]]] = {
    "start": {"start:head-read": "nothing", "start:created": STILLBORN, "start:seeded": STILLBORN, "start:ready": "born"},
    "succeed": {"start:created": STILLBORN, "start:filled": STILLBORN, "start:ready": "born"},
    "fork": {"start:created": STILLBORN, "fork:said": STILLBORN, "fork:filled": STILLBORN, "start:ready": "born"},
    "handoff": {
        "handoff:intent-logged": "nothing",
        "handoff:child-created": "born",
        "handoff:moved": "born",
        "handoff:child-ready": "born",
    },
}
"""By operation, and by the point it is killed at: what is left of the child after a recovery."""

MOST_SESSIONS: Final = 12
AGENTS = st.sampled_from(["Toast", "Fig"])
UNITS = st.sampled_from(["gt-1", "gt-2"])
TEXTS = st.lists(st.sampled_from(["yes", "no"]), max_size=3)
IDENTITIES = st.fixed_dictionaries({}, optional={"agent": AGENTS, "work_unit": UNITS})
OUTCOMES = st.sampled_from(["crash", "crash", "done", "killed", None])
_FILTERS: dict[str, st.SearchStrategy[Any]] = {
    "agent": AGENTS,
    "work_unit": UNITS,
    "outcome": st.sampled_from(["handoff", "crash", "done", "killed"]),
    "limit": st.integers(0, 3),
    "chain": st.integers(0, MOST_SESSIONS),
    "since": st.integers(0, MOST_SESSIONS),
    "until": st.integers(0, MOST_SESSIONS),
}
_FILTER_NAMES = st.lists(st.sampled_from(sorted(_FILTERS)), max_size=2, unique=True)
FILTERS = _FILTER_NAMES.flatmap(lambda names: st.fixed_dictionaries({name: _FILTERS[name] for name in names}))


@dataclass(eq=False)
class LineageSession:
    """One session and its expected lineage.

    Attributes:
        name: ``s1``, ``s2`` and so on.
        id: its id.
        born: when it started, in nanoseconds since 1970.
        chain, root: the ids of the first session of its line, and of its first ancestor by forks too.
        identity: who works in it, and on what.
        parent: the session it came from.
        relation: how it came from its parent.
        at_seq: the event of the parent that a fork was made after.
        state, outcome: its state, and how it ended.
        successor: the id of the session that goes on with its work.
        messages: the number and text of each message in it.
        file: what the file ``a`` holds.
    """

    name: str
    id: str
    born: int
    chain: str
    root: str
    identity: dict[str, str]
    parent: LineageSession | None = None
    relation: str | None = None
    at_seq: int | None = None
    state: str = "active"
    outcome: str | None = None
    successor: str | None = None
    messages: list[tuple[int, str]] = field(default_factory=list)
    file: bytes = BASELINE

    def __repr__(self) -> str:
        return self.name

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.state == "active"

    @property
    def may_have_successor(self) -> bool:
        """Whether it has ended and may still get a successor: it crashed, and has none."""
        return self.outcome == "crash" and self.successor is None

    def facts(self) -> dict[str, Any]:
        """What the fold of its log must be."""
        return {
            "parent": self.parent.id if self.parent is not None else None,
            "relation": self.relation,
            "chain": self.chain,
            "root": self.root,
            "at_seq": self.at_seq,
            "state": self.state,
            "outcome": self.outcome,
            "successor": self.successor,
            "identity": self.identity,
        }


@dataclass
class LineageModel:
    """All sessions of a store.

    Attributes:
        sessions: by id, in the order of their starts.
    """

    sessions: dict[str, LineageSession] = field(default_factory=dict)

    def children(self, parent: LineageSession) -> list[LineageSession]:
        """The children of a session."""
        return [one for one in self.sessions.values() if one.parent is parent]

    def fitting(self, wanted: Mapping[str, Any]) -> list[LineageSession]:
        """The sessions that fit all filters, newest first, then by id; ``since`` and ``until`` are nanoseconds."""
        limit = wanted.get("limit", 0)
        found = sorted((one for one in self.sessions.values() if _fits(one, wanted)), key=lambda one: (-one.born, one.id))
        return found[:limit] if limit else found

    def line(self, chain: str) -> set[str]:
        """The ids of the sessions of one line."""
        return {one.id for one in self.sessions.values() if one.chain == chain}

    def tree(self, one: LineageSession, depth: int) -> dict[str, Any]:
        """A session and its descendants, as ``to_wire`` gives them; children in the order of their ids."""
        below = self.children(one)
        known = {
            "id": one.id,
            "relation": one.relation,
            "state": one.state,
            "outcome": one.outcome,
            "atSeq": one.at_seq,
            "mark": "truncated" if below and not depth else None,
        }
        children = [self.tree(child, depth - 1) for child in sorted(below, key=lambda child: child.id)] if depth else []
        return {**{name: value for name, value in known.items() if value is not None}, "children": children}


def _fits(one: LineageSession, wanted: Mapping[str, Any]) -> bool:
    ending = one.outcome or (
        None if one.lives else "killed"
    )  # an end without an outcome counts as killed (docs/explanation/you-know-gas-town.md)
    facts = {**one.identity, "chain": one.chain, "outcome": ending}
    equal = {name: value for name, value in wanted.items() if name not in ("since", "until", "limit")}
    if any(facts.get(name) != value for name, value in equal.items()):
        return False
    return bool(wanted.get("since", one.born) <= one.born < wanted.get("until", one.born + 1))


def in_order_of_ids(tree: dict[str, Any]) -> dict[str, Any]:
    """A tree as ``to_wire`` gives it, with children in the order of their ids: children of equal age may come in any order."""
    return {**tree, "children": sorted(map(in_order_of_ids, tree["children"]), key=lambda child: child["id"])}


def facts_of(state: SessionState) -> dict[str, Any]:
    """The fold of a log, as ``LineageSession.facts`` has it."""
    lineage = state.lineage
    return {
        "parent": lineage.parent if lineage is not None else None,
        "relation": lineage.relation if lineage is not None else None,
        "chain": state.chain,
        "root": state.root,
        "at_seq": lineage.at_seq if lineage is not None else None,
        "state": state.state,
        "outcome": state.outcome,
        "successor": state.successor,
        "identity": dict(state.identity),
    }
