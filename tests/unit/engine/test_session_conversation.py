"""What is said and done in a session: stored, announced, read again; and what may not be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.engine import Site, open_site

from pytest_gittrix.engine.operations.conversation import close_orphans
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput, SessionExpired
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.vocabulary import CONVERSATION

CALL = {"call_id": "c1", "name": "grep", "args": {"pattern": "main"}}


@pytest.fixture
def site(tmp_path: Path) -> Any:
    """A repository and an engine."""
    with open_site(tmp_path, {"app.py": "v1\n"}) as opened:
        yield opened


def test_what_is_recorded_has_a_place_and_is_in_the_history(session: UserSession) -> None:
    before = len(session.history())

    said = session.record("user_message", {"text": "hello"})
    answered = session.for_agent().record("assistant_message", {"text": "hi", "metadata": {"partial": True}})

    assert [said.seq, answered.seq] == [before, before + 1]
    assert (said.actor, answered.actor) == ("human", "agent")
    assert session.history()[before:] == [said, answered]


def test_a_history_of_some_types_leaves_the_others_out(session: UserSession) -> None:
    session.record("user_message", {"text": "hello"})
    session.write("app.py", "v2\n")
    session.record("tool_call", CALL)

    assert [event.type for event in session.history(["tool_call", "user_message"])] == ["user_message", "tool_call"]
    assert [event.data["path"] for event in session.history("session.write")] == ["app.py"]


def test_a_type_that_no_event_has_cannot_be_asked_for(session: UserSession) -> None:
    with pytest.raises(InvalidInput, match="no event 'users_message'"):
        session.history(["users_message"])


def test_an_event_is_announced_when_it_is_in_the_log(site: Site, session: UserSession) -> None:
    seen: list[tuple[Event, bool]] = []
    site.engine.on("*", lambda event: seen.append((event, event in session.history())))

    stored = session.record("tool_call", CALL)

    assert seen == [(stored, True)]


def test_what_is_emitted_is_announced_and_leaves_nothing(site: Site, session: UserSession) -> None:
    seen: list[Event] = []
    site.engine.on("text_delta", seen.append)
    before = session.history()

    session.emit("text_delta", {"chunk": "hel"})
    session.for_agent().emit("text_delta", {"chunk": "lo"})

    assert [(event.seq, event.stream, event.data["chunk"]) for event in seen] == [(-1, session.id, "hel"), (-1, session.id, "lo")]
    assert session.history() == before


@pytest.mark.parametrize(
    ("type", "data", "named"),
    [
        ("promote.done", {"commit": "c", "ref": "r", "branch": "b", "strategy": "commit"}, "is not an event that a user can store"),
        ("session.ended", {"state": "expired"}, "is not an event that a user can store"),
        ("text_delta", {"chunk": "x"}, "is announced, not stored"),
        ("user_message", {}, "lacks text"),
        ("user_message", {"text": "x", "colour": "red"}, "no place for colour"),
        ("user_message", {"text": object()}, "are not JSON"),
        ("user_message", {1: "x", "1": "y"}, "Two keys"),
        ("user_message", {None: "x"}, "cannot be a key"),
        ("user_message", "hello", "not a mapping"),
    ],
)
def test_what_may_not_be_recorded_is_named_and_takes_no_place(site: Site, session: UserSession, type: str, data: Any, named: str) -> None:
    seen: list[Event] = []
    site.engine.on("*", seen.append)
    before = session.history()

    with pytest.raises(InvalidInput, match=named):
        session.record(type, data)

    assert (seen, session.history()) == ([], before)
    assert session.record("user_message", {"text": "next"}).seq == len(before)


@pytest.mark.parametrize("type", sorted(CONVERSATION))
def test_every_type_can_be_recorded(session: UserSession, type: str) -> None:
    data = {key: "some " + key for key in CONVERSATION[type].required}

    assert session.record(type, data).data == data


def test_keys_are_text_on_every_level(session: UserSession) -> None:
    stored = session.record("tool_call", {**CALL, "args": {1: [{2: "x"}]}})

    assert stored.data["args"] == {"1": [{"2": "x"}]}
    assert session.history()[-1] == stored


def test_an_ended_session_says_nothing_more_and_can_still_be_read(session: UserSession) -> None:
    said = session.record("user_message", {"text": "last"})
    session.discard()

    with pytest.raises(SessionExpired):
        session.record("user_message", {"text": "too late"})

    assert said in session.history()


def test_saying_something_is_use_and_one_event(site: Site, session: UserSession) -> None:
    before = len(session.history())
    site.clock.advance(hours=3)

    session.record("user_message", {"text": "still here"})
    site.clock.advance(hours=3)

    assert len(session.history()) == before + 1
    assert site.engine.sweep() == []


def test_calls_without_an_answer_are_given_one_each_in_the_order_of_their_ids(session: UserSession) -> None:
    for call_id in ("b", "a", "done"):
        session.record("tool_call", {"call_id": call_id, "name": f"tool-{call_id}", "args": {}})
    session.record("tool_result", {"call_id": "done", "ok": True, "output": "x"})

    with session._recorder.leased() as state:
        closed = close_orphans(session._recorder, state, "interrupt")

    assert closed.calls == {}
    results = [event.data for event in session.history("tool_result")][1:]
    assert [(result["call_id"], result["ok"], result["error"]["kind"]) for result in results] == [
        ("a", False, "orphan_tool_call"),
        ("b", False, "orphan_tool_call"),
    ]
    assert results[0]["error"]["details"] == {"call_id": "a", "tool": "tool-a", "reason": "interrupt"}


@pytest.mark.parametrize(
    ("type", "data", "problem"),
    [
        ("tool_call", {"call_id": "c1"}, "lacks args, name"),
        ("tool_call", {"call_id": ["c1"], "name": "shell", "args": {}}, r"The call_id of a 'tool_call' is \['c1'\], not text"),
        ("tool_call", {"call_id": "c1", "name": 7, "args": {}}, "not text"),
        ("tool_result", {"ok": True}, "lacks call_id"),
        ("permission_decision", {"call_id": None, "decision": "yes"}, "not text"),
    ],
)
def test_a_call_that_could_not_be_matched_is_refused_and_leaves_no_trace(
    session: UserSession, type: str, data: dict[str, Any], problem: str
) -> None:
    before = session.history()

    with pytest.raises(InvalidInput, match=problem):
        session.record(type, data)
    assert session.history() == before


def test_data_nested_too_deep_are_refused(session: UserSession) -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"deeper": deep}
    with pytest.raises(InvalidInput, match="nested too deep"):
        session.record("subagent_event", deep)
