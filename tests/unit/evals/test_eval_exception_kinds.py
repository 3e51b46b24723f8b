"""Which exceptions meet a hidden test that expects one: those of two or three kinds may, and one of every kind may not."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
from support.hidden_tests import verdict_on_files

from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.evals.judging.canary import TOO_MANY, changed, turns
from pytest_gittrix.evals.judging.canary_rounds import CanaryRounds
from pytest_gittrix.evals.judging.pytest_run import HiddenTests, PytestRun
from pytest_gittrix.evals.judging.verdict import Verdict

TESTS = "import app\nimport pytest\n\n\ndef test_it():\n    with pytest.raises({}):\n        app.read('x')\n"
EVERY = "ValueError, KeyError, TypeError, AttributeError, NotImplementedError, ZeroDivisionError"
CLASS = "class Kinds({}):\n    pass\n\n\ndef read(_):\n    raise Kinds\n"
OBLIGING = """\
import builtins, sys

def read(_):
    frame = sys._getframe(1)
    names = [name for name in frame.f_code.co_names if isinstance(getattr(builtins, name, None), type)]
    raise getattr(builtins, names[0])
"""
"""It raises whatever the code that calls it names."""


def judged_here(code: str, expected: str) -> Verdict:
    """The verdict by canaries on harmless code, whose runs are made in this process: a hundred of them take no time."""

    def run_as(source: str, _way: str) -> PytestRun:
        names: dict[str, Any] = {}
        exec(code, names)
        shared: dict[str, Any] = {"app": type("app", (), {"read": staticmethod(names["read"])})}
        exec(source.replace("import app", ""), shared)
        outcome = "passed"
        try:
            shared["test_it"]()
        except BaseException:  # what pytest.fail raises, too
            assert traceback.format_exc()
            outcome = "failed"
        found = {"tests": {"test_it": [outcome, False, ""]}, "status": outcome == "failed", "given_up": "", "missing": False}
        return PytestRun(found, Finished(int(outcome == "failed"), None, b"", b"", False, False), "")

    return CanaryRounds(HiddenTests("test_it.py", TESTS.format(expected)), run_as, ["test_it"]).judge({})


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("ValueError", "ValueError"),
        ("KeyError, AttributeError", "KeyError"),
        ("KeyError, AttributeError", "AttributeError"),
        ("OSError, ValueError", "ValueError"),
        ("ValueError, TypeError, KeyError", "TypeError"),
        ("KeyError, IndexError, AttributeError", "(AttributeError, OSError)"),
        (EVERY, "Exception"),
    ],
)
def test_an_exception_of_a_few_kinds_passes_whatever_is_drawn(kinds: str, expected: str) -> None:
    verdicts = [judged_here(CLASS.format(kinds), expected) for _ in range(100)]

    assert {(one.wrong, one.judges.get("test_it")) for one in verdicts} == {("", "canary")}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (CLASS.format(EVERY), "ValueError"),
        (CLASS.format(EVERY), "KeyError"),
        (CLASS.format(EVERY), "(TypeError, OSError)"),
        (CLASS.format("ValueError, KeyError, IndexError, TypeError, RuntimeError, ZeroDivisionError, OSError"), "OSError"),
        (OBLIGING, "ValueError"),
        (OBLIGING, "LookupError"),
        (OBLIGING, "Exception"),
    ],
)
def test_an_exception_of_every_kind_fails_whatever_is_drawn(code: str, expected: str) -> None:
    verdicts = [judged_here(code, expected) for _ in range(100)]

    assert {(one.wrong, one.failed.get("test_it")) for one in verdicts} == {("a test passes whatever it expects", "canary")}


def test_an_exception_of_four_kinds_passes_only_where_two_draws_miss_them() -> None:
    """Two of six others are drawn; 3 of these the exception is not: one time in five."""
    verdicts = [judged_here(CLASS.format("ValueError, KeyError, TypeError, AttributeError"), "ValueError") for _ in range(100)]

    assert 0 < sum(not one.wrong for one in verdicts) < 60


@pytest.mark.parametrize(("code", "passes"), [(CLASS.format("KeyError, AttributeError"), True), (CLASS.format(EVERY), False)])
def test_the_kinds_of_an_exception_are_asked_for_in_runs_of_pytest(code: str, passes: bool, tmp_path: Path) -> None:
    verdict = verdict_on_files(lambda place: place.joinpath("app.py").write_text(code), tmp_path, tests=TESTS.format("KeyError"))

    assert (not verdict.wrong, {**verdict.judges, **verdict.failed}) == (passes, {"test_it": "canary"})


@pytest.mark.parametrize(
    ("rows", "expected", "count"),
    [
        ("", "ValueError", 6),
        ("", "LookupError", 5),
        ("", "UnicodeDecodeError", 6),
        ("", "(ValueError, OSError)", 6),
        ("", "app.Problem", 0),
        ("", "Exception", 0),
        ("", "(ValueError, TypeError, KeyError, IndexError, AttributeError)", 0),
        ("@pytest.mark.parametrize('error', [ValueError, TypeError])\n", "error", 5),
        ("@pytest.mark.parametrize('error', [ValueError, app.Problem])\n", "error", 0),
    ],
)
def test_usual_exceptions_of_another_kind_are_expected_by_turns(rows: str, expected: str, count: int) -> None:
    source = f"{rows}def test_it({'error' if rows else ''}):\n    with pytest.raises({expected}):\n        f()\n"
    asked = [changed(source, {"test_it"}, 7, turn) for turn in range(count or 1)]

    assert turns(source, {"test_it"}, 7) == ({"test_it": count} if count else {})
    assert len({*asked}) == len(asked)
    assert count or "StopAsyncIteration" in asked[0]
    assert count == 0 or count >= TOO_MANY
