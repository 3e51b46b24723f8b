"""pytest fixtures and a session engine for testing AI-agent sandboxes on real git.

Importing the package costs nothing: each name is loaded from its room when it is first used.

    AgentSession: the agent's side of a session: files, commits and programs, and no way to promote
    BaselineConflict: durable changed the same files since the session began
    Clock: the protocol of clocks
    DurableRepo: a test's durable repository: its commits, files and work tree
    Entry: a file of a tree: its mode and its id
    EvictionPolicy: when a session expires
    FrozenClock: a clock that only a test moves
    GitTrix: the engine: starts, finds, sweeps and evicts sessions
    GittrixError: the base class of all errors; its code is stable
    LocalDurable: a repository on this machine as the durable one
    LocalEphemeral: workspaces on this machine: a clone, a copy, a worktree, or files on demand
    PromoteFailed: a promotion that changed nothing on durable
    PromoteResult: the commit of a promotion, and where it went
    Review: a fixed snapshot of a session's changes, to choose from
    Rival: another person who writes to a test's durable repository
    SessionExpired: the session has ended
    SessionMetadata: the record of a session
    SessionNotFound: the store has no such session
    SystemClock: the machine's clock, with timers on a thread
    UserSession: a person's side of a session: review, promote, discard, extend
    World: a durable repository, a clock and an engine for one test
    unfinished_work: what would be lost if a worktree were removed now
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
    from pytest_gittrix.workspaces.finder.worktree import unfinished_work

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
        "pytest_gittrix.workspaces.finder.worktree": ("unfinished_work",),
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
