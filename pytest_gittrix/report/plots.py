"""Small plots as SVG, without scripts, in the colours of the page that they are in; each has a label for screen readers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_BINS: Final = 24
_WIDTH: Final = 640
_ROW: Final = 26


@dataclass(frozen=True, slots=True)
class Share:
    """A share and its confidence interval, all between 0 and 1; ``low`` and ``high`` are None if there is no interval."""

    name: str
    value: float
    low: float | None
    high: float | None
    text: str


def histogram(times: Mapping[str, Sequence[float]], *, label: str) -> str:
    """A histogram of durations, on a logarithmic axis.

    Args:
        times: seconds, by the CSS class of their colour (``o-pass`` and so on).
        label: the text for screen readers.

    Returns:
        An SVG; empty if there is nothing to show.
    """
    every = [time for times_of in times.values() for time in times_of if time > 0]
    if not every:
        return ""
    low, high = math.log10(min(every)), math.log10(max(every))
    low, high = math.floor(low * 2) / 2, math.ceil(high * 2 + 1e-9) / 2
    if high <= low:
        high = low + 0.5
    counts = {name: [0] * _BINS for name in times}
    for name, found in times.items():
        for time in found:
            if time > 0:
                column = int((math.log10(time) - low) / (high - low) * _BINS)
                counts[name][min(max(column, 0), _BINS - 1)] += 1
    most = max(sum(counts[name][column] for name in counts) for column in range(_BINS))
    bar, tall = _WIDTH / _BINS, 120
    parts = []
    for column in range(_BINS):
        floor = float(tall)
        for name, found_at in counts.items():
            height = found_at[column] / most * (tall - 8)
            if height:
                floor -= height
                parts.append(
                    f'<rect class="{escape(name)}" x="{column * bar + 1:.1f}" y="{floor:.1f}" width="{bar - 2:.1f}" height="{height:.1f}"/>'
                )
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = (power - low) / (high - low) * _WIDTH
        anchor = "start" if at < 20 else "end" if at > _WIDTH - 20 else "middle"
        parts.append(f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{tall}"/>')
        parts.append(f'<text x="{at:.1f}" y="{tall + 16}" text-anchor="{anchor}">{_seconds(10**power)}</text>')
    return _svg(_WIDTH, tall + 22, label, parts)


def shares(found: Sequence[Share], *, label: str) -> str:
    """Shares as points with their intervals, a row each.

    Args:
        found: the shares, from top to bottom.
        label: the text for screen readers.

    Returns:
        An SVG; empty if there is nothing to show.
    """
    if not found:
        return ""
    begin, end = 210, _WIDTH - 96
    parts = []
    for percent in (0, 50, 100):
        at = begin + (end - begin) * percent / 100
        parts.append(f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{len(found) * _ROW}"/>')
        parts.append(f'<text x="{at:.1f}" y="{len(found) * _ROW + 16}" text-anchor="middle">{percent} %</text>')
    for number, share in enumerate(found):
        y = number * _ROW + _ROW / 2
        at = begin + (end - begin) * share.value
        name = share.name if len(share.name) <= 28 else f"{share.name[:27]}…"
        parts.append(f'<text x="{begin - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        if share.low is not None and share.high is not None:
            low, high = (begin + (end - begin) * value for value in (share.low, share.high))
            parts.append(f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<circle class="dot" cx="{at:.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(f'<text x="{end + 14}" y="{y + 4:.1f}">{escape(share.text)}</text>')
    return _svg(_WIDTH, len(found) * _ROW + 22, label, parts)


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _seconds(value: float) -> str:
    if value >= 60:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 1 else f"{value * 1000:g} ms"
