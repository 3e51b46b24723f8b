"""Snapshots of random edits against git's own: ``git add`` into an index of its own, then ``git write-tree``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st
from support.git import Content, GitRepo, git, make_workspace, put

from pytest_gittrix.git.tree import EXECUTABLE, FILE, SYMLINK, changed_paths, parse_tree
from pytest_gittrix.workspaces.workspace import Workspace

NAMES = ("a", "b", "c.log", "é", os.fsdecode(b"\xff"), " x", "-y", 'q"', "z\n", "A.txt")
names = st.sampled_from(NAMES)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
contents = st.one_of(
    st.tuples(st.sampled_from([FILE, EXECUTABLE]), st.sampled_from([b"", b"1\n", b"2\n", b"3\r\n", b"\0\xff"])),
    st.tuples(st.just(SYMLINK), st.sampled_from([b"a", b"../out", b"/nowhere"])),
)
Files = dict[str, Content]


def fitting(files: Mapping[str, Content]) -> Files:
    """The files that can stand beside each other: a path below another is left out."""
    kept: Files = {}
    for path, content in files.items():
        if content is None or not any(path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in kept if kept[other]):
            kept[path] = content
    return kept


baselines = st.dictionaries(paths, contents, min_size=1, max_size=6).map(fitting)
edits = st.dictionaries(paths, st.one_of(st.none(), contents), max_size=6).map(fitting)
patterns = st.sampled_from(
    ["*.log", "a", "/a", "a/", "b/*", "!b/a", "**/b", "a/**", "!*", "c.log/", "\\-y", " x", "#a", "", "[ab]", "?", "a/b", "!a/b"]
)


def by_git(workspace: Workspace, *options: str) -> str:
    """The workspace as one tree, by an index that git fills itself, knowing only the baseline."""
    environment = {"GIT_INDEX_FILE": f"{workspace.path}-judge"}
    root = Path(workspace.path)
    git("read-tree", workspace.seed.commit, cwd=root, env=environment)
    git("add", "--all", *options, cwd=root, env=environment)
    return git("write-tree", cwd=root, env=environment).decode().strip()


def apply(root: Path, changes: Mapping[str, Content]) -> None:
    """Make the changes as an agent's shell would: what is in the way goes."""
    for path, content in changes.items():
        above = root
        for name in path.split("/")[:-1]:
            above = above / name
            if os.path.lexists(above) and (above.is_symlink() or not above.is_dir()):
                above.unlink()
        put(root, {path: content})


@given(baseline=baselines, changes=edits, again=edits)
def test_a_snapshot_is_the_tree_that_git_would_write(baseline: Files, changes: Files, again: Files) -> None:
    with TemporaryDirectory() as directory:
        workspace = make_workspace(GitRepo.make(Path(directory, "durable"), baseline, bare=True), Path(directory))
        apply(Path(workspace.path), changes)
        apply(Path(workspace.path), again)

        taken = workspace.snapshot()

        assert taken.tree == by_git(workspace, "--force")
        trees = taken.objects

        def read(id_: str) -> Mapping[bytes, tuple[int, str]]:
            return parse_tree(trees[id_][1], 20) if id_ in trees else workspace.seed.trees.read(id_)

        between = changed_paths(read, workspace.seed.root, taken.tree)
        assert {path: new for path, (_, new) in between.items()} == dict(taken.changes)


@given(
    baseline=baselines, rules=st.dictionaries(st.sampled_from(["", "a/", "b/"]), st.lists(patterns, max_size=4), max_size=3), changes=edits
)
def test_the_baselines_ignore_rules_mean_what_they_mean_to_git(baseline: Files, rules: dict[str, list[str]], changes: Files) -> None:
    sources: Files = {f"{at}.gitignore": "".join(f"{line}\n" for line in lines) for at, lines in rules.items()}
    with TemporaryDirectory() as directory:
        repo = GitRepo.make(Path(directory, "durable"), fitting({**sources, **baseline}), bare=True)
        workspace = make_workspace(repo, Path(directory))
        tracked = repo.tree()
        apply(Path(workspace.path), {path: content for path, content in changes.items() if not replaces_rules(path, tracked)})

        assert workspace.snapshot().tree == by_git(workspace)


def replaces_rules(path: str, tracked: Mapping[str, object]) -> bool:
    """Whether a change there takes a directory with rules away, after which git would know them no more."""
    return any(rules.endswith(".gitignore") and rules.startswith(f"{path}/") for rules in tracked)


def untracked_by_git(root: Path, index: Path) -> set[str]:
    """The untracked files that git shows in a work tree, with the ignore files that are in it now, by an index of the baseline."""
    listed = git("ls-files", "-z", "--others", "--exclude-standard", cwd=root, env={"GIT_INDEX_FILE": str(index)})
    return {os.fsdecode(path) for path in listed.split(b"\0") if path}


def with_rules_of_the_baseline(workspace: Workspace, copy: Path, tracked: Mapping[str, object]) -> Path:
    """A copy of a workspace in which the ignore files are those of the baseline, and no others."""
    shutil.copytree(workspace.path, copy, symlinks=True)
    (copy / ".git" / "info" / "exclude").unlink(missing_ok=True)
    for path in [*copy.rglob(".gitignore")]:
        path.unlink()
    rules = [path for path in tracked if path.rpartition("/")[2] == ".gitignore"]
    for path in rules:
        entry = workspace.seed.entries[path]
        put(copy, {path: (entry.mode, workspace.seed.blob(entry.id))})
    return copy


rule_files = st.dictionaries(st.sampled_from(["", "a/", "b/"]), st.lists(patterns, max_size=4), max_size=3)


def sources(rules: Mapping[str, list[str]]) -> Files:
    return {f"{at}.gitignore": "".join(f"{line}\n" for line in lines) for at, lines in rules.items()}


@given(
    baseline=baselines,
    rules=rule_files,
    changes=edits,
    now=rule_files,
    exclude=st.lists(patterns, max_size=2),
    forced=st.lists(st.integers(0, 50), max_size=2),
)
def test_an_untracked_file_is_work_withheld_or_ignored_as_git_says_under_both_sets_of_rules(
    baseline: Files, rules: dict[str, list[str]], changes: Files, now: dict[str, list[str]], exclude: list[str], forced: list[int]
) -> None:
    with TemporaryDirectory() as directory:
        repo = GitRepo.make(Path(directory, "durable"), fitting({**sources(rules), **baseline}), bare=True)
        workspace = make_workspace(repo, Path(directory))
        root, index, tracked = Path(workspace.path), Path(directory, "index"), repo.tree()
        apply(root, {path: content for path, content in changes.items() if not replaces_rules(path, tracked)})
        for path, data in sources(now).items():
            if (root / path).parent.is_dir() and not (root / path).is_dir():
                (root / path).unlink(missing_ok=True)
                put(root, {path: data})
        put(root, {".git/info/exclude": "".join(f"{line}\n" for line in exclude)})
        git("read-tree", workspace.seed.commit, cwd=root, env={"GIT_INDEX_FILE": str(index)})
        by_both = by_baseline, by_workspace = (
            untracked_by_git(with_rules_of_the_baseline(workspace, Path(directory, "copy"), tracked), index),
            untracked_by_git(root, index),
        )
        # Ignore files differ between the two directories: whether these stand as they should is seen in the tests of the unit.
        there = {
            os.path.relpath(os.path.join(parent, name), root)
            for parent, directories, names in os.walk(root)
            for name in (*names, *(one for one in directories if os.path.islink(os.path.join(parent, one))))
            if ".git" not in Path(os.path.relpath(parent, root)).parts and name != ".gitignore"
        } - tracked.keys()
        added = {sorted(there)[number % len(there)] for number in forced} if there else set()
        if added:
            git("add", "--force", "--", *(f":(literal){path}" for path in added), cwd=root)

        taken = workspace.snapshot()

        work = {path for path, entry in taken.changes.items() if entry is not None} & there
        assert work == (by_workspace | added) & there
        assert {*taken.withheld} & there == (by_baseline - by_workspace - added) & there
        assert not {*taken.ignored} & set.union(*by_both)
