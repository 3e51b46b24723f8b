"""What verdicts are worth: what judged each test, how many tests passed, and a bar that the judges of a sample must reach.

A grade is only as good as its judge: ``subject`` cannot be deceived by what it judges, ``plain`` believes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from pytest_gittrix.evals.inputs.sample_record import Record

LEVELS: Final = ("subject", "canary", "plain")
"""What can be demanded of a judge, the best first."""

UNJUDGEABLE: Final = "unjudgeable"
"""What stands for the judge of a test that none can judge."""

JUDGES: Final = (*LEVELS, UNJUDGEABLE)
"""The judges of tests, the best first."""


@dataclass(frozen=True, slots=True)
class VerdictOnTest:
    """The verdict on one test.

    Attributes:
        name: the id of the test, as pytest has it; the path of a file whose tests are not known.
        passed: whether it passed; None for a test that none can judge.
        judge: one of ``JUDGES``.
    """

    name: str
    passed: bool | None
    judge: str

    @property
    def word(self) -> str:
        """``passed``, ``failed`` or ``unjudgeable``."""
        return UNJUDGEABLE if self.passed is None else "passed" if self.passed else "failed"

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {"name": self.name, "verdict": self.word, "judge": self.judge}


@dataclass(frozen=True, slots=True)
class Grade:
    """How many tests passed and failed, by their judge.

    Attributes:
        passed: the number of tests that passed, by judge.
        failed: the number of tests that failed, by judge.
        unjudgeable: the number of tests that none can judge; they neither passed nor failed.
    """

    passed: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    unjudgeable: int = 0

    @property
    def tests_passed(self) -> int:
        """The number of tests that passed."""
        return sum(self.passed.values())

    @property
    def tests(self) -> int:
        """The number of tests that passed or failed."""
        return self.tests_passed + sum(self.failed.values())

    @property
    def mix(self) -> str:
        """The judges of the tests that passed, such as ``3 by subject, 1 by plain``; empty without any."""
        parts = [f"{count} by {judge}" for judge, count in self.passed.items()]
        return ", ".join([*parts, *([f"{self.unjudgeable} {UNJUDGEABLE}"] if self.unjudgeable else [])])

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        judged = {"judges": dict(self.passed), "failed_by": dict(self.failed), UNJUDGEABLE: self.unjudgeable}
        return {"tests": self.tests, "tests_passed": self.tests_passed, **judged}


def verdicts_of(record: Record) -> list[VerdictOnTest]:
    """The table of the tests of a sample: those that failed first, then those that none can judge, then those that passed; by name."""
    found = []
    for check in record.checks:
        for passed, table in ((False, check.failed), (True, check.judges)):
            found += [VerdictOnTest(name, None if judge == UNJUDGEABLE else passed, judge) for name, judge in table.items()]
    return sorted(found, key=lambda test: ((False, None, True).index(test.passed), test.name))


def grade_of(records: Iterable[Record]) -> Grade:
    """The grade of some samples together."""
    tests = [test for record in records for test in verdicts_of(record)]
    passed, failed = (_by_judge(test for test in tests if test.passed is which) for which in (True, False))
    return Grade(passed, failed, sum(test.passed is None for test in tests))


def _by_judge(tests: Iterable[VerdictOnTest]) -> dict[str, int]:
    counts = Counter(test.judge for test in tests)
    return {judge: counts[judge] for judge in LEVELS if counts[judge]}


def score(record: Record) -> Fraction:
    """The share of a sample's tests that passed, also where it failed; without tests, 1 if it passed and else 0.

    Tests that none can judge have not passed: no result gains by being hard to judge.
    """
    found = grade_of([record])
    tests = found.tests + found.unjudgeable
    return Fraction(found.tests_passed, tests) if tests else Fraction(record.outcome == "pass")


def held_to(record: Record, at_least: str | None) -> Record:
    """The record as it counts where judges must reach a bar: a sample whose weakest judge is below has not passed.

    Args:
        record: the record.
        at_least: one of ``LEVELS``; None for no bar. A sample without judged tests, whose checks are of other kinds, counts as it is.
    """
    if at_least is None or record.outcome != "pass":
        return record
    below = [test for test in verdicts_of(record) if test.passed is not False and JUDGES.index(test.judge) > JUDGES.index(at_least)]
    if not below:
        return record
    first = max(below, key=lambda test: JUDGES.index(test.judge))
    judged = "none can judge" if first.passed is None else f"only {first.judge} has judged"
    more = f" and {len(below) - 1} more" if len(below) > 1 else ""
    return replace(record, outcome="fail", reason=f"{judged} {first.name}{more}; {at_least} is demanded")


def bar_sentence(short: int, at_least: str) -> str:
    """What a bar for judges changed.

    Args:
        short: how many samples passed and do not count as passed.
        at_least: the bar.
    """
    if not short:
        return f"Every sample that passed was judged by {at_least} or better."
    if short == 1:
        return f"1 sample passed and does not count as passed: a test of it was judged by less than {at_least}."
    return f"{short} samples passed and do not count as passed: a test of each was judged by less than {at_least}."


def short_of(records: Iterable[Record], at_least: str | None) -> int:
    """The number of samples that passed and do not count as passed with that bar."""
    return sum(held_to(record, at_least).outcome != record.outcome for record in records)
