"""A human's checkout: brought forward where it is clean, refused where it is not, and never touched anywhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.checkout import EDIT, FILES, bring, checkout_at, planned
from support.git import FORMATS, Content, GitRepo, executable, git, intent_to_add, link, put, submodule, try_git

from pytest_gittrix.errors import UnsupportedRepository, WorktreeDirty
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.worktree.checkout_update import lock_checkout
from pytest_gittrix.os_level.files import temporary_name
from pytest_gittrix.testing.repos.member_witness import everything_below

FORWARD: dict[str, Mapping[str, Content]] = {
    "an edit": EDIT,
    "a new file": {"new.py": "n\n"},
    "a new file in new directories": {"one/two/new.py": "n\n"},
    "a deletion": {"app.py": None},
    "a deletion that empties directories": {"src/util.py": None, "src/deep/er.txt": None},
    "a file made executable": {"app.py": executable("value = 1\n")},
    "an executable edited": {"run.sh": executable("#!/bin/bash\n")},
    "a file made plain": {"run.sh": "#!/bin/sh\n"},
    "a link that leads elsewhere": {"link": link("run.sh")},
    "a file that became a link": {"app.py": link("run.sh")},
    "a link that became a file": {"link": "value\n"},
    "a file that became a directory": {"app.py": None, "app.py/inner": "i\n"},
    "a directory that became a file": {"src/util.py": None, "src/deep/er.txt": None, "src": "flat\n"},
    "a directory that became a link": {"src/util.py": None, "src/deep/er.txt": None, "src": link("link")},
    "a new submodule": {"vendor": submodule("1" * 40)},
    "odd names": {os.fsdecode(b"\xff\n"): "1", " -x": "2", "tab\t/é": "3"},
    "many at once": {"app.py": None, "other.py": "o\n", "src/deep/er.txt": "d\n", "src/new": "n\n", "zz/top": "t\n"},
}


@pytest.mark.parametrize("name", FORWARD)
def test_a_clean_checkout_is_brought_forward_and_is_clean_again(repo: GitRepo, name: str) -> None:
    commit = bring(repo, planned(repo, FORWARD[name]))

    assert repo.status() == []
    # Not even a repaired stat: what git would write into the index is in it already.
    assert repo.text("diff-files", "--raw") == ""
    assert repo.text("write-tree") == repo.text("rev-parse", f"{commit}^{{tree}}")
    assert not (repo.git_dir / "index.lock").exists()
    repo.fsck()


@pytest.mark.parametrize("object_format", FORMATS)
def test_both_object_formats_are_brought_forward(tmp_path: Path, object_format: str) -> None:
    repo = GitRepo.make(tmp_path / "durable", FILES, object_format=object_format)

    bring(repo, planned(repo, {"app.py": "value = 2\n", "new": "n\n", "other.py": None}))

    assert repo.status() == []
    assert (repo.path / "app.py").read_text() == "value = 2\n"


def test_a_linked_work_tree_is_brought_forward(repo: GitRepo, tmp_path: Path) -> None:
    repo.git("checkout", "-q", "--detach")
    repo.git("worktree", "add", "-q", str(tmp_path / "linked"), "main")

    bring(repo, planned(repo, EDIT), at=tmp_path / "linked")

    assert GitRepo(tmp_path / "linked").status() == []
    assert (tmp_path / "linked/app.py").read_text() == "value = 2\n"
    assert (repo.path / "app.py").read_text() == "value = 1\n"


def another_file_dirty(repo: GitRepo) -> None:
    put(repo.path, {"other.py": "mine\n", "src/util.py": None})


def untracked_files(repo: GitRepo) -> None:
    put(repo.path, {"notes.txt": "mine\n", "src/notes": "mine\n"})


def another_file_staged(repo: GitRepo) -> None:
    put(repo.path, {"other.py": "mine\n", "added": "a\n"})
    repo.git("add", "other.py", "added")


def another_file_staged_and_edited(repo: GitRepo) -> None:
    another_file_staged(repo)
    put(repo.path, {"other.py": "edited\n"})


def another_deletion_staged(repo: GitRepo) -> None:
    repo.git("rm", "-q", "--cached", "other.py")


def stashed(repo: GitRepo) -> None:
    put(repo.path, {"other.py": "stashed\n"})
    repo.git("stash", "-q")


@pytest.mark.parametrize(
    "state",
    [
        another_file_dirty,
        untracked_files,
        another_file_staged,
        another_file_staged_and_edited,
        another_deletion_staged,
        intent_to_add,
        stashed,
    ],
)
def test_unrelated_work_survives_byte_for_byte(repo: GitRepo, state: Callable[[GitRepo], None]) -> None:
    state(repo)
    status, staged = repo.status(), repo.text("ls-files", "--stage", "--", ":!app.py")
    before = everything_below(repo.path)

    bring(repo, planned(repo, EDIT))

    after = everything_below(repo.path)
    changed = {path for path in before | after if not path.startswith(".git/") and before.get(path) != after.get(path)}
    assert changed == {"app.py"}
    assert repo.status() == status
    assert repo.text("ls-files", "--stage", "--", ":!app.py") == staged


def test_another_paths_conflict_and_flags_are_copied_as_they_stand(repo: GitRepo) -> None:
    blob = repo.text("hash-object", "-w", "--stdin", stdin=b"theirs\n")
    stages = "".join(f"100644 {blob} {stage}\tother.py\n" for stage in (1, 2, 3))
    repo.git("update-index", "--index-info", stdin=f"0 {'0' * 40}\tother.py\n{stages}".encode())
    repo.git("update-index", "--assume-unchanged", "run.sh")

    bring(repo, planned(repo, EDIT))

    assert repo.text("ls-files", "--stage", "other.py").count(blob) == 3
    assert repo.text("ls-files", "-v", "run.sh") == "h run.sh"


def test_a_held_index_refuses_and_names_the_lock(repo: GitRepo) -> None:
    lock = repo.git_dir / "index.lock"
    lock.write_bytes(b"")

    with pytest.raises(WorktreeDirty, match=r"another program holds .*index\.lock"):
        bring(repo, planned(repo, EDIT))

    assert lock.read_bytes() == b""


def test_a_lock_whose_dead_owner_is_settled_is_no_obstacle(repo: GitRepo) -> None:
    lock = repo.git_dir / "index.lock"
    lock.write_text("dead\n")
    commit, sides = planned(repo, EDIT)

    def settle(held: str) -> bool:
        assert held == "dead"
        lock.unlink()
        return True

    with Repository.open(repo.path) as opened:
        with lock_checkout(checkout_at(opened, repo.path), opened.format, sides, opened.blob, token=commit, settle=settle):
            assert lock.read_text() == commit + "\n"

    assert not lock.exists()


def test_while_it_is_held_git_cannot_write_the_index(repo: GitRepo) -> None:
    put(repo.path, {"other.py": "mine\n"})
    commit, sides = planned(repo, EDIT)

    with (
        Repository.open(repo.path) as opened,
        lock_checkout(checkout_at(opened, repo.path), opened.format, sides, opened.blob, token=commit),
    ):
        refused = try_git("add", "other.py", cwd=repo.path)

    assert refused.returncode != 0
    assert b"index.lock" in refused.stderr
    repo.git("add", "other.py")


def test_a_block_that_fails_leaves_the_checkout_as_it_was(repo: GitRepo) -> None:
    commit, sides = planned(repo, EDIT)
    before = everything_below(repo.path)

    with pytest.raises(ZeroDivisionError), Repository.open(repo.path) as opened:
        with lock_checkout(checkout_at(opened, repo.path), opened.format, sides, opened.blob, token=commit):
            raise ZeroDivisionError

    assert everything_below(repo.path) == before


def test_what_was_half_done_is_finished(repo: GitRepo) -> None:
    changes: Mapping[str, Content] = {"app.py": "value = 2\n", "src/util.py": "x = 2\n", "other.py": None}
    ours, a_persons = f"src/{temporary_name()}", "src/.gittrix-tmp-notes"
    put(repo.path, {"app.py": "value = 2\n", "other.py": None, ours: "half of it", a_persons: "mine"})

    with pytest.raises(WorktreeDirty):
        bring(repo, planned(repo, changes))
    bring(repo, planned(repo, changes), resumed=True)

    assert repo.status() == [f"?? {a_persons}"]


def test_a_resumed_update_leaves_the_humans_own_work_and_takes_nothing_back(repo: GitRepo) -> None:
    put(repo.path, {"app.py": "mine\n", "other.py": "staged\n"})
    repo.git("add", "other.py")

    bring(repo, planned(repo, {"app.py": "value = 2\n", "other.py": "o\n", "src/util.py": "x = 2\n"}), resumed=True)

    assert (repo.path / "app.py").read_text() == "mine\n"
    assert repo.status() == [" M app.py", "M  other.py"]


def test_a_sparse_checkout_stays_sparse(repo: GitRepo) -> None:
    repo.git("sparse-checkout", "set", "--no-cone", "/app.py", "/run.sh", "/link")

    bring(repo, planned(repo, {"app.py": "value = 2\n", "src/util.py": "x = 2\n", "src/new.py": "n\n", "new.txt": "t\n"}))

    assert repo.status() == []
    assert not (repo.path / "src").exists()
    assert repo.text("ls-files", "-t", "src/util.py", "src/new.py", "new.txt").splitlines() == [
        "H new.txt",
        "S src/new.py",
        "S src/util.py",
    ]
    repo.git("sparse-checkout", "disable")
    assert [(repo.path / path).read_text() for path in ("src/util.py", "src/new.py")] == ["x = 2\n", "n\n"]


def test_a_file_that_git_rewrote_on_the_way_out_counts_as_clean(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {**FILES, ".gitattributes": "*.py text eol=crlf\n"})
    os.utime(repo.path / "app.py", ns=(10**18, 10**18))
    repo.git("update-index", "--refresh")
    assert (repo.path / "app.py").read_bytes() == b"value = 1\r\n"

    bring(repo, planned(repo, EDIT))

    assert (repo.path / "app.py").read_bytes() == b"value = 2\r\n"


@pytest.mark.parametrize("attributes", ["*.py text eol=crlf\n", "* text=auto eol=crlf\n", None])
def test_a_file_with_the_line_endings_that_git_asks_for_is_clean_whatever_its_times(tmp_path: Path, attributes: str | None) -> None:
    repo = GitRepo.make(tmp_path / "durable", FILES)
    if attributes is None:
        repo.git("config", "core.autocrlf", "true")
    else:
        put(repo.git_dir / "info", {"attributes": attributes})
    (repo.path / "app.py").unlink()
    repo.git("checkout", "app.py")
    assert (repo.path / "app.py").read_bytes() == b"value = 1\r\n"
    os.utime(repo.path / "app.py", ns=(10**18, 10**18))
    assert repo.status() == []

    bring(repo, planned(repo, EDIT))

    assert (repo.path / "app.py").read_bytes() == b"value = 2\r\n"
    assert repo.status() == []


@pytest.mark.parametrize(
    ("attributes", "content"),
    [
        ("*.py -text\n", "value = 1\r\n"),
        ("", "value = 1\r\n"),
        ("*.py text eol=crlf\n", "value = 3\r\n"),
        ("*.py text eol=crlf\n", "value = 1\r\n"),
    ],
    ids=["no text", "no rule", "another value", "another size than recorded"],
)
def test_a_file_whose_line_endings_are_the_humans_own_is_not_clean(repo: GitRepo, attributes: str, content: str) -> None:
    put(repo.git_dir / "info", {"attributes": attributes})
    put(repo.path, {"app.py": content})
    assert repo.status() == [" M app.py"]

    with pytest.raises(WorktreeDirty, match=r"'app\.py' has changes"):
        bring(repo, planned(repo, EDIT))

    assert (repo.path / "app.py").read_bytes() == content.encode()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (("sparse-checkout", "set", "--cone", "--sparse-index", "src/deep"), "extension 'sdir'"),
        (("update-index", "--split-index"), "extension 'link'"),
    ],
)
def test_an_index_that_cannot_be_kept_byte_for_byte_is_refused_by_name(repo: GitRepo, make: tuple[str, ...], message: str) -> None:
    repo.git(*make)
    plan = planned(repo, EDIT)
    before = everything_below(repo.path)

    with pytest.raises(UnsupportedRepository, match=message):
        bring(repo, plan)

    assert everything_below(repo.path) == before


def test_no_hook_or_filter_of_the_human_runs(repo: GitRepo, tmp_path: Path) -> None:
    hook = f"#!/bin/sh\ntouch {tmp_path}/ran\n"
    for name in ("post-checkout", "post-index-change", "reference-transaction", "post-merge"):
        put(repo.git_dir / "hooks", {name: executable(hook)})
    git("config", "filter.x.smudge", f"touch {tmp_path}/ran; cat", cwd=repo.path)
    put(repo.git_dir / "info", {"attributes": "* filter=x\n"})

    bring(repo, planned(repo, EDIT))

    assert not (tmp_path / "ran").exists()
    assert (repo.path / "app.py").read_text() == "value = 2\n"
