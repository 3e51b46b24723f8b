"""Draws the diagrams of the pages when the documentation is built: a hook of MkDocs, so that the site needs no script from elsewhere.

State diagrams come from the tables of legal state changes that the engine checks, the layers from the table that the architecture test
reads, and the run of the first page from a table that a test compares with a real run. In the sources, the first are Mermaid blocks and the
others are text blocks, for readers of the plain files; this puts SVG in their place.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.views import botminter, gastown, gittrix, orchestrator, pixir

Legal = Mapping[str, frozenset[str]]
"""Which state may follow which."""
ROOT = Path(__file__).resolve().parent.parent
STATES: Final[Mapping[str, tuple[Legal, str]]] = {
    "explanation/you-know-botminter.md": (botminter.LEGAL, "Creating"),
    "explanation/you-know-agent-orchestrator.md": (orchestrator.LEGAL, "spawning"),
    "explanation/you-know-gas-town.md": (gastown.LEGAL, "spawn"),
    "explanation/you-know-pixir.md": (pixir.LEGAL, "idle"),
    "explanation/promotion.md": (gittrix.LEGAL, "active"),
}
"""The table that each page shows, and the state in which everything begins."""
HOUSE: Final = "explanation/architecture.md"
RUN_BLOCK: Final = re.compile(r"(?<=<!-- run -->\n)```text\n(.*?)```\n", re.DOTALL)
HOUSE_BLOCK: Final = re.compile(r"(?<=<!-- house -->\n)```text\n.*?```\n", re.DOTALL)

NAME: Final = re.compile(r"<code>([^<\s]{1,36})</code>")
"""A code span that is one name, short enough for a line on a phone."""

CHARACTER, LINE, PADDING = 7.9, 20, 12
"""Width and height of a character of the diagrams' monospaced font, and the space between text and frame; all in pixels."""
GAP, ARC = 48, 22
"""Space between two states, and how much higher an arc is for each state that it passes."""
READABLE = 600
"""A diagram that is wider may be shown this small, on a phone, where it scrolls."""
HEAD: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
)
"""The head of an arrow."""
INSIDE = "any to any other"
"""What a box says whose states follow each other."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """MkDocs' hook: a page with its diagrams drawn.

    Raises:
        ValueError: a diagram of the page comes from no table; the build fails.
    """
    where = page.file.src_uri
    if where in STATES:
        legal, start = STATES[where]
        markdown = markdown.replace(block(legal, start=start), states(legal, start=start))
    if where == HOUSE:
        markdown = HOUSE_BLOCK.sub(lambda _: layers(_storeys()), markdown)
    markdown = RUN_BLOCK.sub(lambda block: run(read_run(block[1])), markdown)
    if "```mermaid" in markdown:
        raise ValueError(f"{where} has a diagram that no table gives. Add the table to docs/drawing.py, so that no script has to draw it.")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """MkDocs' hook: a page with its code spans that are names marked, so that a style can keep them whole."""
    return NAME.sub(r'<code class="name">\1</code>', html)


def _storeys() -> Mapping[str, Sequence[str]]:
    sys.path.insert(0, str(ROOT / "tests"))
    from quality.house import STOREYS

    return STOREYS


def states(legal: Legal, *, start: str) -> str:
    """The state diagram of a table: states in a row, steps forward as arcs above it, steps back below.

    Args:
        legal: for each state, those that may follow.
        start: the state that everything begins in.

    Returns:
        An HTML element with the SVG in it. States with the same predecessors and successors share a box, as in ``mermaid``.
    """
    boxes = _in_order(groups(legal), legal, start)
    place = {state: number for number, box in enumerate(boxes) for state in box}
    steps = sorted({(place[old], place[new]) for old, allowed in legal.items() for new in allowed})
    shown = [[*box, f"({INSIDE})"] if (number, number) in steps else [*box] for number, box in enumerate(boxes)]
    widths = [max(map(len, lines)) * CHARACTER + 2 * PADDING for lines in shown]
    heights = [len(lines) * LINE + PADDING for lines in shown]
    lefts = [sum(widths[:number]) + GAP * (number + 1) for number in range(len(boxes))]
    above = ARC * max((new - old for old, new in steps if new > old + 1), default=0) + PADDING
    below: float = ARC * max((old - new for old, new in steps), default=0) + PADDING
    middle = above + max(heights) / 2
    drawn = [_box(lefts[n], middle - heights[n] / 2, widths[n], heights[n], lines) for n, lines in enumerate(shown)]
    first = place[start]
    drawn.append(f'<circle class="end" cx="{lefts[first] - GAP + 8:.0f}" cy="{middle:.0f}" r="6"/>')
    drawn.append(_arrow(f"M{lefts[first] - GAP + 14:.0f} {middle:.0f}H{lefts[first]:.0f}"))
    for old, new in steps:
        if new == old + 1:
            drawn.append(_arrow(f"M{lefts[old] + widths[old]:.0f} {middle:.0f}H{lefts[new]:.0f}"))
        elif new != old:
            side = -1 if new > old else 1
            tip = middle + side * (max(heights) / 2 + ARC * abs(new - old) * 4 / 3)  # a curve comes as near as three quarters of its way
            x1, x2 = (lefts[box] + widths[box] * _port(box, (old, new), steps) for box in (old, new))
            y1, y2 = (middle + side * heights[box] / 2 for box in (old, new))
            drawn.append(_arrow(f"M{x1:.0f} {y1:.0f}C{x1:.0f} {tip:.0f} {x2:.0f} {tip:.0f} {x2:.0f} {y2:.0f}"))
    for number in (number for number, box in enumerate(boxes) if not any(legal[state] for state in box)):
        x, y = lefts[number] + widths[number] / 2, middle + heights[number] / 2
        below = max(below, y + 42 - middle - max(heights) / 2)
        drawn.append(_arrow(f"M{x:.0f} {y:.0f}V{y + 26:.0f}"))
        drawn += [f'<circle class="{kind}" cx="{x:.0f}" cy="{y + 34:.0f}" r="{radius}"/>' for kind, radius in (("ring", 7), ("end", 4))]
    width, height = lefts[-1] + widths[-1] + 2, middle + max(heights) / 2 + below
    return _figure(width, height, f"State diagram: {', '.join(legal)}", drawn)


def layers(storeys: Mapping[str, Sequence[str]]) -> str:
    """The storeys of the package on top of each other, each with its rooms.

    Args:
        storeys: the rooms of each storey, from the ground up.
    """
    label = max(map(len, storeys)) * CHARACTER + 5 * PADDING
    widest = max(sum(len(room) * CHARACTER + 3 * PADDING for room in rooms) for rooms in storeys.values())
    drawn, height = [], LINE + 3 * PADDING
    for row, (number, storey, rooms) in enumerate(reversed([(n, *item) for n, item in enumerate(storeys.items(), 1)])):
        top, x = row * height + PADDING / 2, label
        drawn.append(f'<rect class="floor" x="1" y="{top:.0f}" width="{label + widest:.0f}" height="{height - 4}" rx="6"/>')
        drawn.append(f'<text x="{PADDING}" y="{top + height / 2 + 3:.0f}">{number} {escape(storey)}</text>')
        for room in rooms:
            width = len(room) * CHARACTER + 2 * PADDING
            drawn.append(_box(x, top + PADDING - 2, width, LINE + PADDING, [room]))
            x += width + PADDING
    return _figure(label + widest + 2, len(storeys) * height + PADDING / 2, "The storeys of the package and their rooms", drawn)


def read_run(text: str) -> list[tuple[str, str]]:
    """What happened in a run, in order: on which of its two lines, and what.

    Args:
        text: the block of a page: for each step the line's name, two spaces or more, and what happened.
    """
    return [(line, what) for line, what in (row.split(maxsplit=1) for row in text.splitlines())]


def run(happened: Sequence[tuple[str, str]]) -> str:
    """A run from top to bottom: the commits of the durable branch at the left, what happened in the session at the right.

    Args:
        happened: the steps, the first of them on the durable branch. The session begins at that one, and its promotion, the step before
            the last, comes from the step of the session before that.
    """
    durable, session = dict.fromkeys(line for line, _ in happened)
    left, right = (max(len(what) for where, what in happened if where == line) * CHARACTER + PADDING for line in (durable, session))
    at = {durable: left, session: left + GAP * 0.75}
    tops = [LINE * 2.5 + number * LINE * 1.5 for number in range(len(happened))]
    drawn = [_beside(at[durable], LINE, durable, "end"), _beside(at[session], LINE, session, "start")]
    for line in (durable, session):
        own = [top for top, (where, _) in zip(tops, happened, strict=True) if where == line]
        drawn.append(f'<path class="step {escape(line)}" d="M{at[line]:.0f} {own[0]:.0f}V{own[-1]:.0f}"/>')
    for number in (0, len(happened) - 3):
        (one, _), (other, _) = happened[number : number + 2]
        short = 6 if at[other] > at[one] else -6  # the head of an arrow ends where its dot begins
        drawn.append(_arrow(f"M{at[one]:.0f} {tops[number]:.0f}L{at[other] - short:.0f} {tops[number + 1] - 5:.0f}"))
    for top, (where, what) in zip(tops, happened, strict=True):
        drawn.append(f'<circle class="end {escape(where)}" cx="{at[where]:.0f}" cy="{top:.0f}" r="5"/>')
        drawn.append(_beside(at[where], top + 5, what, "end" if where == durable else "start"))
    return _figure(at[session] + right + 2, tops[-1] + PADDING, "One run of a session", drawn)


def _in_order(boxes: Sequence[tuple[str, ...]], legal: Legal, start: str) -> list[tuple[str, ...]]:
    """The boxes from the one with the start, so that as few steps as a depth-first search finds go back."""
    following = {box: [other for other in boxes if other != box and {*other} & legal[box[0]]] for box in boxes}
    done: list[tuple[str, ...]] = []
    seen: set[tuple[str, ...]] = set()

    def visit(box: tuple[str, ...]) -> None:
        seen.add(box)
        for other in following[box]:
            if other not in seen:
                visit(other)
        done.append(box)

    for box in sorted(boxes, key=lambda box: start not in box):
        if box not in seen:
            visit(box)
    return done[::-1]


def _port(box: int, step: tuple[int, int], steps: Sequence[tuple[int, int]]) -> float:
    """Where the arc of a step meets one of its two boxes, as a part of the box's width. Longer arcs lie around shorter ones.

    A box has its arcs to the right on its right half and those to the left on its left half: above for steps forward, below for steps back.
    """
    end, way = step.index(box), step[1] > step[0]
    alike = [one for one in steps if one[end] == box and one[1] - one[0] not in (0, 1) and (one[1] > one[0]) is way]
    ends = sorted((sum(one) - box for one in alike), reverse=True)
    other = sum(step) - box
    return (ends.index(other) + 1) / (len(ends) + 1) / 2 + (0.5 if other > box else 0)


def _box(x: float, y: float, width: float, height: float, lines: Sequence[str]) -> str:
    top = y + (height - len(lines) * LINE) / 2 + LINE * 0.72
    texts = "".join(
        f'<text x="{x + width / 2:.0f}" y="{top + LINE * number:.0f}" text-anchor="middle">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="6"/>{texts}'


def _beside(x: float, y: float, text: str, anchor: str) -> str:
    """A text at the left (``end``) or the right (``start``) of a line."""
    return f'<text x="{x - PADDING if anchor == "end" else x + PADDING:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _arrow(path: str) -> str:
    return f'<path class="step" d="{path}" marker-end="url(#arrow)"/>'


def _figure(width: float, height: float, title: str, drawn: Sequence[str]) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    style = f'style="min-width:{min(width, READABLE):.0f}px"'
    parts = [f"<title>{escape(title)}</title>", HEAD, *drawn]
    return f'<div class="diagram"><svg xmlns="http://www.w3.org/2000/svg" role="img" {size} {style}>{"".join(parts)}</svg></div>\n'


# Mermaid, for the sources. States with the same predecessors and successors are one node, or sixteen statuses could not be read. -----


def groups(legal: Legal) -> list[tuple[str, ...]]:
    """The states in groups whose members have the same predecessors and successors, each other aside.

    Args:
        legal: for each state, those that may follow.

    Returns:
        The groups in the order of the table, each with its states in that order.
    """
    order = {state: number for number, state in enumerate(legal)}
    found: list[list[str]] = []
    for state in legal:
        home = next((group for group in found if _alike(legal, group[0], state)), None)
        if home is None:
            found.append([state])
        else:
            home.append(state)
    return [tuple(sorted(group, key=order.__getitem__)) for group in found]


def mermaid(legal: Legal, *, start: str) -> str:
    """The diagram of a table.

    Args:
        legal: for each state, those that may follow.
        start: the state that everything begins in.

    Returns:
        A Mermaid ``stateDiagram-v2``, which ends in a line break. A group that can change among its own members has an arrow to itself.
    """
    together = groups(legal)
    node = {state: number for number, group in enumerate(together) for state in group}
    lines = ["stateDiagram-v2", "    direction LR"]
    lines += ['    state "{}" as s{}'.format(", ".join(group), number) for number, group in enumerate(together)]
    lines.append(f"    [*] --> s{node[start]}")
    edges = sorted({(node[old], node[new]) for old, allowed in legal.items() for new in allowed})
    for old, ends in groupby(edges, key=lambda edge: edge[0]):
        lines += [f"    s{old} --> s{new}{': any to any other' if new == old else ''}" for _, new in ends]
    lines += [f"    s{number} --> [*]" for number, group in enumerate(together) if not any(legal[state] for state in group)]
    return "".join(f"{line}\n" for line in lines)


def block(legal: Legal, *, start: str) -> str:
    """The same as a fenced block of a Markdown page."""
    return f"```mermaid\n{mermaid(legal, start=start)}```\n"


def _alike(legal: Legal, one: str, other: str) -> bool:
    pair = {one, other}
    if legal[one] - pair != legal[other] - pair or (other in legal[one]) != (one in legal[other]):
        return False
    if (one in legal[one]) != (other in legal[other]):
        return False
    return _before(legal, one) - pair == _before(legal, other) - pair


def _before(legal: Legal, state: str) -> frozenset[str]:
    return frozenset(old for old, allowed in legal.items() if state in allowed)
