"""Workspaces, the directories that agents work in: made from a seed, and removed by a rename into the trash.

``clone`` is a self-contained repository; ``lazy`` holds only written files and reads the others from the baseline; ``copy`` has the files
without git; ``overlay`` is a repository of which only what changed is in the directory, above a checkout that sessions share; ``worktree``
is a linked work tree of durable, as the original GitTrix made it, and shares durable's references and configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, GittrixError, PathNotFound, WriteRejected
from pytest_gittrix.git.tree import Changes
from pytest_gittrix.os_level.files import sync_directory, write_file
from pytest_gittrix.os_level.remove_tree import remove_tree
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.creation_note import (
    NOTE,
    CreationState,
    bases_in,
    boot_offset,
    json_name,
    name_of,
    note_creation,
    read_note,
    taken_in,
    unreadable_note,
)
from pytest_gittrix.workspaces.kinds import CAPABILITIES, INCOMPLETE, KINDS, WITH_OWN_GIT, Capabilities, WorkspaceKind, check_kind
from pytest_gittrix.workspaces.layers import lower_layers, make_repository_layer
from pytest_gittrix.workspaces.overlay import LayeredDir
from pytest_gittrix.workspaces.provided import Provided, read_provided
from pytest_gittrix.workspaces.repositories.agent_git import AgentGit
from pytest_gittrix.workspaces.seeds.checkout import link_worktree, write_branch, write_files, write_git_directory
from pytest_gittrix.workspaces.seeds.on_disk import REPOSITORY_LAYER
from pytest_gittrix.workspaces.seeds.seed import History, Seed, open_seed
from pytest_gittrix.workspaces.snapshot import Snapshot, take_snapshot, workspace_gone
from pytest_gittrix.workspaces.trash import Trash
from pytest_gittrix.workspaces.walk import Limits

_WORK: Final = "work"
_NOTHING_TO_BRING: Final = contextlib.nullcontext()


class Workspace:
    """One workspace on disk. Made by ``create``, opened again by ``open_workspace``.

    Attributes:
        kind: its kind.
        path: its root directory.
        seed: its baseline.
        began: the baseline that it was made from. It is another one than ``seed`` once a promotion kept the session. Its own repository
            and the lower layer of an ``overlay`` stay as they were made.
        bases: the entries that the agent's work is based on, by path, where it did not follow ``seed`` (``rebase``); None for no file.
        created: what its creation left behind, by which a snapshot knows an unchanged file.
        confine: how programs in it are to be confined. Set by the caller that made or opened the workspace, and only stored here.
        seeds: where the engine makes the seeds of later baselines, if not next to its own. Set by the same caller.
        left_out: why some of its files are not in the directory, where they are at another place and could not be had; else empty.
    """

    confine: str = "auto"
    seeds: str | None = None
    left_out: str = ""

    def __init__(
        self,
        kind: str,
        path: str,
        seed: Seed,
        created: CreationState,
        admin: str | None,
        state_dir: str | None = None,
        began: Seed | None = None,
        bases: Changes | None = None,
    ) -> None:
        self.kind = kind
        self.path = path
        self.seed = seed
        self.began = seed if began is None else began
        self.bases: Changes = bases or {}
        self.created = created
        self._admin = admin
        self._state_dir = state_dir
        self._files: SafeDir | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of workspace can do."""
        return CAPABILITIES[check_kind(self.kind)]

    @property
    def linked_git_dir(self) -> str | None:
        """The directory in durable that holds the HEAD and the index of a ``worktree``; None for the other kinds."""
        return self._admin

    @property
    def layers(self) -> tuple[str, str, tuple[str, ...]] | None:
        """What an ``overlay`` lies above, as ``LayeredDir.above`` takes it; None for the other kinds.

        The layer of its repository is among them once somebody has needed it: ``layers_for_programs`` makes it.
        """
        if self.kind != "overlay" or self._state_dir is None:
            return None
        lower, *below = lower_layers(self.began)
        work, repository = os.path.join(self._state_dir, _WORK), os.path.join(self.began.directory, REPOSITORY_LAYER)
        return (repository, work, (lower, *below)) if os.path.isdir(repository) else (lower, work, tuple(below))

    def layers_for_programs(self) -> tuple[str, str, tuple[str, ...]] | None:
        """As ``layers``, and the repository is among them: it is made now if no program was started from this baseline yet.

        Raises:
            OSError: the disk refused.
        """
        if self.kind == "overlay":
            make_repository_layer(self.began)
        return self.layers

    def stand_alone(self, top: str = ".") -> None:
        """See that a directory has all its files itself, unlike that of an ``overlay``; ``LayeredDir.stand_alone`` says what is raised."""
        layers = self.layers_for_programs()
        if layers is None:
            return
        files = LayeredDir.above(self.path, *layers)  # the one that is open may be from before the repository was made
        try:
            files.stand_alone(top)
        finally:
            files.close()
        self._files = None

    @property
    def files(self) -> SafeDir:
        """Its files, through descriptors that no link leads outside. A directory that was replaced since is opened again.

        Raises:
            AdapterUnavailable: the directory is gone.
        """
        files = self._files
        if files is None or not files.is_in_place():
            try:
                # The old descriptor stays open: another thread may be using it.
                layers = self.layers
                files = self._files = SafeDir.open(self.path) if layers is None else LayeredDir.above(self.path, *layers)
            except (PathNotFound, WriteRejected) as error:
                raise workspace_gone(self.path, error.fact) from error
        return files

    def operation(self) -> AbstractContextManager[None]:
        """A block of uses of the files. Files that are at another place are brought here once, at its beginning.

        Raises:
            AdapterUnavailable: they cannot be had.
        """
        return _NOTHING_TO_BRING

    def snapshot(
        self,
        *,
        limits: Limits | None = None,
        named: Collection[str] = (),
        deleted: Collection[str] = (),
        on_step: Callable[[], object] = lambda: None,
    ) -> Snapshot:
        """Take a snapshot of the workspace; see ``take_snapshot`` for arguments and errors."""
        taken = take_snapshot(
            self.path,
            self.seed,
            self.created,
            self.git(),
            provided=self.provided,
            limits=limits,
            named=named,
            deleted=deleted,
            on_step=on_step,
        )
        if self.bases:
            taken = replace(taken, bases=self.bases)
        if not self.created.layered or self.seed is self.began:
            return taken
        # The lower layer lacks what the baseline got since: if the upper one lacks it too, it was deleted.
        newer = (path for path, (_, new) in self.began.differences(self.seed).items() if new is not None and path not in taken.touched)
        gone = [path for path in newer if self.files.lstat(path) is None]
        return replace(taken, changes=dict(sorted({**taken.changes, **dict.fromkeys(gone)}.items())))

    def git(self) -> AgentGit:
        """What its git tracks and excludes, as of now; a workspace without a git has none of either."""
        if self._admin is not None:
            return AgentGit(self._admin, os.path.dirname(os.path.dirname(self._admin)), self.began)
        own = os.path.join(self.path, ".git")
        return AgentGit(own, own, self.began)

    @property
    def state_dir(self) -> str | None:
        """Where the engine keeps its notes about it; None for one that another system made."""
        return self._state_dir

    @property
    def provided(self) -> Provided:
        """What was put into it at its start, as noted now. Raises AdapterUnavailable if the note is damaged."""
        return read_provided(self._state_dir)

    def seed_of(self, commit: str) -> Seed:
        """The seed of another baseline of its session. Raises AdapterUnavailable if it is gone."""
        places = dict.fromkeys(place for place in (self.seeds, os.path.dirname(self.seed.directory)) if place is not None)
        return _seed_in(places, commit, self.seed.history, self.seed.format.name)

    def reread_baseline(self) -> None:
        """Take over the baseline that another object of this workspace has stored. Raises AdapterUnavailable if it cannot be read."""
        if self._state_dir is not None:
            note = read_note(self._state_dir, self.path)
            self.seed = self.seed if note["commit"] == self.seed.commit else self.seed_of(note["commit"])
            self.bases = bases_in(note)

    def store_baseline(self, seed: Seed, bases: Changes) -> None:
        """Store that the workspace has another baseline from now on.

        Args:
            seed: the baseline.
            bases: see the attribute.

        Raises:
            OSError: the disk refused.
            AdapterUnavailable: what was noted about it cannot be read.
        """
        if self._state_dir is not None:
            based = {json_name(path): entry and [entry.mode, entry.id] for path, entry in bases.items()}
            note = {**read_note(self._state_dir, self.path), "commit": seed.commit, "began": self.began.commit, "bases": based}
            write_file(os.path.join(self._state_dir, NOTE), json.dumps(note).encode(), sync=seed.sync)
        self.seed, self.bases = seed, dict(bases)

    def unmounted(self) -> AbstractContextManager[object]:
        """A block in which the engine may change its files; for an ``overlay``, no program has its layers mounted meanwhile.

        Raises:
            WriteRejected: a program has.
        """
        files = self.files
        return files.unmounted(".") if isinstance(files, LayeredDir) else contextlib.nullcontext()

    def close(self) -> None:
        """Release its descriptor."""
        files, self._files = self._files, None
        if files is not None:
            files.close()

    def name_branch(self, branch: str) -> None:
        """Name the branch that a new workspace with a git of its own is on. Other kinds have no branch of their own, and nothing happens.

        Raises:
            OSError: the disk refused.
        """
        if self.kind in WITH_OWN_GIT:
            write_branch(os.path.join(self.path, ".git"), self.began.commit, branch, write_file)

    def move_aside(self, path: str) -> None:
        """Move the workspace to ``path`` in the same directory, out of the agent's reach. A workspace that was moved before is found there.

        Raises:
            OSError: the system refused.
        """
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, path)
        self.path = path

    def leave_in_durable(self, reason: str) -> None:
        """Lock the entry of a linked work tree in durable, so that neither ``remove`` nor git takes what its HEAD and index lead to.

        Raises:
            OSError: the disk refused.
        """
        if self._admin is not None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                write_file(os.path.join(self._admin, "locked"), os.fsencode(f"{reason}\n"), sync=True)
                sync_directory(self._admin)
            self._admin = None

    def remove(self, trash: Trash) -> None:
        """Move the workspace to the trash, which deletes it later. A workspace that is gone already is no error."""
        self.close()
        if self._admin is not None:
            remove_tree(self._admin)
        trash.discard(self.path)


def create(
    kind: WorkspaceKind,
    path: str,
    state_dir: str,
    seed: Seed,
    *,
    branch: str = "main",
    durable_common_dir: str | None = None,
    name: str = "workspace",
) -> Workspace:
    """Make a workspace with the contents of the seed's baseline.

    Args:
        kind: the kind of workspace.
        path: its directory, which must not exist.
        state_dir: a directory outside the workspace, where the engine keeps its notes about it.
        seed: the baseline.
        branch: name of the branch that a ``clone`` is on.
        durable_common_dir: the common git directory of durable; only ``worktree`` uses it.
        name: name of a ``worktree`` in durable.

    Raises:
        CapabilityMissing: ``worktree`` without a local durable repository.
        OSError: the disk refused.
    """
    if kind == "worktree" and durable_common_dir is None:
        raise CapabilityMissing("A 'worktree' needs a durable repository on this machine.", fix="Use 'clone', 'lazy' or 'copy'.")
    os.makedirs(path)
    directories: Mapping[str, int] = {"": os.stat(path).st_ino}
    admin = None
    if kind not in INCOMPLETE:
        directories = write_files(path, seed)
    if kind == "clone":
        write_git_directory(os.path.join(path, ".git"), seed, branch)
    elif kind == "overlay":
        lower_layers(seed)
        write_git_directory(os.path.join(path, ".git"), seed, branch, above=True)
        os.makedirs(os.path.join(state_dir, _WORK))
    elif durable_common_dir is not None and kind == "worktree":
        admin = link_worktree(path, durable_common_dir, seed, name)
    os.makedirs(state_dir, exist_ok=True)
    return Workspace(kind, path, seed, note_creation(kind, state_dir, seed, directories, admin), admin, state_dir)


def _seed_in(places: Collection[str], commit: str, history: History, format_name: str) -> Seed:
    """The seed of a commit, in the first of some directories that has it. Raises AdapterUnavailable if none has."""
    found = (open_seed(place, commit, history, format_name) for place in places)
    seed = next((one for one in found if one is not None), None)
    if seed is None:
        raise AdapterUnavailable(
            f"The seed of {commit} is gone from {' and '.join(places)}.",
            why="Without the baseline it is unknown what the agent changed.",
            fix="Restore the directory, or copy the workspace's files by hand and discard the session.",
        )
    return seed


def open_workspace(path: str, state_dir: str, seeds: str | None = None) -> Workspace:
    """Open a workspace that was made earlier, possibly by another process, and perhaps moved since with its session's directory.

    Args:
        path: where it is now.
        state_dir: as for ``create``.
        seeds: where seeds are now, if that may be another directory than the one they were made in.

    Raises:
        AdapterUnavailable: its state or its seed is gone or damaged, or it is a copy of a linked work tree; the message says which.
    """
    note = read_note(state_dir, path)
    try:
        kind, history, format_name, admin = check_kind(note["kind"]), note["history"], note["format"], note["admin"]
        directories = {name_of(name): inode for name, inode in note["directories"].items()}
        whole, taken = kind not in INCOMPLETE, taken_in(state_dir)
        created = CreationState(note["stamp"], note["boot"], directories, whole, kind == "overlay", taken)
        places = dict.fromkeys(place for place in (seeds, note["seeds"]) if place is not None)
        seed = _seed_in(places, note["commit"], history, format_name)
        bases = bases_in(note)
        began = seed if note.get("began", seed.commit) == seed.commit else _seed_in(places, note["began"], history, format_name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, GittrixError):
            raise  # some of ours are OSErrors too
        raise unreadable_note(path, error) from error
    if admin is not None:
        _settle_worktree(admin, path)
    return Workspace(kind, path, seed, created, admin, state_dir, began, bases)


def _settle_worktree(admin: str, path: str) -> None:
    """See that durable's entry for a linked work tree is for this directory; if the directory moved, the entry follows it.

    Raises:
        AdapterUnavailable: the entry is another directory's, which this one is a copy of; or the system refuses to show it.
    """
    file = os.path.join(admin, "gitdir")
    try:
        with open(file, "rb") as entry:
            linked = os.fsdecode(entry.read().rstrip(b"\n"))
    except (FileNotFoundError, NotADirectoryError):
        return  # without an entry there is nothing to be mistaken for
    except OSError as problem:
        raise AdapterUnavailable(
            f"{file} cannot be read: {problem.strerror}.",
            why="It says whose entry in durable this is; in a copy, work would change the original.",
            fix="Mend the cause, then try again.",
        ) from problem
    here = os.path.join(path, ".git")
    if os.path.realpath(linked) == os.path.realpath(here) or not os.path.lexists(here):
        return
    if os.path.lexists(linked):
        raise AdapterUnavailable(
            f"{path} is a copy of the work tree {os.path.dirname(linked)}.",
            why="They share one entry in durable, so what is committed in one changes the other.",
            fix="Work in the original, or discard this session: the files are kept.",
        )
    write_file(file, os.fsencode(here) + b"\n")


def adopt_workspace(path: str, kind: str, seed: Seed, admin: str | None = None) -> Workspace:
    """Open a workspace that another system made (a TypeScript store's). Nothing is known of its creation, so a snapshot reads every file.

    Args:
        path: its root.
        kind: its kind, as the session's record names it.
        seed: its baseline.
        admin: its git directory in durable, if it is a linked work tree.

    Raises:
        AdapterUnavailable: it is not a workspace on this machine.
    """
    if kind not in KINDS:
        raise AdapterUnavailable(
            f"The workspace is {kind!r}, which is not on this machine.",
            why="Only local workspaces can be opened here.",
            fix=f"Local kinds are: {', '.join(KINDS)}.",
        )
    return Workspace(check_kind(kind), path, seed, CreationState(0, boot_offset(), {}, complete=True), admin)
