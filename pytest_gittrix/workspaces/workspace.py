"""Workspaces: where the agent works, made from a seed and thrown away by a rename.

``clone`` is a self-contained repository of its own; ``lazy`` holds only what was written and reads through to the
baseline; ``copy`` has the files and no git; ``worktree`` is a linked work tree of durable, as the original GitTrix made it,
and shares references and configuration with it. Knows no session.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, InvalidInput, PathNotFound, WriteRejected
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK
from pytest_gittrix.os_level.files import write_all, write_new
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.seed import BASELINE_MTIME, Seed, open_seed
from pytest_gittrix.workspaces.snapshot import CreationState, Limits, Snapshot, boot_offset, take_snapshot, workspace_gone

WorkspaceKind = Literal["clone", "lazy", "copy", "worktree"]
KINDS: Final[tuple[WorkspaceKind, ...]] = get_args(WorkspaceKind)

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WALKED: Final = 100
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
    """What a kind of workspace can do, and what it cannot promise.

    Attributes:
        git: it is a git repository the agent can use.
        shell: a program can work in it and finds every file there.
        isolated: nothing the agent does in it reaches durable.
        warning: why not, where it is not.
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
}


def check_kind(kind: object) -> WorkspaceKind:
    """Validate a workspace kind.

    Raises:
        InvalidInput: it is none; the message lists those there are.
    """
    if kind in KINDS:
        return kind
    raise InvalidInput(
        f"workspace={kind!r} is not a kind of workspace.", why="It decides what the agent finds.", fix=f"Use one of: {', '.join(KINDS)}."
    )


class Workspace:
    """One workspace on disk. Made by ``create``, found again by ``open_workspace``.

    Attributes:
        kind: its kind.
        path: its root directory.
        seed: its baseline.
        confine: how programs in it are to be confined, as whoever made or opened it says; nothing here goes by it.
    """

    confine: str = "off"

    def __init__(self, kind: WorkspaceKind, path: str, seed: Seed, origin: CreationState, admin: str | None) -> None:
        self.kind = kind
        self.path = path
        self.seed = seed
        self._origin = origin
        self._admin = admin
        self._files: SafeDir | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return CAPABILITIES[self.kind]

    @property
    def files(self) -> SafeDir:
        """Its files, by descriptors that cannot be led outside; of the directory that is at its path now, should somebody have swapped it.

        Raises:
            AdapterUnavailable: the directory is gone.
        """
        held = self._files
        if held is None or not held.is_in_place():
            try:
                # What was held is not closed: another thread may be at work with it.
                held = self._files = SafeDir.open(self.path)
            except (PathNotFound, WriteRejected) as error:
                raise workspace_gone(self.path, error.fact) from error
        return held

    def snapshot(self, *, limits: Limits | None = None, named: Collection[str] = (), deleted: Collection[str] = ()) -> Snapshot:
        """The workspace as a tree; see ``snapshot.take`` for arguments and errors."""
        return take_snapshot(self.path, self.seed, self._origin, limits=limits, named=named, deleted=deleted)

    def close(self) -> None:
        """Give back its descriptor."""
        held, self._files = self._files, None
        if held is not None:
            held.close()

    def move_aside(self, path: str) -> None:
        """Move the workspace out of the agent's reach, to ``path`` in the same directory; done before, it is only looked for there.

        Raises:
            OSError: the system refused.
        """
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, path)
        self.path = path

    def remove(self, trash: Trash) -> None:
        """Take the workspace away at once; its bytes are deleted later. Removing what is gone already is no error."""
        self.close()
        if self._admin is not None:
            shutil.rmtree(self._admin, ignore_errors=True)
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
    """Make a workspace that is the seed's baseline.

    Args:
        kind: what to make.
        path: where; must not exist.
        state_dir: the engine's own directory, outside the workspace, where what it needs to know later is kept.
        seed: the baseline.
        branch: name of the branch a ``clone`` is on.
        durable_common_dir: the common git directory of durable; only ``worktree`` uses it.
        name: what durable calls a ``worktree``.

    Raises:
        CapabilityMissing: ``worktree`` without a local durable repository.
        OSError: the disk refused.
    """
    if kind == "worktree" and durable_common_dir is None:
        raise CapabilityMissing("A 'worktree' needs a durable repository on this machine.", fix="Use 'clone', 'lazy' or 'copy'.")
    os.makedirs(path)
    directories: Mapping[str, int] = {"": os.stat(path).st_ino}
    admin = None
    if kind != "lazy":
        directories = _materialise(path, seed)
    if kind == "clone":
        _own_repository(os.path.join(path, ".git"), seed, branch)
    elif durable_common_dir is not None and kind == "worktree":
        admin = _link_worktree(path, durable_common_dir, seed, name)
    os.makedirs(state_dir, exist_ok=True)
    write_new(os.path.join(state_dir, "stamp"), b"")
    origin = CreationState(os.stat(os.path.join(state_dir, "stamp")).st_ctime_ns, boot_offset(), directories, kind != "lazy")
    state = {
        "kind": kind,
        "commit": seed.commit,
        "history": seed.history,
        "format": seed.format.name,
        "seeds": os.path.dirname(seed.directory),
        "admin": admin,
        "stamp": origin.stamp,
        "boot": origin.boot,
        "directories": {json_name(name): inode for name, inode in directories.items()},
    }
    write_new(os.path.join(state_dir, "workspace.json"), json.dumps(state).encode())
    return Workspace(kind, path, seed, origin, admin)


def json_name(name: str) -> str:
    """A path as JSON can hold it, whatever bytes it has; reversible, and the same text for ordinary names."""
    return os.fsencode(name).decode("latin-1")


def open_workspace(path: str, state_dir: str) -> Workspace:
    """A workspace made earlier, perhaps by another process.

    Raises:
        AdapterUnavailable: its state or its seed is gone or damaged; the message names which.
    """
    try:
        with open(os.path.join(state_dir, "workspace.json"), "rb") as file:
            state = json.load(file)
        kind, history = check_kind(state["kind"]), state["history"]
        directories = {os.fsdecode(name.encode("latin-1")): inode for name, inode in state["directories"].items()}
        origin = CreationState(state["stamp"], state["boot"], directories, kind != "lazy")
        seed = open_seed(state["seeds"], state["commit"], history, state["format"])
        admin = state["admin"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AdapterUnavailable(
            f"What the engine noted about the workspace {path} cannot be read: {error}.", fix="Discard the session."
        ) from error
    if seed is None:
        raise AdapterUnavailable(
            f"The seed of {state['commit']} is gone from {state['seeds']}.",
            why="Without the baseline nobody can say what the agent changed.",
            fix="Restore the directory, or copy the workspace's files by hand and discard the session.",
        )
    return Workspace(kind, path, seed, origin, admin)


def adopt_workspace(path: str, kind: str, seed: Seed, admin: str | None = None) -> Workspace:
    """A workspace that another system made (a TypeScript store's): nothing is known of it, so every file in it is looked at.

    Args:
        path: its root.
        kind: what its record calls it.
        seed: its baseline.
        admin: the git directory that durable keeps for it, if it is a linked work tree.

    Raises:
        AdapterUnavailable: it is not on this machine.
    """
    if kind not in KINDS:
        raise AdapterUnavailable(
            f"The workspace is {kind!r}, which is not on this machine.",
            why="Only local workspaces can be opened here.",
            fix=f"Local kinds are: {', '.join(KINDS)}.",
        )
    return Workspace(check_kind(kind), path, seed, CreationState(0, boot_offset(), {}, complete=True), admin)


def _materialise(path: str, seed: Seed) -> dict[str, int]:
    """Write every file of the baseline, with one old time; gives each directory's inode."""
    inodes: dict[str, int] = {}
    for directory, names in seed.directories.items():
        here = os.path.join(path, directory) if directory else path
        if directory:
            os.mkdir(here)
        descriptor = os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            inodes[directory] = os.fstat(descriptor).st_ino
            for name, entry in names.items():
                if entry.mode == FILE:
                    _write(descriptor, name, 0o666, seed.blob(entry.id))
                elif entry.mode == SUBMODULE:
                    os.mkdir(name, dir_fd=descriptor)
                elif entry.mode == SYMLINK:
                    os.symlink(seed.blob(entry.id), os.fsencode(name), dir_fd=descriptor)
                    os.utime(name, ns=_STAMP, dir_fd=descriptor, follow_symlinks=False)
                else:
                    _write(descriptor, name, 0o777 if entry.mode == EXECUTABLE else 0o666, seed.blob(entry.id))
        finally:
            os.close(descriptor)
    return inodes


def _write(directory: int, name: str, mode: int, data: bytes) -> None:
    descriptor = os.open(name, _CREATE, mode, dir_fd=directory)
    try:
        if os.write(descriptor, data) < len(data):
            os.lseek(descriptor, 0, os.SEEK_SET)
            write_all(descriptor, data)
        os.utime(descriptor, ns=_STAMP)
    finally:
        os.close(descriptor)


def _own_repository(git_dir: str, seed: Seed, branch: str) -> None:
    """A git directory that is whole in itself: no remote, no alternates, no history but what the seed holds."""
    packs = os.path.join(git_dir, "objects", "pack")
    for directory in (git_dir, os.path.dirname(packs), packs, os.path.join(git_dir, "refs")):
        os.mkdir(directory)
    if seed.small_files is not None:
        for name, data in seed.small_files.items():
            write_new(os.path.join(packs, name), data, 0o444)
    else:
        for name in seed.packs:
            shutil.copyfile(os.path.join(seed.objects_dir, "pack", name), os.path.join(packs, name))
    sha256 = seed.format.name != "sha1"
    config = _CONFIG.format(version=int(sha256), extensions=f"[extensions]\n\tobjectFormat = {seed.format.name}\n" if sha256 else "")
    write_new(os.path.join(git_dir, "HEAD"), f"ref: refs/heads/{branch}\n".encode())
    write_new(os.path.join(git_dir, "config"), config.encode())
    write_new(
        os.path.join(git_dir, "packed-refs"), f"# pack-refs with: peeled fully-peeled sorted \n{seed.commit} refs/heads/{branch}\n".encode()
    )
    write_new(os.path.join(git_dir, "index"), seed.index)
    if seed.shallow:
        write_new(os.path.join(git_dir, "shallow"), seed.shallow.encode())


def _link_worktree(path: str, common_dir: str, seed: Seed, name: str) -> str:
    admin = os.path.join(common_dir, "worktrees", name)
    os.makedirs(admin)
    write_new(os.path.join(admin, "HEAD"), seed.commit.encode() + b"\n")
    write_new(os.path.join(admin, "commondir"), b"../..\n")
    write_new(os.path.join(admin, "gitdir"), os.fsencode(os.path.join(path, ".git")) + b"\n")
    write_new(os.path.join(admin, "index"), seed.index)
    write_new(os.path.join(path, ".git"), b"gitdir: " + os.fsencode(admin) + b"\n")
    return admin


class Trash:
    """Where removed directories go: away in one rename, deleted when there is time.

    Args:
        directory: on the same file system as what will be thrown away.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._emptying: threading.Thread | None = None

    def discard(self, path: str) -> None:
        """Move a directory out of the way. One that is gone already is no error."""
        place = os.path.join(self._directory, secrets.token_hex(8))
        try:
            _move(path, place)
        except FileNotFoundError:
            os.makedirs(self._directory, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                _move(path, place)

    def empty(self) -> None:
        """Delete everything in it now; what cannot be deleted yet stays for the next time."""
        cut = True
        while cut:
            cut = False
            for name in self._heap():
                place = os.path.join(self._directory, name)
                try:
                    shutil.rmtree(place, onerror=_unlock)
                except RecursionError:  # an agent may have made directories that are deeper than any walk goes
                    cut = _cut(place, self._directory) or cut

    def empty_soon(self) -> None:
        """Delete everything in it, if there is anything, on a thread of its own."""
        if not self._heap():
            return
        if self._emptying is None or not self._emptying.is_alive():
            self._emptying = threading.Thread(target=self.empty, name="gittrix-trash", daemon=True)
            self._emptying.start()

    def _heap(self) -> list[str]:
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return []

    def wait(self) -> None:
        """Wait for the thread, if there is one."""
        if self._emptying is not None:
            self._emptying.join()


def _move(path: str, place: str) -> None:
    try:
        os.rename(path, place)
    except PermissionError:
        # A directory that its owner may not write cannot change its parent either; an agent may have made it so.
        if os.path.islink(path):
            raise
        os.chmod(path, stat.S_IRWXU)
        os.rename(path, place)


def _cut(place: str, heap: str) -> bool:
    """Move what lies deep below a directory to the heap itself; whether there was anything that could be moved."""
    moved = False
    with contextlib.suppress(OSError):
        for here, names, _, descriptor in os.fwalk(place):
            if here.count(os.sep) - place.count(os.sep) >= _WALKED:
                for name in names:
                    os.rename(name, os.path.join(heap, secrets.token_hex(8)), src_dir_fd=descriptor)
                    moved = True
                names.clear()
    return moved


def _unlock(_function: object, path: str, _error: object) -> None:
    """An agent may have taken its own permissions away: give them back and delete once more."""
    parent = os.path.dirname(path)
    with contextlib.suppress(OSError):
        os.chmod(parent, stat.S_IRWXU)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
