"""Sessions as their users hold them: the agent's object, which can only work, and the person's, which can also decide.

An ``AgentSession`` is built from the workspace, the seed and the log alone, so no chain of references leads from it to
durable or to a promotion (DESIGN 4.3, rule 6). A ``UserSession`` adds the engine.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.errors import WriteRejected
from pytest_gittrix.git.names import check_path
from pytest_gittrix.git.patch import patch_text
from pytest_gittrix.git.snapshot import Limits, Snapshot
from pytest_gittrix.git.workspace import Workspace
from pytest_gittrix.record.events import Actor, Event, passing_event, path_fields
from pytest_gittrix.record.state import SessionState, deadline_ns, metadata_of
from pytest_gittrix.session.archive import Archive
from pytest_gittrix.session.commits import AgentCommits, CommitEntry
from pytest_gittrix.session.content import (
    ListEntry,
    Review,
    baseline_entry,
    file_changes,
    file_exists,
    is_executable_below,
    list_files,
    read_file,
    require_no_directory,
    require_place,
)
from pytest_gittrix.session.conversation import check_announceable, check_recordable, check_types, normalised, picked
from pytest_gittrix.session.eviction import deleted_paths
from pytest_gittrix.session.inputs import check_contents, check_message, check_paths, check_text, check_ttl
from pytest_gittrix.session.recorder import Recorder
from pytest_gittrix.timetext import instant_at

if TYPE_CHECKING:
    from pytest_gittrix.record.model import EvictionPolicy
    from pytest_gittrix.session.manager import GitTrix, MovedRef
    from pytest_gittrix.session.promotion import PromoteResult
    from pytest_gittrix.session.turns import Turn, TurnFunction

__all__ = ["AgentSession", "CommitEntry", "ListEntry", "Review", "SessionInfo", "UserSession"]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a session is, at one moment. Field names follow GitTrix's SessionInfo; ``to_wire`` gives its camelCase JSON.

    Attributes:
        deadline: when it expires unless it is used before; None for never.
        capabilities: ``filesystem``, ``git``, ``shell``, ``isolated``, ``promote``, ``apiReadWrite`` and so on.
    """

    session_id: str
    task: str
    state: str
    durable_ref: str
    durable_path: str | None
    durable_branch: str | None
    ephemeral_ref: str
    workspace_path: str | None
    workspace_kind: str | None
    baseline_sha: str
    touched_files: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    last_access_at: datetime
    deadline: datetime | None
    capabilities: Mapping[str, bool]

    def to_wire(self) -> dict[str, Any]:
        """The same as JSON: camelCase keys, ISO-8601 times; keys without a value are left out."""
        from pytest_gittrix.timetext import format_instant

        def wire(value: object) -> object:
            if isinstance(value, datetime):
                return format_instant(value)
            return list(value) if isinstance(value, tuple) else value

        fields = asdict(self)
        return {_camel(name): wire(value) for name, value in fields.items() if value is not None}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def info_of(state: SessionState, workspace: Workspace | None, touched: Iterable[str]) -> SessionInfo:
    """A state as people see it; ``workspace`` is None when it is gone."""
    deadline = None if state.ended else deadline_ns(state)
    capabilities = workspace.capabilities if workspace is not None else None
    return SessionInfo(
        session_id=state.id,
        task=state.task,
        state=state.state,
        durable_ref=state.durable_ref,
        durable_path=state.durable_path,
        durable_branch=state.durable_branch,
        ephemeral_ref=state.ephemeral_ref,
        workspace_path=workspace.path if workspace is not None else None,
        workspace_kind=state.workspace_kind,
        baseline_sha=state.baseline,
        touched_files=tuple(touched),
        created_at=instant_at(state.created_ns),
        updated_at=instant_at(state.updated_ns),
        last_access_at=instant_at(state.last_access_ns),
        deadline=instant_at(deadline) if deadline is not None else None,
        capabilities={
            "filesystem": workspace is not None,
            "apiReadWrite": workspace is not None,
            "git": capabilities is not None and capabilities.git,
            "shell": capabilities is not None and capabilities.shell,
            "isolated": capabilities is None or capabilities.isolated,
            "patchImport": False,
            "patchExport": True,
            "promote": not state.ended,
        },
    )


class AgentSession:
    """What an agent gets: its files, and nothing that decides about them.

    Paths are relative, with ``/``; what would leave the workspace or could be taken for a git directory is refused. Every method raises
    ``SessionExpired`` once the session has ended, and slides its idle deadline while it has not.
    """

    _actor: Actor = "agent"

    def __init__(self, recorder: Recorder, workspace: Workspace, limits: Limits) -> None:
        self._recorder = recorder
        self._workspace = workspace
        self._limits = limits

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self._workspace.path}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._recorder.id

    @property
    def workspace_path(self) -> Path | None:
        """The workspace's root, fit as a working directory; None where the kind has no files to work on (``lazy``)."""
        return Path(self._workspace.path) if self._workspace.capabilities.shell else None

    def info(self) -> SessionInfo:
        """What the session is now."""
        with self._recorder.working("info", self._actor) as state:
            self._recorder.derive()
            return info_of(state, self._workspace, self._snapshot(state).changes)

    def read(self, path: str) -> bytes:
        """The bytes of a file as the agent has it; a symlink gives its target.

        Raises:
            PathNotFound: there is none, or it was deleted.
            WriteRejected: the path leaves the workspace, or is no file.
        """
        name = check_path(path)
        with self._recorder.working("read", self._actor) as state:
            return read_file(self._workspace, name, self._deleted(state), self._limits.max_file)

    def write(self, path: str, data: bytes | str) -> None:
        """Create or replace a file, whole or not at all; text is written as UTF-8. An executable file stays executable.

        Raises:
            InvalidInput: the data is neither text nor bytes.
            WriteRejected: the path is not allowed, something else is in the way, the disk refused, or it is over the limit.
        """
        name, contents = check_path(path), self._contents(path, data)
        with self._recorder.working("write", self._actor) as state:
            self._write(state, name, contents)

    def _contents(self, path: str, data: bytes | str) -> bytes:
        contents = check_contents(data, f"the data of {path!r}")
        if len(contents) > self._limits.max_file:
            raise WriteRejected(
                f"{path!r} would have {len(contents)} bytes; the limit is {self._limits.max_file}.",
                why="Everything promoted goes into a repository for good.",
                fix="Keep large files out of the session.",
                opt_out="Raise it with LocalEphemeral(limits=Limits(max_file=...)).",
            )
        return contents

    def _write(self, state: SessionState, name: str, contents: bytes) -> None:
        deleted = self._deleted(state)
        require_place(self._workspace, name, deleted)
        self._workspace.files.write(name, contents, executable=is_executable_below(self._workspace, name, deleted) or None)
        self._recorder.append("session.write", {**path_fields(name), "op": "write"}, actor=self._actor)

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is no error.

        Raises:
            WriteRejected: the path is not allowed, or is a directory.
        """
        name = check_path(path)
        with self._recorder.working("delete", self._actor) as state:
            deleted = self._deleted(state)
            require_no_directory(self._workspace, name, deleted)
            below = baseline_entry(self._workspace, name, deleted)
            if self._workspace.files.delete(name) or below is not None:
                self._recorder.append("session.write", {**path_fields(name), "op": "delete"}, actor=self._actor)

    def list(self, path: str = ".") -> list[ListEntry]:
        """Everything below a directory, sorted by path.

        Raises:
            PathNotFound: there is no such directory.
        """
        name = "." if path in ("", ".", "./") else check_path(path)
        with self._recorder.working("list", self._actor) as state:
            return list_files(self._workspace, name, self._deleted(state))

    def exists(self, path: str) -> bool:
        """Whether a file (or symlink) is at a path."""
        name = check_path(path)
        with self._recorder.working("exists", self._actor) as state:
            return file_exists(self._workspace, name, self._deleted(state))

    def _deleted(self, state: SessionState) -> frozenset[str]:
        """Paths deleted through the session, where absence alone does not say so."""
        return frozenset(deleted_paths(state)) if self._workspace.kind == "lazy" else frozenset()

    def _snapshot(self, state: SessionState) -> Snapshot:
        return self._workspace.snapshot(limits=self._limits, named=state.api_touched, deleted=self._deleted(state))

    def touched_files(self) -> builtins.list[str]:
        """The paths that differ from the baseline, sorted, however they came to (names that are not UTF-8 by surrogateescape)."""
        with self._recorder.working("touched", self._actor) as state:
            return [*self._snapshot(state).changes]

    def diff(self, paths: Iterable[str] | None = None) -> str:
        """A unified diff from the baseline, of everything or of some paths; ``git apply`` accepts it."""
        names = None if paths is None else [check_path(path) for path in check_paths(paths, "paths")]
        with self._recorder.working("diff", self._actor) as state:
            return patch_text(file_changes(self._snapshot(state), names))

    def commit(self, message: str) -> str:
        """Commit everything that differs from the baseline, as the agent; gives the sha.

        Raises:
            InvalidInput: the message is empty, or no text.
        """
        check_message(message)
        with self._recorder.working("commit", self._actor) as state:
            return self._commit(state, message)

    def _commit(self, state: SessionState, message: str) -> str:
        sha = self._commits(state).make(self._snapshot(state), message, self._recorder.clock.now_ns() // 10**9)
        self._recorder.append("session.commit", {"sha": sha, "message": message[:2000]}, actor=self._actor)
        return sha

    def _commits(self, state: SessionState) -> AgentCommits:
        return AgentCommits(self._workspace, self._recorder.store.directory(self.id) / "engine" / "commits.git", state.commits)

    def write_and_commit(self, files: Mapping[str, bytes | str], message: str) -> str:
        """Write several files and commit; gives the sha. Raises as ``write`` and ``commit``, before anything is written where it can."""
        check_message(message)
        contents = {check_path(path): self._contents(path, data) for path, data in files.items()}
        for name, data in contents.items():
            self.write(name, data)
        return self.commit(message)

    def record(self, type: str, data: Mapping[str, Any]) -> Event:
        """Store something that was said or done in the session, then announce it (Pixir: canonical events).

        Args:
            type: ``user_message``, ``assistant_message``, ``tool_call`` and so on; ``vocabulary.CONVERSATION`` has them all.
            data: JSON, with the keys that the type asks for.

        Returns:
            The event as stored, with its place (``seq``) in the session's log.

        Raises:
            InvalidInput: there is no such type, a key is missing or has no place, or it is not JSON. Nothing was stored or announced.
        """
        plain = normalised(data)
        with self._recorder.working("record", self._actor, marks=False):
            self._recorder.append(check_recordable(type), plain, actor=self._actor)
            stored = self._recorder.last
        assert stored is not None
        return stored

    def emit(self, type: str, data: Mapping[str, Any]) -> None:
        """Announce something without storing it (Pixir: ephemeral events); it has no place in the log, and its ``seq`` is -1.

        Raises:
            InvalidInput: there is no such type, or a key is missing or has no place.
        """
        now = self._recorder.clock.now_ns()
        self._recorder.emit(passing_event(check_announceable(type), normalised(data), ts=now, stream=self.id, actor=self._actor))

    def history(self, types: Iterable[str] | None = None) -> builtins.list[Event]:
        """Every stored event of the session, or those of some types, in order; also once it has ended. Nobody waits.

        Raises:
            InvalidInput: a type is none that there is.
            LogDamaged: the log is damaged before its last line.
        """
        return picked(self._recorder.log.twin().read(), check_types(types))

    def log(self) -> builtins.list[CommitEntry]:
        """The agent's commits, newest first."""
        with self._recorder.working("log", self._actor) as state:
            return [*self._commits(state).log()]


class UserSession(AgentSession):
    """What the person in charge gets: everything the agent has, and the decisions."""

    _actor: Actor = "human"

    def __init__(self, recorder: Recorder, workspace: Workspace, limits: Limits, engine: GitTrix) -> None:
        super().__init__(recorder, workspace, limits)
        self._engine = engine

    def for_agent(self) -> AgentSession:
        """The object to hand to the agent."""
        return AgentSession(self._recorder.twin(), self._workspace, self._limits)

    def review(self, files: Iterable[str] | None = None) -> Review:
        """Fix a snapshot to look at; ``promote(review)`` promotes exactly its bytes.

        Args:
            files: touched paths to review; everything touched by default.

        Raises:
            PromoteFailed: a path was not touched.
        """
        from pytest_gittrix.session.selection import select

        with self._recorder.working("review", self._actor) as state:
            snapshot = self._snapshot(state)
            changes = snapshot.changes if files is None else select(snapshot, files, None).changes
            return Review(self.id, state.baseline, changes, snapshot)

    def promote(
        self,
        what: Review | Iterable[str] | None = None,
        *,
        files: Iterable[str] | None = None,
        hunks: Mapping[str, Collection[int]] | None = None,
        strategy: str = "auto",
        message: str | None = None,
        on_overlap: str = "refuse",
    ) -> PromoteResult:
        """Make the selection one commit in durable, or change nothing.

        Args:
            what: a review, whose bytes are promoted; or paths, as ``files``; everything touched by default.
            files: touched paths to promote.
            hunks: for a path, numbers (from 1) of the hunks to promote; the rest of that file stays as durable has it.
            strategy: ``commit`` on the branch, ``branch`` (``gittrix/<task>``), ``patch``, or ``auto``.
            message: the commit message; ``gittrix: <task>`` by default.
            on_overlap: ``refuse`` if durable drifted over the selection, ``allow-identical`` bytes, or ``merge`` as text.

        Raises:
            BaselineConflict: durable drifted over the selection; the session stays active.
            PromoteFailed: nothing is selected, a path was not touched, a checkout is in the way (``WorktreeDirty``), names collide
                (``PathCollision``), or durable is locked (``DurableLocked``).
            InvalidInput: an argument has a value that is not allowed.
            CapabilityMissing: strategy ``pr``.
        """
        if message is not None:
            check_text(message, "message")
        return self._engine.promote_session(self, what, files=files, hunks=hunks, strategy=strategy, message=message, on_overlap=on_overlap)

    def discard(self, outcome: str | None = None) -> None:
        """End the session without promoting; its work is archived and its workspace removed.

        Args:
            outcome: how its agent did, for those who ask later: ``done``, ``crash`` or ``killed`` (Gas Town).
        """
        self._engine.evict(self.id, "discarded", outcome=outcome)
        self._workspace.close()

    def handoff(self, task: str | None = None, *, eviction: EvictionPolicy | None = None, **identity: str) -> UserSession:
        """End this session and go on in a new one of the same line, with this one's workspace as it is (Gas Town).

        Args:
            task: of the new one; this one's by default.
            eviction: likewise.
            identity: who works in it, and on what, as for ``start_session``; what is not told is as in this one.

        Raises:
            TurnBusy: a turn is running.
            CapabilityMissing: the workspace is a ``worktree``, which durable knows by its place.
            InvalidInput: an argument is not allowed.
        """
        return self._engine.hand_off(self, task, eviction, identity)

    def start_turn(self, fn: TurnFunction, *, runs: str = "process", role: str = "build") -> Turn:
        """Let the agent take a turn: run ``fn(context)`` beside this program (Pixir).

        Calls that an earlier turn left without an answer are answered first, so that the history can be shown to a model.

        Args:
            fn: a function or coroutine function of a ``TurnContext``. In a process it is a fork of this one: it sees what is here now,
                and of what it changes in memory nothing comes back but what it returns, which must be fit for pickling.
            runs: ``process`` (can be ended for certain) or ``thread`` (can be asked to end).
            role: what the agent is; for the context.

        Raises:
            TurnBusy: a turn is running, here or in another process.
            SessionExpired: the session has ended.
            InvalidInput: ``runs`` is neither.
        """
        return self._engine._turns.start(self._recorder.twin(), self.for_agent(), fn, runs=runs, role=role)

    @property
    def turn_running(self) -> bool:
        """Whether this engine runs a turn of the session."""
        return self._engine._turns.running(self.id) is not None

    def interrupt(self) -> bool:
        """End the running turn, with all it started, and answer its open calls; the session goes on. Whether there was a turn."""
        return self._engine._turns.interrupt(self._recorder)

    def extend(self, ttl: timedelta) -> None:
        """Replace the idle TTL (it is not added), and start it anew from now.

        Raises:
            InvalidInput: it is no timedelta, not positive, or longer than a hundred years.
        """
        check_ttl(ttl)
        with self._recorder.working("extend", self._actor):
            self._recorder.append("session.extended", {"ttl_idle_ns": ttl // timedelta(microseconds=1) * 1000}, actor=self._actor)

    def archive(self) -> Archive | None:
        """Set aside what the session holds, without ending it; None if nothing differs from the baseline."""
        return self._engine.archive_session(self)

    def moved_refs(self) -> builtins.list[MovedRef]:
        """The branches and tags of durable that moved since the session started and that no promotion moved."""
        return self._engine.moved_refs(self.id)

    def metadata(self) -> dict[str, Any]:
        """The documented version-1 record, as JSON."""
        return metadata_of(self._recorder.read())
