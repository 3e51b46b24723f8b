"""The checkout that a test run was started in, watched for changes by a program that left its world.

What is watched belongs to this checkout alone: HEAD, the branch that HEAD names, and the entries of the index. A fetch, a commit in another
work tree and a refreshed index change none of it. Nothing runs git, and where nothing has changed, nothing is read: four files are asked
for their times.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self

from pytest_gittrix.errors import AdapterUnavailable, UnsupportedRepository, first_few
from pytest_gittrix.git.git_directory import Location, discover
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import SHA1, SHA256
from pytest_gittrix.git.refs import References
from pytest_gittrix.os_level.files import read_text
from pytest_gittrix.safe_text import visible_line

_SHOWN: Final = 5
_Stamp = tuple[int, ...]


@dataclass(frozen=True)
class _Look:
    """The state of a checkout at one moment.

    Attributes:
        stamps: the times and sizes of its files.
        branch: the full name of the branch that HEAD names; None if HEAD is detached.
        commit: the commit that HEAD is at; None before the first one.
        index: a descriptor of the index. Git replaces the file, so that the descriptor still reads what it held.
    """

    stamps: tuple[_Stamp, ...]
    branch: str | None
    commit: str | None
    index: int | None

    def __str__(self) -> str:
        return f"{(self.branch or 'a detached HEAD').removeprefix('refs/heads/')} at {(self.commit or 'no commit')[:10]}"


class CheckoutWatch:
    """Watches one checkout from now on. Close it, or use it as a context manager.

    Args:
        location: where its repository is.

    Attributes:
        root: the directory that it is known by.
    """

    def __init__(self, location: Location) -> None:
        self.root = location.work_tree or location.git_dir
        self.common_dir = location.common_dir
        self._git_dir = location.git_dir
        self._seen = self._read()

    @classmethod
    def around(cls, directory: str | os.PathLike[str]) -> Self | None:
        """The watch of the checkout that a directory is in; None if it is in none."""
        try:
            return cls(discover(os.path.realpath(directory)))
        except (AdapterUnavailable, OSError):
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; the watch is over."""
        self._see(replace(self._seen, index=None))

    def changes(self) -> list[str]:
        """What has changed since the last call, or since the watch began; a line each. What cannot be read is no change."""
        before = self._seen
        if self._stamps(before.branch) == before.stamps:
            return []
        with suppress(OSError):
            now = self._read()
            try:
                return [*self._moved(before, now), *self._restaged(before, now)]
            finally:
                self._see(now)
        return []

    def _see(self, now: _Look) -> None:
        before, self._seen = self._seen, now
        if before.index is not None:
            os.close(before.index)

    def _read(self) -> _Look:
        head = read_text(os.path.join(self._git_dir, "HEAD")) or ""
        branch = head.removeprefix("ref:").strip() if head.startswith("ref:") else None
        stamps = self._stamps(branch)
        commit = head or None
        if branch is not None:
            commit = read_text(os.path.join(self.common_dir, branch)) or References(self.common_dir, SHA1).packed().get(branch)
        index = None
        with suppress(OSError):
            index = os.open(os.path.join(self._git_dir, "index"), os.O_RDONLY | os.O_CLOEXEC)
        return _Look(stamps, branch, commit, index)

    def _stamps(self, branch: str | None) -> tuple[_Stamp, ...]:
        own = (os.path.join(self._git_dir, name) for name in ("HEAD", "index"))
        shared = (os.path.join(self.common_dir, name) for name in (branch or "HEAD", "packed-refs"))
        return tuple(map(_stamp, (*own, *shared)))

    def _moved(self, before: _Look, now: _Look) -> list[str]:
        if (before.branch, before.commit) == (now.branch, now.commit):
            return []
        last = (read_text(os.path.join(self._git_dir, "logs", "HEAD")) or "").rpartition("\n")[2]
        ids, _, note = last.partition("\t")
        return [visible_line(f"HEAD: {before} -> {now}" + (f" ({note})" if now.commit and now.commit in ids else ""))]

    def _restaged(self, before: _Look, now: _Look) -> list[str]:
        format_ = SHA256 if len(now.commit or before.commit or "") == SHA256.hex_size else SHA1
        try:
            staged = [frozenset(IndexFile(_contents(look.index), format_).staged()) for look in (before, now)]
        except UnsupportedRepository:  # split, sparse, or damaged: it may have been refreshed only
            return []
        paths = sorted({path for path, _ in staged[0] ^ staged[1]})
        return [visible_line(f"index: {first_few(paths, _SHOWN)}")] if paths else []


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _contents(descriptor: int | None) -> bytes:
    if descriptor is None:
        return b""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
