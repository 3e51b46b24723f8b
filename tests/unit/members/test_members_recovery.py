"""After a restart: agents that live are left alone, what is gone is finished, and nothing is held by a session that is over."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from support.members import Crew

from pytest_gittrix import points
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import EvictionRace, InvalidInput, SessionNotFound
from pytest_gittrix.os_level.process_tree import process, signal_process
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.retention import Selector
from pytest_gittrix.testing.faults.crash import Crash

# Agents ------------------------------------------------------------------------------------------------------------------------


def test_a_live_agent_is_left_alone_and_found_again(crew: Crew) -> None:
    life = crew.start(crew.script().read().polite().at("heard").hang(), work_item="app#1")

    with crew.restarted() as members:
        assert members.recover() == []
        assert members.get(life.id) == life
        agent = members.process(life.id)
        assert agent is not None
        agent.send("hello\n")
        crew.agents.wait_for("heard")
        assert crew.agents.heard == ["hello"]
        assert crew.held() == {"app#1": life.id}
        assert members.stop(life.id).ended == "completed"
    assert crew.agents.asked == ["SIGTERM"]


def test_an_agent_that_died_meanwhile_is_finished(crew: Crew) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n").exits(4), work_item="app#1")

    with crew.restarted() as members:
        (ended,) = members.recover()
        assert (ended.id, ended.state, ended.ended) == (life.id, "retained", "completed")
        assert ended.agent is not None
        assert ended.agent.code == 4
        assert members.recover() == []
    assert crew.held() == {}


def test_an_interactive_session_outlives_every_restart(crew: Crew) -> None:
    life = crew.chat(work_item="app#1")
    for _ in range(2):
        with crew.restarted() as members:
            assert members.recover() == []
            assert members.exited() == []
            assert members.get(life.id) == life
            assert not members.lock(life.id, "app#1").taken_from
    assert crew.held() == {"app#1": life.id}


def test_another_process_with_its_number_is_not_taken_for_an_agent(crew: Crew) -> None:
    stranger = crew.agents.start(crew.script("stranger").at("up").hang()).owner
    crew.agents.wait_for("up")
    assert stranger is not None
    assert stranger.start_time is not None
    life = crew.chat()
    with crew.members._team.record(life.id).locked() as session:
        session.add("agent.launched", {"pid": stranger.pid, "start_time": stranger.start_time - 1})

    with crew.restarted() as members:
        (ended,) = members.recover()

    assert (ended.id, ended.ended) == (life.id, "completed")
    assert ended.agent is not None
    assert "not there" in str(ended.agent.reason)
    assert stranger.alive()


def test_the_log_says_who_the_agent_is_and_not_the_files_of_another(crew: Crew) -> None:
    first, second = crew.start(), crew.start()
    files = crew.directory(first.id) / "agent" / "agent.json"
    files.write_bytes((crew.directory(second.id) / "agent" / "agent.json").read_bytes())

    assert crew.members.process(first.id).owner.pid == first.agent.pid  # type: ignore[union-attr]
    crew.members.stop(first.id)
    assert crew.members.process(second.id).observe().state == "alive"  # type: ignore[union-attr]


def test_an_agent_is_known_even_if_its_files_are_gone(crew: Crew) -> None:
    life = crew.start(crew.script().polite().at("up").hang())
    crew.agents.wait_for("up")
    (crew.directory(life.id) / "agent" / "agent.json").unlink()
    assert crew.members.exited() == []
    assert crew.members.stop(life.id).ended == "completed"
    assert crew.agents.gone()


def test_an_agent_of_another_machine_is_neither_stopped_nor_given_up(crew: Crew) -> None:
    life = crew.start()
    file = crew.directory(life.id) / "agent" / "agent.json"
    note = json.loads(file.read_text())
    note["owner"]["host"] = "elsewhere"
    file.write_text(json.dumps(note))
    with crew.restarted() as members:
        assert members.recover() == []
        with pytest.raises(InvalidInput, match="may run"):
            members.finish(life.id)


# What a kill left --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["member:active", "member:launched"])
def test_a_start_that_was_killed_once_it_was_active(crew: Crew, point: str) -> None:
    command = crew.script().polite().hang().command
    Crash().at(point, lambda: crew.members.start("alice", command=command, work_item="app#1"))
    (life,) = crew.members.list()

    with crew.restarted() as members:
        members.recover()
        after = members.get(life.id)
        if point == "member:active":
            assert crew.states(life.id) == ["active", "failed", "retained"]
            assert (after.agent, after.unsaved, crew.held()) == (None, False, {})
        else:
            assert (after.state, crew.held()) == ("active", {"app#1": life.id})
            members.stop(life.id)
            assert crew.held() == {}


def test_a_removal_that_was_killed_before_it_was_recorded_has_not_happened_once_an_engine_begins(crew: Crew) -> None:
    life = crew.chat()
    crew.put(life.id, "left.txt")
    crew.members.stop(life.id, force=True)
    Crash().at("member:removing", lambda: crew.members.cleanup(Selector(id=life.id)))
    assert not crew.workspace(life.id).exists()

    with GitTrix(None, store=crew.engine.store.root, home=crew.engine.home, clock=crew.clock, durability="fast") as engine:
        assert (crew.repo(life.id) / "left.txt").read_text() == "work\n"
        assert engine.recover().removed == []
    assert crew.members.cleanup(Selector(id=life.id)).removed == (life.id,)


def test_a_removal_that_is_under_way_is_left_alone(crew: Crew) -> None:
    life = crew.chat()
    crew.members.stop(life.id)
    with crew.members._team.record(life.id).locked():
        crew.workspace(life.id).rename(crew.directory(life.id) / "leaving")
        crew.engine.recover()
        assert not crew.workspace(life.id).exists()
    crew.engine.recover()
    assert crew.workspace(life.id).is_dir()


@pytest.mark.parametrize("point", ["member:stopping", "member:ended", "member:retained"])
def test_a_forced_stop_that_was_killed_is_gone_on_with(crew: Crew, point: str) -> None:
    life = crew.start(crew.script().polite().at("up").hang(), work_item="app#1")
    crew.agents.wait_for("up")
    Crash().at(point, lambda: crew.members.stop(life.id, force=True))
    with crew.restarted() as members:
        members.recover()
        if point == "member:stopping":
            assert members.get(life.id).state == "active"  # it was asked for, and not done
            members.stop(life.id, force=True)
        assert crew.states(life.id) == ["active", "killed", "retained"]
        assert members.get(life.id).locks == ()
    assert crew.agents.gone()
    assert crew.agents.asked == []
    assert crew.members.process(life.id).observe().state == "exited"  # type: ignore[union-attr]
    assert crew.held() == {}


def test_one_that_cannot_be_finished_is_told_of_and_does_not_stop_the_others(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = crew.ended(), crew.ended()
    events: list[Event] = []
    finish = crew.members.finish

    def refuse(id_: str) -> object:
        if id_ == first.id:
            raise EvictionRace("Somebody is at it.")
        return finish(id_)

    crew.engine.on("engine.error", events.append)
    monkeypatch.setattr(crew.members, "finish", refuse)
    assert [life.id for life in crew.members.observe()] == [second.id]
    assert [(event.stream, event.data["code"]) for event in events] == [(first.id, "EVICTION_RACE")]


def test_what_somebody_finishes_is_not_found_by_others(crew: Crew) -> None:
    life = crew.ended()
    seen: list[list[str]] = []

    def look(name: str) -> None:
        if name == "member:finalizing":
            with points.listening(lambda _name: None):
                seen.append(crew.members.exited())

    with points.listening(look):
        crew.members.finish(life.id)
    assert seen == [[]]


def test_a_record_that_cannot_be_read_hides_no_other(crew: Crew) -> None:
    bad, good = crew.ended(), crew.ended()
    log = crew.directory(bad.id) / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b"session.opened", b"session.xpened", 1))
    assert crew.members.exited() == [good.id]
    assert [life.id for life in crew.members.list()] == [good.id]
    assert [life.id for life in crew.members.recover()] == [good.id]
    assert crew.members.scan().failed == {}


# Work items ----------------------------------------------------------------------------------------------------------------------


def test_a_lock_is_kept_over_a_restart_and_given_back_at_the_end(crew: Crew) -> None:
    life = crew.start()
    assert crew.members.lock(life.id, "app#1").acquired
    assert crew.members.lock(life.id, "app#1").already_held
    with crew.restarted() as members:
        members.recover()
        other = crew.chat(member="bob")
        refused = members.lock(other.id, "app#1")
        assert (refused.acquired, refused.holder) == (False, life.id)
        members.stop(life.id)
        assert members.lock(other.id, "app#1").acquired
    assert [event.type for event in crew.events(life.id)].count("work.locked") == 1
    assert [event.data["item"] for event in crew.events(life.id) if event.type == "work.released"] == ["app#1"]


def test_an_item_is_given_back_by_who_holds_it_and_nobody_else(crew: Crew) -> None:
    life, other = crew.chat(), crew.chat()
    crew.members.lock(life.id, "app#1")
    assert crew.members.unlock(other.id, "app#1") is False
    assert crew.members.get(life.id).locks == ("app#1",)
    assert crew.members.unlock(life.id, "app#1") is True
    assert crew.members.unlock(life.id, "app#1") is False
    assert (crew.members.get(life.id).locks, crew.held()) == ((), {})


def test_of_many_sessions_that_ask_exactly_one_gets_an_item(crew: Crew) -> None:
    ids = [crew.chat().id for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda id_: crew.members.lock(id_, "app#1").acquired, ids))
    assert got.count(True) == 1
    assert crew.held() == {"app#1": ids[got.index(True)]}


def test_a_session_that_is_over_gets_nothing(crew: Crew) -> None:
    life = crew.members.stop(crew.chat().id)
    with pytest.raises(InvalidInput, match="works on nothing any more"):
        crew.members.lock(life.id, "app#1")
    with pytest.raises(SessionNotFound):
        crew.members.lock("nobody", "app#1")
    assert crew.held() == {}


def test_an_item_of_a_session_that_is_being_started_is_not_free(crew: Crew) -> None:
    asked: list[bool] = []
    other = crew.chat()

    def ask(name: str) -> None:
        if name in ("member:planned", "member:hydrated"):
            with points.listening(lambda _name: None):
                asked.append(crew.members.lock(other.id, "app#1").acquired)

    with points.listening(ask):
        crew.chat(work_item="app#1")
    assert asked == [False, False]


# Lists ---------------------------------------------------------------------------------------------------------------------------


def test_sessions_are_listed_by_member_and_state_oldest_first_and_ordinary_ones_are_not_read(crew: Crew) -> None:
    crew.world.start()
    first = crew.chat()
    crew.clock.advance(seconds=1)
    second = crew.chat(member="bob")
    crew.clock.advance(seconds=1)
    third = crew.members.stop(crew.chat().id)

    assert [life.id for life in crew.members.list()] == [first.id, second.id, third.id]
    assert [life.id for life in crew.members.list(member="alice")] == [first.id, third.id]
    assert [life.id for life in crew.members.list(states=["retained"])] == [third.id]
    assert crew.members.list(member="alice", states=["killed"]) == []
    with pytest.raises(InvalidInput, match="creating"):
        crew.members.list(states=["Active"])


def test_lists_and_queries_tell_of_members_sessions_whose_they_are_and_how_far(crew: Crew) -> None:
    live, over = crew.chat(member="bob"), crew.ended()
    crew.members.finish(over.id)
    lives = {one.id: one.wire().get("life") for one in crew.engine.list_sessions()}

    assert lives == {
        live.id: {"member": "bob", "kind": "interactive", "state": "active", "ended": None},
        over.id: {"member": "alice", "kind": "loop", "state": "retained", "ended": "completed"},
    }
    assert [one.id for one in crew.engine.query(outcome="done")] == [over.id]
    assert crew.engine.query(agent="bob")[0].life == lives[live.id]


def test_a_history_tells_of_what_ended_since_the_newest_first(crew: Crew) -> None:
    first = crew.members.stop(crew.chat().id)
    crew.clock.advance(hours=1)
    second = crew.members.stop(crew.chat(member="bob").id, force=True)
    crew.chat()
    crew.members.cleanup(Selector(id=first.id))

    rows = crew.members.history()
    assert [(row["session_id"], row["member"], row["exit_normal"]) for row in rows] == [
        (second.id, "bob", False),
        (first.id, "alice", True),
    ]
    assert [row["session_id"] for row in crew.members.history(member="bob")] == [second.id]
    since = datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert len(crew.members.history(since=since)) == 2
    assert crew.members.history(since=since + timedelta(seconds=1)) == []
    with pytest.raises(InvalidInput):
        crew.members.history(since=datetime(2030, 1, 1))


def test_an_agent_that_is_stopped_still_lives(crew: Crew) -> None:
    life = crew.start(crew.script().at("up").hang())
    crew.agents.wait_for("up")
    owner = crew.members.process(life.id).owner  # type: ignore[union-attr]
    assert owner is not None
    running = process(owner.pid)
    assert running is not None
    signal_process(running, signal.SIGSTOP)
    assert crew.members.exited() == []
    assert owner.alive()
    assert crew.members.stop(life.id, force=True).ended == "killed"
    assert crew.agents.gone()
