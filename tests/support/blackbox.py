"""What the tests of races from outside share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def making(*paths: Path) -> Callable[[], list[str]]:
    """Makes directories in turn, then tells what there is beside the first."""

    def act() -> list[str]:
        for path in paths:
            os.mkdir(path)
        return seen(paths[0].parent)

    return act


def seen(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())
