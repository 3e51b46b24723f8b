"""From the reports of tests to what a person reads: the same outcomes give the same report, in any order."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gittrix.conformance.base.catalogue import all_clauses, clauses_by_code
from pytest_gittrix.conformance.base.clause import LACKING, PROPERTY, SYSTEM, WAIVED
from pytest_gittrix.conformance.html_report import page
from pytest_gittrix.conformance.report import Status, SystemReport, one_line, summarise_clauses, to_json
from pytest_gittrix.conformance.report_files import is_own_file, write_files
from pytest_gittrix.conformance.text_report import summary

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
    (finding,) = [one for one in system.findings if one.clause.code == code]
    return str(finding.status), finding.reason


def passed(codes: Iterable[str], **properties: str) -> list[Any]:
    return [phase(code, **properties) for code in codes]


# What became of a clause ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "status", "reason"),
    [
        (phase("CNF-01"), "kept", ""),
        (phase("CNF-01", "failed", message=crashed("AssertionError: it\nwas")), "broken", "AssertionError: it"),
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

    assert system.findings[-1].clause.code == "XYZ-01"
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
    assert summarised(phase("CNF-01")).verdict == f"not told, as {len(all_clauses()) - 1} of {len(all_clauses())} clauses were not run"


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
    broken = lines.index(f"broken CNF-01: {clauses_by_code()['CNF-01'].promise}")

    assert table["kept"] == ["broken", "waived", "not", "claimed", "not", "run"]
    assert table["CNF"][:5] == ["conflict", "1", "1", "1", "."]
    assert table["ISO"][:5] == ["isolation", ".", ".", ".", "1"]
    assert lines[broken + 1 : broken + 4] == [
        f"  {clauses_by_code()['CNF-01'].why}",
        "  AssertionError: it was done",
        "  again: gittrix conform --clause CNF-01",
    ]
    assert "  on purpose" in lines
    assert lines[-1].startswith("level reached: not told")


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
    ("text", "line"), [("\n\n  first\nsecond", "first"), ("a\x1b[31mb", "a\\x1b[31mb"), ("x" * 300, "x" * 200 + "..."), ("", "")]
)
def test_a_reason_is_one_line_that_steers_no_terminal(text: str, line: str) -> None:
    assert one_line(text) == line


# Files ----------------------------------------------------------------------------------------------------------------------------


def test_the_files_hold_the_same_for_programs_and_for_people(tmp_path: Any) -> None:
    files = [tmp_path / "deep" / "report.json", tmp_path / "report.html"]

    problems = write_files([summarised(phase("CNF-01"), phase("CNF-02", "failed", message="no"))], files)

    assert problems == []
    data = json.loads(files[0].read_text(encoding="utf-8"))
    assert (data["format"], [system["name"] for system in data["systems"]]) == (1, ["acme"])
    assert {one["code"]: one["status"] for one in data["systems"][0]["clauses"]}["CNF-02"] == "broken"
    shown = files[1].read_text(encoding="utf-8")
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
    assert shown.count("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;") >= 4


def test_two_systems_share_no_anchor() -> None:
    shown = page(summarise_clauses([phase("CNF-01", system=name) for name in ("acme 1", "acme-1")], is_own_file=lambda _: False))
    anchors = re.findall(r'id="([^"]+)"', shown)

    assert len(anchors) == len(set(anchors)) == 2
