"""Durable repositories: found from anywhere in them, refused by name where they are not fit, read and moved as git would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.git import FORMATS, GitRepo, executable, git, link, submodule, try_git

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, PathNotFound, UnsupportedRepository
from pytest_gittrix.git.commit import BuiltCommit, Signature, build_commit
from pytest_gittrix.git.objects import SHA1, MissingObject
from pytest_gittrix.git.refs import RefMoved
from pytest_gittrix.git.repository import Repository, require_head
from pytest_gittrix.git.tree import FILE, Entry

MAIN = "refs/heads/main"
WHO = Signature("A Person", "person@example.com", 1893456000, 60)
FILES = {"a": "1\n", "src/b": "2\n", "run": executable("x\n"), "link": link("a"), "sub": submodule("1" * 40)}


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    """A repository with a work tree."""
    return GitRepo.make(tmp_path / "durable", FILES)


def built(opened: Repository, text: str = "2\n", ref: str = MAIN) -> BuiltCommit:
    """A commit on a branch's head that edits ``a``."""
    blob = opened.format.hash_object("blob", text.encode())
    head = opened.head(ref)
    return build_commit(
        opened.trees.read, opened.tree(head) if head else None, {"a": Entry(FILE, blob)}, {blob: text.encode()},
        parent=head, author=WHO, message=f"set a to {text}", format_=opened.format,
    )  # fmt: skip


def land(opened: Repository, ref: str = MAIN, *, note: str = "promote", text: str = "2\n") -> str:
    commit = built(opened, text, ref)
    opened.land(ref, commit, signature=WHO, note=note, keep="why", expected=opened.head(ref))
    return commit.id


def from_the_root(repo: GitRepo, tmp_path: Path) -> Path:
    return repo.path


def from_a_subdirectory(repo: GitRepo, tmp_path: Path) -> Path:
    return repo.path / "src"


def from_the_git_directory(repo: GitRepo, tmp_path: Path) -> Path:
    return repo.git_dir


def through_a_link(repo: GitRepo, tmp_path: Path) -> Path:
    (tmp_path / "link").symlink_to(repo.path)
    return tmp_path / "link"


def through_a_git_file(repo: GitRepo, tmp_path: Path) -> Path:
    repo.git_dir.rename(tmp_path / "apart.git")
    (repo.path / ".git").write_text("gitdir: ../apart.git\n")
    return repo.path / "src"


def from_a_linked_work_tree(repo: GitRepo, tmp_path: Path) -> Path:
    repo.git("worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"))
    return tmp_path / "linked/src"


@pytest.mark.parametrize(
    "start", [from_the_root, from_a_subdirectory, from_the_git_directory, through_a_link, through_a_git_file, from_a_linked_work_tree]
)
def test_a_repository_is_found_as_git_finds_it(
    repo: GitRepo, tmp_path: Path, start: Callable[[GitRepo, Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = start(repo, tmp_path)
    wanted = {
        name: os.path.normpath(path / os.fsdecode(git("rev-parse", f"--{name}", cwd=path).strip()))
        for name in ("git-dir", "git-common-dir")
    }
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(repo.path))

    with Repository.open(path) as opened:
        found = {"git-dir": opened.git_dir, "git-common-dir": opened.common_dir}
        assert {name: os.path.realpath(there) for name, there in found.items()} == {
            name: os.path.realpath(there) for name, there in wanted.items()
        }
        assert opened.head(MAIN) is not None
        assert not opened.bare


def test_a_bare_repository_has_no_checkout(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1"}, bare=True)

    with Repository.open(repo.path) as opened:
        assert opened.bare
        assert opened.checkouts() == []
        assert opened.head(MAIN) == repo.head()


def test_checkouts_are_the_ones_git_lists(repo: GitRepo, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", "-b", "linked", str(tmp_path / "one"))
    repo.git("worktree", "add", "-q", "--detach", str(tmp_path / "two"))
    listed = [
        dict(line.partition(" ")[::2] for line in block.splitlines())
        for block in repo.text("worktree", "list", "--porcelain").split("\n\n")
    ]

    for start in (repo.path, tmp_path / "one"):
        with Repository.open(start) as opened:
            assert [(checkout.path, checkout.branch) for checkout in opened.checkouts()] == [
                (one["worktree"], one.get("branch")) for one in listed if one
            ]


def test_a_work_tree_that_is_elsewhere_is_known(repo: GitRepo, tmp_path: Path) -> None:
    repo.git("config", "core.worktree", "../../apart")

    with Repository.open(repo.path) as opened:
        assert opened.checkouts()[0].path == str(tmp_path / "apart")


def test_a_bare_repository_stays_bare_when_a_checkout_of_it_is_sparse(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1", "src/b": "2"}, bare=True)
    repo.git("worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"))
    git("sparse-checkout", "set", "src", cwd=tmp_path / "linked")
    assert repo.text("rev-parse", "--is-bare-repository") == "true"

    with Repository.open(repo.path) as opened:
        assert opened.bare
        assert [checkout.path for checkout in opened.checkouts()] == [str(tmp_path / "linked")]


def test_what_is_no_repository_is_refused_with_a_way_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(AdapterUnavailable, match="git init"):
        Repository.open(tmp_path)
    for path in (tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(AdapterUnavailable, match="not a directory"):
            Repository.open(path)


def shallow(repo: GitRepo) -> None:
    (repo.git_dir / "shallow").write_text(repo.head() + "\n")


def partial(repo: GitRepo) -> None:
    repo.git("config", "extensions.partialClone", "origin")


def promised(repo: GitRepo) -> None:
    repo.git("config", "remote.origin.promisor", "true")


def kept_in_a_table(repo: GitRepo) -> None:
    with (repo.git_dir / "config").open("a") as config:
        config.write("[extensions]\n\trefStorage = reftable\n")


def unknown(repo: GitRepo) -> None:
    with (repo.git_dir / "config").open("a") as config:
        config.write("[extensions]\n\tQuantum = yes\n")


def another_hash(repo: GitRepo) -> None:
    with (repo.git_dir / "config").open("a") as config:
        config.write("[extensions]\n\tobjectFormat = md5\n")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (shallow, "is shallow"),
        (partial, "a partial clone"),
        (promised, "a partial clone"),
        (kept_in_a_table, "'reftable'"),
        (unknown, r"unknown extensions \['quantum'\]"),
        (another_hash, "'md5'"),
    ],
)
def test_a_repository_that_is_not_fit_is_refused_by_name(repo: GitRepo, make: Callable[[GitRepo], None], message: str) -> None:
    make(repo)

    with pytest.raises(UnsupportedRepository, match=message):
        Repository.open(repo.path)


@pytest.mark.parametrize("config", ["[core\n", "\xff\xfe"])
def test_a_configuration_that_cannot_be_read_is_a_typed_error(repo: GitRepo, config: str) -> None:
    (repo.git_dir / "config").write_bytes(config.encode("latin-1"))

    with pytest.raises(AdapterUnavailable):
        Repository.open(repo.path)


def test_neither_includes_nor_global_settings_change_what_is_read(repo: GitRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".gitconfig").write_text("[user]\n\tname = Somebody Else\n[extensions]\n\tquantum = yes\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    repo.git("config", "user.email", "here@example.com")

    with Repository.open(repo.path) as opened:
        assert opened.identity == (None, "here@example.com")


@pytest.mark.parametrize("object_format", FORMATS)
def test_contents_are_read_as_git_reads_them(tmp_path: Path, object_format: str) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n", "d/link": link("../a")}, object_format=object_format)
    with Repository.open(repo.path) as opened:
        head = repo.head()

        assert opened.entries(head) == repo.tree()
        assert opened.read("a", head) == b"1\n"
        assert opened.read("d/link", head) == b"../a"
        assert opened.tree(head) == repo.text("rev-parse", "main^{tree}")
        for path in ("d", "nothing", "a/below"):
            with pytest.raises(PathNotFound):
                opened.read(path, head)


def test_a_submodule_is_no_file(repo: GitRepo) -> None:
    with Repository.open(repo.path) as opened, pytest.raises(PathNotFound):
        opened.read("sub", repo.head())


def test_the_log_follows_first_parents_as_far_as_asked(repo: GitRepo) -> None:
    repo.commit({"a": "2"}, "second")
    repo.commit({"a": "3"}, "third")
    with Repository.open(repo.path) as opened:
        assert [commit.message for commit in opened.log(repo.head())] == ["third", "second", "first"]
        assert [commit.message for commit in opened.log(repo.head(), 2)] == ["third", "second"]
        assert list(opened.log(repo.head(), 0)) == []


def test_a_branch_that_leads_to_no_commit_is_named(repo: GitRepo) -> None:
    (repo.git_dir / MAIN).write_text(repo.text("rev-parse", "main^{tree}") + "\n")

    with Repository.open(repo.path) as opened, pytest.raises(MissingObject, match="is a tree, not a commit"):
        opened.tree(opened.head(MAIN) or "")


def test_an_unknown_branch_is_refused_with_the_ones_there_are(repo: GitRepo) -> None:
    repo.git("branch", "other")
    with Repository.open(repo.path) as opened:
        assert require_head(opened, MAIN) == repo.head()
        with pytest.raises(InvalidInput, match="main, other"):
            require_head(opened, "refs/heads/none")


def test_the_branch_of_head_is_known_born_or_not(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable")
    with Repository.open(repo.path) as opened:
        assert opened.current_branch() == MAIN
        with pytest.raises(InvalidInput, match="make a first commit"):
            require_head(opened, MAIN)
        repo.commit({"a": "1"})
        repo.git("checkout", "-q", "--detach")
        assert opened.current_branch() is None


def test_what_lands_is_one_commit_that_git_finds_sound(repo: GitRepo) -> None:
    before = repo.head()
    with Repository.open(repo.path) as opened:
        commit = land(opened)

    assert repo.head() == commit
    assert repo.text("rev-list", "--parents", "-1", commit).split()[1:] == [before]
    assert repo.text("diff-tree", "-r", "--name-status", before, commit) == "M\ta"
    assert repo.text("log", "-1", "--format=%an <%ae> %ad", "--date=raw", commit) == "A Person <person@example.com> 1893456000 +0100"
    repo.fsck()
    assert not list(repo.git_dir.rglob("*.keep"))
    assert not list(repo.git_dir.rglob("*.lock"))


def test_the_first_commit_of_a_branch_lands_too(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", bare=True)
    with Repository.open(repo.path) as opened:
        commit = land(opened)

    assert repo.head() == commit
    assert repo.text("rev-list", "--count", "main") == "1"


def test_a_refused_landing_leaves_no_byte_behind(repo: GitRepo) -> None:
    with Repository.open(repo.path) as opened:
        commit = built(opened)
        repo.commit({"src/b": "theirs\n"})
        before = {path: path.read_bytes() for path in repo.git_dir.rglob("*") if path.is_file()}

        with pytest.raises(RefMoved):
            opened.land(MAIN, commit, signature=WHO, note="n", keep="k", expected=commit.parent)

    assert {path: path.read_bytes() for path in repo.git_dir.rglob("*") if path.is_file()} == before


def test_the_reflog_tells_what_happened_as_git_tells_it(repo: GitRepo) -> None:
    before = repo.head()
    with Repository.open(repo.path) as opened:
        commit = land(opened, note="promote:\n  a\tnote ")

    for name in ("main", "HEAD"):
        assert (
            repo.text("reflog", "show", "-1", "--format=%H %gn <%ge> %gs", name)
            == f"{commit} A Person <person@example.com> promote: a note"
        )
    assert repo.text("rev-parse", "main@{1}", "HEAD@{1}").split() == [before] * 2
    repo.git("reflog", "expire", "--all", "--expire=never")


def test_only_the_checkouts_on_the_branch_note_it(repo: GitRepo, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"))
    logs = [repo.git_dir / "logs/HEAD", repo.git_dir / "worktrees/linked/logs/HEAD"]
    before = [log.read_bytes() for log in logs]
    with Repository.open(repo.path) as opened:
        commit = land(opened, "refs/heads/linked")

    assert logs[0].read_bytes() == before[0]
    assert commit.encode() in logs[1].read_bytes()


@pytest.mark.parametrize("value", ["false", "No", "0"])
def test_a_repository_without_reflogs_gets_none(repo: GitRepo, value: str) -> None:
    repo.git("config", "core.logAllRefUpdates", value)
    log = repo.git_dir / "logs" / MAIN
    before = log.read_bytes()
    with Repository.open(repo.path) as opened:
        land(opened)

    assert log.read_bytes() == before


def test_a_bare_repository_is_logged_only_where_it_keeps_a_log(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"}, bare=True)
    with Repository.open(repo.path) as opened:
        land(opened)
        assert not (repo.git_dir / "logs" / MAIN).exists()
        (repo.git_dir / "logs/refs/heads").mkdir(parents=True)
        (repo.git_dir / "logs" / MAIN).touch()
        commit = land(opened, text="3\n")

    assert repo.text("reflog", "show", "-1", "--format=%H", "main") == commit


def test_a_branch_can_land_again_after_a_reopened_repository(repo: GitRepo) -> None:
    with Repository.open(repo.path) as opened:
        land(opened)
        opened.close()
        commit = land(opened, text="3\n")

    assert repo.head() == commit


def test_objects_can_be_added_as_one_pack(repo: GitRepo) -> None:
    data = {SHA1.hash_object("blob", text): ("blob", text) for text in (b"", b"one", b"two")}
    with Repository.open(repo.path) as opened:
        packs = len(list((repo.git_dir / "objects/pack").glob("*.pack")))
        opened.write_objects({})
        opened.write_objects(data)

    assert len(list((repo.git_dir / "objects/pack").glob("*.pack"))) == packs + 1
    assert [repo.git("cat-file", "blob", id_) for id_ in data] == [b"", b"one", b"two"]


def test_no_hook_and_no_signing_program_runs(repo: GitRepo, tmp_path: Path) -> None:
    for name in ("pre-commit", "reference-transaction", "post-commit", "update"):
        hook = repo.git_dir / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
    repo.git("config", "commit.gpgSign", "true")
    repo.git("config", "gpg.program", f"touch {tmp_path}/ran")

    with Repository.open(repo.path) as opened:
        commit = land(opened)

    assert b"gpgsig" not in repo.git("cat-file", "commit", commit)
    assert not (tmp_path / "ran").exists()


def test_replacements_do_not_change_what_is_read(repo: GitRepo) -> None:
    evil = repo.text("hash-object", "-w", "--stdin", stdin=b"evil\n")
    try_git("replace", repo.tree()["a"].id, evil, cwd=repo.path, env={"GIT_NO_REPLACE_OBJECTS": ""})

    with Repository.open(repo.path) as opened:
        assert opened.read("a", repo.head()) == b"1\n"
