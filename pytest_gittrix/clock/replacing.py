"""Attributes of a module or a class, replaced for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, substitutes: Mapping[str, Any]) -> Iterator[None]:
    """Give attributes of ``owner`` other values until the block ends."""
    originals = {name: getattr(owner, name) for name in substitutes}
    try:
        for name, substitute in substitutes.items():
            setattr(owner, name, substitute)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
