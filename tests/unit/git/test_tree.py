"""Trees as values: the overlap rule, clashes, pruning and collisions. What git says of random trees is in the property tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.git import FORMATS as FORMAT_NAMES
from support.git import GitRepo, executable, link, submodule

from pytest_gittrix.git.objects import FORMATS, SHA1
from pytest_gittrix.git.path_rules import collisions
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    SUBMODULE,
    SYMLINK,
    Changes,
    Entry,
    Item,
    TreeClash,
    TreeDirectories,
    TreeFiles,
    by_directory,
    changed_paths,
    entry_at,
    flatten,
    lookup,
    overlap,
    parents,
    parse_tree,
    serialise_tree,
    write_trees,
)

ONE, TWO = Entry(FILE, "1" * 40), Entry(FILE, "2" * 40)
EMPTY = SHA1.hash_object("tree", b"")


class Shelf:
    """Tree objects in memory, and which of them were read."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {EMPTY: b""}
        self.reads: list[str] = []

    def read(self, id_: str) -> dict[bytes, Item]:
        self.reads.append(id_)
        return parse_tree(self.objects[id_], 20)

    def write(self, changes: Changes, base: str | None = None) -> str:
        """The tree that ``base`` becomes."""
        root, written = write_trees(self.read, base, changes, SHA1.hash_object)
        self.objects.update(written)
        return root


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.mark.parametrize(
    ("selected", "drift", "touched"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a/b", "a", True),
        ("a", "a/b", True),
        ("a", "a/b/c", True),
        ("a/b/c", "a", True),
        ("a/b", "a/c", False),
        ("a/b", "ab", False),
        ("a", "ab", False),
        ("ab", "a", False),
        ("a b", "a", False),
        ("a", "a.txt", False),
        ("a/b", "a-/b", False),
        ("A", "a", False),
        ("\udcff/x", "\udcff", True),
    ],
)
def test_overlap_is_the_same_path_or_a_directory_above_or_below_it(selected: str, drift: str, touched: bool) -> None:
    assert overlap([selected, "elsewhere"], [drift, "drifted"]) == ({selected} if touched else set())


def test_overlap_names_every_selected_path_and_no_other() -> None:
    assert overlap(["a", "b/c", "d/e", "f"], ["a", "b", "d/e/f", "g"]) == {"a", "b/c", "d/e"}
    assert overlap(["a"], []) == set()
    assert overlap([], ["a"]) == set()


def test_the_parents_of_a_path_are_its_directories_from_the_top() -> None:
    assert list(parents("a/b/c")) == ["a", "a/b"]
    assert list(parents("a")) == []


@pytest.mark.parametrize(("entry", "kind"), [(FILE, "file"), (EXECUTABLE, "executable"), (SYMLINK, "symlink"), (SUBMODULE, "submodule")])
def test_an_entry_says_its_kind(entry: int, kind: str) -> None:
    assert Entry(entry, "1" * 40).kind == kind


@pytest.mark.parametrize("object_format", FORMAT_NAMES)
def test_reading_a_commit_gives_what_git_lists_in_its_order(tmp_path: Path, object_format: str) -> None:
    files = {
        "a": "1",
        "a.b": "2",
        "a-/x": "3",
        "ab/x": "4",
        "ab0": "5",
        "run": executable("x"),
        "link": link("a"),
        os.fsdecode(b"\xff"): "6",
    }
    repo = GitRepo.make(
        tmp_path / "durable", {**files, "sub": submodule("1" * FORMATS[object_format].hex_size)}, bare=True, object_format=object_format
    )
    with Repository.open(repo.path) as opened:
        read, root = opened.trees.read, opened.tree(repo.head())

        assert list(flatten(read, root).items()) == list(repo.tree().items())
        raw = repo.git("cat-file", "tree", root)
        assert serialise_tree(parse_tree(raw, FORMATS[object_format].size)) == raw


def test_nothing_flattens_to_nothing(shelf: Shelf) -> None:
    assert flatten(shelf.read, None) == flatten(shelf.read, EMPTY) == {}


def test_looking_up_tells_files_directories_and_nothing_apart(shelf: Shelf) -> None:
    root = shelf.write({"a/b": ONE})

    assert entry_at(shelf.read, root, "a/b") == ONE
    assert entry_at(shelf.read, root, "a") is None
    assert (lookup(shelf.read, root, "a") or (0, ""))[0] == DIRECTORY
    assert [lookup(shelf.read, root, path) for path in ("b", "a/c", "a/b/c")] == [None, None, None]
    assert lookup(shelf.read, None, "a") is None


def test_old_modes_are_read_as_the_kind_they_mean(shelf: Shelf) -> None:
    raw = serialise_tree({b"group": (0o100664, "1" * 40), b"odd": (0o100775, "1" * 40), b"others": (0o100645, "1" * 40)})
    shelf.objects["f" * 40] = raw

    kinds = {path: entry.kind for path, entry in flatten(shelf.read, "f" * 40).items()}
    assert kinds == {"group": "file", "odd": "executable", "others": "file"}
    assert entry_at(shelf.read, "f" * 40, "group") == Entry(FILE, "1" * 40)


def test_old_modes_of_neighbours_survive_a_change(shelf: Shelf) -> None:
    shelf.objects["f" * 40] = serialise_tree({b"group": (0o100664, "1" * 40), b"other": (FILE, "1" * 40)})

    root = shelf.write({"other": TWO}, "f" * 40)

    assert parse_tree(shelf.objects[root], 20)[b"group"] == (0o100664, "1" * 40)


def test_equal_subtrees_are_never_read(shelf: Shelf) -> None:
    old = shelf.write({f"{top}/{middle}/file": ONE for top in "abcdefgh" for middle in "xyz"})
    new = shelf.write({"c/y/file": TWO}, old)
    shelf.reads.clear()

    assert changed_paths(shelf.read, old, new) == {"c/y/file": (ONE, TWO)}
    # Both roots, both c, both c/y.
    assert len(shelf.reads) == 6
    shelf.reads.clear()
    assert changed_paths(shelf.read, new, new) == {}
    assert shelf.reads == []


def test_writing_reads_only_the_directories_on_the_way(shelf: Shelf) -> None:
    base = shelf.write({f"{top}/{middle}/file": ONE for top in "abcdefgh" for middle in "xyz"})
    shelf.reads.clear()

    _, written = write_trees(shelf.read, base, {"c/y/file": TWO}, SHA1.hash_object)

    assert len(shelf.reads) == len(written) == 3


def test_a_tree_whose_names_stay_keeps_its_order_and_one_that_gets_a_name_is_sorted(shelf: Shelf) -> None:
    base = shelf.write({"a.c": ONE, "a/b": ONE, "a0": ONE, "m": ONE})
    for changes in ({"a0": TWO, "a/b": TWO}, {"a.c": None}, {"a-": TWO}, {"a/b": None, "a": TWO}, {"m": None, "m/n": TWO}):
        after = shelf.write(changes, base)
        names = [*parse_tree(shelf.objects[after], 20)]
        directories = {path.split("/")[0] for path in flatten(shelf.read, after) if "/" in path}
        assert names == sorted(names, key=lambda name: name + b"/" * (name.decode() in directories)), changes


FILES = st.dictionaries(
    st.lists(st.sampled_from(["a", "b", "c", "\udcff"]), min_size=1, max_size=4).map("/".join),
    st.sampled_from([ONE, TWO, Entry(SYMLINK, "3" * 40), Entry(SUBMODULE, "4" * 40)]),
    min_size=1,
    max_size=12,
).map(lambda files: {path: entry for path, entry in files.items() if not any(parent in files for parent in parents(path))})


@given(FILES, st.lists(st.sampled_from(["a", "a/b", "b", "b/c/a", "\udcff/a", "", "a/b/c/c", "d"])))
def test_files_that_are_read_when_asked_for_are_those_that_are_read_at_once(files: dict[str, Entry], asked: list[str]) -> None:
    shelf = Shelf()
    root = shelf.write(files)
    lazy = TreeFiles(shelf.read, root)
    directories = TreeDirectories(shelf.read, root, lazy)
    at_once = flatten(shelf.read, root)
    split = by_directory(at_once)
    for path in [*asked, *files]:
        assert lazy.get(path) == at_once.get(path)
        assert (path in lazy) == (path in at_once)
        directory = path.rpartition("/")[0]
        assert directories.get(directory) == split.get(directory)
        assert (path in directories) == (path in split)
    assert [*lazy.items()] == [*at_once.items()]
    assert ([*lazy], [*lazy.values()], len(lazy)) == ([*at_once], [*at_once.values()], len(at_once))
    assert [*directories.items()] == [*split.items()]
    assert ([*directories], len(directories)) == ([*split], len(split))


def test_a_look_at_one_file_reads_the_trees_above_it_once(shelf: Shelf) -> None:
    root = shelf.write({f"{top}/{middle}/file": ONE for top in "abcdefgh" for middle in "xyz"})
    shelf.reads.clear()
    files = TreeFiles(shelf.read, root)
    directories = TreeDirectories(shelf.read, root, files)

    for _ in range(3):
        assert files["c/y/file"] == ONE
        assert "c/y/other" not in files
        assert directories["c/y"] == {"file": ONE}
        assert "c/q" not in directories

    assert len(shelf.reads) == 11  # three for each of three looks, and two for the directory that is not there


def test_the_lines_of_a_new_tree_are_what_git_reads_from_it_in_its_order(shelf: Shelf) -> None:
    base = shelf.write({"a.c": ONE, "a0": ONE, "z": ONE})
    lines = {}

    _, written = write_trees(shelf.read, base, {"a/b": TWO, "z": None, "k": TWO}, SHA1.hash_object, on_tree=lines.__setitem__)

    assert {id_: [*found.items()] for id_, found in lines.items()} == {id_: [*parse_tree(raw, 20).items()] for id_, raw in written.items()}
    assert [b"a.c", b"a", b"a0", b"k"] in map(list, lines.values())


def test_a_file_that_became_a_directory_is_both_a_deletion_and_an_addition(shelf: Shelf) -> None:
    old, new = shelf.write({"a": ONE}), shelf.write({"a/b": TWO})

    assert changed_paths(shelf.read, old, new) == {"a": (ONE, None), "a/b": (None, TWO)}
    assert changed_paths(shelf.read, new, old) == {"a": (None, ONE), "a/b": (TWO, None)}


def test_against_nothing_everything_is_new(shelf: Shelf) -> None:
    root = shelf.write({"a": ONE, "b/c": TWO})

    assert changed_paths(shelf.read, None, root) == {"a": (None, ONE), "b/c": (None, TWO)}
    assert changed_paths(shelf.read, root, None) == {"a": (ONE, None), "b/c": (TWO, None)}


@pytest.mark.parametrize(
    ("base", "changes", "after"),
    [
        ({"a": ONE}, {"a": TWO}, {"a": TWO}),
        ({"a": ONE}, {"a": None}, {}),
        ({"a": ONE}, {}, {"a": ONE}),
        ({"d/a": ONE, "b": ONE}, {"d/a": None}, {"b": ONE}),
        ({"d/e/f/a": ONE, "b": ONE}, {"d/e/f/a": None}, {"b": ONE}),
        ({"d/a": ONE}, {"d/a": None, "d": TWO}, {"d": TWO}),
        ({"d/e/a": ONE, "d/b": ONE}, {"d/e/a": None, "d/b": None, "d": TWO}, {"d": TWO}),
        ({"d": ONE}, {"d": None, "d/a": TWO}, {"d/a": TWO}),
        ({"a": ONE}, {"never/there": None, "nor": None}, {"a": ONE}),
        ({"a": ONE}, {"a/below/a/file": None}, {"a": ONE}),
        ({"d/a": ONE}, {"d": None}, {"d/a": ONE}),
        ({"a-": ONE, "a/x": ONE}, {"a0": TWO}, {"a-": ONE, "a/x": ONE, "a0": TWO}),
    ],
)
def test_changes_make_the_tree_they_say(shelf: Shelf, base: Changes, changes: Changes, after: Mapping[str, Entry]) -> None:
    root = shelf.write(changes, shelf.write(base))

    assert flatten(shelf.read, root) == after


@pytest.mark.parametrize(
    ("base", "changes", "where"),
    [
        ({"d/a": ONE}, {"d": TWO}, "d"),
        ({"d/a": ONE, "d/b": ONE}, {"d": TWO, "d/a": None}, "d"),
        ({"d": ONE}, {"d/a": TWO}, "d"),
        ({"x/d": ONE}, {"x/d/e/a": TWO}, "x/d"),
        ({}, {"d": ONE, "d/a": TWO}, "d"),
        ({"d/e/a": ONE}, {"d/e": TWO}, "d/e"),
        ({"s": Entry(SUBMODULE, "3" * 40)}, {"s/a": ONE}, "s"),
    ],
)
def test_a_path_cannot_be_both_a_file_and_a_directory(shelf: Shelf, base: Changes, changes: Changes, where: str) -> None:
    root = shelf.write(base)

    with pytest.raises(TreeClash) as caught:
        write_trees(shelf.read, root, changes, SHA1.hash_object)

    assert caught.value.path == where


@pytest.mark.parametrize(
    ("standing", "added", "twin"),
    [
        ("readme", "README", "readme"),
        ("src/a", "SRC/b", "src"),
        ("src/util.py", "src/Util.py", "src/util.py"),
        ("caf\u00e9", "cafe\u0301", "caf\u00e9"),
        ("straße", "STRASSE", "straße"),
        ("a/b/c", "a/B/d", "a/b"),
    ],
)
def test_an_added_path_that_differs_only_by_case_or_form_is_named_with_its_twin(shelf: Shelf, standing: str, added: str, twin: str) -> None:
    root = shelf.write({standing: ONE, added: TWO, "other": ONE})

    assert collisions(shelf.read, root, [added, "other"]) == {added: twin}


def test_collisions_that_were_there_already_are_nobodys_doing(shelf: Shelf) -> None:
    root = shelf.write({"a": ONE, "A": ONE, "b": ONE})

    assert collisions(shelf.read, root, ["b"]) == {}


def test_collisions_ask_for_each_tree_once(shelf: Shelf) -> None:
    paths = [f"lib/{number}" for number in range(20)]
    root = shelf.write(dict.fromkeys(paths, ONE))
    shelf.reads.clear()

    assert collisions(shelf.read, root, paths) == {}
    assert len(shelf.reads) == len(set(shelf.reads)) == 2


def test_a_path_that_is_not_in_the_tree_collides_with_nothing(shelf: Shelf) -> None:
    root = shelf.write({"src/a": ONE})

    assert collisions(shelf.read, root, ["lib/SRC"]) == {}
    assert collisions(shelf.read, None, ["src"]) == {}
