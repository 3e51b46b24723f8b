"""Suites that are made: whole or not at all, of cases on repositories of this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.identity import digest_of
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.formats.toml_file import toml_list, toml_text
from pytest_gittrix.os_level.files import whole_directory

TESTS: Final = "tests"
"""The directory of a case with its hidden tests."""


@contextmanager
def new_suite(out: str | os.PathLike[str]) -> Iterator[Path]:
    """A block that writes a suite into the directory that it is given; it becomes ``out`` once it loads.

    Raises:
        InvalidInput: ``out`` exists, or is not a path.
    """
    target = free_path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    with whole_directory(target, draft):
        yield draft
        Suite.load(draft)
        draft.chmod(0o755)


def free_path(out: str | os.PathLike[str]) -> Path:
    """The path of a suite to make. Raises InvalidInput if it exists, or is not a path."""
    target = Path(out).absolute()
    if "\0" in str(target):
        raise InvalidInput(f"{str(target)!r} is not a path.", why="No path holds NUL.", fix="Name a new directory.")
    if os.path.lexists(target):
        raise InvalidInput(f"{target} already exists.", why="Nothing is written over a suite.", fix="Name a new directory.")
    return target


def write_files(directory: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a directory, which is made if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data.encode() if isinstance(data, str) else data)


def case_with_tests(repository: Path, commit: str, must_pass: Iterable[str], *, gold: bool, drift: bool = False) -> str:
    """The ``case.toml`` of a case that hidden tests judge; its patches are ``gold.patch`` and ``drift.patch``."""
    return (
        ('gold = "gold.patch"\n' if gold else "")
        + f"\n[durable]\npath = {toml_text(str(repository))}\ncommit = {toml_text(commit)}\n\n"
        + ('[drift]\npatch = "drift.patch"\nat = "before-promote"\n\n' if drift else "")
        + f'[check]\ntests = "{TESTS}"\nmust_pass = {toml_list(must_pass)}\n\n[limits]\ntimeout = "30m"\n'
    )


def digest_of_cases(suite: Suite) -> str:
    """The digest of all cases of a suite: the same for the same cases on every machine."""
    return digest_of([[case.id, case.digest] for case in suite.cases])


def overlap(path: str, other: str) -> bool:
    """Whether changes of two paths exclude each other: they are one path, or one is a directory of the other."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")
