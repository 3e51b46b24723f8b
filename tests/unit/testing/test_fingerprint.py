"""What counts as a change of a repository, and what does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gittrix.errors import GitFailed, InvalidInput
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.testing.repos.fingerprint import Fingerprint
from pytest_gittrix.testing.repos.history import Executable, History, Symlink
from pytest_gittrix.testing.repos.templates import Templates

Change = Callable[[Path], object]


def git(root: Path, *arguments: str) -> str:
    return run_git(["-C", str(root), *arguments], env=hermetic_env()).decode()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    history = History.of({"app.py": "one\n", "run.sh": Executable("#!/bin/sh\n"), "link": Symlink("app.py"), ".gitignore": "*.log\n"})
    Templates(tmp_path / "templates").of(history).materialise(tmp_path / "r")
    return tmp_path / "r"


def hold(path: Path, text: str = "held") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# change -> (section, name) that must be among the differences
CHANGES: dict[str, tuple[Change, str, str]] = {
    "a commit": (lambda r: git(r, "commit", "-q", "--allow-empty", "-m", "x"), "refs", "refs/heads/main"),
    "its reflog": (lambda r: git(r, "commit", "-q", "--allow-empty", "-m", "x"), "reflogs", "logs/refs/heads/main"),
    "a new branch": (lambda r: git(r, "branch", "topic"), "refs", "refs/heads/topic"),
    "a tag": (lambda r: git(r, "tag", "v1"), "refs", "refs/tags/v1"),
    "a switch": (lambda r: git(r, "switch", "-q", "-c", "topic"), "HEAD", "HEAD"),
    "detaching": (lambda r: git(r, "switch", "-q", "--detach"), "HEAD", "HEAD"),
    "configuration": (lambda r: git(r, "config", "core.fsmonitor", "true"), "config", "config"),
    "excludes": (lambda r: hold(r / ".git/info/exclude"), "config", "info/exclude"),
    "borrowed objects": (lambda r: hold(r / ".git/objects/info/alternates"), "config", "objects/info/alternates"),
    "a hook": (lambda r: hold(r / ".git/hooks/post-commit"), "hooks", "hooks/post-commit"),
    "a stash": (lambda r: (hold(r / "app.py"), git(r, "stash", "-q")), "refs", "refs/stash"),
    "the stash's log": (lambda r: (hold(r / "app.py"), git(r, "stash", "-q")), "reflogs", "logs/refs/stash"),
    "staging": (lambda r: (hold(r / "app.py"), git(r, "add", "app.py")), "index", "app.py"),
    "staging something new": (lambda r: (hold(r / "new"), git(r, "add", "new")), "index", "new"),
    "a flag in the index": (lambda r: git(r, "update-index", "--skip-worktree", "app.py"), "index", "app.py"),
    "another flag": (lambda r: git(r, "update-index", "--assume-unchanged", "app.py"), "index", "app.py"),
    "the index's stat data": (lambda r: (os.utime(r / "app.py"), git(r, "update-index", "-q", "--refresh")), "index", "(bytes)"),
    "a merge under way": (lambda r: hold(r / ".git/MERGE_HEAD"), "state", "MERGE_HEAD"),
    "a rebase under way": (lambda r: hold(r / ".git/rebase-merge/onto"), "state", "rebase-merge/onto"),
    "a lock of the index": (lambda r: hold(r / ".git/index.lock"), "state", "index.lock"),
    "a lock of a branch": (lambda r: hold(r / ".git/refs/heads/main.lock"), "state", "refs/heads/main.lock"),
    "a temporary file": (lambda r: hold(r / ".git/gittrix-1234"), "state", "gittrix-1234"),
    "a file's bytes": (lambda r: hold(r / "app.py"), "work tree", "app.py"),
    "bytes of the same size at the same time": (
        lambda r: (s := os.stat(r / "app.py"), hold(r / "app.py", "two\n"), os.utime(r / "app.py", ns=(s.st_atime_ns, s.st_mtime_ns))),
        "work tree",
        "app.py",
    ),
    "a file's mode": (lambda r: (r / "run.sh").chmod(0o644), "work tree", "run.sh"),
    "a link's target": (lambda r: ((r / "link").unlink(), (r / "link").symlink_to("run.sh")), "work tree", "link"),
    "a removed file": (lambda r: (r / "app.py").unlink(), "work tree", "app.py"),
    "an untracked file": (lambda r: hold(r / "deep/er/new"), "work tree", "deep/er/new"),
    "an ignored file": (lambda r: hold(r / "x.log"), "work tree", "x.log"),
    "an empty directory": (lambda r: (r / "empty").mkdir(), "work tree", "empty"),
    "a pipe": (lambda r: os.mkfifo(r / "pipe"), "work tree", "pipe"),
    "a linked work tree's HEAD": (lambda r: git(r, "worktree", "add", "-q", "../w", "-b", "w"), "HEAD", "worktrees/w/HEAD"),
    "a linked work tree's index": (lambda r: git(r, "worktree", "add", "-q", "../w", "-b", "w"), "index", "worktrees/w/index: app.py"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_a_person_could_miss_is_a_difference(name: str, repo: Path) -> None:
    change, section, fact = CHANGES[name]
    before = Fingerprint.of(repo)

    change(repo)

    after = Fingerprint.of(repo)
    assert after != before
    assert any(line.startswith(f"{section}: {fact}: ") for line in before.diff(after)), before.diff(after)


HARMLESS: dict[str, Change] = {
    "nothing": lambda r: None,
    "looking": lambda r: (git(r, "status"), git(r, "log"), git(r, "diff")),
    "packing references": lambda r: (git(r, "branch", "b"), git(r, "branch", "-D", "b"), git(r, "pack-refs", "--all")),
    "an object that nothing leads to": lambda r: git(r, "hash-object", "-w", "app.py"),
    "repacking": lambda r: git(r, "repack", "-q", "-a", "-d", "-f"),
    "another time of a file": lambda r: os.utime(r / "app.py"),
    "the same bytes again": lambda r: hold(r / "app.py", "one\n"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_nothing_for_a_person_is_no_difference(name: str, repo: Path) -> None:
    before = Fingerprint.of(repo)

    HARMLESS[name](repo)

    assert before.diff(Fingerprint.of(repo)) == []
    assert Fingerprint.of(repo) == before


def test_a_branch_that_moved_shows_where_from_and_to_whether_packed_or_loose(repo: Path) -> None:
    old = git(repo, "rev-parse", "HEAD").strip()
    before = Fingerprint.of(repo)
    git(repo, "commit", "-q", "--allow-empty", "-m", "x")
    new = git(repo, "rev-parse", "HEAD").strip()

    loose = Fingerprint.of(repo)
    git(repo, "pack-refs", "--all")

    assert f"refs: refs/heads/main: {old} -> {new}" in before.diff(loose)
    assert loose.sections["refs"] == Fingerprint.of(repo).sections["refs"]


def test_the_object_database_counts_where_it_is_asked_for(repo: Path) -> None:
    before = Fingerprint.of(repo, objects=True)
    hold(repo / "loose", "loose\n")
    written = git(repo, "hash-object", "-w", "loose").strip()
    (repo / "loose").unlink()

    differences = before.diff(Fingerprint.of(repo, objects=True))

    assert [line.split(": ")[:2] for line in differences] == [["objects", f"objects/{written[:2]}/{written[2:]}"]]


def test_unresolved_merges_show_each_stage(repo: Path) -> None:
    git(repo, "switch", "-q", "-c", "theirs")
    hold(repo / "app.py", "theirs\n")
    git(repo, "commit", "-q", "-a", "-m", "theirs")
    git(repo, "switch", "-q", "main")
    hold(repo / "app.py", "ours\n")
    git(repo, "commit", "-q", "-a", "-m", "ours")
    before = Fingerprint.of(repo)

    with pytest.raises(GitFailed):
        git(repo, "merge", "theirs")

    after = Fingerprint.of(repo)
    assert {name for name in after.sections["index"] if name.startswith("app.py")} == {f"app.py (stage {n})" for n in (1, 2, 3)}
    assert "MERGE_HEAD" in after.sections["state"]
    assert "app.py" in before.sections["index"]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_index_of_any_version_is_seen_to_change(version: int, repo: Path) -> None:
    git(repo, "update-index", "--index-version", str(version))
    before = Fingerprint.of(repo)

    git(repo, "update-index", "--chmod=+x", "app.py")

    assert [line for line in before.diff(Fingerprint.of(repo)) if line.startswith("index: (bytes)")]


def test_index_entries_are_read_as_git_lists_them(repo: Path) -> None:
    hold(repo / ("long/" * 60 + "name" * 20), "long")
    hold(repo / "caf\u00e9")
    git(repo, "add", "-A")

    facts = Fingerprint.of(repo).sections["index"]

    listed = [line.split() for line in git(repo, "-c", "core.quotePath=false", "ls-files", "-s").splitlines()]
    assert {name: fact for name, fact in facts.items() if name != "(bytes)"} == {row[3]: f"{row[0]} {row[1][:12]}" for row in listed}


def test_sha256_is_read_as_well(tmp_path: Path) -> None:
    template = Templates(tmp_path / "t").of(History.of({"a": "1\n", "b": "2\n"}), object_format="sha256")
    template.materialise(tmp_path / "r")

    facts = Fingerprint.of(tmp_path / "r").sections

    assert facts["refs"] == {"refs/heads/main": template.head}
    assert set(facts["index"]) == {"(bytes)", "a", "b"}


def test_a_bare_repository_has_a_fingerprint_without_a_work_tree(tmp_path: Path) -> None:
    Templates(tmp_path / "t").of(History.of({"a": "1\n"})).materialise(tmp_path / "r", bare=True)
    before = Fingerprint.of(tmp_path / "r")

    git(tmp_path / "r", "branch", "topic")

    assert before.sections["work tree"] == {}
    assert [line.split(" -> ")[0] for line in before.diff(Fingerprint.of(tmp_path / "r"))] == ["refs: refs/heads/topic: nothing"]


def test_a_damaged_index_has_a_fingerprint_all_the_same(repo: Path) -> None:
    index = repo / ".git/index"
    before = Fingerprint.of(repo)

    for damaged in (b"", b"DIRC", index.read_bytes()[:100]):
        index.write_bytes(damaged)
        assert before != Fingerprint.of(repo)


def test_names_that_do_not_print_are_shown_escaped(repo: Path) -> None:
    before = Fingerprint.of(repo)
    hold(repo / "new\nline")

    assert [line for line in before.diff(Fingerprint.of(repo)) if line.startswith(r"work tree: 'new\nline': nothing -> file")]


def test_what_is_no_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a repository"):
        Fingerprint.of(tmp_path)
