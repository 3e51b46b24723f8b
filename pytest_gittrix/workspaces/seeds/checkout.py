"""Writes the files of a baseline, and a git directory for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from pytest_gittrix.git.git_directory import shared_mode, shared_setting
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry
from pytest_gittrix.os_level.files import PUBLIC, make_directories, write_all, write_new
from pytest_gittrix.workspaces.seeds.on_disk import BASELINE_MTIME
from pytest_gittrix.workspaces.seeds.seed import Seed

CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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


def write_files(path: str, seed: Seed) -> dict[str, int]:
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


def link_checkout(path: str, seed: Seed, lower: str, changed: Collection[str]) -> None:
    """As ``write_files``, but that the files at which another lower layer does not differ get a second name, which costs a third."""
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
    descriptor = os.open(name, CREATE_FLAGS, mode, dir_fd=directory)
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
    write_branch(git_dir, seed.commit, branch, write_new)
    write_new(os.path.join(git_dir, "config"), config.encode())
    if seed.shallow:
        write_new(os.path.join(git_dir, "shallow"), seed.shallow.encode())


def write_branch(git_dir: str, commit: str, branch: str, write: Callable[[str, bytes], object]) -> None:
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


def link_worktree(path: str, common_dir: str, seed: Seed, name: str) -> str:
    """Make a directory a linked work tree of durable; returns the directory in durable with its HEAD and its index."""
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
