"""A repository's own settings of what can be made again."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from pytest_gittrix.git import libgit2
from pytest_gittrix.workspaces.additions.settings import PYPROJECT, gittrix_table, texts_in
from pytest_gittrix.workspaces.finder.ignored import Regenerable
from pytest_gittrix.workspaces.provided import Provided

SETTINGS: Final = ".gittrix-unfinished"
"""A file of gitignore patterns at the root of a repository: what can be made again, and with ``!`` what cannot."""


def regenerable_by(tree: libgit2.Tree | None, keep: Collection[str], provided: Provided) -> Regenerable:
    """What can be made again by the settings of a repository.

    Args:
        tree: the tree with ``.gittrix-unfinished`` and ``pyproject.toml``; None without one.
        keep: patterns of paths that are work in any case.
        provided: what was put into the worktree at its start.

    Raises:
        InvalidInput: ``tool.gittrix.unfinished`` in pyproject.toml is no list of patterns.
    """
    own = [] if tree is None else [*_pyproject(tree), *_text(tree, SETTINGS).splitlines()]
    return Regenerable([*own, *(f"!{pattern}" for pattern in keep)], provided=provided)


def _text(tree: libgit2.Tree, name: str) -> str:
    with suppress(KeyError, AttributeError):
        return bytes(tree[name].data).decode(errors="surrogateescape")
    return ""


def _pyproject(tree: libgit2.Tree) -> list[str]:
    try:
        table = gittrix_table(_text(tree, PYPROJECT))
    except tomllib.TOMLDecodeError:
        return []  # somebody else's tool will say so
    return [*texts_in(table, "unfinished", "It says which ignored files can be made again.", '["build/", "!.cache/"]')]
