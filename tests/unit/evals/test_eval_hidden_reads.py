"""Code under test may read a file beside the hidden tests that a test gives it, and no other, in the process that it shares with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hidden_tests import LEVEL, verdict_on_files
from support.new_cheats import DATA_TESTS, ROWS

from pytest_gittrix.evals.judging.verdict import Verdict

CODE = """\
import json, os, sys

PLACE = "none"


class Reader:
    def __init__(self, place): self.place = place
    def read(self): return load(self.place)


def load(place):
    with open(place) as file:
        return json.load(file)["want"]


def of_module(): return load(PLACE)
def of_environment(): return load(os.environ["PLACE"])
def of_directory(): return load("rows.json")
def of_options(**options): return load(options["place"]["data"])
def of_file(file): return load(file.name)


if __name__ == "__main__":
    print(load(sys.argv[1] if len(sys.argv) > 1 else "rows.json"))
"""
FIRST = """\
import json, subprocess, sys
from pathlib import Path

import app
import helper

HERE = Path(__file__).parent
DATA = HERE / "rows.json"
WANT = json.loads(DATA.read_text())["want"]


"""
GIVEN = (
    FIRST
    + """\
def test_argument():
    assert app.load(DATA) == WANT
    assert app.load(str(DATA)) == app.of_options(place={"data": DATA}) == WANT
    assert helper.wanted() == 5


def test_object():
    assert app.Reader(DATA).read() == WANT


def test_module(monkeypatch):
    monkeypatch.setattr(app, "PLACE", DATA)
    assert app.of_module() == WANT


def test_environment(monkeypatch):
    monkeypatch.setenv("PLACE", str(DATA))
    assert app.of_environment() == WANT


def test_directory(monkeypatch):
    monkeypatch.chdir(HERE)
    assert app.of_directory() == WANT


def test_file():
    with DATA.open() as file:
        assert app.of_file(file) == WANT


def test_copy(tmp_path):
    (tmp_path / "rows.json").write_bytes(DATA.read_bytes())
    assert app.load(tmp_path / "rows.json") == WANT


def test_program(monkeypatch):
    for argv, place in (([str(DATA)], None), ([], HERE)):
        done = subprocess.run([sys.executable, "-m", "app", *argv], cwd=place, capture_output=True, text=True)
        assert done.stdout == f"{WANT}\\n", done.stderr
"""
)
HELPER = """\
import json
from pathlib import Path


def wanted():
    return json.loads((Path(__file__).parent / "rows.json").read_text())["want"]
"""
SEARCHES = """\
import os, sys


def load(_):
    for place in sys.path:
        if os.path.isfile(os.path.join(place, "rows.json")):
            return int(open(os.path.join(place, "rows.json")).read().strip('{}"want: '))
"""
SEARCHED = FIRST.replace("import helper\n", "") + "def test_it():\n    assert app.load(object()) == WANT\n"


def judged(root: Path, code: str, tests: str) -> Verdict:
    support = {"rows.json": '{"want": 5}', "helper.py": HELPER}
    return verdict_on_files(lambda place: (place / "app.py").write_text(code), root, LEVEL, tests, support)


def test_right_code_reads_the_files_that_tests_give_it(tmp_path: Path) -> None:
    found = judged(tmp_path, CODE, GIVEN)

    assert (found.wrong, found.failed) == ("", {})
    assert len(found.judges) == 8


def test_code_that_looks_for_the_files_of_tests_has_not_passed(tmp_path: Path) -> None:
    found = judged(tmp_path, SEARCHES, SEARCHED)

    assert found.judges == {}
    assert found.failed == {"test_it": "unjudgeable"}
    assert "read rows.json of the hidden tests" in found.wrong


@pytest.mark.parametrize("how", ["frame", "callback"])
def test_a_function_of_the_tests_that_the_code_calls_reads_what_it_likes(tmp_path: Path, how: str) -> None:
    call = {"frame": "app.call(helper.wanted)", "callback": "app.call(lambda: json.loads(DATA.read_text())['want'])"}[how]
    found = judged(tmp_path, "def call(function): return function()\n", FIRST + f"def test_it():\n    assert {call} == WANT\n")

    assert (found.wrong, found.judges) == ("", {"test_it": "plain"})


def test_a_right_result_is_judged_from_outside_where_tests_compare_it_with_data(tmp_path: Path) -> None:
    code = "def add(one, two): return one + two\n"
    verdict = verdict_on_files(lambda place: place.joinpath("app.py").write_text(code), tmp_path, tests=DATA_TESTS, support=ROWS)

    assert (verdict.wrong, {*verdict.judges.values()}) == ("", {"subject"})
