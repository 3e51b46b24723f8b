"""Random trees against git's own: what differs (``git diff-tree``) and what changes make of them (``git write-tree``)."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.git import GitRepo, stream, submodule

from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import (
    EXECUTABLE,
    FILE,
    SUBMODULE,
    SYMLINK,
    Entry,
    TreeClash,
    changed_paths,
    flatten,
    overlap,
    parents,
    parse_tree,
    write_trees,
)

names = st.sampled_from(["a", "b", "a-", "a.b", "ab", "é", os.fsdecode(b"\xff"), "n\n", " ", '"'])
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
entries = st.one_of(
    st.tuples(st.sampled_from([FILE, EXECUTABLE, SYMLINK]), st.sampled_from([b"1", b"2", b"3"])),
    st.sampled_from([submodule("1" * 40), submodule("2" * 40)]),
)
Files = dict[str, tuple[int, bytes]]


def fitting(files: Files) -> Files:
    """The files that can stand beside each other."""
    kept: Files = {}
    for path, content in files.items():
        if not any(path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in kept):
            kept[path] = content
    return kept


trees = st.dictionaries(paths, entries, max_size=8).map(fitting)
shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    """A repository that collects the trees of every example."""
    return GitRepo.make(tmp_path_factory.mktemp("trees") / "durable", {"first": "1"}, bare=True)


def import_trees(repo: GitRepo, *wanted: Files) -> list[str]:
    """Commits of these trees, each made from nothing."""
    resets = [f"reset refs/heads/t{number}\n".encode() + stream(f"refs/heads/t{number}", files) for number, files in enumerate(wanted)]
    repo.git("fast-import", "--quiet", "--force", stdin=b"\n".join(resets))
    return [repo.text("rev-parse", f"refs/heads/t{number}^{{tree}}") for number in range(len(wanted))]


def by_git(repo: GitRepo, old: str, new: str) -> dict[str, tuple[Entry | None, Entry | None]]:
    """What ``git diff-tree`` says differs."""
    fields = repo.git("diff-tree", "-r", "-z", "--no-renames", "--raw", "--no-abbrev", old, new).split(b"\0")
    found = {}
    for what, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, old_id, new_id, _ = what.decode().lstrip(":").split()
        found[os.fsdecode(path)] = (side(old_mode, old_id), side(new_mode, new_id))
    return found


def side(mode: str, id_: str) -> Entry | None:
    return Entry(int(mode, 8), id_) if int(mode, 8) else None


@shared_fixture
@given(old=trees, new=trees)
def test_changed_paths_are_what_git_says_differs(repo: GitRepo, old: Files, new: Files) -> None:
    before, after = import_trees(repo, old, new)
    with Repository.open(repo.path) as opened:
        assert changed_paths(opened.trees.read, before, after) == by_git(repo, before, after)


@shared_fixture
@given(base=trees, target=trees)
def test_written_trees_are_the_ones_git_writes(repo: GitRepo, base: Files, target: Files) -> None:
    before, wanted = import_trees(repo, base, target)
    with Repository.open(repo.path) as opened:
        between = by_git(repo, before, wanted)

        changes = {path: new for path, (_, new) in between.items()}
        root, written = write_trees(opened.trees.read, before, changes, opened.format.hash_object)

        assert root == wanted
        assert all(repo.git("cat-file", "tree", id_) == raw for id_, raw in written.items())


@shared_fixture
@given(
    base=trees, changes=st.dictionaries(paths, st.none() | st.sampled_from([Entry(FILE, "e" * 40), Entry(SUBMODULE, "f" * 40)]), max_size=5)
)
def test_any_changes_make_exactly_the_files_they_say_or_clash(repo: GitRepo, base: Files, changes: Mapping[str, Entry | None]) -> None:
    (before,) = import_trees(repo, base)
    standing = repo.tree(before)
    after = {path: entry for path, entry in {**standing, **changes}.items() if entry is not None}
    clashes = any(above in after for path in after for above in parents(path))
    with Repository.open(repo.path) as opened:
        try:
            root, written = write_trees(opened.trees.read, before, changes, opened.format.hash_object)
        except TreeClash:
            assert clashes
            return

        def read(id_: str) -> Mapping[bytes, tuple[int, str]]:
            return parse_tree(written[id_], 20) if id_ in written else opened.trees.read(id_)

        assert not clashes
        assert flatten(read, root) == after


@given(selected=st.sets(paths, max_size=6), drift=st.sets(paths, max_size=6))
def test_overlap_is_symmetric_and_agrees_with_its_definition(selected: set[str], drift: set[str]) -> None:
    def touches(one: str, other: str) -> bool:
        return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")

    assert overlap(selected, drift) == {path for path in selected if any(touches(path, other) for other in drift)}
    assert bool(overlap(selected, drift)) == bool(overlap(drift, selected))
