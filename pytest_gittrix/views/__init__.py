"""One session in several dialects: each view a table of what may follow what, and pure functions of the log.

A view reads events and nothing else, so what it shows can always be shown again.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import fold

VIEWS: Final = ("gittrix", "gastown", "pixir", "orchestrator", "botminter")
"""The systems whose reading of a session there is."""


def view(events: Sequence[Event], name: str) -> dict[str, Any]:
    """A session's record in another system's own schema.

    Args:
        events: all events of the session, as ``session.history()`` gives them.
        name: of the system, one of ``VIEWS``.

    Raises:
        InvalidInput: there is no such view, or no event.
    """
    return dict(_module(name).record(events))


def state_in(events: Sequence[Event], name: str) -> str:
    """The session's state by the name that another system has for it. Raises as ``view``."""
    module = _module(name)
    # Where a state alone does not tell it, the view reads the events.
    told = getattr(module, "state_in", None)
    return str(module.state_of(fold(events)) if told is None else told(events))


def _module(name: str) -> Any:
    if name not in VIEWS:
        raise InvalidInput(f"There is no view {name!r}.", fix=f"Use one of: {', '.join(VIEWS)}.")
    return import_module(f"{__name__}.{name}")
