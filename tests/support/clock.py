"""What the tests of clocks share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import count

import pytest

FIVE_MINUTES = timedelta(minutes=5)
TIMEOUT = 60  # seconds; only a hang takes as long


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every wait of this process for a lock be over soon."""
    seconds: Callable[[], int] = count(step=7).__next__
    monkeypatch.setattr("time.monotonic", lambda: float(seconds()))
