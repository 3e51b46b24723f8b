"""One session as several systems read it: each view has a table of legal state changes, and pure functions of a session's events.

A view reads nothing but events, so its result can be computed again at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pytest_gittrix.extensions import OURS, find
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import fold

VIEWS: Final = tuple(OURS["views"])
"""The systems of which this package has a view. Other packages register more."""


def view(events: Sequence[Event], name: str) -> dict[str, Any]:
    """A session's record in another system's own schema.

    Args:
        events: all events of the session, as ``session.history()`` gives them.
        name: of the system: one of ``VIEWS``, or of a view that another package registers.

    Raises:
        InvalidInput: there is no such view, or no event.
    """
    return dict(find("views", name).record(events))


def state_in(events: Sequence[Event], name: str) -> str:
    """The session's state by the name that another system has for it. Raises as ``view``."""
    module = find("views", name)
    # Where the folded state alone does not determine it, the view reads the events.
    from_events = getattr(module, "state_in", None)
    return str(module.state_of(fold(events)) if from_events is None else from_events(events))
