"""The line at the top of a run. It must not know pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.environment import git_version

if TYPE_CHECKING:
    from pytest_gittrix.plugin.config import GittrixConfig


def header(options: GittrixConfig) -> str:
    """What gittrix fixtures would use in this run."""
    try:
        git = ".".join(map(str, git_version()))
    except GittrixError as problem:
        git = f"unusable ({problem.fact})"
    epoch = format_instant(options.epoch)
    return f"gittrix: git {git}, workspace={options.workspace}, freeze={options.freeze}, epoch={epoch}, keep={options.keep}"
