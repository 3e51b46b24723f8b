"""A project's own settings of its workspaces: ``.worktreeinclude``, and ``[tool.gittrix]`` in ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.seeds.seed import Seed

INCLUDE: Final = ".worktreeinclude"
"""A file of gitignore patterns at the root of a checkout: which of the files that git ignores new workspaces get, too."""
PYPROJECT: Final = "pyproject.toml"
SETTINGS: Final = (INCLUDE, PYPROJECT)
"""The files that have settings."""
_TABLE: Final = b"tool.gittrix"
_LARGEST: Final = 1 << 20


class ProjectSettings(NamedTuple):
    """What a project says of its workspaces.

    Attributes:
        include: gitignore patterns of ignored files that a new workspace gets from durable's checkout.
    """

    include: tuple[str, ...] = ()


def project_settings(checkout: str | None, seed: Seed) -> ProjectSettings:
    """The settings of a project: those in durable's checkout as they are now, and those of the baseline where there is no checkout.

    Args:
        checkout: the root of durable's checkout; None where there is none on this machine.
        seed: the baseline.

    Raises:
        InvalidInput: ``[tool.gittrix]`` has a value that is not allowed.
    """
    patterns, pyproject = (_text(checkout, seed, name) for name in SETTINGS)
    found = patterns.decode(errors="surrogateescape").splitlines()
    if _TABLE not in pyproject:
        return ProjectSettings(tuple(found))
    try:
        table = gittrix_table(pyproject.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"{PYPROJECT} of the repository cannot be read: {problem}.",
            why="Its table [tool.gittrix] says what a new workspace gets.",
            fix="Mend the file, then start the session again.",
        ) from problem
    include = texts_in(table, "include", "It says which ignored files a new workspace gets.", '[".env", "config/*.local.json"]')
    return ProjectSettings((*found, *include))


def gittrix_table(pyproject: str) -> Mapping[str, Any]:
    """The table ``[tool.gittrix]`` of the text of a ``pyproject.toml``; empty without one. Raises TOMLDecodeError if it is no TOML."""
    table = tomllib.loads(pyproject).get("tool", {})
    found = table.get("gittrix", {}) if isinstance(table, dict) else {}
    return found if isinstance(found, dict) else {}


def texts_in(table: Mapping[str, Any], name: str, why: str, example: str) -> tuple[str, ...]:
    """The list of texts that ``[tool.gittrix]`` has under a name; empty without one.

    Args:
        table: as ``gittrix_table`` gives it.
        name: of the value.
        why: what it is for, and an ``example`` of one, for the message.

    Raises:
        InvalidInput: it is no list of texts.
    """
    return check_texts(table.get(name, ()), f"tool.gittrix.{name} in {PYPROJECT}", why, example)


def check_texts(value: object, what: str, why: str, example: str) -> tuple[str, ...]:
    """Validate patterns that were given under the name ``what``. Raises InvalidInput as ``texts_in``."""
    if (
        isinstance(value, Collection)
        and not isinstance(value, (str, bytes))
        and all(isinstance(one, str) and "\n" not in one for one in value)
    ):
        return tuple(value)
    raise InvalidInput(f"{what} is no list of patterns.", why=why, fix=f"Write a list of texts, such as {example}.")


def _text(checkout: str | None, seed: Seed, name: str) -> bytes:
    """The bytes of a small regular file of the checkout, or of the baseline; empty where there is none."""
    if checkout is None:
        return seed.rules_file(name) or b""
    with suppress(GittrixError, FileNotFoundError), SafeDir.open(checkout) as files:
        return files.read(name, max_bytes=_LARGEST)[0]
    return b""
