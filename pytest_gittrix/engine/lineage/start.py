"""Starting a session: a record, a workspace, and nothing left behind if it fails.

The record comes first, so that after a kill a recovery knows what was being started.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Durable, Ephemeral
from pytest_gittrix.engine.lineage.initial_files import InitialFiles, place_initial_files, to_data
from pytest_gittrix.engine.lineage.provisions import provide
from pytest_gittrix.engine.operations.moved_refs import REFERENCES, note_references
from pytest_gittrix.engine.operations.recorder import Recorder, convert_os_errors
from pytest_gittrix.engine.operations.resources import Resources, durable_ref, local_ref
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.engine.promotion.strategy import check_strategy
from pytest_gittrix.errors import CapabilityMissing, GittrixError, InvalidInput, did_you_mean
from pytest_gittrix.os_level.files import sync_file_system
from pytest_gittrix.record.eventlog.events import Event, path_fields
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.state.values import IDENTITY, Lineage, Policy
from pytest_gittrix.workspaces.kinds import WITH_OWN_GIT
from pytest_gittrix.workspaces.workspace import Workspace


def check_identity(facts: Mapping[str, str | None]) -> dict[str, str | None]:
    """Validate an identity: who works in a session, and on what. None removes a fact.

    Raises:
        InvalidInput: a name is none of ``IDENTITY``, or a value is no text.
    """
    unknown = [name for name in facts if name not in IDENTITY]
    if unknown:
        raise InvalidInput(
            f"Unknown identity field {unknown[0]!r}.",
            fix=f"{did_you_mean(unknown[0], IDENTITY)}Use: {', '.join(IDENTITY)}.",
        )
    return {name: value if value is None else check_text(value, name) for name, value in facts.items()}


def with_values(facts: Mapping[str, str | None]) -> dict[str, str]:
    """The facts that have a value."""
    return {name: value for name, value in facts.items() if value is not None}


def require_created(state: SessionState, first: Event | None, what: str) -> Event:
    """The event with which a session of this engine begins.

    Args:
        state: the session.
        first: the first event of its log.
        what: what is to happen to it, for the message.

    Raises:
        CapabilityMissing: another system started it.
    """
    if first is not None and first.type == "session.created":
        return first
    raise CapabilityMissing(
        f"Session {state.id} was started by another system, and cannot be {what}.",
        why="Too little is known of its start to start another session like it.",
        fix="Promote or discard it, and start a new one.",
    )


class Origin(Protocol):
    """Where a new session comes from: a crashed session, or one that is forked."""

    def check(self) -> None:
        """Refuse a new session before anything is made. Raises SessionExpired."""

    def lineage(self, id_: str) -> Lineage:
        """The lineage of the child of that id. Raises as ``check``."""

    def fill(self, child: Recorder, workspace: Workspace) -> None:
        """Copy what the child inherits, before it can be used."""

    def undo(self, id_: str) -> None:
        """Remove every mention of the child, since its start failed."""


@dataclass(frozen=True)
class SessionStart:
    """The start of one session: its arguments, and ``run``, which makes it.

    Attributes:
        task: what the agent is to do.
        durable: the repository.
        branch: of it; the session starts from its head.
        ephemeral: how its workspace is made.
        policy: when it is evicted.
        strategy: what ``auto`` means for it.
        identity: who works in it, and on what.
        origin: the session that it comes from.
        baseline: the commit it starts from; the branch's head by default.
        initial_files: what its workspace has in addition to the baseline.
        keep_after_promote: whether it goes on after a promotion to a pull request.
        id: its id, if the caller chose it.
    """

    task: str
    durable: Durable
    branch: str
    ephemeral: Ephemeral
    policy: Policy
    strategy: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    origin: Origin | None = None
    baseline: str | None = None
    initial_files: InitialFiles = field(default_factory=dict)
    keep_after_promote: bool = False
    id: str | None = None

    def run(self, resources: Resources) -> tuple[Recorder, Workspace]:
        """Start the session; ``GitTrix.start_session`` says what is raised.

        Returns:
            Its record and its workspace.
        """
        if self.origin is not None:
            self.origin.check()
        baseline = self.baseline or self.durable.head(self.branch)
        points.reached("start:head-read")
        recorder, lease = resources.claim(self.id)
        try:
            with convert_os_errors():
                try:
                    workspace = self._make(resources, recorder, baseline)
                finally:
                    lease.release()
            resources.order_spares(self.ephemeral, self.durable, self.branch)
            return recorder, workspace
        except BaseException:
            with suppress(OSError, GittrixError):  # the next recovery removes it
                if self.origin is not None:
                    self.origin.undo(recorder.id)
                resources.trash.discard(str(recorder.directory))
            raise

    def _make(self, resources: Resources, recorder: Recorder, baseline: str) -> Workspace:
        directory, sync = recorder.directory, recorder.store.durability == "full"
        path = str(directory / "workspace")
        recorder.append("session.created", self._created(recorder.id, baseline, path), actor="human", commit_point=True)
        points.reached("start:created")
        seed = self.durable.seed(resources.seeds(), baseline, self.ephemeral.history)
        points.reached("start:seeded")
        workspace = resources.create_workspace(self.ephemeral, directory, seed, durable=self.durable, branch=self.branch)
        try:
            note_references(directory / "engine", recorder.store.root / REFERENCES, self.durable, sync=sync)
            given = provide(self.ephemeral, self.durable, workspace, resources)
            place_initial_files(recorder, workspace, self.initial_files)
            if self.origin is not None:
                self.origin.fill(recorder, workspace)
                points.reached("start:filled")
            if sync:
                # A workspace that a power cut emptied would look as if the agent had emptied it.
                sync_file_system(str(directory))
            recorder.append("workspace.ready", {**path_fields(path), **given}, commit_point=True)
            recorder.derive()
            points.reached("start:ready")
        except BaseException:
            workspace.remove(resources.trash)  # also removes a worktree from durable's list
            raise
        return workspace

    def _created(self, id_: str, baseline: str, workspace: str) -> dict[str, Any]:
        """The data of ``session.created`` for an id and the path of a workspace. Raises InvalidInput for an unknown strategy."""
        data: dict[str, Any] = {
            "task": self.task,
            "durable_ref": durable_ref(self.durable, self.branch),
            **path_fields(self.durable.path or "", "durable_path"),
            "durable_branch": self.branch,
            "baseline": baseline,
            "ephemeral_ref": local_ref(workspace) if self.ephemeral.address is None else f"{self.ephemeral.address}/{id_}",
            **path_fields(workspace, "workspace"),
            "workspace_kind": self.ephemeral.kind,
            "git_backed": self.ephemeral.kind in (*WITH_OWN_GIT, "worktree"),
            "policy": self.policy.to_data(),
            "format": "sha256" if len(baseline) == 64 else "sha1",
            "history": self.ephemeral.history,
        }
        if self.strategy is not None:
            data["strategy"] = check_strategy(self.strategy)
        if self.identity:
            data["identity"] = dict(self.identity)
        if self.initial_files:
            data["seed_files"] = to_data(self.initial_files)
        if self.keep_after_promote:
            data["keep_after_promote"] = True
        if self.origin is not None:
            data["lineage"] = self.origin.lineage(id_).to_data()
        return data
