"""Canaries: which expectations are changed, and which are left alone because a right result might pass all the same."""

from __future__ import annotations

import pytest

from pytest_gittrix.evals.judging.canary import changeable, changed, printed


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("assert f() == 3", "assert f() == 4"),
        ("assert f() == 'ab'", "assert f() == 'ax'"),
        ("assert [1, 2] == f()", "assert [1, 2, 2] == f()"),
        ("assert f() == {}", "assert f() == {'x': 1}"),
        ("assert f() is None", "assert f() is 1"),
        ("with pytest.raises(ValueError):\n        f()", "with pytest.raises(StopAsyncIteration):\n        f()"),
        ("with open('a') as file:\n        assert f(file) == 3", "with open('a') as file:\n        assert f(file) == 4"),
    ],
)
def test_a_literal_that_a_result_is_compared_with_is_changed(body: str, after: str) -> None:
    source = f"def test_it():\n    {body}\n"

    assert changeable(source) == {"test_it"}
    assert changed(source, {"test_it"}, 0) == f"def test_it():\n    {after}"
    assert changed(source, (), 0) == printed(source)


@pytest.mark.parametrize(
    "body",
    [
        "assert f()",
        "assert f() != 3",
        "assert 3 in f()",
        "assert f() == g()",
        "if windows:\n        assert f() == 3",
        "return\n    assert f() == 3",
        "for one in f():\n        assert one == 3",
    ],
)
def test_an_expectation_that_a_right_result_might_not_need_is_left_alone(body: str) -> None:
    assert not changeable(f"def test_it():\n    {body}\n")


def test_values_of_parameters_are_changed_where_they_are_only_compared() -> None:
    rows = "@pytest.mark.parametrize('a, b', [(1, 2), (3, 4)])\ndef test_it(a, b):\n    assert f(a) == b"

    assert changed(rows, {"test_it"}, 0) == rows.replace("(1, 2), (3, 4)", "(1, 3), (3, 5)")
    assert not changeable(rows.replace("f(a)", "f(b)"))
    assert changed("class TestIt:\n    def test_it(self):\n        assert f() == 1", {"TestIt::test_it"}, 0).endswith("== 2")
    assert printed("def broken(") == "def broken("
