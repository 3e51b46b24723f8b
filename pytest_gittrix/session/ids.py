"""Session ids: random ones, and a sequence that is the same for the same seed (DESIGN rule 13)."""

from __future__ import annotations

import hashlib
import secrets
import string
from collections.abc import Callable
from typing import Final

_ALPHABET: Final = string.ascii_letters + string.digits + "_-"
_LENGTH: Final = 12


def random_id() -> str:
    """A session id as GitTrix makes them: ``sess_`` and twelve random URL-safe characters."""
    return "sess_" + secrets.token_urlsafe(_LENGTH * 3 // 4)


def seeded_ids(seed: int) -> Callable[[], str]:
    """A maker of ids that gives the same sequence for the same seed, drawing on no random state."""
    count = 0

    def make() -> str:
        nonlocal count
        digest = hashlib.sha256(f"{seed}:{count}".encode()).digest()
        count += 1
        return "sess_" + "".join(_ALPHABET[byte % 62] for byte in digest[:_LENGTH])

    return make
