"""Who requests an operation: a person's program, or a process of an agent that this store's engine launched.

An agent's process is known by the mark in its environment, in that of a process it descends from, or in that of its supervisor, who adopts
its orphans. This catches accidents and prompt injection. It is no wall: the wall is the level of confinement
(docs/explanation/isolation.md).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import PersonRequired
from pytest_gittrix.os_level.process_tree import marks_above
from pytest_gittrix.record.eventlog.events import Actor

_REMOTE: Final[ContextVar[Callable[[], int | None] | None]] = ContextVar("process that a request comes from", default=None)


def make_mark(store: Path, session: str) -> str:
    """A new mark for the agent of a session."""
    return f"{os.urandom(8).hex()}.{_name_of(store)}.{session}"


@lru_cache(maxsize=16)
def _name_of(store: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(store))).hexdigest()[:16]


@contextmanager
def on_behalf_of(find: Callable[[], int | None]) -> Iterator[None]:
    """Serve a request of another process: in the body, that process is the requester.

    Args:
        find: gives the number of that process, when it is needed; None if it cannot be known, and then this process is the requester.
    """
    token = _REMOTE.set(cache(find))
    try:
        yield
    finally:
        _REMOTE.reset(token)


def requesting_process() -> int:
    """The number of the requesting process: this one, unless it serves a request of another."""
    find = _REMOTE.get()
    remote = None if find is None else find()
    return os.getpid() if remote is None else remote


def sessions_of_requester(store: Path) -> list[str]:
    """The sessions of a store whose agents the requesting process descends from, nearest first; none for a person's process.

    An agent that spawns another is above it. An agent can give its own programs a false mark, but cannot take away the true one above them.
    """
    asking, found = requesting_process(), []
    for mark in _own_marks(asking) if asking == os.getpid() else marks_above(asking):
        _, _, rest = mark.partition(".")
        name, _, session = rest.partition(".")
        if session and name == _name_of(store):
            found.append(session)
    return list(dict.fromkeys(found))


@lru_cache(maxsize=1)
def _own_marks(pid: int) -> tuple[str, ...]:
    """The marks above this process, which stay as they are: when one of an agent's processes ends, its supervisor adopts the children."""
    return tuple(marks_above(pid))


def actor_of_requester(store: Path, actor: Actor) -> Actor:
    """The actor of an event: a request of an agent is never logged as a person's."""
    return "agent" if actor == "human" and sessions_of_requester(store) else actor


def require_person(store: Path, verb: str) -> None:
    """Refuse an agent what only a person decides.

    Args:
        store: root of the store of sessions.
        verb: what was asked for, such as ``promote``.

    Raises:
        PersonRequired: an agent of the store asks.
    """
    sessions = sessions_of_requester(store)
    if not sessions:
        return
    raise PersonRequired(
        f"The agent of session {sessions[0]} asked to {verb}, which only a person may.",
        why="The agent works in its workspace, and a person decides what becomes of that work. Nothing was changed.",
        fix="Do it yourself, in a terminal outside the agent. The agent can ask for it in a report or in its output.",
    )
