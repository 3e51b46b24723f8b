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

from pytest_gittrix.conformance.base.script_end import Accusation
from pytest_gittrix.conformance.base.transcript import shell_script
from pytest_gittrix.errors import CapabilityMissing

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

HISTORY: Final = "gittrix_history"
"""Name of the property that holds what was done, as JSON lines; present only where a report wants it."""

COVERED: Final = "gittrix_covered"
"""Name of the property that tells how many kills or orders a clause tried."""

SCRIPT: Final = "gittrix_script"
"""Name of the property that holds a shell script which shows a failure."""


SETTING: Final = "gittrix_setting"
"""Name of the property that says of a failure how the person works on durable, where a clause is played in several ways."""

SHOWN: Final = "gittrix_shown"
"""Name of the property that says whether the script, run once, prepared everything and said ``LOST:`` or ``WRONG:``: ``yes``, ``no``.

It is absent if the script was not run, or did not end, and where no script can tell."""


class ClauseFailure(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """A failed expectation of a clause, and what the report says of it.

    Attributes:
        status: ``BROKEN`` or ``INCOMPLETE_REFUSAL``.
        cause: the cause as a sentence; empty if the clause is the cause.
        never: the refusals of which one was missed, as lines ``verb: CODE``; empty if none was.
        of_call: whether it is about how the last call of a verb ended.
        lost: whether work is lost, whatever the clause promises.
    """

    __module__ = "builtins"  # so that pytest shows the message without this module's name

    def __init__(
        self, message: str, status: Status = Status.BROKEN, *, cause: str = "", never: str = "", of_call: bool = False, lost: bool = False
    ) -> None:
        super().__init__(message, pytrace=True)
        self.status = status
        self.cause = cause
        self.never = never
        self.of_call = of_call or bool(never)
        self.lost = lost


class NotExpressible(CapabilityMissing):
    """An adapter of this package cannot put a question to its system, which so was not asked: nothing is said about the system."""


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
        ClauseEnd: an adapter could not put a question to the system.
    """
    __tracebackhide__ = True
    found: list[ClauseFailure] = []
    token = _INCOMPLETE.set(found)
    try:
        yield
    except NotExpressible as lacking:
        end_as(Status.NOT_CLAIMED, lacking.fact)
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
    failure = ClauseFailure(message, Status.INCOMPLETE_REFUSAL, cause=cause, of_call=True)
    found = _INCOMPLETE.get()
    if found is None:
        raise failure
    found.append(failure)


def properties_of(
    error: BaseException | None,
    journal: Journal,
    *,
    protects_work: bool,
    promise: str = "",
    shows: Callable[[str, Journal], bool | None] | None = None,
) -> Iterator[tuple[str, str]]:
    """What the report of a clause's test says beyond passed and failed, as properties.

    Args:
        error: the exception that ended the test; None if it passed.
        journal: what was done on the clause's stage.
        protects_work: whether work is lost where the clause's promise is broken.
        promise: the clause's promise, which the script names where an assertion says nothing to a reader.
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
    failure = error if isinstance(error, ClauseFailure) else _failure_of(error, journal)
    yield STATUS, str(failure.status)
    if failure.cause:
        yield CAUSE, failure.cause.encode("utf-8", "backslashreplace").decode()
    if failure.never:
        yield NEVER, failure.never
    broken = failure.status is Status.BROKEN and isinstance(error, AssertionError | pytest.fail.Exception)
    lost = failure.lost or (protects_work and broken)
    if lost:
        yield LOST, "yes"
    if journal.scene:
        yield SCENE, journal.scene
    if journal.setting:
        yield SETTING, str(journal.setting)  # a member of an enumeration goes to no other process
    what = next(iter(str(error).splitlines()), "") or type(error).__name__
    if promise and what.startswith("assert "):
        what = f"This is not so: {promise}"
    script = shell_script(journal, Accusation(what, lost, failure.of_call, bool(failure.never)))
    yield SCRIPT, script
    if shows is not None and (shown := shows(script, journal)) is not None:
        yield SHOWN, "yes" if shown else "no"


def _failure_of(error: BaseException, journal: Journal) -> ClauseFailure:
    """What an error says that the clause did not raise on purpose: a verb failed, or an assertion did."""
    return ClauseFailure("", cause=journal.cause_of(error), of_call=any(call.error is error for call in journal.calls))
