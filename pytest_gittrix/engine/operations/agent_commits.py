"""Real commits by the agent: made from a snapshot, stored in the engine's repository, and shown in the agent's.

The engine runs no git in the agent's ``.git`` and reads no configuration there. It reads HEAD as plain files by descriptor, and writes a
pack, a branch and an index the same way. If the agent made its git directory unusable, the commit is stored in the engine's all the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pytest_gittrix.engine.operations.checkpoints import CHECKPOINTS
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.commit import BuiltCommit, Signature, build_commit, parse_commit
from pytest_gittrix.git.git_directory import open_bare
from pytest_gittrix.git.index import IndexEntry, IndexFile, stat_numbers
from pytest_gittrix.git.objects import MissingObject, Objects, open_objects
from pytest_gittrix.git.pack import install_pack
from pytest_gittrix.git.tree import Entry
from pytest_gittrix.os_level.open_below import system_refused
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.finder.agent_work import AgentWork, find_agent_work, find_linked_work, nested_repositories
from pytest_gittrix.workspaces.kinds import WITH_OWN_GIT
from pytest_gittrix.workspaces.repositories.agent_git import read_head
from pytest_gittrix.workspaces.repositories.agent_objects import AgentObjects
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace

AGENT: Final = ("agent", "agent@localhost")
"""Name and address of the author of commits that the engine makes of an agent's work."""


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """One commit of the agent's.

    Attributes:
        sha: its id.
        author_name: who made it.
        author_email: that person's address.
        timestamp: when, aware, UTC.
        message: its message, without the final newline.
    """

    sha: str
    author_name: str
    author_email: str
    timestamp: datetime
    message: str


class AgentCommits:
    """The commits of one session.

    Args:
        workspace: the session's workspace.
        directory: the engine's repository for it, outside the workspace.
        recorded: shas of the commits made through the session, oldest first.
    """

    def __init__(self, workspace: Workspace, directory: Path, recorded: list[str]) -> None:
        self._workspace = workspace
        self._seed = workspace.began  # the agent's repository knows no later baseline
        self._directory = directory
        self._recorded = recorded

    def head(self) -> str:
        """The agent's present commit: HEAD of its repository if that can be read, else the last commit made here."""
        return self._agent_head()[1] or (self._recorded[-1] if self._recorded else self._seed.commit)

    def _agent_head(self) -> tuple[str | None, str | None]:
        """The branch (full reference) and commit of the agent's own HEAD, as far as plain files say."""
        if self._workspace.kind not in WITH_OWN_GIT:
            return None, None
        return read_head(self._git_dir, self._git_dir, self._seed.format)

    @property
    def _git_dir(self) -> str:
        return os.path.join(self._workspace.path, ".git")

    def make(self, snapshot: Snapshot, message: str, seconds: int) -> str:
        """Commit a snapshot on top of the agent's present commit; returns the sha.

        Raises:
            WriteRejected: the agent's repository can be read, but the commit cannot be written to it.
            OSError: the disk refused.
        """
        snapshot = snapshot.since(self._seed)
        ref, there = self._agent_head()
        parent = there or self.head()
        built = build_commit(
            self._seed.trees.read,
            self._seed.root,
            snapshot.changes,
            snapshot.blobs,
            parent=parent,
            author=Signature(*AGENT, seconds),
            message=message,
            format_=self._seed.format,
        )
        open_bare(self._directory, self._seed.format.name, self._seed.exact_objects_dir)
        install_pack(str(self._directory / "objects"), built.pack)
        if self._workspace.kind in WITH_OWN_GIT:
            try:
                self._show(built, ref, snapshot)
            except GittrixError as problem:
                # An agent that broke its own repository just does not find the commit there. Where its HEAD can be read, log() follows it.
                if system_refused(problem) or self._agent_head()[1] is not None:
                    raise
        return built.id

    def _show(self, built: BuiltCommit, ref: str | None, snapshot: Snapshot) -> None:
        """Put the commit into the agent's own repository: objects, then index, then branch."""
        files = self._workspace.files
        files.write(f".git/objects/pack/pack-{built.pack.name}.pack", built.pack.data)
        files.write(f".git/objects/pack/pack-{built.pack.name}.idx", built.pack.index)
        # The commit is the baseline and what changed, so its index is too; the agent's own could hold anything.
        staged = {path: self._staged(files, path, entry, snapshot) for path, entry in snapshot.changes.items()}
        files.write(".git/index", IndexFile(self._seed.index, self._seed.format).with_changes(staged))
        files.write(f".git/{ref or 'HEAD'}", built.id.encode() + b"\n")

    def _staged(self, files: SafeDir, path: str, entry: Entry | None, snapshot: Snapshot) -> IndexEntry | None:
        if entry is None:
            return None
        status = files.lstat(path)
        if status is None:
            return IndexEntry(entry.mode, entry.id)
        data = snapshot.raw.get(path, snapshot.blobs.get(entry.id))
        numbers = stat_numbers(status, entry.mode)
        # Times of a file that is written just now would make the index racy; git then reads the file once more, which is right.
        return IndexEntry(entry.mode, entry.id, (*numbers[:9], len(data)) if data is not None else numbers)

    def log(self) -> Iterator[CommitEntry]:
        """The agent's commits, newest first, down to the baseline; those made with its own git too."""
        next_id: str | None = self.head()
        with self._stored_objects() as stores:
            while next_id is not None and next_id != self._seed.commit:
                try:
                    commit = parse_commit(next_id, _read_from(stores, next_id))
                    author, when = commit.author, commit.author.when
                except (LookupError, ValueError, OverflowError, OSError):
                    return  # not to be had, or forged: what the agent's git holds can be anything
                yield CommitEntry(commit.id, author.name, author.email, when, commit.message.rstrip("\n"))
                next_id = commit.parents[0] if commit.parents else None

    def agent_work(self, snapshot: Snapshot, *, promoted: bool, on_step: Callable[[], object] = lambda: None) -> AgentWork | None:
        """What only the agent's git has; see ``find_agent_work``, and ``find_linked_work`` for a linked work tree.

        Args:
            snapshot: the work tree.
            promoted: whether that was promoted, or is to be, so that the commits of the agent's branch have their outcome there.
            on_step: called at each step; may raise to end the search.

        Raises:
            UnsupportedRepository, AdapterUnavailable: the repository cannot be read.
        """
        files = snapshot.since(self._seed).files
        if self._workspace.linked_git_dir is not None:
            return find_linked_work(self._workspace.linked_git_dir, self._seed, files, promoted=promoted, on_step=on_step)
        if self._workspace.kind not in WITH_OWN_GIT:
            return None
        return find_agent_work(
            self._workspace.path,
            self._seed,
            on_branch=lambda: [commit.sha for commit in self.log()],
            promoted=promoted,
            files=files,
            on_step=on_step,
        )

    @contextmanager
    def _stored_objects(self) -> Iterator[list[Objects]]:
        """The objects of the agent's repository and of the engine's, as far as these are there, opened once for many reads."""
        stores: list[Objects] = []
        with suppress(GittrixError, FileNotFoundError):
            if self._workspace.kind in WITH_OWN_GIT:
                stores.append(AgentObjects(os.path.join(self._git_dir, "objects"), self._seed.format))
        if (self._directory / "objects").is_dir():
            stores.append(open_objects(self._directory / "objects", self._seed.format))
        try:
            yield stores
        finally:
            for store in stores:
                store.close()


def only_in_agents_git(recorder: Recorder, state: SessionState, workspace: Workspace, snapshot: Snapshot) -> tuple[str, ...]:
    """A line for each piece of work that the agent's own git holds, and that is in no file of its work tree."""
    try:
        nested = nested_repositories(workspace.path, snapshot.nested)
        work = AgentCommits(workspace, recorder.directory.joinpath(*CHECKPOINTS), state.commits).agent_work(snapshot, promoted=True)
    except GittrixError as problem:
        return (f"The agent's repository cannot be read: {problem.fact}",)
    return (*(() if work is None else work.lines), *(f"{path!r} has a repository and a history of its own" for path in nested))


def _read_from(stores: Iterable[Objects], commit: str) -> bytes:
    """The data of a commit, from the first store that has it. Raises LookupError if none has."""
    for store in stores:
        with suppress(MissingObject):
            return store.read(commit)[1]
    raise LookupError(commit)
