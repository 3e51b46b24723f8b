"""A session's files as its agent sees them: those on the disk, and those of the baseline that a ``lazy`` workspace shows.

Nothing here changes a workspace or records anything.
"""

from __future__ import annotations

import builtins
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from pytest_gittrix.errors import Advice, PathIsDirectory, PathNotFound, WriteRejected
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.tree import EXECUTABLE, SUBMODULE, SYMLINK, Entry, parents
from pytest_gittrix.os_level.files import is_temporary
from pytest_gittrix.os_level.open_below import LinkInTheWay, ParentNotDirectory, wrong_kind
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace

ListType = Literal["file", "dir", "symlink", "submodule"]

_MOST_LINKS: Final = 40


@dataclass(frozen=True, slots=True, order=True)
class ListEntry:
    """One line of a listing.

    Attributes:
        path: from the workspace's root.
        type: ``file``, ``dir``, ``symlink`` or ``submodule``.
    """

    path: str
    type: ListType


@dataclass(frozen=True, slots=True)
class ShownFiles:
    """The files that a session shows its agent.

    Attributes:
        workspace: the session's workspace.
        deleted: paths of the baseline that a ``lazy`` workspace does not show; none for other kinds, where absence says so.
    """

    workspace: Workspace
    deleted: frozenset[str]

    @classmethod
    def of(cls, workspace: Workspace, state: SessionState) -> ShownFiles:
        """Those of a session."""
        return cls(workspace, state.api_deleted if workspace.kind == "lazy" else frozenset())

    def read(self, path: str, max_bytes: int, *, follow: bool = False) -> bytes:
        """The bytes at a path: of the workspace, or of the baseline where a ``lazy`` workspace has no file there.

        A symlink gives its target, as git stores it, or with ``follow`` the file that it leads to. Links above it are followed.

        Raises:
            PathNotFound: there is no file there, or it was deleted.
            PathIsDirectory: it is a directory.
            WriteRejected: it is a device, or over the limit; or ``followed`` raises it.
        """
        status = self.workspace.files.lstat(path)
        if status is None or (follow and stat.S_ISLNK(status.st_mode)):
            path = self.followed(path, last=follow)
            status = self.workspace.files.lstat(path)
        if stat.S_ISDIR(status.st_mode) if status is not None else self._shows_directory(path):
            raise PathIsDirectory(
                f"{path!r} is a directory.",
                why="Only files have bytes.",
                fix=Advice(f"list({path!r}) shows its contents.", "`gittrix session list-files` shows its contents."),
            )
        if status is not None and stat.S_ISLNK(status.st_mode):
            return self.workspace.files.read_link(path)
        if status is not None:
            return self.workspace.files.read(path, max_bytes=max_bytes)[0]
        entry = self.baseline_entry(path)
        if entry is None or entry.mode == SUBMODULE:
            raise PathNotFound(
                f"There is no file {path!r} in the workspace.",
                why="A deleted file is absent, too.",
                fix=Advice("list() shows the existing ones.", "`gittrix session list-files` shows the existing ones."),
            )
        return self.workspace.seed.blob(entry.id)

    def baseline_entry(self, path: str) -> Entry | None:
        """The baseline's entry at a path as a ``lazy`` workspace shows it; None for the other kinds, where an absent file is absent.

        A file in the workspace hides the baseline at its path and below it.
        """
        entry = self.workspace.seed.entries.get(path) if self.workspace.kind == "lazy" and path not in self.deleted else None
        if entry is None or self.workspace.files.lstat(path) is not None:
            return None
        return None if any(_is_other(self.workspace.files.lstat(parent)) for parent in parents(path)) else entry

    def is_executable(self, path: str) -> bool:
        """Whether a path is an executable file of the baseline without a file on the disk whose mode could be kept."""
        entry = self.workspace.seed.entries.get(path) if self.workspace.kind == "lazy" else None
        return entry is not None and entry.mode == EXECUTABLE and self.baseline_entry(path) is not None

    def _shows_directory(self, path: str) -> bool:
        """Whether a ``lazy`` workspace shows a directory of the baseline at a path where nothing is on its disk."""
        if self.workspace.kind != "lazy" or path not in self.workspace.seed.directories:
            return False
        inside = (name for name in self.workspace.seed.entries if name.startswith(f"{path}/"))
        return any(self.baseline_entry(name) is not None for name in inside)

    def followed(self, path: str, *, last: bool = True) -> str:
        """Resolve every link on a path, as programs in the workspace do.

        Args:
            path: canonical, from the workspace's root.
            last: whether a link at the path itself is followed too, and not only those above it.

        Returns:
            The path of what is not a link; nothing has to be there.

        Raises:
            WriteRejected: it leads out of the workspace, into a git directory, or nowhere, as a circle of links does.
        """
        with suppress(ParentNotDirectory):
            status = self.workspace.files.status(path)
            if not (self._shows_link(path, last=last) if status is None else last and stat.S_ISLNK(status.st_mode)):
                return path
        place: list[str] = []
        rest, links = path.split("/"), 0
        while rest:
            component = rest.pop(0)
            if component in ("", ".", ".."):
                here = "/".join(place)
                if place and not self._is_directory(here):
                    raise _leads_nowhere(path, f"{here!r} is no directory, which {component or '/'!r} after it needs")
                if component == ".." and not place:
                    raise _leads_nowhere(path, "it goes above the root")
                place = place[:-1] if component == ".." else place
                continue
            name = "/".join([*place, component])
            target = self._target_of(name) if rest or last else None
            if target is None:
                place.append(component)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise _leads_nowhere(path, f"there are more than {_MOST_LINKS} links on the way")
            text = os.fsdecode(target)
            if text.startswith("/"):
                below = self._below_root(text)
                if below is None:
                    raise _leads_nowhere(path, f"{name!r} is a link to {text!r}")
                place, text = [], below
            rest = [*text.split("/"), *rest]
        return check_path("/".join(place)) if links else path

    def _below_root(self, path: str) -> str | None:
        """What an absolute path has after the workspace's root; None if it does not begin with it."""
        for root in (str(self.workspace.path), os.path.realpath(self.workspace.path)):
            if path == root or path.startswith(f"{root}/"):
                return path[len(root) + 1 :] or "."
        return None

    def _is_directory(self, path: str) -> bool:
        status = self.workspace.files.lstat(path)
        return stat.S_ISDIR(status.st_mode) if status is not None else self._shows_directory(path)

    def _shows_link(self, path: str, *, last: bool) -> bool:
        """Whether a ``lazy`` workspace may show a link of the baseline above a path that is not on its disk, or at it."""
        if self.workspace.kind != "lazy":
            return False
        entries = self.workspace.seed.entries
        return any(name in entries and entries[name].mode == SYMLINK for name in ((path,) * last + (*parents(path),)))

    def touched_name(self, snapshot: Snapshot, path: str) -> str:
        """The name that a path has among the touched ones: that behind the links above it, if it is not touched as it is."""
        if path in snapshot.changes or path in snapshot.refused or path in snapshot.withheld:
            return path
        with suppress(WriteRejected):  # it leads nowhere, and is reported as not touched
            return self.followed(path, last=False)
        return path

    def _target_of(self, path: str) -> bytes | None:
        """The target of the link at a path; None if there is no link."""
        status = self.workspace.files.lstat(path)
        if status is not None:
            return self.workspace.files.read_link(path) if stat.S_ISLNK(status.st_mode) else None
        entry = self.baseline_entry(path)
        return self.workspace.seed.blob(entry.id) if entry is not None and entry.mode == SYMLINK else None

    def require_no_directory(self, path: str) -> None:
        """Refuse a path where a ``lazy`` workspace shows a directory of the baseline, as a disk does where the directory is on it.

        Raises:
            WriteRejected: one is there.
        """
        if self.workspace.kind != "lazy":
            return
        entries = self.workspace.seed.entries
        inside = [path] if path in entries and entries[path].mode == SUBMODULE else []
        if path in self.workspace.seed.directories:
            inside = [name for name in entries if name.startswith(f"{path}/")]
        if any(self.baseline_entry(name) is not None for name in inside):
            raise wrong_kind(path, "directory", "file")

    def require_place(self, path: str, *, over_link: bool = True) -> None:
        """Refuse to write in a submodule, or where the baseline of a ``lazy`` workspace has something in the way that is not on its disk.

        Raises:
            WriteRejected: a directory is at the path.
            ParentNotDirectory: what is above it is a file, a link or a submodule.
            LinkInTheWay: a link is at the path, and not to be replaced.
        """
        for parent in parents(path):
            entry = self.workspace.seed.entries.get(parent)
            if entry is not None and (entry.mode == SUBMODULE or self.baseline_entry(parent) is not None):
                raise ParentNotDirectory(parent, entry.kind)
        there = None if over_link else self.workspace.seed.entries.get(path)
        if there is not None and there.mode == SYMLINK and self.baseline_entry(path) is not None:
            raise LinkInTheWay(path)
        self.require_no_directory(path)

    def exists(self, path: str) -> bool:
        """Whether a file or symlink is at a path."""
        if self.workspace.files.exists(path):
            return True
        entry = self.baseline_entry(path)
        return entry is not None and entry.mode != SUBMODULE

    def list(self, path: str) -> builtins.list[ListEntry]:
        """Everything below a directory (``.`` is the root), sorted by path, whether it is in the workspace or read through.

        Raises:
            PathNotFound: there is no such directory.
            WriteRejected: it is a file, or below one.
        """
        files, seed = self.workspace.files, self.workspace.seed

        def skipped(name: str) -> bool:
            last = name.rpartition("/")[2]
            return last == ".git" or (is_temporary(last) and name not in seed.entries and name not in seed.directories)

        here = path == "." or files.lstat(path) is not None
        found = {item.path: _type_of(item.stat.st_mode) for item in files.scan(path, skip=skipped)} if here else {}
        if self.workspace.kind == "lazy":
            below = self._read_through(path, found)
            here = here or bool(below)
            found |= below
        if not here:
            raise PathNotFound(
                f"There is no directory {path!r} in the workspace.",
                fix=Advice("list('.') shows the existing ones.", "`gittrix session list-files` shows the existing ones."),
            )
        return [ListEntry(name, type_) for name in sorted(found) if (type_ := found[name]) is not None]

    def _read_through(self, path: str, found: Mapping[str, ListType | None]) -> dict[str, ListType]:
        """What a ``lazy`` workspace shows of the baseline below a directory, without what was found on its disk there."""
        if path != ".":
            entry = self.baseline_entry(path)
            if entry is not None and entry.mode != SUBMODULE:
                raise ParentNotDirectory(path, entry.kind)
            if any(_is_other(self.workspace.files.lstat(parent)) for parent in parents(path)):
                return {}
        shown: dict[str, ListType] = {}
        prefix = "" if path == "." else path + "/"
        for directory, names in self.workspace.seed.directories.items():
            inside = f"{directory}/" if directory else ""
            above = [name for name in parents(inside) if name.startswith(prefix)]
            if not inside.startswith(prefix) or any(found.get(name, "dir") != "dir" for name in above):
                continue
            hidden = {name for name in names if inside + name in found or inside + name in self.deleted}
            if names.keys() - hidden:
                shown.update(dict.fromkeys(above, "dir"))
                shown.update((inside + name, _type_of(entry.mode) or "file") for name, entry in names.items() if name not in hidden)
        return shown


def _is_other(status: os.stat_result | None) -> bool:
    return status is not None and not stat.S_ISDIR(status.st_mode)


def _leads_nowhere(path: str, reason: str) -> WriteRejected:
    return WriteRejected(
        f"{path!r} leads out of the workspace, in a circle or nowhere: {reason}.",
        why="An agent has no access to files outside its workspace.",
        fix="Name a file of the workspace.",
        opt_out=Advice("Use the link itself with follow=False.", ""),
    )


def _type_of(mode: int) -> ListType | None:
    """The type in a listing for a mode of the disk or of git; None for what no commit can hold (pipes, sockets, devices)."""
    kinds: dict[int, ListType] = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", SUBMODULE: "submodule"}
    return kinds.get(stat.S_IFMT(mode))
