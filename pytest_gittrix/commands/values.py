"""Readers of the command line's values: from a text to a value, or to an error message that names what is wrong with it.

For values that the engine reads too, the message is the engine's; its modules are loaded only when such a value is read.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Literal

POSITIONAL_MARK = "\0"
"""Marks an argument that stood behind ``--``; no process can be given an argument with a null byte."""

DEEPEST = 200
"""The largest number of generations that a tree is drawn with."""


def unmarked(text: str) -> str:
    """An argument as it was typed, without the mark."""
    return text.removeprefix(POSITIONAL_MARK)


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
    """Read paths separated by commas, without the spaces around them (as the TypeScript CLI does)."""
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
    return _whole(text, 0)


def count(text: str) -> int:
    """Read a number from 1."""
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ArgumentTypeError(f"{text!r} is not a whole number from {least} to 999999999.")
    return int(text)


def seconds(text: str) -> float:
    """Read seconds, more than 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ArgumentTypeError(f"{text!r} is no time: write seconds, such as 60 or 0.5.")
    return found


def generations(text: str) -> int:
    """Read the depth of a tree; beyond ``DEEPEST`` its lines cannot be read."""
    found = number(text)
    if found > DEEPEST:
        raise ArgumentTypeError(f"{text} generations are more than {DEEPEST}: show the tree of a session further down.")
    return found


def fact(text: str) -> tuple[str, str | None]:
    """Read ``agent=ada``: a name and a value, None for an empty one. A name may be spelled as its flag is, ``work-unit``."""
    name, equals, value = unmarked(text).partition("=")
    if not name or not equals:
        raise ArgumentTypeError(
            f"{unmarked(text)!r} tells nothing: write a name and a value, such as agent=ada, or agent= to take it away."
        )
    return name.replace("-", "_"), value or None


def _listed(text: str, what: str) -> Sequence[str]:
    found = [name for part in text.split(",") if (name := part.strip())]
    if not found:  # an empty variable of a script must not mean "all"
        raise ArgumentTypeError(f"{text!r} names no {what}.")
    return found
