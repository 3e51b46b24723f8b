"""What an agent left is saved as the document says; and the ways in which the original lost work, each played and survived."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.finalize import Desk
from support.life import Lived, at

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.members.finalize_record import MAX_FILES, Action
from pytest_gittrix.record.state.retention import RetentionPolicy, expired
from pytest_gittrix.testing.repos.member_workspaces import RepositoryPlan, git


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "desk", RepositoryPlan("app"))


def kinds(actions: tuple[Action, ...]) -> list[tuple[str, str | None]]:
    return [(one.action, one.branch) for one in actions]


# How the original lost work -----------------------------------------------------------------------------------------------------


def test_rule_8_a_killed_interactive_session_with_unsaved_work_does_not_count_as_a_success(desk: Desk) -> None:
    desk.git("checkout", "-q", "main")
    desk.put("a.txt", "by hand\n")
    lived = Lived("active", "killed", "retained", kind="interactive")
    lived.move(4, "finalizing")
    ended = desk.finalize(on_event=lambda type_, data: lived.tell(5, type_, **data))
    lived.move(6, "completed").move(7, "retained")

    assert ended.unsaved
    assert lived.life.unsaved
    assert expired([lived.life], RetentionPolicy(), at(10_000)) == []
    assert lived.life.result == ended.result


def test_rule_9_commits_on_a_detached_head_and_on_no_branch_at_all_are_saved(desk: Desk) -> None:
    seen = desk.commit("seen.txt")
    desk.git("checkout", "-q", "--detach", "HEAD~1")
    tip = desk.commit("detached.txt")

    ended = desk.finalize()

    assert ended.status == "CompletedDegraded"
    assert not ended.unsaved
    assert desk.remote_refs() == {
        "refs/heads/main": desk.base,
        "refs/heads/shared": desk.base,
        f"refs/heads/recovery/s1/HEAD-{tip[:12]}": tip,
        f"refs/heads/recovery/s1/lost-{seen[:12]}": seen,
    }


def test_rule_10_commits_that_were_published_long_ago_are_not_taken_for_unpushed(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "mine", "origin/main")
    desk.git("branch", "shared", "origin/shared")
    before = desk.remote_refs()
    assert desk.finalize().status == "Skipped"
    assert desk.remote_refs() == before


def test_rule_11_files_that_are_not_committed_on_the_default_branch_hold_the_workspace(desk: Desk) -> None:
    desk.git("checkout", "-q", "main")
    desk.put("a.txt", "by hand\n")
    desk.put("new.txt", "new\n")
    before = desk.remote_refs()

    ended = desk.finalize()

    assert (ended.status, ended.unsaved) == ("Skipped", True)
    assert [(one.action, one.files) for one in ended.actions] == [("left", ("a.txt", "new.txt"))]
    assert desk.remote_refs() == before
    assert (desk.root / "a.txt").read_text() == "by hand\n"


def test_the_default_branch_is_the_one_that_the_remote_names_not_main(desk: Desk) -> None:
    git(desk.bare, "branch", "trunk", "main")
    git(desk.bare, "symbolic-ref", "HEAD", "refs/heads/trunk")
    desk.git("checkout", "-q", "main")
    desk.put("a.txt", "by hand\n")
    assert desk.finalize().status == "Completed"
    assert desk.at_remote("main", "a.txt") == "by hand\n"


# Files -------------------------------------------------------------------------------------------------------------------------


def test_files_that_are_not_committed_are_committed_to_their_branch_as_they_are(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "work")
    desk.put("a.txt", "changed\n")
    desk.put("run.sh", "#!/bin/sh\n", mode=0o755)
    desk.put("deep/er/new.txt", "new\n")
    (desk.root / "link").symlink_to("a.txt")
    (desk.root / "gone.txt").unlink()
    desk.put("build/ignored.o", "ignored\n")

    ended = desk.finalize()

    assert kinds(ended.actions) == [("committed", "work"), ("pushed", "work")]
    assert ended.actions[0].files == ("a.txt", "deep/er/new.txt", "gone.txt", "link", "run.sh")
    assert git(desk.bare, "rev-parse", "work^") == desk.base
    changed = git(desk.bare, "diff-tree", "-r", "--raw", "--no-renames", "--format=", "work^", "work").splitlines()
    assert [line.split("\t")[1] + " " + line.split(" ")[1] for line in changed] == [
        "a.txt 100644",
        "deep/er/new.txt 100644",
        "gone.txt 000000",
        "link 120000",
        "run.sh 100755",
    ]


def test_of_very_many_files_the_first_are_named_and_all_are_counted(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "work")
    for number in range(MAX_FILES + 1):
        desk.put(f"f{number:03d}", "x")
    committed = desk.finalize().actions[0]
    assert committed.data()["files"] == [f"f{number:03d}" for number in range(MAX_FILES)]
    assert committed.reason == f"({MAX_FILES + 1} files)"


def test_a_name_that_is_not_utf8_is_committed_as_it_is_and_told_as_text(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "work")
    Path(os.fsdecode(os.fsencode(desk.root) + b"/caf\xe9")).write_text("x")
    committed = desk.finalize().actions[0]
    assert committed.files == (os.fsdecode(b"caf\xe9"),)
    assert committed.data()["files"] == ["caf\\xe9"]
    assert desk.at_remote("work", os.fsdecode(b"caf\xe9")) == "x\n"


def test_nothing_in_the_workspace_is_changed(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "work")
    desk.commit("x.txt")
    desk.put("a.txt", "changed\n")
    before = desk.everything()
    assert desk.finalize().status == "Completed"
    assert desk.everything() == before


def test_files_on_a_detached_head_go_to_a_recovery_branch(desk: Desk) -> None:
    desk.put("a.txt", "changed\n")
    ended = desk.finalize()
    name = f"recovery/s1/HEAD-{desk.base[:12]}"
    assert kinds(ended.actions) == [("committed", name), ("recovered", name)]
    assert desk.at_remote(name, "a.txt") == "changed\n"


def test_files_on_a_branch_without_a_commit_become_its_first(desk: Desk) -> None:
    desk.git("checkout", "-q", "--orphan", "fresh")
    ended = desk.finalize()
    assert kinds(ended.actions) == [("committed", "fresh"), ("pushed", "fresh")]
    assert git(desk.bare, "rev-list", "--count", "fresh") == "1"
    assert git(desk.bare, "rev-parse", "fresh^{tree}") == git(desk.bare, "rev-parse", "main^{tree}")


def test_credentials_and_runtime_state_stay_and_hold_nothing_up(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "work")
    for path in (".env", "conf/token.txt", ".config/gh/hosts.yml", ".ralph/state", "logs/x", "real.txt"):
        desk.put(path, "x\n")
    ended = desk.finalize()
    assert (ended.status, ended.unsaved) == ("Completed", False)
    assert [(one.action, one.files) for one in ended.actions[:3]] == [
        ("skipped", (".config/gh/hosts.yml", ".env", "conf/token.txt")),
        ("skipped", (".ralph/state", "logs/x")),
        ("committed", ("real.txt",)),
    ]
    assert git(desk.bare, "diff-tree", "-r", "--name-only", "--format=", "main", "work") == "real.txt"


def test_a_commit_that_holds_a_credential_is_not_pushed_and_all_else_is(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "fine", desk.base)
    fine = desk.commit("fine.txt")
    desk.git("checkout", "-q", "-b", "leaky", desk.base)
    desk.commit(".env")
    desk.git("rm", "-q", ".env")
    desk.git("commit", "-q", "-m", "take it away again")

    ended = desk.finalize()

    assert (ended.status, ended.unsaved) == ("Failed", True)
    assert desk.remote_refs() == {"refs/heads/main": desk.base, "refs/heads/shared": desk.base, "refs/heads/fine": fine}
    assert [(one.branch, one.files) for one in ended.actions if one.action == "failed"] == [("leaky", (".env",))]


def test_a_credential_that_only_a_merge_brought_in_is_found(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "one")
    desk.commit("one.txt")
    desk.git("checkout", "-q", "-b", "two", desk.base)
    desk.commit("two.txt")
    desk.git("merge", "-q", "--no-commit", "--no-ff", "one")
    desk.put("token.txt", "x\n")
    desk.git("add", "token.txt")
    desk.git("commit", "-q", "-m", "evil merge")
    assert desk.finalize().status == "Failed"
    assert "refs/heads/two" not in desk.remote_refs()


def test_a_file_that_was_never_checked_out_is_not_taken_for_deleted(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "work")
    desk.git("sparse-checkout", "set", "--no-cone", "/a.txt", "/new.txt")
    assert not (desk.root / "gone.txt").exists()
    desk.put("new.txt", "new\n")
    assert desk.finalize().actions[0].files == ("new.txt",)
    assert desk.at_remote("work", "gone.txt") == "g\n"


def test_a_file_too_large_for_a_forge_stays_and_holds_the_workspace(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "work")
    desk.put("large.bin", "")
    os.truncate(desk.root / "large.bin", (100 << 20) + 1)
    desk.put("small.txt", "x\n")
    ended = desk.finalize()
    assert ended.unsaved
    assert [(one.action, one.files) for one in ended.actions[:2]] == [("left", ("large.bin",)), ("committed", ("small.txt",))]


def test_a_repository_that_the_session_does_not_know_holds_the_workspace(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "work")
    (desk.root / "build" / "inner").mkdir(parents=True)  # where git's status would not even look
    git(desk.root / "build" / "inner", "init", "-q")
    desk.put("x.txt", "x\n")
    ended = desk.finalize()
    assert (ended.status, ended.unsaved) == ("Completed", True)
    assert [(one.name, one.action) for one in ended.actions] == [
        *(("app", "committed"), ("app", "pushed")),
        ("projects/app/build/inner", "left"),
    ]


# Branches ----------------------------------------------------------------------------------------------------------------------


def test_branches_that_are_ahead_are_pushed_the_default_one_too(desk: Desk) -> None:
    desk.git("checkout", "-q", "main")
    main = desk.commit("on-main.txt")
    desk.git("checkout", "-q", "-b", "deep/er/work", desk.base)
    work = desk.commit("work.txt")
    ended = desk.finalize()
    assert ended.result.pushed_branches == tuple(desk.pushed("deep/er/work", "main"))
    assert desk.remote_refs() == {"refs/heads/main": main, "refs/heads/shared": desk.base, "refs/heads/deep/er/work": work}
    assert (ended.status, ended.unsaved) == ("Completed", False)


def test_work_on_a_branch_that_moved_goes_on_top_of_what_came(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "shared", desk.base)
    desk.commit("one.txt")
    mine = desk.commit("two.txt")
    rival = desk.rival("shared", {"rival.txt": "rival\n"})

    ended = desk.finalize()

    assert kinds(ended.actions) == [("pushed", "shared")]
    assert git(desk.bare, "rev-parse", "shared~2") == rival
    how = "--format=%an %ae %at %cn %ce %ct %B"
    assert git(desk.bare, "log", how, "-2", "shared") == git(desk.root, "log", how, "-2", mine)
    assert desk.finalize() == ended


def test_a_branch_that_moves_at_every_push_is_tried_again_three_times(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "shared", desk.base)
    desk.commit("mine.txt")
    desk.overtake("shared", times=3)
    assert kinds(desk.finalize().actions) == [("pushed", "shared")]
    assert git(desk.bare, "rev-list", "--count", f"{desk.base}..shared") == "4"


def test_after_three_more_tries_it_goes_to_a_recovery_branch(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "shared", desk.base)
    mine = desk.commit("mine.txt")
    desk.overtake("shared", times=4)
    ended = desk.finalize()
    assert kinds(ended.actions) == [("recovered", "recovery/s1/shared")]
    assert desk.remote_refs()["refs/heads/recovery/s1/shared"] == mine
    assert git(desk.bare, "rev-list", "--count", f"{desk.base}..shared") == "4"


def test_a_conflict_goes_to_a_recovery_branch_and_an_issue_tells_of_it_once(desk: Desk) -> None:
    desk.git("checkout", "-q", "-b", "shared", desk.base)
    desk.put("a.txt", "mine\n")
    desk.git("commit", "-q", "-a", "-m", "mine")
    rival = desk.rival("shared", {"a.txt": "theirs\n"})
    issues: list[tuple[str, str]] = []

    def forge(title: str, body: str) -> str:
        issues.append((title, body))
        return f"https://forge/issues/{len(issues)}"

    ended = desk.finalize(forge=forge)

    assert (ended.status, ended.unsaved, ended.issues) == ("CompletedDegraded", False, ("https://forge/issues/1",))
    assert ended.result.recovery_branches == tuple(desk.pushed("recovery/s1/shared"))
    assert desk.remote_refs()["refs/heads/shared"] == rival
    assert "recovery/s1/shared" in issues[0][1]
    assert "s1" in issues[0][0]
    assert desk.finalize(forge=forge) == ended
    assert len(issues) == 1


def test_an_issue_that_could_not_be_opened_is_opened_by_the_next_attempt(desk: Desk) -> None:
    desk.commit("detached.txt")

    def broken(title: str, body: str) -> str:
        raise AdapterUnavailable("the forge is down")

    ended = desk.finalize(forge=broken)
    assert (ended.status, ended.issues, ended.reason) == (
        "CompletedDegraded",
        (),
        "app: no issue could be opened: the forge is down",
    )
    assert desk.finalize(forge=lambda title, body: "https://forge/issues/1").issues == ("https://forge/issues/1",)


def test_a_branch_whose_history_others_rewrote_is_not_brought_back(desk: Desk) -> None:
    desk.rival("shared", {"regretted.txt": "x\n"})
    desk.git("fetch", "-q")
    desk.git("checkout", "-q", "-b", "shared", "origin/shared")
    desk.git("repack", "-q", "-a", "-d", "-l")
    # As if the shared clone had had that commit all along: it is none of the agent's.
    desk.lend()
    mine = desk.commit("mine.txt")
    git(desk.bare, "update-ref", "refs/heads/shared", desk.base)
    rewritten = desk.rival("shared", {"instead.txt": "x\n"})

    assert kinds(desk.finalize().actions) == [("recovered", "recovery/s1/shared")]
    assert desk.remote_refs()["refs/heads/shared"] == rewritten
    assert desk.remote_refs()["refs/heads/recovery/s1/shared"] == mine


def test_many_commits_that_nothing_leads_to_go_to_one_branch(desk: Desk) -> None:
    lost = []
    for number in range(5):
        desk.git("checkout", "-q", "--detach", desk.base)
        lost.append(desk.commit(f"{number}.txt"))
    desk.git("checkout", "-q", "--detach", desk.base)
    desk.git("reflog", "expire", "--expire=now", "--all")
    ended = desk.finalize()
    assert [one.action for one in ended.actions] == ["recovered"]
    assert set(git(desk.bare, "rev-list", "--all").split()) >= set(lost)
    assert desk.finalize() == ended


def test_every_stash_has_a_recovery_branch(desk: Desk) -> None:
    for word in ("one", "two"):
        desk.put("a.txt", word)
        desk.put(f"{word}.txt", word)
        desk.git("stash", "-q", "-u")
    ids = desk.git("log", "-g", "--format=%H", "stash").split()
    ended = desk.finalize()
    assert {one.branch: one.commit for one in ended.actions} == {f"recovery/s1/stash-{id_[:12]}": id_ for id_ in ids}
    assert git(desk.bare, "show", f"{ids[1]}^3:one.txt") == "one"


def test_a_recovery_branch_that_holds_something_else_is_left_alone(desk: Desk) -> None:
    tip = desk.commit("detached.txt")
    other = desk.rival(f"recovery/s1/HEAD-{tip[:12]}", {"other.txt": "x\n"})
    assert kinds(desk.finalize().actions) == [("recovered", f"recovery/s1/HEAD-{tip[:12]}-{tip[:12]}")]
    assert desk.remote_refs()[f"refs/heads/recovery/s1/HEAD-{tip[:12]}"] == other
