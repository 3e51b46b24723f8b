"""What a durable repository shows of itself, its work tree, what did not change, and the rival beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from support.durable_repo import POINTER, kinds, make, status
from support.git import GitRepo

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.errors import CapabilityMissing, GitFailed, InvalidInput, PathNotFound, WriteRejected
from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
from pytest_gittrix.testing.repos.history import Executable, Submodule, Symlink

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/run-tests-from-a-git-hook.md"


@pytest.fixture
def rival(durable: DurableRepo, tmp_path: Path, clock: FrozenClock) -> Iterator[Rival]:
    with Rival(durable.path, when=clock.now, home=tmp_path / "home") as other:
        yield other


# Looking -----------------------------------------------------------------------------------------------------------------------


def test_reading_is_of_the_branch_or_of_what_is_named(durable: DurableRepo) -> None:
    first = durable.head()
    second = durable.commit({"app.py": "two\n"}, "Second")

    assert (durable.read("app.py"), durable.read("app.py", first), durable.read("app.py", "main")) == (b"two\n", b"one\n", b"two\n")
    assert [(commit.id, commit.message) for commit in durable.log()] == [(second, "Second\n"), (first, "Start the project\n")]
    assert [commit.id for commit in durable.log(first)] == [first]
    assert durable.entry("docs") is None
    assert durable.entry("app.py", first) == durable.tree(first)["app.py"]
    with pytest.raises(PathNotFound):
        durable.read("docs")


def test_what_other_programs_do_is_seen_at_once(durable: DurableRepo, tmp_path: Path) -> None:
    with DurableRepo(durable.path, home=tmp_path / "home") as other:
        assert other.read("app.py") == b"one\n"
        (durable.path / "app.py").write_text("by hand\n")
        durable.git("commit", "-q", "-a", "-m", "By hand")

        assert other.read("app.py") == b"by hand\n"
        assert other.head() == durable.git("rev-parse", "HEAD")


def test_git_runs_as_this_person_at_the_clocks_instant_and_sees_nothing_of_the_users(
    durable: DurableRepo, rival: Rival, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    clock.advance(days=1)

    durable.git("commit", "-q", "--allow-empty", "-m", "mine")
    rival.git("commit", "-q", "--allow-empty", "-m", "theirs")

    assert durable.git("log", "-2", "--format=%an %ae %cd", "--date=iso-strict").splitlines() == [
        "Rival rival@example.com 2030-01-02T00:00:00+00:00",
        "Human human@example.com 2030-01-02T00:00:00+00:00",
    ]


def test_git_reads_input_and_says_why_it_failed(durable: DurableRepo) -> None:
    assert durable.git("hash-object", "--stdin", input="one\n") == durable.tree()["app.py"].id
    assert durable.git("hash-object", "--stdin", input=b"one\n") == durable.tree()["app.py"].id
    with pytest.raises(GitFailed, match="absent"):
        durable.git("rev-parse", "absent")


def test_the_gitpython_object_sees_the_repository_and_runs_hermetic(durable: DurableRepo, clock: FrozenClock) -> None:
    sha = durable.commit({"app.py": "two\n"})

    assert durable.repo.head.commit.hexsha == sha
    assert durable.repo is durable.repo
    assert durable.repo.git.var("GIT_AUTHOR_IDENT").startswith("Human <human@example.com> 1893456000")
    clock.advance(seconds=5)
    assert durable.repo.git.var("GIT_AUTHOR_IDENT").startswith("Human <human@example.com> 1893456005")


# The work tree -----------------------------------------------------------------------------------------------------------------


def test_dirty_changes_files_and_nothing_else(durable: DurableRepo) -> None:
    before = durable.fingerprint()

    durable.dirty({"app.py": "mine\n", "run.sh": "#!/bin/bash\n", "docs/guide.md": None, "new/x": b"\xff", "l": Symlink("x")})

    after = durable.fingerprint()
    assert {line.partition(":")[0] for line in before.diff(after)} == {"work tree"}
    assert status(durable).split("\n") == [" M app.py", " D docs/guide.md", " M run.sh", "?? l", "?? new/"]
    assert kinds(durable)["run.sh"] == "100755"
    assert os.access(durable.path / "run.sh", os.X_OK)


def test_stage_stages_what_it_writes(durable: DurableRepo) -> None:
    head = durable.head()

    durable.stage({"app.py": "mine\n", "docs/guide.md": None, "new/x": Executable("x"), "l": Symlink("x"), "lib": Submodule(POINTER)})

    assert status(durable).split("\n") == ["M  app.py", "D  docs/guide.md", "A  l", "A  lib", "A  new/x"]
    assert durable.git("ls-files", "-s", "lib", "l", "new/x").split()[::4] == ["120000", "160000", "100755"]
    assert durable.head() == head


def test_staging_a_file_in_place_of_a_directory_and_the_reverse(durable: DurableRepo) -> None:
    durable.stage({"docs/guide.md": None, "docs": "flat\n", "app.py": None, "app.py/inner": "in\n"})

    assert durable.git("diff", "--cached", "--name-status", "--no-renames").split() == [
        *("D", "app.py"),
        *("A", "app.py/inner"),
        *("A", "docs"),
        *("D", "docs/guide.md"),
    ]
    assert durable.git("diff", "--name-only") == ""


def test_what_cannot_be_in_a_work_tree_is_refused(durable: DurableRepo, bare: DurableRepo) -> None:
    with durable.unchanged():
        with pytest.raises(InvalidInput, match="'absent' cannot be removed"):
            durable.dirty({"absent": None})
        with pytest.raises(WriteRejected):
            durable.stage({"../outside": "x"})
    with pytest.raises(CapabilityMissing, match="is bare"):
        bare.dirty({"app.py": "x"})


# Unchanged ---------------------------------------------------------------------------------------------------------------------


def test_an_unchanged_block_passes_and_gives_the_fingerprint(durable: DurableRepo) -> None:
    with durable.unchanged() as fingerprint:
        durable.git("status")

    assert fingerprint == durable.fingerprint()


def test_a_change_in_an_unchanged_block_is_an_assertion_error_that_names_it(durable: DurableRepo) -> None:
    with pytest.raises(AssertionError, match=r"(?s)durable changed:.*index: new: nothing -> 100644.*work tree: new: nothing -> file"):
        with durable.unchanged():
            durable.stage({"new": "x"})


def test_an_error_does_not_hide_a_change(durable: DurableRepo) -> None:
    with pytest.raises(AssertionError, match="work tree: new") as caught:
        with durable.unchanged():
            durable.dirty({"new": "x"})
            raise ZeroDivisionError

    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_an_error_passes_through_where_nothing_changed(durable: DurableRepo) -> None:
    with pytest.raises(ZeroDivisionError):
        with durable.unchanged():
            raise ZeroDivisionError


# The checkout that the run was started in ------------------------------------------------------------------------------------------


@pytest.fixture
def project(durable: DurableRepo, tmp_path: Path) -> GitRepo:
    durable.run_from = tmp_path / "project"
    return GitRepo.make(durable.run_from, {"mine.txt": "mine\n"})


def test_a_change_in_the_checkout_of_the_run_is_an_assertion_error_in_four_parts(durable: DurableRepo, project: GitRepo) -> None:
    with pytest.raises(AssertionError) as caught, durable.unchanged():
        project.git("commit", "-q", "--allow-empty", "-m", "agent")

    message = str(caught.value)
    fact, moved, why, fix, opt_out = message.splitlines()
    assert f"\n{why}\n{fix}\n{opt_out}\n```\n" in PAGE.read_text(encoding="utf-8")
    assert fact == f"{project.path}, where this test run was started, changed:"
    assert moved.startswith("  HEAD: main at ")
    assert moved.endswith(" (commit: agent)")
    assert why.startswith("Nothing in a world works there")
    assert "workspace_path (cwd=)" in fix
    assert opt_out.startswith("unchanged(elsewhere=False)")


def test_both_repositories_are_named_if_both_changed(durable: DurableRepo, project: GitRepo) -> None:
    with pytest.raises(AssertionError) as caught, durable.unchanged():
        durable.dirty({"new": "x"})
        (project.path / "mine.txt").write_text("agent\n")
        project.git("add", "-A")

    lines = str(caught.value).splitlines()
    assert lines[0] == f"{durable.path} changed:"
    assert "  index: mine.txt" in lines


def test_the_checkout_of_the_run_is_left_out_where_asked_and_where_it_is_durables_own(durable: DurableRepo, project: GitRepo) -> None:
    with durable.unchanged(elsewhere=False):
        project.git("commit", "-q", "--allow-empty", "-m", "agent")
    with durable.unchanged():
        (project.path / "mine.txt").write_text("a file alone\n")
    durable.git("worktree", "add", "-q", "-b", "w", str(project.path / "linked"))
    durable.run_from = project.path / "linked"
    with pytest.raises(AssertionError) as caught, durable.unchanged():
        durable.git("-C", str(durable.run_from), "commit", "-q", "--allow-empty", "-m", "agent")
    assert "where this test run was started" not in str(caught.value)


# The rival, and other repositories ---------------------------------------------------------------------------------------------


def test_a_rival_writes_as_another_person_and_leaves_the_work_tree_alone(durable: DurableRepo, rival: Rival) -> None:
    before = durable.fingerprint()

    sha = rival.commit({"app.py": "theirs\n"})

    differences = before.diff(durable.fingerprint())
    assert {line.partition(":")[0] for line in differences} == {"refs", "reflogs"}
    assert durable.head() == sha
    assert durable.git("show", "-s", "--format=%an <%ae>|%cn", sha) == "Rival <rival@example.com>|Rival"


def test_a_rival_follows_in_the_work_tree_where_asked(durable: DurableRepo, rival: Rival) -> None:
    rival.commit({"app.py": "theirs\n"}, worktree=True)
    assert status(durable) == ""

    rival.rewind(durable.log()[1].id)
    assert status(durable) == "M  app.py"
    rival.rename("run.sh", "run", worktree=True)
    assert (durable.path / "run").exists()


def test_a_bare_repository_takes_commits_renames_and_rewinds(bare: DurableRepo) -> None:
    first = bare.head()

    bare.commit({"app.py": "two\n"})
    bare.rename("app.py", "main.py")

    assert bare.read("main.py") == b"two\n"
    bare.rewind(first)
    assert bare.git("rev-parse", "main") == first
    bare.git("fsck", "--strict")


def test_a_sha256_repository_has_the_same_verbs(tmp_path: Path, clock: FrozenClock) -> None:
    with DurableRepo(make(tmp_path, object_format="sha256"), when=clock.now) as repo:
        sha = repo.commit({"app.py": "two\n"})

        assert len(sha) == 64
        assert repo.read("app.py") == b"two\n"
        assert repo.git("rev-parse", "HEAD") == sha
        assert status(repo) == ""


def test_without_a_clock_commits_have_the_real_time(tmp_path: Path) -> None:
    with DurableRepo(make(tmp_path)) as repo:
        repo.commit({"app.py": "two\n"})

        written = repo.log()[0].committer.when
        assert abs(written - datetime.now(written.tzinfo)) < timedelta(minutes=5)


def test_a_closed_repository_opens_again_when_it_is_used(durable: DurableRepo) -> None:
    durable.repo.head.commit  # noqa: B018 - opens GitPython's own processes
    durable.close()
    durable.close()

    assert durable.read("app.py") == b"one\n"
    assert durable.repo.head.commit.hexsha == durable.head()


def test_a_name_that_is_no_branch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a branch name"):
        DurableRepo(make(tmp_path), "-x")
