"""How a clause ended, and what the report of its test says of it.

A clause that neither passes nor breaks its promise ends by ``end_as``. The plugin calls ``properties_of`` when a clause has run, so that
the report of the test carries the status, the cause and the script of a failure, also from one process to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

from pytest_gittrix.conformance.base.transcript import shell_script

if TYPE_CHECKING:
    from pytest_gittrix.testing.repos.journal import Journal


class Status(StrEnum):
    """The outcome of a clause."""

    KEPT = "kept"
    BROKEN = "broken"
    INCOMPLETE_REFUSAL = "incomplete refusal"
    """The system refused, as it had to, and did not give the error code, or did not name the conflicting files."""
    AS_GIT = "as git"
    """The system loses what git's own commands lose in the same place."""
    DOCUMENTED = "documented"
    """It failed, and the system's own documentation says so."""
    WAIVED = "waived"
    NOT_CLAIMED = "not claimed"
    INCONCLUSIVE = "inconclusive"
    """The clause was run, and the situation that it is about did not come about."""
    NO_VERDICT = "no verdict"
    """The system did not do what it was asked where nothing stood in its way, so that nothing can be said of a refusal."""
    SKIPPED = "skipped"
    NOT_RUN = "not run"


FAILING: Final = (Status.BROKEN, Status.INCOMPLETE_REFUSAL)
"""The statuses that fail a run."""

STATUS: Final = "gittrix_status"
"""Name of the property that holds the status of a test that neither passed nor simply failed."""

CAUSE: Final = "gittrix_cause"
"""Name of the property that holds the cause of a failure, as a sentence; failures with one cause are one finding."""

NEVER: Final = "gittrix_never"
"""Name of the property that holds the refusals of which a failed clause missed one, as lines ``verb: CODE``."""

REFUSALS: Final = "gittrix_refusals"
"""Name of the property that holds the refusals that a clause met, as lines ``verb: CODE``."""

LOST: Final = "gittrix_lost"
"""Name of a property that is present if a failed clause saw work lost, or written where it must not be."""

SCENE: Final = "gittrix_scene"
"""Name of the property that tells of a failure at which call a process was killed, or how two took turns."""

COVERED: Final = "gittrix_covered"
"""Name of the property that tells how many kills or orders a clause tried."""

SCRIPT: Final = "gittrix_script"
"""Name of the property that holds a shell script which shows a failure."""


SHOWN: Final = "gittrix_shown"
"""Name of the property that says whether the script, run once, got the same answers and left durable the same: ``yes`` or ``no``.

It is absent if the script was not run, or did not end."""


class ClauseFailure(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """A failed expectation of a clause, and what the report says of it.

    Attributes:
        status: ``BROKEN`` or ``INCOMPLETE_REFUSAL``.
        cause: the cause as a sentence; empty if the clause is the cause.
        never: the refusals of which one was missed, as lines ``verb: CODE``; empty if none was.
    """

    __module__ = "builtins"  # so that pytest shows the message without this module's name

    def __init__(self, message: str, status: Status = Status.BROKEN, *, cause: str = "", never: str = "") -> None:
        super().__init__(message, pytrace=True)
        self.status = status
        self.cause = cause
        self.never = never


class ClauseEnd(pytest.skip.Exception):  # type: ignore[name-defined,misc]
    """The end of a clause that neither passed nor failed; ``status`` says how it ended."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def end_as(status: Status, reason: str) -> NoReturn:
    """End a clause with another status than kept or broken.

    Args:
        status: ``INCONCLUSIVE``, ``NO_VERDICT``, ``AS_GIT``, ``DOCUMENTED`` or ``NOT_CLAIMED``.
        reason: why, in full.

    Raises:
        ClauseEnd: always.
    """
    __tracebackhide__ = True
    raise ClauseEnd(status, reason)


_INCOMPLETE: ContextVar[list[ClauseFailure] | None] = ContextVar("_INCOMPLETE", default=None)


@contextmanager
def incomplete_refusals_last() -> Iterator[None]:
    """A block whose incomplete refusals are reported only if nothing else fails in it.

    A refusal without its error code does not end the block. If nothing else is wrong in it, the block ends with the first such refusal.

    Raises:
        ClauseFailure: a refusal was incomplete.
    """
    __tracebackhide__ = True
    found: list[ClauseFailure] = []
    token = _INCOMPLETE.set(found)
    try:
        yield
    finally:
        _INCOMPLETE.reset(token)
    if found:
        raise found[0]


def refusal_is_incomplete(message: str, cause: str) -> None:
    """Note that the system refused rightly and did not tell it as it must. Outside of ``incomplete_refusals_last``, this fails the test.

    Args:
        message: what was missing.
        cause: as for ``ClauseFailure``.

    Raises:
        ClauseFailure: no block is open in this thread.
    """
    __tracebackhide__ = True
    failure = ClauseFailure(message, Status.INCOMPLETE_REFUSAL, cause=cause)
    found = _INCOMPLETE.get()
    if found is None:
        raise failure
    found.append(failure)


def properties_of(
    error: BaseException | None,
    journal: Journal,
    *,
    protects_work: bool,
    shows: Callable[[str, Journal], bool | None] | None = None,
) -> Iterator[tuple[str, str]]:
    """What the report of a clause's test says beyond passed and failed, as properties.

    Args:
        error: the exception that ended the test; None if it passed.
        journal: what was done on the clause's stage.
        protects_work: whether work is lost where the clause's promise is broken.
        shows: runs the script of a failure once, as ``shell_lines.shows_again`` does; None leaves it unrun.
    """
    if refusals := journal.refusals():
        yield REFUSALS, "\n".join(refusals)
    if journal.covered:
        yield COVERED, journal.covered
    if isinstance(error, ClauseEnd):
        yield STATUS, str(error.status)
    if error is None or isinstance(error, pytest.skip.Exception):
        return
    failure = error if isinstance(error, ClauseFailure) else ClauseFailure("", cause=journal.cause_of(error))
    yield STATUS, str(failure.status)
    if failure.cause:
        yield CAUSE, failure.cause.encode("utf-8", "backslashreplace").decode()
    if failure.never:
        yield NEVER, failure.never
    if protects_work and failure.status is Status.BROKEN and isinstance(error, AssertionError | pytest.fail.Exception):
        yield LOST, "yes"
    if journal.scene:
        yield SCENE, journal.scene
    script = shell_script(journal)
    yield SCRIPT, script
    if shows is not None and (shown := shows(script, journal)) is not None:
        yield SHOWN, "yes" if shown else "no"
