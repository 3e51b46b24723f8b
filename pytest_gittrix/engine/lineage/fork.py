"""Forking a session: start another one with its conversation and files as they were after an event (Pixir).

The child's log begins with its lineage, then the conversation up to that event, with its times and under new numbers. Its workspace
is as the parent's was then, on the parent's baseline. The parent is only read. See docs/explanation/you-know-pixir.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from pytest_gittrix import points
from pytest_gittrix.engine.lineage.initial_files import read_initial_files
from pytest_gittrix.engine.lineage.start import SessionStart, check_identity, require_created, with_values
from pytest_gittrix.engine.operations.attachments import share
from pytest_gittrix.engine.operations.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    Files,
    checkpoint_at,
    files_at,
    save_checkpoint,
    write_files,
)
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.operations.review import current_snapshot
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import AdapterUnavailable, Advice, InvalidInput
from pytest_gittrix.record.eventlog.events import Event, path_fields
from pytest_gittrix.record.eventlog.vocabulary import CONVERSATION
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.state.values import Lineage, Policy
from pytest_gittrix.workspaces.seeds.seed import History, Seed
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace

FilesOf = Literal["then", "now", "baseline"]
FILES: Final[tuple[FilesOf, ...]] = get_args(FilesOf)

REPLAYED: Final = frozenset({*CONVERSATION, "step.started", "step.completed"}) - {
    "branch_summary",
    "history_compaction",
    "provider_usage",
    "turn_failed",
}
"""The events that a fork takes along: those that a model can be shown again."""

Take = Callable[[], Files]


def check_files(value: object) -> FilesOf:
    """Validate which files a fork begins with. Raises InvalidInput, which lists the ways."""
    if value in FILES:
        return value
    raise InvalidInput(f"files={value!r} is not one of the ways to begin a fork.", fix=f"Use one of: {', '.join(FILES)}.")


def check_seq(value: int | None, state: SessionState) -> int:
    """Validate the event to fork after; the last one by default. Raises InvalidInput, which says the range."""
    if value is None:
        return state.seq
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= state.seq:
        raise InvalidInput(
            f"Session {state.id} has no event {value!r}.",
            fix=Advice(
                f"Its events are 0 to {state.seq}; history() shows them.", f"`gittrix session history` shows its events, 0 to {state.seq}."
            ),
        )
    return value


def summary_of(events: Sequence[Event]) -> str:
    """A summary of a part of a conversation in one line: the number of messages, and the tools that were called."""
    counts = Counter(event.type for event in events if event.type in CONVERSATION)
    tools = Counter(event.data["name"] for event in events if event.type == "tool_call")
    messages = ", ".join(f"{count} {type_.replace('_', ' ')}{'s' * (count > 1)}" for type_, count in sorted(counts.items()))
    called = ", ".join(f"{name} ({count})" for name, count in sorted(tools.items()))
    return f"Left out: {messages or 'nothing'}." + (f" Tools called: {called}." if called else "")


@dataclass(frozen=True)
class Fork:
    """The origin of a session that is forked from another.

    Attributes:
        parent: the record of the other session.
        root: the parent's first ancestor by forks.
        events: of the parent, up to the one after which the fork is made.
        take: reads the files that the child begins with.
        limits: sizes that a snapshot may have.
        summary: of the events that are left out, if one is to be recorded.
    """

    parent: Recorder
    root: str
    events: Sequence[Event]
    take: Take
    limits: Limits
    summary: str | None = None

    def check(self) -> None:
        """Any session can be forked; its files were found before."""

    def lineage(self, id_: str) -> Lineage:
        """The child's lineage: the parent's root, and the first of a new chain."""
        forked = self.events[0].data.get("lineage", {}).get("relation") == "fork"  # then the fork is the first event of a conversation
        count = sum(event.type in CONVERSATION for event in self.events) + forked
        return Lineage(self.parent.id, "fork", id_, self.root, self.events[-1].seq, count)

    def fill(self, child: Recorder, workspace: Workspace) -> None:
        """Give the child the conversation, its attachments, and the files."""
        child.take_over([event for event in self.events if event.type in REPLAYED])
        if self.summary is not None:
            left_out = {"parent_session_id": self.parent.id, "to_seq": self.events[-1].seq}
            child.append("branch_summary", {"summary": self.summary, **left_out}, actor="human")
        share(self.parent.directory, child.directory, sync=child.store.durability == "full")
        points.reached("fork:said")
        files = self.take()
        with workspace.operation():
            write_files(workspace, files)
        if files.bases:
            workspace.store_baseline(workspace.seed, files.bases)
        for path, entry in files.changes.items():
            child.append("session.write", {**path_fields(path), "op": "write" if entry is not None else "delete"}, actor="agent")
        points.reached("fork:filled")
        if files.changes or files.left_out:
            state = child.read()
            save_checkpoint(child, state, current_snapshot(state, workspace, self.limits), left_out=files.left_out)

    def undo(self, id_: str) -> None:
        """Do nothing: only the child's log has the fork."""


@dataclass(frozen=True)
class ForkRequest:
    """The arguments of one ``UserSession.fork``, which says what each means."""

    at_seq: int | None = None
    task: str | None = None
    summary: str | bool | None = None
    files: FilesOf = "then"
    policy: Policy | None = None
    id: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)

    def start_from(self, parent: Recorder, resources: Resources) -> SessionStart:
        """The start of the fork of a session. Raises as ``UserSession.fork``."""
        which, identity = check_files(self.files), check_identity(self.identity)
        task = None if self.task is None else check_text(self.task, "task")
        state = parent.read()
        seq = check_seq(self.at_seq, state)
        events = parent.log.twin().read()[: state.seq + 1]
        created = require_created(state, events[0] if events else None, "forked")
        then = fold(events[: seq + 1])
        base = state if which == "now" else then
        durable = resources.durable_of(state)
        history = created.data.get("history", "none")
        ephemeral = resources.ephemeral_of(state).with_kind(state.workspace_kind or "copy", history)
        files = ForkFiles(parent, state, events, resources, base.baseline, history, ephemeral.limits)
        take = files.files(None if self.at_seq is None else seq, which)
        left_out = summary_of(events[seq + 1 :]) if self.summary is True else check_text(self.summary, "summary") if self.summary else None
        return SessionStart(
            task or then.task,
            durable,
            base.durable_branch or durable.branch,
            ephemeral,
            self.policy or then.policy,
            None if then.ended else then.strategy,
            with_values({**then.identity, **identity}),
            Fork(parent, state.root, events[: seq + 1], take, ephemeral.limits, left_out),
            base.baseline,
            read_initial_files(parent.directory, base.initial_files),
            id=self.id,
        )


@dataclass(frozen=True)
class ForkFiles:
    """The files of a session that is forked.

    Attributes:
        recorder: its record.
        state: its state now.
        events: all of its events.
        resources: open its workspace and its durable repository.
        baseline: the commit that the fork begins at.
        history: how much history its workspace contains.
        limits: sizes that a snapshot may have.
    """

    recorder: Recorder
    state: SessionState
    events: list[Event]
    resources: Resources
    baseline: str
    history: History
    limits: Limits

    def _seed(self) -> Seed:
        return self.resources.durable_of(self.state).seed(self.resources.seeds(), self.baseline, self.history)

    def _workspace(self) -> Workspace:
        return self.resources.open_workspace(self.state)

    def files(self, seq: int | None, which: FilesOf) -> Take:
        """A function that reads the initial files of a fork after an event. What can fail fails here, before anything is made.

        Args:
            seq: the event; None for the last one, whatever it is.
            which: which files.

        Raises:
            InvalidInput: the files were not saved then.
            AdapterUnavailable: the session has ended, and its files are gone with its workspace.
        """
        if which == "baseline":
            return lambda: Files({}, {})
        checkpoint = checkpoint_at(self.events, seq) if which == "then" and seq is not None and not self._is_now(seq) else None
        if checkpoint is not None and checkpoint.id in (None, self._seed().root):
            return lambda: Files({}, {})
        if self.state.ended:
            return self._set_aside(checkpoint)
        if checkpoint is None:
            return self._now
        id_ = checkpoint.id or ""
        return lambda: self._then(id_)

    def _is_now(self, seq: int) -> bool:
        """Whether the files after an event are those of now. After an exchange, the agent did what its answer called."""
        return seq == self.state.seq and self.events[seq].type != "model.exchange"

    def _then(self, id_: str) -> Files:
        seed = self._seed()
        files = files_at(self.recorder.directory.joinpath(*CHECKPOINTS), seed, id_)
        if (self.state.kept is None and self.state.lineage is None) or seed.commit != self.state.baseline:
            return files
        return replace(files, bases=self._workspace().bases)

    def _now(self) -> Files:
        with self.recorder.leased() as state:
            snapshot = current_snapshot(state, self._workspace(), self.limits).since(self._seed())
        return Files(snapshot.changes, snapshot.blobs, snapshot.left_out, snapshot.bases)

    def _set_aside(self, checkpoint: Checkpoint | None) -> Take:
        archive, ended = self.state.archive, self.state.state
        if checkpoint is None and archive is not None and "commit" in archive:
            return lambda: files_at(self.recorder.directory / "archive.git", self._seed(), archive["commit"])
        if checkpoint is None and ended != "promoted" and self.state.successor is None and archive is None:
            return lambda: Files({}, {})
        raise AdapterUnavailable(
            f"The files of session {self.state.id} are gone: it is {self.state.outcome or ended}.",
            why="They were removed with its workspace.",
            fix=Advice(
                f"Fork {self.state.successor or 'a live session'}, or begin with files='baseline'.",
                f"Fork {self.state.successor or 'a live session'}, or begin with --files baseline.",
            ),
        )
