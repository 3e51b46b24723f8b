"""The event log of a sample: events of the session and of the run in order, without what differs each time.

Times are ticks of the sample's clock, and paths are relative to the sample's directory. Real times are recorded separately.
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
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.record.eventlog.events import Event

# Fields of events that depend on the machine: how a pack is compressed, and so its name.
_OMITTED: Final = frozenset({"pack"})

_OF_LOOKS: Final = frozenset({"touched.seen"})
"""Events that come when somebody looks, as a replay does after each command: they say nothing of the run."""


class EventRecorder:
    """Records the events of one sample.

    Args:
        directory: the sample's directory, which is removed from the paths in events.

    Attributes:
        timing: what differs each time: when the sample began, and how many milliseconds each phase took.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._stored = 0
        self._added: list[tuple[int, str, Mapping[str, Any]]] = []
        self.timing: list[dict[str, Any]] = [{"began": format_instant(SystemClock().now())}]

    def follow(self, session: UserSession) -> None:
        """Order the events that are added from now on among those that a session stores."""
        self._stored = len(session.history())
        session.subscribe(self._receive)

    def _receive(self, event: Event) -> None:
        self._stored += event.seq >= 0

    def add(self, kind: str, data: Mapping[str, Any]) -> None:
        """Record an event of the run."""
        self._added.append((self._stored, kind, data))

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Record how long a block took."""
        began = real_seconds()
        try:
            yield
        finally:
            self.timing.append({"phase": phase, "ms": round((real_seconds() - began) * 1000, 3)})

    def events(self, history: Sequence[Event], start: datetime) -> list[dict[str, Any]]:
        """All events as the lines of the sample's log.

        Args:
            history: the events of the session.
            start: the instant that ticks (nanoseconds) are counted from.
        """
        first = ns_of(start)
        found: list[dict[str, Any]] = []
        added = list(self._added)
        for number, event in enumerate([*history, None]):
            while added and added[0][0] <= number:
                _, kind, data = added.pop(0)
                found.append({"actor": "eval", "data": dict(data), "kind": kind, "tick": found[-1]["tick"] if found else 0})
            if event is not None and event.type not in _OF_LOOKS:
                data = {key: self._without_directory(value) for key, value in event.data.items() if key not in _OMITTED}
                found.append({"actor": event.actor, "data": data, "kind": event.type, "tick": event.ts - first})
        found += [{"actor": "eval", "data": dict(data), "kind": kind, "tick": found[-1]["tick"] if found else 0} for _, kind, data in added]
        return [{"seq": seq, **line} for seq, line in enumerate(found)]

    def _without_directory(self, value: Any) -> Any:
        match value:
            case str():
                return value.replace(self._directory, "")
            case dict():
                return {key: self._without_directory(item) for key, item in value.items()}
            case list() | tuple():
                return [self._without_directory(item) for item in value]
            case float():
                return str(value)
        return value
