"""The closed forms that the statistics of runs are made of. They need no further package.

Repetitions of a case are not independent of each other: cases are drawn, and their samples come with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from math import atan, cos, gcd, pi, sin, sqrt
from statistics import NormalDist
from typing import Final

CONFIDENCE: Final = 0.95
Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

_EXACT_BITS: Final = 1_000_000
_HALVINGS: Final = 60


def clustered(cases: Collection[Sequence[float]]) -> tuple[float, float]:
    """The mean of samples that come in cases, and its clustered standard error.

    Args:
        cases: the values of the samples of each case; no case is empty.

    Returns:
        The mean over all samples, and the square root of the sum over cases of the squared sum of their deviations, over the samples.
    """
    samples = sum(map(len, cases))
    mean = sum(map(sum, cases)) / samples
    return mean, sqrt(sum(sum(value - mean for value in case) ** 2 for case in cases)) / samples


def wilson(share: float, samples: float) -> tuple[float, float]:
    """Wilson's score interval, which keeps its coverage for few samples and for shares near 0 and 1.

    Args:
        share: the share that was seen, between 0 and 1.
        samples: the number of independent samples, which may be a fraction.
    """
    spread = Z * Z / samples

    def lower(share: float) -> float:
        half = sqrt(spread * share * (1 - share) + (spread / 2) ** 2)
        return max(0.0, share + spread / 2 - half) / (1 + spread)

    return lower(share), 1 - lower(1 - share)


@lru_cache(maxsize=256)
def student(freedom: int) -> float:
    """The number of standard errors on both sides of a mean that cover 95 % of Student's distribution.

    Args:
        freedom: the degrees of freedom, at least 1.
    """
    low, high = 0.0, 13.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def randomisation_p(differences: Iterable[int]) -> float:
    """Fisher's randomisation test of paired differences: how often random signs give a sum as far from 0 as theirs, or farther.

    For differences of -1, 0 and 1 it is the exact test of McNemar, which is the sign test of the pairs that differ. Every choice of signs
    is counted where that takes about a tenth of a second: for up to about a thousand cases that differ by one epoch. For more, the normal
    approximation of that count is used.

    Args:
        differences: one of each case, in any unit.
    """
    signed = [difference for difference in differences if difference]
    if not signed:
        return 1.0
    unit = gcd(*signed)
    steps = [abs(difference) // unit for difference in signed]
    total, reach, size = abs(sum(signed)) // unit, sum(steps), len(steps) // 8 + 1
    if reach * size * 8 > _EXACT_BITS:
        return 2 * (1 - NormalDist().cdf(total / sqrt(sum(step * step for step in steps))))
    # One large number has a field for each possible sum of the positive differences: how many choices of signs give that sum.
    ways = 1
    for step in steps:
        ways += ways << (8 * size * step)
    fields = ways.to_bytes((reach + 1) * size, "little")
    fewer = sum(int.from_bytes(fields[at * size : (at + 1) * size], "little") for at in range((reach - total) // 2 + 1))
    return min(1.0, fewer / (1 << (len(steps) - 1)))


def _student_within(distance: float, freedom: int) -> float:
    """The share of Student's distribution between minus and plus a distance, by the finite sums for whole degrees of freedom."""
    angle = atan(distance / sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for number in range(1 + odd, freedom - 2, 2):
        term *= number / (number + 1) * cos(angle) ** 2
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
