"""What the tests of crashes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gittrix import points
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.supervisor import supported

OLD, NEW = "old text", "the new text"
CRASH = Crash()

needs_supervision = pytest.mark.skipif(supported() is not None, reason=str(supported()))


def save_in_place(path: Path) -> None:
    points.reached("save:begun")
    path.write_text(NEW)
    points.reached("save:written")
