"""What differs from run to run and has no meaning, as a table: each entry has its placeholder, and the agents that send it.

A text that is not in the table must be the same. What is numbered keeps its identity: the same id twice is the same placeholder twice.
"""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache, partial
from typing import Final

from pytest_gittrix.workspaces.secrets import without_secrets


@dataclass(frozen=True, slots=True)
class Volatile:
    """A form of text that differs from run to run.

    Attributes:
        name: of the placeholder.
        pattern: finds it; its first group, or all of it, is replaced.
        numbered: whether each text has a number of its own.
        seen_in: who sends it, and where.
    """

    name: str
    pattern: re.Pattern[str]
    numbered: bool
    seen_in: str


_MODE: Final = r"[bcdlps-][rwxsStT-]{9}[.+@]?"
_MONTH: Final = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY: Final = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"

VOLATILE: Final[tuple[Volatile, ...]] = (
    Volatile("duration", re.compile(r"\bWall time: ([0-9.]+ (?:milli)?seconds?)"), False, "results of Codex"),
    Volatile("chunk", re.compile(r"\bChunk ID: ([0-9a-f]{6})\b"), False, "results of Codex"),
    Volatile("pid", re.compile(r"\b(?:Process Group PGID|PGID|PID|pid): ?([0-9]+)"), False, "results of Gemini CLI and Qwen Code"),
    Volatile("duration", re.compile(r"\bin ([0-9]+\.[0-9]+ ?s)\b"), False, "results of pytest in any agent"),
    Volatile("duration", re.compile(r"\b(?:real|user|sys)\t([0-9]+m[0-9.]+s)"), False, "results of the shell's time in any agent"),
    Volatile(
        "uuid", re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), True, "Claude Code, Codex, opencode, vibe"
    ),
    Volatile("total", re.compile(rf"^total ([0-9]+)$(?=\n{_MODE})", re.MULTILINE), False, "results of ls -l in any agent"),
    Volatile("owner", re.compile(rf"^{_MODE} +([0-9]+ +\S+ +\S+) ", re.MULTILINE), False, "results of ls -l"),
    Volatile("size", re.compile(r"^d[rwxsStT-]{9}[.+@]? +\{owner\} +([0-9]+)", re.MULTILINE), False, "results of ls -l, of directories"),
    Volatile("mtime", re.compile(rf"^{_MODE} +\{{owner\}} +\S+ +({_MONTH} +[0-9]+ +[0-9:]+) ", re.MULTILINE), False, "results of ls -l"),
    Volatile("time", re.compile(r"\b[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?\b"), False, "OpenHands, and results of any agent"),
    Volatile("now", re.compile(rf"\b({_DAY} {_MONTH} +[0-9]+ \{{time\}} \S+ [0-9]{{4}})\b"), False, "results of date in any agent"),
)
"""What is replaced everywhere. Dates, paths and what else is known of this machine are replaced by their values: ``Known``."""

_REMEMBERED: Final = 256
"""Texts that are not looked at twice: each request of an agent brings its whole conversation again."""
_PLACEHOLDER: Final = re.compile(r"\{([a-z0-9-]+)\}")
_LITERAL: Final = "{literal:"
_OF_A_PLACE: Final = re.compile(r"\{(?:workspace|world|home|date|os|kernel|host)(?:-[a-z0-9-]+)?\}")
_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


class Known:
    """The placeholders of texts of this machine, of this test and of today, in both directions.

    Args:
        places: the text of each placeholder, such as ``{"workspace": "/tmp/x/workspace"}``.
        today: the dates that "today" may be said as; the present one first.
    """

    def __init__(self, places: Mapping[str, str], today: Sequence[date] = ()) -> None:
        pairs = [(name, text) for name, text in places.items() if text]
        # Claude Code names a directory of its own after the workspace's path, with a dash for each sign.
        pairs += [(f"{name}-dashed", re.sub(r"[^A-Za-z0-9]", "-", text)) for name, text in pairs if text.startswith("/")]
        pairs += [(f"date-{form}", text) for day in today for form, text in enumerate(spelled(day))]
        self._texts: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for name, text in pairs:
            self._texts.setdefault(name, text)
            self._names.setdefault(text, name)
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._names, key=len, reverse=True))) or r"(?!)")
        self.hide = lru_cache(_REMEMBERED)(self._hide)
        """Gives a text with placeholders."""

    def _hide(self, text: str) -> str:
        text = _PLACEHOLDER.sub(lambda found: f"{_LITERAL}{found[1]}}}" if found[1] in self._texts else found[0], text)
        return self._pattern.sub(lambda found: f"{{{self._names[found[0]]}}}", text)

    def show(self, text: str) -> str:
        """The text with the values of its placeholders here and now."""
        return _PLACEHOLDER.sub(lambda found: self._texts.get(found[1], found[0]), text).replace(_LITERAL, "{")


def has_place(text: str) -> bool:
    """Whether a text of a tape has something that stands for a place, a day or a fact of the machine, and is another elsewhere."""
    return _LITERAL in text or _OF_A_PLACE.search(text) is not None


def spelled(day: date) -> list[str]:
    """A date in the forms in which agents tell models what day it is."""
    weekday, month = _WEEKDAYS[day.weekday()], _MONTHS[day.month - 1]
    return [
        day.isoformat(),
        f"{weekday}, {month} {day.day}, {day.year}",
        f"{weekday[:3]} {month[:3]} {day.day:02} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"{day.month}/{day.day}/{day.year}",
        f"{day.day} {month} {day.year}",
        f"{day.year}/{day.month:02}/{day.day:02}",
    ]


def days(*instants: float) -> tuple[date, ...]:
    """The days that may be "today" for an agent: of each instant, in seconds since 1970, with its neighbours; no zone is further away."""
    found: dict[date, None] = {}
    for instant in instants:
        middle = date(1970, 1, 1) + timedelta(seconds=int(instant))
        found |= dict.fromkeys((middle, middle - timedelta(days=1), middle + timedelta(days=1)))
    return tuple(found)


@lru_cache(maxsize=1)
def of_this_machine() -> Mapping[str, str]:
    """What agents tell of the machine: its name, and its kernel. A short text is a word of other texts as well, and stays."""
    facts = {"os": platform.version(), "kernel": platform.release(), "host": socket.gethostname()}
    return {name: text for name, text in facts.items() if len(text) > 6 and text != "localhost"}


def without_volatile() -> Callable[[str], str]:
    """What replaces volatile forms and secrets in the texts of one request; numbers go on from text to text."""
    numbers: dict[tuple[str, str], int] = {}

    def number_of(name: str, text: str) -> int:
        return numbers.setdefault((name, text), sum(known == name for known, _ in numbers) + 1)

    def rewrite(text: str) -> str:
        if not _is_volatile(text):
            return text
        text = without_secrets(text, lambda secret: f"{{secret:{number_of('secret', secret)}}}")
        for one in VOLATILE:
            text = one.pattern.sub(partial(_replaced, one, number_of), text)
        return text

    return rewrite


@lru_cache(_REMEMBERED)
def _is_volatile(text: str) -> bool:
    """Whether a text has anything that is replaced. Most texts have nothing, however often they come."""
    return any(one.pattern.search(text) for one in VOLATILE) or without_secrets(text, lambda _: "") != text


@lru_cache(maxsize=8)
def known_here(places: tuple[tuple[str, str], ...], today: tuple[date, ...]) -> Known:
    """The facts of this machine, with the places of a test; the same one for the same places and days.

    Args:
        places, today: as for ``Known``.
    """
    return Known({**dict(places), **of_this_machine()}, today)


def _replaced(one: Volatile, number_of: Callable[[str, str], int], found: re.Match[str]) -> str:
    group = 1 if found.re.groups else 0
    placeholder = f"{{{one.name}:{number_of(one.name, found[group])}}}" if one.numbered else f"{{{one.name}}}"
    start, end = found.start(group) - found.start(), found.end(group) - found.start()
    return found[0][:start] + placeholder + found[0][end:]
