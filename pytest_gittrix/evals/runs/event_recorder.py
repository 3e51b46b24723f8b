"""What happened in a sample, in order: the session's own events and the run's, without anything that is never the same twice.

Times are ticks of the sample's clock; paths are told from the sample's directory. Real times go beside it. Must not know what events mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.durations import format_instant, ns_of
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.os_level.process_tree import seconds
from pytest_gittrix.record.eventlog.events import Event

# How a pack is compressed is the machine's own affair, and so is its name.
_PASSING: Final = frozenset({"pack"})


class Tape:
    """Made for one sample.

    Args:
        place: the sample's directory, which is told as ``/``.

    Attributes:
        timing: what is never the same twice: when it began, and how many milliseconds each phase took.
    """

    def __init__(self, place: Path) -> None:
        self._place = str(place)
        self._stored = 0
        self._own: list[tuple[int, str, Mapping[str, Any]]] = []
        self.timing: list[dict[str, Any]] = [{"began": format_instant(SystemClock().now())}]

    def follow(self, session: UserSession) -> None:
        """From now on the run's own events stand between those of a session, as they are stored."""
        self._stored = len(session.history())
        session.subscribe(self._heard)

    def _heard(self, event: Event) -> None:
        self._stored += event.seq >= 0

    def put(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write down an event of the run."""
        self._own.append((self._stored, kind, data))

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Write down how long a block took."""
        began = seconds()
        try:
            yield
        finally:
            self.timing.append({"phase": phase, "ms": round((seconds() - began) * 1000, 3)})

    def events(self, history: Sequence[Event], start: datetime) -> list[dict[str, Any]]:
        """All events as the lines of the sample's log.

        Args:
            history: the session's own.
            start: the instant that ticks (nanoseconds) are counted from.
        """
        first = ns_of(start)
        found: list[dict[str, Any]] = []
        own = list(self._own)
        for number, event in enumerate([*history, None]):
            while own and own[0][0] <= number:
                _, kind, data = own.pop(0)
                found.append({"actor": "eval", "data": dict(data), "kind": kind, "tick": found[-1]["tick"] if found else 0})
            if event is not None:
                data = {key: self._told(value) for key, value in event.data.items() if key not in _PASSING}
                found.append({"actor": event.actor, "data": data, "kind": event.type, "tick": event.ts - first})
        found += [{"actor": "eval", "data": dict(data), "kind": kind, "tick": found[-1]["tick"] if found else 0} for _, kind, data in own]
        return [{"seq": seq, **line} for seq, line in enumerate(found)]

    def _told(self, value: Any) -> Any:
        match value:
            case str():
                return value.replace(self._place, "")
            case dict():
                return {key: self._told(item) for key, item in value.items()}
            case list() | tuple():
                return [self._told(item) for item in value]
            case float():
                return str(value)
        return value
