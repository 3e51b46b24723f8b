"""When the workspaces of members' sessions go, and when they never do: by age, by budget, by hand; and what stays of a session then."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.at_work import stranger
from support.members import Crew

from pytest_gittrix.errors import InvalidInput, SessionExpired, SessionNotFound
from pytest_gittrix.members.members import CleanupReport, Members
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.record.state.retention import RetentionPolicy, Selector, age_ns
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.repos.member_workspaces import git
from pytest_gittrix.workspaces.finder import ignored

HOUR = timedelta(hours=1)
DAY = timedelta(hours=24)
TICK = timedelta(microseconds=1)
NOTHING = CleanupReport()


def ended(crew: Crew, how: str, kind: str = "loop", **options: Any) -> Life:
    """A retained session without any work in it, of a kind, whose run ended so."""
    life = crew.chat(**options) if kind == "interactive" else crew.ended(kind=kind, **options)
    if how == "killed":
        return crew.members.stop(life.id, force=True)
    if how == "completed":
        return crew.members.finish(life.id)
    crew.put(life.id, "left.txt")
    aside = crew.app.path.with_suffix(".aside")
    crew.app.path.rename(aside)
    try:
        return crew.members.finish(life.id)
    finally:
        aside.rename(crew.app.path)


def gone(crew: Crew, life: Life) -> bool:
    """Whether a session is cleaned up, wholly; it must be, or not at all."""
    after = crew.members.get(life.id)
    left = {path.name for path in crew.directory(life.id).iterdir()}
    if after.state == "removed":
        assert left - {"archive.workspace"} == {"events.jsonl", "metadata.json"}
        assert ("archive.workspace" in left) == ("archive.written" in crew.types(life.id))
        assert crew.types(life.id)[-1] == "workspace.removed"
        return True
    assert after.state == "retained"
    assert "workspace" in left
    return False


@pytest.mark.parametrize("way", ["by its id", "all", "by age"])
def test_a_workspace_stays_as_long_as_a_process_works_in_it_and_the_report_names_that(crew: Crew, way: str) -> None:
    life = ended(crew, "completed")
    crew.clock.advance(DAY + TICK)
    selector = {"by its id": Selector(id=life.id), "all": Selector(all=True), "by age": None}[way]
    clean = crew.members.scan if selector is None else lambda: crew.members.cleanup(selector)
    with stranger(cwd=life.workspace) as process:
        assert clean().failed == {life.id: f"Session {life.id} is in use: sleep ({process.pid})."}
        assert not gone(crew, life)

    assert clean().removed == (life.id,)
    assert gone(crew, life)


# By age --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "how", "kept"),
    [
        ("loop", "completed", DAY),
        ("loop", "killed", DAY),
        ("brain", "completed", DAY),
        ("interactive", "killed", DAY),
    ],
)
def test_a_workspace_goes_once_it_was_kept_for_its_time_and_not_before(crew: Crew, kind: str, how: str, kept: timedelta) -> None:
    life = ended(crew, how, kind)
    assert life.kind == kind

    crew.clock.advance(kept - TICK)
    assert crew.members.scan() == NOTHING
    assert not gone(crew, life)
    crew.clock.advance(TICK)
    assert crew.members.scan() == CleanupReport((life.id,))
    assert gone(crew, life)
    assert crew.members.scan() == NOTHING


def test_a_chat_that_completed_goes_at_once(crew: Crew) -> None:
    life = ended(crew, "completed", "interactive")
    assert crew.members.scan().removed == (life.id,)
    assert gone(crew, life)


def test_credentials_outlive_the_workspace_they_were_held_back_in(crew: Crew) -> None:
    life = crew.chat()
    crew.put(life.id, ".env", "not again\n")
    crew.members.finish(life.id)
    assert crew.members.scan().removed == (life.id,)
    left = {path.name for path in crew.directory(life.id).iterdir()}
    assert left == {"events.jsonl", "metadata.json", "archive.held", "archive.workspace"}
    assert git(crew.directory(life.id) / "archive.held/app.git", "show", "main:.env") == "not again"


def test_a_team_lets_through_what_it_names(tmp_path: Path) -> None:
    with Crew.open(tmp_path, allow_secrets=["example/.env"]) as crew:
        life = crew.chat()
        crew.put(life.id, ".env")
        crew.put(life.id, "example/.env")
        crew.members.finish(life.id)

        actions = [event.data for event in crew.events(life.id) if event.type == "finalize.repository"]
        assert [(one["action"], one["files"]) for one in actions if "files" in one] == [
            ("skipped", [".env"]),
            ("committed", ["example/.env"]),
        ]


def test_the_time_counts_from_the_last_time_it_was_retained(crew: Crew) -> None:
    life = ended(crew, "completed")
    crew.clock.advance(DAY - TICK)
    crew.members.finalize(life.id)
    crew.clock.advance(DAY - TICK)
    assert crew.members.scan() == NOTHING
    crew.clock.advance(TICK)
    assert crew.members.scan().removed == (life.id,)


def test_times_are_those_of_the_policy(crew: Crew) -> None:
    members = crew.manager(retention=RetentionPolicy(loop_brain_ns=3600 * 10**9))
    life = ended(crew, "completed")
    crew.clock.advance(HOUR)
    assert members.scan().removed == (life.id,)


def test_what_runs_is_never_collected(crew: Crew) -> None:
    loop, chat = crew.start(), crew.chat()
    crew.clock.advance(DAY * 100, timers="once")
    assert crew.members.scan() == NOTHING
    assert crew.engine.sweep() == []
    assert crew.members.cleanup(Selector(all=True)) == NOTHING
    assert {life.state for life in crew.members.list()} == {"active"}
    assert crew.workspace(loop.id).is_dir()
    assert crew.workspace(chat.id).is_dir()


def test_the_clock_scans_every_interval_and_not_before(crew: Crew) -> None:
    life = ended(crew, "completed", "interactive")
    crew.members.watch()
    crew.members.watch()
    crew.clock.advance(timedelta(minutes=5) - TICK)
    assert not gone(crew, life)
    crew.clock.advance(TICK)
    assert gone(crew, life)

    later = ended(crew, "completed", "interactive")
    crew.members.close()
    crew.members.close()
    crew.clock.advance(HOUR)
    assert not gone(crew, later)


def test_a_scan_by_the_clock_that_fails_is_told_and_the_next_one_goes_on(crew: Crew) -> None:
    life = ended(crew, "completed", "interactive")
    events: list[Event] = []
    crew.engine.on("engine.error", events.append)
    trash = crew.engine.store.root / ".trash"
    trash.write_text("in the way")
    crew.members.watch()

    crew.clock.advance(minutes=5)
    assert [event.stream for event in events] == [life.id]
    assert not gone(crew, life)
    trash.unlink()
    crew.clock.advance(minutes=5)
    assert gone(crew, life)


# By budget -----------------------------------------------------------------------------------------------------------------------


def sized(crew: Crew, size: int) -> Life:
    """A retained session with so many bytes of logs in its workspace, which are no work."""
    life = crew.chat()
    crew.put(life.id, "logs/much", "x" * size)
    crew.clock.advance(seconds=1)
    return crew.members.stop(life.id, force=True)


def room_for(size: int) -> Members | RetentionPolicy:
    return RetentionPolicy(disk_budget_bytes=size)


def test_over_the_budget_the_longest_kept_go_first_until_the_rest_fits(crew: Crew) -> None:
    lives = [sized(crew, 1_000_000) for _ in range(4)]
    members = crew.manager(retention=room_for(2_500_000))
    assert members.scan().removed == (lives[0].id, lives[1].id)
    assert [gone(crew, life) for life in lives] == [True, True, False, False]
    assert members.scan() == NOTHING


def test_what_holds_work_counts_and_is_never_taken_for_room(crew: Crew) -> None:
    kept = ended(crew, "failed")
    crew.put(kept.id, "logs/much", "x" * 1_000_000)
    free = sized(crew, 1_000)
    members = crew.manager(retention=room_for(500_000))
    report = members.scan()
    assert (report.removed, report.spared) == ((free.id,), (kept.id,))
    assert not gone(crew, kept)


# What is nowhere else is never collected ---------------------------------------------------------------------------------------


def outlive(crew: Crew, life: Life) -> None:
    """See that nothing but its name collects a session."""
    crew.clock.advance(DAY * 100, timers="once")
    members = crew.manager(retention=RetentionPolicy(loop_brain_ns=0, interactive_failure_ns=0, disk_budget_bytes=0))
    assert members.scan() == CleanupReport(spared=(life.id,))
    for selector in (Selector(all=True), Selector(member="alice"), Selector(older_than_ns=0)):
        assert members.cleanup(selector) == CleanupReport(spared=(life.id,))
    assert not gone(crew, life)
    before = shown(crew.workspace(life.id))
    report = members.cleanup(Selector(id=life.id))
    assert (report.removed, report.archived) == ((life.id,), {life.id: str(archive(crew, life))})
    assert gone(crew, life)
    assert shown(archive(crew, life)) == before


def archive(crew: Crew, life: Life) -> Path:
    return crew.directory(life.id) / "archive.workspace"


def shown(directory: Path) -> dict[str, bytes | None]:
    """Everything below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


@pytest.mark.parametrize("how", ["a file", "a commit", "a stash", "the index", "a commit that nothing leads to", "a repository of its own"])
def test_rule_8_a_chat_that_was_killed_with_unsaved_work_is_no_success(crew: Crew, how: str) -> None:
    life = crew.chat()
    if how == "a file":
        crew.put(life.id, "new.txt")
    elif how == "the index":
        crew.put(life.id, "new.txt")
        crew.git(life.id, "add", "new.txt")
        (crew.repo(life.id) / "new.txt").unlink()
    elif how == "a repository of its own":
        crew.put(life.id, "new.txt")
        crew.git(life.id, "init", "-q", "inner")
        (crew.repo(life.id) / "new.txt").unlink()
    else:
        crew.commit(life.id, "new.txt", branch="talk")
    if how == "a stash":
        crew.git(life.id, "push", "-q", "origin", "talk")
        crew.put(life.id, "new.txt", "changed\n")
        crew.git(life.id, "stash", "-q")
    if how == "a commit that nothing leads to":
        crew.git(life.id, "checkout", "-q", "--detach", "origin/main")
        crew.git(life.id, "branch", "-q", "-D", "talk")
        crew.git(life.id, "reflog", "expire", "--expire=now", "--all")
    outlive(crew, crew.members.stop(life.id, force=True))


def test_rule_8_killed_without_work_it_goes_after_its_time(crew: Crew) -> None:
    life = crew.chat()
    crew.put(life.id, ".env", "SECRET\n")
    crew.put(life.id, "run.log", "ran\n")
    crew.members.stop(life.id, force=True)
    crew.clock.advance(DAY)
    assert crew.members.scan().removed == (life.id,)


def test_files_that_may_be_credentials_or_are_in_no_repository_are_kept_when_their_workspace_goes(crew: Crew) -> None:
    life, empty = crew.chat(), crew.chat()
    for path in (".env", "run.log", "deep/credentials.json"):
        crew.put(life.id, path, f"{path}\n")
    (crew.workspace(life.id) / "notes").mkdir()
    (crew.workspace(life.id) / "notes" / "plan.md").write_text("the plan\n")
    (crew.workspace(life.id) / "notes" / "link").symlink_to("/nowhere")
    (crew.workspace(life.id) / "agent.log").write_text("ran\n")
    for one in (life, empty):
        crew.members.stop(one.id, force=True)

    report = crew.members.cleanup(Selector(all=True))

    assert (set(report.removed), report.archived) == ({life.id, empty.id}, {life.id: str(archive(crew, life))})
    assert gone(crew, life)
    assert gone(crew, empty)
    assert {path: data for path, data in shown(archive(crew, life)).items() if data is not None} == {
        "notes/plan.md": b"the plan\n",
        "projects/app/.env": b".env\n",
        "projects/app/deep/credentials.json": b"deep/credentials.json\n",
    }
    assert (archive(crew, life) / "notes" / "link").is_symlink()


def test_ignored_files_are_kept_when_their_workspace_goes_unless_they_can_be_made_again(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignored, "_MOST_BYTES", 20)
    crew.app.commit({".gitignore": "lib/\nnode_modules/\nlarge/\nrun.log\n"})
    life = crew.chat()
    for path in ("lib/core.py", "node_modules/p/1.js", "run.log"):
        crew.put(life.id, path, f"{path}\n")
    crew.put(life.id, "large/x", "x" * 100)
    crew.members.stop(life.id, force=True)
    crew.clock.advance(DAY)

    assert crew.members.scan().archived == {life.id: str(archive(crew, life))}

    assert {path: data for path, data in shown(archive(crew, life)).items() if data is not None} == {
        "projects/app/lib/core.py": b"lib/core.py\n"
    }
    (removed,) = [event for event in crew.events(life.id) if event.type == "workspace.removed"]
    assert removed.data["left_out"] == ["'projects/app/large/' (1 file, 100 bytes)"]


def test_what_comes_between_the_choice_and_the_removal_spares_a_workspace(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    life = ended(crew, "killed")
    crew.put(life.id, "late.txt")
    monkeypatch.setattr(type(crew.members._cleanup), "holds_work", lambda *_: False)

    assert crew.members.cleanup(Selector(all=True)) == CleanupReport(spared=(life.id,))
    assert not gone(crew, life)


@pytest.mark.parametrize("point", ["member:removing", "member:removed"])
@pytest.mark.parametrize("name", ["new.txt", ".env"])
def test_a_removal_that_was_killed_loses_nothing_that_is_kept(crew: Crew, point: str, name: str) -> None:
    life = crew.chat()
    crew.put(life.id, name)
    crew.members.stop(life.id, force=True)
    before = shown(crew.workspace(life.id))
    Crash().at(point, lambda: crew.members.cleanup(Selector(id=life.id)))

    with crew.restarted() as members:
        members.recover()
        assert gone(crew, life) == (point == "member:removed")
        if point == "member:removing":
            assert shown(crew.workspace(life.id)) == before
            members.cleanup(Selector(id=life.id))
    assert gone(crew, life)
    assert (archive(crew, life) / "projects" / "app" / name).read_text() == "work\n"
    assert crew.types(life.id).count("archive.written") == 1


def test_rule_9_commits_on_a_detached_head_are_saved_or_stay(crew: Crew) -> None:
    saved = crew.chat()
    commit = crew.commit(saved.id, "detached.txt")
    crew.members.stop(saved.id)
    assert commit in crew.branches().values()

    killed = crew.chat(member="alice")
    crew.commit(killed.id, "detached-too.txt")
    crew.members.cleanup(Selector(id=saved.id))
    outlive(crew, crew.members.stop(killed.id, force=True))


def test_rule_10_what_others_pushed_is_no_work_of_the_session_and_its_own_commits_are(crew: Crew) -> None:
    first, second = crew.chat(), crew.chat(member="bob")
    crew.commit(second.id, "bobs.txt", branch="bobs")
    crew.git(second.id, "push", "-q", "origin", "bobs")
    crew.app.commit({"later.txt": "later\n"})
    crew.git(first.id, "fetch", "-q")
    assert [one.unpushed for one in crew.members.inspect(first.id).repositories] == [(), ()]
    assert crew.members.inspect(first.id).holds_work  # its own word for it does not do
    crew.clock.advance(minutes=6)
    crew.members.stop(crew.chat().id, force=True)  # its start looked at the remotes
    crew.members.cleanup(Selector(all=True))
    assert not crew.members.inspect(first.id).holds_work
    crew.commit(first.id, "mine.txt", branch="mine")
    crew.git(first.id, "fetch", "-q")
    assert crew.members.inspect(first.id).repositories[0].unpushed == ("mine",)
    crew.members.stop(second.id)
    crew.members.cleanup(Selector(id=second.id))
    outlive(crew, crew.members.stop(first.id, force=True))


def test_rule_11_files_that_are_left_on_the_default_branch_keep_their_workspace(crew: Crew) -> None:
    life = crew.chat()
    crew.git(life.id, "checkout", "-q", "main")
    crew.put(life.id, "a.txt", "changed\n")
    stopped = crew.members.stop(life.id)
    assert (stopped.ended, stopped.unsaved, stopped.left) == ("completed", True, ("app",))
    outlive(crew, stopped)


def test_a_workspace_that_cannot_be_looked_into_is_kept(crew: Crew) -> None:
    life = crew.chat()
    (crew.repo(life.id) / ".git" / "HEAD").write_text("nonsense\n")
    outlive(crew, crew.members.stop(life.id, force=True))


def test_whoever_says_so_cleans_up_even_that(crew: Crew) -> None:
    life = ended(crew, "failed")
    assert crew.members.cleanup(Selector(all=True, even_unsaved=True), dry_run=True) == CleanupReport((life.id,), dry_run=True)
    assert crew.members.cleanup(Selector(all=True, even_unsaved=True)).removed == (life.id,)


# By hand -------------------------------------------------------------------------------------------------------------------------


def test_those_of_a_member_or_older_ones_or_all_go_by_hand(crew: Crew) -> None:
    old = ended(crew, "completed", "interactive", member="bob")
    crew.clock.advance(hours=2)
    young, other = ended(crew, "completed", "interactive", member="bob"), ended(crew, "killed")

    assert crew.members.cleanup(Selector(older_than_ns=age_ns("2h"))) == NOTHING  # strictly older
    assert crew.members.cleanup(Selector(older_than_ns=age_ns("1h"))).removed == (old.id,)
    assert crew.members.cleanup(Selector(member="bob")).removed == (young.id,)
    assert crew.members.cleanup(Selector(member="nobody")) == NOTHING
    assert crew.members.cleanup(Selector(all=True)).removed == (other.id,)


def test_a_dry_run_says_what_would_go_and_does_nothing(crew: Crew) -> None:
    free, kept = ended(crew, "completed"), ended(crew, "failed")
    before = crew.events(free.id)
    report = crew.members.cleanup(Selector(all=True), dry_run=True)
    assert report == CleanupReport((free.id,), (kept.id,), dry_run=True)
    assert crew.events(free.id) == before
    assert not gone(crew, free)


def test_only_what_is_retained_is_cleaned_up_by_its_name(crew: Crew) -> None:
    life = crew.start()
    with pytest.raises(InvalidInput, match="is active"):
        crew.members.cleanup(Selector(id=life.id))
    with pytest.raises(SessionNotFound):
        crew.members.cleanup(Selector(id="nobody"))
    with pytest.raises(InvalidInput, match="not a member's"):
        crew.members.cleanup(Selector(id=crew.world.start().id))
    crew.members.stop(life.id)
    crew.members.cleanup(Selector(id=life.id))
    with pytest.raises(InvalidInput, match="is removed"):
        crew.members.cleanup(Selector(id=life.id))


def test_a_workspace_that_cannot_be_removed_keeps_its_session_and_the_others_go(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ended(crew, "completed"), ended(crew, "completed")
    taken = crew.members._cleanup.team.record(first.id).workspace_lock().acquire()
    report = crew.members.cleanup(Selector(all=True))
    assert report.removed == (second.id,)
    assert list(report.failed) == [first.id]
    taken.release()

    (crew.engine.store.root / ".trash").rename(crew.engine.store.root / ".trash-aside")
    (crew.engine.store.root / ".trash").write_text("in the way")
    report = crew.members.cleanup(Selector(id=first.id))
    assert report.removed == ()
    assert "refused" in report.failed[first.id]
    assert not gone(crew, first)
    assert crew.repo(first.id).is_dir()


def test_one_that_is_finalized_again_meanwhile_is_not_removed(crew: Crew) -> None:
    life = ended(crew, "completed", "interactive")
    lives = crew.members.list(states=["retained"])
    crew.clock.advance(minutes=1)
    crew.members.finalize(life.id)
    assert crew.members._cleanup.scan(lives) == CleanupReport(spared=(life.id,))
    assert not gone(crew, life)


# What stays ----------------------------------------------------------------------------------------------------------------------


def test_of_a_removed_session_its_record_stays(crew: Crew) -> None:
    life = ended(crew, "completed", task="mend the login")
    events = crew.events(life.id)
    crew.members.cleanup(Selector(id=life.id))

    assert crew.events(life.id)[: len(events)] == events
    fields = crew.engine.view(life.id, "botminter")
    assert (fields["current_state"], fields["workspace_path"]) == ("Removed", None)
    assert fields["finalization_result"]["exit_status"] == "Skipped"
    (row,) = crew.members.history()
    assert (row["session_id"], row["state"], row["exit_normal"]) == (life.id, "Removed", True)
    assert crew.members.get(life.id).task == "mend the login"
    assert crew.engine.info(life.id).workspace_path is None
    assert [one.id for one in crew.members.list(states=["removed"])] == [life.id]
    assert crew.members.stop(life.id).state == crew.members.finish(life.id).state == "removed"
    with pytest.raises(InvalidInput, match="Cannot transition from Removed to Finalizing"):
        crew.members.finalize(life.id)


def test_a_members_session_is_neither_discarded_nor_evicted_nor_promoted(crew: Crew) -> None:
    life = crew.chat()
    for state in ("expired", "discarded"):
        with pytest.raises(InvalidInput, match="is a member's"):
            crew.engine.evict(life.id, state)
    with pytest.raises(InvalidInput, match="is a member's"):
        crew.engine.get_session(life.id)
    info = crew.engine.info(life.id)
    assert (info.state, info.workspace_path, info.deadline) == ("active", str(crew.workspace(life.id)), None)
    assert not info.capabilities["promote"]
    crew.members.stop(life.id)
    crew.members.cleanup(Selector(id=life.id))
    with pytest.raises(SessionExpired):
        crew.engine.evict(life.id)


@pytest.mark.parametrize("point", ["member:removing", "member:removed"])
def test_a_removal_that_was_killed_has_happened_or_has_not(crew: Crew, point: str) -> None:
    life = ended(crew, "completed")
    Crash().at(point, lambda: crew.members.cleanup(Selector(id=life.id)))

    with crew.restarted() as members:
        members.recover()
        assert gone(crew, life) == (point == "member:removed")
        members.finalize(life.id) if point == "member:removing" else None
        members.cleanup(Selector(all=True))
        assert gone(crew, life)


def test_a_session_that_is_finalized_after_a_killed_removal_finds_its_work(crew: Crew) -> None:
    life = crew.chat()
    crew.commit(life.id, "said.txt", branch="talk")
    crew.members.stop(life.id, force=True)
    Crash().at("member:removing", lambda: crew.members.cleanup(Selector(id=life.id)))
    assert not crew.workspace(life.id).exists()

    assert crew.members.finalize(life.id).ended == "completed"
    assert "talk" in crew.branches()
