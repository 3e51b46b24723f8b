"""The origins of sessions: the head of a branch, a crashed session, a session that is handed on, or a fork."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pytest_gittrix.backends.protocol import Durable, Ephemeral
from pytest_gittrix.engine.lineage.fork import FilesOf, Fork, Source, check_files, check_seq, summary_of
from pytest_gittrix.engine.lineage.handoff import Handoff, Succession
from pytest_gittrix.engine.lineage.seed_files import check_seed_files, read_seed_files
from pytest_gittrix.engine.lineage.start import Beginning, Start, check_identity, with_values
from pytest_gittrix.engine.operations.ids import claim_id
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.operations.review import catch_up
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.state.fold import Policy, fold
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.workspaces.workspace import Workspace

Made = tuple[Recorder, Workspace]

_OF_AN_AGENT: Final = ("tmux_session", "cwd")
"""What of an identity is where its agent works, and not what it works on."""


@dataclass(frozen=True)
class Origins:
    """Making the sessions of one engine.

    Attributes:
        store: where they are stored.
        recorder_of: makes the recorder of a session.
        resources: repositories, seeds and workspaces.
        ids: makes ids.
    """

    store: Store
    recorder_of: Callable[[str], Recorder]
    resources: Resources
    ids: Callable[[], str]

    def begin(
        self,
        task: str,
        durable: Durable,
        branch: str,
        *,
        ephemeral: Ephemeral,
        policy: Policy,
        strategy: str | None,
        parent: str | None,
        id_: str | None,
        identity: Mapping[str, str],
        seed_files: Mapping[str, bytes | str] | None = None,
        keep_after_promote: bool = False,
    ) -> Made:
        """Start a session from a branch's head; ``GitTrix.start_session`` says how and what it raises."""
        origin = Succession(self.recorder_of(parent)) if parent is not None else None
        facts = with_values(check_identity(identity))
        given = check_seed_files(seed_files, ephemeral.limits.max_file)
        beginning = Beginning(
            check_text(task, "task"),
            durable,
            branch,
            ephemeral,
            policy,
            strategy,
            facts,
            origin,
            seed_files=given,
            keep_after_promote=keep_after_promote,
        )
        return self._start(beginning, id_)

    def _start(self, beginning: Beginning, id_: str | None = None) -> Made:
        return Start(self.store, self.recorder_of, self.resources, lambda: self._claim(id_)).run(beginning)

    def _claim(self, id_: str | None = None) -> tuple[str, Lease]:
        return claim_id(self.store, self.ids, id_)

    def hand_on(self, recorder: Recorder, *, task: str | None, policy: Policy | None, id_: str | None, identity: Mapping[str, str]) -> str:
        """Hand a session's workspace on to a new one; returns its id. ``UserSession.handoff`` says how and what it raises."""
        changes: dict[str, Any] = {} if task is None else {"task": check_text(task, "task")}
        new_identity = check_identity(identity)
        with recorder.working("handoff", "human") as state:
            if state.kept is not None:
                catch_up(self.resources.open_workspace(state), state)
            changes["policy"] = (policy or state.policy).to_data()
            changes["identity"] = with_values({**_handed_on(state.identity, new_identity), **new_identity})
            return Handoff(self.recorder_of).run(recorder, state, lambda: self._claim(id_), changes)

    def fork(
        self,
        parent: Recorder,
        at_seq: int | None,
        *,
        task: str | None,
        summary: str | bool | None,
        files: FilesOf,
        policy: Policy | None,
        id_: str | None,
        identity: Mapping[str, str | None],
    ) -> Made:
        """Start a session that begins as another one was; ``UserSession.fork`` says how and what it raises."""
        which, new_identity = check_files(files), check_identity(identity)
        new_task = None if task is None else check_text(task, "task")
        state = parent.read()
        seq = check_seq(at_seq, state)
        events = parent.log.twin().read()[: state.seq + 1]
        if not events or events[0].type != "session.created":
            raise CapabilityMissing(
                f"Session {state.id} was started by another system, and cannot be forked.",
                why="What it began with is not known well enough to begin another with it.",
                fix="Promote or discard it, and start a new one.",
            )
        then = fold(events[: seq + 1])
        base = state if which == "now" else then
        durable = self.resources.durable_of(state)
        history = events[0].data.get("history", "none")
        ephemeral = self.resources.ephemeral_of(state).with_kind(state.workspace_kind or "copy", history)
        source = Source(
            parent,
            state,
            events,
            lambda: self.resources.open_workspace(state),
            lambda: durable.seed(self.resources.seeds(), base.baseline, history),
            ephemeral.limits,
        )
        left_out = summary_of(events[seq + 1 :]) if summary is True else check_text(summary, "summary") if summary else None
        origin = Fork(parent, state.root, events[: seq + 1], source.files(seq, which), ephemeral.limits, left_out)
        return self._start(
            Beginning(
                new_task or then.task,
                durable,
                base.durable_branch or durable.branch,
                ephemeral,
                policy or then.policy,
                None if then.ended else then.strategy,
                with_values({**then.identity, **new_identity}),
                origin,
                base.baseline,
                read_seed_files(parent.directory, base.seed_files),
            ),
            id_,
        )


def _handed_on(identity: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The facts that a handoff keeps: a step belongs to the session that began it, terminal and directory to the agent."""
    other = changes.get("agent") not in (None, identity.get("agent"))
    return {name: value for name, value in identity.items() if name != "step_ref" and not (other and name in _OF_AN_AGENT)}
