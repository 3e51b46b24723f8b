"""pytest fixtures and a session engine for testing AI-agent sandboxes on real git.

Importing the package costs nothing: each public name is loaded from its room when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
    from pytest_gittrix.clock.clock import Clock, FrozenClock, SystemClock
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.promotion.promotion import PromoteResult, Review
    from pytest_gittrix.engine.user_session import AgentSession, UserSession
    from pytest_gittrix.errors import BaselineConflict, GittrixError, PromoteFailed, SessionExpired, SessionNotFound
    from pytest_gittrix.git.tree import Entry
    from pytest_gittrix.record.state.records import EvictionPolicy, SessionMetadata
    from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
    from pytest_gittrix.testing.world import World
    from pytest_gittrix.workspaces.finder.worktree import UnfinishedWork, unfinished_work

__version__ = "0.2.0"


__all__ = [
    "AgentSession",
    "BaselineConflict",
    "Clock",
    "DurableRepo",
    "Entry",
    "EvictionPolicy",
    "FrozenClock",
    "GitTrix",
    "GittrixError",
    "LocalDurable",
    "LocalEphemeral",
    "PromoteFailed",
    "PromoteResult",
    "Review",
    "Rival",
    "SessionExpired",
    "SessionMetadata",
    "SessionNotFound",
    "SystemClock",
    "UnfinishedWork",
    "UserSession",
    "World",
    "unfinished_work",
]


__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.backends.local": (
            "LocalDurable",
            "LocalEphemeral",
        ),
        "pytest_gittrix.clock.clock": (
            "Clock",
            "FrozenClock",
            "SystemClock",
        ),
        "pytest_gittrix.errors": (
            "BaselineConflict",
            "GittrixError",
            "PromoteFailed",
            "SessionExpired",
            "SessionNotFound",
        ),
        "pytest_gittrix.git.tree": ("Entry",),
        "pytest_gittrix.testing.repos.durable": (
            "DurableRepo",
            "Rival",
        ),
        "pytest_gittrix.testing.world": ("World",),
        "pytest_gittrix.workspaces.finder.worktree": ("UnfinishedWork", "unfinished_work"),
        "pytest_gittrix.record.state.records": (
            "EvictionPolicy",
            "SessionMetadata",
        ),
        "pytest_gittrix.engine.engine": ("GitTrix",),
        "pytest_gittrix.engine.promotion.promotion": (
            "PromoteResult",
            "Review",
        ),
        "pytest_gittrix.engine.user_session": (
            "AgentSession",
            "UserSession",
        ),
    },
)
