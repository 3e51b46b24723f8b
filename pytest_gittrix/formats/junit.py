"""JUnit XML: suites of test cases, with properties, and without the characters that XML cannot hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class JUnitCase:
    """One test.

    Attributes:
        group: what it is a test of, as a class name.
        name: its name.
        result: how it ended, if it did not pass.
        message: why, on one line.
        text: the same in full.
        kind: the type of a failure.
        seconds: how long it took.
        properties: further facts by name.
    """

    group: str
    name: str
    result: Literal["", "failure", "error", "skipped"] = ""
    message: str = ""
    text: str = ""
    kind: str = ""
    seconds: float | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JUnitSuite:
    """A suite of tests."""

    name: str
    cases: Sequence[JUnitCase]
    properties: Mapping[str, str] = field(default_factory=dict)


def junit_xml(suites: Iterable[JUnitSuite]) -> str:
    """The XML of some suites."""
    root = Element("testsuites")
    for suite in suites:
        kinds = [case.result for case in suite.cases]
        element = SubElement(root, "testsuite", name=_clean(suite.name), tests=str(len(kinds)))
        for count, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            element.set(count, str(sum(one == kind for one in kinds)))
        times = [case.seconds for case in suite.cases if case.seconds is not None]
        if times:
            element.set("time", f"{sum(times):.3f}")
        _add_properties(element, suite.properties)
        for case in suite.cases:
            _add_case(element, case)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _add_case(suite: Element, case: JUnitCase) -> None:
    element = SubElement(suite, "testcase", classname=_clean(case.group), name=_clean(case.name))
    if case.seconds is not None:
        element.set("time", f"{case.seconds:.3f}")
    _add_properties(element, case.properties)
    if case.result:
        result = SubElement(element, case.result, {"type": case.kind} if case.kind else {}, message=_clean(case.message))
        result.text = _clean(case.text) or None


def _add_properties(element: Element, properties: Mapping[str, str]) -> None:
    if properties:
        parent = SubElement(element, "properties")
        for name, value in properties.items():
            SubElement(parent, "property", name=_clean(name), value=_clean(value))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
