"""The page of the packages whose tests are judged beside plain pytest: its numbers agree, and few tests did not pass."""

from __future__ import annotations

import re

from tests.quality.corpus import BAR, PACKAGES, PAGE, Package, Row, page, row

TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ") and "==" not in line][
    1:
]


def test_every_package_has_a_row_whose_numbers_agree() -> None:
    assert [name for name, *_ in ROWS] == [f"{one.name} {one.version}" for one in PACKAGES]
    for _, _, passed, *judged in ROWS:
        assert int(passed) == sum(map(int, judged))


def test_hardly_a_test_that_plain_pytest_passes_does_not_pass_and_each_is_listed() -> None:
    tests = sum(int(cells[2]) for cells in ROWS)
    others = sum(int(cells[-1]) + int(cells[-2]) for cells in ROWS)

    assert others <= BAR * tests
    assert f"{tests:,} tests" in " ".join(TEXT.split())
    assert len(re.findall(r"^- .+ (?:failed|unjudgeable): .+", TEXT, re.MULTILINE)) == others


def test_a_test_without_a_verdict_did_not_pass() -> None:
    package = Package("text", "one", "1.0")
    tables = {"judges": {"t.py::a": "canary"}, "failed": {"t.py::b": "unjudgeable", "t.py::c": "plain"}, "detail": "t.py: status 1"}
    found = row(
        package, ["t.py::a", "t.py::b", "t.py::c", "u.py::d"], {"t.py": {"checks": [tables]}, "u.py": {"checks": [], "reason": "gone"}}
    )

    assert found == Row(package, found.passed, {"t.py::a": "canary"}, {"t.py::b"}, {"t.py": "t.py: status 1", "u.py": "gone"})
    assert found.others == ["t.py::b", "t.py::c", "u.py::d"]
    lines = page([found], "2030-01-01", "Python 3 and pytest 9").splitlines()
    assert "| one 1.0 | text | 4 | 0 | 1 | 0 | 1 | 2 |" in lines
    assert lines[-3:] == [
        "- one, `t.py`, `b` unjudgeable: status 1.",
        "- one, `t.py`, `c` failed: status 1.",
        "- one, `u.py`, `d` failed: gone.",
    ]
