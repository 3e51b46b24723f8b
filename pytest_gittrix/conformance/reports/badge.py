"""The report as a badge: an SVG picture that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pytest_gittrix.conformance.base.outcome import Status
from pytest_gittrix.conformance.reports.model import SystemReport
from pytest_gittrix.formats.html import templates

_LABEL: Final = "gittrix conform"
_LETTER: Final = 7


def to_badge(systems: Iterable[SystemReport]) -> str:
    """The report as SVG text: the faults of all systems, or how many clauses are kept; and the date and git's version, if known."""
    shown = [*systems]
    faults = sum(len(one.findings) for one in shown)
    losing = sum(found.loses_work for one in shown for found in one.findings)
    kept = sum(len(one.of(Status.KEPT)) for one in shown)
    known = losing or not any(one.unasked for one in shown)  # that none loses work is said only where it was asked
    counted = f"{faults} {'fault' if faults == 1 else 'faults'}" + (f", {losing} losing work" if known else "")
    text = counted if faults else f"{kept} clauses kept"
    text = ", ".join([text, *dict.fromkeys(value for one in shown for value in _setting(one))])
    colour = "#c0272d" if losing else "#946200" if faults else "#1a7f4b"
    template = templates("pytest_gittrix.conformance.reports").get_template("badge.svg")
    left, right = (len(part) * _LETTER + 12 for part in (_LABEL, text))
    places = {"label_middle": left // 2, "text_middle": left + right // 2, "left": left, "inner": right - 3, "width": left + right}
    return template.render(places, label=_LABEL, text=text, colour=colour) + "\n"


def _setting(system: SystemReport) -> Iterator[str]:
    if "date" in system.properties:
        yield system.properties["date"]
    if "git" in system.properties:
        yield system.properties["git"].replace("git version", "git")
