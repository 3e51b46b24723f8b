"""Ignore rules, each judged by what ``git ls-files`` lists of the same untracked files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.git import GitRepo, put

from pytest_gittrix.git.ignore import Ignore

NAMES = ("a", "b", "c.log", "A", "é", os.fsdecode(b"\xff"), " x", "x ", "#a", "!a", "-y", "z\n", "[a]", "a\\b", "*", "tab\t")
DEEP = tuple(f"{above}/{name}" for above in ("d", "d/a", "d/e/f") for name in NAMES[:9])
PATHS = NAMES + DEEP
Rules = Mapping[str, bytes]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    """A work tree with every path in it, none of them tracked."""
    repo = GitRepo.make(tmp_path_factory.mktemp("ignore") / "judge")
    put(repo.path, dict.fromkeys((path for path in PATHS if path != "d/a"), "x"))
    return repo


def by_git(judge: GitRepo, rules: Rules) -> list[str]:
    """The untracked files that git sees under these rules."""
    for old in judge.path.rglob(".gitignore"):
        old.unlink()
    put(judge.path, {f"{at}/.gitignore" if at else ".gitignore": data for at, data in rules.items()})
    listed = judge.git("ls-files", "-z", "--others", "--exclude-per-directory=.gitignore").split(b"\0")
    return sorted(path for path in map(os.fsdecode, listed) if path and not path.endswith(".gitignore"))


def by_us(rules: Rules, paths: Iterable[str]) -> list[str]:
    """The files that these rules leave in."""
    ignore = Ignore(rules)
    return sorted(path for path in paths if not ignore.ignored(path))


def present(judge: GitRepo) -> list[str]:
    """Every file there is."""
    return by_git(judge, {})


@pytest.mark.parametrize(
    "root",
    [
        b"a\n",
        b"/a\n",
        b"a/\n",
        b"*.log\n",
        b"d/*\n!d/a\n",
        b"*\n!*/\n!*.log\n",
        b"d/**/a\n",
        b"**/e\n",
        b"e/**\n",
        b"**\n!d\n",
        b"?\n",
        b"??\n",
        b"[ab]\n",
        b"[!ab]\n",
        b"[^a]\n",
        b"[a-c].log\n",
        b"[[:upper:]]\n",
        b"\\#a\n\\!a\n",
        b"#a\n!a\n",
        b" x\nx \n",
        b"x\\ \n",
        b"tab\t\n",
        b"\\*\n",
        b"a\\\\b\n",
        b"a\r\nb\r\n",
        b"\xef\xbb\xbfa\n",
        "é\n".encode(),
        b"\xff\n",
        b"c.log",
        b"\n\n  \na\n",
        b"a\x0bb\n\x0c\na\x1cb\n",
    ],
)
def test_a_rule_leaves_out_what_git_leaves_out(judge: GitRepo, root: bytes) -> None:
    paths = present(judge)

    assert by_us({"": root}, paths) == by_git(judge, {"": root})


@pytest.mark.parametrize(
    "broken", [b"//\n", b"!\n", b"\\\n", b"[\n", b"[a\n", b"/\n", b"a//b\n", b"!/\n", b"[z-a]\n", b"a\\\n", b"***\n", b"\0\n"]
)
def test_a_broken_rule_does_what_it_does_in_git_and_no_harm(judge: GitRepo, broken: bytes) -> None:
    paths = present(judge)
    rules = {"": b"b\n" + broken + b"c.log\n"}

    assert by_us(rules, paths) == by_git(judge, rules)


def test_the_nearest_file_with_an_opinion_decides(judge: GitRepo) -> None:
    rules = {"": b"a\n*.log\n", "d": b"!a\n", "d/e/f": b"!c.log\n/b\n"}
    paths = present(judge)

    left = by_us(rules, paths)

    assert left == by_git(judge, rules)
    assert "d/e/f/c.log" in left
    assert "d/e/f/b" not in left


def test_without_rules_nothing_is_ignored() -> None:
    assert not Ignore({}).ignored("a/b", directory=True)


PIECES = st.sampled_from(
    ["a", "b", "d", "e", "*", "**", "?", "/", "!", "#", " ", "\\", "[ab]", "[!a]", "[", "]", "-", ".log", "c", "é", "\t", "\r", "x"]
)
LINES = st.lists(st.lists(PIECES, max_size=5).map("".join), max_size=4).map(lambda lines: "".join(f"{line}\n" for line in lines).encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=st.dictionaries(st.sampled_from(["", "d", "d/e", "d/a"]), LINES, max_size=3))
@example(rules={"": b"d/**\n!d/a/\n", "d/a": b"*\n!b\n"})
def test_any_rules_mean_what_they_mean_to_git(judge: GitRepo, rules: Rules) -> None:
    paths = present(judge)

    assert by_us(rules, paths) == by_git(judge, rules)


BOMBS = {
    "stars in a name": (b"*a" * 30 + b"*b", "a" * 200),
    "stars in a path": (b"/" + b"*a" * 30 + b"*b", "a" * 200),
    "directories": (b"/**/a" * 30 + b"/b", "a/" * 200 + "a"),
    "stars below directories": (b"**/" + b"*a" * 30 + b"*b", "aa/" * 100 + "a" * 200),
    "any directories": (b"**\\/a" * 30 + b"**\\/b", "a/" * 200 + "a"),
    "sets": (b"*[a-z]" * 30 + b"*0", "a" * 200),
    "spaces": (b"x" + b" " * 200_000 + b"y", "x"),
}
MATCH = """
import ast, sys
from pytest_gittrix.git.ignore import Ignore
line, path = ast.literal_eval(open(sys.argv[1]).read())
print(Ignore({"": line}).ignored(path), Ignore({"": line}).ignored(path[:-1] + "b"))
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_line_that_is_made_to_take_long_takes_a_moment(name: str, tmp_path: Path) -> None:
    line, path = BOMBS[name]
    (tmp_path / "match.py").write_text(MATCH)
    (tmp_path / "bomb").write_text(repr((line, path)))

    # Tried every way it would take longer than anybody waits.
    done = subprocess.run(
        [sys.executable, tmp_path / "match.py", tmp_path / "bomb"], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split() == ["False", str(name not in ("sets", "spaces"))]


WILD = st.lists(st.sampled_from([b"a", b"b", b"*", b"**", b"?", b"/", b"**/", b"/**", b"[ab]", b"[!a]"]), min_size=1, max_size=8).map(
    b"".join
)


@given(lines=st.lists(WILD, min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wildcards_after_one_another_match_what_they_match_in_git(forest: GitRepo, lines: list[bytes]) -> None:
    rules = {"": b"\n".join(lines)}

    assert by_us(rules, by_git(forest, {})) == by_git(forest, rules)


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    """A work tree with many untracked files whose names are alike."""
    repo = GitRepo.make(tmp_path_factory.mktemp("ignore") / "forest")
    directories = ("", "a/", "b/", "ab/", "a/b/", "a/a/b/", "b/ab/a/")
    put(repo.path, {f"{above}{name}": "x" for above in directories for name in ("ba", "bb", "aab", "bab", "abab", "abba")})
    return repo
