"""Whether the cases of a suite are sound: the solution passes each time, nothing and wrong solutions do not.

A case that its own solution does not pass, or that passes without work, says nothing about an agent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal

from pytest_gittrix.errors import InvalidInput, first_few
from pytest_gittrix.evals.inputs.identity import digest_bytes, digest_of
from pytest_gittrix.evals.inputs.releases import expected_of
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Outcome, Record
from pytest_gittrix.evals.inputs.suite import Case, Suite
from pytest_gittrix.evals.results.grades import UNJUDGEABLE, Grade, VerdictOnTest, grade_of, verdicts_of
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.agents import GOLD, NOP
from pytest_gittrix.evals.runs.executors import Factory, local
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.run import Progress, run_suite

WRONG: Final = "wrong"
"""The directory of a case with patches that its checks must refuse."""

GOLD_RUNS: Final = 3
"""How often the solution of each case is run, unless it is said otherwise."""

ProblemKind = Literal["no-gold", "gold-fails", "flaky", "nop-passes", "wrong-passes", "wrong-unusable", "unjudgeable", "unknown"]

_LONGEST_ID: Final = 88


@dataclass(frozen=True, slots=True)
class CaseProblem:
    """Why a case says nothing about an agent.

    Attributes:
        kind: ``no-gold``, ``gold-fails`` (here, each time), ``flaky`` (now and then), ``nop-passes``, ``wrong-passes``, ``wrong-unusable``
            (a wrong solution does not apply), ``unjudgeable`` (tests that none can judge keep its
            solution from passing) or ``unknown`` (it could not be run).
        text: the same in words, with the reason.
    """

    kind: ProblemKind
    text: str


@dataclass(frozen=True)
class CaseValidation:
    """The validation of one case.

    Attributes:
        id: the id of the case.
        gold: the records of its solution; empty without one.
        nop: the record of doing nothing.
        wrong: the records of its wrong solutions, by the name of the patch.
        expected: the outcome that its solution must have; another one than ``pass`` in suites of releases.
    """

    id: str
    gold: tuple[Record, ...]
    nop: Record
    wrong: Mapping[str, Record] = field(default_factory=dict)
    expected: Outcome = "pass"

    @property
    def is_valid(self) -> bool:
        """Whether the case is sound."""
        return not self.problems

    @property
    def green(self) -> int:
        """How often its solution had the outcome that it must have."""
        return sum(record.outcome == self.expected for record in self.gold)

    @property
    def red(self) -> int:
        """How many of its wrong solutions were refused."""
        return sum(record.outcome not in ("pass", "agent_error", UNJUDGEABLE, RETRIED) for record in self.wrong.values())

    @property
    def grade(self) -> Grade:
        """What judged the tests of its solution, in the first run."""
        return grade_of(self.gold[:1])

    @cached_property
    def flaky_tests(self) -> tuple[str, ...]:
        """The tests that ended otherwise in another run of the solution."""
        tables = [{test.name: test.word for test in verdicts_of(record)} for record in self.gold if record.outcome != RETRIED]
        names = {name for table in tables for name in table}
        return tuple(sorted(name for name in names if len({table.get(name) for table in tables}) > 1))

    @cached_property
    def trivial_tests(self) -> tuple[str, ...]:
        """The tests that pass without any work: they guard what works already, and do not tell whether the task is done."""
        return tuple(test.name for test in verdicts_of(self.nop) if test.passed)

    @cached_property
    def unjudgeable_tests(self) -> tuple[str, ...]:
        """The tests of the solution that none can judge."""
        return tuple(sorted({test.name for record in self.gold for test in verdicts_of(record) if test.passed is None}))

    @cached_property
    def problems(self) -> tuple[CaseProblem, ...]:
        """Why the case is not sound; empty if it is."""
        return (*self._of_gold(), *self._of_nop(), *self._of_wrong())

    def _of_gold(self) -> list[CaseProblem]:
        bad = [record for record in self.gold if record.outcome != self.expected]
        if not self.gold:
            return [CaseProblem("no-gold", "it has no gold patch, so that nothing shows that it can be solved")]
        if bad:
            failed = next((record for record in bad if record.outcome != RETRIED), None)
            if failed is None:
                return [CaseProblem("unknown", f"its solution could not be run: {bad[0].reason}")]
            times = f"in {len(bad)} of {len(self.gold)} runs"
            kind: ProblemKind = "flaky" if self.green else "unjudgeable" if failed.outcome == "unjudgeable" else "gold-fails"
            return [CaseProblem(kind, f"its solution ended in {failed.outcome} {times}: {_why(failed)}")]
        if self.flaky_tests:
            return [CaseProblem("flaky", f"tests of its solution pass now and then: {first_few(self.flaky_tests)}")]
        if self.unjudgeable_tests and not self.grade.tests_passed:
            return [CaseProblem("unjudgeable", f"none of its tests can be judged: {first_few(self.unjudgeable_tests)}")]
        return []

    def _of_nop(self) -> list[CaseProblem]:
        if self.nop.outcome == "pass":
            return [CaseProblem("nop-passes", "it passes without any work")]
        if self.nop.outcome == RETRIED:
            return [CaseProblem("unknown", f"doing nothing could not be run: {self.nop.reason}")]
        return []

    def _of_wrong(self) -> list[CaseProblem]:
        found = []
        for name, record in self.wrong.items():
            if record.outcome == "pass":
                found.append(CaseProblem("wrong-passes", f"the wrong solution {name} passes"))
            elif record.outcome == "agent_error":
                found.append(CaseProblem("wrong-unusable", f"the wrong solution {name} does not apply"))
            elif record.outcome == RETRIED:
                found.append(CaseProblem("unknown", f"the wrong solution {name} could not be run: {record.reason}"))
        return found

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "id": self.id,
            "valid": self.is_valid,
            "problems": [{"kind": one.kind, "text": one.text} for one in self.problems],
            "gold": [{"outcome": record.outcome, "reason": record.reason} for record in self.gold],
            "expected": self.expected,
            "nop": {"outcome": self.nop.outcome, "reason": self.nop.reason},
            "wrong": {name: {"outcome": record.outcome, "reason": record.reason} for name, record in self.wrong.items()},
            "grade": self.grade.to_json(),
            "tests": [test.to_json() for test in self._tests()],
            "flaky_tests": list(self.flaky_tests),
            "trivial_tests": list(self.trivial_tests),
            "unjudgeable_tests": list(self.unjudgeable_tests),
        }

    def _tests(self) -> list[VerdictOnTest]:
        return verdicts_of(self.gold[0]) if self.gold else []


@dataclass(frozen=True)
class Validation:
    """The validation of a suite.

    Attributes:
        suite: the suite.
        cases: its cases, by id.
    """

    suite: Suite
    cases: tuple[CaseValidation, ...]

    @property
    def valid(self) -> int:
        """The number of sound cases."""
        return sum(case.is_valid for case in self.cases)

    @property
    def sentence(self) -> str:
        """What came of it, in numbers."""
        golds = [record for case in self.cases for record in case.gold]
        wrong = sum(len(case.wrong) for case in self.cases)
        parts = [
            f"{self.valid} of {len(self.cases)} cases are valid",
            f"gold as it must be in {sum(case.green for case in self.cases)} of {len(golds)} runs",
            f"nop refused in {sum(case.nop.outcome not in ('pass', RETRIED) for case in self.cases)} of {len(self.cases)}",
            *([f"wrong solutions refused in {sum(case.red for case in self.cases)} of {wrong}"] if wrong else []),
        ]
        return f"{'; '.join(parts)}."

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "suite": str(self.suite.directory),
            "valid": self.valid,
            "sentence": self.sentence,
            "grade": grade_of(record for case in self.cases for record in case.gold[:1]).to_json(),
            "cases": [case.to_json() for case in self.cases],
        }


def validate_suite(
    suite: Suite,
    options: Options,
    *,
    gold_runs: int = GOLD_RUNS,
    factory: Factory = local,
    watch: Callable[[Progress], object] = lambda _progress: None,
) -> Validation:
    """Run the solution of each case several times, nothing, and each patch in its directory ``wrong``.

    Args:
        suite: the suite.
        options: the options; ``out`` is the directory of the runs ``gold``, ``nop`` and ``wrong``, which replace earlier ones. The agent
            and the epochs are those of the validation.
        gold_runs: how often each solution is run.
        factory: makes the executor.
        watch: called with the progress after each sample.

    Returns:
        The validation of each case.

    Raises:
        InvalidInput, CapabilityMissing, AdapterUnavailable: as ``run.run_suite``.
    """
    if gold_runs < 1:
        raise InvalidInput("A validation runs each solution at least once.", fix="Give --gold-runs from 1.")
    expected = _expected_of(suite)
    solved = tuple(case for case in suite.cases if case.gold is not None)
    wrong, patches = _wrong_cases(suite)
    parts = [("gold", GOLD, solved, gold_runs), ("nop", NOP, suite.cases, 1), (WRONG, GOLD, wrong, 1)]
    total = sum(len(cases) * epochs for _, _, cases, epochs in parts)
    found: dict[str, tuple[Record, ...]] = {}
    done = 0
    for name, agent, cases, epochs in parts:
        if not cases:
            continue
        out = Path(options.out) / name
        if RunStore(out).exists:
            shutil.rmtree(out)
        wanted = replace(options, agent=agent, out=out, epochs=epochs, resume=False)
        further = partial(_further, watch, done, total)
        summary = run_suite(replace(suite, cases=cases), wanted, factory=factory, watch=further)
        found[name] = summary.records
        done += len(summary.records)
    nops = {record.id: record for record in found["nop"]}
    return Validation(
        suite,
        tuple(
            CaseValidation(
                case.id,
                tuple(record for record in found.get("gold", ()) if record.id == case.id),
                nops[case.id],
                {patches[one.id][1]: one for one in found.get(WRONG, ()) if patches[one.id][0] == case.id},
                expected.get(case.id, "pass"),
            )
            for case in suite.cases
        ),
    )


def _further(watch: Callable[[Progress], object], before: int, total: int, progress: Progress) -> None:
    """Report the progress of one run as a part of the whole."""
    watch(Progress(before + progress.done, total, progress.last))


def _expected_of(suite: Suite) -> dict[str, Outcome]:
    """The outcomes that the solutions of a suite of releases must have; those of other suites pass."""
    if not (suite.directory / "expected.toml").is_file():
        return {}
    return {id_: one.outcome for id_, one in expected_of(suite.directory).items()}


def _wrong_cases(suite: Suite) -> tuple[tuple[Case, ...], dict[str, tuple[str, str]]]:
    """A case for each wrong solution, with that one in the place of the solution; and by its id, of which case it is, and its name."""
    cases: list[Case] = []
    named: dict[str, tuple[str, str]] = {}
    for case in suite.cases:
        for patch in sorted((case.directory / WRONG).glob("*.patch")):
            id_ = f"{case.id[:_LONGEST_ID].rstrip('.')}-wrong-{len(cases)}"
            try:
                data = patch.read_bytes()
            except OSError as problem:
                raise InvalidInput(f"{patch} cannot be read: {problem.strerror}.", fix="Let this user read it.") from None
            digest = digest_of([case.digest, os.path.basename(patch), digest_bytes(data)])
            cases.append(replace(case, id=id_, gold=patch, digest=digest))
            named[id_] = case.id, f"{WRONG}/{patch.name}"
    return tuple(cases), named


def _why(record: Record) -> str:
    failed = [test.name for test in verdicts_of(record) if test.passed is False]
    return "; ".join([*([record.reason] if record.reason else []), *([f"failed {first_few(failed)}"] if failed else [])])
