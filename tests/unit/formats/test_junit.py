"""One writer of JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from pytest_gittrix.formats.junit import JUnitCase, JUnitSuite, junit_xml


def test_a_suite_counts_its_results_and_its_time() -> None:
    cases = [
        JUnitCase("group", "passed", seconds=1.5),
        JUnitCase("group", "failed", "failure", "why", "in full", kind="broken", seconds=0.25),
        JUnitCase("group", "skipped", "skipped", "not here"),
        JUnitCase("group", "error", "error", properties={"score": "1"}),
    ]

    [suite] = ElementTree.fromstring(junit_xml([JUnitSuite("suite", cases, {"git": "2"})]))

    assert suite.attrib == {"name": "suite", "tests": "4", "failures": "1", "errors": "1", "skipped": "1", "time": "1.750"}
    assert [one.attrib for one in suite.iter("property")] == [{"name": "git", "value": "2"}, {"name": "score", "value": "1"}]
    assert [(one.attrib, one.text) for one in suite.iter("failure")] == [({"type": "broken", "message": "why"}, "in full")]
    assert [one.get("time") for one in suite.iter("testcase")] == ["1.500", "0.250", None, None]


def test_what_xml_cannot_hold_is_replaced() -> None:
    text = junit_xml([JUnitSuite("a\x1bb", [JUnitCase("g", "n\x00", "failure", "m\x07", "t\x08")])])

    assert ElementTree.fromstring(text)[0].get("name") == "a\ufffdb"
    assert not {*"\x00\x07\x08\x1b"} & {*text}
