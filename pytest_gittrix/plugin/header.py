"""The header line of a test run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.environment import git_version

if TYPE_CHECKING:
    from pytest_gittrix.plugin.config import GittrixConfig


def header(options: GittrixConfig) -> str:
    """The header: the version of git and the options that are in force."""
    try:
        git = ".".join(map(str, git_version()))
    except GittrixError as problem:
        git = f"unusable ({problem.fact})"
    start = format_instant(options.clock_start)
    return f"gittrix: git {git}, workspace={options.workspace}, freeze={options.freeze}, clock_start={start}, keep={options.keep}"
