"""A failure is shown up to the user's line, without the frames of the package."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

TESTS = """
    import unittest

    import pytest

    from pytest_gittrix import World

    def test_refusal(gittrix_session):
        gittrix_session.write("../x", "agent")

    def test_context_manager(gittrix_durable, gittrix_rival):
        with gittrix_durable.unchanged():
            gittrix_rival.commit({"new.txt": "x"})

    def test_users_own_function_within_the_engine(gittrix_session, gittrix_race):
        def disturb():
            raise ValueError("by the user")

        gittrix_session.write("app.py", "v2")
        gittrix_race.before("promote:head-read", disturb)
        gittrix_session.promote()

    def test_step_that_is_never_reached(gittrix_session, gittrix_race):
        gittrix_race.before("promote:head-raed", print)

    def test_with_a_cause(gittrix_durable):
        gittrix_durable.commit({"app.py/below": "a file and a directory"})

    def test_a_defect_of_the_package(gittrix_session, monkeypatch):
        monkeypatch.setattr("pytest_gittrix.engine.user_session.check_ttl", None)
        gittrix_session.extend("4h")

    class TestCase(unittest.TestCase):
        def test_of_unittest(self):
            with World.open() as world:
                world.start().write("../x", "agent")

    def test_a_skip(gittrix_durable):
        pytest.skip("on purpose")
"""


def failures(result: pytest.RunResult) -> dict[str, str]:
    """What is shown of each failed test above the sections of its world, by name."""
    _, *parts = re.split(r"^_{3,} (?:ERROR at (?:setup|teardown) of )?([\w.]+) _{3,}$", result.stdout.str(), flags=re.MULTILINE)
    above = [re.split(r"^-+ gittrix |^=+ ", shown, flags=re.MULTILINE)[0] for shown in parts[1::2]]
    return dict(zip(parts[::2], above, strict=True))


def frames(shown: str) -> list[str]:
    """The places of the frames in a traceback: file and line."""
    return re.findall(r"^(\S+\.py):\d+: ", shown, re.MULTILINE)


def test_a_failure_is_shown_up_to_the_users_line(run: Run) -> None:
    result = run(TESTS, "--gittrix-keep=none")

    result.assert_outcomes(failed=6, passed=1, errors=1, skipped=1)
    shown = failures(result)
    assert frames(shown["test_refusal"]) == ["test_it.py"]
    assert "WriteRejected: path '../x' may not be written" in shown["test_refusal"]
    assert "Use a relative path of ordinary components" in shown["test_refusal"]
    assert frames(shown["TestCase.test_of_unittest"]) == ["test_it.py"]
    assert frames(shown["test_context_manager"]) == ["test_it.py"]
    assert frames(shown["test_users_own_function_within_the_engine"]) == ["test_it.py", "test_it.py"]
    assert frames(shown["test_with_a_cause"]) == ["test_it.py"]
    assert "InvalidInput: The commit does not fit" in shown["test_with_a_cause"]
    by_a_fixture = shown["test_step_that_is_never_reached"]
    assert by_a_fixture.splitlines()[1] == "Never reached, or less often than asked: promote:head-raed."
    assert frames(by_a_fixture) == []
    result.stdout.fnmatch_lines(["ERROR test_it.py::test_step_that_is_never_reached - pytest_gittrix.errors.*"])
    assert frames(shown["test_a_defect_of_the_package"])[-1].endswith("pytest_gittrix/engine/user_session.py")


def test_a_full_trace_shows_every_frame(run: Run) -> None:
    full = run(TESTS, "--gittrix-keep=none", "-k", "refusal", "--full-trace")

    assert any(place.endswith("pytest_gittrix/engine/agents/agent_session.py") for place in frames(failures(full)["test_refusal"]))
