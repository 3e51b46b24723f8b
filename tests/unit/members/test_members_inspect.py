"""What can be seen of a member's workspace: what is not committed, what is not pushed; without a change, a program or a question."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.members import Crew

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.members.members import RepositoryState
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.record.state.retention import Selector
from pytest_gittrix.testing.repos.member_witness import everything_below
from pytest_gittrix.workspaces.finder.worktree import unfinished_work
from pytest_gittrix.workspaces.multi_repo import RepositorySpec


def app(crew: Crew, life: Life) -> RepositoryState:
    """What the first repository of a session holds."""
    return crew.members.inspect(life.id).repositories[0]


# What is there -----------------------------------------------------------------------------------------------------------------


def test_a_fresh_workspace_holds_nothing(crew: Crew) -> None:
    life = crew.chat()
    seen = crew.members.inspect(life.id)
    assert seen.life == life
    assert seen.repositories == (RepositoryState("app", None), RepositoryState("crew", None))
    assert not seen.holds_work


def test_files_are_told_that_were_added_changed_or_deleted(crew: Crew) -> None:
    life = crew.chat()
    crew.put(life.id, "new.txt")
    crew.put(life.id, "a.txt", "changed\n")
    (crew.repo(life.id) / "src" / "b.txt").unlink()
    seen = app(crew, life)
    assert (seen.branch, seen.uncommitted, seen.unpushed, seen.holds_work) == (None, ("a.txt", "new.txt", "src/b.txt"), (), True)


def test_credentials_and_runtime_state_are_told_and_are_no_work(crew: Crew) -> None:
    life = crew.chat()
    for path in (".env", "run.log", ".ralph/state.json"):
        crew.put(life.id, path)
    seen = app(crew, life)
    assert (seen.uncommitted, seen.holds_work) == ((".env", ".ralph/state.json", "run.log"), False)


def test_what_git_ignores_is_no_work_and_named_apart(crew: Crew) -> None:
    crew.app.commit({".gitignore": "build/\n"})
    life = crew.chat()
    crew.put(life.id, "build/out.o")
    assert app(crew, life) == RepositoryState("app", None, ignored=("build/",))


def test_branches_are_told_that_the_remote_has_not(crew: Crew) -> None:
    life = crew.chat()
    crew.commit(life.id, "one.txt", branch="pushed")
    crew.git(life.id, "push", "-q", "origin", "pushed")
    crew.commit(life.id, "two.txt", branch="mine")
    seen = app(crew, life)
    assert (seen.branch, seen.unpushed, seen.uncommitted) == ("mine", ("mine",), ())


def test_rule_9_commits_on_a_detached_head_are_told(crew: Crew) -> None:
    life = crew.chat()
    commit = crew.commit(life.id, "detached.txt")
    assert app(crew, life).unpushed == (f"HEAD-{commit[:12]}",)


def test_stashes_and_commits_that_nothing_leads_to_are_told(crew: Crew) -> None:
    life = crew.chat()
    crew.put(life.id, "a.txt", "stashed\n")
    crew.git(life.id, "stash", "-q")
    stash = crew.git(life.id, "rev-parse", "stash")
    lost = crew.commit(life.id, "lost.txt")
    crew.git(life.id, "checkout", "-q", "--detach", "origin/main")
    assert app(crew, life).unpushed == (f"stash-{stash[:12]}", f"lost-{lost[:12]}")


def test_rule_13_repositories_with_a_place_of_several_parts_are_looked_into_too(crew: Crew) -> None:
    life = crew.chat(repositories=[RepositorySpec("org/deep/app", str(crew.app.path))])
    crew.put(life.id, "new.txt", place="projects/org/deep/app")
    assert crew.members.inspect(life.id).repositories == (RepositoryState("org/deep/app", None, ("new.txt",), (), True),)


def test_a_repository_that_nobody_knows_is_told_of(crew: Crew) -> None:
    life = crew.chat()
    crew.git(life.id, "clone", "-q", ".", "vendor/inner")
    crew.git(life.id, "init", "-q", str(crew.workspace(life.id) / "beside"))
    seen = crew.members.inspect(life.id).repositories
    assert [(one.name, one.holds_work) for one in seen] == [
        ("app", False),
        ("crew", False),
        ("beside", True),
        ("projects/app/vendor/inner", True),
    ]


def test_what_a_finalization_pushed_is_not_told_again(crew: Crew) -> None:
    life = crew.chat()
    crew.commit(life.id, "said.txt", branch="talk")
    crew.members.stop(life.id)
    assert app(crew, life) == RepositoryState("app", "talk")


def test_files_that_a_finalization_committed_and_pushed_are_told_and_are_no_work(crew: Crew) -> None:
    life = crew.chat()
    crew.put(life.id, "new.txt")
    crew.put(life.id, "a.txt", "changed\n")
    (crew.repo(life.id) / "src" / "b.txt").unlink()
    crew.members.stop(life.id)
    files = ("a.txt", "new.txt", "src/b.txt")
    assert app(crew, life) == RepositoryState("app", None, files, pushed=files)


def test_commits_are_known_to_be_pushed_under_those_that_the_finalization_made(crew: Crew) -> None:
    life = crew.chat()
    crew.commit(life.id, "said.txt", branch="talk")
    crew.put(life.id, "new.txt")
    crew.members.stop(life.id)
    assert app(crew, life) == RepositoryState("app", "talk", ("new.txt",), pushed=("new.txt",))


def test_commits_that_were_replayed_onto_what_came_meanwhile_are_known_too(crew: Crew) -> None:
    life = crew.chat()
    crew.commit(life.id, "said.txt", branch="talk")
    crew.git(life.id, "push", "-q", "origin", "talk")
    crew.app.commit({"theirs.txt": "theirs\n"}, branch="talk")
    crew.commit(life.id, "more.txt")
    crew.git(life.id, "stash", "-q")
    crew.put(life.id, "new.txt")
    crew.members.stop(life.id)
    assert set(crew.app.text("ls-tree", "--name-only", "talk").split()) >= {"theirs.txt", "said.txt", "more.txt", "new.txt"}
    assert app(crew, life) == RepositoryState("app", "talk", ("new.txt",), pushed=("new.txt",))


@pytest.mark.parametrize("how", ["changed", "added", "deleted", "made executable", "committed"])
def test_what_is_done_after_a_finalization_is_work_again(crew: Crew, how: str) -> None:
    life = crew.chat()
    crew.put(life.id, "new.txt")
    crew.members.stop(life.id)
    assert not app(crew, life).holds_work
    match how:
        case "changed":
            crew.put(life.id, "new.txt", "more\n")
        case "added":
            crew.put(life.id, "other.txt")
        case "deleted":
            (crew.repo(life.id) / "a.txt").unlink()
        case "made executable":
            (crew.repo(life.id) / "new.txt").chmod(0o755)
        case "committed":
            crew.commit(life.id, "later.txt")
    assert app(crew, life).holds_work
    crew.members.finalize(life.id)
    assert not app(crew, life).holds_work


def test_what_a_remote_did_not_take_stays_work(crew: Crew) -> None:
    life = crew.chat()
    crew.put(life.id, "new.txt")
    aside = crew.app.path.with_suffix(".aside")
    crew.app.path.rename(aside)
    crew.members.stop(life.id)
    aside.rename(crew.app.path)
    assert app(crew, life) == RepositoryState("app", None, ("new.txt",), (), True)


# What cannot be told -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["no .git", "a link for .git", "a broken HEAD", "no clone", "a link for the repository"])
def test_in_doubt_a_repository_holds_work_and_says_why(crew: Crew, how: str) -> None:
    life = crew.chat()
    repo = crew.repo(life.id)
    match how:
        case "no .git":
            shutil.rmtree(repo / ".git")
        case "a link for .git":
            (repo / ".git").rename(repo / "git")
            (repo / ".git").symlink_to("git")
        case "a broken HEAD":
            (repo / ".git" / "HEAD").write_text("nonsense")
        case "no clone":
            shutil.rmtree(crew.engine.home / "clones")
        case "a link for the repository":
            repo.rename(repo.with_name("moved"))
            repo.symlink_to("moved")
    seen = app(crew, life)
    assert seen.holds_work
    assert seen.problem


def test_a_repository_that_was_removed_holds_nothing(crew: Crew) -> None:
    life = crew.chat()
    shutil.rmtree(crew.repo(life.id))
    seen = app(crew, life)
    assert (seen.holds_work, seen.problem) == (False, "there is no repository any more")


def test_of_a_workspace_that_is_gone_nothing_is_told(crew: Crew) -> None:
    life = crew.chat()
    crew.members.stop(life.id)
    crew.members.cleanup(Selector(id=life.id))
    seen = crew.members.inspect(life.id)
    assert (seen.life.state, seen.repositories, seen.holds_work) == ("removed", (), False)


# What it does not do -----------------------------------------------------------------------------------------------------------


def test_nothing_is_changed_nothing_of_the_agents_runs_and_no_remote_is_asked(crew: Crew, tmp_path: Path) -> None:
    life = crew.chat()
    crew.commit(life.id, "mine.txt", branch="mine")
    script = crew.repo(life.id) / ".git" / "harm"
    script.write_text(f"#!/bin/sh\necho ran >>{tmp_path / 'trace'}\n")
    script.chmod(0o755)
    with (crew.repo(life.id) / ".git" / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {script}\n\tsshCommand = {script}\n\talternateRefsCommand = {script}\n")
    shutil.rmtree(crew.app.path)
    before = everything_below(crew.directory(life.id))

    assert app(crew, life).unpushed == ("mine",)

    assert everything_below(crew.directory(life.id)) == before
    assert not (tmp_path / "trace").exists()


# Beside what a person is told (docs/decisions/026) -------------------------------------------------------------------------------


def test_what_a_person_is_told_of_a_workspace_its_engine_finds_too(crew: Crew) -> None:
    crew.app.commit({"hidden.txt": "as it was\n"})
    life = crew.chat()
    commit = crew.commit(life.id, "detached.txt")
    crew.put(life.id, "a.txt", "stashed\n")
    crew.git(life.id, "stash", "-q")
    crew.git(life.id, "update-index", "--assume-unchanged", "hidden.txt")
    for path in ("hidden.txt", "a.txt", "staged.txt", "untracked.txt"):
        crew.put(life.id, path, "work\n")
    crew.git(life.id, "add", "staged.txt")
    crew.git(life.id, "clone", "-q", ".", "vendor/inner")

    work, seen = unfinished_work(crew.repo(life.id)), crew.members.inspect(life.id).repositories

    assert (work.unpushed, work.stashes, work.nested) == (("HEAD (1 commit)",), ("stash@{0}",), ("vendor/inner",))
    assert commit in seen[0].unpushed[0] or commit.startswith(seen[0].unpushed[0].partition("-")[2])
    assert {*work.modified, *work.staged, *work.untracked, *work.hidden} == {*seen[0].uncommitted}
    assert [label.partition("-")[0] for label in seen[0].unpushed] == ["HEAD", "stash"]
    assert [one.name for one in seen if one.holds_work] == ["app", "projects/app/vendor/inner"]


def test_an_agents_settings_lead_neither_a_person_nor_its_engine_astray(crew: Crew, tmp_path: Path) -> None:
    life = crew.chat()
    crew.put(life.id, "a.txt", "work\n")
    shutil.copytree(crew.repo(life.id) / "src", tmp_path / "elsewhere" / "src")
    crew.git(life.id, "config", "core.worktree", str(tmp_path / "elsewhere"))

    with pytest.raises(InvalidInput, match="elsewhere"):
        unfinished_work(crew.repo(life.id))
    assert app(crew, life).uncommitted == ("a.txt",)


def test_it_can_be_looked_into_while_its_agent_works(crew: Crew) -> None:
    life = crew.start(crew.script().write("projects/app/now.txt", "now\n").at("written").polite().hang())
    crew.agents.step("written")
    assert app(crew, life).uncommitted == ("now.txt",)
    assert crew.members.get(life.id).state == "active"
