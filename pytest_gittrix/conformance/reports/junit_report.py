"""The report as JUnit XML: a suite for each family, a test case for each clause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pytest_gittrix.conformance.base.outcome import FAILING, Status
from pytest_gittrix.conformance.reports.model import ClauseOutcome, SystemReport

_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(systems: Iterable[SystemReport]) -> str:
    """The report as JUnit XML. A clause that was not run is left out; one that neither failed nor is kept counts as skipped."""
    root = Element("testsuites")
    for system in systems:
        for family in system.families:
            outcomes = [one for one in system.outcomes if one.clause.family == family and one.status is not Status.NOT_RUN]
            failures = sum(one.status in FAILING for one in outcomes)
            skipped = sum(one.status not in (*FAILING, Status.KEPT) for one in outcomes)
            counts = {"tests": str(len(outcomes)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
            suite = SubElement(root, "testsuite", {"name": _clean(f"{system.name}: {family}")} | counts)
            if system.properties:
                properties = SubElement(suite, "properties")
                for name, value in system.properties.items():
                    SubElement(properties, "property", name=name, value=_clean(value))
            for one in outcomes:
                _add_case(suite, system, one)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _add_case(suite: Element, system: SystemReport, outcome: ClauseOutcome) -> None:
    clause = outcome.clause
    case = SubElement(suite, "testcase", classname=_clean(f"{system.name}.{clause.family}"), name=_clean(f"{clause.code} {clause.promise}"))
    if outcome.status in FAILING:
        failure = SubElement(case, "failure", type=str(outcome.status), message=_clean(outcome.reason.partition("\n")[0]))
        failure.text = _clean("\n".join(part for part in (clause.why, outcome.reason, outcome.replay, outcome.script) if part))
    elif outcome.status is not Status.KEPT:
        SubElement(case, "skipped", message=_clean(f"{outcome.status}: {outcome.reason}" if outcome.reason else str(outcome.status)))


def _clean(text: str) -> str:
    """A text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
