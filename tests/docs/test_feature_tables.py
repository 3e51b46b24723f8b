"""The pages for people who know another system show each of its features by tests that there are, and every test of the walks is shown."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "docs/explanation" / name
    for name in ("you-know-gas-town.md", "you-know-pixir.md", "you-know-botminter.md", "you-know-agent-orchestrator.md")
]
WALKS = sorted((ROOT / "tests/story").glob("test_walkthrough_*.py"))

NAMED = re.compile(r"`(test_\w+)::(test_\w+)`")


def rows(page: Path) -> list[list[str]]:
    """The cells of each row of the tables of features, below their headings."""
    features = page.read_text(encoding="utf-8").partition("\n## What each thing is called\n")[2]
    lines = [line for line in features.splitlines() if line.startswith("| ") and not line.startswith("| document |")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def named(page: Path) -> list[tuple[str, str]]:
    """Each module and test that a page names."""
    return NAMED.findall(page.read_text(encoding="utf-8"))


def names_in(path: Path) -> list[str]:
    """The names of the tests of a module, those of its classes included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_feature_says_what_it_is_called_here_and_which_test_shows_it(page: Path) -> None:
    table = rows(page)

    assert len(table) > 30
    for row in table:
        feature, here, shown = row
        assert feature, row
        assert here, row
        assert NAMED.sub("", shown).strip(", ") == "", row
        assert NAMED.search(shown), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_is_named_exists(page: Path) -> None:
    there = {(path.stem, test) for path in WALKS for test in names_in(path)}

    assert [name for name in named(page) if name not in there] == []


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.stem)
def test_every_test_of_a_walk_shows_a_feature(walk: Path) -> None:
    shown = {name for page in PAGES for name in named(page)}

    assert [test for test in names_in(walk) if (walk.stem, test) not in shown] == []


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.stem)
def test_a_name_means_one_test(walk: Path) -> None:
    assert [test for test, count in Counter(names_in(walk)).items() if count > 1] == []
