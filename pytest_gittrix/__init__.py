"""pytest fixtures and a session engine for testing AI-agent sandboxes on real git.

Importing the package costs nothing: each public name is loaded from its room when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gittrix.adapters.local import LocalDurable, LocalEphemeral
    from pytest_gittrix.clock.clock import Clock, FrozenClock, SystemClock
    from pytest_gittrix.errors import BaselineConflict, GittrixError, PromoteFailed, SessionExpired, SessionNotFound
    from pytest_gittrix.git.tree import Entry
    from pytest_gittrix.harness.durable import DurableRepo, Rival
    from pytest_gittrix.harness.world import World
    from pytest_gittrix.record.model import EvictionPolicy, SessionMetadata
    from pytest_gittrix.session.manager import GitTrix
    from pytest_gittrix.session.promotion import PromoteResult, Review
    from pytest_gittrix.session.session import AgentSession, UserSession

__version__ = "0.1.0"

_HOMES = {
    "AgentSession": "session.session",
    "BaselineConflict": "errors",
    "Clock": "clock",
    "DurableRepo": "harness.durable",
    "Entry": "git.tree",
    "EvictionPolicy": "record.model",
    "FrozenClock": "clock",
    "GitTrix": "session.manager",
    "GittrixError": "errors",
    "LocalDurable": "adapters.local",
    "LocalEphemeral": "adapters.local",
    "PromoteFailed": "errors",
    "PromoteResult": "session.promotion",
    "Review": "session.promotion",
    "Rival": "harness.durable",
    "SessionExpired": "errors",
    "SessionMetadata": "record.model",
    "SessionNotFound": "errors",
    "SystemClock": "clock",
    "UserSession": "session.session",
    "World": "harness.world",
}

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
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
