"""A finalization that meets trouble: remotes that take nothing, agents that mean harm, odd workspaces, and being run a second time."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.finalize import AgentWorkspace, kinds
from support.life import Lived
from support.remote import TOKEN

from pytest_gittrix.errors import EvictionRace, InvalidInput
from pytest_gittrix.members.finalize import finalize
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.member_workspaces import RemoteKind, RepositoryPlan, git
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.workspaces.multi_repo import RepositorySpec, checkout_all

# Remotes that do not take it ---------------------------------------------------------------------------------------------------


def test_a_protected_branch_is_passed_by_on_a_recovery_branch(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "main")
    mine = workspace.commit("mine.txt")
    workspace.mood("protected")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("CompletedDegraded", False)
    assert workspace.remote_refs()["refs/heads/recovery/s1/main"] == mine


@pytest.mark.parametrize("mood", ["rejecting", "gone"])
def test_what_the_remote_does_not_take_stays_until_it_does(workspace: AgentWorkspace, mood: RemoteKind) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.commit("mine.txt")
    workspace.put("more.txt", "more\n")
    workspace.mood(mood)

    failed = workspace.finalize()
    assert (failed.status, failed.unsaved) == ("Failed", True)
    assert failed.reason
    assert (workspace.root / "more.txt").read_text() == "more\n"

    workspace.mood("plain")
    ended = workspace.finalize(attempt=2)
    assert (ended.status, ended.unsaved) == ("Completed", False)
    assert workspace.at_remote("work", "more.txt") == "more\n"


def test_a_remote_is_not_even_asked_about_a_repository_that_nobody_touched(workspace: AgentWorkspace) -> None:
    workspace.mood("gone")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved, kinds(ended.actions)) == ("Skipped", False, [("skipped", None)])


def test_what_is_not_saved_in_time_stays(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.commit("mine.txt")
    before = workspace.remote_refs()
    ended = workspace.finalize(deadline=0)
    assert (ended.status, ended.unsaved, ended.reason) == ("Failed", True, "app: the time was up")
    assert workspace.remote_refs() == before
    assert workspace.finalize().status == "Completed"


def test_a_remote_that_does_not_answer_is_given_up(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.commit("mine.txt")
    workspace.hook("pre-receive", "exec sleep 600")
    ended = workspace.finalize(deadline=1.5)
    assert (ended.status, ended.unsaved) == ("Failed", True)
    workspace.mood("plain")
    (workspace.bare / "hooks" / "pre-receive").unlink()
    assert workspace.finalize().status == "Completed"


# Agents that mean harm, and odd workspaces ---------------------------------------------------------------------------------------


def test_no_program_of_the_agents_runs_and_its_configuration_is_not_read(tmp_path: Path) -> None:
    workspace = AgentWorkspace(
        tmp_path / "workspace", RepositoryPlan("app", deeds=("branch", "stash", "diverged"), end="dirty", extras=("hostile",))
    )
    git(workspace.root, "status")
    trace = workspace.member.root / "trace"
    trace.unlink()  # so it would have been seen
    ended = workspace.finalize()
    assert ended.status == "CompletedDegraded"
    assert not trace.exists()


def test_a_configuration_that_no_git_could_read_is_no_obstacle(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    mine = workspace.commit("mine.txt")
    (workspace.root / ".git" / "config").write_text("[broken\n")
    assert workspace.finalize().status == "Completed"
    assert workspace.remote_refs()["refs/heads/work"] == mine


def test_an_address_that_the_agent_changed_is_not_gone_by(workspace: AgentWorkspace) -> None:
    elsewhere = workspace.member.root / "elsewhere.git"
    git(workspace.member.root, "init", "-q", "--bare", str(elsewhere))
    workspace.git("remote", "set-url", "origin", str(elsewhere))
    workspace.git("checkout", "-q", "-b", "work")
    mine = workspace.commit("mine.txt")
    assert workspace.finalize().status == "Completed"
    assert workspace.remote_refs()["refs/heads/work"] == mine
    assert git(elsewhere, "for-each-ref") == ""


def test_a_link_in_a_repositorys_place_is_not_followed(workspace: AgentWorkspace) -> None:
    private = workspace.member.root / "private"
    workspace.root.rename(private)
    (private / "diary.txt").write_text("private\n")
    workspace.root.symlink_to(private)
    before = workspace.remote_refs()
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("Failed", True)
    assert "a link leads from projects/app" in str(ended.reason)
    assert workspace.remote_refs() == before


def test_a_repository_whose_git_directory_is_gone_stays(workspace: AgentWorkspace) -> None:
    (workspace.root / ".git").rename(workspace.member.root / "taken")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved, kinds(ended.actions)) == ("Skipped", True, [("left", None)])


def test_a_head_that_leads_nowhere_is_told_and_the_branches_are_saved_all_the_same(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    mine = workspace.commit("mine.txt")
    (workspace.root / ".git" / "HEAD").write_text("garbage\n")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("Failed", True)
    assert workspace.remote_refs()["refs/heads/work"] == mine


def test_objects_that_are_damaged_fail_that_repository_alone(tmp_path: Path) -> None:
    workspace = AgentWorkspace(tmp_path / "workspace", RepositoryPlan("app", deeds=("branch",)), RepositoryPlan("web", deeds=("branch",)))
    tree = workspace.git("rev-parse", "feature/x^{tree}")
    loose = workspace.root / ".git" / "objects" / tree[:2] / tree[2:]
    loose.chmod(0o644)
    loose.write_bytes(b"damaged")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("Failed", True)
    assert [one.action for one in ended.actions if one.name == "web"] == ["pushed"]


@pytest.mark.parametrize("inside", ["lfs/objects/ab/cd/abcd", "modules/lib/HEAD", "annex/objects/x"])
def test_work_that_only_the_git_directory_has_holds_the_workspace(workspace: AgentWorkspace, inside: str) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    mine = workspace.commit("mine.txt")
    workspace.put(f".git/{inside}", "x\n")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("Completed", True)
    assert workspace.remote_refs()["refs/heads/work"] == mine


def test_contents_of_large_files_that_the_agent_only_read_hold_nothing(workspace: AgentWorkspace) -> None:
    workspace.put(".git/lfs/objects/ab/cd/abcd", "x\n")
    assert not workspace.finalize().unsaved


def test_many_that_push_to_one_branch_at_the_same_time_all_get_there(tmp_path: Path) -> None:
    first = AgentWorkspace(tmp_path / "workspace", RepositoryPlan("app"))
    tips = {}
    for number in range(4):
        made = checkout_all([RepositorySpec("app", str(first.bare))], tmp_path / f"w{number}", tmp_path / "clones")
        place = tmp_path / f"w{number}" / "projects" / "app"
        git(place, "checkout", "-q", "-b", "shared")
        (place / f"{number}.txt").write_text(f"{number}\n")
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", f"by {number}")
        tips[number] = made
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda number: finalize(tips[number], f"s{number}"), tips))
    assert {one.status for one in ended} <= {"Completed", "CompletedDegraded"}
    messages = git(first.bare, "log", "--all", "--format=%s").splitlines()
    assert sorted(message for message in messages if message.startswith("by ")) == [f"by {number}" for number in tips]


def test_a_workspace_that_is_gone_has_nothing_to_save(workspace: AgentWorkspace) -> None:
    Path(workspace.member.workspace.path).rename(workspace.member.root / "taken")
    types: list[str] = []
    assert workspace.finalize(on_event=lambda type_, _data: types.append(type_)).status == "Skipped"
    assert types == ["finalize.started", "finalize.finished"]


def test_only_one_at_a_time_finalizes_a_workspace(workspace: AgentWorkspace) -> None:
    descriptor = os.open(workspace.member.workspace.path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(EvictionRace, match="is being finalized by another process or thread"):
            workspace.finalize(deadline=0.05)
    finally:
        os.close(descriptor)
    assert workspace.finalize().status == "Skipped"


@pytest.mark.parametrize("id_", ["", "a b", "../x", "a..b", "x.lock", "-x/.."])
def test_an_id_that_cannot_be_in_a_branchs_name_is_refused(workspace: AgentWorkspace, id_: str) -> None:
    with pytest.raises(InvalidInput):
        workspace.finalize(id_=id_)


# What is told, and the second time -----------------------------------------------------------------------------------------------


def test_what_is_told_can_be_stored_and_adds_up_to_the_result(tmp_path: Path) -> None:
    plans = (
        RepositoryPlan("app", deeds=("branch", "diverged", "stash"), end="dirty", extras=("credentials",)),
        RepositoryPlan("team", end="clean", extras=("knowledge",), team=True),
        RepositoryPlan("web", remote="rejecting", deeds=("branch",)),
    )
    workspace = AgentWorkspace(tmp_path / "workspace", *plans)
    lived = Lived("active", "finalizing", id="s1")
    ended = workspace.finalize(on_event=lambda type_, data: lived.tell(3, type_, **data))
    lived.move(4, "failed")
    assert lived.life.result == ended.result
    assert (lived.life.left, lived.life.unsaved) == (("web",), True)
    # The second attempt takes nothing back, and tells it all again.
    lived.move(5, "retained").move(6, "finalizing")
    again = workspace.finalize(on_event=lambda type_, data: lived.tell(7, type_, **data), attempt=2)
    assert again == ended
    assert lived.life.result == ended.result


def test_what_a_team_knows_goes_to_its_default_branch_on_top_of_what_came_meanwhile(tmp_path: Path) -> None:
    workspace = AgentWorkspace(tmp_path / "workspace", RepositoryPlan("team", extras=("knowledge",), team=True))
    rival = workspace.rival("main", {"knowledge/other.md": "other\n"})
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("Completed", False)
    assert git(workspace.bare, "rev-parse", "main^") == rival
    assert workspace.at_remote("main", "members/alice/knowledge/m.md") == "members/alice/knowledge/m.md\n"
    assert workspace.finalize() == ended


def test_a_second_run_does_nothing_more_even_if_files_were_touched(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("a.txt", "changed\n")
    ended = workspace.finalize()
    before = workspace.remote_refs()
    os.utime(workspace.root / "a.txt", (2_000_000_000, 2_000_000_000))
    assert workspace.finalize() == ended
    assert workspace.remote_refs() == before


def test_work_that_came_after_the_first_run_is_saved_by_the_second(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("a.txt", "changed\n")
    first = workspace.finalize()
    workspace.put("b.txt", "more\n")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("Completed", False)
    assert git(workspace.bare, "rev-parse", "work^") == first.actions[0].commit
    assert workspace.at_remote("work", "b.txt") == "more\n"


def test_work_that_replaced_what_the_first_run_saved_goes_to_a_recovery_branch(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("a.txt", "changed\n")
    first = workspace.finalize()
    workspace.put("a.txt", "changed again\n")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("CompletedDegraded", False)
    assert workspace.remote_refs()["refs/heads/work"] == first.actions[0].commit
    assert workspace.at_remote("recovery/s1/work", "a.txt") == "changed again\n"


def test_notes_that_are_damaged_change_nothing_that_is_saved(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("a.txt", "changed\n")
    workspace.finalize()
    before = workspace.remote_refs()
    Path(f"{workspace.member.workspace.path}.finalize", "notes.json").write_text('{"actions": [7]}')
    ended = workspace.finalize()
    assert not ended.unsaved
    assert workspace.remote_refs() == before


# Wires and formats ---------------------------------------------------------------------------------------------------------------


def test_over_http_the_token_is_used_and_shown_nowhere(tmp_path: Path) -> None:
    with BareRemote.make(tmp_path / "app.git", files={"a.txt": "one\n"}) as remote, ForgeServer(remote, tokens={TOKEN}) as forge:
        made = checkout_all([RepositorySpec("app", remote.url)], tmp_path / "w", tmp_path / "clones")
        place = tmp_path / "w" / "projects" / "app"
        git(place, "checkout", "-q", "-b", "work")
        (place / "a.txt").write_text("changed\n")
        far = replace(made, repositories=(replace(made.repositories[0], url=forge.git_url),))
        log: list[str] = []

        refused = finalize(far, "s1", on_event=lambda type_, data: log.append(f"{type_} {data}"), credentials=lambda url: ("git", "wrong"))
        assert (refused.status, refused.unsaved) == ("Failed", True)
        ended = finalize(far, "s1", on_event=lambda type_, data: log.append(f"{type_} {data}"), credentials=lambda url: ("git", TOKEN))

        assert ended.status == "Completed"
        assert remote.repo.read("a.txt", at="refs/heads/work") == b"changed\n"
        assert TOKEN not in " ".join(log) + Path(f"{made.path}.finalize", "notes.json").read_text()


def test_repositories_with_sha256_are_saved_as_well(tmp_path: Path) -> None:
    bare = tmp_path / "app.git"
    with BareRemote.make(bare, files={"a.txt": "one\n"}, object_format="sha256") as remote:
        made = checkout_all([RepositorySpec("app", remote.url)], tmp_path / "w", tmp_path / "clones")
    place = tmp_path / "w" / "projects" / "app"
    git(place, "checkout", "-q", "-b", "work")
    (place / "mine.txt").write_text("mine\n")
    git(place, "add", "mine.txt")
    git(place, "commit", "-q", "-m", "mine")
    tip = git(place, "rev-parse", "HEAD")
    git(bare, "branch", "work", "main")
    rival = git(bare, "commit-tree", "-p", "main", "-m", "rival", "main^{tree}")
    git(bare, "update-ref", "refs/heads/work", rival)
    (place / "a.txt").write_text("changed\n")

    ended = finalize(made, "s1")

    assert (ended.status, ended.unsaved) == ("Completed", False)
    assert git(bare, "log", "--format=%s", "work").splitlines()[:3] == ["Left uncommitted in session s1", "mine", "rival"]
    assert git(bare, "show", "work:a.txt") == "changed"
    assert len(tip) == 64
    assert finalize(made, "s1") == ended
