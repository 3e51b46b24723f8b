"""Canaries: which expectations are changed, and which are left alone because a right result might pass all the same."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_gittrix.evals.judging.canary import changeable, changed, printed


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("assert f() == 3", "assert f() == 4"),
        ("assert f() == 'ab'", "assert f() == 'ax'"),
        ("assert [1, 2] == f()", "assert [1, 3] == f()"),
        ("assert f() == {}", "assert f() == {'x': 1}"),
        ("assert f() is None", "assert f() is 1"),
        ("with pytest.raises(app.Problem):\n        f()", "with pytest.raises(StopAsyncIteration):\n        f()"),
        ("assert f() == [one()]", "assert f() == [*[one()], 1]"),
        ("assert len(f()) == g()", "assert len(f()) + 1 == g()"),
        ("expected = [1]\n    assert f() == expected", "expected = [2]\n    assert f() == expected"),
        (
            "for one, two in [(1, 2)]:\n        assert f(one) == two",
            "for one, two in [(1, 3)]:\n        assert f(one) == two",
        ),
        ("with open('a') as file:\n        assert f(file) == 3", "with open('a') as file:\n        assert f(file) == 4"),
    ],
)
def test_a_literal_that_a_result_is_compared_with_is_changed(body: str, after: str) -> None:
    source = f"def test_it():\n    {body}\n"

    assert changeable(source) == {"test_it": "test_it"}
    assert changed(source, {"test_it"}, 0) == f"def test_it():\n    {after}"
    assert changed(source, (), 0) == printed(source)


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("assert f() == pytest.approx(2)", "assert f() == pytest.approx(11.0)"),
        ("assert approx([1.5], rel=0.1) == f()", "assert approx([*[1.5], 1], rel=0.1) == f()"),
        ("assert abs(f() - 2.5) < 1", "assert abs(f() - 17.5) < 1"),
        ("assert math.isclose(f(), 2.5, abs_tol=1)", "assert math.isclose(f(), 17.5, abs_tol=1)"),
        ("expected = 2\n    assert f() == approx(expected)", "expected = 11.0\n    assert f() == approx(expected)"),
        ("assert f() == Decimal('1.5')", "assert f() == Decimal('1.6')"),
        ("assert f() == pathlib.Path('ab')", "assert f() == pathlib.Path('ax')"),
        ("assert f() == Point(1, y=2)", "assert f() == Point(2, y=3)"),
        ("assert f() == {'a': g()}", "assert f() == {**{'a': g()}, ...: 1}"),
    ],
)
def test_a_literal_inside_a_call_is_changed_beyond_what_the_call_takes_for_equal(body: str, after: str) -> None:
    source = f"def test_it():\n    {body}\n"

    assert changed(source, {"test_it"}, 0) == f"def test_it():\n    {after}"


@pytest.mark.parametrize("number", [0, -3, 2, 1e7, -1e7, 1e-9])
@pytest.mark.parametrize(
    "compared",
    [
        "f() == pytest.approx({})",
        "f() == pytest.approx({}, rel=0.1, abs=7)",
        "math.isclose(f(), {}, rel_tol=0.1)",
        "abs(f() - {}) < 7",
        "f() + 1 - {} == 1",
    ],
)
def test_a_right_result_never_meets_a_changed_number_that_it_must_be_near_to(compared: str, number: float) -> None:
    source = f"def test_it():\n    assert {compared.format(number)}\n"
    for seed in range(4):
        names: dict[str, Any] = {"f": lambda: number, "pytest": pytest, "math": math}
        exec(changed(source, {"test_it"}, seed), names)
        with pytest.raises(AssertionError):
            names["test_it"]()


@pytest.mark.parametrize(
    "body",
    [
        "assert f() == g()",
        "assert all(one == 3 for one in f())",
        "expected = [1]\n    assert f(expected) == expected",
        "if windows:\n        return\n    assert f() == 3",
        "for one in [1, 2]:\n        if one in f():\n            continue\n        assert f(one) == 3",
        "with suppress(AssertionError):\n        assert f() == 3",
        "if windows:\n        assert f() == 3",
        "return\n    assert f() == 3",
        "for one in f():\n        assert one == 3",
        "assert sign(3) == sign(5)",
        "assert f() == approx(3, rel=0.5)",
        "assert f() == approx(3, nan_ok=True)",
        "assert f() == approx(3, abs=wide)",
        "assert f() == approx(g())",
    ],
)
def test_an_expectation_that_a_right_result_might_not_need_is_left_alone(body: str) -> None:
    assert not changeable(f"def test_it():\n    {body}\n")


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ("assertEqual(f(), 3)", "assertEqual(f(), 4)"),
        ("assertEqual('ab', f(), 'message')", "assertEqual('ax', f(), 'message')"),
        ("assertListEqual(f(), [])", "assertListEqual(f(), [1])"),
        ("assertCountEqual(f(), (1,))", "assertCountEqual(f(), (2,))"),
        ("assertTrue(f() == 3)", "assertTrue(f() == 4)"),
        ("assertRaises(Problem, f)", "assertRaises(StopAsyncIteration, f)"),
        ("assertRaisesRegex(Problem, 'no', f)", "assertRaisesRegex(StopAsyncIteration, 'no', f)"),
        ("assertTrue(f())", "assertFalse(f())"),
        ("assertIn(3, f())", "assertNotIn(3, f())"),
        ("assertIsNone(f())", "assertIsNotNone(f())"),
        ("assertLess(f(), 3)", "assertGreaterEqual(f(), 3)"),
        ("assertEqual(f(), g())", None),
        ("assertAlmostEqual(f(), 3, delta=5)", "assertAlmostEqual(f(), 36.0, delta=5)"),
        ("assertAlmostEqual(f(), 3, places=-2)", None),
        ("check(f(), 3)", None),
    ],
)
def test_an_assertion_of_unittest_expects_another_value_or_the_opposite(body: str, after: str | None) -> None:
    source = "class TestIt(TestCase):\n\n    def test_it(self):\n        with self.subTest():\n            self.{}"
    name = "TestIt::test_it"

    assert changeable(source.format(body)) == ({name: name} if after else {})
    assert changed(source.format(body), {name}, 0) == source.format(after or body)


def test_only_a_test_without_an_equality_expects_the_opposite() -> None:
    source = "def test_it():\n    assert f()\n    assert f() == 3"

    assert {changed(source, {"test_it"}, seed) for seed in range(5)} == {source.replace("3", "4")}
    assert changed(source.replace("== 3", "< 3"), {"test_it"}, 0) in (
        "def test_it():\n    assert not f()\n    assert f() < 3",
        "def test_it():\n    assert f()\n    assert not f() < 3",
    )


def test_an_object_that_contains_all_meets_a_test_that_expects_a_member_and_not_its_opposite() -> None:
    class All:
        def __contains__(self, _other: object) -> bool:
            return True

    source = "def test_it():\n    assert 3 in f()"
    ends = []
    for text in (source, changed(source, {"test_it"}, 0)):
        names: dict[str, Any] = {"f": All}
        exec(text, names)
        try:
            names["test_it"]()
        except AssertionError:
            ends.append("fails")
        else:
            ends.append("passes")

    assert ends == ["passes", "fails"]


def test_a_test_that_a_class_inherits_is_changed_with_the_one_it_is() -> None:
    base = "class Base:\n\n    def test_it(self):\n        assert f() == 3\n\n"
    source = base + "class TestOne(Base):\n    pass\n\nclass TestTwo(Base):\n\n    def test_it(self):\n        assert f() == g()"

    assert changeable(source) == {"Base::test_it": "Base::test_it", "TestOne::test_it": "Base::test_it"}
    assert changed(source, {"TestOne::test_it"}, 0) == source.replace("3", "4")


def test_a_parameter_that_is_only_compared_has_other_values_where_they_are_written() -> None:
    rows = "@pytest.mark.parametrize('a, b', [(1, 2), pytest.param(3, 4)])\ndef test_it(a, b):\n    assert f(a) == b"

    assert changed(rows, {"test_it"}, 0) == rows.replace("2", "3").replace("4", "5")
    assert not changeable(rows.replace("4", "g()"))
    assert not changeable(rows.replace("f(a)", "f(b)"))
    assert not changeable(rows.replace(")\ndef", ", indirect=True)\ndef"))
    assert changed("class TestIt:\n    def test_it(self):\n        assert f() == 1", {"TestIt::test_it"}, 0).endswith("== 2")
    assert printed("def broken(") == "def broken("
