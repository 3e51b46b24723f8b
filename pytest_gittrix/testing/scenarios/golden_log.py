"""A history as a text that is the same in every run, to be compared with an approved one.

Values that differ from run to run have stand-ins, equal values equal ones: ``<session-1>``, ``<time-2>``, ``<sha-1>``. Of the events, only
which of their values are ids, times and paths is known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from pytest_gittrix.durations import instant_at, ns_of, parse_instant
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.eventlog.events import Event, path_of

_IDS: Final[Mapping[str, str]] = {
    "child": "session",
    "parent": "session",
    "chain": "session",
    "root": "session",
    "successor": "session",
    "parent_session_id": "session",
    "call_id": "call",
}
"""The keys whose values are ids, and the kind of each."""
_PATHS: Final[Mapping[str, str]] = {"durable_path": "durable", "workspace": "workspace", "patch": "patch"}
"""The keys whose values are paths on this machine, and the kind of each; a path below one of them keeps its rest."""
_TIMES: Final = frozenset({"observed_ns"})

_PATTERNS: Final[Mapping[str, str]] = {
    "time": r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)",
    "session": r"\bsess_[\w-]{12}(?![\w-])",
    "uuid": r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    "sha": r"\b(?:[0-9a-f]{64}|[0-9a-f]{40})\b",
    "path": r"(?<![\w.:/<>-])/(?:[^\s/\"'#:<>]+/)+[^\s/\"'#:<>]+",
}
"""Values that are found by their form, anywhere in a text."""
_SHORTEST: Final = 8
"""A shorter id could be a word: it is replaced only where it is the whole text."""


def golden(events: Iterable[Event]) -> str:
    """A history as text: a line for each event, with its seq, time, actor, type and data (JSON with sorted keys).

    Ids of sessions and tool calls, UUIDs, times, shas and absolute paths have stand-ins. Paths inside the repository, names that people
    chose (agents, work units, turns) and numbers stay.

    Args:
        events: of one session, or of several sessions one after another, which then share their stand-ins.
    """
    history = list(events)
    stand = _StandIns()
    for event in history:
        stand.learn(event)
    return "".join(f"{event.seq} {stand.time(event.ts)} {event.actor} {event.type} {_text(stand, event)}\n" for event in history)


def _text(stand: _StandIns, event: Event) -> str:
    text = json.dumps(stand.value(event.data), ensure_ascii=False, sort_keys=True)
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


class _StandIns:
    """The stand-in of each value, numbered by kind in the order of first use."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._known: dict[str, str] = {}

    def learn(self, event: Event) -> None:
        """Learn the ids and paths in an event, so that they are found in texts of other events too."""
        self._known.setdefault(event.stream, "session")
        for name, kind in _PATHS.items():
            if name in event.data or f"{name}_b64" in event.data:
                self._learn_path(path_of(event.data, name), kind)
        if event.type == "workspace.ready":
            self._learn_path(path_of(event.data), "workspace")
        self._learn_ids(event.data)

    def _learn_path(self, path: object, kind: str) -> None:
        if isinstance(path, str) and path.startswith("/"):
            self._known.setdefault(path, kind)

    def _learn_ids(self, data: Mapping[str, Any]) -> None:
        for name, value in data.items():
            if isinstance(value, Mapping):
                self._learn_ids(value)
            elif isinstance(value, str) and _IDS.get(name) == "session":
                self._known.setdefault(value, "session")

    def time(self, ns: int) -> str:
        """The stand-in of an instant, in nanoseconds since 1970."""
        return self._for("time", instant_at(ns).isoformat())

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value with its stand-ins; ``key`` is the key that it belongs to."""
        if isinstance(value, Mapping):
            return {name: self.value(value[name], name) for name in sorted(value)}
        if isinstance(value, list | tuple):
            return [self.value(inner, key) for inner in value]
        if key in _TIMES and type(value) is int:
            return self.time(value)
        if not isinstance(value, str):
            return value
        if _IDS.get(key) == "call":
            return self._for("call", value)
        if key.endswith("_b64") and key.removesuffix("_b64") in _PATHS:
            return self._for("path", value)
        return self._in_text(value)

    def _in_text(self, text: str) -> str:
        if text in self._known:
            return self._for(self._known[text], text)
        return self._pattern.sub(self._replacement, text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # The longest first: a workspace's path holds the session's id.
        known = sorted((one for one in self._known if len(one) >= _SHORTEST), key=lambda one: (-len(one), one))
        named = [f"(?P<known>(?<![\\w-])(?:{'|'.join(map(re.escape, known))})(?![\\w-]))"] if known else []
        return re.compile("|".join([*named, *(f"(?P<{kind}>{pattern})" for kind, pattern in _PATTERNS.items())]))

    def _replacement(self, found: re.Match[str]) -> str:
        kind = found.lastgroup or ""
        if kind == "time":
            return self._time_of(found[0])
        return self._for(self._known[found[0]] if kind == "known" else kind, found[0])

    def _time_of(self, text: str) -> str:
        try:
            return self.time(ns_of(parse_instant(text)))
        except InvalidInput:
            return text

    def _for(self, kind: str, value: str) -> str:
        if (kind, value) not in self._given:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._given[kind, value] = f"<{kind}-{self._counts[kind]}>"
        return self._given[kind, value]
