"""Statistics of many samples: rates, pass@k and pass^k, each with a confidence interval where scipy is installed.

``infra_error`` says nothing about an agent: it is left out of every rate and counted beside it. pass@k is the chance that at least one of
k tries passes, pass^k that all of them do; both by the unbiased estimators over the epochs of each case, averaged over cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import Any, Final

from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record

CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 2000
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share between 0 and 1.

    Attributes:
        value: the share.
        low: lower end of the confidence interval; None without scipy.
        high: upper end; None likewise.
        of: the number of samples, or of cases, that it is a share of.
    """

    value: float
    low: float | None
    high: float | None
    of: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.1%}"
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of some samples.

    Attributes:
        samples: the number of samples without ``infra_error``.
        left_out: the number of samples with ``infra_error``.
        passed: the share that passed; None without samples.
        at: pass@k by k.
        all: pass^k by k.
    """

    samples: int
    left_out: int
    passed: Estimate | None
    at: dict[int, Estimate]
    all: dict[int, Estimate]


def rates(records: Iterable[Record]) -> Rates:
    """The rates of some records. k goes up to the number of epochs that every case has."""
    every = list(records)
    counted = [record for record in every if record.outcome != RETRIED]
    passes: dict[str, list[bool]] = defaultdict(list)
    for record in counted:
        passes[record.id].append(record.outcome == "pass")
    most = min((len(tries) for tries in passes.values()), default=0)
    ks = [k for k in range(1, most + 1) if k in (1, 2, 3, 5, 10, most)] if most > 1 else []
    good = sum(record.outcome == "pass" for record in counted)
    return Rates(
        samples=len(counted),
        left_out=len(every) - len(counted),
        passed=_proportion(good, len(counted)) if counted else None,
        at={k: _mean([_at_least_one(len(tries), sum(tries), k) for tries in passes.values()]) for k in ks},
        all={k: _mean([_every_one(len(tries), sum(tries), k) for tries in passes.values()]) for k in ks},
    )


def sign_test(better: int, worse: int) -> float | None:
    """The p-value of so uneven flips (the exact McNemar test); None without scipy or without flips."""
    test = _of_scipy("binomtest")
    if test is None or not better + worse:
        return None
    return float(test(better, better + worse, 0.5).pvalue)


def _at_least_one(tries: int, good: int, k: int) -> float:
    return 1 - comb(tries - good, k) / comb(tries, k)


def _every_one(tries: int, good: int, k: int) -> float:
    return comb(good, k) / comb(tries, k)


def _proportion(good: int, of: int) -> Estimate:
    """A proportion with Wilson's interval, which keeps its coverage for few samples and for rates near 0 and 1."""
    test = _of_scipy("binomtest")
    if test is None:
        return Estimate(good / of, None, None, of)
    interval = test(good, of).proportion_ci(CONFIDENCE, method="wilson")
    return Estimate(good / of, float(interval.low), float(interval.high), of)


def _mean(shares: Sequence[float]) -> Estimate:
    """The mean over cases with a bootstrap interval, which draws cases, not samples."""
    if all(share in (0.0, 1.0) for share in shares):
        return _proportion(round(sum(shares)), len(shares))
    value = fmean(shares)
    bootstrap = _of_scipy("bootstrap")
    if bootstrap is None or len(shares) == 1:
        return Estimate(value, None, None, len(shares))
    interval = _interval(bootstrap, shares)
    return Estimate(value, float(interval.low), float(interval.high), len(shares))


def _interval(bootstrap: Callable[..., Any], shares: Sequence[float]) -> Any:
    drawn = bootstrap(
        (shares,),
        fmean,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        method="percentile",
        vectorized=False,
        random_state=_SEED,
    )
    return drawn.confidence_interval


def _of_scipy(name: str) -> Callable[..., Any] | None:
    try:
        from scipy import stats
    except ImportError:
        return None
    found: Callable[..., Any] = getattr(stats, name)
    return found
