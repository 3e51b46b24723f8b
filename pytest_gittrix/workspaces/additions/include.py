"""Gives a new workspace files that git ignores, such as ``.env``, as durable's checkout has them.

A file of the checkout is included if a pattern of gitignore(5) matches it and the baseline ignores it. Files are copied, as reflinks where
the file system has these: what is done to one copy is never seen in the other. A link is made again where it leads to a place within
the repository, and none is followed. Nothing of all that is written to durable.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from pytest_gittrix.git.ignore import Ignore
from pytest_gittrix.git.path_rules import is_safe_path
from pytest_gittrix.os_level.files import copy_file
from pytest_gittrix.workspaces.provided import note_provision
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.workspace import Workspace

_MOST_LINES: Final = 20
_WILD: Final = frozenset("*?[\\")


class IncludedPath(NamedTuple):
    """A file, or a directory with all that was included below it: its path, which ends in ``/`` then, the files and their bytes."""

    path: str
    files: int
    size: int


class Included(NamedTuple):
    """What a workspace got from a checkout.

    Attributes:
        paths: the uppermost paths, sorted.
        left_out: a line for each path that a pattern matches and that was not included, with the reason; the first twenty of them.
    """

    paths: tuple[IncludedPath, ...] = ()
    left_out: tuple[str, ...] = ()


class _Match(NamedTuple):
    """A path of the checkout that a pattern matches: the uppermost path that is included with it, and why it is left out, if it is."""

    path: str
    top: str = ""
    reason: str = ""


class _Patterns:
    """Patterns of gitignore(5), the last of which that fits decides.

    One that names a directory on the way, such as ``config/local/*.json``, is looked for in ignored directories, too; one such as ``.env``,
    which would be looked for everywhere, is not: an ignored directory such as ``node_modules`` is large.
    """

    def __init__(self, patterns: Collection[str]) -> None:
        self._rules = Ignore({"": "\n".join(patterns).encode(errors="surrogateescape")})
        self._ways = [way for one in patterns if (way := _fixed_way(one))]

    def match(self, path: str, *, directory: bool = False) -> bool:
        """Whether they match a path, or a directory above it."""
        return self._rules.ignored(path, directory=directory)

    def lead_into(self, directory: str) -> bool:
        """Whether one of them names something below an ignored directory."""
        return any(f"{way}/".startswith(f"{directory}/") or f"{directory}/".startswith(f"{way}/") for way in self._ways)


def _fixed_way(pattern: str) -> str:
    """The directories that a pattern names before its first wildcard; empty if it names none."""
    if pattern.startswith(("#", "!")):
        return ""
    named = pattern.strip().strip("/").split("/")[:-1]
    wild = next((at for at, part in enumerate(named) if _WILD.intersection(part)), len(named))
    return "/".join(named[:wild])


def include_files(workspace: Workspace, state_dir: str, checkout: str, patterns: Collection[str], avoid: Collection[str]) -> Included:
    """Copy files that git ignores from durable's checkout into a new workspace, and note that they are no work.

    Args:
        workspace: the workspace, in which no agent has worked and to which nothing else was added.
        state_dir: where the engine keeps its notes about it.
        checkout: the root of the checkout.
        patterns: which files, as lines of gitignore(5).
        avoid: directories that are never looked into, such as the store.

    Raises:
        OSError: the disk refused, or a directory of the checkout cannot be listed.
        WriteRejected: the workspace refused a directory.
    """
    workspace.seed.read_all()
    counts: dict[str, list[int]] = {}
    reasons: list[str] = []
    latest = 0
    for one in _matches(checkout, _Patterns(patterns), workspace.seed, {os.path.realpath(path) for path in avoid}):
        source = os.path.join(checkout, one.path)
        try:
            reason = one.reason or _obstacle(checkout, one.path, workspace.seed)
            if not reason:
                copied = _copy(source, one.path, workspace)
                latest = max(latest, copied.st_ctime_ns)
                counts.setdefault(one.top, []).append(copied.st_size)
        except OSError as problem:
            if problem.filename != source:
                raise
            if isinstance(problem, FileNotFoundError):  # it was removed meanwhile
                continue
            reason = f"it cannot be read: {problem.strerror}"
        if reason:
            reasons.append(f"{one.path!r}: {reason}")
    if counts:
        note_provision(state_dir, "durable", counts, latest)
    paths = tuple(IncludedPath(top, len(sizes), sum(sizes)) for top, sizes in sorted(counts.items()))
    more = [f"and {len(reasons) - _MOST_LINES} more"] if len(reasons) > _MOST_LINES else []
    return Included(paths, (*reasons[:_MOST_LINES], *more))


def _matches(checkout: str, patterns: _Patterns, seed: Seed, avoid: Collection[str]) -> Iterator[_Match]:
    """What the patterns match and the baseline ignores; and what it does not ignore, with that as the reason."""
    pending: list[tuple[str, str]] = [("", "")]
    while pending:
        directory, top = pending.pop()
        try:
            with os.scandir(os.path.join(checkout, directory)) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
            foreign = "it is a repository of its own" if directory and any(entry.name == ".git" for entry in entries) else ""
        except PermissionError as problem:
            entries, foreign = [], f"it cannot be listed: {problem.strerror}"
        if foreign:
            if top or patterns.match(directory, directory=True):
                yield _Match(f"{directory}/", reason=foreign)
            continue
        for entry in entries:
            path = f"{directory}/{entry.name}" if directory else entry.name
            if path == ".git" or path in seed.entries:
                continue
            if not entry.is_dir(follow_symlinks=False):
                if top or patterns.match(path):
                    ignored = bool(top) or seed.ignore.ignored(path)
                    yield _Match(path, top or path, "" if ignored else "the baseline's .gitignore does not ignore it")
            elif os.path.realpath(entry.path) not in avoid:
                below = top
                if not top and path not in seed.directories and seed.ignore.ignored(path, directory=True):
                    below = f"{path}/" if patterns.match(path, directory=True) else ""
                    if not below and not patterns.lead_into(path):
                        continue
                pending.append((path, below))


def _obstacle(checkout: str, path: str, seed: Seed) -> str:
    """Why a file of the checkout cannot be in the workspace; empty if it can. Raises OSError."""
    if path in seed.directories:
        return "the baseline has a directory there"
    if not is_safe_path(path):
        return "its name could be taken for a git directory"
    here = os.path.join(checkout, path)
    mode = os.lstat(here).st_mode
    if stat.S_ISLNK(mode):
        to = os.readlink(here)
        is_below = not os.path.isabs(to) and not os.path.normpath(os.path.join(os.path.dirname(path), to)).startswith("..")
        is_inside = f"{os.path.realpath(here)}/".startswith(f"{os.path.realpath(checkout)}/")
        return "" if is_below and is_inside else "it is a link to a place outside, or by an absolute path"
    return "" if stat.S_ISREG(mode) else "it is neither a file nor a link"


def _copy(source: str, path: str, workspace: Workspace) -> os.stat_result:
    """Copy a file or a link, and make the directories above it; returns the status of the copy."""
    target, directory = os.path.join(workspace.path, path), os.path.dirname(path)
    if directory and not os.path.isdir(os.path.dirname(target)):
        workspace.files.make_directory(directory)
    if not os.path.islink(source):
        return copy_file(source, target)
    os.symlink(os.readlink(source), target)
    return os.lstat(target)
