"""What the strategies draw is valid, awkward on purpose, plain first, and refused with a name where an argument is wrong."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import INITIALIZE_RULE_MARKER, RULE_MARKER

from pytest_gittrix import strategies
from pytest_gittrix.errors import InvalidInput, WriteRejected
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.tree import parents
from pytest_gittrix.strategies import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Interleaving, Tree
from pytest_gittrix.testing import oracle
from pytest_gittrix.testing.machines.session_machine import SandboxMachine
from pytest_gittrix.testing.repos.history import Content, Executable, Symlink
from pytest_gittrix.testing.session_model import overlapping
from pytest_gittrix.testing.world import World

DEADLINE = datetime(2030, 1, 1, 4, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

TREE = Tree({"a": b"1\n", "lib/b": b"2\n", "run": Executable(b"3\n")})
TOUCHED = {"a": b"agent\n", "lib/b": None}

QUICK = settings(max_examples=400, database=None, derandomize=True, deadline=None)


def drawn(strategy: st.SearchStrategy[Any], holds: Callable[[Any], object]) -> Any:
    """The plainest value of a strategy that something holds for; fails if there is none."""
    return find(strategy, holds, settings=settings(QUICK, max_examples=3000))


def stands(tree: Mapping[str, Content]) -> bool:
    """Whether no file is a directory of another."""
    return all(tree.keys().isdisjoint(parents(path)) for path in tree)


# Names -------------------------------------------------------------------------------------------------------------------------


@given(strategies.paths() | strategies.paths(near=["lib/é.py", "a"]))
def test_paths_may_all_be_written(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "collides",
    [
        lambda path: path == "lib/é.py",
        lambda path: path == "lib",
        lambda path: path.startswith("lib/é.py/"),
        lambda path: path.startswith("lib/é.py") and len(path) == len("lib/é.py") + 1,
        lambda path: path != "lib/é.py" and path.casefold() == "lib/é.py".casefold(),
        lambda path: path != "lib/é.py" and unicodedata.normalize("NFC", path) == "lib/é.py",
    ],
    ids=["equal", "its directory", "below it", "starts like it", "other case", "other form"],
)
def test_paths_collide_with_those_they_are_near(collides: Callable[[str], bool]) -> None:
    assert collides(drawn(strategies.paths(near=["lib/é.py"]), collides))


@pytest.mark.parametrize("has", [str.isascii, lambda path: "\n" in path, lambda path: "\udcff" in path, lambda path: path.count("/") == 2])
def test_paths_are_of_every_kind(has: Callable[[str], bool]) -> None:
    assert has(drawn(strategies.paths(), has))


def test_the_plainest_path_is_plain() -> None:
    assert drawn(strategies.paths(), lambda _: True) == "a"


@given(strategies.hostile_paths())
def test_hostile_paths_are_all_refused(path: str) -> None:
    with pytest.raises(WriteRejected):
        check_path(path)


# Files -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "type_"), [("file", bytes), ("executable", Executable), ("symlink", Symlink)])
def test_contents_are_of_the_kinds_asked_for(kind: str, type_: type) -> None:
    @QUICK
    @given(strategies.contents(kinds=[kind]))
    def check(content: Content) -> None:
        assert isinstance(content, type_)

    check()


@given(strategies.trees())
def test_trees_are_of_files_that_can_stand_beside_each_other(tree: Tree) -> None:
    assert stands(tree)
    assert list(tree) == sorted(tree)


def test_the_plainest_tree_is_empty_and_the_next_has_one_empty_file() -> None:
    assert drawn(strategies.trees(), lambda _: True) == {}
    assert drawn(strategies.trees(), len) == {"a": b""}


@given(strategies.trees().flatmap(lambda tree: st.tuples(st.just(tree), strategies.edits(tree))))
def test_edits_fit_on_their_tree_and_name_nothing_that_stays(drawn_edits: tuple[Tree, Edits]) -> None:
    tree, edits = drawn_edits

    assert stands(tree.apply(edits))
    assert [path for path, content in edits.items() if tree.get(path) == content] == []


@pytest.mark.parametrize(
    "does",
    [
        lambda edits: edits.get("a", b"") is None,
        lambda edits: edits.get("lib/b", b"") is None and edits.get("lib") is not None,
        lambda edits: edits.get("a", b"") is None and any(path.startswith("a/") for path in edits),
        lambda edits: isinstance(edits.get("a"), Symlink),
    ],
    ids=["deletes", "directory becomes file", "file becomes directory", "file becomes link"],
)
def test_edits_do_what_agents_do(does: Callable[[Edits], bool]) -> None:
    assert does(drawn(strategies.edits(TREE), does))


@given(strategies.histories())
def test_histories_are_written_in_one_go(history: Any) -> None:
    tree = Tree({})
    for step in history.steps:
        tree = tree.apply(step.changes)

    written = history.write()

    assert len(written.commits) == len(history.steps)
    assert set(written.entries) == set(tree)


# Durable -----------------------------------------------------------------------------------------------------------------------


def differs(edit: DurableEdit, path: str) -> bool:
    return edit.tree_after(TREE).get(path) != TREE[path]


MEANING: Mapping[DurableKind, Callable[[DurableEdit], object]] = {
    "overlap": lambda edit: overlapping(TOUCHED, TREE.to(edit.tree_after(TREE))),
    "disjoint": lambda edit: not overlapping(TOUCHED, TREE.to(edit.tree_after(TREE))) and edit.tree_after(TREE) != TREE,
    "rename-away": lambda edit: [path for path in ("a", "lib/b") if path not in edit.tree_after(TREE)] and len(edit.tree_after(TREE)) == 3,
    "rename-onto": lambda edit: "run" not in edit.tree_after(TREE) and Executable(b"3\n") in edit.tree_after(TREE).values(),
    "delete/modify": lambda edit: len(edit.tree_after(TREE)) == 2,
    "modify/delete": lambda edit: differs(edit, "lib/b") and not differs(edit, "a"),
    "directory/file": lambda edit: {"a/inside", "lib", "lib/b/inside"} & set(edit.tree_after(TREE)),
    "mode": lambda edit: {"a": Executable(b"1\n"), "lib/b": Executable(b"2\n")}.items() & TREE.to(edit.tree_after(TREE)).items(),
    "symlink": lambda edit: [path for path in ("a", "lib/b") if isinstance(edit.tree_after(TREE)[path], Symlink)],
    "case-only": lambda edit: {"A", "LIB/B"} & set(edit.tree_after(TREE)) and len(edit.tree_after(TREE)) == 3,
    "same-content": lambda edit: edit.tree_after(TREE)["a"] == b"agent\n",
    "revert-to-baseline": lambda edit: edit.tree_after(TREE) == TREE and len(edit.commits) == 2,
    "rewind": lambda edit: edit.rewrite,
    "dirty": lambda edit: edit.dirty and not edit.commits,
    "staged": lambda edit: edit.staged and not edit.commits,
}


@pytest.mark.parametrize("kind", DURABLE_KINDS)
def test_every_kind_of_durable_edit_is_what_its_name_says(kind: DurableKind) -> None:
    @QUICK
    @given(strategies.durable_edits(TREE, touched=TOUCHED, kinds=[kind]))
    def check(edit: DurableEdit) -> None:
        assert edit.kind == kind
        assert MEANING[kind](edit), edit

    check()


@given(strategies.trees(near=["a", "lib/b"]).flatmap(lambda tree: st.tuples(st.just(tree), strategies.edits(tree))), st.data())
def test_whatever_is_there_and_touched_some_durable_edit_fits(drawn_edits: tuple[Tree, Edits], data: st.DataObject) -> None:
    tree, touched = drawn_edits

    edit = data.draw(strategies.durable_edits(tree, touched=touched))

    assert stands(edit.tree_after(tree))


@pytest.mark.parametrize("kind", DURABLE_KINDS)
def test_a_durable_edit_does_to_a_repository_what_it_says(kind: DurableKind, tmp_path: Path) -> None:
    edit = drawn(strategies.durable_edits(TREE, touched=TOUCHED, kinds=[kind]), lambda _: True)

    with World.open(tmp_path / "world", files=TREE) as world:
        before = world.durable.head()
        made = edit.make(world.durable)
        after = edit.tree_after(TREE)

        assert [*world.durable.tree()] == sorted(after, key=os.fsencode)
        assert all(world.durable.read(path) == data for path, data in after.items() if isinstance(data, bytes))
        assert (world.durable.head() == before) is (kind in ("dirty", "staged"))
        assert (before in [commit.id for commit in world.durable.log()]) is not edit.rewrite
        assert made == [] or made[-1] == world.durable.head()
        for path, content in {**(edit.dirty or {}), **(edit.staged or {})}.items():
            assert (world.durable.path / path).exists() is (content is not None)


def test_a_kind_that_is_impossible_is_named_when_it_is_drawn() -> None:
    with pytest.raises(InvalidInput, match="None of rename-away is possible"):
        drawn(strategies.durable_edits({}, kinds=["rename-away"]), lambda _: True)


# Time, schedules, settings -----------------------------------------------------------------------------------------------------


def test_eviction_policies_begin_with_the_documented_one() -> None:
    from pytest_gittrix.record.state.records import EvictionPolicy

    assert drawn(strategies.eviction_policies(), lambda _: True) == EvictionPolicy()
    assert drawn(strategies.eviction_policies(), lambda policy: policy.ttl_idle is None and policy.ttl_absolute is not None)
    assert drawn(strategies.eviction_policies(manual=True, until_promote=False), lambda _: True).until_promote is False


@pytest.mark.parametrize("instant", [DEADLINE, DEADLINE + MICROSECOND, DEADLINE - MICROSECOND])
def test_instants_around_a_deadline_are_at_it_and_a_microsecond_to_each_side(instant: datetime) -> None:
    assert drawn(strategies.instants_around(DEADLINE), lambda drawn_instant: drawn_instant == instant) == instant
    assert drawn(strategies.instants_around(DEADLINE), lambda _: True) == DEADLINE


@given(strategies.instants_around(DEADLINE, not_before=DEADLINE))
def test_instants_are_never_earlier_than_asked(instant: datetime) -> None:
    assert instant >= DEADLINE


def test_a_schedule_without_preemptions_lets_the_first_actor_run() -> None:
    assert list(drawn(strategies.interleavings("AB", steps=4), lambda _: True)) == ["A"] * 4


def test_a_preemption_lets_another_actor_go_on_from_there() -> None:
    assert list(Interleaving(("A", "B"), 5, ((1, "B"), (3, "A")))) == ["A", "B", "B", "A", "A"]
    assert drawn(strategies.interleavings("AB", steps=4), lambda schedule: "B" in schedule).preemptions == ((0, "B"),)


@given(strategies.interleavings(["one", "two", "three"], steps=6, max_preemptions=2))
def test_schedules_have_a_name_for_each_step_and_few_preemptions(schedule: Interleaving) -> None:
    names = list(schedule)

    assert len(names) == 6
    assert set(names) <= {"one", "two", "three"}
    assert sum(before != after for before, after in pairwise(names)) <= 2


@settings(max_examples=15)
@given(strategies.hostile_gitconfigs())
def test_git_accepts_every_hostile_configuration(text: str) -> None:
    listed = run_git(["config", "--file", "-", "--list"], cwd=Path.cwd(), env=hermetic_env(), stdin=text.encode())

    assert len(listed.splitlines()) == text.count("[")


# Arguments ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: strategies.paths(near="a"), "one text"),
        (lambda: strategies.contents(kinds=["pipe"]), "'pipe'"),
        (lambda: strategies.contents(kinds=[]), "empty"),
        (lambda: strategies.trees(max_files=-1), "max_size=-1"),
        (lambda: strategies.edits({}, min_size=3, max_size=1), "min_size=3"),
        (lambda: strategies.histories(min_size=0), "min_size=0"),
        (lambda: strategies.durable_edits({}, touched="a"), "one text"),
        (lambda: strategies.durable_edits({}, kinds=["rename"]), "'rename'"),  # type: ignore[list-item]
        (lambda: strategies.instants_around(datetime(2030, 1, 1)), "naive"),
        (lambda: strategies.interleavings("AA", steps=2), "different names"),
        (lambda: strategies.interleavings("AB", steps=0), "steps=0"),
    ],
)
def test_a_wrong_argument_is_named_at_once(make: Callable[[], object], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        make()


def test_every_strategy_prints_short_values() -> None:
    assert repr(TREE) == "Tree({'a': b'1\\n', 'lib/b': b'2\\n', 'run': Executable(data=b'3\\n')})"
    assert repr(DurableEdit("mode", (Edits({"a": None}),))) == "DurableEdit('mode', commits=(Edits({'a': None}),))"


# The reference -----------------------------------------------------------------------------------------------------------------


def documented(heading: str) -> list[str]:
    """The names in the first column of the table below a heading of the reference."""
    page = (Path(__file__).resolve().parents[3] / "docs/reference/strategies.md").read_text(encoding="utf-8")
    below = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`(]+)", below, re.MULTILINE)


def test_the_reference_tells_every_strategy_kind_rule_and_invariant() -> None:
    public = [name for name in strategies.__all__ if name.islower()]
    invariants = [name for name in vars(oracle) if name.startswith("invariant_")]
    marks = (INITIALIZE_RULE_MARKER, RULE_MARKER)
    rules = [name for name in dir(SandboxMachine) if any(hasattr(getattr(SandboxMachine, name), mark) for mark in marks)]

    assert sorted(documented("Strategies")) == sorted(public)
    assert documented("Kinds of durable edits") == list(DURABLE_KINDS)
    assert sorted(documented("The state machine")) == sorted(rules)
    assert documented("Rules of the oracle") == invariants
