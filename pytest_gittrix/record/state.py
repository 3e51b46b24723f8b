"""What a session is, folded from what happened to it.

``fold`` is pure: the same events give the same state, whole or piece by piece. Everything else that is kept about a session
(``metadata.json``, the index, a view) is derived from what it returns. It must not know how events are stored, and imports no pydantic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pytest_gittrix.errors import InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.record.events import Event, path_of
from pytest_gittrix.timetext import format_instant, instant_at, ns_of, parse_instant

StateName = Literal["active", "promoted", "discarded", "expired"]
ENDED: frozenset[str] = frozenset({"promoted", "discarded", "expired"})

_HOUR = 3_600_000_000_000
_MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """When a session is evicted, in nanoseconds; None means never for that reason. The defaults are GitTrix's.

    Attributes:
        ttl_idle_ns: since it was last used.
        ttl_absolute_ns: since it was created.
        until_promote: remove the workspace when the session is promoted.
        manual: never evict on its own, whatever the other fields say.
    """

    ttl_idle_ns: int | None = 4 * _HOUR
    ttl_absolute_ns: int | None = None
    until_promote: bool = True
    manual: bool = False

    def to_data(self) -> dict[str, Any]:
        """The policy as ``session.created`` holds it."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Policy:
        """Read what :meth:`to_data` wrote."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Intent:
    """A promotion that was about to happen and of which the log does not yet say how it ended.

    Attributes:
        commit, parent, ref, tree, paths_digest, count, owner: as in ``promote.intent``; ``owner`` as ``Owner.to_json`` writes it.
        data: the whole event, with its optional keys.
        seq, ts: of the event.
    """

    commit: str
    parent: str
    ref: str
    tree: str
    paths_digest: str
    count: int
    owner: Mapping[str, Any]
    data: Mapping[str, Any]
    seq: int
    ts: int


@dataclass(frozen=True, slots=True)
class Result:
    """Where the promoted work is: the commit, the branch it is on, and the pull request's address if there is one."""

    sha: str
    branch: str
    pr_url: str | None = None
    patch: str | None = None


@dataclass
class SessionState:
    """One session as its events leave it. A value: ``fold`` makes new ones and never changes one it has returned.

    Times are nanoseconds since 1970 UTC; paths are text with bytes that are not UTF-8 as surrogate escapes.

    Attributes:
        id, task, durable_ref, durable_path, durable_branch, baseline, ephemeral_ref, workspace, workspace_kind, git_backed: as started.
        format: object format of durable, ``sha1`` or ``sha256``; None when a TypeScript store did not say.
        policy: the eviction policy now in force.
        created_ns: when it started. updated_ns: when anything last happened. last_access_ns: when it was last used or its files changed.
        state: ``active``, or how it ended.
        api_touched: paths written or deleted through the session, in the order of their first time; with the last ``op``.
        commits: shas of the agent's commits, oldest first.
        strategy, result: of the promotion.
        intent: the promotion whose end the log does not tell.
        workspace_present: whether the workspace is complete and not removed.
        archive: what was set aside of unpromoted work, as in ``archive.written``.
        seq: of the last event folded; -1 when there is no log.
        legacy: it comes from a TypeScript record and has no log yet.
        extra: keys of that record this engine does not know, to be given back as they were.
    """

    id: str
    task: str
    durable_ref: str
    durable_path: str | None
    durable_branch: str | None
    baseline: str
    ephemeral_ref: str
    workspace: str | None
    workspace_kind: str | None
    git_backed: bool
    policy: Policy
    created_ns: int
    updated_ns: int
    last_access_ns: int
    format: str | None = None
    state: StateName = "active"
    api_touched: dict[str, str] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    strategy: str = "auto"
    result: Result | None = None
    intent: Intent | None = None
    workspace_present: bool = False
    archive: Mapping[str, Any] | None = None
    seq: int = -1
    legacy: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the session is over; ended states are absorbing (DESIGN rule 7)."""
        return self.state in ENDED

    @property
    def archived(self) -> bool:
        """Whether unpromoted work was set aside."""
        return self.archive is not None


def fold(events: Iterable[Event], state: SessionState | None = None) -> SessionState:
    """Add events to a state, or build one from the first event on.

    Args:
        events: of one session, in order; those ``state`` already has are passed over.
        state: what the events before them add up to. It is not changed.

    Raises:
        LogDamaged: an event that cannot have happened then (a write after the end, a second creation); the message names it.
        MetadataVersionUnsupported: an event this engine does not know.
        InvalidInput: there is nothing to fold, or an event is missing in between.
    """
    folded = None if state is None else _copied(state)
    for event in events:
        if folded is None:
            folded = _born(event)
        elif event.seq > folded.seq:
            _step(folded, event)
    if folded is None:
        raise InvalidInput("There is no event, so there is no session.", why="A session begins with session.created.")
    return folded


def deadline_ns(state: SessionState) -> int | None:
    """The last instant at which the session is still inside its TTL, or None when it has none.

    It is expired if and only if now is *greater* (GitTrix). Idle time counts from the last use, absolute time from creation, the
    sooner wins; ``manual`` exempts from both. Whether the session is active is not asked.
    """
    policy = state.policy
    if policy.manual:
        return None
    limits = []
    if policy.ttl_idle_ns is not None:
        limits.append(state.last_access_ns + policy.ttl_idle_ns)
    if policy.ttl_absolute_ns is not None:
        limits.append(state.created_ns + policy.ttl_absolute_ns)
    return min(limits, default=None)


def metadata_of(state: SessionState) -> dict[str, Any]:
    """The documented version-1 record (GitTrix, ``metadata.json``) of a state: JSON, camelCase, optional keys only when known."""
    policy, result = state.policy, state.result
    record = {
        "metadataVersion": 1,
        "id": state.id,
        "task": state.task,
        "durableRef": state.durable_ref,
        "durablePath": state.durable_path,
        "durableBranch": state.durable_branch,
        "ephemeralRef": state.ephemeral_ref,
        "ephemeralPath": state.workspace,
        "baselineSha": state.baseline,
        "workspaceKind": state.workspace_kind,
        "isGitBacked": state.git_backed,
        "state": state.state,
        "createdAt": _instant(state.created_ns),
        "updatedAt": _instant(state.updated_ns),
        "lastAccessAt": _instant(state.last_access_ns),
        "evictionPolicy": {
            "ttlIdleMs": _milliseconds(policy.ttl_idle_ns),
            "ttlAbsoluteMs": _milliseconds(policy.ttl_absolute_ns),
            "untilPromote": policy.until_promote,
            "manual": policy.manual,
        },
        "touchedFiles": list(state.api_touched),
        "promote": {
            "strategy": state.strategy,
            "result": result and _known({"sha": result.sha, "branch": result.branch, "prUrl": result.pr_url}),
        },
    }
    return {**state.extra, **_known(record)}


def state_from_metadata(record: Mapping[str, Any], *, legacy: bool = True) -> SessionState:
    """The state a version-1 record (already validated, see ``model.load_metadata``) stands for.

    Its workspace counts as present while the session is active, or promoted without ``untilPromote``: the record does not say.
    """
    policy, promote = record["evictionPolicy"], record["promote"]
    result = promote["result"]
    state: StateName = record["state"]
    return SessionState(
        id=record["id"],
        task=record["task"],
        durable_ref=record["durableRef"],
        durable_path=record.get("durablePath"),
        durable_branch=record.get("durableBranch"),
        baseline=record["baselineSha"],
        ephemeral_ref=record["ephemeralRef"],
        workspace=record.get("ephemeralPath"),
        workspace_kind=record.get("workspaceKind"),
        git_backed=bool(record.get("isGitBacked")),
        policy=Policy(_nanoseconds(policy["ttlIdleMs"]), _nanoseconds(policy["ttlAbsoluteMs"]), policy["untilPromote"], policy["manual"]),
        created_ns=ns_of(parse_instant(record["createdAt"])),
        updated_ns=ns_of(parse_instant(record["updatedAt"])),
        last_access_ns=ns_of(parse_instant(record["lastAccessAt"])),
        state=state,
        api_touched=dict.fromkeys(record["touchedFiles"], "write"),
        strategy=promote["strategy"],
        result=result and Result(result["sha"], result["branch"], result.get("prUrl")),
        workspace_present=state == "active" or (state == "promoted" and not policy["untilPromote"]),
        legacy=legacy,
        extra={key: value for key, value in record.items() if key not in _RECORD_KEYS},
    )


# What may happen when, and what it changes. ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """When an event is legal (``active``, ``ended``), whether it counts as use of the session, and what it changes."""

    when: frozenset[str]
    use: bool = False
    apply: Callable[[SessionState, Event], None] = lambda _state, _event: None


def _created(event: Event) -> SessionState:
    data = event.data
    return SessionState(
        id=event.stream,
        task=data["task"],
        durable_ref=data["durable_ref"],
        durable_path=path_of(data, "durable_path"),
        durable_branch=data["durable_branch"],
        baseline=data["baseline"],
        ephemeral_ref=data["ephemeral_ref"],
        workspace=path_of(data, "workspace"),
        workspace_kind=data["workspace_kind"],
        git_backed=data["git_backed"],
        policy=Policy.from_data(data["policy"]),
        created_ns=event.ts,
        updated_ns=event.ts,
        last_access_ns=event.ts,
        format=data["format"],
        strategy=data.get("strategy", "auto"),
        seq=event.seq,
    )


def _imported(event: Event) -> SessionState:
    state = state_from_metadata(event.data["metadata"], legacy=False)
    state.seq = event.seq
    return state


def _ready(state: SessionState, event: Event) -> None:
    state.workspace_present = True
    state.workspace = path_of(event.data)


def _write(state: SessionState, event: Event) -> None:
    state.api_touched[path_of(event.data)] = event.data["op"]


def _commit(state: SessionState, event: Event) -> None:
    state.commits.append(event.data["sha"])


def _extended(state: SessionState, event: Event) -> None:
    old = state.policy
    state.policy = Policy(event.data["ttl_idle_ns"], old.ttl_absolute_ns, old.until_promote, old.manual)


def _activity(state: SessionState, event: Event) -> None:
    # A file dated into the future must not keep its session alive: nothing can have been seen later than when it was looked at.
    state.last_access_ns = max(state.last_access_ns, min(event.data["observed_ns"], event.ts))


def _intent(state: SessionState, event: Event) -> None:
    if state.intent is not None:
        raise _impossible(state, event, f"the promotion of {state.intent.commit} is still open")
    known = {name: event.data[name] for name in ("commit", "parent", "ref", "tree", "paths_digest", "count", "owner")}
    state.intent = Intent(**known, data=event.data, seq=event.seq, ts=event.ts)


def _close_intent(state: SessionState, event: Event) -> None:
    if state.intent is not None and state.intent.commit != event.data["commit"]:
        raise _impossible(state, event, f"the open promotion is of {state.intent.commit}")
    state.intent = None


def _done(state: SessionState, event: Event) -> None:
    data = event.data
    _close_intent(state, event)
    state.state = "promoted"
    state.strategy = data["strategy"]
    state.result = Result(data["commit"], data["branch"], data.get("pr_url"), data.get("patch"))


def _ended(state: SessionState, event: Event) -> None:
    how = event.data["state"]
    if how not in ENDED:
        raise _impossible(state, event, f"{how!r} is not an end ({', '.join(sorted(ENDED))})")
    if state.intent is not None:
        raise _impossible(state, event, f"the promotion of {state.intent.commit} is still open")
    # promote.done is itself the end; session.ended may still say so.
    if state.ended and not (how == state.state == "promoted"):
        raise _impossible(state, event, f"the session already ended as {state.state}")
    state.state = cast(StateName, how)


def _archive(state: SessionState, event: Event) -> None:
    state.archive = event.data


def _removed(state: SessionState, _event: Event) -> None:
    state.workspace_present = False


_ACTIVE, _ANY = frozenset({"active"}), frozenset({"active", "ended"})

BIRTHS: Mapping[str, Callable[[Event], SessionState]] = {"session.created": _created, "session.imported": _imported}

RULES: Mapping[str, Rule] = {
    "workspace.ready": Rule(_ACTIVE, use=True, apply=_ready),
    "session.accessed": Rule(_ACTIVE, use=True),
    "session.write": Rule(_ACTIVE, use=True, apply=_write),
    "session.commit": Rule(_ACTIVE, use=True, apply=_commit),
    "session.extended": Rule(_ACTIVE, use=True, apply=_extended),
    "session.activity": Rule(_ACTIVE, apply=_activity),
    "promote.intent": Rule(_ACTIVE, apply=_intent),
    "promote.done": Rule(_ACTIVE, use=True, apply=_done),
    "promote.aborted": Rule(_ACTIVE, apply=_close_intent),
    "promote.conflict": Rule(_ACTIVE, use=True),
    "worktree.updated": Rule(_ANY),
    "worktree.stale": Rule(_ANY),
    "archive.written": Rule(_ANY, apply=_archive),
    "session.ended": Rule(_ANY, apply=_ended),
    "workspace.removed": Rule(_ANY, apply=_removed),
    "durable.moved": Rule(_ANY),
    "log.recovered": Rule(_ANY),
}


def _born(event: Event) -> SessionState:
    birth = BIRTHS.get(event.type)
    if birth is None or event.seq:
        raise LogDamaged(
            f"Session {event.stream!r} begins with {event.type!r} (event {event.seq}).",
            why="A session begins with session.created or session.imported as event 0.",
        )
    return birth(event)


def _step(state: SessionState, event: Event) -> None:
    if event.seq != state.seq + 1 or event.stream != state.id:
        raise InvalidInput(
            f"Event {event.seq} of {event.stream!r} does not follow event {state.seq} of {state.id!r}.",
            why="A fold over events with a hole would be wrong without anybody noticing.",
            fix="Pass the events in between too: log.refresh() has them.",
        )
    rule = RULES.get(event.type)
    if rule is None and event.type not in BIRTHS:
        raise MetadataVersionUnsupported(
            f"Event {event.seq} of session {event.stream!r} is {event.type!r}, which this engine does not know.",
            why="What it changed would be missed.",
            fix="Use the engine that wrote it, or a newer one.",
        )
    if rule is None or ("ended" if state.ended else "active") not in rule.when:
        raise _impossible(state, event, f"the session is {state.state}")
    rule.apply(state, event)
    state.seq = event.seq
    state.updated_ns = event.ts
    if rule.use:
        state.last_access_ns = event.ts


def _copied(state: SessionState) -> SessionState:
    twin = copy.copy(state)
    twin.api_touched = dict(state.api_touched)
    twin.commits = list(state.commits)
    return twin


def _impossible(state: SessionState, event: Event, why: str) -> LogDamaged:
    return LogDamaged(
        f"Event {event.seq} of session {state.id!r} is {event.type!r}, which cannot happen: {why}.",
        why="Somebody wrote without the lease, or the file was put together from two.",
    )


# Spellings of the record. -------------------------------------------------------------------------------------------------------

# fmt: off
_RECORD_KEYS = frozenset({
    "metadataVersion", "id", "task", "durableRef", "durablePath", "durableBranch", "ephemeralRef", "ephemeralPath", "baselineSha",
    "workspaceKind", "isGitBacked", "state", "createdAt", "updatedAt", "lastAccessAt", "evictionPolicy", "touchedFiles", "promote",
})
# fmt: on


def _known(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def _instant(ns: int) -> str:
    return format_instant(instant_at(ns))


def _milliseconds(ns: int | None) -> int | float | None:
    if ns is None:
        return None
    whole, rest = divmod(ns, _MILLISECOND)
    return ns / _MILLISECOND if rest else whole


def _nanoseconds(ms: float | None) -> int | None:
    return None if ms is None else round(ms * _MILLISECOND)
