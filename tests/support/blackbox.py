"""What the tests of races from outside share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def making(*paths: Path) -> Callable[[], list[str]]:
    """Return a function that makes directories in turn, then lists the directories beside the first."""

    def act() -> list[str]:
        for path in paths:
            os.mkdir(path)
        return directories_in(paths[0].parent)

    return act


def directories_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())
