"""Creates durable repositories in well under a millisecond: packs the objects of a history once, and writes repositories from that.

The files of a repository are written directly, because a single ``git`` process costs more than all of them. Each result is a real
repository that shares nothing with another one that could be changed in place.
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

from pytest_gittrix.clock.clock import CLOCK_START
from pytest_gittrix.git.index import IndexEntry, build_index, stat_numbers
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.objects import object_format as format_named
from pytest_gittrix.git.pack import Pack, build_pack, install_pack
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.tree import EXECUTABLE, SUBMODULE, SYMLINK, Entry, parents
from pytest_gittrix.os_level.files import PUBLIC, write_all, write_new
from pytest_gittrix.testing.repos.history import History, Written

HUMAN: Final = ("Human", "human@example.com")
"""Name and address of the owner of the repository."""

WRITTEN_AT: Final = 1_000_000_000
"""The modification time of the files of a fresh checkout, in seconds since 1970: well before the index, which git then trusts."""

_STAMP: Final = (WRITTEN_AT * 10**9, WRITTEN_AT * 10**9)
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_CACHED: Final = 64
# Below this size a pack costs no more to write than to link, and a written one cannot be damaged through another repository.
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
    """A history that is ready to be written as a repository. Created by ``Templates.of``.

    Attributes:
        commits: the commits, oldest first.
        format: the object format.
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
        """Write a repository: HEAD, configuration, one packed branch, one pack; and a clean work tree with its index unless ``bare``.

        Args:
            path: its directory; must not exist, its parent must.
            branch: its only branch, which HEAD is on.
            bare: no work tree; ``path`` itself is the git directory.

        Raises:
            InvalidInput: ``branch`` is not a branch name.
            FileExistsError: ``path`` exists already.
            OSError: as the system says.
        """
        ref = branch_ref(branch)
        root = os.fspath(path)
        git_dir = root if bare else os.path.join(root, ".git")
        os.mkdir(root)
        if not bare:
            os.mkdir(git_dir)
        for name in ("hooks", "info", "objects", "objects/pack", "refs", "refs/heads", "refs/tags"):
            os.mkdir(f"{git_dir}/{name}")
        self._write_pack(f"{git_dir}/objects/pack/pack-{self._pack.name}")
        write_new(f"{git_dir}/HEAD", f"ref: {ref}\n".encode(), PUBLIC)
        write_new(f"{git_dir}/config", _config(self.format, bare), PUBLIC)
        write_new(f"{git_dir}/packed-refs", f"# pack-refs with: peeled fully-peeled sorted \n{self.head} {ref}\n".encode(), PUBLIC)
        if not bare:
            write_new(f"{git_dir}/index", self._check_out(os.fsencode(root)), PUBLIC)

    def _write_pack(self, stem: str) -> None:
        for extension, data in (("pack", self._pack.data), ("idx", self._pack.index)):
            if self._linked is None:
                write_new(f"{stem}.{extension}", data, 0o444)
            else:
                _link(f"{self._linked}.{extension}", f"{stem}.{extension}")

    def _check_out(self, root: bytes) -> bytes:
        """Write every file; return the index in which all of them are clean."""
        for directory in self._directories:
            os.mkdir(root + b"/" + os.fsencode(directory))
        staged: list[tuple[bytes, IndexEntry]] = []
        for path, entry in self._entries.items():
            name = os.fsencode(path)
            status = self._write_file(root + b"/" + name, entry)
            stat = (0,) * 10 if status is None else stat_numbers(status, entry.mode)
            staged.append((name, IndexEntry(entry.mode, entry.id, stat)))
        return build_index(staged, self.format)

    def _write_file(self, path: bytes, entry: Entry) -> os.stat_result | None:
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
    """The templates of one test run. Processes may share a directory: its files are named by their contents.

    Args:
        directory: holds large packs, and what else worlds share; created when it is first needed.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.path.abspath(directory)
        self._known: OrderedDict[tuple[str, str, datetime], Template] = OrderedDict()

    def of(self, history: History, *, clock_start: datetime = CLOCK_START, object_format: str = "sha1") -> Template:
        """Return the template of a history; the 64 used last are cached.

        Args:
            history: the history to pack.
            clock_start: see ``History.write``.
            object_format: ``sha1`` or ``sha256``.

        Raises:
            InvalidInput, WriteRejected: see ``History.write``.
            UnsupportedRepository: no such object format.
        """
        key = (history.digest, object_format, clock_start)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._packed(history.write(format_named(object_format), clock_start=clock_start))
            if len(self._known) > _CACHED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known

    def _packed(self, written: Written) -> Template:
        pack = build_pack(written.objects, written.format)
        linked = None
        if len(pack.data) >= _LINKED_FROM:
            objects = os.path.join(self.directory, "objects")
            install_pack(objects, pack, mode=0o444)
            linked = os.path.join(objects, "pack", f"pack-{pack.name}")
        blobs = {entry.id: written.objects[entry.id][1] for entry in written.entries.values() if entry.mode != SUBMODULE}
        directories = sorted({parent for path in written.entries for parent in parents(path)})
        return Template(written.commits, written.format, written.entries, blobs, tuple(directories), pack, linked)


@lru_cache(maxsize=1)
def shared_templates() -> Templates:
    """Return the templates of this process, the default of worlds; their directory is removed when the process ends."""
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


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without hard links.
        shutil.copyfile(source, target)
