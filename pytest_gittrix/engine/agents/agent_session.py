"""A session as its agent holds it: its files, its log, and nothing that decides about them.

It is built from the workspace, the seed and the log alone, so no chain of references leads from it to durable or to a promotion
(rule 6, docs/explanation/rules.md).
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.engine.agents.session_parts import SessionObject
from pytest_gittrix.engine.operations.agent_commits import AgentCommits, CommitEntry, only_in_agents_git
from pytest_gittrix.engine.operations.attachments import attach, attached
from pytest_gittrix.engine.operations.checkpoints import CHECKPOINTS, save_checkpoint
from pytest_gittrix.engine.operations.conversation import check_announceable, check_recordable, check_types, events_of, normalised, of_types
from pytest_gittrix.engine.operations.info import SessionInfo, info_of
from pytest_gittrix.engine.operations.recorder import require_live
from pytest_gittrix.engine.operations.review import catch_up, current_snapshot, is_behind, patch_of, snapshot_of
from pytest_gittrix.engine.operations.shown_files import ListEntry, ShownFiles
from pytest_gittrix.engine.operations.validation import check_contents, check_file, check_message, check_paths, check_text
from pytest_gittrix.errors import SessionExpired, WriteRejected
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.os_level.open_below import LinkInTheWay, ParentNotDirectory, system_refused
from pytest_gittrix.record.eventlog.events import Event, passing_event, path_fields
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.snapshot import Snapshot

if TYPE_CHECKING:
    from pytest_gittrix.confine.limits import ResourceLimits
    from pytest_gittrix.confine.network import ModelEndpoint
    from pytest_gittrix.confine.started_program import Finished
    from pytest_gittrix.engine.agents.programs import Programs

HOME: Final = ("engine", "home")
"""Where the home of a session's programs is, in its record; it is removed with the engine's notes about the workspace."""


class AgentSession(SessionObject):
    """The session as its agent gets it: its files, and nothing that decides about them.

    Paths are relative to the workspace's root, or absolute and below it, with ``/``; a path that leaves the workspace or could be taken
    for a git directory is refused. Every method raises
    ``SessionExpired`` once the session has ended, and slides its idle deadline while it has not.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self._workspace.path}>"

    @property
    def workspace_path(self) -> Path | None:
        """The workspace's root, fit as a working directory; None where no directory is that (``lazy``, ``overlay``, ``remote``)."""
        workspace = self._workspace
        return Path(workspace.path) if workspace.created.complete and workspace.capabilities.shell else None

    def info(self) -> SessionInfo:
        """The session as it is now; counts as use, as everything does that is done with this object. ``GitTrix.info`` does not."""
        return self._info(marks=True)

    def _info(self, *, marks: bool) -> SessionInfo:
        with self._working("info", marks=marks, looks=True) as state:
            snapshot = snapshot_of(state, self._workspace, self._limits)
            if marks:
                state = self._recorder.note_touched(state, snapshot.touched)
            self._recorder.derive()
            return info_of(state, self._workspace, snapshot.touched, self._beside(state, snapshot))

    @contextmanager
    def _working(self, op: str, *, marks: bool = True, looks: bool = False) -> Iterator[SessionState]:
        """An operation on the session's files, which have its baseline; see ``Recorder.working``.

        One that only ``looks`` is not refused where the files cannot have the baseline yet. It sees them as they are, above an earlier one.
        """
        with self._recorder.working(op, self._actor, marks=marks) as state, self._workspace.operation():
            if is_behind(self._workspace, state):
                with suppress(WriteRejected) if looks else nullcontext():
                    catch_up(self._workspace, state)
            yield state

    def _name(self, path: str) -> str:
        """A path from the workspace's root, checked."""
        return check_path(self._relative(path))

    def _relative(self, path: str) -> str:
        """A path as it is, but from the workspace's root if it is absolute and below that."""
        if isinstance(path, str) and path.startswith("/"):
            for root in (str(self._workspace.path), os.path.realpath(self._workspace.path)):
                if path.startswith(f"{root}/"):
                    return path[len(root) + 1 :]
        return path

    def read(self, path: str, *, follow: bool = True) -> bytes:
        """The bytes of a file as the agent has it.

        Args:
            path: of the file.
            follow: whether a link gives the file behind it; else it gives its target, as git stores it.

        Raises:
            PathNotFound: there is none, or it was deleted.
            PathIsDirectory: it is a directory.
            WriteRejected: the path leaves the workspace, also by a link, or is no file.
        """
        name = self._name(path)
        with self._working("read", looks=True) as state:
            return self._shown(state).read(name, self._limits.max_file, follow=follow)

    def write(self, path: str, data: bytes | str, *, follow: bool = True) -> None:
        """Create or replace a file, whole or not at all; text is written as UTF-8. An executable file stays executable.

        Args:
            path: of the file.
            data: its contents.
            follow: whether the file behind a link is written; else the link becomes a file.

        Raises:
            InvalidInput: the data is neither text nor bytes.
            WriteRejected: the path is not allowed, also by a link, something else is in the way, the disk refused, or it is over the
                limit.
        """
        name, contents = self._name(path), check_file(path, data, self._limits.max_file)
        with self._working("write") as state:
            with suppress(LinkInTheWay, ParentNotDirectory):
                self._write(state, name, contents, over_link=not follow)
                return
            place = self._shown(state).followed(name, last=follow)
            self._write(state, place, contents, over_link=not follow)

    def _write(self, state: SessionState, name: str, contents: bytes, *, over_link: bool = True) -> None:
        shown = self._shown(state)
        shown.require_place(name, over_link=over_link)
        executable = shown.is_executable(name) or None
        self._workspace.files.write(name, contents, executable=executable, over_link=over_link)
        self._recorder.append("session.write", {**path_fields(name), "op": "write"}, actor=self._actor)

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is no error. Of a link the link itself is deleted, and links above it are followed.

        Raises:
            WriteRejected: the path is not allowed, leaves the workspace by a link, or is a directory.
        """
        given = self._name(path)
        with self._working("delete") as state:
            shown = self._shown(state)
            name = shown.followed(given, last=False)
            shown.require_no_directory(name)
            below = shown.baseline_entry(name)
            if self._workspace.files.delete(name) or below is not None:
                self._recorder.append("session.write", {**path_fields(name), "op": "delete"}, actor=self._actor)

    def list(self, path: str = ".") -> list[ListEntry]:
        """Everything below a directory, sorted by path. If the directory is a link, the paths are those of the one that it leads to.

        Raises:
            PathNotFound: there is no such directory.
            WriteRejected: a link leads out of the workspace.
        """
        name = "." if path in ("", ".", "./", str(self._workspace.path)) else self._name(path)
        with self._working("list", looks=True) as state:
            shown = self._shown(state)
            return shown.list(name if name == "." else shown.followed(name))

    def exists(self, path: str) -> bool:
        """Whether a file or a link is at a path. Links above it are followed; beyond one that leaves the workspace there is nothing."""
        given = self._name(path)
        with self._working("exists", looks=True) as state:
            shown = self._shown(state)
            try:
                name = shown.followed(given, last=False)
            except WriteRejected as problem:
                if system_refused(problem):
                    raise
                return False
            return shown.exists(name)

    def _shown(self, state: SessionState) -> ShownFiles:
        return ShownFiles.of(self._workspace, state)

    def _snapshot(self, state: SessionState, selected: Collection[str] = (), *, looks: bool = False) -> Snapshot:
        """The files as they are now; ``looks`` as for ``_working``."""
        snapshot = (snapshot_of if looks else current_snapshot)(state, self._workspace, self._limits, selected)
        self._recorder.note_touched(state, snapshot.touched)
        return snapshot

    def touched_files(self) -> builtins.list[str]:
        """The paths that differ from the baseline, sorted, however they came to (names that are not UTF-8 by surrogateescape).

        Those that can never be promoted, such as files that are too large, are among them.
        """
        with self._working("touched", looks=True) as state:
            return self._snapshot(state, looks=True).touched

    def diff(self, paths: Iterable[str] | None = None) -> str:
        """A unified diff from the baseline, of everything or of some paths; ``git apply`` accepts it.

        A line before it names each path that is not in it; where there is nothing else, git apply finds no patch in it.
        """
        names = None if paths is None else [self._name(path) for path in check_paths(paths, "paths")]
        with self._working("diff", looks=True) as state:
            snapshot = self._snapshot(state, names or (), looks=True)
            chosen = None if names is None else [self._shown(state).touched_name(snapshot, name) for name in names]
            return patch_of(snapshot, chosen)

    def commit(self, message: str) -> str:
        """Commit everything that differs from the baseline, as the agent; gives the sha.

        Files that can never be promoted, or that only the workspace's own rules ignore, are not in the commit. The ``session.commit`` event
        names them (``left_out``).

        Raises:
            InvalidInput: the message is empty, or no text.
        """
        check_message(message)
        with self._working("commit") as state:
            return self._commit(state, message)

    def _commit(self, state: SessionState, message: str) -> str:
        snapshot = self._snapshot(state)
        sha = self._commits(state).make(snapshot, message, self._recorder.clock.now_ns() // 10**9)
        left_out = {"left_out": [*snapshot.left_out]} if snapshot.left_out else {}
        self._recorder.append("session.commit", {"sha": sha, "message": message[:2000], **left_out}, actor=self._actor)
        return sha

    def _beside(self, state: SessionState, snapshot: Snapshot) -> tuple[str, ...]:
        """What the agent's own git holds that is in no touched file, a line each."""
        return only_in_agents_git(self._recorder, state, self._workspace, snapshot)

    def _commits(self, state: SessionState) -> AgentCommits:
        return AgentCommits(self._workspace, self._recorder.directory.joinpath(*CHECKPOINTS), state.commits)

    def write_and_commit(self, files: Mapping[str, bytes | str], message: str) -> str:
        """Write several files and commit; gives the sha. Raises as ``write`` and ``commit``, before anything is written where it can."""
        check_message(message)
        contents = {self._name(path): check_file(path, data, self._limits.max_file) for path, data in files.items()}
        for name, data in contents.items():
            self.write(name, data)
        return self.commit(message)

    def record(self, type: str, data: Mapping[str, Any]) -> Event:
        """Store an event of the conversation, then announce it (Pixir: canonical events).

        Args:
            type: ``user_message``, ``assistant_message``, ``tool_call`` and so on; ``vocabulary.CONVERSATION`` has them all.
            data: JSON, with the keys that the type asks for.

        Returns:
            The stored event, with its number (``seq``) in the session's log.

        Raises:
            InvalidInput: there is no such type, a key is missing or has no place, or it is not JSON. Nothing was stored or announced.
        """
        plain = normalised(data)
        with self._recorder.working("record", self._actor, marks=False) as state:
            if state.changed_since_checkpoint and type == "user_message":
                save_checkpoint(self._recorder, state, self._snapshot(state))
            self._recorder.append(check_recordable(type, plain), plain, actor=self._actor)
            stored = self._recorder.last
        assert stored is not None
        return stored

    def emit(self, type: str, data: Mapping[str, Any]) -> None:
        """Announce an event without storing it (Pixir: ephemeral events); its ``seq`` is -1.

        Raises:
            InvalidInput: there is no such type, or a key is missing or has no place.
        """
        self._recorder.require_unrevoked()
        require_live(self._recorder.read())
        now = self._recorder.clock.now_ns()
        self._recorder.emit(passing_event(check_announceable(type), normalised(data), ts=now, stream=self.id, actor=self._actor))

    def history(self, types: Iterable[str] | None = None) -> builtins.list[Event]:
        """Every stored event of the session, or those of some types, in order; also once it has ended. It waits for no lease.

        Raises:
            InvalidInput: a type is none that there is.
            LogDamaged: the log is damaged before its last line.
        """
        return of_types(self._recorder.log.twin().read() or events_of(self._recorder.twin()), check_types(types))

    def checkpoint(self) -> str:
        """Save the files as they are now, so that a fork can begin with them later; returns their tree.

        The engine does so itself where turns begin and end, at commits, and before a user's messages.
        """
        with self._working("checkpoint") as state:
            snapshot = self._snapshot(state)
            save_checkpoint(self._recorder, state, snapshot)
            return snapshot.tree

    @contextmanager
    def step(self, name: str, *, molecule_id: str | None = None) -> Iterator[None]:
        """Record a step of the agent's workflow around a block; one that raises is ``failed`` (Gas Town).

        Args:
            name: of the step.
            molecule_id: the workflow that it belongs to.

        Raises:
            InvalidInput: an argument is no text.
        """
        molecule = {} if molecule_id is None else {"molecule_id": check_text(molecule_id, "molecule_id")}
        self._note("step.started", {"step": check_text(name, "name"), **molecule})
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            with suppress(SessionExpired):  # if the session ended within the step, its end is recorded
                self._note("step.completed", {"step": name, "outcome": outcome})

    def _note(self, type: str, data: Mapping[str, Any]) -> None:
        with self._recorder.working("note", self._actor, marks=False):
            self._recorder.append(type, data, actor=self._actor)

    def attach(self, data: bytes | str) -> str:
        """Store bytes next to the log, for events to refer to (``resources`` of a ``user_message``); returns their name.

        Raises:
            InvalidInput: it is neither bytes nor text.
        """
        contents = check_contents(data, "data")
        with self._recorder.working("attach", self._actor):
            return attach(self._recorder.directory, contents, sync=self._recorder.store.durability == "full")

    def attached(self, name: str) -> bytes:
        """The bytes that were attached under a name; also once the session has ended.

        Raises:
            InvalidInput: it is no such name.
            PathNotFound: nothing of that name is attached.
        """
        return attached(self._recorder.directory, name)

    def run(
        self,
        argv: Sequence[str],
        *,
        confine: str | None = None,
        network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = "none",
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        timeout: float | None = None,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        cwd: str = ".",
        most_output: int | None = None,
        merged: bool = False,
        stop: int | None = None,
    ) -> Finished:
        """Run a program in the workspace, to its end; what it started ends with it.

        It is ``programs(...)`` with a home directory for this run only, and its ``run``. The session may be used meanwhile.

        Args:
            argv: the program and its arguments.
            confine: ``auto``, ``off``, ``guard`` or ``jail``; what ``LocalEphemeral(confine=...)`` says by default, and
                ``auto`` if that says nothing.
            network: ``none``, ``all`` for the machine's, or a list of what it reaches, such as ``["model:anthropic"]``. ``off`` has always
                the machine's.
            limits: what it may use, such as ``{"memory": "2GB", "processes": 200}``; a program that passes one is ended, and
                ``Finished.limit`` names it.
            timeout: real seconds that it may run, above 0; None for ever.
            stdin: its standard input.
            environment: variables to add or replace.
            cwd: its working directory: relative to the workspace's root, or absolute as the program sees it.
            most_output: bytes that are kept of each stream; 10 MiB by default. What is beyond is thrown away.
            merged: whether its errors come on its output, in the order in which both were written.
            stop: a descriptor; the program is killed as soon as it can be read.

        Raises:
            CapabilityMissing: the workspace has no files to work on (``lazy``); this machine has no such confinement; the workspace is an
                ``overlay`` and there is no jail by namespaces; the network is a list and there is neither that nor a guard; or there are
                limits and nothing is confined.
            InvalidInput: the command is none, there is no such level, network or limit, or a model's key is not set.
            AdapterUnavailable: it could not be confined; it was not started.
        """
        from pytest_gittrix.engine.agents.programs import MOST_OUTPUT

        most = MOST_OUTPUT if most_output is None else most_output
        with self.programs(confine=confine, network=network, limits=limits, at=None, keep_home=False) as programs:
            return programs.run(
                argv, stdin=stdin, cwd=cwd, environment=environment, timeout=timeout, most_output=most, merged=merged, stop=stop
            )

    def programs(
        self,
        *,
        confine: str | None = None,
        network: str | ModelEndpoint | Iterable[str | ModelEndpoint] = "none",
        limits: ResourceLimits | Mapping[str, int | float | str] | None = None,
        at: str | None = "/workspace",
        readable: Iterable[Path | str] = (),
        beside: Sequence[str] = (),
        sockets: Mapping[str, Path | str] | None = None,
        keep_home: bool = True,
    ) -> Programs:
        """What runs programs in the workspace, one after another or several at a time, with a home directory that they share.

        Programs get git's hermetic environment, the engine's time, the session's id, and of this process's variables only ``PATH``,
        ``LANG`` and ``TERM``.

        Args:
            confine: ``auto``, ``off``, ``guard`` or ``jail``; what ``LocalEphemeral(confine=...)`` says by default, and
                ``auto`` if that says nothing.
            network: ``none``, ``all`` for the machine's, or a list of what they reach, such as ``["model:anthropic"]``. ``off`` has
                always the machine's.
            limits: what each may use, such as ``{"memory": "2GB", "processes": 200}``.
            at: the path at which a jail shows the workspace; None for its own.
            readable: files and directories that they may read and execute, in addition to the system's and this Python's.
            beside: absolute paths of further directories in a jail, empty at first.
            sockets: Unix sockets of this machine that they reach in a jail, by the paths at which the jail shows them.
            keep_home: whether the home and ``beside`` belong to the session, and are there again when it is resumed; else they are removed
                when the result is closed.

        Raises:
            CapabilityMissing: the workspace has no files to work on (``lazy``), or this machine cannot confine programs so.
            InvalidInput: there is no such level, network or limit, or a path is not absolute.
        """
        from pytest_gittrix.engine.agents.programs import Programs

        with self._recorder.working("run", self._actor):
            level = self._workspace.confine if confine is None else confine
        return Programs(
            self,
            self._recorder.clock,
            level,
            network=network,
            limits=limits,
            at=at,
            readable=readable,
            beside=beside,
            sockets=sockets,
            home=self._recorder.directory.joinpath(*HOME) if keep_home else None,
        )

    def log(self) -> builtins.list[CommitEntry]:
        """The agent's commits, newest first."""
        with self._recorder.working("log", self._actor) as state:
            return [*self._commits(state).log()]


def look_at(session: AgentSession) -> SessionInfo:
    """The session as it is now, for who only looks at it: its idle time goes on. This is no method, so that the agent is not offered it."""
    return session._info(marks=False)
