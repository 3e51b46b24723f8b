"""``promote(keep=True)``: the session goes on from the promoted commit, and nothing of a rival's is lost."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine import KINDS, SUBMODULE, DurableGit, Site, at_point, edited, kill_at, shell

from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import BaselineConflict, InvalidInput, WriteRejected
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.record.eventlog.events import decode, encode
from pytest_gittrix.report.world_page import patches
from pytest_gittrix.workspaces.seeds.seed import History, Seed


def reopened(site: Site, session: UserSession) -> UserSession:
    """The same session in another engine, as another process has it."""
    return site.another().get_session(session.id)


def behind(session: UserSession, path: str) -> Path:
    """A file of a session's workspace, for what a program in it does behind the session's back."""
    return Path(str(session.workspace_path)) / path


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_session_goes_on_from_its_commit(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    session.write("new/deep.txt", "new\n")
    session.delete("README.md")
    agent = site.another().get_session(session.id).for_agent()
    assert agent.touched_files() == ["README.md", "app.py", "new/deep.txt"]

    first = session.promote(files=["app.py", "README.md"], keep=True)

    assert first.warnings == ()
    assert site.durable.head() == first.sha == session.info().baseline_sha
    assert session.touched_files() == agent.touched_files() == ["new/deep.txt"]
    assert site.state(session.id).state == "active"
    assert session.read("app.py") == b"print('v2')\n"
    assert not session.exists("README.md")

    session.write("app.py", "print('v3')\n")
    assert reopened(site, session).touched_files() == ["app.py", "new/deep.txt"]
    second = session.promote()

    assert site.durable.parents(second.sha) == [first.sha]
    assert site.durable.read("app.py") == b"print('v3')\n"
    assert sorted(site.durable.changed(second.sha)) == ["app.py", "new/deep.txt"]
    assert site.state(session.id).state == "promoted"
    assert site.durable.status() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_rival_changed_elsewhere_comes_into_the_workspace_and_is_not_undone(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    site.durable.commit({"src/util.py": edited(3), "rival/new.txt": "rival\n", "src/deep/er.txt": None, "link": ("120000", "run.sh")})

    session.promote(files=["app.py"], keep=True)

    assert session.touched_files() == ["left.txt"]
    assert session.read("src/util.py") == edited(3).encode()
    assert session.read("rival/new.txt") == b"rival\n"
    assert session.read("link", follow=False) == b"run.sh"
    assert not session.exists("src/deep/er.txt")
    assert reopened(site, session).touched_files() == ["left.txt"]
    done = session.promote()
    assert list(site.durable.changed(done.sha)) == ["left.txt"]
    assert site.durable.read("src/util.py") == edited(3).encode()


def test_a_conflict_at_work_that_stays_behind_refuses_the_promotion_before_anything_moves(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.write("src/util.py", edited(3))
    head = site.durable.commit({"src/util.py": edited(30)})

    with pytest.raises(BaselineConflict) as refused:
        session.promote(files=["app.py"], keep=True)

    assert refused.value.conflicting_files == ["src/util.py"]
    assert site.durable.head() == head
    assert "promote.intent" not in site.types(session.id)
    assert session.touched_files() == ["app.py", "src/util.py"]
    session.promote(on_overlap="merge", keep=True)
    assert session.touched_files() == []
    assert session.read("src/util.py") == edited(3, 30).encode()
    session.write("src/util.py", edited(3, 20, 30))
    site.durable.commit({"src/util.py": edited(3, 30, 35)})
    with pytest.raises(BaselineConflict):
        session.promote()


def test_merged_text_comes_into_the_workspace_unless_the_agent_went_on_with_it(site: Site) -> None:
    session = site.start()
    session.write("src/util.py", edited(3))
    site.durable.commit({"src/util.py": edited(30)})

    with at_point("promote:recorded", lambda: behind(session, "src/util.py").write_text(edited(3, 10))):
        session.promote(on_overlap="merge", keep=True)

    assert session.read("src/util.py") == edited(3, 10).encode()
    assert session.touched_files() == ["src/util.py"]
    with pytest.raises(BaselineConflict):
        session.promote()
    session.promote(on_overlap="merge")
    assert site.durable.read("src/util.py") == edited(3, 10, 30).encode()


@pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
def test_what_the_agent_writes_over_a_rivals_change_stays_behind_until_it_is_merged(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    site.durable.commit({"src/util.py": edited(30), "rival.txt": "theirs\n"})
    with at_point("promote:recorded", lambda: behind(session, "src/util.py").write_text(edited(10))):
        session.promote(keep=True)
    session.checkpoint()
    fork, then, again = session.fork(files="now"), session.fork(), reopened(site, session)
    assert session.touched_files() == again.touched_files() == fork.touched_files() == ["src/util.py"]
    head = site.durable.head()

    for one in (session, again, fork, then):
        with pytest.raises(BaselineConflict) as refused:
            one.promote()
        assert refused.value.kinds == {"src/util.py": "path"}
    session.write("app.py", "print('v3')\n")
    with pytest.raises(BaselineConflict):
        session.promote(files=["app.py"], keep=True)
    assert site.durable.head() == head

    assert fork.promote(on_overlap="merge", strategy="patch").patch.count("+changed 10") == 1
    session.promote(on_overlap="merge", keep=True)
    assert session.touched_files() == []
    assert site.durable.read("src/util.py") == edited(10, 30).encode()
    session.write("src/util.py", edited(10, 20, 30))
    assert session.promote().sha == site.durable.head()


def test_what_is_as_before_again_is_brought_forward(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    site.durable.commit({"src/util.py": edited(30)})
    with at_point("promote:recorded", lambda: behind(session, "src/util.py").write_text(edited(10))):
        session.promote(keep=True)
    behind(session, "src/util.py").write_text(edited())

    assert session.touched_files() == []
    assert session.read("src/util.py") == edited(30).encode()
    session.write("src/util.py", edited(10, 30))
    assert list(site.durable.changed(session.promote().sha)) == ["src/util.py"]


def test_what_the_agent_writes_meanwhile_over_its_own_promoted_file_is_no_conflict(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    site.durable.commit({"rival.txt": "theirs\n"})
    with at_point("promote:recorded", lambda: behind(session, "app.py").write_text("print('v3')\n")):
        session.promote(keep=True)
    assert session.touched_files() == ["app.py"]
    assert list(site.durable.changed(session.promote().sha)) == ["app.py"]


IN_THE_WAY = {
    "ignored directory": ("mkdir build; echo mine > build/out", "build"),
    "ignored file": ("echo mine > build", "build/x.txt"),
    "pipe": ("mkfifo rv", "rv"),
    "link": ("ln -s src build", "build/x.txt"),
}


@pytest.mark.parametrize(("script", "rivals"), IN_THE_WAY.values(), ids=IN_THE_WAY)
def test_what_no_tree_shows_does_not_delete_a_rivals_file_that_it_is_in_the_way_of(site: Site, script: str, rivals: str) -> None:
    site.durable.commit({".gitignore": "build\n"})
    early, late = site.start(), site.start()
    for session in (early, late):
        session.write("app.py", f"print({session.id!r})\n")
    shell(early, script)
    site.durable.commit({rivals: "theirs\n"})

    with pytest.raises(BaselineConflict) as refused:
        early.promote(files=["app.py"], keep=True)
    assert refused.value.conflicting_files == [rivals]
    with at_point("promote:recorded", lambda: shell(late, script)):
        late.promote(keep=True)

    assert late.touched_files() == [rivals]
    late.write("left.txt", "left\n")
    with pytest.raises(BaselineConflict):
        late.promote()
    shell(late, "rm -r build rv 2>&1 || true")
    assert late.touched_files() == ["left.txt"]
    assert late.read(rivals) == b"theirs\n"
    late.promote()
    assert site.durable.read(rivals) == b"theirs\n"


@pytest.mark.parametrize("kind", ["clone", "overlay"])
def test_empty_directories_make_room_for_a_rivals_file(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    (site.directory(session) / "workspace/rv/deep/er").mkdir(parents=True)
    (site.directory(session) / "workspace/rv/other").mkdir()
    site.durable.commit({"rv": "theirs\n"})

    session.promote(keep=True)

    assert session.touched_files() == []
    assert session.read("rv") == b"theirs\n"
    session.write("left.txt", "left\n")
    assert list(site.durable.changed(session.promote().sha)) == ["left.txt"]


def test_a_file_of_an_absurd_size_is_the_agents_own_and_is_not_read(site: Site) -> None:
    early, late = site.start(), site.start()
    for session in (early, late):
        session.write("app.py", f"print({session.id!r})\n")
    site.durable.commit({"src/util.py": edited(30)})
    os.truncate(behind(early, "src/util.py"), 8 << 40)
    with pytest.raises(BaselineConflict):
        early.promote(files=["app.py"], keep=True)
    with at_point("promote:recorded", lambda: os.truncate(behind(late, "src/util.py"), 8 << 40)):
        late.promote(keep=True)

    assert late.touched_files() == ["src/util.py"]
    behind(late, "src/util.py").write_text(edited(10))
    with pytest.raises(BaselineConflict):
        late.promote()
    late.promote(on_overlap="merge")
    assert site.durable.read("src/util.py") == edited(10, 30).encode()


@pytest.mark.parametrize("kind", [*KINDS, "overlay"])
def test_untouched_submodules_follow_durable(site: Site, kind: str) -> None:
    one, other = "1" * 40, "2" * 40
    site.durable.commit({"bumped": (SUBMODULE, one), "gone": (SUBMODULE, one), "becomes": (SUBMODULE, one)})
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    site.durable.commit({"bumped": (SUBMODULE, other), "gone": None, "becomes": "a file\n"})
    site.durable.commit({"new/sub": (SUBMODULE, one), "src/deep/er.txt": None, "src/deep": (SUBMODULE, one)})

    session.promote(keep=True)

    assert session.touched_files() == []
    assert session.read("becomes") == b"a file\n"
    assert parts_of(session).workspace.files.lstat("gone") is None
    session.write("left.txt", "left\n")
    assert list(site.durable.changed(session.promote().sha)) == ["left.txt"]


def test_hunks_that_were_not_promoted_are_what_is_left(site: Site) -> None:
    session = site.start()
    session.write("src/util.py", edited(3, 30))

    session.promote(hunks={"src/util.py": [1]}, keep=True)

    assert site.durable.read("src/util.py") == edited(3).encode()
    assert session.read("src/util.py") == edited(3, 30).encode()
    assert [hunk.index for hunk in session.review().hunks["src/util.py"]] == [1]
    site.durable.commit({"src/util.py": edited(3, 15)})
    session.write("app.py", "print('v2')\n")
    with pytest.raises(BaselineConflict):
        session.promote(files=["app.py"], keep=True)
    session.promote(on_overlap="merge", keep=True)
    assert session.touched_files() == []
    assert session.read("src/util.py") == edited(3, 15, 30).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_modes_links_and_directories_in_place_of_files_are_kept(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.delete("app.py")
    session.write("app.py/inside.txt", "inside\n")
    if session.workspace_path is not None:
        (session.workspace_path / "run.sh").chmod(0o644)
        (session.workspace_path / "link").unlink()
        (session.workspace_path / "link").symlink_to("README.md")
    site.durable.commit({"src/deep/er.txt": None, "src/deep": "a file\n"})
    promoted = session.touched_files()
    session.write("left.txt", "left\n")

    session.promote(files=promoted, keep=True)

    assert session.touched_files() == ["left.txt"]
    assert session.read("src/deep") == b"a file\n"
    session.delete("app.py/inside.txt")
    session.write("app.py", "a file again\n")
    done = session.promote()
    assert sorted(site.durable.changed(done.sha)) == ["app.py", "app.py/inside.txt", "left.txt"]


def test_an_ignored_file_of_the_agents_in_the_way_of_a_rivals_is_a_conflict(site: Site) -> None:
    site.durable.commit({".gitignore": "*.log\n"})
    session = site.start()
    session.write("app.py", "print('v2')\n")
    behind(session, "run.log").write_text("mine\n")
    site.durable.commit({"run.log": "theirs\n"})

    with pytest.raises(BaselineConflict, match=r"run\.log"):
        session.promote(files=["app.py"], keep=True)


def test_an_ignored_file_that_was_promoted_is_followed_like_any_other(site: Site) -> None:
    site.durable.commit({".gitignore": "*.log\n"})
    session = site.start()
    session.write("run.log", "first\n")
    session.promote(keep=True)
    assert session.touched_files() == []
    behind(session, "run.log").write_text("second\n")
    assert session.touched_files() == ["run.log"]


def test_a_seed_file_that_was_promoted_is_given_no_more(site: Site) -> None:
    session = site.start(seed_files={"notes.txt": "given\n", "other.txt": "other\n"})
    session.write("notes.txt", "changed\n")
    session.promote(keep=True)
    assert session.touched_files() == []
    session.write("notes.txt", "given\n")
    assert session.touched_files() == ["notes.txt"]
    child = session.handoff()
    assert child.touched_files() == ["notes.txt"]
    fork = child.fork(files="baseline")
    assert fork.read("notes.txt") == b"changed\n"
    assert (fork.read("other.txt"), fork.touched_files()) == (b"other\n", [])


def test_a_review_from_before_is_refused(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    old = session.review()
    session.promote(files=["app.py"], keep=True)
    with pytest.raises(InvalidInput, match="Review the session again"):
        session.promote(old)
    assert session.promote(session.review()).sha == site.durable.head()


def test_a_patch_cannot_keep_a_session(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    with pytest.raises(InvalidInput, match="'patch' cannot keep"):
        session.promote(strategy="patch", keep=True)


def test_after_a_promotion_to_a_branch_the_next_one_adds_to_it(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    main = site.durable.head()
    first = session.promote(strategy="branch", keep=True)
    assert session.info().durable_branch == first.branch == "gittrix/fix-the-bug"
    assert session.info().durable_ref.endswith("#gittrix/fix-the-bug")
    session.write("src/util.py", edited(1))

    second = session.promote()

    assert (second.branch, site.durable.parents(second.sha)) == (first.branch, [first.sha])
    assert site.durable.head() == main
    assert session.id not in site.engine.services.records.promoted()
    assert site.start("another").moved_refs() == []


class TestABranchThatIsGone:
    """Whoever merges a branch may delete it, and its session goes back to where it came from."""

    @pytest.fixture
    def session(self, site: Site) -> UserSession:
        session = site.start()
        session.write("app.py", "print('v2')\n")
        session.promote(strategy="branch", keep=True)
        return session

    @pytest.mark.parametrize("how", ["merged", "squashed"])
    def test_leads_to_a_new_one_on_top_of_the_merge(self, site: Site, session: UserSession, how: str) -> None:
        durable, branch = site.durable, "gittrix/fix-the-bug"
        theirs = durable.commit({"README.md": "theirs\n"})
        if how == "merged":
            merge = durable.git("commit-tree", f"{branch}^{{tree}}", "-p", theirs, "-p", branch, "-m", "merge")
            durable.git("update-ref", "refs/heads/main", merge)
        durable.commit({"app.py": "print('v2')\n", "README.md": "theirs\n"}, "squashed")
        durable.git("branch", "-D", branch)
        main = durable.head()
        session.write("app.py", "print('v3')\n")

        result = session.promote(keep=True)

        assert f"the session's branch '{branch}' is gone from durable" in result.warnings[0]
        assert (result.branch, durable.parents(result.sha), durable.head()) == (branch, [main], main)
        assert durable.changed(result.sha).keys() == {"app.py"}
        assert session.touched_files() == []
        assert session.read("README.md") == b"theirs\n"
        session.write("app.py", "print('v4')\n")
        assert durable.parents(session.promote().sha) == [result.sha]

    def test_without_a_merge_leaves_what_was_on_it_in_conflict(self, site: Site, session: UserSession) -> None:
        site.durable.git("branch", "-D", "gittrix/fix-the-bug")
        session.write("app.py", "print('v3')\n")
        session.write("new", "x\n")
        with pytest.raises(BaselineConflict) as caught:
            session.promote()
        assert caught.value.conflicting_files == ["app.py"]
        result = session.promote(["new"], strategy="commit")
        assert (result.branch, site.durable.head()) == ("main", result.sha)
        assert site.durable.changed(result.sha).keys() == {"new"}

    def test_is_no_way_onto_a_protected_branch(self, site: Site, session: UserSession) -> None:
        site.durable.git("branch", "-D", "gittrix/fix-the-bug")
        session.write("new", "x\n")
        assert session.promote().branch != "main"

    def test_of_a_record_that_does_not_say_where_it_came_from_is_an_error(self, site: Site, session: UserSession) -> None:
        child = session.handoff()
        log = site.directory(child) / "events.jsonl"
        first, _, rest = log.read_bytes().partition(b"\n")
        created = decode(first)
        kept = {name: value for name, value in created.data["kept"].items() if name != "origin"}
        log.write_bytes(encode(replace(created, data={**created.data, "kept": kept})).rstrip(b"\n") + b"\n" + rest)
        site.durable.git("branch", "-D", "gittrix/fix-the-bug")
        other = site.another().get_session(child.id)
        other.write("new", "x\n")
        with pytest.raises(InvalidInput, match=r"gone from durable[\s\S]*Start a new session"):
            other.promote()


def test_no_own_commit_counts_as_a_strangers_move(site: Site) -> None:
    session, other = site.start(), site.start()
    session.write("app.py", "print('v2')\n")
    first = session.promote(keep=True).sha
    assert session.moved_refs() == other.moved_refs() == []
    assert site.engine.services.records.promoted() == {first}
    session.write("app.py", "print('v3')\n")
    second = session.promote().sha
    site.start("promotes nothing").discard()
    assert other.moved_refs() == []
    assert site.engine.services.records.promoted() == {first, second}
    assert {row.id for row in site.engine.services.index.each(promoted=True)} == {session.id}


def test_a_session_that_was_handed_on_knows_the_promotion_that_kept_its_parent(site: Site) -> None:
    parent = site.start()
    parent.write("app.py", "print('v2')\n")
    site.durable.commit({"src/util.py": edited(30)})
    with at_point("promote:recorded", lambda: behind(parent, "src/util.py").write_text(edited(10))):
        branch = parent.promote(strategy="branch", keep=True).branch

    child = parent.handoff().handoff()

    assert site.state(child.id).kept == site.state(parent.id).kept
    assert child.touched_files() == ["src/util.py"]
    with pytest.raises(BaselineConflict):
        child.promote()
    assert child.promote(on_overlap="merge", keep=True).branch == branch
    assert site.durable.git("show", f"{branch}:src/util.py") == edited(10, 30).rstrip("\n")
    main = site.durable.commit({"app.py": "print('v2')\n", "src/util.py": edited(10, 30)}, "squashed")
    site.durable.git("branch", "-D", branch)
    child.write("app.py", "print('v3')\n")
    assert site.durable.parents(child.promote().sha) == [main]


def test_an_overlay_can_be_looked_at_while_a_program_keeps_its_next_baseline_out(site: Site) -> None:
    session = site.start(workspace="overlay")
    session.write("app.py", "print('v2')\n")
    layers = parts_of(session).workspace.layers
    site.durable.commit({"src/util.py": edited(30)})
    with ExitStack() as program:
        with at_point("promote:recorded", lambda: program.enter_context(locked_file(layers[1]))):
            [warning] = session.promote(keep=True).warnings
        assert "not brought forward yet" in warning
        assert session.read("src/util.py") == edited().encode()
        assert (session.exists("app.py"), "src" in [one.path for one in session.list()]) == (True, True)
        assert session.info().touched_files == ("app.py",) == tuple(session.touched_files())
        assert "print('v2')" in session.diff()
        with pytest.raises(WriteRejected, match="a program is at work"):
            session.promote()

    assert session.touched_files() == []
    session.write("left.txt", "left\n")
    assert list(site.durable.changed(session.promote().sha)) == ["left.txt"]


def test_a_killed_promotion_ends_a_session_whose_workspace_cannot_go_on(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    kill_at("promote:swapped", lambda: session.promote(files=["app.py"], keep=True))
    (site.directory(session) / "engine/workspace.json").write_text("{")

    report = site.another().recover()

    assert report.rolled_forward == [session.id]
    assert site.state(session.id).state == "promoted"
    assert site.durable.read("app.py") == b"print('v2')\n"
    [whole] = site.engine.archives(session.id)
    assert (Path(whole) / "left.txt").read_text() == "left\n"


@pytest.mark.parametrize("kind", ["clone", "worktree"])
def test_the_agents_own_repository_stays_as_it_made_it(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    if kind == "clone":
        shell(session, "git add -A && git -c user.name=a -c user.email=a@b commit -qm mine")
    site.durable.commit({"src/util.py": edited(3)})
    session.promote(keep=True)

    session.write("left.txt", "left\n")
    sha = session.commit("after")

    assert [entry.message for entry in session.log()] == (["after", "mine"] if kind == "clone" else ["after"])
    assert session.info().beside == ()
    if kind == "clone":
        assert shell(session, "git fsck --strict 2>&1; git status --porcelain") == ""
        assert shell(session, f"git show {sha}:src/util.py") == edited(3)
    session.discard()
    archive = site.engine.info(session.id)
    assert archive.state == "discarded"
    assert (site.directory(session) / "archive.patch").read_text().count("diff --git") == 1
    assert (site.directory(session) / "archive.agent.git").exists() == (kind == "clone")


def test_what_the_agent_committed_after_a_promotion_is_archived_when_its_session_is_discarded(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.promote(keep=True)
    commit = "git add -A && git -c user.name=a -c user.email=a@b commit -qm"
    shell(session, f"echo an idea > idea.txt; {commit} idea; git rm -q idea.txt; {commit} gone")

    session.discard()

    [kept] = [path for path in site.engine.archives(session.id) if path.endswith("archive.agent.git")]
    assert DurableGit(Path(kept), bare=True).git("log", "--all", "--format=%s", "--", "idea.txt") == "gone\nidea"


def test_a_promotion_that_takes_an_earlier_one_back_says_so(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    site.durable.commit({"src/util.py": edited(30)})
    assert session.promote(keep=True).warnings == ()
    shell(session, "git checkout -q .")  # the agent's repository is as the session began
    session.write("left.txt", "left\n")
    assert session.touched_files() == ["app.py", "left.txt", "src/util.py"]
    assert "-print('v2')" in session.review().diff, "who undoes a promoted change leaves the same bytes, so this is shown and not refused"

    assert session.promote(files=["left.txt"], keep=True).warnings == ()
    [warning] = session.promote().warnings

    assert warning.endswith("takes back what durable got since: 'app.py', 'src/util.py'")


def test_forks_begin_with_the_baseline_of_their_event(site: Site) -> None:
    session = site.start()
    began = session.info().baseline_sha
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    session.checkpoint()
    before = session.history()[-1].seq
    kept = session.promote(files=["app.py"], keep=True).sha
    after = session.history()[-1].seq
    session.write("app.py", "print('v3')\n")

    old = session.fork(before)
    assert (old.info().baseline_sha, old.touched_files()) == (began, ["app.py", "left.txt"])
    with pytest.raises(InvalidInput, match="were not saved"):
        session.fork(after)
    session.checkpoint()
    now = session.fork()
    assert (now.info().baseline_sha, now.touched_files()) == (kept, ["app.py", "left.txt"])
    assert session.fork(session.history()[-1].seq - 1, files="now").touched_files() == ["app.py", "left.txt"]
    assert session.fork(after, files="baseline").info().baseline_sha == kept


STEPS = ("promote:intent-logged", "promote:swapped", "promote:baseline-made", "promote:recorded", "rebase:written", "rebase:stored")


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_a_step_leaves_the_old_state_or_the_new_one(site: Site, step: str) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    site.durable.commit({"src/util.py": edited(3), "README.md": None})
    head = site.durable.head()

    kill_at(step, lambda: session.promote(files=["app.py"], keep=True))

    again = site.another().init().get_session(session.id)
    landed = site.durable.head() != head
    assert landed == (step != "promote:intent-logged")
    assert again.touched_files() == (["left.txt"] if landed else ["app.py", "left.txt"])
    assert site.types(session.id).count("promote.kept") == landed
    done = again.promote()
    assert site.durable.parents(done.sha) == [site.durable.git("rev-parse", "main^")]
    assert site.durable.read("src/util.py") == edited(3).encode()
    assert site.durable.status() == site.durable.leftovers() == []


def test_a_session_that_is_discarded_before_its_workspace_followed_archives_what_is_left(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    kill_at("promote:recorded", lambda: session.promote(files=["app.py"], keep=True))

    site.another().evict(session.id, "discarded")

    patch = (site.directory(session) / "archive.patch").read_text()
    assert ("left.txt" in patch, "app.py" in patch) == (True, False)


def test_an_overlay_keeps_the_layer_that_it_was_made_above(site: Site) -> None:
    session = site.start(workspace="overlay")
    began = session.info().baseline_sha
    for path in ("app.py", "new.txt", "left.txt"):
        session.write(path, "changed\n")
    session.delete("README.md")
    layers = parts_of(session).workspace.layers
    site.durable.commit({"src/util.py": edited(3), "src/deep/er.txt": None})
    with locked_file(layers[1]), pytest.raises(WriteRejected, match="a program is at work"):  # as while the layers are mounted
        session.promote(files=["app.py"], keep=True)

    kept = session.promote(files=["app.py", "new.txt", "README.md"], keep=True).sha

    assert session.touched_files() == ["left.txt"]
    assert session.read("src/util.py") == edited(3).encode()
    assert not session.exists("src/deep/er.txt")
    (site.directory(session) / "workspace/new.txt").unlink()  # as the kernel does for a program: below it is nothing to hide
    assert session.touched_files() == ["left.txt", "new.txt"]
    assert parts_of(reopened(site, session)).workspace.layers == layers
    site.engine.services.index.sync()
    assert site.engine.services.records.baselines() == {began, kept}
    with locked_file(layers[1]):
        last = session.promote(files=["new.txt"], keep=True)  # nothing has to be written for it
    assert [warning[:36] for warning in last.warnings] == ["1 path is as the session began, so t"]
    assert session.touched_files() == ["left.txt"]


def test_the_next_baseline_is_found_where_the_first_one_is_not(site: Site) -> None:
    class Shared(LocalDurable):
        """A repository whose first seed is one that stores share."""

        def seed(self, seeds: str, commit: str, history: History) -> Seed:
            return super().seed(str(site.root / "shared") if commit == began else seeds, commit, history)

    began = site.durable.head()
    engine = site.another(durable=Shared(site.durable.path, sync=False))
    session = engine.start_session("fix the bug")
    session.write("app.py", "print('v2')\n")
    session.promote(keep=True)
    assert session.touched_files() == engine.get_session(session.id).touched_files() == []


def test_a_failed_tests_patch_of_a_session_is_of_its_baseline(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    kill_at("promote:recorded", lambda: session.promote(files=["app.py"], keep=True))

    [(id_, patch)] = patches(site.engine.store)

    assert (id_, patch.count(b"diff --git"), b"left.txt" in patch) == (session.id, 1, True)
    assert list(site.durable.changed(session.promote().sha)) == ["left.txt"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_deleted_before_durable_had_it_is_no_work_in_the_way_of_it(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("new.txt", "ours\n")
    session.delete("new.txt")
    site.durable.commit({"new.txt": b"theirs\n"})
    session.write("app.py", "print('v2')\n")

    session.promote(keep=True)

    assert session.touched_files() == []
    assert reopened(site, session).read("new.txt") == b"theirs\n"
