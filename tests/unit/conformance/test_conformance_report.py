"""From the reports of tests to what a person reads: the same outcomes give the same report, in any order."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from pytest_gittrix.conformance.base.catalogue import all_clauses, clauses_by_code
from pytest_gittrix.conformance.base.clause import LACKING, PROPERTY, SYSTEM, WAIVED
from pytest_gittrix.conformance.base.expect import refused
from pytest_gittrix.conformance.base.outcome import (
    CAUSE,
    LOST,
    NEVER,
    REFUSALS,
    SCRIPT,
    SHOWN,
    STATUS,
    ClauseFailure,
    Status,
    incomplete_refusals_last,
)
from pytest_gittrix.conformance.reports.badge import to_badge
from pytest_gittrix.conformance.reports.baseline import compare, read_baseline
from pytest_gittrix.conformance.reports.files import is_own_file, write_files
from pytest_gittrix.conformance.reports.html_report import bar_of, counts_of, page
from pytest_gittrix.conformance.reports.json_report import to_json
from pytest_gittrix.conformance.reports.model import SystemReport, summarise_clauses
from pytest_gittrix.conformance.reports.sarif_report import to_sarif
from pytest_gittrix.conformance.reports.text_report import summary
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.safe_text import printable

BASE_CODES = [clause.code for clause in all_clauses() if not clause.needs]
EXTENDED_CODES = [clause.code for clause in all_clauses() if clause.needs]


def phase(code: str, outcome: str = "passed", *, system: str = "acme", when: str = "call", message: Any = None, **properties: str) -> Any:
    """A report of pytest, of one phase of a clause's test."""
    marks = {"wasxfail": "waived"} if properties.pop("xfail", "") else {}
    known = {PROPERTY: code, SYSTEM: system, **{{"lacking": LACKING, "waived": WAIVED}[name]: text for name, text in properties.items()}}
    return SimpleNamespace(
        nodeid=f"test_conformance.py::TestAcme::test_{code.lower()}",
        outcome=outcome,
        when=when,
        longrepr=message,
        user_properties=[*known.items()],
        **marks,
    )


def crashed(message: str) -> Any:
    return SimpleNamespace(reprcrash=SimpleNamespace(message=message))


def summarised(*reports: Any) -> SystemReport:
    (system,) = summarise_clauses(reports, is_own_file=lambda _: False)
    return system


def found(system: SystemReport, code: str) -> tuple[str, str]:
    (finding,) = [one for one in system.outcomes if one.clause.code == code]
    return str(finding.status), finding.reason


def passed(codes: Iterable[str], **properties: str) -> list[Any]:
    return [phase(code, **properties) for code in codes]


# What became of a clause ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "status", "reason"),
    [
        (phase("CNF-01"), "kept", ""),
        (phase("CNF-01", "failed", message=crashed("AssertionError: it\nwas")), "broken", "it\nwas"),
        (phase("CNF-01", "failed", message=crashed("AssertionError: it was\nassert 1 == 2\n  where 1")), "broken", "it was"),
        (
            phase("CNF-01", "failed", message=crashed("assert 1 == 2\n  - 2\n  + 1")),
            "broken",
            "This is not so: an edit of the same file is a conflict (1 == 2)",
        ),
        (phase("CNF-01", "failed", when="setup", message=crashed("OSError: no")), "broken", "in setup: OSError: no"),
        (phase("CNF-01", "failed", when="teardown", message="no crash known"), "broken", "in teardown: no crash known"),
        (phase("CNF-01", "skipped", xfail="yes", waived="on purpose"), "waived", "on purpose"),
        (
            phase("CNF-01", "failed", waived="on purpose", message="[XPASS(strict)] x"),
            "broken",
            "it is kept now: remove its waiver (on purpose)",
        ),
        (phase("CNF-01", "skipped", xfail="yes"), "broken", "it is marked xfail, and not waived"),
        (phase("CNF-01", "skipped", when="setup", lacking="delete, shell"), "not claimed", "delete, shell"),
        (phase("CNF-01", "skipped", message=("file", 1, "Skipped: no libfaketime")), "skipped", "no libfaketime"),
    ],
)
def test_each_outcome_has_its_word(report: Any, status: str, reason: str) -> None:
    assert found(summarised(report), "CNF-01") == (status, reason)


def test_a_clause_without_a_report_was_not_run() -> None:
    assert found(summarised(phase("CNF-01")), "CNF-02") == ("not run", "")


def test_a_pass_of_the_setup_alone_says_nothing() -> None:
    assert summarise_clauses([phase("CNF-01", when="setup"), phase("CNF-01", when="teardown")], is_own_file=lambda _: False) == ()


def test_reports_of_other_tests_do_not_matter() -> None:
    other = SimpleNamespace(nodeid="test_it.py::test_it", outcome="failed", when="call", longrepr=None, user_properties=[("speed", "slow")])

    assert summarise_clauses([other], is_own_file=lambda _: False) == ()


def test_of_several_tests_of_a_clause_the_worst_counts() -> None:
    reports = [phase("CNF-01"), phase("CNF-01", "failed", message=crashed("no")), phase("CNF-01", when="call")]

    assert found(summarised(*reports), "CNF-01") == ("broken", "no")


def test_a_teardown_that_fails_breaks_a_clause_that_passed() -> None:
    assert found(summarised(phase("CNF-01"), phase("CNF-01", "failed", when="teardown", message="left open")), "CNF-01")[0] == "broken"


def test_a_clause_of_nobodys_catalogue_is_shown_last() -> None:
    system = summarised(phase("XYZ-01"), phase("ERR-01"))

    assert system.outcomes[-1].clause.code == "XYZ-01"
    assert [*system.families] == ["ERR", "XYZ"]


# Order ----------------------------------------------------------------------------------------------------------------------------


def test_the_report_does_not_depend_on_the_order_of_the_tests() -> None:
    reports = [phase(one.code, system=name) for one in all_clauses() for name in ("b", "a")]
    reports += [phase("CNF-01", "failed", message=crashed(text)) for text in ("one", "two")]
    shuffled = random.Random(7).sample(reports, len(reports))

    first, second = (to_json(summarise_clauses(given, is_own_file=lambda _: False)) for given in (reports, shuffled))

    assert first == second
    assert [system["name"] for system in first["systems"]] == ["a", "acme", "b"]
    assert [clause["code"] for clause in first["systems"][0]["clauses"]] == [one.code for one in all_clauses()]


# Level ----------------------------------------------------------------------------------------------------------------------------


def test_all_clauses_kept_is_extended() -> None:
    system = summarised(*passed(BASE_CODES + EXTENDED_CODES))

    assert (system.level, system.verdict, system.is_kept) == ("EXTENDED", "EXTENDED", True)


def test_all_that_need_no_capability_is_base() -> None:
    system = summarised(*passed(BASE_CODES), *[phase(code, "skipped", lacking=", ".join(needs_of(code))) for code in EXTENDED_CODES])

    assert (system.level, system.is_kept) == ("BASE", True)
    assert system.verdict.startswith(f"BASE (EXTENDED lacks {EXTENDED_CODES[0]}, ")
    assert system.verdict.endswith(f" and {len(EXTENDED_CODES) - 8} more)")


def needs_of(code: str) -> list[str]:
    return sorted(clauses_by_code()[code].needs)


@pytest.mark.parametrize("instead", [phase("CNF-01", "failed", message="no"), phase("CNF-01", "skipped", xfail="yes", waived="why")])
def test_a_broken_or_waived_clause_keeps_the_base_out_of_reach(instead: Any) -> None:
    rest = [code for code in BASE_CODES + EXTENDED_CODES if code != "CNF-01"]

    system = summarised(*passed(rest), instead)

    assert (system.level, system.verdict) == (None, "none (BASE lacks CNF-01)")


def test_no_level_is_told_of_a_part_of_the_clauses() -> None:
    assert summarised(phase("CNF-01")).verdict == f"unknown, as {len(all_clauses()) - 1} of {len(all_clauses())} clauses were not run"


# Declared and never tested --------------------------------------------------------------------------------------------------------


def with_crash(outcome: Mapping[str, Any]) -> SystemReport:
    codes = [code for code in EXTENDED_CODES if "crash" in needs_of(code)]
    assert codes
    return summarised(phase("CNF-01"), *(phase(code, **outcome) for code in codes))


def test_a_declared_capability_whose_clauses_were_all_skipped_is_told() -> None:
    system = with_crash({"outcome": "skipped", "message": ("", 1, "Skipped: not on this machine")})

    assert "crash" in system.untested
    assert not system.is_kept
    assert "declared, and never tested: " in "\n".join(line.text for line in summary(system))


def test_a_declared_capability_whose_clauses_all_need_another_is_told() -> None:
    assert "crash" in with_crash({"outcome": "skipped", "lacking": "resume"}).untested


def test_a_capability_that_is_not_declared_need_not_be_tested() -> None:
    assert with_crash({"outcome": "skipped", "lacking": "crash, resume"}).untested == ()


def test_a_capability_is_not_judged_by_a_part_of_its_clauses() -> None:
    code = next(code for code in EXTENDED_CODES if "crash" in needs_of(code))

    assert summarised(phase(code, "skipped", message=("", 1, "Skipped: no"))).untested == ()


# What is shown --------------------------------------------------------------------------------------------------------------------


def test_the_summary_counts_each_family_and_tells_each_broken_clause() -> None:
    system = summarised(
        phase("CNF-01", "failed", message=crashed("AssertionError: it was done")),
        phase("CNF-02", "skipped", xfail="yes", waived="on purpose"),
        phase("CNF-03"),
        phase("ISO-01", "skipped", lacking="shell"),
    )

    lines = [line.text for line in summary(system)]
    table = {line.split()[0]: line.split()[1:] for line in lines[: lines.index("")]}
    broken = lines.index(f"  broken CNF-01: {clauses_by_code()['CNF-01'].promise}")

    assert table["kept"] == ["broken", "waived", "not", "claimed", "not", "run"]
    assert table["CNF"][:5] == ["conflict", "1", "1", "1", "."]
    assert table["ISO"][:5] == ["isolation", ".", ".", ".", "1"]
    title = clauses_by_code()["CNF-01"].why.removeprefix("Otherwise ").removesuffix(".")
    assert lines[broken - 1 : broken + 4] == [
        f"1. {title[0].upper()}{title[1:]} (broken: CNF-01)",
        lines[broken],
        f"    {clauses_by_code()['CNF-01'].why}",
        "    it was done",
        "    again: gittrix conform --clause CNF-01",
    ]
    assert "  on purpose" in lines
    assert lines[-1].startswith("level reached: unknown")


def test_a_clause_of_a_file_of_the_project_is_run_again_with_pytest() -> None:
    report = phase("CNF-01", "failed", message="no")
    ours, theirs = (summarise_clauses([report], is_own_file=lambda _, own=own: own, requested="a b:c") for own in (False, True))

    assert ours[0].of(Status.BROKEN)[0].replay == "gittrix conform 'a b:c' --clause CNF-01"
    assert theirs[0].of(Status.BROKEN)[0].replay == f"pytest {report.nodeid}"


def test_the_file_of_the_suite_itself_is_run_again_by_the_command() -> None:
    report = phase("CNF-01", "failed", message="no")
    report.nodeid = "pytest_gittrix/conformance/test_conformance.py::TestConflict::test_it"
    root = Path(__file__).parents[3]
    assert (root / report.nodeid.partition("::")[0]).is_file()

    (system,) = summarise_clauses([report], is_own_file=partial(is_own_file, root))

    assert system.of(Status.BROKEN)[0].replay == "gittrix conform --clause CNF-01"


@pytest.mark.parametrize(
    ("text", "shown"), [("\n\n  first\n second ", "first\n second"), ("a\x1b[31mb", "a\\x1b[31mb"), ("x" * 3000, "x" * 3000), ("", "")]
)
def test_a_reason_is_whole_and_steers_no_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


# Findings -------------------------------------------------------------------------------------------------------------------------


def failed(code: str, reason: str = "no", **facts: str) -> Any:
    """A failed clause, with what the plugin adds to its report."""
    report = phase(code, "failed", message=crashed(reason))
    names = {"status": STATUS, "cause": CAUSE, "never": NEVER, "lost": LOST, "script": SCRIPT, "shown": SHOWN}
    report.user_properties += [(names[name], text) for name, text in facts.items()]
    return report


def test_clauses_that_fail_for_one_cause_are_one_finding() -> None:
    system = summarised(
        *[failed(code, cause="list fails: COMMAND_BROKEN: There is no answer.") for code in ("OVL-04", "NAM-11")], failed("CNF-01")
    )

    assert [[one.clause.code for one in found.outcomes] for found in system.findings] == [["OVL-04", "NAM-11"], ["CNF-01"]]
    assert system.findings[0].title == "list fails: COMMAND_BROKEN: There is no answer."
    assert system.findings[1].title == "The agent overwrites an edit of the human's that it never saw"


def test_the_worst_finding_comes_first_and_the_headline_counts() -> None:
    system = summarised(
        failed("CNF-01", status="incomplete refusal"), failed("CNF-02"), failed("CNF-03"), failed("PRM-19", status="broken", lost="yes")
    )

    assert [found.outcomes[0].clause.code for found in system.findings] == ["PRM-19", "CNF-02", "CNF-03", "CNF-01"]
    assert system.headline == "4 faults; 1 of them loses work."
    assert summarised(phase("CNF-01")).headline == "No fault was found."
    asked = [phase(code) for code, clause in clauses_by_code().items() if clause.protects_work and code != "CNF-02"]
    assert summarised(*asked, failed("CNF-02")).headline == "1 fault; none of them loses work."


def test_that_no_work_is_lost_is_said_only_where_it_was_asked() -> None:
    asked = [phase(code) for code, clause in clauses_by_code().items() if clause.protects_work and code != "CNF-02"]
    unknown = phase(asked[-1].user_properties[0][1], "skipped", message=("", 1, "Skipped: because"))
    unknown.user_properties.append((STATUS, "no verdict"))

    one, many = summarised(*asked[:-1], unknown, failed("CNF-02")), summarised(failed("CNF-02"))

    assert one.headline == "1 fault; whether work is lost is not known, as 1 clause about it gave no verdict."
    assert many.headline.startswith("1 fault; whether work is lost is not known, as ")
    assert "losing work" not in to_badge([many])


def test_a_refusal_that_was_never_given_is_one_cause() -> None:
    missed = [failed(code, never="promote: BASELINE_CONFLICT") for code in ("CNF-01", "CNF-04")]
    kept = phase("CNF-06")
    kept.user_properties.append((REFUSALS, "promote: BASELINE_CONFLICT\nread: PATH_NOT_FOUND"))

    assert [found.title for found in summarised(*missed).findings] == ["promote never refuses with BASELINE_CONFLICT"]
    assert [found.id for found in summarised(*missed, kept).findings] == ["CNF-01", "CNF-04"]


def test_four_refusals_for_a_persons_checkout_are_one_fault_where_all_are_missed() -> None:
    missed = [failed(f"PRM-{number}", never="promote: WORKTREE_DIRTY") for number in range(19, 23)]
    given = phase("PRM-02")
    given.user_properties.append((REFUSALS, "promote: WORKTREE_DIRTY"))

    (one,) = summarised(*missed, given).findings

    assert one.title == "promote does not look at what is unsaved in the checkout"
    assert len(one.outcomes) == 4
    assert len(summarised(*missed[1:], phase("PRM-19"), given).findings) == 3


def test_what_is_not_claimed_does_not_fill_the_bar() -> None:
    system = summarised(phase("CNF-01"), phase("ISO-01", "skipped", lacking="shell"))

    assert set(bar_of(system)) == {Status.KEPT}
    assert set(counts_of(system)) >= {Status.KEPT, Status.NOT_CLAIMED}


def test_a_script_that_does_not_show_it_is_no_finding_but_a_defect_of_the_kit() -> None:
    script = "#!/bin/sh\none\n"
    system = summarised(
        failed("CNF-01", cause="the same", script=script, shown="no", lost="yes"),
        failed("CNF-02", cause="the same", script=script, shown="yes"),
    )
    [finding] = system.findings
    data = to_json([system])["systems"][0]

    assert found(system, "CNF-01") == ("no verdict", "no\nThe script, run once more, did not show it.")
    assert "did not show it" not in found(system, "CNF-02")[1]
    assert ([one.clause.code for one in finding.outcomes], finding.reproduced, finding.loses_work) == (["CNF-02"], True, False)
    assert data["defect"] == "This kit has a defect: a script did not show what it is for, so that CNF-01 gave no verdict."
    assert data["defect"] in [line.text for line in summary(system)]
    assert data["defect"] in page([system])
    assert not summarised(failed("CNF-01", script=script, shown="no")).is_kept
    assert summarised(failed("CNF-01", script=script)).findings[0].reproduced is None


def test_a_finding_shows_its_shortest_script() -> None:
    scripts = ["#!/bin/sh\none\ntwo\n", "#!/bin/sh\none\n"]
    system = summarised(*[failed(code, cause="the same", script=text) for code, text in zip(("CNF-01", "CNF-02"), scripts, strict=True)])

    assert system.findings[0].script == f"#!/bin/sh\n# CNF-02: {clauses_by_code()['CNF-02'].promise}\none\n"


@pytest.mark.parametrize("status", ["as git", "documented", "inconclusive", "no verdict"])
def test_a_clause_can_end_without_passing_or_failing(status: str) -> None:
    report = phase("CNF-01", "skipped", message=("", 1, "Skipped: because"))
    report.user_properties.append((STATUS, status))
    system = summarised(report)

    assert found(system, "CNF-01") == (status, "because")
    assert system.findings == ()


def test_a_refusal_without_its_code_is_worse_than_nothing_else() -> None:
    with pytest.raises(ClauseFailure, match="not with BASELINE_CONFLICT: ValueError: busy") as judged, incomplete_refusals_last():
        refused("BASELINE_CONFLICT", busy)

    assert judged.value.status is Status.INCOMPLETE_REFUSAL
    with pytest.raises(AssertionError, match="a file leaked"), incomplete_refusals_last():
        refused("BASELINE_CONFLICT", busy)
        raise AssertionError("a file leaked")


def busy() -> None:
    raise ValueError("busy")


# Since an earlier report ----------------------------------------------------------------------------------------------------------


def test_only_what_is_new_since_the_baseline_counts() -> None:
    then = to_json([summarised(failed("CNF-01"), failed("CNF-02"), failed("CNF-03", status="incomplete refusal"))])
    now = to_json([summarised(failed("CNF-01", "for another reason"), phase("CNF-02"), failed("CNF-03"), failed("CNF-04"))])

    compared = compare(then, now)

    assert compared.known == ("acme: CNF-01",)
    assert compared.new == ("acme: CNF-03", "acme: CNF-04")
    assert compared.mended == ("acme: CNF-02",)
    assert compared.lines()[0] == "New: acme: CNF-03, acme: CNF-04."


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "systems": []}', '{"format": 1}'])
def test_a_baseline_must_be_a_report(text: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(InvalidInput, match="is not a report of clauses"):
        read_baseline(str(file))


# Files ----------------------------------------------------------------------------------------------------------------------------


def test_the_files_hold_the_same_for_programs_and_for_people(tmp_path: Any) -> None:
    files = [tmp_path / "deep" / "report.json", *(tmp_path / f"report.{kind}" for kind in ("html", "txt", "xml", "sarif", "svg"))]

    problems = write_files([summarised(phase("CNF-01"), phase("CNF-02", "failed", message="no"))], files)

    assert problems == []
    data = json.loads(files[0].read_text(encoding="utf-8"))
    assert (data["format"], [system["name"] for system in data["systems"]]) == (1, ["acme"])
    assert {one["code"]: one["status"] for one in data["systems"][0]["clauses"]}["CNF-02"] == "broken"
    for path in files[2:]:
        assert "CNF-02" in path.read_text(encoding="utf-8") or path.suffix == ".svg"
    assert fromstring(files[3].read_text(encoding="utf-8")).findall(".//failure")[0].get("type") == "broken"
    result = json.loads(files[4].read_text(encoding="utf-8"))["runs"][0]["results"][0]
    assert result["ruleId"] == "CNF-02"
    assert result["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "acme"}, "region": {"startLine": 1}}
    assert "1 fault" in "".join(fromstring(files[5].read_text(encoding="utf-8")).itertext())
    shown = files[1].read_text(encoding="utf-8")
    assert "<strong>1 fault; whether work is lost is not known" in shown
    assert all(f"<code>{code}</code>" in shown for code in ("CNF-01", "CNF-02"))


def test_the_page_loads_nothing() -> None:
    shown = page([summarised(phase("CNF-01"))])

    assert re.findall(r"<(?:script|link|img|iframe|object)|url\(|@import|https?:|(?:src|action)=", shown) == []
    assert set(re.findall(r'href="([^"]*)"', shown)) == {"#acme-CNF"}
    assert 'id="acme-CNF"' in shown


def test_the_page_escapes_what_others_say() -> None:
    hostile = '<script>alert("1")</script>'
    shown = page(
        [
            summarised(
                phase("CNF-01", "failed", system=hostile, message=hostile), phase("CNF-02", "skipped", system=hostile, lacking=hostile)
            )
        ]
    )

    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;") >= 4


def test_two_systems_share_no_anchor() -> None:
    shown = page(summarise_clauses([phase("CNF-01", system=name) for name in ("acme 1", "acme-1")], is_own_file=lambda _: False))
    anchors = re.findall(r'id="([^"]+)"', shown)

    assert len(anchors) == len(set(anchors)) == 2


def test_a_cause_steers_no_terminal() -> None:
    report = phase("CNF-01", "failed", message="no")
    report.user_properties += [(CAUSE, "start fails: X\x1b]52;c;aGk=\x07\nY")]
    system = summarised(report)

    assert system.findings[0].title == "start fails: X\\x1b]52;c;aGk=\\x07 Y"
    assert "\x1b" not in "\n".join(line.text for line in summary(system))


def test_a_finding_is_in_the_file_of_the_test_that_failed() -> None:
    (system,) = summarise_clauses([phase("CNF-01", "failed", system="acme (1)")], is_own_file=lambda _: True)

    (result,) = json.loads(to_sarif([system]))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "test_conformance.py"


def test_sarif_has_the_script_as_the_help_of_its_rule_and_the_line_that_is_meant() -> None:
    report = phase("CNF-01", "failed", message=crashed("no"))
    report.user_properties += [(SCRIPT, "#!/bin/sh\ngit status\n")]
    system = replace(summarised(report, phase("CNF-02", "failed", message="no")), file="tool.toml", lines={"CNF-01": 7})

    (run,) = json.loads(to_sarif([system]))["runs"]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    places = {result["ruleId"]: result["locations"][0]["physicalLocation"] for result in run["results"]}
    assert rules["CNF-01"]["help"]["text"].endswith("git status\n")
    assert "```sh\n#!/bin/sh\n" in rules["CNF-01"]["help"]["markdown"]
    assert "help" not in rules["CNF-02"]
    assert {code: place["region"]["startLine"] for code, place in places.items()} == {"CNF-01": 7, "CNF-02": 1}
    assert {place["artifactLocation"]["uri"] for place in places.values()} == {"tool.toml"}


def test_a_waiver_says_whether_the_promise_is_to_be_kept_one_day() -> None:
    reasons = {"CNF-01": "Not yet: issue 12", "CNF-02": "acme has one writer"}
    system = summarised(*[phase(code, "skipped", xfail="yes", waived=reason) for code, reason in reasons.items()], phase("CNF-03"))

    clauses = {one["code"]: one["waiver"] for one in to_json([system])["systems"][0]["clauses"]}
    assert [clauses[code] for code in ("CNF-01", "CNF-02", "CNF-03")] == ["not yet", "on purpose", ""]
    lines = [line.text for line in summary(system)]
    assert any(line.startswith("waived, not yet CNF-01: ") for line in lines)
    assert any(line.startswith("waived, on purpose CNF-02: ") for line in lines)


def test_sarif_shows_what_is_waived_as_suppressed_and_what_is_not_kept_yet_as_under_review() -> None:
    reasons = {"CNF-01": "not yet: issue 12", "CNF-02": "acme has one writer"}
    system = summarised(*[phase(code, "skipped", xfail="yes", waived=reason) for code, reason in reasons.items()])

    results = json.loads(to_sarif([system]))["runs"][0]["results"]
    assert {one["ruleId"]: one["suppressions"] for one in results} == {
        "CNF-01": [{"kind": "external", "status": "underReview", "justification": "not yet: issue 12"}],
        "CNF-02": [{"kind": "external", "status": "accepted", "justification": "acme has one writer"}],
    }


def test_clauses_that_could_not_begin_for_one_reason_are_one_finding_that_is_told_once() -> None:
    codes = ["CNF-01", "CNF-02", "CNF-03", "CNF-04"]
    message = "OSError: no server for /tmp/x/gittrix-world-{}/home\nmore"
    system = summarised(*[phase(code, "failed", when="setup", message=crashed(message.format(code[-1]))) for code in codes])

    (fault,) = system.findings
    text = "\n".join(line.text for line in summary(system))
    assert fault.title == "no clause could begin: OSError: no server for $ROOT/home"
    assert [one.clause.code for one in fault.outcomes] == codes
    assert text.count("no server for") == 2
    assert not any(clause.promise in text for clause in all_clauses() if clause.code in codes)
