"""What an agent left is saved as the document says; and the ways in which the original lost work, each played and survived."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.finalize import AgentWorkspace, kinds
from support.life import Lived, at
from support.secret_corpus import FILES, LINES, TYPICAL
from support.secret_forms import FORMS, github

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.members.finalize_record import MAX_FILES, Action
from pytest_gittrix.record.state.retention import RetentionPolicy, expired
from pytest_gittrix.testing.repos.member_workspaces import git

# How the original lost work -----------------------------------------------------------------------------------------------------


def test_rule_8_a_killed_interactive_session_with_unsaved_work_does_not_count_as_a_success(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "main")
    workspace.put("a.txt", "by hand\n")
    lived = Lived("active", "killed", "retained", kind="interactive")
    lived.move(4, "finalizing")
    ended = workspace.finalize(on_event=lambda type_, data: lived.tell(5, type_, **data))
    lived.move(6, "completed").move(7, "retained")

    assert ended.unsaved
    assert lived.life.unsaved
    assert expired([lived.life], RetentionPolicy(), at(10_000)) == []
    assert lived.life.result == ended.result


def test_rule_9_commits_on_a_detached_head_and_on_no_branch_at_all_are_saved(workspace: AgentWorkspace) -> None:
    seen = workspace.commit("seen.txt")
    workspace.git("checkout", "-q", "--detach", "HEAD~1")
    tip = workspace.commit("detached.txt")

    ended = workspace.finalize()

    assert ended.status == "CompletedDegraded"
    assert not ended.unsaved
    assert workspace.remote_refs() == {
        "refs/heads/main": workspace.base,
        "refs/heads/shared": workspace.base,
        f"refs/heads/recovery/s1/HEAD-{tip[:12]}": tip,
        f"refs/heads/recovery/s1/lost-{seen[:12]}": seen,
    }


def test_rule_10_commits_that_were_published_long_ago_are_not_taken_for_unpushed(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "mine", "origin/main")
    workspace.git("branch", "shared", "origin/shared")
    before = workspace.remote_refs()
    assert workspace.finalize().status == "Skipped"
    assert workspace.remote_refs() == before


def test_rule_11_files_that_are_not_committed_on_the_default_branch_hold_the_workspace(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "main")
    workspace.put("a.txt", "by hand\n")
    workspace.put("new.txt", "new\n")
    before = workspace.remote_refs()

    ended = workspace.finalize()

    assert (ended.status, ended.unsaved) == ("Skipped", True)
    assert [(one.action, one.files) for one in ended.actions] == [("left", ("a.txt", "new.txt"))]
    assert workspace.remote_refs() == before
    assert (workspace.root / "a.txt").read_text() == "by hand\n"


def test_the_default_branch_is_the_one_that_the_remote_names_not_main(workspace: AgentWorkspace) -> None:
    git(workspace.bare, "branch", "trunk", "main")
    git(workspace.bare, "symbolic-ref", "HEAD", "refs/heads/trunk")
    workspace.git("checkout", "-q", "main")
    workspace.put("a.txt", "by hand\n")
    assert workspace.finalize().status == "Completed"
    assert workspace.at_remote("main", "a.txt") == "by hand\n"


# Files -------------------------------------------------------------------------------------------------------------------------


def test_files_that_are_not_committed_are_committed_to_their_branch_as_they_are(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("a.txt", "changed\n")
    workspace.put("run.sh", "#!/bin/sh\n", mode=0o755)
    workspace.put("deep/er/new.txt", "new\n")
    (workspace.root / "link").symlink_to("a.txt")
    (workspace.root / "gone.txt").unlink()
    workspace.put("build/ignored.o", "ignored\n")

    ended = workspace.finalize()

    assert kinds(ended.actions) == [("committed", "work"), ("pushed", "work")]
    assert ended.actions[0].files == ("a.txt", "deep/er/new.txt", "gone.txt", "link", "run.sh")
    assert git(workspace.bare, "rev-parse", "work^") == workspace.base
    changed = git(workspace.bare, "diff-tree", "-r", "--raw", "--no-renames", "--format=", "work^", "work").splitlines()
    assert [line.split("\t")[1] + " " + line.split(" ")[1] for line in changed] == [
        "a.txt 100644",
        "deep/er/new.txt 100644",
        "gone.txt 000000",
        "link 120000",
        "run.sh 100755",
    ]


def test_of_very_many_files_the_first_are_named_and_all_are_counted(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    for number in range(MAX_FILES + 1):
        workspace.put(f"f{number:03d}", "x")
    committed = workspace.finalize().actions[0]
    assert committed.data()["files"] == [f"f{number:03d}" for number in range(MAX_FILES)]
    assert committed.reason == f"({MAX_FILES + 1} files)"


def test_a_name_that_is_not_utf8_is_committed_as_it_is_and_told_as_text(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    Path(os.fsdecode(os.fsencode(workspace.root) + b"/caf\xe9")).write_text("x")
    committed = workspace.finalize().actions[0]
    assert committed.files == (os.fsdecode(b"caf\xe9"),)
    assert committed.data()["files"] == ["caf\\xe9"]
    assert workspace.at_remote("work", os.fsdecode(b"caf\xe9")) == "x\n"


def test_nothing_in_the_workspace_is_changed(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.commit("x.txt")
    workspace.put("a.txt", "changed\n")
    before = workspace.everything()
    assert workspace.finalize().status == "Completed"
    assert workspace.everything() == before


def test_files_on_a_detached_head_go_to_a_recovery_branch(workspace: AgentWorkspace) -> None:
    workspace.put("a.txt", "changed\n")
    ended = workspace.finalize()
    name = f"recovery/s1/HEAD-{workspace.base[:12]}"
    assert kinds(ended.actions) == [("committed", name), ("recovered", name)]
    assert workspace.at_remote(name, "a.txt") == "changed\n"


def test_files_on_a_branch_without_a_commit_become_its_first(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "--orphan", "fresh")
    ended = workspace.finalize()
    assert kinds(ended.actions) == [("committed", "fresh"), ("pushed", "fresh")]
    assert git(workspace.bare, "rev-list", "--count", "fresh") == "1"
    assert git(workspace.bare, "rev-parse", "fresh^{tree}") == git(workspace.bare, "rev-parse", "main^{tree}")


def test_credentials_and_runtime_state_stay_and_hold_nothing_up(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    for path in (".env", "conf/token.txt", ".config/gh/hosts.yml", ".ralph/state", "logs/x", "real.txt"):
        workspace.put(path, "x\n")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("Completed", False)
    assert [(one.action, one.files) for one in ended.actions[:3]] == [
        ("skipped", (".config/gh/hosts.yml", ".env", "conf/token.txt")),
        ("skipped", (".ralph/state", "logs/x")),
        ("committed", ("real.txt",)),
    ]
    assert git(workspace.bare, "diff-tree", "-r", "--name-only", "--format=", "main", "work") == "real.txt"


def test_a_commit_that_holds_a_credential_is_not_pushed_and_all_else_is(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "fine", workspace.base)
    fine = workspace.commit("fine.txt")
    workspace.git("checkout", "-q", "-b", "leaky", workspace.base)
    workspace.commit(".env")
    workspace.git("rm", "-q", ".env")
    workspace.git("commit", "-q", "-m", "take it away again")

    ended = workspace.finalize()

    assert (ended.status, ended.unsaved) == ("Failed", True)
    assert workspace.remote_refs() == {"refs/heads/main": workspace.base, "refs/heads/shared": workspace.base, "refs/heads/fine": fine}
    assert [(one.branch, one.files) for one in ended.actions if one.action == "failed"] == [("leaky", (".env",))]


def test_a_credential_that_only_a_merge_brought_in_is_found(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "one")
    workspace.commit("one.txt")
    workspace.git("checkout", "-q", "-b", "two", workspace.base)
    workspace.commit("two.txt")
    workspace.git("merge", "-q", "--no-commit", "--no-ff", "one")
    workspace.put("token.txt", "x\n")
    workspace.git("add", "token.txt")
    workspace.git("commit", "-q", "-m", "evil merge")
    assert workspace.finalize().status == "Failed"
    assert "refs/heads/two" not in workspace.remote_refs()


def test_a_file_that_was_never_checked_out_is_not_taken_for_deleted(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.git("sparse-checkout", "set", "--no-cone", "/a.txt", "/new.txt")
    assert not (workspace.root / "gone.txt").exists()
    workspace.put("new.txt", "new\n")
    assert workspace.finalize().actions[0].files == ("new.txt",)
    assert workspace.at_remote("work", "gone.txt") == "g\n"


def test_a_file_too_large_for_a_forge_stays_and_holds_the_workspace(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("large.bin", "")
    os.truncate(workspace.root / "large.bin", (100 << 20) + 1)
    workspace.put("small.txt", "x\n")
    ended = workspace.finalize()
    assert ended.unsaved
    assert [(one.action, one.files) for one in ended.actions[:2]] == [("left", ("large.bin",)), ("committed", ("small.txt",))]


def test_a_repository_that_the_session_does_not_know_holds_the_workspace(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    (workspace.root / "build" / "inner").mkdir(parents=True)  # where git's status would not even look
    git(workspace.root / "build" / "inner", "init", "-q")
    workspace.put("x.txt", "x\n")
    ended = workspace.finalize()
    assert (ended.status, ended.unsaved) == ("Completed", True)
    assert [(one.name, one.action) for one in ended.actions] == [
        *(("app", "committed"), ("app", "pushed")),
        ("projects/app/build/inner", "left"),
    ]


# Branches ----------------------------------------------------------------------------------------------------------------------


def test_branches_that_are_ahead_are_pushed_the_default_one_too(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "main")
    main = workspace.commit("on-main.txt")
    workspace.git("checkout", "-q", "-b", "deep/er/work", workspace.base)
    work = workspace.commit("work.txt")
    ended = workspace.finalize()
    assert ended.result.pushed_branches == tuple(workspace.pushed("deep/er/work", "main"))
    assert workspace.remote_refs() == {"refs/heads/main": main, "refs/heads/shared": workspace.base, "refs/heads/deep/er/work": work}
    assert (ended.status, ended.unsaved) == ("Completed", False)


def test_work_on_a_branch_that_moved_goes_on_top_of_what_came(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "shared", workspace.base)
    workspace.commit("one.txt")
    mine = workspace.commit("two.txt")
    rival = workspace.rival("shared", {"rival.txt": "rival\n"})

    ended = workspace.finalize()

    assert kinds(ended.actions) == [("pushed", "shared")]
    assert git(workspace.bare, "rev-parse", "shared~2") == rival
    how = "--format=%an %ae %at %cn %ce %ct %B"
    assert git(workspace.bare, "log", how, "-2", "shared") == git(workspace.root, "log", how, "-2", mine)
    assert workspace.finalize() == ended


def test_a_branch_that_moves_at_every_push_is_tried_again_three_times(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "shared", workspace.base)
    workspace.commit("mine.txt")
    workspace.overtake("shared", times=3)
    assert kinds(workspace.finalize().actions) == [("pushed", "shared")]
    assert git(workspace.bare, "rev-list", "--count", f"{workspace.base}..shared") == "4"


def test_after_three_more_tries_it_goes_to_a_recovery_branch(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "shared", workspace.base)
    mine = workspace.commit("mine.txt")
    workspace.overtake("shared", times=4)
    ended = workspace.finalize()
    assert kinds(ended.actions) == [("recovered", "recovery/s1/shared")]
    assert workspace.remote_refs()["refs/heads/recovery/s1/shared"] == mine
    assert git(workspace.bare, "rev-list", "--count", f"{workspace.base}..shared") == "4"


def test_a_conflict_goes_to_a_recovery_branch_and_an_issue_tells_of_it_once(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "shared", workspace.base)
    workspace.put("a.txt", "mine\n")
    workspace.git("commit", "-q", "-a", "-m", "mine")
    rival = workspace.rival("shared", {"a.txt": "theirs\n"})
    issues: list[tuple[str, str]] = []

    def forge(title: str, body: str) -> str:
        issues.append((title, body))
        return f"https://forge/issues/{len(issues)}"

    ended = workspace.finalize(forge=forge)

    assert (ended.status, ended.unsaved, ended.issues) == ("CompletedDegraded", False, ("https://forge/issues/1",))
    assert ended.result.recovery_branches == tuple(workspace.pushed("recovery/s1/shared"))
    assert workspace.remote_refs()["refs/heads/shared"] == rival
    assert "recovery/s1/shared" in issues[0][1]
    assert "s1" in issues[0][0]
    assert workspace.finalize(forge=forge) == ended
    assert len(issues) == 1


def test_an_issue_that_could_not_be_opened_is_opened_by_the_next_attempt(workspace: AgentWorkspace) -> None:
    workspace.commit("detached.txt")

    def broken(title: str, body: str) -> str:
        raise AdapterUnavailable("the forge is down")

    ended = workspace.finalize(forge=broken)
    assert (ended.status, ended.issues, ended.reason) == (
        "CompletedDegraded",
        (),
        "app: no issue could be opened: the forge is down",
    )
    assert workspace.finalize(forge=lambda title, body: "https://forge/issues/1").issues == ("https://forge/issues/1",)


def test_a_branch_whose_history_others_rewrote_is_not_brought_back(workspace: AgentWorkspace) -> None:
    workspace.rival("shared", {"regretted.txt": "x\n"})
    workspace.git("fetch", "-q")
    workspace.git("checkout", "-q", "-b", "shared", "origin/shared")
    workspace.git("repack", "-q", "-a", "-d", "-l")
    # As if the shared clone had had that commit all along: it is none of the agent's.
    workspace.lend()
    mine = workspace.commit("mine.txt")
    git(workspace.bare, "update-ref", "refs/heads/shared", workspace.base)
    rewritten = workspace.rival("shared", {"instead.txt": "x\n"})

    assert kinds(workspace.finalize().actions) == [("recovered", "recovery/s1/shared")]
    assert workspace.remote_refs()["refs/heads/shared"] == rewritten
    assert workspace.remote_refs()["refs/heads/recovery/s1/shared"] == mine


def test_many_commits_that_nothing_leads_to_go_to_one_branch(workspace: AgentWorkspace) -> None:
    lost = []
    for number in range(5):
        workspace.git("checkout", "-q", "--detach", workspace.base)
        lost.append(workspace.commit(f"{number}.txt"))
    workspace.git("checkout", "-q", "--detach", workspace.base)
    workspace.git("reflog", "expire", "--expire=now", "--all")
    ended = workspace.finalize()
    assert [one.action for one in ended.actions] == ["recovered"]
    assert set(git(workspace.bare, "rev-list", "--all").split()) >= set(lost)
    assert workspace.finalize() == ended


def test_every_stash_has_a_recovery_branch(workspace: AgentWorkspace) -> None:
    for word in ("one", "two"):
        workspace.put("a.txt", word)
        workspace.put(f"{word}.txt", word)
        workspace.git("stash", "-q", "-u")
    ids = workspace.git("log", "-g", "--format=%H", "stash").split()
    ended = workspace.finalize()
    assert {one.branch: one.commit for one in ended.actions} == {f"recovery/s1/stash-{id_[:12]}": id_ for id_ in ids}
    assert git(workspace.bare, "show", f"{ids[1]}^3:one.txt") == "one"


def test_a_recovery_branch_that_holds_something_else_is_left_alone(workspace: AgentWorkspace) -> None:
    tip = workspace.commit("detached.txt")
    other = workspace.rival(f"recovery/s1/HEAD-{tip[:12]}", {"other.txt": "x\n"})
    assert kinds(workspace.finalize().actions) == [("recovered", f"recovery/s1/HEAD-{tip[:12]}-{tip[:12]}")]
    assert workspace.remote_refs()[f"refs/heads/recovery/s1/HEAD-{tip[:12]}"] == other


def test_of_typical_secrets_none_reaches_the_remote_and_each_is_in_the_report(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    in_lines = {f"src/{number}.txt": line for number, line in enumerate(LINES.values())}
    for path in FILES:
        workspace.put(path, "whatever\n")
    for path, line in in_lines.items():
        workspace.put(path, f"# settings\n{line}\n")
    for path, contents in TYPICAL.items():
        workspace.put(path, contents)
    workspace.put("real.txt", "work\n")

    ended = workspace.finalize()

    reported = {path for one in ended.actions if one.action in ("skipped", "left") for path in one.files}
    assert reported == {*FILES, *in_lines, *TYPICAL}
    assert not any(line in str(one) for one in ended.actions for line in LINES.values())
    assert git(workspace.bare, "diff-tree", "-r", "--name-only", "--format=", "main", "work") == "real.txt"
    assert ended.unsaved
    assert workspace.remote_refs().keys() == {"refs/heads/main", "refs/heads/shared", "refs/heads/work"}


def way_through(action: Action) -> list[str]:
    """What a report says to type, as the options of ``gittrix session finalize``."""
    assert action.reason is not None
    _, _, typed = action.reason.partition("through: gittrix session finalize s1 ")
    return [option.removeprefix("--allow-secret=") for option in typed.split()]


def held_back(workspace: AgentWorkspace, path: str) -> str:
    return git(Path(f"{workspace.member.workspace.path}.held/app.git"), "show", f"main:{path}")


def test_what_is_held_back_is_archived_and_goes_through_by_what_the_report_says(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("example.env", f"{LINES['GitHub']}\n")
    workspace.put("tests/server.pem", "of no server\n")

    named, left = workspace.finalize().actions

    assert (named.files, way_through(named)) == (("tests/server.pem",), ["tests/server.pem"])
    assert "kept in the session's workspace.held/app.git" in (named.reason or "")
    assert (left.action, left.files) == ("left", ("example.env",))
    assert held_back(workspace, "example.env") == LINES["GitHub"]
    assert held_back(workspace, "tests/server.pem") == "of no server"
    ended = workspace.finalize(allow_secrets=way_through(left))
    assert [(one.action, one.files) for one in ended.actions] == [("skipped", named.files), ("committed", left.files), ("pushed", ())]
    assert workspace.finalize(allow_secrets=way_through(named)).unsaved is False
    assert workspace.at_remote("work", "tests/server.pem") == "of no server\n"
    assert workspace.at_remote("work", "example.env") == f"{LINES['GitHub']}\n"


def test_a_fingerprint_lets_through_what_was_seen_and_no_other_secret(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("example.env", f"{LINES['GitHub']}\n")
    (left,) = workspace.finalize().actions
    workspace.put("example.env", f"{LINES['GitHub']}\n{LINES['Stripe']}\n")

    (still,) = workspace.finalize(allow_secrets=way_through(left)).actions

    assert (still.action, still.files) == ("left", ("example.env",))
    assert "refs/heads/work" not in workspace.remote_refs()


def test_what_is_in_the_workspace_lets_nothing_through(workspace: AgentWorkspace) -> None:
    """Tools that read an allow-list in the repository do what the agent says."""
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put(".gitleaksignore", "example.env:github-pat:1\n")
    workspace.put("example.env", f"{LINES['GitHub']} # gitleaks:allow # pragma: allowlist secret\n")

    assert ("left", ("example.env",)) in [(one.action, one.files) for one in workspace.finalize().actions]


def test_commits_that_hold_credentials_go_through_by_what_the_report_says(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "leaky")
    workspace.commit("settings.py", f"{LINES['AWS']}\n")
    workspace.commit("settings.py", f"{LINES['Stripe']}\n")
    tip = workspace.commit("a $(name)\nthat no shell should see.pem")

    (failed,) = workspace.finalize().actions

    path, fingerprint = sorted(way_through(failed), reverse=True)
    assert path == "settings.py"
    assert workspace.finalize(allow_secrets=[path]).status == "Failed"
    assert workspace.finalize(allow_secrets=[fingerprint]).status == "Completed"
    assert workspace.remote_refs()["refs/heads/leaky"] == tip


def test_a_commit_whose_lines_hold_a_secret_is_not_pushed(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "leaky")
    workspace.commit("settings.py", f"KEY = '{LINES['AWS']}'\n")
    workspace.git("rm", "-q", "settings.py")
    workspace.git("commit", "-q", "-m", "take it away again")

    ended = workspace.finalize()

    assert (ended.status, ended.unsaved) == ("Failed", True)
    assert workspace.remote_refs().keys() == {"refs/heads/main", "refs/heads/shared"}
    (failed,) = [one for one in ended.actions if one.action == "failed"]
    assert failed.files == ("settings.py",)
    assert "settings.py, line 1: AWS access key" in (failed.reason or "")


def test_of_the_forms_that_tools_document_none_reaches_the_remote(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "work")
    for path, content in FORMS.items():
        workspace.put(f"forms/{path}", "")
        (workspace.root / "forms" / path).write_bytes(content)
    workspace.put("real.txt", "work\n")

    workspace.finalize()

    assert git(workspace.bare, "diff-tree", "-r", "--name-only", "--format=", "main", "work") == "real.txt"


@pytest.mark.parametrize("options", [["-m", "use {}"], ["-m", "plain", "--author", "{} <a@example.org>"]])
def test_a_commit_whose_words_hold_a_secret_is_not_pushed(workspace: AgentWorkspace, options: list[str]) -> None:
    hidden = github()
    workspace.git("checkout", "-q", "-b", "leaky")
    workspace.git("commit", "-q", "--allow-empty", *(option.format(hidden) for option in options))

    (failed,) = (ended := workspace.finalize()).actions

    assert (ended.status, failed.action, failed.branch) == ("Failed", "failed", "leaky")
    assert failed.files == (f"commit {workspace.git('rev-parse', 'HEAD')[:12]}",)
    assert "GitHub token" in (failed.reason or "")
    assert hidden not in str(ended)
    assert workspace.remote_refs().keys() == {"refs/heads/main", "refs/heads/shared"}
    assert workspace.finalize(allow_secrets=way_through(failed)).status == "Completed"


def test_a_branch_whose_name_is_a_secret_is_not_pushed_and_not_repeated(workspace: AgentWorkspace) -> None:
    hidden = github()
    workspace.git("checkout", "-q", "-b", f"try/{hidden}")
    tip = workspace.commit("real.txt")

    (failed,) = (ended := workspace.finalize()).actions

    assert (failed.action, failed.branch, failed.files) == ("failed", "try/…", ("name of the branch",))
    assert hidden not in str(ended)
    assert workspace.remote_refs().keys() == {"refs/heads/main", "refs/heads/shared"}
    workspace.finalize(allow_secrets=way_through(failed))
    assert workspace.remote_refs()[f"refs/heads/try/{hidden}"] == tip


@pytest.mark.parametrize("committed", [True, False])
def test_a_file_whose_name_is_a_secret_is_not_pushed_and_not_repeated(workspace: AgentWorkspace, committed: bool) -> None:
    hidden = github()
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put(f"notes/{hidden}", "ordinary\n")
    if committed:
        workspace.git("add", "notes")
        workspace.git("commit", "-q", "-m", "plain")

    (held,) = (ended := workspace.finalize()).actions

    assert (held.action, held.files) == ("failed" if committed else "left", ("notes/…",))
    assert hidden not in str(ended)
    assert "refs/heads/work" not in workspace.remote_refs()
    workspace.finalize(allow_secrets=way_through(held))
    assert workspace.at_remote("work", f"notes/{hidden}") == "ordinary\n"


def test_a_tag_whose_name_is_a_secret_stays_here_and_its_commit_is_saved(workspace: AgentWorkspace) -> None:
    hidden = github()
    tip = workspace.commit("real.txt")
    workspace.git("tag", "-a", hidden, "-m", hidden)

    workspace.finalize()

    assert tip in workspace.remote_refs().values()
    assert hidden not in git(workspace.bare, "for-each-ref")


def test_a_secret_that_the_remote_has_already_holds_nothing_up(workspace: AgentWorkspace) -> None:
    workspace.git("checkout", "-q", "-b", "seed")
    workspace.commit("settings.py", f"{LINES['GitHub']}\n")
    workspace.git("push", "-q", str(workspace.bare), "seed")
    workspace.git("checkout", "-q", "-b", "work")
    workspace.put("settings.py", f"{LINES['GitHub']}\nmore\n")

    ended = workspace.finalize()

    assert ended.status == "Completed"
    assert git(workspace.bare, "show", "work:settings.py").endswith("more")
