"""Validation of arguments before anything happens: text, contents, lists of paths, times to live.

Pure functions over values. ``git.path_rules`` validates names of files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from pytest_gittrix.durations import duration_of
from pytest_gittrix.errors import Advice, InvalidInput, WriteRejected
from pytest_gittrix.record.state.values import Policy

LONGEST_TTL: Final = timedelta(days=36_525)
"""A hundred years: any deadline that starts from a date of ours is one that a calendar has."""
SWEEP_BUDGET: Final = "GITTRIX_SWEEP_BUDGET"
"""The environment variable that says how long one session may take in a sweep of a command or a daemon."""
QUEUE_WAIT: Final = "GITTRIX_QUEUE_WAIT"
"""The environment variable that says how long a promotion of a command or a daemon waits for its turn."""
_Default = TypeVar("_Default", bound=Policy | None)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def check_text(value: object, what: str) -> str:
    """Validate a text that will be stored.

    Raises:
        InvalidInput: it is no ``str``, or has a lone surrogate, which no encoding of Unicode can write.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is {type(value).__name__}, not str: {_shown(value)}.", fix=f"Pass {what} as a str.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} has the lone surrogate {value[error.start]!r} at {error.start}: {_shown(value)}.",
            why="It is half a character, so it could be neither stored as UTF-8 nor read back.",
            fix="Decode the text it came from with errors='replace', or pass contents as bytes.",
        ) from None
    return value


def check_commit_text(value: object, what: str = "message") -> str:
    """Validate a text for a commit. Raises InvalidInput, as ``check_text``, for a NUL, and for a control character in its subject."""
    text = check_text(value, what)
    if "\0" in text:
        raise InvalidInput(
            f"{what} has a NUL at {text.index(chr(0))}: {_shown(text)}.", why="No commit of git can hold one.", fix="Leave it out."
        )
    subject, _, _ = text.lstrip().partition("\n\n")
    if (found := _CONTROL.search(subject)) is not None:
        raise InvalidInput(
            f"The subject of {what} has the control character {found[0]!r}: {_shown(text)}.",
            why="A terminal that lists commits would execute it.",
            fix="Leave it out; a line ends with a newline alone.",
        )
    return text


def visible(text: str) -> str:
    """A text with its control characters as escapes, except for the ends of lines and tabs; for the subject of a commit."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))


def check_message(value: object) -> str:
    """Validate a commit message, which must not be blank. Raises InvalidInput, as ``check_commit_text`` and for a blank one."""
    message = check_commit_text(value)
    if not message.strip():
        raise InvalidInput("The commit message is empty.", why="A log of empty messages is of no use.", fix="Say what changed.")
    return message


def check_contents(value: Any, what: str) -> bytes:
    """The bytes of a file from an argument: a text is written as UTF-8, anything bytes-like as it is.

    Args:
        value: ``str``, ``bytes``, ``bytearray``, ``memoryview`` or another buffer.
        what: its name in the message.

    Raises:
        InvalidInput: it is none of those, or a text as ``check_text`` refuses it.
    """
    if isinstance(value, str):
        return check_text(value, what).encode()
    try:
        return value if isinstance(value, bytes) else bytes(memoryview(value))
    except TypeError:
        raise InvalidInput(
            f"{what} is {type(value).__name__}, not str or bytes: {_shown(value)}.",
            why="The contents of a file are either text or bytes.",
            fix=f"Pass {what} as str (written as UTF-8) or bytes; str() and json.dumps() make text of other values.",
        ) from None


def check_file(path: str, data: Any, max_bytes: int) -> bytes:
    """The bytes of a file of a session, from an argument.

    Raises:
        InvalidInput: it is neither text nor bytes.
        WriteRejected: it has more bytes.
    """
    contents = check_contents(data, f"the data of {path!r}")
    if len(contents) > max_bytes:
        raise WriteRejected(
            f"{path!r} would have {len(contents)} bytes; the limit is {max_bytes}.",
            why="Everything promoted goes into a repository for good.",
            fix="Keep large files out of the session.",
            opt_out=Advice(
                "Raise it with LocalEphemeral(limits=Limits(max_file=...)).",
                "Only Python has more: LocalEphemeral(limits=Limits(max_file=...)).",
            ),
        )
    return contents


def check_paths(paths: Iterable[str], what: str) -> list[str]:
    """Paths as a list. Raises InvalidInput for one text, whose characters would be taken for paths."""
    if isinstance(paths, str):
        raise InvalidInput(f"{what}={paths!r} is one text, not a list of paths.", fix=f"Give [{paths!r}].")
    return [*paths]


def check_hunks(hunks: object) -> dict[str, list[int]] | None:
    """Validate a choice of hunks. Raises InvalidInput if it is no mapping of paths to collections of numbers."""
    if hunks is None:
        return None
    if isinstance(hunks, Mapping) and all(map(_names_hunks, hunks.items())):
        return {path: [*numbers] for path, numbers in hunks.items()}
    raise InvalidInput(
        f"hunks={_shown(hunks)} does not name hunks of paths.",
        why="A hunk is chosen by the path of its file and its number, from 1.",
        fix='Give a mapping, such as hunks={"app.py": [1, 3]}.',
    )


def _names_hunks(item: tuple[object, object]) -> bool:
    path, numbers = item
    return isinstance(path, str) and isinstance(numbers, Collection) and not isinstance(numbers, (str, bytes))


def check_ttl(value: object, what: str = "ttl") -> timedelta:
    """Validate a time to live, and return it as a timedelta.

    Args:
        value: a timedelta, or a text such as ``4h``.
        what: its name in the message.

    Raises:
        InvalidInput: it is neither, not positive, or longer than ``LONGEST_TTL``.
    """
    if not isinstance(value, timedelta | str):
        raise InvalidInput(
            f"{what}={_shown(value)} is {type(value).__name__}, not a duration.",
            why="A bare number does not say its unit.",
            fix='Pass a text such as "4h" or "30m", or a timedelta such as timedelta(hours=4).',
        )
    value = duration_of(value)
    if value <= timedelta(0):
        raise InvalidInput(
            f"{what}={value!r} is not positive.",
            why="It would expire the session at once.",
            fix=Advice("To end it now, use discard().", "To end it now, use `gittrix session discard`."),
        )
    if value > LONGEST_TTL:
        raise InvalidInput(
            f"{what}={value!r} is longer than {LONGEST_TTL.days} days.",
            why="The deadline could lie beyond the calendar.",
            fix=Advice(
                "For a session that only a person ends, use EvictionPolicy(ttl_idle=None).",
                "For a session that only a person ends, use `gittrix session start --manual`.",
            ),
        )
    return value


def policy_of(eviction: object, default: _Default) -> Policy | _Default:
    """The policy that a caller gave as an ``Eviction``: an ``EvictionPolicy``, or an idle TTL as a timedelta or a text such as ``4h``.

    Args:
        eviction: what the caller gave; None for the default.
        default: the policy of a session without one of its own.

    Raises:
        InvalidInput: it is none of these, or no time to live as ``check_ttl`` says.
    """
    if eviction is None:
        return default
    if isinstance(eviction, timedelta | str):
        return Policy(ttl_idle_ns=check_ttl(eviction, "eviction") // timedelta(microseconds=1) * 1000)

    from pytest_gittrix.record.state.records import EvictionPolicy  # slow to import, and loaded already by who made one

    if isinstance(eviction, EvictionPolicy):
        return eviction.policy()
    raise InvalidInput(
        f"eviction={_shown(eviction)} is not an eviction policy.",
        why="It decides when the session expires.",
        fix='Give an EvictionPolicy(ttl_idle=, ttl_absolute=, until_promote=, manual=), or the idle TTL by itself, such as "4h".',
    )


def check_budget(value: object) -> timedelta | None:
    """Validate the time that one session may take in a sweep. Raises InvalidInput if it is neither None nor a duration from 0 on."""
    if value is None:
        return None
    return _check_wait(value, "sweep_budget", "A session that takes longer in a sweep is postponed, so that it holds up no other.")


def check_queue_wait(value: object) -> timedelta:
    """Validate how long a promotion waits for its turn. Raises InvalidInput if it is no duration from 0 on."""
    return _check_wait(value, "queue_wait", "Promotions into one repository take turns, and one that is stopped holds up the others.")


def _check_wait(value: object, what: str, why: str) -> timedelta:
    if isinstance(value, timedelta | str) and (wait := duration_of(value)) >= timedelta(0):
        return wait
    fix = 'Pass a text such as "30s", or a timedelta such as timedelta(seconds=30)'
    raise InvalidInput(
        f"{what}={_shown(value)} is not a duration.",
        why=why,
        fix=f"{fix}; None for no limit." if what == "sweep_budget" else f"{fix}.",
    )


def budget_from_environment(default: timedelta) -> timedelta | None:
    """The time that one session may take in a sweep of a command or a daemon: ``GITTRIX_SWEEP_BUDGET``, or the default.

    Raises:
        InvalidInput: the variable is neither a duration nor ``none``.
    """
    is_unlimited = os.environ.get(SWEEP_BUDGET) == "none"
    return None if is_unlimited else _wait_from_environment(SWEEP_BUDGET, default, " Or none, for no limit.")


def queue_wait_from_environment(default: timedelta) -> timedelta:
    """How long a promotion of a command or a daemon waits for its turn: ``GITTRIX_QUEUE_WAIT``, or the default.

    Raises:
        InvalidInput: the variable is no duration.
    """
    return _wait_from_environment(QUEUE_WAIT, default)


def _wait_from_environment(variable: str, default: timedelta, or_else: str = "") -> timedelta:
    text = os.environ.get(variable)
    try:
        return duration_of(text) if text else default
    except InvalidInput as problem:
        raise InvalidInput(f"{variable}: {problem.fact}", why=problem.why, fix=f"{problem.fix}{or_else}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-10:]}"
