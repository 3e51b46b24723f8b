"""What people who came from other systems missed: ids of their own, steps within steps, ends told twice, turns seen from elsewhere."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from support.engine import Site

from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, SessionExpired, TurnBusy

FILES = {"app.py": "v1\n"}
CALL = {"call_id": "c1", "name": "shell", "args": {}}
LONG = 60.0


def test_an_interrupt_from_elsewhere_leaves_the_calls_of_a_running_turn_alone(site: Site) -> None:
    session = site.start()
    called, go = threading.Event(), threading.Event()
    site.engine.on("tool_call", lambda _event: called.set())

    def body(context: TurnContext) -> None:
        context.record("tool_call", CALL)
        go.wait(LONG)
        context.record("tool_result", {"call_id": "c1", "ok": True})

    turn = session.start_turn(body, runs="thread")
    assert called.wait(LONG)
    with site.another() as engine:
        elsewhere = engine.get_session(session.id)
        assert elsewhere.turn_running
        with pytest.raises(TurnBusy):
            elsewhere.interrupt()
        go.set()
        assert turn.wait(LONG)
        assert not elsewhere.turn_running
    assert [event.data["ok"] for event in session.history(["tool_result"])] == [True]


def test_an_interrupt_ends_a_turn_that_was_lost_with_its_engine(site: Site) -> None:
    session = site.start()
    pid = os.fork()
    if pid == 0:
        session.start_turn(lambda context: (context.record("tool_call", CALL), threading.Event().wait()))
        while not session.history(["tool_call"]):
            pass
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9

    while session.turn_running:
        pass  # it dies with its engine, a moment later
    assert session.interrupt() is False
    assert [event.data["status"] for event in session.history(["turn.ended"])] == ["lost"]
    assert [event.data["error"]["details"]["reason"] for event in session.history(["tool_result"])] == ["interrupt_no_turn"]
    assert session.info().turn is None


def test_a_closed_engine_starts_no_turns(site: Site) -> None:
    session = site.start()
    site.engine.close()
    with pytest.raises(AdapterUnavailable, match="The engine was closed"):
        session.start_turn(lambda _context: None)


def test_a_turn_has_the_role_of_its_session_unless_it_is_told_another(site: Site) -> None:
    session = site.start(role="review")
    turns = [session.start_turn(lambda context: context.role, runs="thread", role=role) for role in (None,)]
    assert turns[0].wait(LONG)
    other = session.start_turn(lambda context: context.role, runs="thread", role="plan")
    assert other.wait(LONG)
    assert (turns[0].value, other.value) == ("review", "plan")


@pytest.mark.parametrize("name", ["identity", "lineage", "outcome", "successor"])
def test_a_record_found_has_its_fields(site: Site, name: str) -> None:
    session = site.start()
    assert getattr(site.engine.query()[0], name) is None
    assert name not in site.engine.query()[0].wire()
    session.handoff(agent="a")
    child, parent = site.engine.query()
    assert (child.identity, child.lineage and child.lineage["parent"]) == ({"agent": "a"}, session.id)
    assert (parent.outcome, parent.successor) == ("handoff", child.id)


def test_a_fork_is_no_child_in_a_line_of_handoffs(site: Site) -> None:
    session = site.start()
    assert "parent_id" not in session.fork().view("gastown")
    assert session.handoff().view("gastown")["parent_id"] == session.id


def test_an_end_within_a_step_needs_no_end_of_the_step(site: Site) -> None:
    promoted, handed = site.start(), site.start()
    promoted.write("app.py", "v2\n")
    with promoted.step("submit"):
        promoted.promote()
    with handed.step("build"):
        child = handed.handoff()
    assert "step_ref" not in child.view("gastown")
    with pytest.raises(ValueError, match="the body's own"), child.step("fail"):
        child.discard()
        raise ValueError("the body's own")

    assert handed.view("gastown")["step_ref"] == "build"


def test_the_outer_step_is_current_again_when_the_inner_is_over(site: Site) -> None:
    session = site.start()
    with session.step("outer"):
        with session.step("inner"), session.step("inner"):
            assert session.view("gastown")["step_ref"] == "inner"
        assert session.view("gastown")["step_ref"] == "outer"
    assert "step_ref" not in session.view("gastown")


@pytest.mark.parametrize("wanted", [{"limit": "many"}, {"limit": 1.5}, {"limit": True}, {"outcome": "exploded"}])
def test_a_query_that_makes_no_sense_is_refused(site: Site, wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        site.engine.query(**wanted)


@pytest.mark.parametrize("verb", ["handoff", "fork"])
def test_the_id_of_a_runtime_can_be_given_to_a_child_once(site: Site, verb: str) -> None:
    session: Any = site.start()
    child = getattr(session, verb)(id="abc-123")
    assert child.id == "abc-123"
    before = child.history()
    with pytest.raises(InvalidInput, match="There is a session"):
        getattr(child, verb)(id="abc-123")
    assert child.history()[: len(before)] == before
    assert child.read("app.py") == b"v1\n"


def test_ids_that_the_engine_makes_are_in_order_of_time(site: Site) -> None:
    first = site.engine.gen_id()
    site.clock.advance(seconds=1)
    second = site.engine.gen_id()
    assert first < second
    assert site.start(id=first).id == first
    assert first.startswith("20300101T000000-")


def test_an_ended_session_announces_nothing(site: Site) -> None:
    session = site.start()
    session.discard()
    heard: list[Any] = []
    site.engine.on("*", heard.append)
    with pytest.raises(SessionExpired):
        session.emit("status", {"status": "done"})
    assert heard == []


def test_a_log_that_is_a_link_is_refused(site: Site) -> None:
    session = site.start()
    log, away = site.directory(session) / "events.jsonl", site.root / "elsewhere"
    os.rename(log, away)
    log.symlink_to(away)
    before = away.read_bytes()
    with pytest.raises(GittrixError):
        session.record("user_message", {"text": "x"})
    assert away.read_bytes() == before


def test_the_history_and_the_views_of_an_ended_session_by_its_id(site: Site) -> None:
    session = site.start()
    session.discard()
    with site.another() as engine:
        assert engine.history(session.id) == session.history()
        assert engine.history(session.id, ["session.ended"]) == session.history()[-2:-1]
        assert engine.view(session.id, "gastown") == session.view("gastown")
        with pytest.raises(GittrixError):
            engine.history("sess_nobody")


def test_an_end_told_twice_is_no_error_and_told_otherwise_is_one(site: Site) -> None:
    session = site.start()
    session.discard("done")
    before = session.history()
    session.discard("done")
    for outcome in ("crash", None):
        with pytest.raises(SessionExpired):
            session.discard(outcome)
    assert session.history() == before


def test_a_turn_of_another_engine_runs_on_when_its_session_is_ended_here(site: Site) -> None:
    session = site.start()
    go = threading.Event()
    turn = session.start_turn(lambda _context: go.wait(LONG), runs="thread")
    with site.another() as engine:
        elsewhere = engine.get_session(session.id)
        elsewhere.discard()
        assert elsewhere.turn_running
        go.set()
        assert turn.wait(LONG)
        assert not elsewhere.turn_running


def test_an_ended_session_keeps_no_lock_of_a_turn_that_was_killed_with_its_engine(site: Site) -> None:
    session = site.start()
    pid = os.fork()
    if pid == 0:
        session.start_turn(lambda context: context.cancelled.wait())
        os._exit(9)
    os.waitpid(pid, 0)
    assert ".turn" in os.listdir(site.directory(session))
    while session.turn_running:
        pass  # its process follows its engine, a moment later

    site.engine.evict(session.id)
    assert {".turn", ".lock"}.isdisjoint(os.listdir(site.directory(session)))
