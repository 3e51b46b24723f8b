"""Instants and durations as text and as whole nanoseconds: one spelling for records, command lines and messages.

Everything here is a pure function of its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pytest_gittrix.errors import InvalidInput

_MICROSECOND = timedelta(microseconds=1)
# An instance, because arithmetic on it keeps giving plain datetimes while a time library has replaced the class in this module.
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)

_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "us": _MICROSECOND,
}
# Each unit at most once, largest first; "m" must not take the start of "ms".
_DURATION = re.compile("".join(rf"(?:([0-9]+){unit}(?![a-z]))?" for unit in _UNITS))


def ns_of(when: datetime) -> int:
    """Nanoseconds from 1970-01-01T00:00:00Z to an aware ``when``; exact.

    Raises:
        InvalidInput: ``when`` is not a datetime or has no time zone.
    """
    if not isinstance(when, datetime):
        raise InvalidInput(
            f"{when!r} is not an instant.",
            why="Instants are aware datetimes.",
            fix="Pass for example datetime(2030, 1, 1, tzinfo=UTC).",
        )
    if when.utcoffset() is None:
        raise InvalidInput(
            f"{when!r} has no time zone.",
            why="A naive datetime means another instant on each machine, so a deadline could pass in one time zone and not in another.",
            fix="Say which zone you mean: datetime(..., tzinfo=UTC), or datetime.now(UTC).",
        )
    return (when - _UNIX) // _MICROSECOND * 1000


def instant_at(ns: int) -> datetime:
    """The aware UTC datetime ``ns`` nanoseconds after 1970-01-01T00:00:00Z, rounded down to the microsecond.

    Raises:
        InvalidInput: the instant is outside the years 1 to 9999.
    """
    try:
        return _UNIX + timedelta(microseconds=ns // 1000)
    except OverflowError:
        raise InvalidInput(
            f"The instant {ns} ns after 1970 is outside the years 1 to 9999.",
            why="A datetime cannot hold it.",
            fix="Use a nearer instant.",
        ) from None


def parse_instant(text: str) -> datetime:
    """Read an ISO 8601 instant with a time zone (``2030-01-01T00:00:00Z``, ``2030-01-01 01:00+01:00``) as an aware UTC datetime.

    Raises:
        InvalidInput: ``text`` is not ISO 8601, or has no time zone.
    """
    try:
        when = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{text!r} is not an instant.",
            why="Instants are written in ISO 8601.",
            fix="Write it like 2030-01-01T00:00:00Z.",
        ) from None
    return instant_at(ns_of(when))


def format_instant(when: datetime) -> str:
    """``2030-01-01T00:00:00.000Z``: UTC, in milliseconds as JavaScript writes it, in microseconds where milliseconds would lose some.

    Raises:
        InvalidInput: ``when`` is naive.
    """
    utc = instant_at(ns_of(when)).replace(tzinfo=None)
    return utc.isoformat(timespec="microseconds" if utc.microsecond % 1000 else "milliseconds") + "Z"


def instant_text(ns: int) -> str:
    """The instant ``ns`` nanoseconds after 1970, as ``format_instant`` writes it. Raises InvalidInput outside the years 1 to 9999."""
    return format_instant(instant_at(ns))


def parse_duration(text: str) -> timedelta:
    """Read ``4h``, ``30m``, ``2d``, ``90s``, ``1h30m`` or ``250ms``: whole numbers, each unit at most once, the largest first.

    Raises:
        InvalidInput: ``text`` is not written so (a sign, a fraction and an unknown unit included), or too long for a timedelta.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) and text else None
    if match is None:
        raise InvalidInput(
            f"{text!r} is not a duration.",
            why=("A duration cannot be negative. " if isinstance(text, str) and text.startswith("-") else "")
            + f"A duration is whole numbers with units, the largest first; the units are {', '.join(_UNITS)}.",
            fix="Write it like 4h, 30m, 2d, 90s, 1h30m or 250ms.",
        )
    try:
        return sum((int(count) * unit for count, unit in zip(match.groups(), _UNITS.values(), strict=True) if count), timedelta())
    except (OverflowError, ValueError):
        raise InvalidInput(
            "The duration is too long: " + (text if len(text) <= 40 else text[:37] + "..."),
            why=f"No duration can be longer than {timedelta.max.days} days.",
            fix="Use a shorter one.",
        ) from None


def duration_of(value: timedelta | str) -> timedelta:
    """A duration that was given as a timedelta or as a text for :func:`parse_duration`.

    Raises:
        InvalidInput: it is neither, or a text that is written otherwise.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    raise InvalidInput(
        f"{value!r} is not a duration.",
        why="A bare number could be seconds or milliseconds.",
        fix='Write it like "4h", "30m" or "1h30m", or pass a timedelta such as timedelta(hours=4).',
    )


def format_duration(duration: timedelta) -> str:
    """Write a duration the way :func:`parse_duration` reads it (``1h30m``; ``0s`` for none); a negative one gets a leading ``-``."""
    if duration < timedelta():
        return "-" + format_duration(-duration)
    parts, rest = [], duration
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def distance_ns(by: timedelta | str | None, units: Mapping[str, float]) -> int:
    """Nanoseconds in a distance given as a timedelta, as a text for :func:`parse_duration`, or as its parts by name; exactly one of them.

    Raises:
        InvalidInput: several, none, an unknown unit, a text that is no duration, or too far for a timedelta.
    """
    if by is not None and units:
        raise _no_distance(f"Both {by!r} and {_typed(units)} were given.", "Give one of them.")
    if isinstance(by, str):
        by = parse_duration(by)
    try:
        distance = timedelta(**units) if by is None and units else by
    except (TypeError, OverflowError, ValueError) as problem:
        raise _no_distance(f"{_typed(units)} is not a distance in time: {problem}.") from None
    if distance is None:
        raise _no_distance("The distance in time is missing.")
    if not isinstance(distance, timedelta):
        unit = ", whose unit is not said" if isinstance(distance, int | float) else ", which is no distance in time"
        raise _no_distance(f"{distance!r} was given{unit}.")
    return distance // _MICROSECOND * 1000


def _typed(units: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in units.items())


def _no_distance(fact: str, fix: str = "") -> InvalidInput:
    return InvalidInput(
        fact,
        why="A distance is one timedelta, one text, or its parts by name.",
        fix=(fix and f"{fix} ")
        + 'Write hours=4, "4h" or timedelta(hours=4); the units are weeks, days, hours, minutes, seconds, milliseconds and microseconds.',
    )
