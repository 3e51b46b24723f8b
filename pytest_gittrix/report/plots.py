"""A plot as SVG, without scripts, in the colours of the page that it is in; its label is for screen readers.

Its places are percentages, so that it is as wide as the page allows and its texts keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import count
from typing import Final

_BINS: Final = 24
_MOST_TICKS: Final = 5


def histogram(times: Mapping[str, Sequence[float]], *, label: str) -> str:
    """A histogram of durations: how many there are on one axis, how long on the other, which is logarithmic.

    Args:
        times: seconds, by the CSS class of their colour (``o-pass`` and so on).
        label: the text for screen readers.

    Returns:
        An SVG; empty if there is nothing to show.
    """
    every = [time for times_of in times.values() for time in times_of if time > 0]
    if not every:
        return ""
    marks = _marks(min(every), max(every))
    low, high = math.log10(marks[0]), math.log10(marks[-1])
    counts = {name: [0] * _BINS for name in times}
    for name, found in times.items():
        for time in found:
            if time > 0:
                column = int((math.log10(time) - low) / (high - low) * _BINS)
                counts[name][min(max(column, 0), _BINS - 1)] += 1
    ticks = _ticks(max(sum(counts[name][column] for name in counts) for column in range(_BINS)))
    parts = []
    for tick in ticks:
        at = 100 - tick / ticks[-1] * 100
        parts.append(f'<line x1="0" x2="100%" y1="{at:.2f}%" y2="{at:.2f}%"/>')
        parts.append(f'<text class="count" x="0" dx="-8" y="{at:.2f}%" dy="4" text-anchor="end">{tick}</text>')
    width = 100 / _BINS
    for column in range(_BINS):
        floor = 100.0
        for name, found_at in counts.items():
            height = found_at[column] / ticks[-1] * 100
            if height:
                floor -= height
                place = f'x="{column * width + 0.15:.2f}%" y="{floor:.2f}%" width="{width - 0.3:.2f}%" height="{height:.2f}%"'
                parts.append(f'<rect class="{escape(name)}" {place}/>')
    parts.append('<line class="axis" x1="0" x2="100%" y1="100%" y2="100%"/>')
    for mark in marks:
        at = (math.log10(mark) - low) / (high - low) * 100
        parts.append(f'<text x="{at:.2f}%" y="100%" dy="18" text-anchor="middle">{_seconds(mark)}</text>')
    parts.append('<text x="0" dx="-34" y="0" dy="-12">samples</text>')
    parts.append('<text x="100%" y="100%" dy="36" text-anchor="end">time of the agent</text>')
    return f'<svg class="plot" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _marks(low: float, high: float) -> list[float]:
    """The times that the axis names: from the last round one that is not above ``low`` to the first that is above ``high``."""
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    steps = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
    start = max(number for number, step in enumerate(steps) if step <= low)
    end = min(number for number, step in enumerate(steps) if step > high)
    if end - start <= 2 * _MOST_TICKS - 2:
        return steps[start : end + 1]
    return [10.0**power for power in range(first, last + 1)]


def _ticks(most: int) -> list[int]:
    """The counts that the axis names: round ones from 0 to the first that is not below ``most``."""
    step = next(step for step in (digit * 10**power for power in count() for digit in (1, 2, 5)) if step * (_MOST_TICKS - 1) >= most)
    return list(range(0, most + step, step))


def _seconds(value: float) -> str:
    if value >= 60:
        return f"{value / 60:.3g} min"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
