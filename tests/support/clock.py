"""What the tests of clocks share."""

from __future__ import annotations

from datetime import timedelta

FIVE_MINUTES = timedelta(minutes=5)
TIMEOUT = 30  # seconds; only a hang takes as long
