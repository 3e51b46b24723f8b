"""Gas Town's reading of a log: colours of activity, steps and their replay, and what the event log of a town hears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gastown import CREATED, TOAST, add, born, events_of, ns_at

from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.vocabulary import VOCABULARY
from pytest_gittrix.record.state.fold import fold, metadata_of
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.views import gastown
from pytest_gittrix.views.gastown import TOWN_SOURCES, TOWN_TYPES, WorkflowStep, activity, step_events, steps, town_event

MINUTE = 60_000_000_000
NOW = 100 * MINUTE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "sessions", durability="fast")


def heard(events: list[Event]) -> list[dict[str, Any]]:
    """What the town hears of a session, from its first event to its last."""
    return [line for place, event in enumerate(events, 1) for line in town_event(event, fold(events[:place]))]


# Activity -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "colour"),
    [
        (NOW, "green"),
        (NOW - 5 * MINUTE + 1, "green"),
        (NOW - 5 * MINUTE, "yellow"),
        (NOW - 10 * MINUTE + 1, "yellow"),
        (NOW - 10 * MINUTE, "red"),
        (0, "red"),
        (NOW + 60 * MINUTE, "green"),
        (None, "unknown"),
    ],
)
def test_activity_has_a_colour(last: int | None, colour: str) -> None:
    assert activity(last, NOW) == colour


# Steps ----------------------------------------------------------------------------------------------------------------------------


def test_a_step_runs_from_its_start_to_its_end(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "step.started", step="design", molecule_id="mol-1")
    add(store, "s", 2, "session.write", path="a", op="write")
    add(store, "s", 3, "step.completed", step="design", outcome="done")
    add(store, "s", 4, "session.write", path="b", op="write")
    events = events_of(store, "s")

    assert steps(events) == [WorkflowStep("design", "mol-1", "done", ns_at(1), ns_at(3), 2, 4)]
    assert [event.type for event in step_events(events, steps(events)[0])] == ["step.started", "session.write", "step.completed"]


def test_a_step_that_is_started_anew_is_a_row_of_its_own(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "step.started", step="test")
    add(store, "s", 2, "session.write", path="a", op="write")
    add(store, "s", 3, "step.started", step="test")
    add(store, "s", 4, "step.completed", step="test")
    add(store, "s", 5, "step.started", step="test")

    assert steps(events_of(store, "s")) == [
        WorkflowStep("test", None, None, ns_at(1), None, 2, 3),
        WorkflowStep("test", None, None, ns_at(3), ns_at(4), 4, 5),
        WorkflowStep("test", None, None, ns_at(5), None, 6, 6),
    ]


def test_a_step_that_never_ended_goes_on_to_the_end_of_the_log(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "step.started", step="test")
    add(store, "s", 2, "session.write", path="a", op="write")
    add(store, "s", 3, "session.ended", state="discarded", outcome="crash")
    (step,) = steps(events_of(store, "s"))

    assert (step.ended_ns, step.outcome, step.last_seq) == (None, None, 4)


def test_the_end_of_what_was_not_started_is_passed_over(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "step.completed", step="test")
    add(store, "s", 2, "step.started", step="test")
    add(store, "s", 3, "step.completed", step="design")
    add(store, "s", 4, "step.completed", step="test")
    add(store, "s", 5, "step.completed", step="test", outcome="again")

    assert steps(events_of(store, "s")) == [WorkflowStep("test", None, None, ns_at(2), ns_at(4), 3, 5)]


def test_steps_may_run_at_the_same_time(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "step.started", step="a")
    add(store, "s", 2, "step.started", step="b")
    add(store, "s", 3, "step.completed", step="a")
    add(store, "s", 4, "step.completed", step="b")

    assert [(step.step, step.first_seq, step.last_seq) for step in steps(events_of(store, "s"))] == [("a", 2, 4), ("b", 3, 5)]


def test_a_step_is_of_the_workflow_that_was_told_last(store: Store) -> None:
    born(store, "s", identity={**TOAST, "molecule_id": "mol-1"})
    add(store, "s", 1, "step.started", step="a")
    add(store, "s", 2, "session.identified", identity={"molecule_id": "mol-2"})
    add(store, "s", 3, "step.started", step="b")
    add(store, "s", 4, "step.started", step="c", molecule_id="mol-3")
    add(store, "s", 5, "session.identified", identity={"molecule_id": None})
    add(store, "s", 6, "step.started", step="d")

    assert [step.molecule_id for step in steps(events_of(store, "s"))] == ["mol-1", "mol-2", "mol-3", None]


def test_a_session_without_steps_has_none(store: Store) -> None:
    born(store, "s")

    assert steps(events_of(store, "s")) == []
    assert steps([]) == []


moves = st.lists(st.tuples(st.sampled_from(["step.started", "step.completed", "session.accessed"]), st.sampled_from("abc")), max_size=30)


@given(moves)
def test_of_any_history_each_start_is_one_step_and_each_replay_begins_with_it(history: list[tuple[str, str]]) -> None:
    events = [
        Event(seq, seq * MINUTE, "s", type, "agent", {} if type == "session.accessed" else {"step": step})
        for seq, (type, step) in enumerate(history)
    ]
    rows = steps(events)

    assert [(row.step, row.first_seq) for row in rows] == [(e.data["step"], e.seq) for e in events if e.type == "step.started"]
    for row in rows:
        replay = step_events(events, row)
        assert replay[0].seq == row.first_seq
        assert replay[-1].seq == row.last_seq
        assert [e.data["step"] for e in replay if e.type == "step.started"].count(row.step) == 1
        ends = [e.seq for e in replay if e.type == "step.completed" and e.data["step"] == row.step]
        assert ends == ([] if row.ended_ns is None else [row.last_seq])


# What the town hears --------------------------------------------------------------------------------------------------------------


def test_the_town_hears_of_a_start_in_its_own_words(store: Store) -> None:
    born(store, "s", 0.99)

    assert heard(events_of(store, "s")) == [
        {
            "ts": "2030-01-01T00:00:59Z",
            "source": "gt",
            "type": "session_start",
            "actor": "gastown/polecats/Toast",
            "payload": {"session_id": "s", "role": "polecat", "topic": "fix the bug", "cwd": "/w"},
            "visibility": "feed",
        }
    ]


def test_where_an_agent_says_it_works_comes_before_the_workspace(store: Store) -> None:
    born(store, "s", identity={**TOAST, "cwd": "/w/src"})

    assert heard(events_of(store, "s"))[0]["payload"]["cwd"] == "/w/src"


def test_of_an_agent_that_nobody_told_nothing_is_made_up(store: Store) -> None:
    born(store, "s", identity={}, task="")
    (line,) = heard(events_of(store, "s"))

    assert line["actor"] == ""
    assert line["payload"] == {"session_id": "s", "role": "", "cwd": "/w"}


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"state": "discarded", "outcome": "done"}, [("session_end", {"session_id": "s", "outcome": "done"})]),
        ({"state": "discarded", "outcome": "killed"}, [("session_end", {"session_id": "s", "outcome": "killed"})]),
        ({"state": "discarded"}, [("session_end", {"session_id": "s", "outcome": "killed"})]),
        ({"state": "expired"}, [("session_end", {"session_id": "s", "outcome": "killed"})]),
        (
            {"state": "discarded", "outcome": "crash"},
            [("session_death", {"session": "gt-Toast", "agent": "gastown/polecats/Toast", "reason": "crash"})],
        ),
        (
            {"state": "discarded", "outcome": "crash", "reason": "the pane died"},
            [("session_death", {"session": "gt-Toast", "agent": "gastown/polecats/Toast", "reason": "the pane died"})],
        ),
        (
            {"state": "discarded", "outcome": "handoff", "successor": "t"},
            [("handoff", {"to_session": True, "subject": "fix the bug"}), ("session_end", {"session_id": "s", "outcome": "handoff"})],
        ),
    ],
)
def test_the_town_hears_of_an_end(store: Store, end: dict[str, str], expected: list[tuple[str, dict[str, Any]]]) -> None:
    born(store, "s")
    add(store, "s", 1, "handoff.intent", child="t")
    add(store, "s", 2, "session.ended", **end)

    assert [(line["type"], line["payload"]) for line in heard(events_of(store, "s"))[1:]] == expected


def test_a_promotion_is_one_end_even_if_it_is_said_twice(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "promote.done", commit="c" * 40, ref="refs/heads/main", branch="main", strategy="commit")
    add(store, "s", 2, "session.ended", state="promoted")
    lines = heard(events_of(store, "s"))[1:]

    assert [(line["ts"], line["type"], line["payload"]) for line in lines] == [
        ("2030-01-01T00:01:00Z", "session_end", {"session_id": "s", "outcome": "done"})
    ]


def test_a_death_without_a_terminal_names_the_session(store: Store) -> None:
    born(store, "s", identity={})
    add(store, "s", 1, "session.ended", state="discarded", outcome="crash")

    assert heard(events_of(store, "s"))[-1]["payload"] == {"session": "s", "agent": "", "reason": "crash"}


def test_the_town_hears_of_steps_and_only_its_files_show_them(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "step.started", step="design", molecule_id="mol-1")
    add(store, "s", 2, "step.completed", step="design", outcome="done")
    add(store, "s", 3, "step.completed", step="design")
    lines = heard(events_of(store, "s"))[1:]
    known = {"session_id": "s", "step": "design", "molecule_id": "mol-1"}

    assert [(line["type"], line["payload"]) for line in lines] == [
        ("session_step_started", known),
        ("session_step_completed", {**known, "outcome": "done"}),
        ("session_step_completed", known),
    ]
    assert {line["visibility"] for line in lines} == {"audit"}


def test_a_line_names_who_worked_then(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "session.identified", identity={"agent": "gastown/polecats/Fig"})
    add(store, "s", 2, "step.started", step="a")

    assert [line["actor"] for line in heard(events_of(store, "s"))] == ["gastown/polecats/Toast", "gastown/polecats/Fig"]


def test_a_session_of_another_store_starts_when_it_is_taken_in(store: Store) -> None:
    born(store, "s")
    record = metadata_of(store.load("s"))
    live, over = (
        Event(0, ns_at(5), "s", "session.imported", "system", {"metadata": {**record, "state": state}}) for state in ("active", "discarded")
    )

    assert [(line["ts"], line["type"]) for line in heard([live])] == [("2030-01-01T00:05:00Z", "session_start")]
    assert heard([over]) == []


def test_all_that_is_told_is_told_of_one_set_of_events_and_types(store: Store) -> None:
    """``TOWN_SOURCES`` and ``TOWN_TYPES`` are exact: a reader may rely on either."""
    born(store, "s")
    add(store, "s", 1, "step.started", step="a")
    add(store, "s", 1, "step.completed", step="a")
    for id, outcome in (("crashed", "crash"), ("handed", "handoff")):
        born(store, id)
        add(store, id, 1, "session.ended", state="discarded", outcome=outcome)
    lines = [line for id in store.ids() for line in heard(events_of(store, id))]

    assert {line["type"] for line in lines} == TOWN_TYPES.keys()
    assert VOCABULARY.keys() >= TOWN_SOURCES


def test_the_town_does_not_hear_of_work(store: Store) -> None:
    born(store, "s")
    add(store, "s", 1, "session.write", path="a", op="write")
    add(store, "s", 2, "user_message", text="hello")
    add(store, "s", 3, "handoff.intent", child="t")
    add(store, "s", 4, "handoff.aborted", child="t", reason="no")
    events = events_of(store, "s")

    assert len(heard(events)) == 1
    assert {event.type for event in events[2:]}.isdisjoint(TOWN_SOURCES)


def test_a_record_is_the_same_from_events_and_from_what_they_add_up_to(store: Store) -> None:
    born(store, "s", task=CREATED["task"])
    add(store, "s", 1, "session.ended", state="discarded", outcome="done")
    events = events_of(store, "s")

    assert gastown.record_of(fold(events)) == gastown.record(events)


# Sessions of members (BotMinter) ------------------------------------------------------------------------------------------------


def opened(store: Store, id: str, *states: str) -> list[Event]:
    """A member's session that went through these states, a minute each, after its workspace was there."""
    store.create(id)
    opened_with = {"task": "t", "kind": "loop", "member": "alice", "team": "crew", "repositories": [], "workspace": "/w"}
    add(store, id, 0, "session.opened", **opened_with, policy=CREATED["policy"])
    add(store, id, 0, "workspace.ready", path="/w")
    for minute, to in enumerate(states):
        add(store, id, minute, "life.moved", to=to, **({"reason": "it was told so"} if to == "failed" else {}))
    return events_of(store, id)


@pytest.mark.parametrize(
    ("states", "outcome", "line"),
    [
        (("active", "finalizing", "completed", "retained", "removed"), "done", "session_end"),
        (("active", "finalizing", "failed", "retained"), "done", "session_end"),
        (("active", "finalizing", "killed", "retained"), "done", "session_end"),
        (("active", "completed", "retained", "finalizing", "completed", "retained"), "done", "session_end"),
        (("active", "failed", "retained", "finalizing", "completed", "retained", "removed"), "crash", "session_death"),
        (("active", "killed", "retained", "finalizing", "completed"), "killed", "session_end"),
    ],
)
def test_a_members_session_ends_once_when_its_agents_run_does(store: Store, states: tuple[str, ...], outcome: str, line: str) -> None:
    events = opened(store, "m", *states)
    lines = heard(events)

    assert [one["type"] for one in lines] == ["session_start", line]
    assert lines[1]["ts"] == "2030-01-01T00:01:00Z"
    assert lines[1]["payload"].get("outcome", "crash") == outcome
    assert lines[1]["actor"] == "alice"
    row = gastown.record(events)
    assert (row["outcome"], row["ended_at"]) == (outcome, "2030-01-01T00:01:00Z")
    assert gastown.state_of(fold(events)) == outcome


def test_the_death_of_a_member_says_why(store: Store) -> None:
    assert heard(opened(store, "m", "active", "failed"))[1]["payload"] == {"session": "m", "agent": "alice", "reason": "it was told so"}


def test_a_members_session_lives_while_its_agent_runs(store: Store) -> None:
    events = opened(store, "m", "active")
    assert [one["type"] for one in heard(events)] == ["session_start"]
    assert not {"outcome", "ended_at"} & gastown.record(events).keys()
    assert gastown.state_of(fold(events)) == "active"
