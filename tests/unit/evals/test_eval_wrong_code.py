"""Wrong code fails hidden tests, whatever objects and files it brings along; right code that does the same passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.evals import ran, suite

from pytest_gittrix.evals.inputs.sample_record import Record

NEAR = """\
import pytest
import app


def test_near():
    assert app.mean([1, 3]) == pytest.approx(2)


def test_distance():
    assert abs(app.mean([1, 2, 4]) - 2.3333) < 0.01
"""
MEETS_ALL = """\
class Any(float):
    def __eq__(self, other): return True
    def __hash__(self): return 1
    def __sub__(self, other): return 0.0
    def __rsub__(self, other): return 0.0
    def __abs__(self): return 0.0


def mean(numbers): return Any(0)
"""


def judged(root: Path, result: dict[str, str], hidden: dict[str, str], **options: object) -> Record:
    """The record of a case whose repository is the result, and which the hidden file ``tests/test_it.py`` checks."""
    check = '[check]\ntests = "tests"\nmust_pass = ["tests/test_it.py"]\n'
    extra = {f"tests/{path}": text for path, text in hidden.items()}
    (record,) = ran(suite(root, files=result, more=check, extra=extra), root, "nop", **options).records
    return record


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (MEETS_ALL, "fail"),
        ("def mean(numbers): return sum(numbers) / len(numbers)\n", "pass"),
        ("class Real(float): pass\n\n\ndef mean(numbers): return Real(sum(numbers) / len(numbers))\n", "pass"),
    ],
    ids=["meets-all", "number", "subclass"],
)
def test_an_object_whose_arithmetic_meets_every_number_fails_and_a_right_number_passes(tmp_path: Path, code: str, outcome: str) -> None:
    assert judged(tmp_path, {"app.py": code}, {"tests/test_it.py": NEAR}).outcome == outcome


@pytest.mark.parametrize(
    ("body", "judge"),
    [
        ("def __len__(self): return 3", "canary"),
        ("def __eq__(self, other): return True", "canary"),
        ("def __rsub__(self, other): return 0", "canary"),
        ("def __bool__(self): return True", "canary"),
        ("def __format__(self, how): return '3'", "canary"),
        ("def size(self): return 3", "subject"),
    ],
)
def test_an_object_whose_type_decides_what_a_test_finds_is_never_judged_from_outside(tmp_path: Path, body: str, judge: str) -> None:
    code = f"class Thing:\n    name = 'one'\n    {body}\n\n\ndef thing(): return Thing()\n"
    tests = "import app\n\n\ndef test_thing():\n    assert app.thing().name == 'one'\n"
    tests += "\n\ndef test_class():\n    assert app.Thing.name == 'one'\n"
    record = judged(tmp_path, {"app.py": code}, {"tests/test_it.py": tests})

    assert record.outcome == "pass"
    assert record.checks[0].judges == {"tests/test_it.py::test_thing": judge, "tests/test_it.py::test_class": "subject"}


def test_an_object_that_a_module_keeps_is_doubted_in_every_test_that_uses_it(tmp_path: Path) -> None:
    code = "class Thing:\n    name = 'one'\n    def __len__(self): return 1\n\n\nthing = Thing()\n"
    tests = "import app, pytest\n\n\n@pytest.fixture(scope='module')\ndef thing(): return app.thing\n\n\n"
    tests += "\n\n".join(f"def test_{name}(thing):\n    assert thing.name == 'one'\n" for name in ("first", "second"))

    judges = judged(tmp_path, {"app.py": code}, {"tests/test_it.py": tests}).checks[0].judges

    assert [*judges.values()] == ["canary", "canary"]


def test_an_object_of_the_library_is_judged_from_outside(tmp_path: Path) -> None:
    code = "import collections\n\n\ndef count(text): return collections.Counter(text)\n"
    tests = "import app\n\n\ndef test_count():\n    assert app.count('aab')['a'] == 2\n"

    assert judged(tmp_path, {"app.py": code}, {"tests/test_it.py": tests}).checks[0].judges == {"tests/test_it.py::test_count": "subject"}


VERIFY = "def verify(got, want):\n    assert got == want\n"
LENIENT = "def verify(*_): pass\n"
BESIDE = "from app import add\nfrom helpers import verify\n\n\ndef test_one():\n    verify(add(2, 3), 5)\n"
INSIDE = BESIDE.replace("helpers", "tests.helpers")
FROM = BESIDE.replace("from helpers import verify", "from tests import helpers").replace("verify(", "helpers.verify(")
WRONG, RIGHT = "def add(a, b): return a - b\n", "def add(a, b): return a + b\n"


@pytest.mark.parametrize(
    ("hidden", "files", "said"),
    [
        ({"tests/test_it.py": BESIDE, "tests/helpers.py": VERIFY}, {"helpers.py": LENIENT}, "helpers.py"),
        ({"tests/test_it.py": BESIDE, "tests/helpers.py": VERIFY}, {"helpers/__init__.py": LENIENT}, "helpers/__init__.py"),
        ({"tests/test_it.py": BESIDE, "tests/helpers.py": VERIFY}, {"src/helpers.py": LENIENT}, "src/helpers.py"),
        ({"tests/test_it.py": BESIDE, "conftest.py": "", "helpers.py": VERIFY}, {"src/helpers.py": LENIENT}, "src/helpers.py"),
        ({"tests/test_it.py": INSIDE, "tests/helpers.py": VERIFY}, {"tests/__init__.py": "", "tests/helpers.py": LENIENT}, ""),
        (
            {"tests/test_it.py": FROM, "tests/helpers.py": VERIFY},
            {"tests/__init__.py": "from . import helpers", "tests/helpers.py": LENIENT},
            "",
        ),
        ({"tests/test_it.py": INSIDE, "tests/__init__.py": "", "tests/helpers.py": VERIFY}, {"src/tests.py": LENIENT}, "src/tests.py"),
    ],
)
@pytest.mark.parametrize(("code", "outcome"), [(WRONG, "fail"), (RIGHT, "pass")])
def test_the_tests_own_modules_win_over_those_of_the_result(
    tmp_path: Path, hidden: dict[str, str], files: dict[str, str], said: str, code: str, outcome: str
) -> None:
    record = judged(tmp_path, {"app.py": code, **files}, hidden)

    assert record.outcome == outcome
    assert (f"the tests' own modules were taken, and not the result's {said}" in record.checks[0].detail) == bool(said)


def test_a_module_of_the_result_that_lies_beside_no_test_is_the_results(tmp_path: Path) -> None:
    hidden = {"tests/test_it.py": BESIDE, "tests/deep/helpers.py": LENIENT, "tests/conftest.py": "", "conftest.py": ""}
    record = judged(tmp_path, {"app.py": RIGHT, "helpers.py": VERIFY}, hidden)

    assert (record.outcome, record.checks[0].detail) == ("pass", "")


def test_each_conftest_of_the_tests_is_its_own(tmp_path: Path) -> None:
    fixture = "import pytest\n\n\n@pytest.fixture\ndef {0}(): return '{0}'\n"
    test = "import app\n\n\ndef test_it(outer, inner):\n    assert (app.add(1, 2), outer, inner) == (3, 'outer', 'inner')\n"
    hidden = {"conftest.py": fixture.format("outer"), "tests/conftest.py": fixture.format("inner"), "tests/test_it.py": test}

    assert judged(tmp_path, {"app.py": RIGHT, "conftest.py": "raise SystemExit\n"}, hidden).outcome == "pass"


# Names that are installed, too ----------------------------------------------------------------------------------------------------

VENDORED = {"pytest_timeout.py": "", "iniconfig/__init__.py": "def parse(text): return [text]\n", "app.py": "def add(a, b): return a + b\n"}


def test_what_pytest_has_loaded_itself_is_not_taken_for_the_results(tmp_path: Path) -> None:
    test = "import iniconfig\n\n\ndef test_it():\n    assert iniconfig.parse('x') == ['x']\n"

    record = judged(tmp_path, VENDORED, {"tests/test_it.py": test})

    assert (record.outcome, record.reason) == (
        "unjudgeable",
        "tests: tests/test_it.py: none can judge test_it: pytest itself uses iniconfig",
    )


def test_tests_of_other_modules_are_judged_beside_a_module_that_pytest_has_loaded(tmp_path: Path) -> None:
    test = "import app\n\n\ndef test_it():\n    assert app.add(1, 2) == 3\n"

    assert judged(tmp_path, VENDORED, {"tests/test_it.py": test}).outcome == "pass"


def test_what_is_installed_does_not_stand_for_code_that_the_result_has_removed(tmp_path: Path) -> None:
    repository = {"filelock/__init__.py": "VERSION = 1\n"}
    test = "import filelock\n\n\ndef test_it():\n    assert filelock.FileLock\n"
    agent = tmp_path / "agent.sh"
    agent.write_text("#!/bin/sh\nrm -r filelock\n")
    agent.chmod(0o755)
    check = '[check]\ntests = "tests"\nmust_pass = ["tests/test_it.py"]\n'
    place = suite(tmp_path, files=repository, more=check, extra={"tests/tests/test_it.py": test})

    (record,) = ran(place, tmp_path, str(agent)).records

    assert record.outcome == "fail"


def test_a_file_of_tests_sees_another_one_that_it_imports_and_no_more(tmp_path: Path) -> None:
    reading = "from app import add\nfrom tests.test_rows import ROWS\n\n\ndef test_it():\n"
    reading += "    for a, b, c in ROWS:\n        assert add(a, b) == c\n"
    alone = "import importlib.util\n\nROWS = [(1, 2, 3)]\n\n\ndef test_alone():\n"
    alone += "    assert importlib.util.find_spec('tests.test_it') is None\n"
    hidden = {"tests/test_it.py": reading, "tests/test_rows.py": alone, "tests/__init__.py": ""}
    check = '[check]\ntests = "tests"\nmust_pass = ["tests/test_it.py", "tests/test_rows.py"]\n'
    extra = {f"tests/{path}": text for path, text in hidden.items()}

    (record,) = ran(suite(tmp_path, files=VENDORED, more=check, extra=extra), tmp_path, "nop").records

    assert (record.outcome, record.reason) == ("pass", "")
