"""Repositories of unusual make: where their work tree is, how they are found again, how their branches and paths may be called."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import DurableGit, Site, as_ordinary_user, at_point, open_site
from support.git import GitRepo, git

from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, PromoteFailed
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.workspaces.trash import Trash

FILES = {"a": "1\n", "src/b": "2\n"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path) as opened:
        yield opened


def engine(root: Path, durable: Path | str | None) -> GitTrix:
    """An engine with its store below a directory."""
    return GitTrix(durable, store=root / "sessions", clock=FrozenClock(), durability="fast", strategy="commit", sweep_interval=None)


class TestABareRepositoryWithASparseWorkTree:
    """``git sparse-checkout`` in a linked work tree moves ``core.bare`` from ``config`` to ``config.worktree``."""

    @pytest.fixture
    def repo(self, tmp_path: Path) -> GitRepo:
        repo = GitRepo.make(tmp_path / "projects/repo.git", FILES, bare=True)
        repo.git("worktree", "add", "-q", str(tmp_path / "linked"), "main")
        GitRepo(tmp_path / "linked").git("sparse-checkout", "set", "src")
        assert "bare" not in (repo.path / "config").read_text()
        return repo

    def test_is_bare_still(self, repo: GitRepo, tmp_path: Path) -> None:
        with Repository.open(repo.path) as opened:
            assert opened.bare
            assert [checkout.path for checkout in opened.checkouts()] == [str(tmp_path / "linked")]

    def test_promotes_into_its_linked_work_tree_and_nowhere_else(self, repo: GitRepo, tmp_path: Path) -> None:
        with engine(tmp_path, repo.path) as gittrix:
            session = gittrix.start_session("task")
            session.write("src/new.txt", "agent\n")
            session.promote()

        assert os.listdir(repo.path.parent) == ["repo.git"]
        assert GitRepo(tmp_path / "linked").status() == []
        assert (tmp_path / "linked/src/new.txt").read_text() == "agent\n"

    def test_ignores_that_file_where_the_extension_is_off(self, repo: GitRepo) -> None:
        repo.git("config", "extensions.worktreeConfig", "false")
        repo.git("config", "core.bare", "false")

        with Repository.open(repo.path) as opened:
            assert not opened.bare


class TestAGitDirectoryKeptApart:
    """``git init --separate-git-dir``: nothing in the git directory says where the work tree is."""

    @pytest.fixture
    def repo(self, tmp_path: Path) -> GitRepo:
        repo = GitRepo.make(tmp_path / "work", FILES)
        (tmp_path / "store").mkdir()
        repo.git("init", "-q", "--separate-git-dir", str(tmp_path / "store/apart.git"))
        return repo

    def test_serves_the_work_tree_it_was_found_from(self, repo: GitRepo, tmp_path: Path) -> None:
        with engine(tmp_path, repo.path / "src") as gittrix:
            session = gittrix.start_session("task")
            session.write("new.txt", "agent\n")
            session.promote()

        assert os.listdir(tmp_path / "store") == ["apart.git"]
        assert repo.status() == []
        assert (repo.path / "new.txt").read_text() == "agent\n"

    def test_opened_by_itself_claims_no_work_tree(self, repo: GitRepo, tmp_path: Path) -> None:
        with Repository.open(tmp_path / "store/apart.git") as opened:
            assert opened.checkouts() == []


class TestAWorkTreeInsideAnotherRepository:
    """``core.worktree`` leads from the git directory to the files, and nothing leads back: up from the files is another repository."""

    @pytest.fixture
    def outer(self, tmp_path: Path) -> GitRepo:
        outer = GitRepo.make(tmp_path / "outer", {"o": "outer\n", ".gitignore": "/site\n"})
        (outer.path / "site").mkdir()
        return outer

    @pytest.fixture
    def inner(self, outer: GitRepo, tmp_path: Path) -> GitRepo:
        repo = GitRepo.make(tmp_path / "inner.git", FILES, bare=True)
        git("--git-dir", str(repo.path), "config", "core.bare", "false")
        git("--git-dir", str(repo.path), "config", "core.worktree", str(outer.path / "site"))
        git("--git-dir", str(repo.path), "reset", "-q", "--hard", cwd=outer.path / "site")
        return repo

    def test_is_found_again_by_the_path_it_gives(self, inner: GitRepo) -> None:
        first = LocalDurable(inner.path)
        reopened = LocalDurable(first.path)

        assert reopened.repository.common_dir == first.repository.common_dir == str(inner.path)
        first.close()
        reopened.close()

    def test_gets_the_promotion_of_a_session_that_another_engine_opened(self, outer: GitRepo, inner: GitRepo, tmp_path: Path) -> None:
        before = outer.head()
        with engine(tmp_path, inner.path) as gittrix:
            session = gittrix.start_session("task")
            session.write("a", "agent\n")

        with engine(tmp_path, None) as gittrix:
            gittrix.get_session(session.id).promote()

        assert outer.head() == before
        assert (outer.path / "site/a").read_text() == "agent\n"


class TestALinkedWorkTreeWithoutItsRepository:
    @pytest.fixture
    def linked(self, tmp_path: Path) -> Path:
        GitRepo.make(tmp_path / "main", FILES).git("worktree", "add", "-q", str(tmp_path / "linked"), "-b", "other")
        return tmp_path / "linked"

    def test_whose_entry_was_pruned_is_refused_by_name(self, linked: Path, tmp_path: Path) -> None:
        shutil.rmtree(tmp_path / "main/.git/worktrees/linked")
        with pytest.raises(AdapterUnavailable, match=r"linked belongs to the repository .*main/\.git/worktrees/linked, which is not there"):
            Repository.open(linked)

    def test_that_was_moved_is_refused_by_name(self, linked: Path, tmp_path: Path) -> None:
        (tmp_path / "main").rename(tmp_path / "moved")
        with pytest.raises(AdapterUnavailable, match="git worktree repair"):
            Repository.open(linked)

    def test_that_was_moved_while_it_was_open_cannot_be_read(self, linked: Path, tmp_path: Path) -> None:
        with Repository.open(linked) as opened:
            opened.close()
            (tmp_path / "main").rename(tmp_path / "moved")
            with pytest.raises(AdapterUnavailable, match=r"main/\.git/objects cannot be opened"):
                opened.blob("0" * 40)


def test_locks_of_a_work_tree_that_git_prunes_meanwhile_need_no_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = GitRepo.make(tmp_path / "main", FILES)
    repo.git("worktree", "add", "-q", str(tmp_path / "linked"), "-b", "other")
    entry = repo.path / ".git/worktrees/linked"
    (entry / "index.lock").write_text("1" * 40)
    unlink = os.unlink

    def prune_first(path: str, **where: int) -> None:
        if path == str(entry / "index.lock"):
            entry.rename(tmp_path / "pruned")
        unlink(path, **where)

    monkeypatch.setattr(os, "unlink", prune_first)
    assert LocalDurable(repo.path).repair("other", "1" * 40, None) == [str(entry / "index.lock")]


def test_a_repository_that_is_open_sees_its_configuration_change(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", FILES)
    with Repository.open(repo.path) as opened:
        before, _ = opened.identity
        repo.git("config", "user.name", "Ada")
        after, _ = opened.identity

    assert (before, after) == (None, "Ada")


class TestBranchNames:
    def test_in_full_or_in_short_name_the_same_branch(self, site: Site) -> None:
        session = site.start(durable_branch="refs/heads/main")

        assert session.info().durable_branch == "main"
        assert (session.workspace_path / ".git/HEAD").read_text() == "ref: refs/heads/main\n"
        assert session.log() == []

    def test_of_an_adapter_too(self, site: Site) -> None:
        durable = LocalDurable(site.durable.path, "refs/heads/main")

        assert durable.branch == "main"
        assert durable.uri == f"local://{site.durable.path}#main"
        durable.close()

    @pytest.mark.parametrize(
        "name", ["b" * 300, "b" * 251, "a/" * 600 + "b", "b\ud800"], ids=["long", "with its lock", "deep", "surrogate"]
    )
    def test_no_file_could_be_called_are_refused(self, site: Site, name: str) -> None:
        with pytest.raises(InvalidInput, match="is not a branch name"):
            site.start(durable_branch=name)

    def test_as_long_as_git_takes_them_are_taken(self, site: Site) -> None:
        site.durable.git("branch", "b" * 250)

        assert site.start(durable_branch="b" * 250).info().durable_branch == "b" * 250


def test_a_repository_whose_path_is_not_utf_8_works_and_its_reference_is_text(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"caf\xe9 x\ny")
    directory.mkdir()
    durable = DurableGit.make(directory / "durable", {"a": "1\n"})
    with engine(tmp_path, durable.path) as gittrix:
        session = gittrix.start_session("task")
        session.write("a", "2\n")
        ref, path = session.info().durable_ref, session.info().durable_path
        session.promote()

    assert path == str(durable.path)
    assert "/caf%E9 x\ny/" in ref.encode().decode()
    assert durable.read("a") == b"2\n"
    with engine(tmp_path, None) as gittrix:
        assert [one.durable_path for one in gittrix.list_sessions()] == [path]
        assert gittrix.start_session("again", durable_ref=ref).read("a") == b"2\n"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free disk space"),
        (errno.EDQUOT, "Free disk space"),
        (errno.EACCES, "you may write"),
        (errno.EROFS, "you may write"),
        (errno.EMFILE, "Close files"),
        (errno.EIO, "Fix the cause"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_what_the_system_refused_is_told_with_a_remedy_for_it(site: Site, number: int, remedy: str) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    before = site.durable.head()

    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    with at_point("land:packed", refuse), pytest.raises(PromoteFailed, match=os.strerror(number)) as caught:
        session.promote()

    assert remedy in caught.value.fix
    assert site.durable.head() == before
    assert site.durable.leftovers() == []


def test_a_workspace_that_its_agent_made_read_only_can_be_thrown_away(tmp_path: Path) -> None:
    def throw_away() -> None:
        os.mkdir("workspace")
        os.mkdir("workspace/inner")
        Path("workspace/inner/file").write_text("x")
        os.chmod("workspace/inner", 0o500)
        os.chmod("workspace", 0o555)
        trash = Trash("trash")
        trash.discard("workspace")
        assert os.listdir(".") == ["trash"]
        trash.empty()
        assert os.listdir("trash") == []

    assert as_ordinary_user(throw_away, tmp_path) == 0
