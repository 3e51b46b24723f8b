"""One session, read as BotMinter reads its own: every documented field, the history, and what its code does otherwise."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site
from support.life import ID, WAYS, Lived, at

from pytest_gittrix.errors import SessionNotFound
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.lifecycle import STATES
from pytest_gittrix.views import gastown, gittrix, orchestrator, pixir, state_in, view
from pytest_gittrix.views.botminter import FINALIZATION, LEGAL, LEGAL_AS_CODE, history, history_row, record

FILES = {"app.py": "v1\n"}

FIELDS = [
    *("session_id", "member_name", "session_type", "current_state", "created_at", "state_transitioned_at"),
    *("agent_pid", "workspace_path", "finalization_result", "finalization_agent_pid"),
]


def saved(status: str = "CompletedDegraded", ending: str = "completed") -> Lived:
    """A session whose work was saved in some way, and that is retained."""
    lived = Lived("active").tell(1, "agent.launched", pid=7, start_time=70).tell(2, "agent.exited", code=0).move(2, "finalizing")
    lived.tell(3, "finalize.started", attempt=1).tell(3, "agent.launched", pid=8)
    lived.tell(3, "finalize.repository", name="app", action="committed", branch="fix")
    lived.tell(3, "finalize.repository", name="app", action="pushed", branch="fix")
    lived.tell(3, "finalize.repository", name="team", action="recovered", branch=f"recovery/{ID}/trunk")
    lived.tell(4, "finalize.finished", status=status, issues=["https://forge/issues/1"])
    return lived.move(4, ending).move(5, "retained")


# The record --------------------------------------------------------------------------------------------------------------------


def test_a_session_has_every_documented_field() -> None:
    assert record(saved().events) == {
        "session_id": ID,
        "member_name": "engineer-alice",
        "session_type": "Loop",
        "current_state": "Retained",
        "created_at": "2030-01-01T00:00:00.000Z",
        "state_transitioned_at": "2030-01-01T05:00:00.000Z",
        "agent_pid": 7,
        "workspace_path": "/w/a1b2c3d4",
        "finalization_result": {
            "exit_status": "CompletedDegraded",
            "committed_repos": [{"repo_name": "app", "branch": "fix"}],
            "pushed_branches": ["fix"],
            "recovery_branches": ["recovery/a1b2c3d4/trunk"],
            "github_issue_urls": ["https://forge/issues/1"],
        },
        "finalization_agent_pid": 8,
    }


@pytest.mark.parametrize("state", STATES)
def test_the_fields_are_there_in_every_state_and_null_where_nothing_is_known(state: str) -> None:
    row = view(Lived(*WAYS[state]).events, "botminter")
    assert [*row] == FIELDS
    assert row["current_state"] == state.capitalize() == state_in(Lived(*WAYS[state]).events, "botminter")
    assert (row["agent_pid"], row["finalization_result"], row["finalization_agent_pid"]) == (None, None, None)


@pytest.mark.parametrize(("kind", "type"), [("loop", "Loop"), ("interactive", "Interactive"), ("brain", "Brain")])
def test_the_type_is_written_as_documented(kind: str, type: str) -> None:
    assert record(Lived(kind=kind).events)["session_type"] == type


def test_a_result_is_told_when_the_finalization_is_over_and_not_before() -> None:
    lived = Lived("active", "finalizing").tell(3, "finalize.started", attempt=1)
    lived.tell(3, "finalize.repository", name="app", action="pushed", branch="fix")
    assert record(lived.events)["finalization_result"] is None
    lived.tell(4, "finalize.finished", status="Completed")
    assert record(lived.events)["finalization_result"]["exit_status"] == "Completed"
    again = lived.move(5, "completed").move(6, "retained").move(7, "finalizing")
    assert record(again.events)["finalization_result"] is None


def test_a_workspace_is_told_of_until_it_is_gone() -> None:
    lived = (
        Lived().tell(0, "workspace.ready", path="/elsewhere").move(1, "active").move(2, "completed").move(3, "retained").move(4, "removed")
    )
    assert record(lived.events)["workspace_path"] == "/elsewhere"
    assert record(lived.tell(5, "workspace.removed").events)["workspace_path"] is None


def test_every_view_reads_a_session_with_a_life() -> None:
    for lived in (Lived(), Lived("active"), saved(), saved().move(6, "removed")):
        for name, table in (("gittrix", gittrix.LEGAL), ("gastown", gastown.LEGAL), ("pixir", pixir.LEGAL)):
            assert state_in(lived.events, name) in table
            assert view(lived.events, name)["id"] == ID
        assert state_in(lived.events, "orchestrator") in orchestrator.LEGAL
    gone = view(saved().move(6, "removed").events, "gastown")
    assert (gone["agent"], gone["outcome"], gone["ended_at"]) == ("engineer-alice", "done", "2030-01-01T02:00:00Z")


def test_the_table_is_the_documented_one() -> None:
    assert {old: sorted(allowed) for old, allowed in LEGAL.items()} == {
        "Creating": ["Active"],
        "Active": ["Completed", "Failed", "Finalizing", "Killed"],
        "Finalizing": ["Completed", "Failed", "Killed"],
        "Completed": ["Retained"],
        "Failed": ["Retained"],
        "Killed": ["Retained"],
        "Retained": ["Finalizing", "Removed"],
        "Removed": [],
    }
    assert LEGAL_AS_CODE.keys() == LEGAL.keys() - {"Removed"}
    assert LEGAL_AS_CODE["Retained"] == {"Finalizing"}


# Sessions that have no life ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "state"),
    [(None, "Active"), ("promote", "Completed"), ("done", "Completed"), ("crash", "Failed"), ("killed", "Killed"), ("expire", "Removed")],
)
def test_a_session_of_the_engine_reads_as_a_chat(site: Site, end: str | None, state: str) -> None:
    session = site.start(agent="alice")
    site.clock.advance(minutes=5)
    session.write("app.py", "v2\n")
    path = str(session.workspace_path)
    since = "2030-01-01T00:05:00.000Z"
    if end is None:
        since = "2030-01-01T00:00:00.000Z"
    elif end == "promote":
        session.promote()
    elif end == "expire":
        site.clock.advance(days=1)
        since = "2030-01-02T00:05:00.000Z"
        site.engine.sweep()
    else:
        session.discard(end)
    row = view(site.events(session.id), "botminter")

    result = row.pop("finalization_result")
    assert row == {
        "session_id": session.id,
        "member_name": "alice",
        "session_type": "Interactive",
        "current_state": state,
        "created_at": "2030-01-01T00:00:00.000Z",
        "state_transitioned_at": since,
        "agent_pid": None,
        "workspace_path": path if end is None else None,
        "finalization_agent_pid": None,
    }
    promoted = {"repo_name": site.durable.path.name, "branch": "main"}
    assert (result and result["committed_repos"]) == ([promoted] if end == "promote" else None)


def test_a_session_that_starts_is_being_created(site: Site) -> None:
    events = site.start().history()
    assert [state_in(events[:number], "botminter") for number in (1, 2)] == ["Creating", "Active"]
    assert record(events[:1])["state_transitioned_at"] == record(events[:1])["created_at"]
    late = [events[0], replace(events[1], ts=at(1)), Event(2, at(2), events[0].stream, "session.accessed", "human", {})]
    assert record(late)["state_transitioned_at"] == "2030-01-01T01:00:00.000Z"


def test_a_session_that_was_handed_on_completed(site: Site) -> None:
    session = site.start()
    session.handoff()
    assert state_in(site.events(session.id), "botminter") == "Completed"


@pytest.mark.parametrize(("outcome", "normal"), [("done", True), ("crash", False), ("killed", False), (None, None)])
def test_a_session_of_the_engine_ended_normally_if_it_completed(site: Site, outcome: str | None, normal: bool | None) -> None:
    session = site.start(agent="alice")
    if outcome is None:
        assert history([session.history()]) == []
        return
    session.discard(outcome)
    (row,) = history([site.events(session.id)])
    assert (row["exit_normal"], row["finalization_status"], row["member"]) == (normal, "n/a", "alice")


def test_a_session_of_another_store_that_had_ended_is_in_the_history(site: Site) -> None:
    session = site.start()
    metadata = {**session.metadata(), "state": "discarded"}
    imported = [Event(0, at(9), session.id, "session.imported", "system", {"metadata": metadata})]
    assert history([imported])[0]["ended_at"] == metadata["updatedAt"]


# History -----------------------------------------------------------------------------------------------------------------------


def test_a_line_of_the_history() -> None:
    assert history_row(saved().events) == {
        "session_id": ID,
        "member": "engineer-alice",
        "session_type": "Loop",
        "state": "Retained",
        "exit_normal": True,
        "finalization_status": "completed",
        "started_at": "2030-01-01T00:00:00.000Z",
        "ended_at": "2030-01-01T04:00:00.000Z",
    }


@pytest.mark.parametrize(
    ("status", "shown"), [("Completed", "completed"), ("CompletedDegraded", "completed"), ("Failed", "failed"), ("Skipped", "skipped")]
)
def test_a_finalization_is_told_by_its_result(status: str, shown: str) -> None:
    assert history_row(saved(status).events)["finalization_status"] == shown == FINALIZATION[status]


@pytest.mark.parametrize("ending", ["completed", "failed", "killed"])
def test_only_what_completed_ended_normally(ending: str) -> None:
    row = history_row(Lived("active", ending, "retained").events)
    assert (row["exit_normal"], row["finalization_status"]) == (ending == "completed", "n/a")


def test_while_it_is_finalized_again_it_is_pending_and_has_no_end() -> None:
    row = history_row(saved().move(6, "finalizing").events)
    assert (row["finalization_status"], row["exit_normal"], row["ended_at"]) == ("pending", False, None)


def listed(*lives: Lived, **terms: Any) -> list[str]:
    """The ids of a history."""
    return [row["session_id"] for row in history([lived.events for lived in lives], **terms)]


def test_the_history_has_what_ended_the_newest_end_first() -> None:
    lives = [Lived(*way, id=state, member=state[0]) for state, way in WAYS.items()]
    assert listed(*lives) == ["completed", "failed", "killed", "removed", "retained"]
    late = Lived("active", id="late").move(30, "killed")
    assert listed(*lives, late)[0] == "late"
    assert listed(*lives, late, member="k") == ["killed"]


def test_since_counts_the_moment_itself() -> None:
    lived = saved()
    assert listed(lived, since_ns=at(5)) == [ID]
    assert listed(lived, since_ns=at(5) + 1000) == []


# As the code has it ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "shown"), [("completed", "Completed"), ("failed", "Failed"), ("killed", "Retained")])
def test_in_the_code_only_what_was_killed_is_retained(ending: str, shown: str) -> None:
    events = Lived("active", ending, "retained").events
    row = record(events, as_code=True)
    since = "2030-01-01T03:00:00.000Z" if shown == "Retained" else "2030-01-01T02:00:00.000Z"
    assert (row["current_state"], row["state_transitioned_at"]) == (shown, since)
    assert history_row(events, as_code=True)["state"] == history([events], as_code=True)[0]["state"] == shown
    assert record(events)["current_state"] == "Retained"


def test_in_the_code_what_was_removed_has_no_record() -> None:
    removed = saved().move(6, "removed")
    with pytest.raises(SessionNotFound, match="no record any more"):
        record(removed.events, as_code=True)
    assert listed(removed) == [ID]
    assert listed(removed, as_code=True) == []


def test_in_the_code_a_session_takes_only_the_steps_of_its_table() -> None:
    for way in (WAYS["retained"], ("active", "finalizing", "killed", "retained", "finalizing", "completed")):
        lived = Lived(*way)
        states = [record(lived.events[:count], as_code=True)["current_state"] for count in range(1, len(lived.events) + 1)]
        assert [(old, new) for old, new in pairwise(states) if old != new and new not in LEGAL_AS_CODE[old]] == []


# In a store --------------------------------------------------------------------------------------------------------------------


def test_an_engine_that_knows_nothing_of_lives_leaves_them_alone(site: Site, tmp_path: Path) -> None:
    workspace = tmp_path / "members" / ID
    workspace.mkdir(parents=True)
    (workspace / "work.txt").write_text("unsaved\n")
    store = site.engine.store
    store.create(ID)
    for event in Lived(workspace=str(workspace)).tell(0, "workspace.ready", path=str(workspace)).events:
        store.log(ID).append(event.type, dict(event.data), ts=event.ts)
    for to in ("active", "failed", "retained"):
        store.log(ID).append("life.moved", {"to": to}, ts=at(1))

    site.clock.advance(days=900)
    assert site.engine.sweep() == []
    report = site.engine.recover()
    assert (report.removed, report.problems) == ([], [])
    assert (workspace / "work.txt").read_text() == "unsaved\n"
    assert [one.id for one in site.engine.records.query()] == [ID]
    assert view(site.events(ID), "botminter")["current_state"] == "Retained"
