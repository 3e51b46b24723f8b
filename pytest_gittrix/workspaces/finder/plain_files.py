"""Opens a repository for libgit2 once all that libgit2 reads of it are files.

libgit2 opens what it finds and waits for a pipe for ever. So a pipe, or a device in the place of a file, is refused before: in the git
directory, in what its configuration and its alternates lead to, and in the rules of a work tree.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.os_level.open_below import kind
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.repositories.walk import walk

_STORED: Final = ("HEAD", "config", "index", "packed-refs")
_CONFIGURATIONS: Final = ("config", "config.worktree")
_RULES: Final = frozenset({".gitignore", ".gitattributes", ".gitmodules"})
_LEADS_ON: Final = re.compile(rb"\[\s*include|excludesfile|attributesfile|worktreeconfig", re.IGNORECASE)
"""What names other files in a configuration. A section begins anywhere in a line, and also behind a byte order mark."""
_NAMED: Final = re.compile(
    rb'\b(path|excludesfile|attributesfile)[ \t]*=[ \t]*((?:"(?:\\.|[^"\\])*"|\\.|[^"\\#;\r\n])*)', re.IGNORECASE | re.DOTALL
)
"""A setting that names a file, and its value."""
_QUOTED: Final = re.compile(rb'\\(\r?\n|.)|"', re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"t": b"\t", b"b": b"\b", b"\n": b"", b"\r\n": b""}
_LARGEST: Final = 1 << 20
_DEEPEST: Final = 100
"""libgit2 goes no deeper into a work tree, and says so."""


def open_repository(path: str) -> libgit2.Repository:
    """Open a repository.

    Args:
        path: its git directory, or its work tree.

    Raises:
        OSError: a pipe, a device, or a link in the place of a file that git itself never links.
        libgit2.GitError: libgit2 cannot read it.
    """
    whole = os.path.realpath(path)
    git_dir = libgit2.discover_repository(whole, False, os.path.dirname(whole))
    if git_dir is None:
        raise OSError(f"{path} is no repository")
    for name in _STORED:
        stored = os.path.join(git_dir, name)
        if os.path.lexists(stored) and not stat.S_ISREG(os.lstat(stored).st_mode):
            raise OSError(f"{stored} is no file")
    for directory in _directories(git_dir):
        for parent, _, names in walk(directory):
            for name in names:
                _require_file(os.path.join(parent, name))
    return libgit2.Repository(git_dir)


def require_plain_rules(repository: libgit2.Repository, root: str, index: IndexFile) -> None:
    """Refuse a work tree in which a file of rules is a pipe or a device. What libgit2 does not enter, this does not either.

    Args:
        repository: the repository.
        root: its work tree.
        index: its index.

    Raises:
        OSError: the first one found.
    """
    for parent, directories, names in walk(root):
        for name in _RULES.intersection(names):
            _require_file(os.path.join(parent, name))
        if ".git" in directories:
            directories.remove(".git")
        if parent.count("/") - root.count("/") >= _DEEPEST:
            directories.clear()
        for name in [*directories]:
            path = os.path.relpath(os.path.join(parent, name), root)
            if not index.tracks(path) and _is_ignored(repository, f"{path}/"):
                directories.remove(name)


def _is_ignored(repository: libgit2.Repository, path: str) -> bool:
    try:
        return repository.path_is_ignored(path)
    except UnicodeEncodeError:  # the binding takes no such name, so it is looked into
        return False


def require_own_files(top: str, git_dir: str) -> None:
    """Refuse the repository of a session's workspace if it leads to other files, or has a pipe: an agent wrote it.

    Args:
        top: the workspace.
        git_dir: the git directory that libgit2 found for it.

    Raises:
        OSError: the first thing found.
    """
    if git_dir != os.path.join(top, ".git", ""):
        raise OSError(f"{top}/.git leads to {git_dir}")
    for directory, directories, names in walk(git_dir):
        if directory == git_dir and "hooks" in directories:
            directories.remove("hooks")  # which nothing here reads
        for name in (*directories, *names):
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise OSError(f"{path} is neither a file nor a directory")
            if path.endswith("/objects/info/alternates"):
                raise OSError(f"{path} leads to other objects")
            if name == "commondir" and os.path.basename(os.path.dirname(directory)) != "worktrees":
                raise OSError(f"{path} leads to another repository")
            if name == "config" and stat.S_ISREG(mode) and _LEADS_ON.search(read_file(path)):
                raise OSError(f"{path} includes or names other files")


def read_file(path: str) -> bytes:
    """The contents of a file that a look needs; empty if there is none. A link is not followed, and a pipe is not waited for.

    Raises:
        OSError: it is no file, or the system refused.
    """
    _require_file(path)
    try:
        with SafeDir.open(os.path.dirname(path)) as directory:
            return directory.read(os.path.basename(path))[0]
    except FileNotFoundError:
        return b""
    except GittrixError as problem:
        raise OSError(f"{path}: {problem.fact}") from problem


def _directories(git_dir: str) -> Iterator[str]:
    """A git directory and those that it leads to: the common one of a linked work tree, and the object directories of alternates.

    The files that their configurations name are looked at here as well.
    """
    pending, seen = [git_dir], set[str]()
    while pending:
        directory = os.path.realpath(pending.pop())
        if directory in seen or not os.path.isdir(directory):
            continue
        seen.add(directory)
        if pointer := read_file(os.path.join(directory, "commondir")).strip():
            pending.append(os.path.join(directory, os.fsdecode(pointer)))
        for objects in (os.path.join(directory, "objects"), directory):
            lines = read_file(os.path.join(objects, "info", "alternates")).splitlines()
            pending += [os.path.join(objects, os.fsdecode(line)) for line in lines]
        for name in _CONFIGURATIONS:
            _follow(os.path.join(directory, name), set())
        yield directory


def _follow(config: str, seen: set[str]) -> None:
    """Look at the files that a configuration names, and at those that an included one names."""
    if config in seen or not os.path.isfile(config):
        return
    seen.add(config)
    with open(config, "rb") as file:
        data = file.read(_LARGEST)
    for setting, value in _NAMED.findall(data):
        named = _QUOTED.sub(lambda found: _ESCAPED.get(found[1], found[1] or b""), value.strip())
        path = os.path.join(os.path.dirname(config), os.path.expanduser(os.fsdecode(named)))
        _require_file(path)
        if setting.lower() == b"path":
            _follow(path, seen)


def _require_file(path: str) -> None:
    """Raises OSError if a read would wait: for a pipe, or a device other than the empty one. A link is judged by where it leads."""
    try:
        status = os.stat(path)
    except OSError:
        return
    waits = stat.S_ISFIFO(status.st_mode) or (stat.S_ISCHR(status.st_mode) and status.st_rdev != os.stat(os.devnull).st_rdev)
    if waits:
        raise OSError(f"{path} is a {kind(status)}")
