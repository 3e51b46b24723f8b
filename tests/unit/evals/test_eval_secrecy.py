"""What lies beside hidden tests, and what their parameters are called, is kept from the code under test in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.evals import ran, suite

from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.evals.inputs.sample_record import CheckResult

LOOKS = """\
import os, sys

HOME, TESTS = os.environ["HOME"], f"/proc/{os.getppid()}"
PLACES = [HOME, os.path.dirname(HOME), os.environ["TMPDIR"], f"{TESTS}/cwd", f"{TESTS}/root"]


def seen(*more):
    found = []
    for place in (*PLACES, *more):
        for directory, names, files in os.walk(place):
            names[:] = [] if directory.count("/") > 8 + place.count("/") else names
            found += [name for name in files if name in ("rows.json", "test_it.py", "hidden_rows.py", "kept.txt")]
    return sorted(found)


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as problem:
        return type(problem).__name__


def write(path):
    try:
        with open(path, "w") as file:
            return file.write("{}")
    except OSError as problem:
        return type(problem).__name__


def current():
    return os.environ["PYTEST_CURRENT_TEST"]


def memory():
    for name in ("mem", "fd/0", "cwd/app.py"):
        found = read(f"/proc/{os.getppid()}/{name}")
        if found != "PermissionError":
            return f"{name}: {found}"
    return "kept"


if __name__ == "__main__":
    print(seen(), read(sys.argv[1]), write(sys.argv[1]), memory(), os.environ["PYTEST_CURRENT_TEST"])
"""
FIRST = """\
import json, os, subprocess, sys
from pathlib import Path

import app, pytest
from hidden_rows import ROWS

HERE = Path(__file__).parent
"""
LOOKED = """

def test_files():
    assert app.seen() == []


def test_data():
    assert app.read(str(HERE / "rows.json")) == app.write(str(HERE / "hidden_rows.py")) == "PermissionError"


def test_memory():
    assert app.memory() == "kept"


def test_a_program():
    argv = [sys.executable, "-m", "app", str(HERE / "rows.json")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout == "[] PermissionError PermissionError kept test (call)\\n", done.stderr


def test_the_home(tmp_path):
    (Path.home() / "kept.txt").write_text("at home")
    assert app.read(str(Path.home() / "kept.txt")) == "at home"
    assert app.write(str(tmp_path / "written")) == 2
    assert app.seen() == ["kept.txt"]


@pytest.mark.parametrize("want", [5, 7])
def test_names(want, tmp_path):
    assert (app.current(), str(want) in tmp_path.name[:-1]) == ("test (call)", False)


@pytest.mark.parametrize(("number", "want"), ROWS)
def test_rows(number, want):
    assert number + 1 == want
"""
HELPERS = "import json\nfrom pathlib import Path\n\nROWS = json.loads((Path(__file__).parent / 'rows.json').read_text())\n"
HIDDEN = {"tests/rows.json": "[[1, 2]]", "tests/hidden_rows.py": HELPERS}


def checked(root: Path, tests: str, level: str = "off", code: str = LOOKS, **more: str) -> CheckResult:
    """What the check of hidden tests found, with data beside them, at a level of confinement."""
    try:
        confinement(level)
    except CapabilityMissing as problem:
        pytest.skip(problem.fact)
    check = '[check]\ntests = "tests"\nmust_pass = ["tests/test_it.py"]\n'
    extra = {f"tests/{path}": text for path, text in {**HIDDEN, **more, "tests/test_it.py": FIRST + tests}.items()}
    (record,) = ran(suite(root, files={"app.py": code}, more=check, extra=extra), root, "nop", confine=level).records
    return record.checks[0]


@pytest.mark.parametrize("level", ["jail", "guard", "off"])
def test_code_under_test_and_its_programs_find_nothing_of_the_hidden_files(tmp_path: Path, level: str) -> None:
    found = checked(tmp_path, LOOKED, level)

    assert (found.ok, found.detail) == (True, "")
    assert set(found.judges.values()) == {"subject"}


def test_a_test_that_starts_a_program_in_another_way_is_not_judged_from_outside(tmp_path: Path) -> None:
    tests = "\n\ndef test_first():\n    assert app.read('none') == 'FileNotFoundError'\n"
    tests += "\n\ndef test_program():\n    os.system('true')\n    assert app.read('none') == 'FileNotFoundError'\n"

    assert [*checked(tmp_path, tests).judges.values()] == ["subject", "canary"]
