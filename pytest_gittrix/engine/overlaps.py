"""Overlaps: which live sessions touch the same paths, or paths that durable changed, and how a promotion of each would end now.

Nothing is stored and no session is used. The cost grows with what changed: the paths that durable changed are looked at in each workspace,
and for the rest counts what the sessions' logs say. Only where every workspace is to be looked at whole, the cost grows with its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pytest_gittrix.backends.protocol import Drift, Durable
from pytest_gittrix.engine.agents.agent_session import look_at
from pytest_gittrix.engine.promotion.conflicts import find_conflicts, reader_of
from pytest_gittrix.engine.promotion.plan import where_to
from pytest_gittrix.engine.promotion.selection import SelectedChanges
from pytest_gittrix.engine.services import EngineServices
from pytest_gittrix.engine.user_session import open_session
from pytest_gittrix.errors import ConflictKind, GittrixError
from pytest_gittrix.git.path_rules import shared_paths
from pytest_gittrix.git.tree import overlap
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.rebase import changed_at, from_bases
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.workspace import Workspace

Ends = Literal["nothing", "lands", "merges", "conflict", "unknown"]
"""How a promotion would end: without a change to promote, without an overlap, with ``on_overlap="merge"`` alone, or in no way."""


@dataclass(frozen=True, slots=True)
class SessionOverlap:
    """What one live session overlaps with.

    Attributes:
        id: of the session.
        task: what it is for.
        ends: how a promotion of everything that it touched would end now, as far as durable's changes decide that.
        durable: the paths of its work that durable changed since its baseline, each with the kind of conflict: ``path`` merges as text,
            ``text`` does not, ``tree`` is no edit on both sides of one file.
        sessions: the paths that others of the same repository and branch touch too, by the ids of those sessions.
        problem: why it could not be looked at, so that ``ends`` is ``unknown``; empty otherwise.
    """

    id: str
    task: str
    ends: Ends
    durable: Mapping[str, ConflictKind] = field(default_factory=dict)
    sessions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""

    def to_wire(self) -> dict[str, object]:
        """The overlap as JSON, as the command line prints it."""
        sessions = {id_: [*paths] for id_, paths in self.sessions.items()}
        known: dict[str, object] = {"id": self.id, "task": self.task, "ends": self.ends, "durable": {**self.durable}, "sessions": sessions}
        return known | ({"problem": self.problem} if self.problem else {})


class _Seen(NamedTuple):
    """A session as it was looked at: the repository and branch that it goes to, its touched paths, and its overlap with durable."""

    goes_to: tuple[str, str]
    touched: frozenset[str]
    found: SessionOverlap


def find_overlaps(services: EngineServices, *, look: bool) -> list[SessionOverlap]:
    """The overlaps of every live session of a store, oldest first; ``GitTrix.overlaps`` says what ``look`` means."""
    services.index.sync()
    drifts = _Drifts()
    seen = [one for id_ in _live(services) if (one := _seen(services, id_, drifts, look=look)) is not None]
    groups: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
    for one in seen:
        groups.setdefault(one.goes_to, {})[one.found.id] = one.touched
    shared = {id_: others for group in groups.values() for id_, others in shared_paths(group).items()}
    return [replace(one.found, sessions=shared[one.found.id]) for one in seen]


def _live(services: EngineServices) -> Iterator[str]:
    """The ids of the sessions that are promoted or thrown away; a member's has no baseline."""
    return (row.id for row in services.index.rows(state="active") if "life" not in row.metadata)


def _seen(services: EngineServices, id_: str, drifts: _Drifts, *, look: bool) -> _Seen | None:
    """One session; None if it has ended meanwhile."""
    task = ""
    try:
        state = services.recorder(id_).read()
        task = state.task
        if state.ended or not state.workspace_present:
            return None
        session = look_at(open_session(services, id_)) if look else None
        touched = frozenset(state.touched if session is None else session.touched_files)
        durable = services.resources.durable_of(state)
        branch = where_to(state, durable)[0]
        workspace = services.resources.open_workspace(state)
        try:
            drift = from_bases(drifts.of(durable, branch, workspace.seed), workspace.bases, workspace.seed)
            kinds, ends, own = _judged(state, workspace, durable, drift, touched)
        finally:
            workspace.close()
        return _Seen((durable.uri, branch), touched | own, SessionOverlap(id_, task, ends, kinds))
    except (GittrixError, OSError) as problem:
        fact = problem.fact if isinstance(problem, GittrixError) else f"{problem.strerror or problem}"
        return _Seen(("", id_), frozenset(), SessionOverlap(id_, task, "unknown", problem=fact))


def _judged(
    state: SessionState, workspace: Workspace, durable: Durable, drift: Drift, touched: Collection[str]
) -> tuple[dict[str, ConflictKind], Ends, frozenset[str]]:
    """The conflicts that a promotion would meet, how it would end, and the paths of drift at which there is work."""
    seed = workspace.seed
    with workspace.operation():
        found = changed_at(workspace, {*drift, *overlap(touched, drift)}, state.api_deleted, state.durable_path)
    known = {*touched, *state.api_touched}
    hidden = {path for path in found.entries if path not in known and (path in state.initial_files or _is_ignored(seed, path))}
    changes = {path: entry for path, entry in found.entries.items() if path not in hidden and path not in found.unfit}
    fitted = find_conflicts(SelectedChanges(changes, found.blobs), drift, seed, reader_of(seed, durable), on_overlap="merge")
    kinds: dict[str, ConflictKind] = {**fitted.overlaps, **dict.fromkeys(found.unfit - hidden, "tree")}
    refused = bool(fitted.conflicts) or bool(found.unfit - hidden)
    ends: Ends = "conflict" if refused else "merges" if kinds else "lands" if touched or changes else "nothing"
    return dict(sorted(kinds.items())), ends, frozenset(changes)


def _is_ignored(seed: Seed, path: str) -> bool:
    return path not in seed.entries and seed.ignore.ignored(path)


class _Drifts:
    """What durable changed since each baseline: sessions that began together share it, and each branch is read once."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str], str] = {}
        self._drifts: dict[tuple[str, str, str], Drift] = {}

    def of(self, durable: Durable, branch: str, seed: Seed) -> Drift:
        """What a branch changed since the baseline of a seed."""
        key = (durable.uri, branch)
        if key not in self._heads:
            self._heads[key] = durable.head(branch)
        since = (*key, seed.commit)
        if since not in self._drifts:
            self._drifts[since] = durable.drift(seed.commit, self._heads[key], seed)
        return self._drifts[since]
