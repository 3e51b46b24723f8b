"""State diagrams are drawn from the tables that the engine checks: every arrow is a legal step, and every legal step is on an arrow."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.drawing import block, groups, mermaid
from pytest_gittrix.views import botminter, gastown, gittrix, orchestrator, pixir

TABLES = {
    "botminter": botminter.LEGAL,
    "gastown": gastown.LEGAL,
    "gittrix": gittrix.LEGAL,
    "orchestrator": orchestrator.LEGAL,
    "pixir": pixir.LEGAL,
}

NAMES = "abcdef"


@st.composite
def tables(draw: st.DrawFn) -> dict[str, frozenset[str]]:
    states = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    return {state: frozenset(draw(st.sets(st.sampled_from(states)))) for state in states}


def read(text: str) -> dict[str, frozenset[str]]:
    """The table that a diagram shows."""
    members = {name: names.split(", ") for names, name in re.findall(r'state "(.*)" as (s\d+)', text)}
    legal: dict[str, set[str]] = {state: set() for group in members.values() for state in group}
    for old, new in re.findall(r"(s\d+) --> (s\d+)", text):
        for one, other in product(members[old], members[new]):
            if old != new or one != other or len(members[old]) == 1:
                legal[one].add(other)
    return {state: frozenset(found) for state, found in legal.items()}


@pytest.mark.parametrize("name", TABLES)
def test_a_diagram_shows_its_table_and_nothing_else(name: str) -> None:
    legal = TABLES[name]

    assert read(mermaid(legal, start=next(iter(legal)))) == legal


@given(tables())
def test_so_does_the_diagram_of_any_table_whose_states_do_not_follow_themselves(legal: dict[str, frozenset[str]]) -> None:
    plain = {state: allowed - {state} for state, allowed in legal.items()}

    assert read(mermaid(plain, start=next(iter(plain)))) == plain


@given(tables())
def test_every_state_is_in_one_group(legal: dict[str, frozenset[str]]) -> None:
    assert sorted(state for group in groups(legal) for state in group) == sorted(legal)


def test_states_that_cannot_be_told_apart_by_what_comes_before_and_after_are_drawn_as_one() -> None:
    assert ("Completed", "Failed", "Killed") in groups(botminter.LEGAL)
    assert ("merged",) in groups(orchestrator.LEGAL)


def test_a_state_that_nothing_follows_is_an_end() -> None:
    assert mermaid({"on": frozenset({"off"}), "off": frozenset()}, start="on") == (
        'stateDiagram-v2\n    direction LR\n    state "on" as s0\n    state "off" as s1\n    [*] --> s0\n    s0 --> s1\n    s1 --> [*]\n'
    )


def test_a_block_is_what_a_page_holds() -> None:
    assert block({"on": frozenset()}, start="on").startswith("```mermaid\nstateDiagram-v2\n")
    assert block({"on": frozenset()}, start="on").endswith("```\n")
