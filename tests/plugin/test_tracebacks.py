"""A failure is shown up to the user's line, without the frames of the package."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from pytest_gittrix import World
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.plugin import tracebacks
from pytest_gittrix.plugin.tracebacks import hide_frames, hide_lines

Run = Callable[..., pytest.RunResult]

TESTS = """
    import subprocess
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

    def test_own_error_from_a_refusal(gittrix_session):
        try:
            gittrix_session.write("../x", "agent")
        except Exception as refusal:
            raise RuntimeError("mine") from refusal

    def test_own_error_while_a_refusal_is_handled(gittrix_session):
        try:
            gittrix_session.write("../x", "agent")
        except Exception:
            raise RuntimeError("mine")

    def test_library_call_of_the_users_function(gittrix_session, gittrix_race):
        gittrix_session.write("app.py", "v2")
        gittrix_race.before("promote:head-read", lambda: subprocess.run(["false"], check=True))
        gittrix_session.promote()

    def test_group(gittrix_session):
        refused = None
        try:
            gittrix_session.write("../x", "agent")
        except Exception as refusal:
            refused = refusal
        raise ExceptionGroup("one", [refused])

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

    result.assert_outcomes(failed=10, passed=1, errors=1, skipped=1)
    shown = failures(result)
    assert frames(shown["test_refusal"]) == ["test_it.py"]
    assert "WriteRejected: path '../x' is refused" in shown["test_refusal"]
    assert "Use a relative path of ordinary components" in shown["test_refusal"]
    assert frames(shown["TestCase.test_of_unittest"]) == ["test_it.py"]
    assert frames(shown["test_context_manager"]) == ["test_it.py"]
    assert frames(shown["test_users_own_function_within_the_engine"]) == ["test_it.py", "test_it.py"]
    for name in ("test_own_error_from_a_refusal", "test_own_error_while_a_refusal_is_handled"):
        assert frames(shown[name]) == ["test_it.py", "test_it.py"], name
    by_a_library = frames(shown["test_library_call_of_the_users_function"])
    assert [*map(os.path.basename, by_a_library)] == ["test_it.py", "test_it.py", "subprocess.py"]
    assert "agent_session.py" not in shown["test_group"]
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


def test_a_module_of_the_user_may_have_the_name_of_one_of_the_standard_library() -> None:
    failure = _raised_by("def helper(session):\n    session.write('../x', 'agent')\n", name="graphlib", call="helper")

    assert hide_frames(failure) is False
    assert [name for name, hidden in _marked(failure) if not hidden] == ["_raised_by", "helper"]
    assert any(hidden for _, hidden in _marked(failure))


def test_no_variable_is_left_in_a_module() -> None:
    """The frame of a module's body has the module's globals as its variables: a mark in them would hide its functions for good."""
    failure = _raised_by("raise InvalidInput('at import')", name="pytest_gittrix.imagined", InvalidInput=InvalidInput)

    hide_frames(failure)

    trace = failure.__traceback__
    assert trace is not None
    assert trace.tb_next is not None
    assert trace.tb_next.tb_frame.f_code.co_name == "<module>"
    assert "__tracebackhide__" not in trace.tb_next.tb_frame.f_globals


OURS = os.path.join(os.path.dirname(os.path.dirname(tracebacks.__file__)), "git", "tree.py")
HEADING = "    These lines were always and only run by failing test cases:"


@pytest.mark.parametrize(
    ("notes", "shown"),
    [
        (["case", "Explanation:", HEADING, f"        {OURS}:7", "        /project/app.py:5", "mine"], ["        /project/app.py:5"]),
        (["case", "Explanation:", HEADING, f"        {OURS}:7", "        (and 3 more with settings.verbosity >= verbose)", "mine"], []),
    ],
    ids=["also of the user", "only of the package"],
)
def test_an_explanation_of_hypothesis_names_no_line_of_the_package(notes: list[str], shown: list[str]) -> None:
    failure = ValueError()
    failure.__notes__ = [*notes]

    hide_lines(failure)

    assert failure.__notes__ == ["case", *(["Explanation:", HEADING, *shown] if shown else []), "mine"]


def test_the_explanation_of_a_failing_property_is_about_the_users_code(run: Run) -> None:
    result = run(
        """
        from hypothesis import given, settings, strategies as st

        @settings(max_examples=30, database=None, deadline=None, derandomize=True)
        @given(value=st.integers(0, 20))
        def test_property(gittrix_worlds, value):
            with gittrix_worlds.open() as world:
                session = world.start("it")
                session.write("app.py", str(value))  # so that few lines of the engine are new to the next write
                if value > 5:
                    session.write("b.py", "x")
                    raise ValueError(value)
        """
    )

    result.assert_outcomes(failed=1)
    places = re.findall(r"^E +(/\S+):\d+$", result.stdout.str(), re.MULTILINE)
    assert places
    assert all("pytest_gittrix/" not in place for place in places)


def _raised_by(source: str, *, name: str, call: str = "", **names: object) -> BaseException:
    """What the code of a module of that name raises when it is executed, or when its function ``call`` is called with a session."""
    module = {"__name__": name, **names}
    try:
        exec(compile(source, f"{name}.py", "exec"), module)
        with World.open() as world:
            module[call](world.start())  # type: ignore[operator]
    except GittrixError as failure:
        return failure
    raise AssertionError("nothing was raised")


def _marked(failure: BaseException) -> list[tuple[str, bool]]:
    """The functions of a traceback, each with whether it is hidden."""
    found, trace = [], failure.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_name, "__tracebackhide__" in trace.tb_frame.f_locals))
        trace = trace.tb_next
    return found
