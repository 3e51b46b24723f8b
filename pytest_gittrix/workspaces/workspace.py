"""Workspaces, the directories that agents work in: made from a seed, and removed by a rename into the trash.

``clone`` is a self-contained repository; ``lazy`` holds only written files and reads the others from the baseline; ``copy`` has the files
without git; ``overlay`` is a repository of which only what changed is in the directory, above a checkout that sessions share; ``worktree``
is a linked work tree of durable, as the original GitTrix made it, and shares durable's references and configuration.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, get_args

from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, GittrixError, InvalidInput, PathNotFound, WriteRejected
from pytest_gittrix.git.repository import shared_mode, shared_setting
from pytest_gittrix.git.tree import DIRECTORY, EXECUTABLE, FILE, SUBMODULE, SYMLINK, Changes, Entry, lookup, parents
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.files import (
    PUBLIC,
    link_files,
    make_directories,
    names_in,
    read_text,
    sync_directory,
    sync_file_system,
    write_all,
    write_file,
    write_new,
)
from pytest_gittrix.os_level.remove_tree import permit_owner, remove_tree
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.overlay import LayeredDir, make_whiteout
from pytest_gittrix.workspaces.repositories.agent_git import AgentGit
from pytest_gittrix.workspaces.seed import History, Seed, open_seed
from pytest_gittrix.workspaces.seed_files import BASELINE_MTIME, LAYER, REPOSITORY_LAYER, built_once, has_many_objects, seed_below
from pytest_gittrix.workspaces.snapshot import CreationState, Limits, Snapshot, boot_offset, take_snapshot, workspace_gone

WorkspaceKind = Literal["clone", "lazy", "copy", "worktree", "overlay"]
KINDS: Final[tuple[WorkspaceKind, ...]] = get_args(WorkspaceKind)
WITH_OWN_GIT: Final[tuple[WorkspaceKind, ...]] = ("clone", "overlay")
"""The kinds with a repository of their own."""
_INCOMPLETE: Final[tuple[WorkspaceKind, ...]] = ("lazy", "overlay")
"""The kinds that do not have every file of the baseline in their directory."""

MOST_LAYERED: Final = 500
"""Paths that may differ from an earlier checkout for an ``overlay`` to lie above that: each is written again for the next baseline."""
_WORTH_A_LAYER: Final = 4
"""A layer of what differs saves nothing where more than one of so many files does."""

_NO_LAYER: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOENT)
"""What a file system that has no whiteouts answers; the last one says that somebody removed the checkout below meanwhile."""

_WORK: Final = "work"
_NOTE: Final = "workspace.json"
_TAKEN: Final = "taken"

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOTHING_TO_BRING: Final = contextlib.nullcontext()
_STAMP: Final = (BASELINE_MTIME * 10**9, BASELINE_MTIME * 10**9)
_CONFIG: Final = """\
[core]
	repositoryformatversion = {version}
	filemode = true
	bare = false
	logallrefupdates = true
	checkStat = minimal
	trustctime = false
{extensions}[user]
	name = agent
	email = agent@localhost
[gc]
	auto = 0
[maintenance]
	auto = false
"""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of workspace can do, and what it does not guarantee.

    Attributes:
        git: it is a git repository that the agent can use.
        shell: programs can run in it and find every file.
        isolated: nothing that the agent does in it reaches durable.
        warning: why it is not isolated; empty if it is.
    """

    git: bool
    shell: bool
    isolated: bool
    warning: str = ""


CAPABILITIES: Final[Mapping[WorkspaceKind, Capabilities]] = {
    "clone": Capabilities(git=True, shell=True, isolated=True),
    "lazy": Capabilities(git=False, shell=False, isolated=True),
    "copy": Capabilities(git=False, shell=True, isolated=True),
    "worktree": Capabilities(
        git=True,
        shell=True,
        isolated=False,
        warning="shares references, configuration, hooks and stash with durable; unsafe for untrusted agents",
    ),
    "overlay": Capabilities(git=True, shell=True, isolated=True),
}


def check_kind(kind: object) -> WorkspaceKind:
    """Validate a workspace kind.

    Raises:
        InvalidInput: it is not a kind of workspace; the message lists the kinds.
    """
    if kind in KINDS:
        return kind
    raise InvalidInput(
        f"workspace={kind!r} is not a kind of workspace.", why="It decides what the agent finds.", fix=f"Use one of: {', '.join(KINDS)}."
    )


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
        seeds: where the engine makes the seeds of later baselines, if not beside its own. Set by the same caller.
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
        """Its files, through descriptors that no link leads outside. A directory that was replaced since is opened anew.

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
        taken = take_snapshot(self.path, self.seed, self.created, self.git(), limits=limits, named=named, deleted=deleted, on_step=on_step)
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
        """Where the engine keeps what it has to know about it; None for one that another system made."""
        return self._state_dir

    def seed_of(self, commit: str) -> Seed:
        """The seed of another baseline of its session. Raises AdapterUnavailable if it is gone."""
        places = dict.fromkeys(place for place in (self.seeds, os.path.dirname(self.seed.directory)) if place is not None)
        return _seed_in(places, commit, self.seed.history, self.seed.format.name)

    def reread_baseline(self) -> None:
        """Take over the baseline that another object of this workspace has stored. Raises AdapterUnavailable if it cannot be read."""
        if self._state_dir is not None:
            note = _note_in(self._state_dir, self.path)
            self.seed = self.seed if note["commit"] == self.seed.commit else self.seed_of(note["commit"])
            self.bases = _bases_in(note)

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
            note = {**_note_in(self._state_dir, self.path), "commit": seed.commit, "began": self.began.commit, "bases": based}
            write_file(os.path.join(self._state_dir, _NOTE), json.dumps(note).encode(), sync=seed.sync)
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
            _write_branch(os.path.join(self.path, ".git"), self.began.commit, branch, write_file)

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
        state_dir: a directory outside the workspace, where the engine keeps what it has to know about it later.
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
    if kind not in _INCOMPLETE:
        directories = _write_files(path, seed)
    if kind == "clone":
        write_git_directory(os.path.join(path, ".git"), seed, branch)
    elif kind == "overlay":
        lower_layers(seed)
        write_git_directory(os.path.join(path, ".git"), seed, branch, above=True)
        os.makedirs(os.path.join(state_dir, _WORK))
    elif durable_common_dir is not None and kind == "worktree":
        admin = _link_worktree(path, durable_common_dir, seed, name)
    os.makedirs(state_dir, exist_ok=True)
    return Workspace(kind, path, seed, note_creation(kind, state_dir, seed, directories, admin), admin, state_dir)


def lower_layers(seed: Seed) -> tuple[str, ...]:
    """The lower layers of every overlay from a seed's baseline, the uppermost first, made now if this is the first.

    They are a checkout of the baseline; or, above the checkout of an earlier baseline, what differs from that. What differs is part of the
    seed, and keeps the seed of the checkout from being pruned.

    Raises:
        OSError: the disk refused.
    """
    seeds = os.path.dirname(seed.directory)
    if found := _lower_layers_of(seed.directory):
        return found
    with locked_file(seeds, shared=True):  # the earlier seed is not pruned meanwhile
        # Others may hold this lock too, and finish the layer now. So this is read first: then a layer that shows nothing has lost its seed.
        is_left_alone = seed_below(seed.directory) is not None
        if found := _lower_layers_of(seed.directory):
            return found
        earlier = seed.nearest_with("lower")
        if earlier is None or is_left_alone or not _make_layer(seed, *earlier):
            with built_once(os.path.join(seed.directory, "lower"), seeds) as building:
                os.mkdir(building)
                if earlier is None:
                    _write_files(building, seed)
                else:
                    _link_files(building, seed, *earlier)
                if seed.sync:
                    sync_file_system(building)
        return _lower_layers_of(seed.directory)


def _lower_layers_of(seed: str) -> tuple[str, ...]:
    """The lower layers that the seed in a directory has; none if they are not made yet."""
    whole = os.path.join(seed, "lower")
    if os.path.isdir(whole):
        return (whole,)
    earlier = seed_below(seed)
    if earlier is None:
        return ()
    whole = os.path.join(os.path.dirname(seed), earlier, "lower")
    return (os.path.join(seed, LAYER, "files"), whole) if os.path.isdir(whole) else ()


def _make_layer(seed: Seed, lower: str, changes: Changes) -> bool:
    """Make the layer of what differs from a checkout. Returns False where it would save little, or there are no whiteouts."""
    if os.path.isdir(os.path.join(lower, ".git")):
        return False  # an earlier version put the repository of that baseline there, which is not to show
    if len(changes) > MOST_LAYERED:
        return False
    if not has_many_objects(seed.directory) and len(changes) * _WORTH_A_LAYER > len(seed.entries):
        return False
    if any(entry is not None and entry.mode == SUBMODULE for entry in changes.values()):
        return False  # what is below would show in its empty directory
    layer = os.path.join(seed.directory, LAYER)
    try:
        with built_once(layer, os.path.dirname(seed.directory)) as building:
            files = os.path.join(building, "files")
            os.makedirs(files)
            _write_changes(files, seed, changes)
            write_file(os.path.join(building, "below"), os.path.basename(os.path.dirname(lower)).encode())
            if seed.sync:
                sync_file_system(building)
    except OSError as error:
        if error.errno in _NO_LAYER:
            return False
        raise
    return True


def _write_changes(root: str, seed: Seed, changes: Changes) -> None:
    """Write the files of a baseline that differ from another, and whiteouts for what of the other it does not have."""
    names: dict[str, dict[str, Entry | None]] = {}
    for path, entry in changes.items():
        shown = path if entry is not None else _first_missing(seed, path)
        if shown is not None:
            directory, _, name = shown.rpartition("/")
            names.setdefault(directory, {})[name] = entry
    made: set[str] = set()
    for directory, entries in names.items():
        for above in (*parents(directory), directory):
            if above and above not in made:
                os.mkdir(f"{root}/{above}")
                made.add(above)
        descriptor = os.open(os.path.join(root, directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name, entry in entries.items():
                if entry is None:
                    make_whiteout(descriptor, name)
                else:
                    write_entry(descriptor, name, entry, seed)
        finally:
            os.close(descriptor)


def _first_missing(seed: Seed, path: str) -> str | None:
    """The uppermost of a path and the directories above it that a baseline does not have; None where it has something else there."""
    for part in (*parents(path), path):
        item = lookup(seed.trees.read, seed.root, part)
        if item is None or item[0] != DIRECTORY:
            return part if item is None else None
    return None


def make_repository_layer(seed: Seed) -> None:
    """Make the layer with the pack and the index of every overlay from a seed's baseline, unless it is there.

    It is as large as the baseline, whatever changed since an earlier one: a pack has exactly what the agent may see. Only programs see it.

    Raises:
        OSError: the disk refused.
    """
    layer, seeds = os.path.join(seed.directory, REPOSITORY_LAYER), os.path.dirname(seed.directory)
    if os.path.isdir(layer):
        return
    with locked_file(seeds, shared=True), built_once(layer, seeds) as building:  # no seed is pruned meanwhile
        packs = os.path.join(building, ".git", "objects", "pack")
        os.makedirs(packs)
        link_files(seed.pack_dir, packs, seed.packs)
        write_new(os.path.join(building, ".git", "index"), seed.index)
        if seed.sync:
            sync_file_system(building)


def note_creation(kind: str, state_dir: str, seed: Seed, directories: Mapping[str, int], admin: str | None) -> CreationState:
    """Store what ``open_workspace`` and snapshots have to know of a workspace that was made just now.

    Args:
        kind: its kind.
        state_dir: where it is stored; an earlier note of the same workspace is replaced.
        seed: its baseline.
        directories: the inode of each of its directories.
        admin: its git directory in durable, if it is a linked work tree.
    """
    write_file(os.path.join(state_dir, "stamp"), b"")
    stamp = os.stat(os.path.join(state_dir, "stamp")).st_ctime_ns
    created = CreationState(stamp, boot_offset(), directories, kind not in _INCOMPLETE, kind == "overlay")
    state = {
        "kind": kind,
        "commit": seed.commit,
        "history": seed.history,
        "format": seed.format.name,
        "seeds": os.path.dirname(seed.directory),
        "admin": admin,
        "stamp": created.stamp,
        "boot": created.boot,
        "directories": {json_name(name): inode for name, inode in directories.items()},
    }
    write_file(os.path.join(state_dir, _NOTE), json.dumps(state).encode())
    return created


def note_taken(state_dir: str, created: CreationState) -> CreationState:
    """Store that a session has got a workspace that was made ahead, and when.

    Raises:
        OSError: the disk refused.
    """
    descriptor = os.open(os.path.join(state_dir, _TAKEN), _CREATE, 0o666)
    try:
        taken = os.fstat(descriptor).st_ctime_ns
        write_all(descriptor, b"%d" % taken)
    finally:
        os.close(descriptor)
    return created._replace(taken=taken)


def note_stamp(state_dir: str) -> tuple[int, ...]:
    """What the system says of the note of a workspace, to see that nobody has written to it since. Raises OSError."""
    status = os.stat(os.path.join(state_dir, _NOTE))
    return status.st_ino, status.st_size, status.st_ctime_ns


def _taken_in(state_dir: str) -> int:
    return int(read_text(os.path.join(state_dir, _TAKEN)) or 0)


def _note_in(state_dir: str, path: str) -> dict[str, Any]:
    """What ``note_creation`` stored. Raises AdapterUnavailable if it cannot be read."""
    try:
        with open(os.path.join(state_dir, _NOTE), "rb") as file:
            note: dict[str, Any] = json.load(file)
            return {**note, "commit": note["commit"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable_note(path, error) from error


def _bases_in(note: Mapping[str, Any]) -> Changes:
    """The ``bases`` of a workspace, from its note."""
    return {_name_of(name): Entry(*entry) if entry is not None else None for name, entry in note.get("bases", {}).items()}


def _unreadable_note(path: str, error: Exception) -> AdapterUnavailable:
    return AdapterUnavailable(f"What the engine noted about the workspace {path} cannot be read: {error}.", fix="Discard the session.")


def _seed_in(places: Collection[str], commit: str, history: History, format_name: str) -> Seed:
    """The seed of a commit, in the first of some directories that has it. Raises AdapterUnavailable if none has."""
    found = (open_seed(place, commit, history, format_name) for place in places)
    seed = next((one for one in found if one is not None), None)
    if seed is None:
        raise AdapterUnavailable(
            f"The seed of {commit} is gone from {' and '.join(places)}.",
            why="Without the baseline nobody can say what the agent changed.",
            fix="Restore the directory, or copy the workspace's files by hand and discard the session.",
        )
    return seed


def json_name(name: str) -> str:
    """Encode a path of any bytes as text that JSON can hold. Reversible, and unchanged for ASCII names."""
    return os.fsencode(name).decode("latin-1")


def _name_of(json: str) -> str:
    """What ``json_name`` encoded."""
    return os.fsdecode(json.encode("latin-1"))


def open_workspace(path: str, state_dir: str, seeds: str | None = None) -> Workspace:
    """Open a workspace that was made earlier, possibly by another process, and perhaps moved since with everything beside it.

    Args:
        path: where it is now.
        state_dir: as for ``create``.
        seeds: where seeds are now, if that may be another directory than the one they were made in.

    Raises:
        AdapterUnavailable: its state or its seed is gone or damaged, or it is a copy of a linked work tree; the message says which.
    """
    note = _note_in(state_dir, path)
    try:
        kind, history, format_name, admin = check_kind(note["kind"]), note["history"], note["format"], note["admin"]
        directories = {_name_of(name): inode for name, inode in note["directories"].items()}
        whole, taken = kind not in _INCOMPLETE, _taken_in(state_dir)
        created = CreationState(note["stamp"], note["boot"], directories, whole, kind == "overlay", taken)
        places = dict.fromkeys(place for place in (seeds, note["seeds"]) if place is not None)
        seed = _seed_in(places, note["commit"], history, format_name)
        bases = _bases_in(note)
        began = seed if note.get("began", seed.commit) == seed.commit else _seed_in(places, note["began"], history, format_name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, GittrixError):
            raise  # some of ours are OSErrors too
        raise _unreadable_note(path, error) from error
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


def _write_files(path: str, seed: Seed) -> dict[str, int]:
    """Write every file of the baseline, all with the same old time. Returns the inode of each directory."""
    inodes: dict[str, int] = {}
    blob = seed.blob
    for directory, names in seed.directories.items():
        target = os.path.join(path, directory) if directory else path
        if directory:
            os.mkdir(target)
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            inodes[directory] = os.fstat(descriptor).st_ino
            for name, entry in names.items():
                if entry.mode == FILE:  # as nearly every one is
                    _write(descriptor, name, 0o666, blob(entry.id))
                else:
                    write_entry(descriptor, name, entry, seed)
        finally:
            os.close(descriptor)
    return inodes


def _link_files(path: str, seed: Seed, lower: str, changed: Collection[str]) -> None:
    """As ``_write_files``, but that the files at which another lower layer does not differ get a second name, which costs a third."""
    for directory, names in seed.directories.items():
        target, source = (os.path.join(root, directory) if directory else root for root in (path, lower))
        if directory:
            os.mkdir(target)
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name, entry in names.items():
                if entry.mode not in (FILE, EXECUTABLE) or (f"{directory}/{name}" if directory else name) in changed:
                    write_entry(descriptor, name, entry, seed)
                    continue
                try:
                    os.link(f"{source}/{name}", name, dst_dir_fd=descriptor)
                except OSError:  # it has too many names, or that layer was removed meanwhile
                    write_entry(descriptor, name, entry, seed)
        finally:
            os.close(descriptor)


def write_entry(directory: int, name: str, entry: Entry, seed: Seed) -> None:
    """Make a file, symlink or submodule of the baseline in an open directory in which nothing has the name."""
    if entry.mode == FILE:
        _write(directory, name, 0o666, seed.blob(entry.id))
    elif entry.mode == SUBMODULE:
        os.mkdir(name, dir_fd=directory)
    elif entry.mode == SYMLINK:
        os.symlink(seed.blob(entry.id), os.fsencode(name), dir_fd=directory)
        os.utime(name, ns=_STAMP, dir_fd=directory, follow_symlinks=False)
    else:
        _write(directory, name, 0o777 if entry.mode == EXECUTABLE else 0o666, seed.blob(entry.id))


def _write(directory: int, name: str, mode: int, data: bytes) -> None:
    descriptor = os.open(name, _CREATE, mode, dir_fd=directory)
    try:
        if os.write(descriptor, data) < len(data):
            os.lseek(descriptor, 0, os.SEEK_SET)
            write_all(descriptor, data)
        os.utime(descriptor, ns=_STAMP)
    finally:
        os.close(descriptor)


def write_git_directory(git_dir: str, seed: Seed, branch: str, *, above: bool = False) -> None:
    """Write a self-contained git directory: no remote, no alternates, and no history beyond the seed's.

    Args:
        git_dir: the directory.
        seed: the baseline.
        branch: the branch that HEAD is on.
        above: whether it is above a lower layer, which has the pack and the index.
    """
    packs = os.path.join(git_dir, "objects", "pack")
    for directory in (git_dir, os.path.dirname(packs), packs, os.path.join(git_dir, "refs")):
        os.mkdir(directory)
    if not above:
        _write_packs(packs, seed)
        write_new(os.path.join(git_dir, "index"), seed.index)
    sha256 = seed.format.name != "sha1"
    config = _CONFIG.format(version=int(sha256), extensions=f"[extensions]\n\tobjectFormat = {seed.format.name}\n" if sha256 else "")
    _write_branch(git_dir, seed.commit, branch, write_new)
    write_new(os.path.join(git_dir, "config"), config.encode())
    if seed.shallow:
        write_new(os.path.join(git_dir, "shallow"), seed.shallow.encode())


def _write_branch(git_dir: str, commit: str, branch: str, write: Callable[[str, bytes], object]) -> None:
    """Write the only branch of a repository, at a commit, and the HEAD that is on it."""
    packed = f"# pack-refs with: peeled fully-peeled sorted \n{commit} refs/heads/{branch}\n"
    write(os.path.join(git_dir, "packed-refs"), packed.encode())
    write(os.path.join(git_dir, "HEAD"), f"ref: refs/heads/{branch}\n".encode())


def _write_packs(directory: str, seed: Seed) -> None:
    if seed.small_files is not None:
        for name, data in seed.small_files.items():
            write_new(os.path.join(directory, name), data, 0o444)
        return
    for name in seed.packs:
        shutil.copyfile(os.path.join(seed.pack_dir, name), os.path.join(directory, name))


def _link_worktree(path: str, common_dir: str, seed: Seed, name: str) -> str:
    admin = os.path.join(common_dir, "worktrees", name)
    permit = partial(shared_mode, shared_setting(common_dir))
    make_directories(os.path.dirname(admin), permit)
    os.mkdir(admin)
    files = {
        "HEAD": seed.commit.encode() + b"\n",
        "commondir": b"../..\n",
        "gitdir": os.fsencode(os.path.join(path, ".git")) + b"\n",
        "index": seed.index,
    }
    for file, data in files.items():
        write_new(os.path.join(admin, file), data, 0o666, permit)
    write_new(os.path.join(path, ".git"), b"gitdir: " + os.fsencode(admin) + b"\n", PUBLIC)
    return admin


class Trash:
    """A directory for what is removed: moved there by one rename, and deleted later.

    Args:
        directory: on the same file system as the directories to remove.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._again = False
        self._emptying: threading.Thread | None = None

    def discard(self, path: str) -> None:
        """Move a directory to the trash. A directory that is gone already is no error."""
        target = os.path.join(self._directory, secrets.token_hex(8))
        try:
            _move(path, target)
        except FileNotFoundError:
            os.makedirs(self._directory, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                _move(path, target)

    def empty(self) -> list[OSError]:
        """Delete everything in the trash now; what cannot be deleted, such as a mount in it, stays for the next time.

        Returns:
            Why something stays, as ``remove_tree`` says it.
        """
        return [problem for name in names_in(self._directory) for problem in remove_tree(os.path.join(self._directory, name))]

    def empty_soon(self) -> None:
        """Delete everything in the trash on a background thread, also what comes while that is at work."""
        if not names_in(self._directory):
            return
        self._again = True  # no lock: a process that is forked while a thread holds one would wait for ever
        if self._emptying is None or not self._emptying.is_alive():
            self._emptying = threading.Thread(target=self._empty_until_done, name="gittrix-trash", daemon=True)
            self._emptying.start()

    def _empty_until_done(self) -> None:
        while self._again:
            self._again = False
            self.empty()

    def wait(self) -> None:
        """Wait for the background thread to end, if it runs."""
        if self._emptying is None:
            return
        self._emptying.join()
        if self._again:  # somebody called for it just as it ended, or its process was forked
            self._again = False
            self.empty()


def _move(path: str, target: str) -> None:
    try:
        os.rename(path, target)
    except PermissionError:
        # A directory without write permission cannot be moved to another parent; an agent may have removed the permission.
        permit_owner(path)
        os.rename(path, target)
