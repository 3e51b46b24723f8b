"""One session, read as agent-orchestrator reads its own: the record, what is told of changes, and what is done about that."""

from __future__ import annotations

import pytest
from support.engine import Site
from support.orchestrator import Watched, at, does

from pytest_gittrix.record.state.observations import Activity, Observations, ObservedPullRequest, Phase
from pytest_gittrix.views import orchestrator, state_in, view
from pytest_gittrix.views.orchestrator import (
    EVENTS,
    PRIORITIES,
    REACTIONS,
    Notice,
    activity_at,
    event_of,
    notifications,
    priority_of,
    reaction_of,
    record,
)
from pytest_gittrix.views.orchestrator_status import HEAD_STATUSES, LEGAL, STATUSES

FILES = {"app.py": "v1\n"}

FIELDS = [
    *("id", "projectId", "status", "activity", "branch", "issueId", "pr", "workspacePath", "runtimeHandle", "agentInfo"),
    *("createdAt", "lastActivityAt", "metadata"),
]


# The record --------------------------------------------------------------------------------------------------------------------


def test_a_session_of_the_engine_has_every_documented_field(site: Site) -> None:
    session = site.start(project="app", issue="#42", topic_branch="session/app-1", runtime="process")
    site.clock.advance(minutes=1)
    session.write("app.py", "v2\n")

    assert view(session.history(), "orchestrator") == {
        "id": session.id,
        "projectId": "app",
        "status": "spawning",
        "activity": None,
        "branch": "session/app-1",
        "issueId": "#42",
        "pr": None,
        "workspacePath": str(session.workspace_path),
        "runtimeHandle": None,
        "agentInfo": None,
        "createdAt": "2030-01-01T00:00:00.000Z",
        "lastActivityAt": "2030-01-01T00:01:00.000Z",
        "metadata": {},
    }


def test_a_session_that_was_seen_says_what_was_seen() -> None:
    session = Watched(issue="#42", agent="claude", agent_session="uuid-1")
    session.tell(1, "runtime.observed", state="alive", pid=7, start_time=12)
    session.tell(2, "activity.observed", state="active", source="native", observed_ns=at(2))
    session.tell(3, "pr.observed", state="open", number=9, url="https://github.com/acme/app/pull/9", title="Mend", owner="acme", repo="app")
    session.tell(4, "pr.observed", state="open", branch="session/app-1", base_branch="main", draft=True)
    session.tell(5, "report.submitted", report="working", accepted=True, note="half way")
    session.decided(6, "idle", "pr_created")
    row = record(session.events)

    assert [*row] == FIELDS
    assert row["pr"] == {
        "number": 9,
        "url": "https://github.com/acme/app/pull/9",
        "title": "Mend",
        "owner": "acme",
        "repo": "app",
        "branch": "session/app-1",
        "baseBranch": "main",
        "isDraft": True,
    }
    assert (row["status"], row["activity"], row["branch"]) == ("pr_open", "active", "session/app-1")
    assert row["runtimeHandle"] == {"id": "7", "runtimeName": "process", "data": {"pid": 7, "startTime": 12}}
    assert row["agentInfo"] == {"summary": None, "agentSessionId": "uuid-1"}
    assert row["lastActivityAt"] == "2030-01-01T00:02:00.000Z"
    assert row["metadata"] == {
        "agent": "claude",
        "agentReportedState": "working",
        "agentReportedAt": "2030-01-01T00:05:00.000Z",
        "agentReportedNote": "half way",
    }


def test_a_restored_session_says_when() -> None:
    session = Watched()
    session.decided(1, "terminated", "manually_killed")
    assert [*record(session.events)] == FIELDS

    session.tell(2, "session.restored")
    assert [*record(session.events)] == [*FIELDS[:-1], "restoredAt", "metadata"]
    assert record(session.events)["restoredAt"] == "2030-01-01T00:02:00.000Z"


def test_a_terminal_is_a_handle_too() -> None:
    session = Watched(tmux_session="app-1")

    assert record(session.events)["runtimeHandle"] == {"id": "app-1", "runtimeName": "tmux", "data": {}}


def test_what_the_agent_talked_about_stands_in_for_a_summary() -> None:
    session = Watched()
    session.tell(1, "user_message", text="Mend the login. " + "x" * 200)
    session.tell(2, "user_message", text="And test it")
    session.tell(3, "provider_usage", input_tokens=10, output_tokens=4, cost_usd=0.5)
    session.tell(4, "provider_usage", input_tokens=1, cost_usd=0.25)
    info = record(session.events)["agentInfo"]

    assert info["summary"].startswith("Mend the login. x")
    assert len(info["summary"]) == 120
    assert info["summaryIsFallback"] is True
    assert info["cost"] == {"inputTokens": 11, "outputTokens": 4, "estimatedCostUsd": 0.75}
    session.tell(5, "history_compaction", range={"to_seq": 3}, summary="The login is mended.")
    assert record(session.events)["agentInfo"]["summary"] == "The login is mended."
    assert "summaryIsFallback" not in record(session.events)["agentInfo"]


def test_an_activity_of_the_future_is_no_activity_of_the_future() -> None:
    session = Watched()
    session.tell(1, "activity.observed", state="active", source="native", observed_ns=at(500))

    assert record(session.events)["lastActivityAt"] == "2030-01-01T00:01:05.000Z"


@pytest.mark.parametrize(
    ("activity", "minute", "shown"),
    [
        (does("active", 0), 5, "active"),
        (does("active", 0), 5.1, "idle"),
        (does("ready", 0), 60, "idle"),
        (does("waiting_input", 0), 60, "waiting_input"),
        (does("exited", 0), 60, "exited"),
        (does("active"), 60, "active"),
        (does("active", 0), None, "active"),
        (Activity(), 0, None),
    ],
)
def test_who_was_active_long_ago_is_idle(activity: Activity, minute: float | None, shown: str | None) -> None:
    assert activity_at(activity, None if minute is None else at(minute)) == shown


def test_the_record_speaks_either_dialect() -> None:
    session = Watched()
    session.decided(1, "idle", "research_complete")

    assert (record(session.events)["status"], record(session.events, dialect="head")["status"]) == ("working", "idle")
    assert (state_in(session.events, "orchestrator"), orchestrator.state_in(session.events, dialect="head")) == ("working", "idle")


@pytest.mark.parametrize(
    ("end", "status"), [(None, "killed"), ("done", "done"), ("crash", "errored"), ("promote", "done"), ("expire", "cleanup")]
)
def test_every_end_in_the_engine_is_an_end_here(site: Site, end: str | None, status: str) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    assert state_in(session.history(), "orchestrator") == "working"
    if end == "promote":
        session.promote()
    elif end == "expire":
        site.clock.advance(days=1)
        site.engine.sweep()
    else:
        session.discard(end)
    events = site.events(session.id)

    assert state_in(events, "orchestrator") == status
    assert view(events, "orchestrator")["workspacePath"] is None
    assert status in LEGAL["working"]


def test_a_session_of_a_project_is_not_started_by_its_workspace(site: Site) -> None:
    assert state_in(site.start().history(), "orchestrator") == "working"
    assert state_in(site.start(project="app").history(), "orchestrator") == "spawning"


# What is told of a change ------------------------------------------------------------------------------------------------------


def axes_for(status: str) -> Observations:
    """Observations of a status of the newest dialect."""
    ends = {"killed": "manually_killed", "cleanup": "pr_merged", "errored": "probe_failure", "terminated": "agent_process_exited"}
    of_pr = {
        "pr_open": {},
        "ci_failed": {"ci": "failing"},
        "review_pending": {"review": "pending"},
        "changes_requested": {"review": "changes_requested"},
        "approved": {"review": "approved"},
        "mergeable": {"mergeable": True},
    }
    if status in ends:
        return Observations(Phase("terminated", ends[status]))
    if status in of_pr:
        return Observations(Phase("working"), ObservedPullRequest("open", **of_pr[status]))  # type: ignore[arg-type]
    if status == "merged":
        return Observations(Phase("idle"), ObservedPullRequest("merged"))
    return Observations(Phase("not_started" if status == "spawning" else status))


@pytest.mark.parametrize(
    ("status", "type", "priority"),
    [
        ("working", "session.working", "info"),
        ("pr_open", "pr.created", "info"),
        ("ci_failed", "ci.failing", "warning"),
        ("review_pending", "review.pending", "info"),
        ("changes_requested", "review.changes_requested", "warning"),
        ("approved", "review.approved", "action"),
        ("mergeable", "merge.ready", "action"),
        ("merged", "merge.completed", "action"),
        ("needs_input", "session.needs_input", "urgent"),
        ("stuck", "session.stuck", "urgent"),
        ("errored", "session.errored", "urgent"),
        ("killed", "session.killed", "info"),
    ],
)
def test_a_new_status_is_told_with_its_priority(status: str, type: str, priority: str) -> None:
    assert event_of(axes_for("spawning"), axes_for(status), dialect="head") == Notice(type, priority)
    assert event_of(axes_for(status), axes_for(status), dialect="head") is None


@pytest.mark.parametrize("status", ["spawning", "idle", "detecting", "done", "cleanup", "terminated"])
def test_of_some_statuses_nothing_is_told(status: str) -> None:
    assert event_of(axes_for("stuck"), axes_for(status), dialect="head") is None


def test_every_status_is_accounted_for() -> None:
    assert set(EVENTS) | {"spawning", "idle", "detecting", "done", "cleanup", "terminated"} == {*STATUSES, *HEAD_STATUSES}


def test_a_pull_request_that_was_closed_is_told_in_either_dialect() -> None:
    before = Observations(Phase("idle"), ObservedPullRequest("open"))
    after = Observations(Phase("idle"), ObservedPullRequest("closed"))

    for dialect in ("document", "head"):
        assert event_of(before, after, dialect=dialect) == Notice("pr.closed", "info")
        assert event_of(after, after, dialect=dialect) is None
    assert event_of(before, Observations(Phase("stuck"), ObservedPullRequest("closed"))) == Notice("session.stuck", "urgent")


@pytest.mark.parametrize(
    ("type", "priority"),
    [("summary.all_complete", "info"), ("merge.conflicts", "warning"), ("ci.fix_failed", "warning"), ("session.spawned", "info")],
)
def test_a_priority_follows_from_the_words(type: str, priority: str) -> None:
    assert priority_of(type) == priority
    assert priority in PRIORITIES


def test_what_is_done_about_it_is_the_documented_default() -> None:
    minute = 60_000_000_000
    reactions = {type: (one.key, one.action, one.auto, one.retries, one.after_ns) for type, one in REACTIONS.items()}

    assert reactions == {
        "ci.failing": ("ci-failed", "send-to-agent", True, 2, None),
        "review.changes_requested": ("changes-requested", "send-to-agent", True, None, 30 * minute),
        "automated_review.found": ("bugbot-comments", "send-to-agent", True, None, 30 * minute),
        "merge.conflicts": ("merge-conflicts", "send-to-agent", True, None, 15 * minute),
        "merge.ready": ("approved-and-green", "notify", False, None, None),
        "pr.closed": ("pr-closed", "notify", True, None, None),
        "session.stuck": ("agent-stuck", "notify", True, None, 10 * minute),
        "session.needs_input": ("agent-needs-input", "notify", True, None, None),
        "session.killed": ("agent-exited", "notify", True, None, None),
        "summary.all_complete": ("all-complete", "notify", True, None, None),
    }
    assert reaction_of(Notice("session.stuck", "urgent")) is REACTIONS["session.stuck"]
    assert reaction_of(Notice("session.working", "info")) is None


def test_everything_that_was_to_be_told_is_told_from_the_log() -> None:
    session = Watched()
    session.look(1, "alive", does("active", 1))
    session.look(2, "probe_failed")
    session.look(2.5, "alive", does("active", 2.5))
    session.tell(3, "pr.observed", state="open", number=7)
    session.look(3)
    session.tell(4, "pr.observed", state="closed", number=7)
    session.look(4)
    session.look(15, activity=does("idle", 4))
    session.decided(16, "terminated", "manually_killed")
    sent = list(notifications(session.events))

    assert [(one["type"], one["priority"], one["timestamp"][14:16]) for one in sent] == [
        ("session.working", "info", "01"),
        ("pr.created", "info", "03"),
        ("pr.closed", "info", "04"),
        ("session.killed", "info", "16"),
    ]
    assert sent[0].keys() == {"id", "type", "priority", "sessionId", "projectId", "timestamp", "message", "data"}
    assert {(one["sessionId"], one["projectId"]) for one in sent} == {("app-1", "app")}
    assert sent[-1]["data"] == {"oldStatus": "working", "newStatus": "killed"}
    assert len({one["id"] for one in sent}) == 4
    assert list(notifications(session.events)) == sent
