"""The tables of the reference hold what the code holds: each event, point, argument, option, fixture, command and page, and no other."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gittrix import more_fixtures, plugin
from pytest_gittrix.cli.verbs import ALL, command_line
from pytest_gittrix.commands.declaration import Sections
from pytest_gittrix.commands.verbs.catalogue import SESSION
from pytest_gittrix.engine.operations.recorder import PUBLIC_NAMES
from pytest_gittrix.plugin import config, marker
from pytest_gittrix.plugin.evals.outcome import EvalSample
from pytest_gittrix.plugin.evals.plan import ARGUMENTS
from pytest_gittrix.record.eventlog.events import LIVE, VOCABULARY
from tests.quality import compatibility

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FIXTURES = {path.name: path.read_text(encoding="utf-8") for path in sorted((DOCS / "reference").glob("fixtures*.md"))}
"""The pages of the plugin's fixtures: the core, and those for special purposes."""


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
    documented = {}
    for name, _, keys in (row for row in rows(page("reference/store.md"), "## Events") if len(row) == 3):
        optional = re.findall(r"\[`(\w+)`\]", keys)
        documented[names(name)[0]] = (set(names(keys)) - set(optional), set(optional))

    assert documented == {name: (set(kind.required), set(kind.optional)) for name, kind in (VOCABULARY | LIVE).items()}


def test_the_names_that_listeners_may_use_are_in_the_reference() -> None:
    documented = [(*names(row[0]), *names(row[1])) for row in rows(page("reference/store.md"), "## Events") if len(row) == 2]

    assert documented == [(public, stored) for stored, public in PUBLIC_NAMES.items()]


def test_every_point_of_the_engine_is_in_the_reference() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pytest_gittrix").rglob("*.py"))
    passed = {re.sub(r"\{.*", "<error>", point) for point in re.findall(r'points\.reached\(f?"([^"]+)"', source)}
    table = [line for text in FIXTURES.values() for line in re.findall(r"^\| [a-z, ]+ \| (`\w+:.*) \|$", text, re.MULTILINE)]

    assert {point for line in table for point in names(line)} == passed


def test_every_argument_of_the_marker_is_in_the_reference() -> None:
    documented = [names(row[0])[0] for row in rows(page("reference/fixtures.md"), "## The marker")]

    assert sorted(documented) == sorted(inspect.signature(marker.gittrix).parameters)


def test_every_argument_of_the_marker_for_evals_is_in_the_reference() -> None:
    documented = [names(row[0])[0] for row in rows(page("reference/fixtures-evals.md"), "## The marker")]

    assert documented == [*ARGUMENTS]


def test_every_part_of_a_sample_of_evals_is_in_the_reference() -> None:
    documented = {name.removesuffix("()") for row in rows(page("reference/fixtures-evals.md"), "## The sample") for name in names(row[0])}
    parts = {name for name in vars(EvalSample) if not name.startswith("_")}

    assert documented == parts | {"id", "epoch", "key", "run"}


def test_every_option_is_in_the_reference_and_its_other_names_follow_from_the_first() -> None:
    documented = [names(row[0])[0] for row in rows(page("reference/fixtures.md"), "## Options")]

    assert documented == [one.flag for one in config.OPTIONS] + ["--gittrix-show-config", "--gittrix-init"]
    for one in config.OPTIONS:
        ini = one.flag.removeprefix("--").replace("-", "_")
        assert (one.variable, one.ini) == (f"PYTEST_{ini.upper()}", ini)


def fixtures_in(text: str) -> list[str]:
    """The fixtures of a page's table of fixtures."""
    table = text.partition("\n| fixture | gives |\n|---|---|\n")[2].partition("\n\n")[0]
    return [names(line)[0] for line in table.splitlines()]


def test_every_fixture_is_in_the_reference_once() -> None:
    listed = [name for text in FIXTURES.values() for name in fixtures_in(text)]

    assert sorted(listed) == sorted(name for name in vars(plugin) | vars(more_fixtures) if re.fullmatch(r"gittrix(_\w+)?", name))


def test_the_core_page_names_the_fixtures_of_each_other_page() -> None:
    table = dict(re.findall(r"^\| \[[^]]+\]\((fixtures-\w+\.md)\) \| (`.*) \|$", FIXTURES["fixtures.md"], re.MULTILINE))

    assert {name: names(cell) for name, cell in table.items()} == {
        name: fixtures_in(text) for name, text in FIXTURES.items() if name != "fixtures.md"
    }


def test_the_first_page_lists_the_fixtures_of_the_core() -> None:
    assert fixtures_in((ROOT / "README.md").read_text(encoding="utf-8")) == fixtures_in(FIXTURES["fixtures.md"])


def test_the_navigation_has_five_groups() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]

    assert re.findall(r"^  - ([^:]+):$", nav, re.MULTILINE) == ["Start", "How to", "Evals", "Explanation", "Reference"]


def test_the_glossary_has_ten_words() -> None:
    assert len(re.findall(r"^\| (?!word )\w+ \|", page("glossary.md"), re.MULTILINE)) == 10


OF_OTHER_SYSTEMS = re.compile(r"\b(rigs?|molecules?|members?|desks?|lineages?|leases?|polecats?|work units?)\b(?!:)", re.IGNORECASE)
PAGES_ON_THEM = {"run-the-daemon.md", "take-turns-and-hand-on.md", "test-logs-turns-and-lines.md", "check-your-own-session-system.md"}
FOR_EVERYBODY = [
    ROOT / "README.md",
    DOCS / "test-your-agent.md",
    *(path for folder in ("tutorial", "how-to") for path in sorted((DOCS / folder).glob("*.md")) if path.name not in PAGES_ON_THEM),
]


@pytest.mark.parametrize("where", FOR_EVERYBODY, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_for_everybody_has_no_word_of_another_system(where: Path) -> None:
    assert OF_OTHER_SYSTEMS.findall(where.read_text(encoding="utf-8")) == []


def test_what_the_first_page_runs_evals_on_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    paths = re.findall(r"(?:--agent python:|eval run )((?:fixtures|examples)/[\w./]+)", text)
    made, compared = re.findall(r"--out (\S+)", text), re.findall(r"eval compare (\S+) (\S+)", text)

    assert {*paths} == {"fixtures/evals/puzzles", "examples/puzzle_agent.py"}
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert compared == [tuple(made)]


def test_every_command_and_flag_is_in_the_reference() -> None:
    page_text = page("reference/cli.md")
    commands = dict(verbs(command_line()))
    flags = {flag for command in commands.values() for action in command._actions for flag in action.option_strings} - {"-h", "--help"}

    assert [name for name in commands if f"| `{name}" not in page_text] == []
    assert [flag for flag in flags if not re.search(rf"`{flag}[ `]", page_text)] == []


@pytest.mark.parametrize(
    ("heading", "prefix", "sections"), [("Commands", "gittrix", ALL), ("Verbs of gittrix session", "gittrix session", SESSION.sections)]
)
def test_commands_are_in_the_groups_and_in_the_order_of_the_help(heading: str, prefix: str, sections: Sections) -> None:
    text = re.split(r"^## ", page("reference/cli.md").partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]
    documented = []
    for title, *tables in (part.split("\n") for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]):
        listed = re.findall(rf"^\| `{prefix} ([\w-]+)", "\n".join(tables), re.MULTILINE)
        documented.append((title, [*dict.fromkeys(listed)]))

    assert documented == [(f"{title[0].upper()}{title[1:]}", [entry.name for entry in entries]) for title, entries in sections.items()]


def test_the_table_of_compatibility_has_a_run_of_each_combination() -> None:
    text = page("reference/compatibility.md")
    heading, *ran = [re.findall(r"[^|]+", line) for line in text.partition("\nThe versions")[0].splitlines() if re.match(r"\| [P3]", line)]
    columns = [cell.strip() for cell in heading][2:]
    runs = {(cells[0].rsplit(".", 1)[0].strip(), cells[1].split(".")[0].strip()): {cell.strip() for cell in cells[2:]} for cells in ran}
    missing = re.findall(r"\d\.\d+", text.partition("\nNot run")[2].partition("\n")[0])

    assert columns == [*compatibility.COLUMNS]
    assert runs == {(version, major): {"passes"} for version in compatibility.PYTHONS if version not in missing for major in "89"}
    assert [cells[1].strip() for cells in ran].count("8.2.0") == len(compatibility.PYTHONS) - len(missing)


@pytest.mark.parametrize("where", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_every_page_can_be_found(where: Path) -> None:
    name = where.relative_to(DOCS).as_posix()

    lists = {"decisions": "decisions/index.md"}.get(name.partition("/")[0], "index.md")
    if name == lists or lists == "index.md":
        assert re.search(rf": {re.escape(name)}$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
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
