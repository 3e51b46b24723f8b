"""How the values of a command line are read: from a text to a value, or to a sentence that says what is wrong with it.

Readers of values that the engine knows too say what the engine says. Must not know verbs; loads the engine only to read.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Literal

PLACE = "\0"
"""Marks what stood behind ``--``; no process can be given an argument that holds one."""

DEEPEST = 200
"""Generations of a tree that are shown at most."""


def unmarked(text: str) -> str:
    """A text as it was typed."""
    return text.removeprefix(PLACE)


def duration(text: str) -> timedelta:
    """Read ``4h``, ``30m``, ``2d``."""
    from pytest_gittrix.durations import parse_duration
    from pytest_gittrix.errors import InvalidInput

    try:
        return parse_duration(unmarked(text))
    except InvalidInput as problem:
        raise ArgumentTypeError(f"{problem.fact} {problem.fix}") from None


def age(text: str) -> timedelta:
    """Read ``48h``: one whole number with one unit, as BotMinter's commands take it."""
    from pytest_gittrix.errors import InvalidInput
    from pytest_gittrix.record.state.retention import age_ns

    try:
        return timedelta(microseconds=age_ns(unmarked(text)) // 1000)
    except InvalidInput as problem:
        raise ArgumentTypeError(f"{problem.fact} {problem.fix}") from None


def limit(text: str) -> timedelta | None:
    """Read a duration, or ``none`` for no limit."""
    return None if text == "none" else duration(text)


def moment(text: str) -> timedelta | datetime:
    """Read a point in time: how long ago it is (``24h``), or an instant with its time zone."""
    from pytest_gittrix.durations import parse_duration, parse_instant
    from pytest_gittrix.errors import InvalidInput

    for read in (parse_duration, parse_instant):
        with suppress(InvalidInput):
            return read(text)
    raise ArgumentTypeError(f"{text!r} is no point in time: write how long ago, such as 24h, or an instant such as 2030-01-01T00:00:00Z.")


def history(text: str) -> Literal["none", "full"] | int:
    """Read ``none``, ``full`` or a number of commits."""
    if text in ("none", "full"):
        return text  # type: ignore[return-value]
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    raise ArgumentTypeError(f"{text!r} is not a history: write none, full or a number of commits.")


def names(text: str) -> Sequence[str]:
    """Read paths separated by commas; space around them is not theirs (TypeScript)."""
    return _listed(text, "file")


def types(text: str) -> Sequence[str]:
    """Read names of events separated by commas."""
    return _listed(text, "event")


def hunks(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``app.py:1,3``: a path and the numbers of its hunks, from 1."""
    path, _, numbers = text.rpartition(":")
    if not path or not re.fullmatch(r"[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*", numbers):
        raise ArgumentTypeError(f"{text!r} names no hunks: write a path and numbers from 1, such as app.py:1,3.")
    return path, tuple(int(number) for number in numbers.split(","))


def number(text: str) -> int:
    """Read a number from 0."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ArgumentTypeError(f"{text!r} is no number from 0.")
    return int(text)


def generations(text: str) -> int:
    """Read how deep a tree is drawn: no deeper than its lines can be read."""
    found = number(text)
    if found > DEEPEST:
        raise ArgumentTypeError(f"{text} generations are more than {DEEPEST}: show the tree of a session further down.")
    return found


def fact(text: str) -> tuple[str, str | None]:
    """Read ``agent=ada``: a name and a value, None for an empty one. A name may be spelled as its flag is, ``work-unit``."""
    name, told, value = unmarked(text).partition("=")
    if not name or not told:
        raise ArgumentTypeError(
            f"{unmarked(text)!r} tells nothing: write a name and a value, such as agent=ada, or agent= to take it away."
        )
    return name.replace("-", "_"), value or None


def _listed(text: str, what: str) -> Sequence[str]:
    found = [name for part in text.split(",") if (name := part.strip())]
    if not found:  # a script's empty variable must not come to mean everything
        raise ArgumentTypeError(f"{text!r} names no {what}.")
    return found
