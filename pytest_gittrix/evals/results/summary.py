"""Statistics of a run: its pass rate, pass@k and pass^k, each with a confidence interval that is clustered by case.

``infra_error`` says nothing about an agent: it is left out of every rate and counted separately, unless a run counts it as not passed.
pass@k is the chance that at least one of k tries passes, pass^k that all of them do; both by the unbiased estimators over the epochs of
each case, averaged over cases. The score is the share of tests that passed, averaged over samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import comb
from typing import Any

from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record
from pytest_gittrix.evals.results.grades import Grade, grade_of, score
from pytest_gittrix.evals.results.intervals import clustered, wilson


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share between 0 and 1.

    Attributes:
        value: the share.
        low: lower end of the confidence interval.
        high: upper end.
        of: the number of samples, or of cases, that it is a share of.
    """

    value: float
    low: float
    high: float
    of: int

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of some samples.

    Attributes:
        samples: the number of samples that count.
        left_out: the number of samples with ``infra_error`` that do not count.
        passed: the share that passed; None without samples.
        at: pass@k by k.
        all: pass^k by k.
        infra_errors: the number of samples with ``infra_error``.
        counts_infra_errors: whether these count, as not passed.
        score: the mean share of tests that passed, see ``grades.score``; None where no test was judged.
        grade: what judged the tests.
    """

    samples: int
    left_out: int
    passed: Estimate | None
    at: dict[int, Estimate]
    all: dict[int, Estimate]
    infra_errors: int = 0
    counts_infra_errors: bool = False
    score: Estimate | None = None
    grade: Grade = field(default_factory=Grade)

    def to_json(self) -> dict[str, Any]:
        """The same for programs, with the names of the reference: ``pass@2`` and so on."""
        return {
            "samples": self.samples,
            "left_out": self.left_out,
            "infra_errors": self.infra_errors,
            "counts_infra_errors": self.counts_infra_errors,
            "pass_rate": asdict(self.passed) if self.passed else None,
            "score": asdict(self.score) if self.score else None,
            "grade": self.grade.to_json(),
            **{f"pass@{k}": asdict(estimate) for k, estimate in self.at.items()},
            **{f"pass^{k}": asdict(estimate) for k, estimate in self.all.items()},
        }


def rates(records: Iterable[Record], *, count_infra_errors: bool = False) -> Rates:
    """The rates of some records. k goes up to the number of epochs that every case has.

    Args:
        records: the records.
        count_infra_errors: whether a sample that ended in ``infra_error`` counts, as one that did not pass.
    """
    every = list(records)
    infra_errors = sum(record.outcome == RETRIED for record in every)
    counted = [record for record in every if count_infra_errors or record.outcome != RETRIED]
    passes = passes_by_case(counted, count_infra_errors=count_infra_errors)
    most = min((len(tries) for tries in passes.values()), default=0)
    ks = [k for k in range(1, most + 1) if k in (1, 2, 3, 5, 10, most)] if most > 1 else []
    grade = grade_of(counted)
    return Rates(
        samples=len(counted),
        left_out=len(every) - len(counted),
        passed=_share(passes.values()) if counted else None,
        at={k: _share([[_at_least_one(len(tries), sum(tries), k)] for tries in passes.values()]) for k in ks},
        all={k: _share([[_every_one(len(tries), sum(tries), k)] for tries in passes.values()]) for k in ks},
        infra_errors=infra_errors,
        counts_infra_errors=count_infra_errors,
        score=_share(_scores(counted).values()) if grade.tests else None,
        grade=grade,
    )


def passes_by_case(records: Iterable[Record], *, count_infra_errors: bool = False) -> dict[str, list[bool]]:
    """Whether each sample of each case passed, by the id of the case; without samples in ``infra_error``, unless these count."""
    passes: dict[str, list[bool]] = defaultdict(list)
    for record in records:
        if count_infra_errors or record.outcome != RETRIED:
            passes[record.id].append(record.outcome == "pass")
    return passes


def _scores(records: Iterable[Record]) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = defaultdict(list)
    for record in records:
        scores[record.id].append(float(score(record)))
    return scores


def _at_least_one(tries: int, good: int, k: int) -> float:
    return 1 - comb(tries - good, k) / comb(tries, k)


def _every_one(tries: int, good: int, k: int) -> float:
    return comb(good, k) / comb(tries, k)


def _share(cases: Collection[Sequence[float]]) -> Estimate:
    """The mean of all samples, with Wilson's interval for as many independent samples as would have its clustered standard error.

    Where all samples are alike there is no such number, so each case counts as one sample; samples of a single case count as independent.
    """
    value, error = clustered(cases)
    samples = sum(map(len, cases))
    independent = float(len(cases) if len(cases) > 1 else samples)
    if len(cases) > 1 and 0 < value < 1:
        independent = min(samples, value * (1 - value) / error**2) if error else samples
    return Estimate(value, *wilson(value, independent), samples)
