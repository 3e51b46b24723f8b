"""Two runs on the same cases: by how much their pass rates differ, and whether there are enough samples to tell.

Each case counts once, by the difference of its own pass rates: repetitions of one case say nothing about other cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import ceil, lcm, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any, Final

from pytest_gittrix.evals.results.intervals import CONFIDENCE, Z, randomisation_p, student

POWER: Final = 0.8
"""How often a difference of the size ``detectable`` is noticed."""

FEWEST: Final = 6
"""The fewest cases that can differ from chance: six that all change the same way have a p of 0.03, five one of 0.06."""

_NOTICED: Final = Z + NormalDist().inv_cdf(POWER)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How the pass rates of two runs differ on the cases that both have. All rates and differences are between -1 and 1.

    Attributes:
        cases: the number of cases with a sample that counts in both runs.
        better: the number of cases that pass more often in the second run.
        worse: the number of cases that pass less often in the second run.
        difference: the mean over cases of the pass rate in the second run minus that in the first; None without cases.
        standard_error: the standard error of the difference, clustered by case; None for fewer than two cases.
        low: lower end of the 95 % interval; None if all cases differ by the same.
        high: upper end; None if unknown.
        p: how likely chance alone makes a difference of this size or more; None without cases.
        detectable: the smallest difference that these cases show in four of five comparisons; None for fewer than six cases.
        needed: the number of cases that would show the difference that was seen, in four of five comparisons; more than there are if it
            is not significant. None if there is no difference.
    """

    cases: int
    better: int
    worse: int
    difference: float | None = None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    detectable: float | None = None
    needed: int | None = None

    @property
    def is_significant(self) -> bool:
        """Whether the difference is more than chance explains: p decides, and not the interval, which is approximate on few cases."""
        return self.p is not None and self.p < 1 - CONFIDENCE

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result in words, the same for terminals and pages."""
        if self.difference is None:
            return (self.verdict,)
        more = () if self.is_significant or self.needed is None else (f"About {self.needed} cases would show a difference of this size.",)
        return (self._size(), self.verdict, *self._which_decides(), *more, self._limit())

    @property
    def verdict(self) -> str:
        """Which run is better, or why that is unknown, in a sentence."""
        if self.difference is None:
            return "No case was judged in both runs."
        if self.is_significant:
            return f"b is {'better' if self.difference > 0 else 'worse'} than a: chance alone seldom makes such a difference."
        if not self.better and not self.worse:
            return "Not enough samples to tell: no case passes more or less often."
        return "Not enough samples to tell: chance alone makes such differences."

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {**asdict(self), "significant": self.is_significant, "sentences": list(self.sentences)}

    def _size(self) -> str:
        assert self.difference is not None
        counts = f"{self.better} of {_cases(self.cases)} better, {self.worse} worse"
        interval = f"95 % interval {_points(self.low)} to {_points(self.high)}, " if self.low is not None else ""
        return f"Pass rate of b minus a: {_points(self.difference)} points ({interval}{self._chance()}); {counts}."

    def _which_decides(self) -> Iterator[str]:
        if self.low is not None and self.high is not None and (self.low > 0 or self.high < 0) != self.is_significant:
            yield "The interval is approximate on so few cases: p decides."

    def _chance(self) -> str:
        return "p < 0.001" if self.p is not None and self.p < 0.001 else f"p = {self.p:.3f}"

    def _limit(self) -> str:
        if self.detectable is None:
            return f"Fewer than {FEWEST} cases never suffice to tell a difference from chance."
        if self.detectable > 1:
            return "No difference is large enough to be noticed in 4 of 5 comparisons on so few cases."
        return f"Minimal detectable difference: {self.detectable * 100:.1f} points, which are noticed in 4 of 5 comparisons on such cases."


def paired_difference(cases: Sequence[tuple[Fraction, Fraction]]) -> PairedDifference:
    """Compare the pass rates of two runs.

    Args:
        cases: the pass rate of each case in the first and in the second run, over the samples that count there.
    """
    differences = [second - first for first, second in cases]
    better, worse = sum(one > 0 for one in differences), sum(one < 0 for one in differences)
    count = len(cases)
    if not count:
        return PairedDifference(0, 0, 0)
    scale = lcm(*(one.denominator for one in differences))
    scaled = [int(one * scale) for one in differences]
    p = randomisation_p(scaled)
    mean = fmean(differences)
    if count == 1:
        return PairedDifference(count, better, worse, mean, p=p)
    spread = stdev(map(float, differences))
    error = spread / sqrt(count)
    half = student(count - 1) * error
    epochs = max(rate.denominator for pair in cases for rate in pair)
    found = PairedDifference(
        count,
        better,
        worse,
        mean,
        error,
        low=max(-1.0, mean - half) if error else None,
        high=min(1.0, mean + half) if error else None,
        p=p,
        detectable=max(_NOTICED * error, FEWEST / epochs / count) if count >= FEWEST else None,
    )
    if not mean:
        return found
    fewest = ceil(Fraction(FEWEST * count * scale, epochs * abs(sum(scaled))))
    more = FEWEST if found.is_significant else max(FEWEST, count + 1)
    return replace(found, needed=max(more, fewest, ceil((_NOTICED * spread / mean) ** 2)))


def _points(value: float | None) -> str:
    return "" if value is None else f"{value * 100:+.1f}"


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"
