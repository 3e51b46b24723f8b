"""Looking at orchestrated sessions over time: what is seen, what it comes to, and what is told of it, once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.engine import passed
from support.orchestrator import Led, on_linux

from pytest_gittrix.errors import InvalidInput, SessionNotFound
from pytest_gittrix.orchestrator.config import CommandAgent
from pytest_gittrix.orchestrator.session import Session
from pytest_gittrix.record.state.agent_activity import SqliteQuery
from pytest_gittrix.record.state.observations import Activity

pytestmark = on_linux


def look(led: Led, **later: float) -> Session:
    """The one session, looked at some time later."""
    if later:
        led.site.clock.advance(**later)
    led.lead.poll()
    (session,) = led.lead.list()
    return session


# What the agent does -----------------------------------------------------------------------------------------------------------


def test_a_day_of_a_session_is_seen_as_it_is(led: Led) -> None:
    session = led.spawn()
    led.does(session, "active")
    seen = [look(led, seconds=1)]
    seen += [look(led, seconds=40), look(led, minutes=5, seconds=30), look(led, minutes=3, seconds=48), look(led, seconds=1)]

    assert [(one.activity, one.status) for one in seen] == [
        *(("active", "working"), ("ready", "working"), ("idle", "working"), ("idle", "working"), ("idle", "stuck")),
    ]
    led.does(session, "active")
    assert (look(led, seconds=1).status, led.decided(session.id)[-1]) == ("working", ("working", "task_in_progress"))
    led.does(session, "waiting_input")
    assert look(led, seconds=1).status == "needs_input"
    assert led.types() == ["session.working", "session.stuck", "session.working", "session.needs_input"]
    assert [notification["timestamp"][14:19] for notification in led.notifications] == ["00:01", "10:01", "10:02", "10:03"]


def test_a_look_passes_its_points_and_stores_only_what_is_news(led: Led) -> None:
    session = led.spawn()
    led.does(session, "active")
    steps = passed(led.lead.poll)
    first = led.site.types(session.id)

    assert [step for step in steps if step.startswith("poll:")] == ["poll:observed", "poll:decided"]
    assert first[-1] == "activity.observed"
    for _ in range(5):
        look(led, seconds=5)
    assert led.site.types(session.id) == first


def test_that_an_agent_runs_keeps_its_session_and_is_no_activity(led: Led) -> None:
    session = led.spawn()
    led.does(session, "active")
    last = led.site.clock.now()
    seen = [look(led, minutes=30) for _ in range(20)]

    assert {one.last_activity_at for one in seen} == {last}
    assert led.site.engine.sweep() == []


def test_what_the_agent_did_last_is_known_to_the_minute(led: Led) -> None:
    session = led.spawn()
    for _ in range(6):
        led.site.clock.advance(seconds=30)
        led.does(session, "active")
        led.lead.poll()

    activities = [event for event in led.site.events(session.id) if event.type == "activity.observed"]
    assert len(activities) == 3
    assert led.now(session.id).activity == "active"


def test_an_agent_that_exited_is_lost_at_once(led: Led) -> None:
    session = led.spawn()
    led.process(session.id).stop(grace=0)

    assert led.now(session.id).status == "working"  # it is seen by a look, and not by asking
    assert (look(led).status, look(led).activity) == ("errored", "exited")
    assert led.decided(session.id)[-1] == ("terminated", "runtime_lost")
    assert led.types() == ["session.working", "session.errored"]
    assert led.lead.poll() == []


def test_an_agent_that_was_busy_just_now_is_looked_for_three_times_before_its_session_is_stuck(led: Led) -> None:
    head = led.another(dialect="head")
    session = led.spawn()
    led.does(session, "active")
    led.process(session.id).stop(grace=0)
    seen = [(look(led, seconds=1).status, head.list()[0].status) for _ in range(4)]

    assert seen == [*[("working", "detecting")] * 3, ("stuck", "stuck")]
    assert [event.data.get("attempts") for event in led.site.events(session.id) if event.type == "status.decided"][1:] == [1, 2, 3, None]
    assert look(led, minutes=6).status == "errored"
    assert led.types() == ["session.working", "session.stuck", "session.errored"]


def test_the_originals_list_does_not_wait_for_three_looks(led: Led) -> None:
    real = led.another(list_persists_death=True)
    session, other = led.spawn(), led.spawn()
    led.does(session, "active")
    led.process(session.id).stop(grace=0)

    assert [one.status for one in led.lead.list()] == ["working", "working"]
    assert [one.status for one in real.list()] == ["errored", "working"]
    assert led.now(other.id).status == "working"
    assert led.types() == ["session.working", "session.working", "session.errored"]


def test_what_the_agent_of_before_did_does_not_count_after_a_restore(led: Led) -> None:
    session = led.spawn()
    led.does(session, "waiting_input")
    led.site.clock.advance(seconds=1)
    led.lead.kill(session.id)
    led.lead.restore(session.id)

    assert (look(led).status, look(led).activity) == ("working", None)


def test_an_agents_own_database_tells_too(led: Led) -> None:
    query = SqliteQuery("SELECT state, at FROM last", unit="ns")
    agent = CommandAgent("db", ("sleep", "60"), database="agent.db", query=query)
    lead = led.another(led.project(agents=(agent,)))
    session = led.spawn(lead)
    with closing(sqlite3.connect(Path(session.workspace_path or "") / "agent.db")) as database, database:
        database.execute("CREATE TABLE last (state, at)")
        database.execute("INSERT INTO last VALUES ('blocked', ?)", (led.site.clock.now_ns(),))

    assert [one.activity for one in lead.poll()] == ["blocked"]


class Failing(CommandAgent):
    """A plugin that cannot tell what its agent does."""

    def activity(self, workspace: Path, now_ns: int) -> Activity | None:
        raise ValueError("no idea")


def test_a_plugin_that_fails_is_a_look_that_failed(led: Led) -> None:
    lead = led.another(led.project(agents=(Failing("failing", ("sleep", "60")),)), dialect="head")
    led.spawn(lead)

    assert [lead.poll()[0].status for _ in range(4)] == ["detecting", "detecting", "detecting", "stuck"]
    assert led.errors == []


def test_a_session_that_cannot_be_read_stops_no_look_at_another(led: Led) -> None:
    damaged, session = led.spawn(), led.spawn()
    log = led.site.directory(damaged.id) / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"app-1"', b'"app-x"', 1))
    led.does(session, "active")

    assert [(one.id, one.activity) for one in led.lead.poll()] == [(session.id, "active")]
    assert [one.id for one in led.lead.list()] == [session.id]
    assert [problem.id for problem in led.site.engine.problems()] == [damaged.id]


def test_one_session_can_be_looked_at(led: Led) -> None:
    first, second = led.spawn(), led.spawn()
    led.does(first, "active")
    led.does(second, "active")

    assert [(one.id, one.activity) for one in led.lead.poll(first.id)] == [(first.id, "active")]
    assert led.now(second.id).activity is None
    with pytest.raises(SessionNotFound):
        led.lead.poll("app-9")


def test_it_looks_by_itself_as_often_as_it_is_told(led: Led) -> None:
    session = led.spawn()
    led.lead.watch()
    led.site.clock.advance(seconds=29)
    led.process(session.id).stop(grace=0)
    assert led.now(session.id).status == "working"
    led.site.clock.advance(seconds=1)
    assert led.now(session.id).status == "errored"
    led.lead.close()
    other = led.spawn()
    led.process(other.id).stop(grace=0)
    led.site.clock.advance(minutes=5)

    assert led.now(other.id).status == "working"
    with pytest.raises(InvalidInput):
        led.lead.watch(timedelta())


# What is told of it ------------------------------------------------------------------------------------------------------------


def test_what_was_told_is_not_told_again_by_another_orchestrator(led: Led) -> None:
    session = led.spawn()
    led.lead.kill(session.id)
    again: list[dict[str, Any]] = []
    other = led.another(notify=again.append)
    other.poll()
    other.poll()

    assert again == []
    other.restore(session.id)
    assert [notification["message"] for notification in again] == ["app-1: killed -> working"]
    assert [notification["message"] for notification in led.notifications] == ["app-1: spawning -> working", "app-1: working -> killed"]
    assert len({notification["id"] for notification in led.notifications + again}) == 3


def test_what_happened_while_nobody_listened_is_told_in_order(led: Led) -> None:
    quiet = led.another(notify=None)
    session = led.spawn(quiet)
    quiet.kill(session.id)
    assert led.notifications == []
    led.lead.poll()

    assert led.types() == ["session.working", "session.killed"]
    assert {notification["projectId"] for notification in led.notifications} == {"app"}


def test_who_is_told_can_undo_nothing(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr("threading.excepthook", lambda args: reported.append(args.exc_value))

    def refuse(notification: dict[str, Any]) -> None:
        raise RuntimeError(notification["type"])

    session = led.spawn(led.another(notify=refuse))

    assert session.status == "working"
    assert [str(problem) for problem in reported] == ["session.working"]
