"""The values that make up the state of one session. ``fold`` computes them from events, ``metadata`` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from pytest_gittrix.errors import LogDamaged
from pytest_gittrix.record.eventlog.events import Event, path_of
from pytest_gittrix.record.state.lifecycle import KINDS, Life, RunEnd, opened

StateName = Literal["active", "promoted", "discarded", "expired"]
OUTCOMES: tuple[str, ...] = ("done", "crash", "killed")
"""How an agent can have ended, except by a handoff (Gas Town)."""
IDENTITY: tuple[str, ...] = (
    *("agent", "rig", "role", "tmux_session", "work_unit", "molecule_id", "step_ref", "cwd", "topic_branch"),
    *("project", "issue", "runtime", "agent_session"),
)
"""The keys of an identity: who works in a session, and on what (Gas Town and agent-orchestrator)."""
EARLIER_IDENTITY: Mapping[str, str] = {"branch": "topic_branch"}
"""Keys of today by those that older logs have instead."""
_ENDINGS: Mapping[str, str] = {"promoted": "done", "discarded": "killed", "expired": "killed"}
ENDED: frozenset[str] = frozenset({"promoted", "discarded", "expired"})

_HOUR = 3_600_000_000_000


class Policy(NamedTuple):
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
        return self._asdict()

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Policy:
        """Read what :meth:`to_data` wrote."""
        return cls(**data)


NEVER_SWEPT: Final = Policy(ttl_idle_ns=None, ttl_absolute_ns=None, manual=True)
"""The eviction policy of a session with a life cycle: ``retention`` decides when its workspace goes."""


class Intent(NamedTuple):
    """A promotion that was about to happen, and whose end is not in the log yet.

    Attributes:
        commit, parent, ref, tree, paths_digest, count: as in ``promote.intent``.
        data: the whole event, with its optional keys.
        seq, ts: of the event.
    """

    commit: str
    parent: str
    ref: str
    tree: str
    paths_digest: str
    count: int  # type: ignore[assignment]  # it hides the method of a tuple
    data: Mapping[str, Any]
    seq: int
    ts: int


class Result(NamedTuple):
    """Where the promoted work is: the commit, the branch it is on, and the pull request's address if there is one."""

    sha: str
    branch: str
    pr_url: str | None = None
    patch: str | None = None


class Kept(NamedTuple):
    """The last promotion after which the session went on, and the rebases since the session began.

    Attributes:
        commit: what it made, which was the session's baseline then; without a promotion, what the first rebase went to.
        branch: the branch that the commit is on, which is the session's since.
        pr_url: the address of the pull request of that branch, if a promotion of this session opened it.
        merged: as in ``promote.kept``, or in ``session.rebased`` if that was later.
        promoted: as in ``promote.kept``; None where durable had not changed since the baseline before, and nothing after a rebase.
        origin: the branch that the session was of before its promotions made branches of their own.
        strategy: the strategy of the promotion that made the branch; ``commit`` if none did.
        rebased: the baselines that rebases went to, and that no promotion of the session made.
    """

    commit: str
    branch: str
    pr_url: str | None = None
    merged: Sequence[Mapping[str, Any]] = ()
    promoted: Sequence[Mapping[str, Any]] | None = None
    origin: str | None = None
    strategy: str = "commit"
    rebased: Sequence[str] = ()


class Lineage(NamedTuple):
    """Where a session comes from.

    Attributes:
        parent: the session before it.
        relation: ``handoff`` or ``crash`` (it goes on with the parent's work), or ``fork`` (it goes another way).
        chain: the first session of the line of handoffs.
        root: the first ancestor by forks.
        at_seq: the event of the parent after which the fork was made.
        said: the number of events of the parent's conversation up to that one.
    """

    parent: str
    relation: str
    chain: str
    root: str
    at_seq: int | None = None
    said: int | None = None

    def to_data(self) -> dict[str, Any]:
        """The lineage as ``session.created`` holds it."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass
class SessionState:
    """One session as its events leave it. A value: ``fold`` makes new ones and never changes one it has returned.

    Times are nanoseconds since 1970 UTC; paths are text with bytes that are not UTF-8 as surrogate escapes.

    Attributes:
        id, task, durable_ref, durable_path, durable_branch, baseline, ephemeral_ref, workspace, workspace_kind, git_backed: as started.
        format: object format of durable, ``sha1`` or ``sha256``; None when a TypeScript store did not say.
        initial_files: the files that it was given in addition to its baseline: by path, the name of the attachment with the bytes.
        policy: the eviction policy now in force.
        created_ns: when it started. updated_ns: when anything last happened. last_access_ns: when it was last used or its files changed.
        state: ``active``, or how it ended.
        api_touched: paths written or deleted through the session, in the order of their first use; with the last ``op``.
        api_deleted: those of them whose last ``op`` was a deletion.
        api_untouched: those of them that were as in the baseline when the files were last looked at.
        program_touched: paths that differed from the baseline then, and that were not written through the session before.
        commits: shas of the agent's commits, oldest first.
        strategy, result: of the promotion.
        intent: the promotion that has not ended in the log.
        kept: the last promotion after which the session went on, and its rebases; None if there were none. They moved ``baseline``, and
            promotions ``durable_branch``.
        earlier_baselines: the baselines before that one, oldest first; the workspace was made from the first.
        keep_after_promote: whether it goes on after a promotion to a pull request that does not say otherwise.
        workspace_present: whether the workspace is complete and not removed.
        checkpoint: the tree that was saved last; see ``workspace.kept``.
        steps: the steps that began and did not end, outermost first.
        changed_since_checkpoint: whether files were written through the session since.
        turn: the turn that has not ended in the log.
        said: the number of events of its conversation; of a fork, its beginning is one of them (Pixir).
        calls: tool calls without a result, by their id; each with the tool's name.
        identity: who works in it, and on what; see ``IDENTITY``.
        lineage: the session it came from; None for the first of its line.
        ended_ns: when it ended.
        outcome: how its agent did, if the caller that ended it said.
        successor: the session it was handed to.
        handoff: the child of a handoff that has not ended in the log.
        archive: what was set aside of unpromoted work, as in ``archive.written``.
        life: its life cycle; None without one. ``state`` is active until it is removed.
        seq: of the last event folded; -1 when there is no log.
        legacy: it comes from a TypeScript record and has no log yet.
        extra: keys of that record that this engine does not know, which it writes back unchanged.
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
    api_deleted: frozenset[str] = frozenset()
    api_untouched: frozenset[str] = frozenset()
    program_touched: frozenset[str] = frozenset()
    commits: list[str] = field(default_factory=list)
    strategy: str = "auto"
    result: Result | None = None
    intent: Intent | None = None
    kept: Kept | None = None
    earlier_baselines: tuple[str, ...] = ()
    keep_after_promote: bool = False
    workspace_present: bool = False
    checkpoint: str | None = None
    changed_since_checkpoint: bool = False
    steps: tuple[str, ...] = ()
    turn: str | None = None
    said: int = 0
    calls: dict[str, str] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    lineage: Lineage | None = None
    initial_files: Mapping[str, str] = field(default_factory=dict)
    ended_ns: int | None = None
    outcome: str | None = None
    successor: str | None = None
    handoff: str | None = None
    archive: Mapping[str, Any] | None = None
    life: Life | None = None
    seq: int = -1
    legacy: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def touched(self) -> list[str]:
        """What the session is known to have touched: by programs as of the last look at its files, through the session as of now.

        Paths written through the session come first, in the order of their first use.
        """
        through_session = [path for path in self.api_touched if path not in self.api_untouched]
        return through_session + sorted(self.program_touched.difference(self.api_touched))

    @property
    def ended(self) -> bool:
        """Whether the session is over; ended states are absorbing (rule 7, docs/explanation/rules.md)."""
        return self.state in ENDED

    @property
    def run(self) -> RunEnd | None:
        """The end of its agent's run; None while that goes on, and without a life cycle."""
        return None if self.life is None else self.life.run

    @property
    def ending(self) -> str | None:
        """Its outcome: the one that was given, or the one that follows from its end; None until then (Gas Town).

        A session with a life cycle ends here with its agent's run, although its workspace is retained afterwards.
        """
        if self.run is not None:
            return self.run.outcome
        return (self.outcome or _ENDINGS[self.state]) if self.ended else None

    @property
    def ending_ns(self) -> int | None:
        """When it ended in that sense, in nanoseconds since 1970 UTC."""
        return self.ended_ns if self.run is None else self.run.at_ns

    @property
    def chain(self) -> str:
        """The id that all sessions of one line of handoffs share: that of the first of them (Gas Town)."""
        return self.lineage.chain if self.lineage is not None else self.id

    @property
    def root(self) -> str:
        """The id of the first ancestor by forks; its own, if it was not forked (Pixir)."""
        return self.lineage.root if self.lineage is not None else self.id

    @property
    def kept_workspace(self) -> str | None:
        """The path of the workspace that a promotion without ``until_promote`` left in place; None otherwise."""
        stays = self.state == "promoted" and not self.policy.until_promote and self.workspace_present
        return self.workspace if stays else None

    @property
    def archived(self) -> bool:
        """Whether unpromoted work was set aside."""
        return self.archive is not None


def deadline_ns(state: SessionState) -> int | None:
    """The last instant at which the session is still inside its TTL, or None when it has none.

    It is expired if and only if now is *greater* (GitTrix). Idle time counts from the last use, absolute time from creation, and the
    sooner wins. ``manual`` exempts from both, and so does a life cycle, where ``retention`` decides. Ended sessions have a deadline, too.
    """
    policy = state.policy
    if policy.manual or state.life is not None:
        return None
    limits = []
    if policy.ttl_idle_ns is not None:
        limits.append(state.last_access_ns + policy.ttl_idle_ns)
    if policy.ttl_absolute_ns is not None:
        limits.append(state.created_ns + policy.ttl_absolute_ns)
    return min(limits, default=None)


# How a session begins. -----------------------------------------------------------------------------------------------------------

TWO_WRITERS = "A program wrote without the lease, or the file was put together from two."
"""Why a log has what cannot have happened."""
_AS_CREATED = ("task", "durable_ref", "durable_branch", "baseline", "ephemeral_ref", "workspace_kind", "git_backed", "format")


def created_state(event: Event) -> SessionState:
    """The state that ``session.created`` begins."""
    data = event.data
    return SessionState(
        id=event.stream,
        **{name: data[name] for name in _AS_CREATED},
        durable_path=path_of(data, "durable_path"),
        workspace=path_of(data, "workspace"),
        policy=Policy.from_data(data["policy"]),
        created_ns=event.ts,
        updated_ns=event.ts,
        last_access_ns=event.ts,
        strategy=data.get("strategy", "auto"),
        identity=current_identity(data.get("identity", {})),
        lineage=Lineage(**data["lineage"]) if "lineage" in data else None,
        initial_files={path_of(one): one["resource"] for one in data.get("seed_files", ())},
        earlier_baselines=tuple(data.get("earlier_baselines", ())),
        kept=Kept(**data["kept"]) if "kept" in data else None,
        keep_after_promote=data.get("keep_after_promote", False),
        said=int(data.get("lineage", {}).get("relation") == "fork"),
        seq=event.seq,
    )


def opened_state(event: Event) -> SessionState:
    """The state that ``session.opened`` begins. Raises LogDamaged for an unknown kind of session."""
    data = event.data
    if data["kind"] not in KINDS:
        raise LogDamaged(f"Session {event.stream!r} was opened as {data['kind']!r}, none of {', '.join(KINDS)}.", why=TWO_WRITERS)
    first = data["repositories"][0] if data["repositories"] else {}
    workspace = path_of(data, "workspace")
    identity = {
        "agent": data["member"],
        "rig": data.get("team"),
        "work_unit": data.get("work_item"),
        **current_identity(data.get("identity", {})),
    }
    return SessionState(
        id=event.stream,
        task=data["task"],
        durable_ref=first.get("url", "none:"),
        durable_path=None,
        durable_branch=first.get("branch"),
        baseline=first.get("commit") or "",
        ephemeral_ref=f"local://{workspace}",
        workspace=workspace,
        workspace_kind="repositories",
        git_backed=True,
        policy=Policy.from_data(data["policy"]),
        created_ns=event.ts,
        updated_ns=event.ts,
        last_access_ns=event.ts,
        identity={name: value for name, value in identity.items() if value is not None},
        life=opened(event),
        seq=event.seq,
    )


def current_identity(identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """An identity by today's keys; ``branch`` named the topic branch once."""
    if EARLIER_IDENTITY.keys().isdisjoint(identity):
        return identity
    return {EARLIER_IDENTITY.get(name, name): value for name, value in identity.items()}


def impossible(state: SessionState, event: Event, why: str) -> LogDamaged:
    """The error for an event that cannot have happened in a state."""
    return LogDamaged(
        f"Event {event.seq} of session {state.id!r} is {event.type!r}, which cannot happen: {why}.",
        why=TWO_WRITERS,
    )
