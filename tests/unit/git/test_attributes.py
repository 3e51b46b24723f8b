"""Attributes, each judged by what ``git check-attr`` says of the same path."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.git import GitRepo, put

from pytest_gittrix.git.worktree.attributes import Attributes, Value

PATHS = ("a", "b.txt", "d/a", "d/e/b.txt", "d/e/f/a", "A", "é", "x y", "d/[a]", 'q"t', os.fsdecode(b"\xff"), "d/*", "#a")
Rules = Mapping[str, bytes]
INFO = "info"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    """A work tree in which any path can be asked for."""
    return GitRepo.make(tmp_path_factory.mktemp("attributes") / "judge")


def by_git(judge: GitRepo, rules: Rules) -> dict[str, dict[str, Value]]:
    """The attributes that git gives to each path, without those that are unspecified."""
    for old in judge.path.rglob(".gitattributes"):
        old.unlink()
    put(judge.git_dir / "info", {"attributes": rules.get(INFO, b"")})
    put(judge.path, {f"{at}/.gitattributes" if at else ".gitattributes": data for at, data in rules.items() if at != INFO})
    answer = judge.git("check-attr", "-a", "-z", "--stdin", stdin=b"\0".join(map(os.fsencode, PATHS)) + b"\0").split(b"\0")
    found: dict[str, dict[str, Value]] = {path: {} for path in PATHS}
    for path, name, value in zip(answer[0::3], answer[1::3], answer[2::3], strict=False):
        special: Mapping[bytes, Value] = {b"set": True, b"unset": False}
        found[os.fsdecode(path)][name.decode()] = special.get(value, os.fsdecode(value))
    return found


def by_us(rules: Rules) -> dict[str, dict[str, Value]]:
    """What these attributes are here."""
    attributes = Attributes(lambda directory: rules.get(directory, b""), rules.get(INFO, b""))
    return {path: {name: value for name, value in attributes.of(path).items() if value is not None} for path in PATHS}


@pytest.mark.parametrize(
    "rules",
    [
        {"": b"* text\n*.txt -text eol=crlf\n"},
        {"": b"a text\n", "d": b"a !text x=1\n", "d/e": b"*.txt binary\n"},
        {"": b"[attr]mine x -y z=3\na mine\nb.txt -mine\n"},
        {"": b"[attr]mine x\n[attr]mine y\na mine\n"},
        {"": b"a mine\n", INFO: b"[attr]mine x\n"},
        {"d": b"[attr]mine x\na mine\n"},
        {"": b"[attr]binary -text\na binary\n"},
        {"": b"/a x\nd/a y\n/d/e/* z\n**/a w\nd/** v\nd/ u\n"},
        {"": b'"x y" x\n"q\\"t" y\n"\\303\\251" z\n"a" w\n"a x\n'},
        {"": b"!a x\n#a x\n\\#a y\n"},
        {"": b"\xef\xbb\xbfa x\r\n  b.txt\ty \r\n\n"},
        {"": b"a x=\nb.txt x= y\n"},
        {"": b"a x -bad$ y\nb.txt --x\nA -\nd/a !\n"},
        {"": b"a x\0y\n"},
        {"": b"a " + b"x" * 2046 + b"\n" + b"b.txt " + b"y" * 2041 + b"\n"},
        {"": b"d/[[]a] x\n[a-b] y\n*\\*\n? z\n"},
        {"": b"* a=1 a=2 -a\n", INFO: b"a a=3\n"},
        {"": b"* x\na !x\n", "d": b"a x=2\n"},
    ],
    ids=str,
)
def test_a_path_has_the_attributes_that_git_gives_it(judge: GitRepo, rules: Rules) -> None:
    assert by_us(rules) == by_git(judge, rules)


WORDS = st.sampled_from(
    [
        "a",
        "*",
        "*.txt",
        "d/a",
        "/a",
        "d/**",
        "**/a",
        '"x y"',
        "[attr]m",
        "[attr]binary",
        "!a",
        "#",
        "\\",
        "[",
        "é",
        "d/",
        "x",
        "-x",
        "!x",
        "x=1",
        "m",
        "-m",
        "binary",
        "text",
        "text=auto",
        "eol=crlf",
        "-text",
        "!eol",
        "-",
        "x=",
        "=",
        " ",
        "\t",
        "\r",
    ]
)
LINES = st.lists(st.lists(WORDS, min_size=1, max_size=5).map(" ".join), max_size=5).map(lambda lines: "\n".join(lines).encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=st.dictionaries(st.sampled_from(["", "d", "d/e", INFO]), LINES, max_size=4))
@example(rules={"": b"[attr]m x\na m -m"})
def test_any_lines_give_what_they_give_in_git(judge: GitRepo, rules: Rules) -> None:
    assert by_us(rules) == by_git(judge, rules)


def test_an_attribute_that_is_taken_back_is_unspecified() -> None:
    assert Attributes(lambda _: b"* text\na !text\n").of("a") == {"text": None}
