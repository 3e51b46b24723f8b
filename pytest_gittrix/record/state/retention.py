"""Which workspaces of ended sessions are removed, and when (BotMinter's "Retention Policy", docs/explanation/you-know-botminter.md).

How long a workspace is retained depends on what ran in it and how that ended. All workspaces together may also have a disk budget. Work
that is known to be nowhere else is never collected by age or budget. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from pytest_gittrix.durations import parse_duration
from pytest_gittrix.errors import InvalidInput, SessionNotFound
from pytest_gittrix.record.state.lifecycle import Life

_SECOND: Final = 1_000_000_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_LONGEST: Final = 36_525 * 24 * _HOUR
_AGE: Final = re.compile("[0-9]+[smhd]")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long workspaces of ended sessions are retained. Times are in nanoseconds.

    Attributes:
        loop_brain_ns: of an agent that runs by itself, however it ended: 24 hours, or longer (the document says "e.g. 48h").
        interactive_success_ns: of one that a person talked to and that completed: not at all.
        interactive_failure_ns: of one that failed or was killed: 24 hours.
        disk_budget_bytes: how much all of them together may take; None for no limit.
        scan_interval_ns: how often they are scanned: 5 minutes.
        as_code: count as a failure only what a finalization failed for, as BotMinter's code does; then a chat that was killed counts as
            a success, and is not retained at all.

    Raises:
        InvalidInput: a time or a size is no whole number, negative, or a time longer than a hundred years, or the interval is not positive.
    """

    loop_brain_ns: int = 24 * _HOUR
    interactive_success_ns: int = 0
    interactive_failure_ns: int = 24 * _HOUR
    disk_budget_bytes: int | None = None
    scan_interval_ns: int = 5 * _MINUTE
    as_code: bool = False

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "as_code"):
            value = getattr(self, name)
            if name == "disk_budget_bytes" and value is None:
                continue
            most = None if name == "disk_budget_bytes" else _LONGEST
            if not _is_whole(value, most) or (name == "scan_interval_ns" and not value):
                raise InvalidInput(
                    f"A retention policy cannot have {name}={value!r}.",
                    why="What is kept for less than no time would be gone before it ended.",
                    fix="Give a whole number from 0 on; an interval is more than 0, no time more than 100 years, and None is no budget.",
                )

    def keeps_ns(self, life: Life) -> int:
        """How long the workspace of a session that ended so is retained, in nanoseconds."""
        if life.kind != "interactive":
            return self.loop_brain_ns
        return self.interactive_failure_ns if self._failed(life) else self.interactive_success_ns

    def _failed(self, life: Life) -> bool:
        failed = life.result is not None and life.result.exit_status == "Failed"
        return failed if self.as_code else failed or life.ended != "completed"


@dataclass(frozen=True, slots=True)
class Choice:
    """A session whose workspace is to be removed: its id, and why, ``expired`` or ``budget``."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selector:
    """Which workspaces a person wants cleaned up; exactly one of the first four.

    Attributes:
        id: of one session.
        all: every one.
        member: those of a member.
        older_than_ns: those of sessions that were created longer ago than this; see ``age_ns``.
        even_unsaved: include those with work that is nowhere else. A session that is named by its id is included in any case.

    Raises:
        InvalidInput: none or several of them are given, or one is not of its kind.
    """

    id: str | None = None
    all: bool = False
    member: str | None = None
    older_than_ns: int | None = None
    even_unsaved: bool = False

    def __post_init__(self) -> None:
        given = [self.id is not None, bool(self.all), self.member is not None, self.older_than_ns is not None]
        if sum(given) != 1:
            raise InvalidInput(
                "Nothing says which workspaces to clean up." if not any(given) else "Several things say which workspaces to clean up.",
                why="What is removed is gone.",
                fix="Give one of: an id, all, a member, or an age.",
            )
        texts = all(isinstance(one, str | None) for one in (self.id, self.member))
        if not texts or (self.older_than_ns is not None and not _is_whole(self.older_than_ns, None)):
            raise InvalidInput(
                f"{self.id if self.id is not None else self.member or self.older_than_ns!r} does not say which workspaces to clean up.",
                why="What is removed is gone.",
                fix="Give an id or a member as a text, and an age as a whole number of nanoseconds from 0 on; age_ns makes it of 48h.",
            )


@dataclass(frozen=True, slots=True)
class CleanupSelection:
    """The sessions that a selector finds, by id, the longest retained first: ``chosen``, and ``spared`` because of unsaved work."""

    chosen: tuple[str, ...]
    spared: tuple[str, ...] = ()


def expired(
    lives: Iterable[Life], policy: RetentionPolicy, now_ns: int, *, held: Collection[str] = (), even_unsaved: bool = False
) -> list[str]:
    """The sessions that were retained for as long as the policy says, or longer.

    Args:
        lives: sessions in any state; only retained ones are ever chosen.
        policy: how long that is.
        now_ns: the time. Of a session that was retained in the future, since the clock was set back, no time has passed.
        held: more sessions with work that is nowhere else, in addition to those that are ``unsaved``.
        even_unsaved: choose all of those, too.

    Returns:
        Ids, the longest retained first.
    """
    retained = _collectable(lives, held, even_unsaved)
    return [life.id for life in retained if max(now_ns - _since(life), 0) >= policy.keeps_ns(life)]


def over_budget(
    lives: Iterable[Life], sizes: Mapping[str, int], budget: int | None, *, held: Collection[str] = (), even_unsaved: bool = False
) -> list[str]:
    """The retained sessions to remove so that the workspaces of the rest fit into the budget, the longest retained first.

    Workspaces that must not be collected count, too: if they alone are over the budget, everything else goes.

    Args:
        lives: sessions in any state.
        sizes: bytes of the workspaces by id; one that is missing takes none.
        budget: bytes that all retained workspaces may take; None for no limit.
        held, even_unsaved: as in ``expired``.
    """
    retained = _retained(lives)
    if budget is None:
        return []
    taken = sum(sizes.get(life.id, 0) for life in retained)
    gone: list[str] = []
    for life in _collectable(retained, held, even_unsaved):
        if taken <= budget:
            break
        gone.append(life.id)
        taken -= sizes.get(life.id, 0)
    return gone


def chosen(
    lives: Iterable[Life],
    policy: RetentionPolicy,
    now_ns: int,
    sizes: Mapping[str, int],
    *,
    held: Collection[str] = (),
    even_unsaved: bool = False,
) -> list[Choice]:
    """The sessions whose workspace is to be removed now, the longest retained first: the expired ones, then those over the budget.

    The budget is applied to what is left after the expired ones. Arguments as in ``expired`` and ``over_budget``.
    """
    retained = _retained(lives)
    old = frozenset(expired(retained, policy, now_ns, held=held, even_unsaved=even_unsaved))
    rest = [life for life in retained if life.id not in old]
    large = frozenset(over_budget(rest, sizes, policy.disk_budget_bytes, held=held, even_unsaved=even_unsaved))
    return [Choice(life.id, "expired" if life.id in old else "budget") for life in retained if life.id in old | large]


def selected(lives: Iterable[Life], selector: Selector, now_ns: int, *, held: Collection[str] = ()) -> CleanupSelection:
    """The retained sessions whose workspaces a person wants cleaned up.

    An age counts from the creation of a session, and only older sessions are chosen, not those of exactly that age.

    Args:
        lives: sessions in any state.
        selector: which.
        now_ns: the time.
        held: as in ``expired``.

    Raises:
        SessionNotFound: there is no session of that id.
        InvalidInput: it is not retained.
    """
    if selector.id is not None:
        return CleanupSelection((_named(lives, selector.id).id,))
    wanted = [life for life in _retained(lives) if _fits(life, selector, now_ns)]
    free = {life.id for life in _collectable(wanted, held, selector.even_unsaved)}
    return CleanupSelection(tuple(life.id for life in wanted if life.id in free), tuple(life.id for life in wanted if life.id not in free))


def age_ns(text: str) -> int:
    """Read an age as command lines take it: a whole number with ``s``, ``m``, ``h`` or ``d``; in nanoseconds.

    Raises:
        InvalidInput: it is written otherwise (empty, a unit alone, weeks, several units), or too long.
    """
    if not isinstance(text, str) or not _AGE.fullmatch(text):
        raise InvalidInput(
            f"{text!r} is not an age.", why="An age is one whole number with one unit: s, m, h or d.", fix="Write it like 48h."
        )
    return parse_duration(text) // timedelta(microseconds=1) * 1000


def elapsed_text(ns: int) -> str:
    """How long something took, for people: ``<1m``, ``45m``, ``2h 15m`` or ``1d 3h``. Rounded down."""
    minutes = ns // _MINUTE
    if minutes < 1:
        return "<1m"
    hours, days = minutes // 60, minutes // (60 * 24)
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m"


def _is_whole(value: object, most: int | None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0 and (most is None or value <= most)


def _since(life: Life) -> int:
    return life.since_ns if life.retained_ns is None else life.retained_ns


def _retained(lives: Iterable[Life]) -> list[Life]:
    return sorted((life for life in lives if life.state == "retained"), key=lambda life: (_since(life), life.id))


def _collectable(lives: Iterable[Life], held: Collection[str], even_unsaved: bool) -> list[Life]:
    return [life for life in _retained(lives) if even_unsaved or not (life.unsaved or life.id in held)]


def _fits(life: Life, selector: Selector, now_ns: int) -> bool:
    if selector.older_than_ns is not None:
        return now_ns - life.created_ns > selector.older_than_ns
    return selector.all or life.member == selector.member


def _named(lives: Iterable[Life], id_: str) -> Life:
    found = next((life for life in lives if life.id == id_), None)
    if found is None:
        raise SessionNotFound(f"There is no session {id_!r}.", fix="List the sessions there are: gittrix session list.")
    if found.state != "retained":
        raise InvalidInput(
            f"Session {id_} is {found.state}, and only what is retained can be cleaned up.",
            why="Its agent may still work in the workspace, or its work may not be saved yet.",
            fix="Stop it, and wait until it is retained." if found.state != "removed" else "There is nothing left to clean up.",
        )
    return found
