"""Fingerprints of repositories: everything that a person could notice in one, as plain values to compare.

It only reads files, and shares no reader with the code that writes them, so that it can check that code. It runs no git, refreshes nothing
and locks nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import InvalidInput

Facts = Mapping[str, str]
"""The contents of a section: a short value by name."""

_SHOWN: Final = 12
_CHUNK: Final = 1 << 20
_KINDS: Final = {
    stat.S_IFREG: "file",
    stat.S_IFLNK: "symlink",
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
}
REFS_OF_PEOPLE: Final = ("refs/heads/", "refs/tags/", "refs/stash")
"""The beginnings of the references that people make."""
_NOTHING: Final = re.compile(r"(?!)")
_OBJECTS: Final = re.compile(r"objects/(?!info$|info/(http-)?alternates$)|info/refs$")
# The first rule that matches a file of the git directory gives its section; a file that matches none is state of git itself, such as a
# merge under way or a stale lock.
_SECTIONS: Final = tuple(
    (section, re.compile(pattern))
    for section, pattern in (
        ("objects", _OBJECTS.pattern),
        ("refs", r"refs/(?!.*\.lock$)|packed-refs$"),
        ("reflogs", r"logs/|worktrees/[^/]+/logs/"),
        ("hooks", r"hooks/"),
        ("config", r"config(\.worktree)?$|info/|shallow$|objects/info/|worktrees/[^/]+/(config\.worktree|commondir|gitdir|locked)$"),
        ("HEAD", r"(worktrees/[^/]+/)?HEAD$"),
        ("index", r"(worktrees/[^/]+/)?(index|sharedindex\.[0-9a-f]+)$"),
    )
)
_LINKED: Final = {
    "HEAD": re.compile(r"worktrees/([^/]+)/"),
    "config": re.compile(r"worktrees/([^/]+)/"),
    "index": re.compile(r"worktrees/([^/]+)/(?:index|sharedindex\.[0-9a-f]+): "),
}


@dataclass(frozen=True)
class Fingerprint:
    """The state of a repository at one moment. Equal fingerprints mean that a person can notice no difference.

    Attributes:
        sections: facts by section: ``HEAD`` (every work tree's), ``refs`` (loose and packed alike, by full name), ``reflogs`` (the
            stash's among them), ``config`` (exclude and attribute files, alternates included), ``hooks``, ``index`` (entries by
            path, and the bytes), ``state`` (a merge under way, locks, anything else in the git directory), ``work tree`` (every file
            below it, untracked and ignored ones too) and, where asked for, ``objects``.
    """

    sections: Mapping[str, Facts]

    @classmethod
    def of(cls, path: str | os.PathLike[str], *, objects: bool = False) -> Fingerprint:
        """Take the fingerprint of a repository.

        Args:
            path: the root of its main work tree, or a bare repository.
            objects: include the object database. Unreachable objects change nothing for a person, and every commit adds some.

        Raises:
            InvalidInput: there is no repository at ``path``.
        """
        root = os.path.realpath(path)
        git_dir = os.path.join(root, ".git")
        bare = not os.path.isdir(git_dir)
        if bare:
            git_dir = root
        if not os.path.isfile(os.path.join(git_dir, "HEAD")):
            raise InvalidInput(
                f"{root} is not a repository.",
                why="A fingerprint is of a whole repository: its git directory and its main work tree.",
                fix="Give the root of the main work tree (where .git is a directory), or a bare repository.",
            )
        sections = _git_directory(git_dir, objects)
        sections["work tree"] = (
            {} if bare else {name: _described(full, status) for name, full, status in _below(root, re.compile(r"\.git$"))}
        )
        return cls(sections)

    def diff(self, other: Fingerprint) -> list[str]:
        """Return the differences to a later fingerprint, one line each: ``section: name: before -> after``, sorted by section."""
        return [f"{name}: {_value(before)} -> {_value(after)}" for name, before, after in self.differences(other)]

    def differences(self, other: Fingerprint) -> list[tuple[str, str | None, str | None]]:
        """Return each fact that differs, sorted: ``section: name``, its value here and its value there; None where it has none."""
        found: list[tuple[str, str | None, str | None]] = []
        for section in sorted(self.sections.keys() | other.sections.keys()):
            mine, others = self.sections.get(section, {}), other.sections.get(section, {})
            names = sorted(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name))
            found += [(f"{section}: {_shown(name)}", mine.get(name), others.get(name)) for name in names]
        return found


def linked_work_tree(section: str, name: str) -> str | None:
    """The linked work tree that a fact of ``HEAD``, ``config`` or ``index`` is about, as git names its entry; None if it is about none.

    Args:
        section: the section of the fact.
        name: the name of the fact.
    """
    found = _LINKED[section].match(name) if section in _LINKED else None
    return found[1] if found else None


def _value(fact: str | None) -> str:
    return "nothing" if fact is None else fact


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)


def _below(root: str, skip: re.Pattern[str]) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield everything below a directory, links not followed: relative path, whole path, status.

    Paths that match ``skip`` are left out with everything below them, and so is what disappears meanwhile.
    """
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(os.path.join(root, prefix)) as entries:
                found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries if not skip.match(prefix + entry.name)]
        except FileNotFoundError:
            continue
        for name, status in found:
            yield prefix + name, os.path.join(root, prefix + name), status
            if stat.S_ISDIR(status.st_mode):
                pending.append(prefix + name + "/")


def _described(path: str, status: os.stat_result) -> str:
    """Describe a file by kind, permissions, size and digest."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "device")
    described = f"{kind} {stat.S_IMODE(status.st_mode):04o}"
    try:
        if kind == "symlink":
            return f"symlink to {os.readlink(path)!r}"
        return f"{described}, {status.st_size} bytes, {_digest(path)}" if kind == "file" else described
    except PermissionError:
        return f"{described}, unreadable"
    except FileNotFoundError:
        return f"{described}, vanishing"


def _digest(path: str) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()[:_SHOWN]


def _git_directory(git_dir: str, objects: bool) -> dict[str, Facts]:
    found: dict[str, dict[str, str]] = {section: {} for section in ("state", *(section for section, _ in _SECTIONS))}
    packed: dict[str, str] = {}
    id_size = 32 if re.search(r"(?im)^\s*objectformat\s*=\s*\"?sha256", _text(os.path.join(git_dir, "config"))) else 20
    for name, full, status in _below(git_dir, _NOTHING if objects else _OBJECTS):
        section = next((section for section, pattern in _SECTIONS if pattern.match(name)), "state")
        if stat.S_ISDIR(status.st_mode):
            continue
        if name == "packed-refs":
            packed = _packed_refs(_text(full))
        elif section in ("refs", "HEAD"):
            found[section][name] = _text(full).strip()
        elif section == "index":
            of = "" if name == "index" else f"{name}: "
            found[section] |= {of + path: entry for path, entry in _index_entries(_bytes(full), id_size).items()}
            found[section][of + "(bytes)"] = _described(full, status)
        else:
            found[section][name] = _described(full, status)
    found["refs"] = packed | found["refs"]
    if not objects:
        del found["objects"]
    return dict(found)


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return b""


def _text(path: str) -> str:
    return os.fsdecode(_bytes(path))


def _packed_refs(text: str) -> dict[str, str]:
    lines = (line.split(" ", 1) for line in text.splitlines() if line and line[0] not in "#^")
    return {name: id_ for id_, name in lines}


def _index_entries(data: bytes, id_size: int) -> dict[str, str]:
    """Read the entries of an index of version 2 or 3, by path (git's index-format); none of any other version."""
    magic, version, count = struct.unpack_from(">4sII", data) if len(data) > id_size else (b"", 0, 0)
    if magic != b"DIRC" or version not in (2, 3):
        return {}
    entries: dict[str, str] = {}
    at = 12
    for _ in range(count):
        mode = int.from_bytes(data[at + 24 : at + 28], "big")
        id_ = data[at + 40 : at + 40 + id_size].hex()
        flags = int.from_bytes(data[at + 40 + id_size : at + 42 + id_size], "big")
        extended = flags & 0x4000
        name_at = at + 42 + id_size + (2 if extended else 0)
        more = int.from_bytes(data[name_at - 2 : name_at], "big") if extended else 0
        end = data.find(b"\0", name_at)
        if end < 0:  # cut short
            break
        stage = flags >> 12 & 3
        path = os.fsdecode(data[name_at:end]) + (f" (stage {stage})" if stage else "")
        entries[path] = f"{mode:06o} {id_[:_SHOWN]}" + (f", flags {more:04x}" if more else "") + (", assumed valid" if flags >> 15 else "")
        at = end + 8 - (end - at) % 8
    return entries
