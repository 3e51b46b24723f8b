"""The tables of the reference hold what the code holds: each event, point, argument, option, fixture, command and page, and no other."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gittrix import plugin
from pytest_gittrix.cli.verbs import command_line
from pytest_gittrix.engine.operations.recorder import PUBLIC_NAMES
from pytest_gittrix.plugin import config
from pytest_gittrix.plugin.evals.outcome import EvalSample
from pytest_gittrix.plugin.evals.plan import ARGUMENTS
from pytest_gittrix.record.eventlog.events import LIVE, VOCABULARY

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of every table row below a heading, down to the next heading of its level or above."""
    level = heading.split()[0]
    below = re.split(rf"^#{{1,{len(level)}}} ", text.partition(f"\n{heading}\n")[2], flags=re.MULTILINE)[0]
    assert below, f"there is no {heading!r}"
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in below.splitlines() if line.startswith("| `")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def anchors(text: str) -> set[str]:
    """The fragments that headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def verbs(root: argparse.ArgumentParser, prefix: str = "gittrix") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, with its parser; each once, whatever its aliases."""
    below = [action for action in root._actions if isinstance(action, argparse._SubParsersAction)]
    for choices in (action.choices for action in below):
        for name, command in {id(command): (name, command) for name, command in reversed(choices.items())}.values():
            yield from verbs(command, f"{prefix} {name}")
    if not below:
        yield prefix, root


def test_every_event_is_in_the_reference_with_its_keys() -> None:
    told = {}
    for name, _, keys in (row for row in rows(page("reference/store.md"), "## Events") if len(row) == 3):
        optional = re.findall(r"\[`(\w+)`\]", keys)
        told[names(name)[0]] = (set(names(keys)) - set(optional), set(optional))

    assert told == {name: (set(kind.required), set(kind.optional)) for name, kind in (VOCABULARY | LIVE).items()}


def test_the_names_that_listeners_may_use_are_in_the_reference() -> None:
    told = [(*names(row[0]), *names(row[1])) for row in rows(page("reference/store.md"), "## Events") if len(row) == 2]

    assert told == [(public, stored) for stored, public in PUBLIC_NAMES.items()]


def test_every_point_of_the_engine_is_in_the_reference() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pytest_gittrix").rglob("*.py"))
    passed = {re.sub(r"\{.*", "<error>", point) for point in re.findall(r'points\.reached\(f?"([^"]+)"', source)}
    table = re.findall(r"^\| [a-z, ]+ \| (`\w+:.*) \|$", page("reference/fixtures.md"), re.MULTILINE)

    assert {point for line in table for point in names(line)} == passed


def test_every_argument_of_the_marker_is_in_the_reference() -> None:
    told = [names(row[0])[0] for row in rows(page("reference/fixtures.md"), "## The marker")]

    assert sorted(told) == sorted(inspect.signature(config.gittrix).parameters)


def test_every_argument_of_the_marker_for_evals_is_in_the_reference() -> None:
    told = [names(row[0]) for row in rows(page("reference/fixtures.md"), "## Evals")]

    assert [name for [name] in told[: len(ARGUMENTS)]] == [*ARGUMENTS]


def test_every_part_of_a_sample_of_evals_is_in_the_reference() -> None:
    told = {name.removesuffix("()") for row in rows(page("reference/fixtures.md"), "## Evals")[len(ARGUMENTS) :] for name in names(row[0])}
    parts = {name for name in vars(EvalSample) if not name.startswith("_")}

    assert told == parts | {"id", "epoch", "key", "run"}


def test_every_option_is_in_the_reference_under_its_three_names() -> None:
    told = [tuple(names("".join(row[:3]))) for row in rows(page("reference/fixtures.md"), "## Options")]

    assert told == [(one.flag, one.variable, one.ini) for one in config.OPTIONS] + [("--gittrix-show-config",)]


@pytest.mark.parametrize("where", ["README.md", "docs/reference/fixtures.md"])
def test_every_fixture_is_listed(where: str) -> None:
    text = (ROOT / where).read_text(encoding="utf-8")
    fixtures = {name for name in vars(plugin) if re.fullmatch(r"gittrix(_\w+)?", name)}

    assert set(re.findall(r"^\| `(gittrix(?:_\w+)?)`(?: \(session scope\))? \|", text, re.MULTILINE)) >= fixtures


def test_every_command_and_flag_is_in_the_reference() -> None:
    told = page("reference/cli.md")
    commands = dict(verbs(command_line()))
    flags = {flag for command in commands.values() for action in command._actions for flag in action.option_strings} - {"-h", "--help"}

    assert [name for name in commands if f"| `{name}" not in told] == []
    assert [flag for flag in flags if not re.search(rf"`{flag}[ `]", told)] == []


@pytest.mark.parametrize("where", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_every_page_can_be_found(where: Path) -> None:
    name = where.relative_to(DOCS).as_posix()

    assert re.search(rf": {re.escape(name)}$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    lists = {"decisions": "decisions/index.md"}.get(name.partition("/")[0], "index.md")
    assert name in ("index.md", lists) or f"({where.relative_to((DOCS / lists).parent).as_posix()})" in page(lists)


@pytest.mark.parametrize("where", [ROOT / "README.md", *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(where: Path) -> None:
    text = where.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        target, _, fragment = link.partition("#")
        file = (where.parent / target).resolve() if target else where
        assert file.exists(), link
        assert not fragment or fragment in anchors(file.read_text(encoding="utf-8")), link
