"""What a person can do with a failure under Hypothesis: run the failing example alone, or open a world for each example.

Everything is read from the exception, so that nothing here loads Hypothesis.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

import pytest


def example_lines(failure: BaseException, item: pytest.Item) -> list[str]:
    """The lines of the report's section on a failing test of Hypothesis; none for another failure.

    Args:
        failure: what the test raised.
        item: the test.
    """
    if not getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return []
    fixtures: Collection[str] = getattr(item, "fixturenames", ())
    if type(failure).__name__ == "FailedHealthCheck":
        ours = [name for name in fixtures if name.startswith("gittrix") and name != "gittrix_worlds" and f"{name!r}" in str(failure)]
        return [
            line
            for name in ours
            for line in (
                f"{name} is made once for each test, and Hypothesis runs the test once for each example.",
                "Open a world for each example instead: with gittrix_worlds.open() as world: session = world.start()",
            )
        ]
    name = getattr(item, "originalname", item.name)
    return [f"To run this example alone, put above @given: @example({given})" for given in _examples(failure, name, fixtures)]


def _examples(failure: BaseException, test: str, fixtures: Collection[str]) -> Iterator[str]:
    """The arguments of each failing example as source code, without the fixtures. Hypothesis notes the call at the exception."""
    for error in failure.exceptions if isinstance(failure, BaseExceptionGroup) else [failure]:
        for note in getattr(error, "__notes__", ()):
            before, called, arguments = str(note).partition(f"{test}(")
            call = _call(called + arguments) if called and before.endswith(": ") else None
            if call is not None:
                yield ", ".join(f"{one.arg}={ast.unparse(one.value)}" for one in call.keywords if one.arg not in fixtures)


def _call(source: str) -> ast.Call | None:
    """A call at the beginning of a text; None if it is not source code, as where an argument has no representation in it."""
    for end in ("\n)", ")"):
        found, at, _ = source.partition(end)
        try:
            call = ast.parse(found + at, mode="eval").body
        except SyntaxError:
            continue
        # Values that st.data() draws in the test are no arguments, so an example cannot give them.
        if isinstance(call, ast.Call) and not any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(call)):
            return call
    return None
