"""Durable repositories made in well under a millisecond: the objects of a history packed once, and put down as often as wanted.

A repository is written by hand, because each ``git`` costs more than all of it (PERFORMANCE "Making a durable repository"). What is
put down is a real repository of its own: nothing in it is shared with another one that could be changed in place. Knows no world.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from pytest_gittrix.clock.clock import EPOCH
from pytest_gittrix.git.index import IndexEntry, build_index, stat_numbers
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.objects import object_format as format_named
from pytest_gittrix.git.pack import Pack, build_pack, install_pack
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.tree import EXECUTABLE, SUBMODULE, SYMLINK, Entry, parents
from pytest_gittrix.os_level.files import write_all
from pytest_gittrix.testing.repos.history import History, Written

HUMAN: Final = ("Human", "human@example.com")
"""Name and address of the person whose repository it is."""

WRITTEN_AT: Final = 1_000_000_000
"""When the files of a fresh checkout were last modified, in seconds since 1970: well before the index, which git then trusts."""

_STAMP: Final = (WRITTEN_AT * 10**9, WRITTEN_AT * 10**9)
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_REMEMBERED: Final = 64
# Below this a pack costs no more to write than to link, and a repository of its own cannot be spoiled through another.
_LINKED_FROM: Final = 1 << 20

_CONFIG: Final = """\
[core]
	repositoryformatversion = {version}
	filemode = true
	bare = {bare}
	logallrefupdates = {logged}
{extensions}[user]
	name = {name}
	email = {email}
[commit]
	gpgsign = false
[gc]
	auto = 0
[maintenance]
	auto = false
"""


@dataclass(frozen=True)
class Template:
    """A history ready to be put down. Made by ``Templates.of``.

    Attributes:
        commits: its commits, oldest first.
        format: its object format.
    """

    commits: tuple[str, ...]
    format: ObjectFormat
    _entries: Mapping[str, Entry]
    _blobs: Mapping[str, bytes]
    _directories: tuple[str, ...]
    _pack: Pack
    _linked: str | None

    @property
    def head(self) -> str:
        """The last commit."""
        return self.commits[-1]

    def materialise(self, path: str | os.PathLike[str], *, branch: str = "main", bare: bool = False) -> None:
        """Make a repository: HEAD, configuration, one packed branch, one pack; and a clean work tree with its index unless ``bare``.

        Args:
            path: where; must not exist, its parent must.
            branch: the one branch, which HEAD is on.
            bare: no work tree; ``path`` itself is the git directory.

        Raises:
            InvalidInput: ``branch`` is not a branch name.
            FileExistsError: something is at ``path``.
            OSError: the disk refused.
        """
        ref = branch_ref(branch)
        root = os.fspath(path)
        git_dir = root if bare else os.path.join(root, ".git")
        os.mkdir(root)
        if not bare:
            os.mkdir(git_dir)
        for name in ("hooks", "info", "objects", "objects/pack", "refs", "refs/heads", "refs/tags"):
            os.mkdir(f"{git_dir}/{name}")
        self._put_pack(f"{git_dir}/objects/pack/pack-{self._pack.name}")
        _write(f"{git_dir}/HEAD", f"ref: {ref}\n".encode())
        _write(f"{git_dir}/config", _config(self.format, bare))
        _write(f"{git_dir}/packed-refs", f"# pack-refs with: peeled fully-peeled sorted \n{self.head} {ref}\n".encode())
        if not bare:
            _write(f"{git_dir}/index", self._check_out(os.fsencode(root)))

    def _put_pack(self, stem: str) -> None:
        for extension, data in (("pack", self._pack.data), ("idx", self._pack.index)):
            if self._linked is None:
                _write(f"{stem}.{extension}", data, 0o444)
            else:
                _link(f"{self._linked}.{extension}", f"{stem}.{extension}")

    def _check_out(self, root: bytes) -> bytes:
        """Write every file; gives the index that finds them all clean."""
        for directory in self._directories:
            os.mkdir(root + b"/" + os.fsencode(directory))
        staged: list[tuple[bytes, IndexEntry]] = []
        for path, entry in self._entries.items():
            name = os.fsencode(path)
            status = self._place(root + b"/" + name, entry)
            stat = (0,) * 10 if status is None else stat_numbers(status, entry.mode)
            staged.append((name, IndexEntry(entry.mode, entry.id, stat)))
        return build_index(staged, self.format)

    def _place(self, path: bytes, entry: Entry) -> os.stat_result | None:
        if entry.mode == SUBMODULE:
            os.mkdir(path)
            return None
        data = self._blobs[entry.id]
        if entry.mode == SYMLINK:
            os.symlink(data, path)
            os.utime(path, ns=_STAMP, follow_symlinks=False)
            return os.lstat(path)
        descriptor = os.open(path, _CREATE, 0o777 if entry.mode == EXECUTABLE else 0o666)
        try:
            write_all(descriptor, data)
            os.utime(descriptor, ns=_STAMP)
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)


class Templates:
    """The templates of one test run. Processes may share a directory: what they put there is named by its contents.

    Args:
        directory: where large packs are kept, and what worlds share beyond that; made when it is first needed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.path.abspath(directory)
        self._known: OrderedDict[tuple[str, str, datetime], Template] = OrderedDict()

    def of(self, history: History, *, epoch: datetime = EPOCH, object_format: str = "sha1") -> Template:
        """The template of a history, made when it is first asked for; the 64 used last are remembered.

        Args:
            history: what to make it from.
            epoch: see ``History.write``.
            object_format: ``sha1`` or ``sha256``.

        Raises:
            InvalidInput, WriteRejected: see ``History.write``.
            UnsupportedRepository: no such object format.
        """
        key = (history.digest, object_format, epoch)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._make(history.write(format_named(object_format), epoch=epoch))
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known

    def _make(self, written: Written) -> Template:
        pack = build_pack(written.objects, written.format)
        linked = None
        if len(pack.data) >= _LINKED_FROM:
            objects = os.path.join(self.directory, "objects")
            install_pack(objects, pack)
            linked = os.path.join(objects, "pack", f"pack-{pack.name}")
        blobs = {entry.id: written.objects[entry.id][1] for entry in written.entries.values() if entry.mode != SUBMODULE}
        directories = sorted({parent for path in written.entries for parent in parents(path)})
        return Template(written.commits, written.format, written.entries, blobs, tuple(directories), pack, linked)


@lru_cache(maxsize=1)
def shared_templates() -> Templates:
    """The templates of this process, for worlds that were given none; their directory goes when the process ends."""
    directory = tempfile.mkdtemp(prefix="gittrix-templates-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a child that was forked later
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return Templates(directory)


def _config(format_: ObjectFormat, bare: bool) -> bytes:
    extended = format_.name != "sha1"
    name, email = HUMAN
    text = _CONFIG.format(
        version=int(extended),
        bare="true" if bare else "false",
        logged="false" if bare else "true",
        extensions=f"[extensions]\n\tobjectFormat = {format_.name}\n" if extended else "",
        name=name,
        email=email,
    )
    return text.encode()


def _write(path: str, data: bytes, mode: int = 0o644) -> None:
    descriptor = os.open(path, _CREATE, mode)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without hard links.
        shutil.copyfile(source, target)
