"""``session.rebase()``: the baseline moves to durable's head, and the agent's work stays on top of it, whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.engine import KINDS, DurableGit, Site, at_point, edited, kill_at, shell

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import BaselineConflict, InvalidInput, SessionExpired, SessionInUse, TurnBusy

STEPS = ("rebase:judged", "rebase:checkpoint-kept", "rebase:recorded", "rebase:written", "rebase:stored")
RECORDED = STEPS[2:]


def reopened(site: Site, session: UserSession) -> UserSession:
    """The same session in another engine, as another process has it."""
    return site.another().get_session(session.id)


def behind(session: UserSession, path: str) -> Path:
    """A file of a session's workspace, for what a program in it does behind the session's back."""
    return Path(str(session.workspace_path)) / path


@pytest.mark.parametrize("kind", [*KINDS, "overlay"])
def test_the_baseline_is_durables_head_and_the_work_is_on_top_of_it(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    session.write("src/util.py", edited(3))
    session.delete("run.sh")
    head = site.durable.commit({"src/util.py": edited(30), "rival/new.txt": "rival\n", "src/deep/er.txt": None, "README.md": "# Theirs\n"})

    result = session.rebase()

    assert (result.baseline, result.before) == (head, site.durable.git("rev-parse", "main^"))
    assert result.changed == ("README.md", "rival/new.txt", "src/deep/er.txt", "src/util.py")
    assert result.merged == ("src/util.py",)
    assert result.warnings == ()
    assert session.info().baseline_sha == head
    assert session.touched_files() == reopened(site, session).touched_files() == ["app.py", "run.sh", "src/util.py"]
    assert session.read("src/util.py") == edited(3, 30).encode()
    assert session.read("rival/new.txt") == b"rival\n"
    assert session.read("README.md") == b"# Theirs\n"
    assert not session.exists("src/deep/er.txt")
    assert not session.exists("run.sh")
    assert site.durable.head() == head
    done = session.promote()
    assert site.durable.parents(done.sha) == [head]
    assert sorted(site.durable.changed(done.sha)) == ["app.py", "run.sh", "src/util.py"]
    assert site.durable.read("src/util.py") == edited(3, 30).encode()
    assert site.durable.read("rival/new.txt") == b"rival\n"


@pytest.mark.parametrize("kind", [*KINDS, "overlay"])
def test_the_checkpoint_gives_the_old_state_back(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    before = session.info().baseline_sha
    session.write("src/util.py", edited(3))
    session.write("new.txt", "new\n")
    site.durable.commit({"src/util.py": edited(30)})

    result = session.rebase()
    session.write("new.txt", "newer\n")
    old = session.fork(result.checkpoint)

    assert old.info().baseline_sha == before
    assert old.read("src/util.py") == edited(3).encode()
    assert old.read("new.txt") == b"new\n"
    assert session.read("src/util.py") == edited(3, 30).encode()


def test_without_a_change_in_durable_nothing_is_done(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    types = site.types(session.id)

    result = session.rebase()

    assert result.baseline == result.before == site.durable.head()
    assert (result.changed, result.checkpoint) == ((), None)
    assert site.types(session.id) == types


@pytest.mark.parametrize("kind", [*KINDS, "overlay"])
@pytest.mark.parametrize(
    ("work", "drift", "conflict"),
    [
        ({"src/util.py": edited(3)}, {"src/util.py": edited(3, text="theirs")}, "text"),
        ({"app.py": None}, {"app.py": "print('theirs')\n"}, "tree"),
        ({"app.py": "print('ours')\n"}, {"app.py": None}, "tree"),
        ({"new.txt": "ours\n"}, {"new.txt": "theirs\n"}, "tree"),
        ({"src/deep/er.txt": "ours\n"}, {"src/deep/er.txt": None, "src/deep": "a file\n"}, "tree"),
        ({"new": "ours\n"}, {"new/deep.txt": "theirs\n"}, "tree"),
    ],
)
def test_a_conflict_refuses_it_and_names_the_paths_and_nothing_is_changed(
    site: Site, kind: str, work: dict[str, str | None], drift: dict[str, str | None], conflict: str
) -> None:
    session = site.start(workspace=kind)
    before = session.info().baseline_sha
    for path, text in work.items():
        session.delete(path) if text is None else session.write(path, text)
    session.write("other.txt", "other\n")
    head = site.durable.commit({**drift, "rival.txt": "rival\n"})
    files = {entry.path: session.read(entry.path, follow=False) for entry in session.list() if entry.type != "dir"}

    with pytest.raises(BaselineConflict) as refused:
        session.rebase()

    assert refused.value.conflicting_files == [*work]
    assert refused.value.kinds == dict.fromkeys(work, conflict)
    assert (refused.value.baseline_sha, refused.value.durable_sha) == (before, head)
    assert session.info().baseline_sha == before
    assert {entry.path: session.read(entry.path, follow=False) for entry in session.list() if entry.type != "dir"} == files
    assert "session.rebased" not in site.types(session.id)


@pytest.mark.parametrize("kind", [*KINDS, "overlay"])
def test_what_both_sides_have_alike_is_touched_no_more(site: Site, kind: str) -> None:
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    session.write("new.txt", "new\n")
    session.delete("README.md")
    site.durable.commit({"app.py": "print('v2')\n", "new.txt": "new\n", "README.md": None})

    result = session.rebase()

    assert result.merged == ()
    assert session.touched_files() == []
    assert not session.exists("README.md")
    site.durable.commit({"README.md": "# Back\n"})
    session.rebase()
    assert session.read("README.md") == b"# Back\n"
    assert session.touched_files() == []


def test_a_second_rebase_goes_on_from_the_first(site: Site) -> None:
    session = site.start()
    session.write("src/util.py", edited(3))
    site.durable.commit({"src/util.py": edited(30)})
    session.rebase()
    site.durable.commit({"src/util.py": edited(15, 30)})

    again = session.rebase()

    assert session.read("src/util.py") == edited(3, 15, 30).encode()
    site.durable.commit({"src/util.py": edited(15)})
    session.rebase()
    assert session.read("src/util.py") == edited(3, 15).encode()
    assert session.fork(again.checkpoint).read("src/util.py") == edited(3, 30).encode()
    assert session.touched_files() == ["src/util.py"]


@pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
def test_ignored_files_stay_and_one_in_the_way_is_a_conflict(site: Site, kind: str) -> None:
    site.durable.commit({".gitignore": "*.env\n"})
    session = site.start(workspace=kind)
    behind(session, "local.env").write_text("KEY=1\n")
    site.durable.commit({"README.md": "# Theirs\n"})

    session.rebase()

    assert behind(session, "local.env").read_text() == "KEY=1\n"
    assert behind(session, "README.md").read_text() == "# Theirs\n"
    site.durable.commit({"local.env": "KEY=2\n"})
    with pytest.raises(BaselineConflict) as refused:
        session.rebase()
    assert refused.value.kinds == {"local.env": "tree"}
    assert behind(session, "local.env").read_text() == "KEY=1\n"


def test_a_file_that_is_too_large_to_promote_stays_and_is_named(site: Site) -> None:
    session = site.start()
    with behind(session, "large.bin").open("wb") as large:
        large.truncate((1 << 30) + 1)
    site.durable.commit({"README.md": "# Theirs\n"})

    result = session.rebase()

    assert len(result.warnings) == 1
    assert "'large.bin'" in result.warnings[0]
    assert behind(session, "large.bin").stat().st_size == (1 << 30) + 1
    site.durable.commit({"large.bin": "small\n"})
    with pytest.raises(BaselineConflict):
        session.rebase()


def test_a_program_in_the_workspace_refuses_it(site: Site) -> None:
    session = site.start()
    site.durable.commit({"README.md": "# Theirs\n"})
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=str(session.workspace_path), stdin=subprocess.PIPE) as program:
        try:
            with pytest.raises(SessionInUse, match="is in use") as refused:
                session.rebase()
        finally:
            program.send_signal(signal.SIGKILL)
    assert "remove" not in str(refused.value)
    assert "session.rebased" not in site.types(session.id)
    session.rebase()
    assert session.read("README.md") == b"# Theirs\n"


def test_a_running_turn_and_an_ended_session_refuse_it(site: Site) -> None:
    session = site.start()
    site.durable.commit({"README.md": "# Theirs\n"})
    with session.turn(), pytest.raises(TurnBusy):
        session.rebase()
    other = reopened(site, session)
    session.discard()
    with pytest.raises(SessionExpired):
        other.rebase()


def test_the_agent_cannot_rebase(site: Site) -> None:
    agent = site.start().for_agent()
    with pytest.raises(AttributeError, match="only a person decides"):
        agent.rebase()  # type: ignore[attr-defined]


def test_what_is_written_while_it_runs_stays_and_keeps_its_conflict(site: Site) -> None:
    session = site.start()
    session.write("src/util.py", edited(3))
    site.durable.commit({"src/util.py": edited(30), "README.md": "# Theirs\n"})

    def write() -> None:
        behind(session, "src/util.py").write_text(edited(3, 10))
        behind(session, "README.md").write_text("# Ours\n")

    with at_point("rebase:recorded", write):
        session.rebase()

    assert session.read("src/util.py") == edited(3, 10).encode()
    assert session.read("README.md") == b"# Ours\n"
    assert session.touched_files() == ["README.md", "src/util.py"]
    with pytest.raises(BaselineConflict) as refused:
        session.promote()
    assert refused.value.conflicting_files == ["README.md", "src/util.py"]
    session.write("README.md", "# A project\n")
    assert session.rebase().merged == ("src/util.py",)
    assert session.read("src/util.py") == edited(3, 10, 30).encode()
    assert session.read("README.md") == b"# Theirs\n"
    assert session.touched_files() == ["src/util.py"]


@pytest.mark.parametrize("kind", ["clone", "lazy", "overlay"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_a_step_leaves_the_old_state_or_the_new_one(site: Site, step: str, kind: str) -> None:
    session = site.start(workspace=kind)
    before = session.info().baseline_sha
    session.write("app.py", "print('v2')\n")
    session.write("src/util.py", edited(3))
    head = site.durable.commit({"src/util.py": edited(30), "README.md": "# Theirs\n"})

    kill_at(step, session.rebase)

    again = site.another().init().get_session(session.id)
    moved = step in RECORDED
    assert again.touched_files() == ["app.py", "src/util.py"]
    assert again.info().baseline_sha == (head if moved else before)
    assert again.read("src/util.py") == (edited(3, 30) if moved else edited(3)).encode()
    assert again.read("README.md") == (b"# Theirs\n" if moved else b"# A project\n")
    assert site.types(session.id).count("session.rebased") == moved
    again.rebase()
    assert again.read("src/util.py") == edited(3, 30).encode()
    done = again.promote()
    assert site.durable.parents(done.sha) == [head]
    assert site.durable.read("src/util.py") == edited(3, 30).encode()


def test_a_merged_text_that_a_power_cut_took_stays_behind_and_is_merged_later(site: Site) -> None:
    session = site.start()
    session.write("src/util.py", edited(3))
    site.durable.commit({"src/util.py": edited(30)})
    kill_at("rebase:recorded", session.rebase)
    for pack in (site.directory(session) / "engine/commits.git/objects/pack").iterdir():
        pack.unlink()

    again = reopened(site, session)

    assert again.read("src/util.py") == edited(3).encode()
    with pytest.raises(BaselineConflict):
        again.promote()
    again.promote(on_overlap="merge")
    assert site.durable.read("src/util.py") == edited(3, 30).encode()


def test_a_review_from_before_it_is_refused(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    review = session.review()
    site.durable.commit({"README.md": "# Theirs\n"})
    session.rebase()

    with pytest.raises(InvalidInput, match="rebase moved the baseline"):
        session.promote(review)

    session.promote(session.review())
    assert site.durable.read("app.py") == b"print('v2')\n"


def test_a_promotion_that_keeps_the_session_and_a_rebase_take_turns(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    first = session.promote(files=["app.py"], keep=True)
    site.durable.commit({"app.py": "print('v3')\n"})
    session.rebase()
    assert session.read("app.py") == b"print('v3')\n"
    assert session.touched_files() == ["left.txt"]
    second = session.promote(keep=True)
    assert site.durable.parents(site.durable.parents(second.sha)[0]) == [first.sha]
    session.write("src/util.py", edited(3))
    site.durable.commit({"src/util.py": edited(30)})
    session.rebase()
    child = session.handoff()
    assert child.read("src/util.py") == edited(3, 30).encode()
    assert child.touched_files() == ["src/util.py"]
    child.promote()
    assert site.durable.read("src/util.py") == edited(3, 30).encode()


def test_a_rebase_onto_a_rivals_commit_does_not_explain_it_as_a_promotion(site: Site) -> None:
    session, watcher = site.start(), site.start()
    head = site.durable.commit({"README.md": "# Theirs\n"})
    session.rebase()
    assert [(one.ref, one.new) for one in watcher.moved_refs()] == [("refs/heads/main", head)]


def test_a_history_that_was_rewound_is_rebased_onto_too(site: Site) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    site.durable.commit({"README.md": "# Theirs\n"})
    session.rebase()
    site.durable.git("reset", "-q", "--hard", "main^")
    session.rebase()
    assert session.read("README.md") == b"# A project\n"
    assert session.touched_files() == ["app.py"]
    assert session.info().baseline_sha == site.durable.head()


def test_line_endings_of_a_checkout_are_merged_as_git_stores_them(site: Site) -> None:
    site.durable.commit({".gitattributes": "*.py text\n"})
    session = site.start()
    behind(session, "src/util.py").write_bytes(edited(3).replace("\n", "\r\n").encode())
    site.durable.commit({"src/util.py": edited(30)})
    assert session.rebase().merged == ("src/util.py",)
    assert session.read("src/util.py") == edited(3, 30).encode()
    assert session.touched_files() == ["src/util.py"]


def test_the_mode_of_either_side_is_kept_in_a_merge(site: Site) -> None:
    session = site.start()
    session.write("src/util.py", edited(3))
    shell(session, "chmod +x src/util.py")
    site.durable.commit({"src/util.py": edited(30)})
    session.rebase()
    session.promote()
    assert site.durable.tree()["src/util.py"][0] == "100755"
    assert DurableGit(site.durable.path).read("src/util.py") == edited(3, 30).encode()
