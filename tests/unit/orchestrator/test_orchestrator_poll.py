"""Looking at orchestrated sessions over time: what is seen, what it comes to, and what is told of it, once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.engine import passed
from support.orchestrator import Fleet, on_linux

from pytest_gittrix.errors import InvalidInput, SessionNotFound
from pytest_gittrix.orchestrator.config import CommandAgent
from pytest_gittrix.orchestrator.session import Session
from pytest_gittrix.record.state.agent_activity import SqliteQuery
from pytest_gittrix.record.state.observations import Activity

pytestmark = on_linux


def look(fleet: Fleet, **later: float) -> Session:
    """The one session, looked at some time later."""
    if later:
        fleet.site.clock.advance(**later)
    fleet.lead.poll()
    (session,) = fleet.lead.list()
    return session


# What the agent does -----------------------------------------------------------------------------------------------------------


def test_a_day_of_a_session_is_seen_as_it_is(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.does(session, "active")
    seen = [look(fleet, seconds=1)]
    seen += [look(fleet, seconds=40), look(fleet, minutes=5, seconds=30), look(fleet, minutes=3, seconds=48), look(fleet, seconds=1)]

    assert [(one.activity, one.status) for one in seen] == [
        *(("active", "working"), ("ready", "working"), ("idle", "working"), ("idle", "working"), ("idle", "stuck")),
    ]
    fleet.does(session, "active")
    assert (look(fleet, seconds=1).status, fleet.decided(session.id)[-1]) == ("working", ("working", "task_in_progress"))
    fleet.does(session, "waiting_input")
    assert look(fleet, seconds=1).status == "needs_input"
    assert fleet.types() == ["session.working", "session.stuck", "session.working", "session.needs_input"]
    assert [notification["timestamp"][14:19] for notification in fleet.notifications] == ["00:01", "10:01", "10:02", "10:03"]


def test_a_look_passes_its_points_and_stores_only_what_is_news(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.does(session, "active")
    steps = passed(fleet.lead.poll)
    first = fleet.site.types(session.id)

    assert [step for step in steps if step.startswith("poll:")] == ["poll:observed", "poll:decided"]
    assert first[-1] == "activity.observed"
    for _ in range(5):
        look(fleet, seconds=5)
    assert fleet.site.types(session.id) == first


def test_that_an_agent_runs_keeps_its_session_and_is_no_activity(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.does(session, "active")
    last = fleet.site.clock.now()
    seen = [look(fleet, minutes=30) for _ in range(20)]

    assert {one.last_activity_at for one in seen} == {last}
    assert fleet.site.engine.sweep() == []


def test_what_the_agent_did_last_is_known_to_the_minute(fleet: Fleet) -> None:
    session = fleet.spawn()
    for _ in range(6):
        fleet.site.clock.advance(seconds=30)
        fleet.does(session, "active")
        fleet.lead.poll()

    activities = [event for event in fleet.site.events(session.id) if event.type == "activity.observed"]
    assert len(activities) == 3
    assert fleet.now(session.id).activity == "active"


def test_an_agent_that_exited_is_lost_at_once(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.process(session.id).stop(grace=0)

    assert fleet.now(session.id).status == "working"  # it is seen by a look, and not by asking
    assert (look(fleet).status, look(fleet).activity) == ("errored", "exited")
    assert fleet.decided(session.id)[-1] == ("terminated", "runtime_lost")
    assert fleet.types() == ["session.working", "session.errored"]
    assert fleet.lead.poll() == []


def test_an_agent_that_was_busy_just_now_is_looked_for_three_times_before_its_session_is_stuck(fleet: Fleet) -> None:
    head = fleet.another(dialect="head")
    session = fleet.spawn()
    fleet.does(session, "active")
    fleet.process(session.id).stop(grace=0)
    seen = [(look(fleet, seconds=1).status, head.list()[0].status) for _ in range(4)]

    assert seen == [*[("working", "detecting")] * 3, ("stuck", "stuck")]
    assert [event.data.get("attempts") for event in fleet.site.events(session.id) if event.type == "status.decided"][1:] == [1, 2, 3, None]
    assert look(fleet, minutes=6).status == "errored"
    assert fleet.types() == ["session.working", "session.stuck", "session.errored"]


def test_the_originals_list_does_not_wait_for_three_looks(fleet: Fleet) -> None:
    real = fleet.another(list_persists_death=True)
    session, other = fleet.spawn(), fleet.spawn()
    fleet.does(session, "active")
    fleet.process(session.id).stop(grace=0)

    assert [one.status for one in fleet.lead.list()] == ["working", "working"]
    assert [one.status for one in real.list()] == ["errored", "working"]
    assert fleet.now(other.id).status == "working"
    assert fleet.types() == ["session.working", "session.working", "session.errored"]


def test_what_the_agent_of_before_did_does_not_count_after_a_restore(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.does(session, "waiting_input")
    fleet.site.clock.advance(seconds=1)
    fleet.lead.kill(session.id)
    fleet.lead.restore(session.id)

    assert (look(fleet).status, look(fleet).activity) == ("working", None)


def test_an_agents_own_database_tells_too(fleet: Fleet) -> None:
    query = SqliteQuery("SELECT state, at FROM last", unit="ns")
    agent = CommandAgent("db", ("sleep", "60"), database="agent.db", query=query)
    lead = fleet.another(fleet.project(agents=(agent,)))
    session = fleet.spawn(lead)
    with closing(sqlite3.connect(Path(session.workspace_path or "") / "agent.db")) as database, database:
        database.execute("CREATE TABLE last (state, at)")
        database.execute("INSERT INTO last VALUES ('blocked', ?)", (fleet.site.clock.now_ns(),))

    assert [one.activity for one in lead.poll()] == ["blocked"]


class Failing(CommandAgent):
    """A plugin that cannot tell what its agent does."""

    def activity(self, workspace: Path, now_ns: int) -> Activity | None:
        raise ValueError("no idea")


def test_a_plugin_that_fails_is_a_look_that_failed(fleet: Fleet) -> None:
    lead = fleet.another(fleet.project(agents=(Failing("failing", ("sleep", "60")),)), dialect="head")
    fleet.spawn(lead)

    assert [lead.poll()[0].status for _ in range(4)] == ["detecting", "detecting", "detecting", "stuck"]
    assert fleet.errors == []


def test_a_session_that_cannot_be_read_stops_no_look_at_another(fleet: Fleet) -> None:
    damaged, session = fleet.spawn(), fleet.spawn()
    log = fleet.site.directory(damaged.id) / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"app-1"', b'"app-x"', 1))
    fleet.does(session, "active")

    assert [(one.id, one.activity) for one in fleet.lead.poll()] == [(session.id, "active")]
    assert [one.id for one in fleet.lead.list()] == [session.id]
    assert [problem.id for problem in fleet.site.engine.problems()] == [damaged.id]


def test_one_session_can_be_looked_at(fleet: Fleet) -> None:
    first, second = fleet.spawn(), fleet.spawn()
    fleet.does(first, "active")
    fleet.does(second, "active")

    assert [(one.id, one.activity) for one in fleet.lead.poll(first.id)] == [(first.id, "active")]
    assert fleet.now(second.id).activity is None
    with pytest.raises(SessionNotFound):
        fleet.lead.poll("app-9")


def test_it_looks_by_itself_as_often_as_it_is_told(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.lead.watch()
    fleet.site.clock.advance(seconds=29)
    fleet.process(session.id).stop(grace=0)
    assert fleet.now(session.id).status == "working"
    fleet.site.clock.advance(seconds=1)
    assert fleet.now(session.id).status == "errored"
    fleet.lead.close()
    other = fleet.spawn()
    fleet.process(other.id).stop(grace=0)
    fleet.site.clock.advance(minutes=5)

    assert fleet.now(other.id).status == "working"
    with pytest.raises(InvalidInput):
        fleet.lead.watch(timedelta())


# What is told of it ------------------------------------------------------------------------------------------------------------


def test_what_was_told_is_not_told_again_by_another_orchestrator(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.lead.kill(session.id)
    again: list[dict[str, Any]] = []
    other = fleet.another(notify=again.append)
    other.poll()
    other.poll()

    assert again == []
    other.restore(session.id)
    assert [notification["message"] for notification in again] == ["app-1: killed -> working"]
    assert [notification["message"] for notification in fleet.notifications] == ["app-1: spawning -> working", "app-1: working -> killed"]
    assert len({notification["id"] for notification in fleet.notifications + again}) == 3


def test_what_happened_while_nobody_listened_is_told_in_order(fleet: Fleet) -> None:
    quiet = fleet.another(notify=None)
    session = fleet.spawn(quiet)
    quiet.kill(session.id)
    assert fleet.notifications == []
    fleet.lead.poll()

    assert fleet.types() == ["session.working", "session.killed"]
    assert {notification["projectId"] for notification in fleet.notifications} == {"app"}


def test_who_is_told_can_undo_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr("threading.excepthook", lambda args: reported.append(args.exc_value))

    def refuse(notification: dict[str, Any]) -> None:
        raise RuntimeError(notification["type"])

    session = fleet.spawn(fleet.another(notify=refuse))

    assert session.status == "working"
    assert [str(problem) for problem in reported] == ["session.working"]
