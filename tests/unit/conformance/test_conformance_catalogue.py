"""The clauses as a catalogue: each has one code, one sentence and the needs it says; the page of the reference lists them as they are."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import pytest

from pytest_gittrix.conformance import test_conformance
from pytest_gittrix.conformance.base.catalogue import all_clauses, clauses_by_code, families, family, page
from pytest_gittrix.conformance.base.clause import clause_of, needs
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.extensions import OURS
from pytest_gittrix.testing.systems.protocol import BASE, EXTENDED, Capability

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "conformance.md"
TESTS = {clause.code: test for family in families() for test in vars(family).values() if callable(test) and (clause := clause_of(test))}

# How a clause makes use of a capability: names that stand in its source, or in that of a helper that it calls.
USES: Final = {
    Capability.DELETE: {"delete"},
    Capability.DISCARD: {"discard"},
    Capability.COMMITS: {"commit"},
    Capability.HUNKS: {"hunks"},
    Capability.STRATEGIES: {"strategy"},
    Capability.EXTEND: {"extend"},
    Capability.RESUME: {"reopen", "open"},
    Capability.SHELL: {"workspace_path", "workspace"},
    Capability.EVENTS: {"events"},
    Capability.CLOCK: {"clock"},
    Capability.ABSOLUTE: {"ttl_absolute"},
    Capability.HISTORY: {"record", "emit", "subscribe"},
    Capability.TURNS: {"start_turn", "interrupt", "turn_running"},
    Capability.FORKS: {"fork"},
    Capability.LINES: {"handoff", "finish", "succeed", "lineage", "query", "chain"},
    Capability.MEMBERS: {"members"},
    Capability.STATUS: {"rules"},
    Capability.ARCHIVE: {"archived"},
    Capability.SIDE_WORK: {"side_work"},
}


def names_in(test: Callable[..., object]) -> set[str]:
    """Every name and attribute in a function and in the functions of its module and of the families that it calls, theirs included."""
    seen: set[str] = set()
    waiting, done = [test], {test}
    while waiting:
        function = waiting.pop()
        mentioned = set(_mentioned(function))
        owners = (sys.modules[function.__module__], *families())
        known = {name: found for owner in owners for name, found in vars(owner).items() if inspect.isfunction(found)}
        called = {known[name] for name in mentioned & known.keys() if known[name].__module__.startswith("pytest_gittrix.conf")}
        waiting += called - done
        done |= called
        seen |= mentioned
    return seen


def _mentioned(function: Callable[..., object]) -> Iterator[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    for node in (inner for statement in definition.body for inner in ast.walk(statement)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.keyword(arg=str(name)):
                yield name


def test_every_code_is_given_once() -> None:
    codes = Counter(clause_of(test).code for family in families() for test in vars(family).values() if callable(test) and clause_of(test))  # type: ignore[union-attr]

    assert [code for code, count in codes.items() if count > 1] == []
    assert set(codes) == clauses_by_code().keys()


def test_the_numbers_of_a_family_have_no_gap() -> None:
    numbers = {family: [int(one.code[4:]) for one in members] for family, members in groupby(all_clauses(), lambda one: one.family)}

    assert {family: found for family, found in numbers.items() if found != list(range(1, len(found) + 1))} == {}


def test_a_family_is_one_class_in_one_module() -> None:
    letters = [{clause.family for test in vars(family).values() if callable(test) and (clause := clause_of(test))} for family in families()]

    assert sorted(one for found in letters for one in found) == sorted(OURS["clauses"])
    assert [family.__name__ for family, found in zip(families(), letters, strict=True) if len(found) != 1] == []
    assert [family.__module__ for family in families()] == [family.address for family in OURS["clauses"].values()]


def test_every_family_is_collected() -> None:
    collected = [one.__base__ for name, one in vars(test_conformance).items() if name.startswith("Test")]

    assert sorted(str(one) for one in collected) == sorted(map(str, families()))


@pytest.mark.parametrize("code", TESTS)
def test_a_clause_says_in_one_sentence_why_a_user_cares(code: str) -> None:
    why = clauses_by_code()[code].why

    assert re.fullmatch(r"Otherwise [^.!?]+(?:\.[\w/][^.!?]*)*\.", why), why


@pytest.mark.parametrize("code", TESTS)
def test_a_clause_needs_what_goes_beyond_the_base(code: str) -> None:
    assert clauses_by_code()[code].needs <= EXTENDED


@pytest.mark.parametrize("code", [code for code, clause in clauses_by_code().items() if clause.needs])
def test_a_clause_needs_only_what_it_uses(code: str) -> None:
    used = names_in(TESTS[code])

    assert [str(one) for one in clauses_by_code()[code].needs if USES.get(one, used) and not (USES.get(one, used) & used)] == []


@pytest.mark.parametrize("code", TESTS)
def test_a_clause_needs_what_it_uses(code: str) -> None:
    """But for the names that rivals and engines of every system have too, and the directory, which is None where there is none."""
    used, needed = names_in(TESTS[code]), clauses_by_code()[code].needs
    plain = USES.keys() - {Capability.COMMITS, Capability.CLOCK, Capability.SHELL, Capability.RESUME}

    assert [str(one) for one in plain if USES[one] & used and one not in needed] == []
    assert "reopen" not in used or needed & {Capability.RESUME, Capability.PROCESSES}


@pytest.mark.parametrize("capability", [one for one in Capability if one in EXTENDED])
def test_every_capability_is_needed_by_a_clause(capability: Capability) -> None:
    assert [clause.code for clause in all_clauses() if capability in clause.needs]


def test_clauses_come_by_family_and_number() -> None:
    assert [family for family, _ in groupby(all_clauses(), lambda one: one.family)] == [*OURS["clauses"]]


def test_the_page_of_the_reference_is_up_to_date() -> None:
    write_again = "python -m pytest_gittrix.conformance.base.catalogue > docs/reference/conformance.md"
    assert PAGE.read_text(encoding="utf-8") == page(), f"run: {write_again}"


def test_the_page_lists_every_capability() -> None:
    table = page().partition("## Capabilities")[2].partition("\n## ")[0]

    assert [*re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)] == [str(one) for one in Capability if one in EXTENDED]
    assert all(f"`{one}`" in table for one in BASE)


def test_only_methods_that_are_named_like_clauses_are_clauses() -> None:
    class Mine:
        @needs(Capability.DELETE)
        def test_cnf_07_a_promise(self) -> None:
            """Otherwise why
            it matters."""

        def test_cnf_08_a_short_name(self) -> None:
            """A promise that
            is clear.

            Otherwise why it matters.
            """

        def test_cnf_7_a_promise(self) -> None: ...
        def test_abc_07_a_promise(self) -> None: ...
        def test_a_promise(self) -> None: ...

    found = [clause_of(test) for name, test in vars(Mine).items() if name.startswith("test_")]

    assert [(one.code, one.family, one.promise, one.why, one.needs) for one in found if one] == [
        ("CNF-07", "CNF", "a promise", "Otherwise why it matters.", {Capability.DELETE}),
        ("CNF-08", "CNF", "a promise that is clear", "Otherwise why it matters.", frozenset()),
    ]


def test_the_class_of_a_family_is_found_by_its_letters() -> None:
    assert [family(name) for name in OURS["clauses"]] == [*families()]
    assert family("cnf") is families()[[*OURS["clauses"]].index("CNF")]
    with pytest.raises(InvalidInput, match="There is no family of clauses 'NOT'"):
        family("NOT")
