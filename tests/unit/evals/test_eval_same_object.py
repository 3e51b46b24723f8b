"""Whether two values are one object, and what a change of one does to the other: copies on both sides of a pipe do not tell."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from support.hidden_tests import verdict_on

from pytest_gittrix.evals.judging.same_object import tells_objects_apart


class Shared(NamedTuple):
    """Right and wrong code, and the body of a test that plain pytest passes with the one, and fails with the other."""

    right: str
    wrong: str
    test: str


BOX = "class Box:\n    def __init__(self, it): self.it = {}\n    def get(self): return {}\n"
CASES = {
    "copy of a list": Shared(
        "def copy(it): return [*it]\n",
        "def copy(it): return it\n",
        "it = [1]\n    other = app.copy(it)\n    assert other == it and other is not it",
    ),
    "copy of an object": Shared(
        "class A:\n    def copy(self): return A()\n",
        "class A:\n    def copy(self): return self\n",
        "one = app.A()\n    assert one.copy() is not one",
    ),
    "shared default": Shared(
        "def make(): return []\n", "def make(it=[]): return it\n", "app.make().append(1)\n    assert app.make() == []"
    ),
    "argument that is kept": Shared(
        BOX.format("[*it]", "self.it"),
        BOX.format("it", "self.it"),
        "it = [1]\n    box = app.Box(it)\n    it.append(2)\n    assert box.get() == [1]",
    ),
    "answer that is kept": Shared(
        BOX.format("it", "[*self.it]"),
        BOX.format("it", "self.it"),
        "box = app.Box([1])\n    box.get().append(2)\n    assert box.get() == [1]",
    ),
    "item of an answer": Shared(
        "def get(): return {'a': [1]}\n",
        "D = {'a': [1]}\ndef get(): return D\n",
        "inner = app.get()['a']\n    inner.append(2)\n    assert app.get() == {'a': [1]}",
    ),
    "kind": Shared(
        "def get(): return dict(a=1)\n",
        "import collections\ndef get(): return collections.OrderedDict(a=1)\n",
        "import collections\n    got = app.get()\n    assert not isinstance(got, collections.OrderedDict) and got['a'] == 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_plain_pytest_tells_apart_is_told_apart(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = []
    for number, code in enumerate((case.right, case.wrong)):
        root = tmp_path / str(number)
        root.mkdir()
        found.append(verdict_on(code, root, "off", f"import app\n\n\ndef test_it():\n    {case.test}\n")[0])

    assert [one.wrong for one in found] == ["", "status 1"]


def test_copies_that_a_test_leaves_alone_cross(tmp_path: Path) -> None:
    code = "def more(it): return [*it, {len(it)}]\n"
    tests = (
        "import app\n\n\ndef test_it():\n    it = []\n    for _ in range(1200): it = app.more(it[:2])\n    assert it == [{0}, {1}, {2}]\n"
    )
    verdict, _ = verdict_on(code, tmp_path, "off", tests)

    assert (verdict.wrong, dict(verdict.judges)) == ("", {"test_it": "subject"})


@pytest.mark.parametrize(
    ("asks", "of_all"),
    [
        ("assert a is b", False),
        ("assert a is not b.c", False),
        ("self.assertIs(a, b)", False),
        ("assert id(a) == id(b)", False),
        ("assert a is None and type(b) is int and 3 is not c", None),
        ("self.assertIs(a, True)", None),
    ],
)
def test_which_tests_ask_for_the_same_object(asks: str, of_all: bool | None) -> None:
    plain = "def test_two():\n    assert 1\n\n\n"
    names = ["TestIt::test_one", "test_two"]

    found = tells_objects_apart(f"{plain}class TestIt:\n    def test_one(self):\n        {asks}\n", names)
    assert found == (set() if of_all is None else {"TestIt::test_one"})
    assert tells_objects_apart(f"{plain}def helper(self):\n    {asks}\n", names) == (set() if of_all is None else {*names})


def test_a_function_that_the_test_file_imports_is_judged_from_outside(tmp_path: Path) -> None:
    tests = "from app import get\n\n\ndef test_it():\n    assert get() == 1\n"
    verdict, _ = verdict_on("def get(): return 1\n", tmp_path, "off", tests)

    assert (verdict.wrong, dict(verdict.judges)) == ("", {"test_it": "subject"})
