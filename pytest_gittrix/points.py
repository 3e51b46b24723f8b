"""Named points the engine passes, so that a test can stop there, slip another actor in, or crash.

A point marks a step between two of which another process could act ("promote:head-read"). Nothing listens in
production: a passed point then costs one global read and a call. Points carry no data, so that the engine cannot come
to depend on a listener.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str], None]

_listener: Listener | None = None


def reached(name: str) -> None:
    """Say that the engine is at ``name`` (``"<operation>:<what has just happened>"``)."""
    if _listener is not None:
        _listener(name)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have ``listener(name)`` called, on the engine's own thread, at each point passed inside the block.

    What the listener raises propagates into the engine, which is how a crash at a point is played. Blocks nest: the
    inner listener replaces the outer one until it ends.
    """
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before
