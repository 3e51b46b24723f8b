"""A hidden test that no judge can judge is neither failed nor passed; what only looks hard to judge is judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.evals import ran, suite
from support.hidden_tests import verdict_on

from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.results.grades import score

RIGHT = "def keep(it): return it\n"
HEAD = "import errno, inspect, os, socket\nimport pytest\nimport app\n\n\n"
UNLIKE = "its runs do not look alike"


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (
            "def test_it():\n    # why\n    it = []\n    assert app.keep(it) is it and chr(35) + ' why' in inspect.getsource(test_it)\n",
            UNLIKE,
        ),
        ("def test_it(mocker):\n    assert app.keep(1) == 1\n", "no loaded plugin defines the fixture mocker"),
        ("def test_it():\n    assert os.get_terminal_size(0) and app.keep(1) == 1\n", "there is no terminal"),
        ("def test_it():\n    socket.getaddrinfo('host.invalid', 80)\n    assert app.keep(1) == 1\n", "there is no network"),
        (
            "def test_it():\n    try: raise OSError(errno.ENETUNREACH, 'no')\n    except OSError as one: raise KeyError from one\n",
            "there is no network",
        ),
    ],
    ids=["author's text", "plugin", "terminal", "name", "cause"],
)
def test_a_test_that_none_can_judge_is_said_to_be_so(tmp_path: Path, test: str, reason: str) -> None:
    verdict, _ = verdict_on(RIGHT, tmp_path, "off", HEAD + test)

    assert (dict(verdict.failed), dict(verdict.judges)) == ({"test_it": "unjudgeable"}, {})
    assert verdict.wrong == f"none can judge test_it: {reason}"


def test_tests_that_end_by_chance_are_not_all_failures(tmp_path: Path) -> None:
    tests = [f"def test_{number}():\n    it = []\n    assert app.keep(it) is it and os.urandom(1)[0] % 2\n" for number in range(60)]
    verdict, _ = verdict_on(RIGHT, tmp_path, "off", HEAD + "\n\n".join(tests))

    assert "unjudgeable" in verdict.failed.values()


def judged(root: Path, code: str, tests: str, more: dict[str, str] | None = None, *, name: str = "tests/test_it.py") -> Record:
    """The record of a case whose repository is the result, and which a hidden file checks."""
    check = f'[check]\ntests = "tests"\nmust_pass = ["{name}"]\n'
    extra = {f"tests/{path}": text for path, text in {name: tests, **(more or {})}.items()}
    files = {"app.py": code} if "/" not in name.removeprefix("tests/") else {"app/__init__.py": code, "app/deep.py": "TWO = 2\n"}
    (record,) = ran(suite(root, files=files, more=check, extra=extra), root, "nop").records
    return record


LACKING = "def test_lacking(mocker):\n    assert app.keep(1) == 1\n"
PLAIN = "def test_plain():\n    assert app.keep(1) == 1\n\n\n"


@pytest.mark.parametrize(
    ("code", "outcome", "share"),
    [
        (RIGHT, "unjudgeable", (1, 2)),
        ("def keep(it): return 2\n", "fail", (0, 2)),
        ("import socket\ndef keep(it): raise socket.gaierror('no')\n", "unjudgeable", (0, 2)),
    ],
    ids=["right", "wrong", "wrong, and asks for a network"],
)
def test_a_sample_with_such_a_test_has_not_passed(tmp_path: Path, code: str, outcome: str, share: tuple[int, int]) -> None:
    record = judged(tmp_path, code, HEAD + PLAIN + LACKING)

    assert record.outcome == outcome
    assert (score(record).numerator, score(record).denominator) in (share, (0, 1))
    assert record.checks[0].failed["tests/test_it.py::test_lacking"] == "unjudgeable"


def test_a_conftest_that_imports_the_result_leaves_its_tests_to_the_best_judge(tmp_path: Path) -> None:
    conftest = {"tests/conftest.py": "import pytest, app\n\n\n@pytest.fixture\ndef three(): return app.keep(3)\n"}
    record = judged(tmp_path, RIGHT, f"{HEAD}def test_it(three):\n    assert app.keep(three) == 3\n", conftest)

    assert (record.outcome, dict(record.checks[0].judges)) == ("pass", {"tests/test_it.py::test_it": "subject"})


@pytest.mark.parametrize(("value", "outcome"), [(2, "pass"), (3, "fail")])
def test_tests_inside_a_package_of_the_result_import_from_above(tmp_path: Path, value: int, outcome: str) -> None:
    tests = f"from .. import keep\nfrom ..deep import TWO\nfrom .helper import same\n\n\ndef test_it():\n    same(keep(TWO), {value})\n"
    own = {"app/tests/__init__.py": "", "app/tests/helper.py": "def same(one, other):\n    assert one == other\n"}
    record = judged(tmp_path, RIGHT, tests, own, name="app/tests/test_it.py")

    assert record.outcome == outcome
    judges = record.checks[0].judges if value == 2 else record.checks[0].failed
    assert [*judges.values()] == ["subject" if value == 2 else "plain"]


def test_a_test_that_waits_for_what_cannot_cross_goes_on_to_the_next_judge(tmp_path: Path) -> None:
    code = "class Done: pass\nsteps = [1]\ndef step(): return steps.pop() if steps else Done()\n"
    tests = f"{HEAD}def test_it():\n    seen = []\n    while type(seen and seen[-1]) is not app.Done: seen.append(app.step())\n"
    check = '[check]\ntests = "tests"\nmust_pass = ["tests/test_it.py"]\n[limits]\ntimeout = "30s"\n'
    hidden = {"tests/tests/test_it.py": f"{tests}    assert seen[0] == 1\n"}
    (record,) = ran(suite(tmp_path, files={"app.py": code}, more=check, extra=hidden), tmp_path, "nop").records

    assert (record.outcome, dict(record.checks[0].judges)) == ("pass", {"tests/test_it.py::test_it": "canary"})
