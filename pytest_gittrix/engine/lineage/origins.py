"""How sessions come to be: from the head of a branch, after one that crashed, out of one that is handed on, or as a fork of one.

It must not know how they end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.engine.lineage.fork import FilesOf, Fork, Source, check_files, check_seq, summary_of
from pytest_gittrix.engine.lineage.handoff import Handoff, Succession
from pytest_gittrix.engine.lineage.start import Beginning, Start, check_identity, known
from pytest_gittrix.engine.operations.ids import claim
from pytest_gittrix.engine.operations.operation import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.state.fold import Policy, fold
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.workspaces.workspace import Workspace, check_kind

Made = tuple[Recorder, Workspace]


@dataclass(frozen=True)
class Origins:
    """How sessions of one engine come to be.

    Attributes:
        store: where they are kept.
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
        ephemeral: LocalEphemeral,
        policy: Policy,
        strategy: str | None,
        parent: str | None,
        id_: str | None,
        identity: Mapping[str, str],
    ) -> Made:
        """Start a session from a branch's head; ``GitTrix.start_session`` says how and what it raises."""
        origin = Succession(self.recorder_of(parent)) if parent is not None else None
        facts = known(check_identity(identity))
        return self._start(Beginning(check_text(task, "task"), durable, branch, ephemeral, policy, strategy, facts, origin), id_)

    def _start(self, beginning: Beginning, id_: str | None = None) -> Made:
        return Start(self.store, self.recorder_of, self.resources, lambda: self._claimed(id_)).run(beginning)

    def _claimed(self, id_: str | None = None) -> tuple[str, Lease]:
        return claim(self.store, self.ids, id_)

    def hand_on(self, recorder: Recorder, *, task: str | None, policy: Policy | None, id_: str | None, identity: Mapping[str, str]) -> str:
        """Hand a session's workspace on to a new one; gives its id. ``UserSession.handoff`` says how and what it raises."""
        changes: dict[str, Any] = {} if task is None else {"task": check_text(task, "task")}
        told = check_identity(identity)
        with recorder.working("handoff", "human") as state:
            changes["policy"] = (policy or state.policy).to_data()
            changes["identity"] = known({**state.identity, "step_ref": None, **told})  # a step is of the session that began it
            return Handoff(self.recorder_of).run(recorder, state, lambda: self._claimed(id_), changes)

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
        which, told = check_files(files), check_identity(identity)
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
        durable = self.resources.durable_of(state)
        history = events[0].data.get("history", "none")
        kind = check_kind(state.workspace_kind)
        ephemeral = replace(self.resources.ephemeral, kind=kind, history=history)
        source = Source(
            parent,
            state,
            events,
            lambda: self.resources.open_workspace(state),
            lambda: durable.seed(self.resources.seeds(), state.baseline, history),
            ephemeral.limits,
        )
        said = summary_of(events[seq + 1 :]) if summary is True else check_text(summary, "summary") if summary else None
        origin = Fork(parent, state.root, events[: seq + 1], source.files(seq, which), ephemeral.limits, said)
        return self._start(
            Beginning(
                new_task or then.task,
                durable,
                state.durable_branch or durable.branch,
                ephemeral,
                policy or then.policy,
                None if then.ended else then.strategy,
                known({**then.identity, **told}),
                origin,
                state.baseline,
            ),
            id_,
        )
