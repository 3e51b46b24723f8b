"""The life of an agent's session, written by hand: events at times of the test's choosing, of a session that was opened."""

from __future__ import annotations

from typing import Any, Final

from pytest_gittrix.record.eventlog.events import Event, check
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.record.state.values import NEVER_SWEPT

NOW: Final = 1_893_456_000_000_000_000
SECOND: Final = 1_000_000_000
HOUR: Final = 3600 * SECOND
ID: Final = "a1b2c3d4"
OPENED: Final[dict[str, Any]] = {
    "task": "mend the login",
    "kind": "loop",
    "member": "engineer-alice",
    "repositories": [
        {"name": "app", "url": "https://forge/app.git", "branch": "main", "commit": "b" * 40, "place": "projects/app"},
        {"name": "team", "url": "https://forge/team.git", "branch": "trunk", "commit": "c" * 40, "place": "team"},
    ],
    "workspace": "/w/a1b2c3d4",
    "policy": NEVER_SWEPT.to_data(),
}

# A shortest way to each state, from creating on.
WAYS: Final[dict[str, tuple[str, ...]]] = {
    "creating": (),
    "active": ("active",),
    "finalizing": ("active", "finalizing"),
    "completed": ("active", "completed"),
    "failed": ("active", "failed"),
    "killed": ("active", "killed"),
    "retained": ("active", "completed", "retained"),
    "removed": ("active", "completed", "retained", "removed"),
}


def at(hour: float) -> int:
    """So many hours after the session was opened, in nanoseconds since 1970 UTC."""
    return NOW + round(hour * HOUR / 1000) * 1000


class Lived:
    """A session of an agent, with whatever is told of it.

    Args:
        moves: the states it went through, an hour each from the first hour on.
        opened: what its first event says otherwise than ``OPENED``.
    """

    def __init__(self, *moves: str, id: str = ID, **opened: Any) -> None:
        self.id = id
        self.events: list[Event] = []
        self.tell(0, "session.opened", **{**OPENED, **opened})
        for hour, to in enumerate(moves, start=1):
            self.tell(hour, "life.moved", to=to)

    def tell(self, hour: float, type: str, /, **data: Any) -> Lived:
        """Something happened to it, whether that can be or not."""
        check(type, data)
        self.events.append(Event(len(self.events), at(hour), self.id, type, "system", data))
        return self

    def move(self, hour: float, to: str, **data: Any) -> Lived:
        """It went on to another state."""
        return self.tell(hour, "life.moved", to=to, **data)

    @property
    def state(self) -> SessionState:
        """What all of it adds up to."""
        return fold(self.events)

    @property
    def life(self) -> Life:
        """The same, as a life."""
        life = self.state.life
        assert life is not None
        return life
