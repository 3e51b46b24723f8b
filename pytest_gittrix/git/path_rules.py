"""Decide which names may be written into a workspace or a commit.

A name must be safe on every file system that may hold a checkout, not only on the current one: the rules of git's ``core.protectHFS`` and
``core.protectNTFS`` always apply, and are slightly stricter where the two are combined. These are pure functions over names; ``safe_dir``
accesses the files.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from pytest_gittrix.errors import InvalidInput, WriteRejected
from pytest_gittrix.git.tree import Item, ReadTree, parents, subtree_of
from pytest_gittrix.os_level.files import is_temporary

MAX_COMPONENT = 255
MAX_PATH = 4096

_SHOWN = 120
_NO_NAME = "it has a character that no file name can hold"

# Code points that HFS+ ignores when it compares names (git's utf8.c, next_hfs_char): ".g<U+200C>it" opens ".git" there.
_HFS_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])

# Names that a file system reads as a git directory. NTFS drops trailing dots and spaces, and reads ":" as the start of a stream. HFS+, as
# git interprets it, stops at bytes that are not UTF-8 (surrogate-escaped here) and at the two noncharacters. NTFS gives ".git" the short
# name "git~1", or a later number if that one exists.
_GIT_DIRECTORY = re.compile(r"(?:\.git|git~[0-9]+)[. ]*(?:\Z|[:\udc80-\udcff\ufffe\uffff])", re.IGNORECASE | re.ASCII)

# Names that a file system reads as ".gitmodules", by the same rules. NTFS gives it a short name of its first six letters and a number to 4,
# or, where those are taken, one of a hash of the name, of which it keeps the fewer characters the longer the number is.
_GIT_MODULES = re.compile(
    r"(?:\.gitmodules|gitmod~[1-4]|" + "|".join(f"{'gi7eba'[:kept]}~[1-9][0-9]{{{6 - kept}}}" for kept in range(7)) + ")"
    r"[. ]*(?:\Z|[:\udc80-\udcff\ufffe\uffff])",
    re.IGNORECASE | re.ASCII,
)


def check_path(path: str, *, what: str = "path") -> str:
    """Check a path that is to be written, and return its canonical spelling.

    Args:
        path: relative to the workspace, ``/``-separated; bytes that are not UTF-8 are decoded by surrogateescape.
        what: name of the argument in the message.

    Returns:
        The path without leading ``./`` and doubled slashes.

    Raises:
        InvalidInput: ``path`` is not a ``str``.
        WriteRejected: the path is empty, absolute, has a ``.`` or ``..`` component, ends in a slash, holds a NUL or a character
            that cannot be encoded, has a component that some file system reads as a git directory or that is reserved for files
            being written, or is too long.

    The rule is git's ``verify_path`` with both protections on (git-config(1), ``core.protectNTFS``): git accepts every path that is
    accepted here.
    """
    if not isinstance(path, str):
        raise InvalidInput(
            f"{what} is {type(path).__name__}, not str: {_shown(path)}",
            why="Names are text everywhere in this interface, so that one file has one spelling.",
            fix="Pass a str; os.fsdecode() turns the bytes of a name into one without loss.",
        )
    reason = _whole_path_fault(path)
    if reason:
        raise _of_the_locale(what, path) if _is_utf8(path) and reason == _NO_NAME else _rejected(what, path, reason)
    components = [component for component in path.split("/") if component]
    while len(components) > 1 and components[0] == ".":
        del components[0]
    for component in components:
        reason = _component_fault(component) or _reserved(component)
        if reason:
            raise _rejected(what, path, reason)
    return "/".join(components)


@lru_cache(maxsize=4096)
def is_safe_component(name: bytes) -> bool:
    """Whether one component, as a directory listing gives it, may be written.

    Args:
        name: the raw name.

    Returns:
        False for a component that ``check_path`` refuses because of its meaning to git or a file system, and for a name with ``/`` or NUL
        in it.
    """
    if not name or b"/" in name or b"\0" in name:
        return False
    return _component_fault(os.fsdecode(name)) is None


def is_safe_path(path: str) -> bool:
    """Whether every component of a path may be written; see ``is_safe_component``."""
    return all(map(is_safe_component, os.fsencode(path).split(b"/")))


def may_be_link(path: str) -> bool:
    """Whether a symlink may have a path, as far as git is concerned.

    A link that some file system reads as ``.gitmodules`` would lead git outside of the repository, and git checks out no tree that has
    one.
    """
    parts = (part for component in path.split("/") for part in component.split("\\"))
    return not any(_GIT_MODULES.match(part if part.isascii() else part.translate(_HFS_IGNORED)) for part in parts)


def collision_key(path: str) -> str:
    """The spelling under which a file system that folds case or normalises Unicode stores a path.

    Args:
        path: any path; surrogate escapes pass through unchanged.

    Returns:
        NFC of the case-folded NFC form. Two paths with the same key cannot both be checked out on macOS or Windows.
    """
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _whole_path_fault(path: str) -> str | None:
    if not path:
        return "it is empty"
    if "\0" in path:
        return "it contains a NUL"
    if path[0] == "/":
        return "it is absolute"
    if path[-1] == "/":
        return "it ends in a slash, and only names of directories do"
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        return _NO_NAME
    return f"it is {size} bytes long, over the {MAX_PATH} a path may have" if size > MAX_PATH else None


@lru_cache(maxsize=4096)
def _component_fault(component: str) -> str | None:
    if component in (".", ".."):
        return f"it has the component '{component}'"
    # Windows separates at a backslash too; read there, "a\..\.git" has three components.
    for part in component.split("\\") if "\\" in component else (component,):
        if part in (".", ".."):
            return f"it has the component '{part}' where a backslash separates"
        if _GIT_DIRECTORY.match(part if part.isascii() else part.translate(_HFS_IGNORED)):
            return f"its component {_shown(component)} is, or can be read as, a git directory"
    if len(component) > MAX_COMPONENT // 4:  # no character takes more than four bytes
        size = len(os.fsencode(component))
        if size > MAX_COMPONENT:
            return f"its component {_shown(component)} is {size} bytes long, over the {MAX_COMPONENT} a name may have"
    return None


def _reserved(component: str) -> str | None:
    if is_temporary(component):
        return f"its component {_shown(component)} is the name of a file that is still being written"
    return None


def _rejected(what: str, path: str, reason: str) -> WriteRejected:
    return WriteRejected(
        f"{what} {_shown(path)} is refused: {reason}",
        why="Such a name can leave the workspace, or become repository data, where the commit is checked out.",
        fix="Use a relative path of ordinary components separated by '/', for example 'src/app.py'.",
        opt_out="This rule cannot be switched off.",
    )


def _is_utf8(path: str) -> bool:
    """Whether a file system can hold the characters of a path, which are UTF-8 there."""
    try:
        return bool(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return False


def _of_the_locale(what: str, path: str) -> WriteRejected:
    return WriteRejected(
        f"{what} {_shown(path)} is refused: the locale of this process has the encoding {sys.getfilesystemencoding()}, "
        "which cannot write it",
        why="The file system could hold the name; Python hands it over in the encoding of the locale.",
        fix="Set a UTF-8 locale, such as LC_ALL=C.UTF-8, or PYTHONUTF8=1, before Python starts.",
        opt_out="Use names of ASCII characters.",
    )


def _shown(value: object) -> str:
    # repr() escapes control characters, lone surrogates and bidirectional marks: a hostile name cannot rewrite the message.
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 20]}...{text[-10:]}"


def collisions(read_tree: ReadTree, root: str | None, added: Iterable[str]) -> dict[str, str]:
    """Added paths that differ from another path of the tree only by case or Unicode form, each with that other path.

    Args:
        read_tree: reads the tree.
        root: the tree with the added paths; only the directories above them are read.
        added: the added paths.
    """
    clashes: dict[str, str] = {}
    # Each tree is asked for once: a reader of new trees parses them at each call.
    known: dict[str, tuple[Mapping[bytes, Item], dict[str, list[bytes]]]] = {}
    for path in added:
        node = root
        for depth, name in enumerate(names := os.fsencode(path).split(b"/")):
            if node is None:
                break
            if node not in known:
                items = read_tree(node)
                known[node] = items, _by_collision_key(items)
            items, by_key = known[node]
            alike = by_key[collision_key(os.fsdecode(name))]
            twin = next((other for other in alike if other != name), None)
            if twin is not None:
                clashes[path] = os.fsdecode(b"/".join([*names[:depth], twin]))
                break
            node = subtree_of(items.get(name))
    return clashes


def _by_collision_key(names: Iterable[bytes]) -> dict[str, list[bytes]]:
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for name in names:
        found[collision_key(os.fsdecode(name))].append(name)
    return found


def shared_paths(touched: Mapping[str, Collection[str]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The paths that several of some groups have, or of which one has a path above or below: by group, by the others that share them.

    The cost grows with the number of paths.

    Args:
        touched: the paths of each group, by its name.
    """
    at: dict[str, set[str]] = {}
    below: dict[str, set[str]] = {}
    for name, paths in touched.items():
        for path in paths:
            at.setdefault(path, set()).add(name)
            for parent in parents(path):
                below.setdefault(parent, set()).add(name)
    shared: dict[str, dict[str, list[str]]] = {name: {} for name in touched}
    for name, paths in touched.items():
        for path in sorted(paths):
            others = at[path].union(below.get(path, ()), *(at.get(parent, ()) for parent in parents(path)))
            for other in others - {name}:
                shared[name].setdefault(other, []).append(path)
    return {name: {other: tuple(paths) for other, paths in sorted(found.items())} for name, found in shared.items()}
