"""The edge rules of BotMinter's real program, one by one: what it does, and what is done here instead."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.members import Crew

from pytest_gittrix.errors import InvalidInput, SessionNotFound, WorkItemHeld
from pytest_gittrix.record.state.retention import Selector
from pytest_gittrix.views import botminter
from pytest_gittrix.workspaces.multi_repo import RepositorySpec


def test_rule_01_finalizing_with_a_dead_agent_is_normal_and_not_failed_by_a_listing(crew: Crew) -> None:
    life = crew.ended(crew.script().exits(0))
    seen: list[str] = []
    crew.engine.on("finalize.started", lambda _event: seen.extend(one.state for one in crew.members.list()))
    crew.members.finish(life.id)

    assert seen == ["finalizing"]
    assert crew.states(life.id) == ["active", "finalizing", "completed", "retained"]


def test_rule_02_a_forced_stop_beside_a_finalization_wins_and_is_left_alone(crew: Crew, tmp_path: Path) -> None:
    life = crew.chat()
    crew.commit(life.id, "new.txt", branch="feature")
    here, go = tmp_path / "here", tmp_path / "go"
    os.mkfifo(here)
    os.mkfifo(go)
    hook = crew.app.path / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho here > {here}\ncat {go}\n")
    hook.chmod(0o755)
    with ThreadPoolExecutor(1) as pool, crew.restarted() as elsewhere:
        finishing = pool.submit(crew.members.finish, life.id)
        assert here.read_text() == "here\n"
        elsewhere.stop(life.id, force=True)
        go.write_text("go\n")
        ended = finishing.result()

    assert crew.states(life.id) == ["active", "finalizing", "killed", "retained"]
    assert (ended.ended, ended.state) == ("killed", "retained")


def test_rule_03_a_restart_fails_no_running_chat(crew: Crew) -> None:
    chat = crew.chat()
    with crew.restarted() as members:
        members.recover()
        assert members.get(chat.id).state == "active"


def test_rule_03_a_restart_finishes_an_agent_that_died_meanwhile(crew: Crew) -> None:
    life = crew.ended(crew.script().exits(3))
    with crew.restarted() as members:
        assert [one.id for one in members.recover()] == [life.id]
        assert members.get(life.id).state == "retained"


def test_rule_03_a_restart_leaves_a_live_agent_alone(crew: Crew) -> None:
    life = crew.start(crew.script().at("up").hang())
    crew.agents.wait_for("up")
    with crew.restarted() as members:
        assert members.recover() == []
        assert members.get(life.id).state == "active"
    assert len(crew.agents.alive()) == 1


def test_rule_04_a_member_may_start_anew_while_an_old_session_is_finalizing(crew: Crew) -> None:
    life = crew.chat()
    fresh: list[str] = []
    crew.engine.on("finalize.started", lambda _event: fresh.append(crew.chat().id))
    crew.members.finish(life.id)

    assert [crew.members.get(id_).state for id_ in (life.id, *fresh)] == ["retained", "active"]


def test_rule_05_an_agent_that_cannot_be_launched_is_a_failure_and_no_active_session(crew: Crew) -> None:
    with pytest.raises(InvalidInput, match="failed, its agent was not started"):
        crew.members.start("alice", command=["no-such-program"])

    assert [(life.state, life.ended) for life in crew.members.list()] == [("retained", "failed")]


def test_rule_06_a_finalization_without_a_workspace_comes_to_an_end(crew: Crew) -> None:
    life = crew.chat()
    crew.members.finish(life.id)
    crew.workspace(life.id).rename(crew.workspace(life.id).with_name("elsewhere"))
    again = crew.members.finalize(life.id)

    assert (again.state, again.result.exit_status if again.result else None) == ("retained", "Skipped")


def test_rule_07_what_was_killed_can_be_finalized(crew: Crew) -> None:
    life = crew.start()
    crew.commit(life.id, "new.txt", branch="feature")
    crew.members.stop(life.id, force=True)
    crew.members.finalize(life.id)

    assert "feature" in crew.branches()


def test_rule_08_a_chat_that_was_killed_is_not_taken_for_a_success(crew: Crew) -> None:
    chat = crew.chat()
    crew.put(chat.id, "half.txt")
    crew.members.stop(chat.id, force=True)

    assert crew.members.scan().removed == ()
    assert (crew.repo(chat.id) / "half.txt").exists()


def test_rule_09_commits_on_no_branch_are_saved(crew: Crew) -> None:
    chat = crew.chat()
    commit = crew.commit(chat.id, "new.txt")
    crew.members.finish(chat.id)

    assert commit in crew.branches().values()


def test_rule_09_commits_that_nothing_leads_to_are_saved(crew: Crew) -> None:
    chat = crew.chat()
    commit = crew.commit(chat.id, "new.txt")
    crew.git(chat.id, "reset", "-q", "--hard", "HEAD~1")
    crew.members.finish(chat.id)

    assert commit in crew.branches().values()


def test_rule_10_what_is_published_is_not_reported_as_unpushed(crew: Crew) -> None:
    crew.app.commit({"a.txt": "newer\n"})
    chat = crew.chat()

    assert [one.unpushed for one in crew.members.inspect(chat.id).repositories] == [(), ()]


def test_rule_10_a_shared_clone_advances_with_its_remote(crew: Crew) -> None:
    crew.chat()
    newer = crew.app.commit({"a.txt": "newer\n"})
    crew.clock.advance(minutes=6)

    assert crew.git(crew.chat().id, "rev-parse", "HEAD") == newer


def test_rule_11_uncommitted_files_of_the_default_branch_are_left_and_never_collected(crew: Crew) -> None:
    chat = crew.chat()
    crew.git(chat.id, "checkout", "-q", "-b", "main")
    crew.put(chat.id, "half.txt")
    ended = crew.members.finish(chat.id)
    crew.clock.advance(days=20, timers="once")

    assert ended.unsaved
    assert crew.members.scan().spared == (chat.id,)
    assert (crew.repo(chat.id) / "half.txt").exists()


def test_rule_12_a_damaged_record_costs_that_session_and_no_other(crew: Crew) -> None:
    damaged, sound = crew.chat(), crew.chat()
    log = crew.directory(damaged.id) / "events.jsonl"
    log.write_bytes(b"garbage\n" + log.read_bytes())
    with crew.restarted() as members:
        assert [life.id for life in members.list()] == [sound.id]
    assert log.read_bytes().startswith(b"garbage\n")


def test_rule_12_an_id_that_is_taken_is_refused(crew: Crew) -> None:
    crew.chat(id="a1b2c3d4")

    with pytest.raises(InvalidInput, match="a1b2c3d4"):
        crew.chat(id="a1b2c3d4")


def test_rule_13_a_workspace_that_cannot_be_deleted_keeps_its_session_retained(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = crew.chat()
    crew.members.finish(chat.id)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refused)
        report = crew.members.cleanup(Selector(id=chat.id))

    assert (report.removed, [*report.failed]) == ((), [chat.id])
    assert crew.members.get(chat.id).state == "retained"


def refused(*_arguments: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_rule_13_inspect_sees_projects_of_an_organisation(crew: Crew) -> None:
    specs = [RepositorySpec("acme/app", str(crew.app.path))]
    chat = crew.chat(repositories=specs)

    assert [one.name for one in crew.members.inspect(chat.id).repositories] == ["acme/app"]


def test_rule_14_a_lock_survives_a_restart(crew: Crew) -> None:
    crew.chat(work_item="app#1")
    with crew.restarted() as members:
        members.recover()
        with pytest.raises(WorkItemHeld):
            members.start("bob", "interactive", work_item="app#1")


def test_rule_14_a_lock_is_for_a_session_that_there_is(crew: Crew) -> None:
    with pytest.raises(SessionNotFound):
        crew.members.lock("nobody", "app#1")


def test_rule_14_releasing_the_lock_of_another_says_so(crew: Crew) -> None:
    crew.chat(work_item="app#1")
    other = crew.chat()

    assert crew.members.unlock(other.id, "app#1") is False
    assert [*crew.held()] == ["app#1"]


def test_rule_14_of_many_who_ask_at_once_one_gets_it(crew: Crew) -> None:
    ids = [crew.chat().id for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        asked = list(pool.map(lambda id_: crew.members.lock(id_, "app#1").acquired, ids))

    assert sorted(asked) == [False, False, False, True]


def test_rule_15_a_manager_that_goes_takes_no_session_along(crew: Crew) -> None:
    life = crew.start(crew.script().at("up").hang())
    crew.agents.wait_for("up")
    crew.members.close()

    assert crew.members.get(life.id).state == "active"
    assert len(crew.agents.alive()) == 1


def test_rule_16_a_result_lists_branches_and_says_when_it_is_degraded(crew: Crew) -> None:
    chat = crew.chat()
    crew.commit(chat.id, "new.txt", branch="feature")
    crew.members.finish(chat.id)

    assert botminter.record(crew.events(chat.id))["finalization_result"]["pushed_branches"] == ["feature"]


# The switches for who has to have it as the real code does it --------------------------------------------------------------------


def test_as_code_a_dead_agent_is_a_failure_and_nothing_is_saved(crew: Crew) -> None:
    members = crew.manager(dead="fail")
    life = crew.ended(crew.script().kill_itself(signal.SIGKILL))
    crew.put(life.id, "half.txt")
    members.observe()

    assert crew.states(life.id) == ["active", "failed", "retained"]
    assert (crew.repo(life.id) / "half.txt").exists()


def test_as_code_only_what_was_killed_is_shown_as_retained(crew: Crew) -> None:
    done, killed = crew.chat(), crew.chat()
    crew.members.finish(done.id)
    crew.members.stop(killed.id, force=True)

    states = [botminter.record(crew.events(one.id), as_code=True)["current_state"] for one in (done, killed)]
    assert states == ["Completed", "Retained"]


def test_as_code_a_record_goes_with_its_workspace(crew: Crew) -> None:
    chat = crew.chat()
    crew.members.finish(chat.id)
    crew.members.scan()

    with pytest.raises(SessionNotFound):
        botminter.record(crew.events(chat.id), as_code=True)
