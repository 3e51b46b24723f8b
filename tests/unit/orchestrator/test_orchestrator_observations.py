"""What was seen of a session from outside, added up; and what its agent may say of itself."""

from __future__ import annotations

from typing import Any

import pytest
from support.life import Lived
from support.orchestrator import CREATED, NOW, Watched, at

from pytest_gittrix.errors import LogDamaged
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.agent_reports import REPORTS, RESERVED, check_report, counts, report_named
from pytest_gittrix.record.state.observations import (
    SESSION_REASONS,
    SESSION_STATES,
    Activity,
    AgentReport,
    Memory,
    Observations,
    ObservedPullRequest,
    Phase,
    Runtime,
    ended_as,
    observations_of,
    pull_request_at,
)
from pytest_gittrix.views import state_in

SECOND = 1_000_000_000


# How far it is -----------------------------------------------------------------------------------------------------------------


def test_a_session_of_a_project_is_started_until_somebody_decides() -> None:
    session = Watched()

    assert session.observations.session == Phase(of_project=True, changed_ns=NOW)
    assert session.observations.runtime == Runtime(reason="spawn_incomplete")
    session.decided(1, "working", "agent_acknowledged")
    assert session.observations.session == Phase("working", "agent_acknowledged", of_project=True, changed_ns=at(1), started_ns=at(1))


def test_any_other_session_works_as_soon_as_its_workspace_is_there() -> None:
    assert Watched(project=None).observations.session == Phase("working", "task_in_progress", changed_ns=NOW, started_ns=NOW)


def test_an_orchestrator_works_from_the_start() -> None:
    session = Watched(role="orchestrator")

    assert observations_of(session.events[:1]).session.state == "working"
    assert session.observations.session.kind == "orchestrator"


@pytest.mark.parametrize(
    ("state", "outcome", "comes_to"),
    [
        ("expired", None, ("terminated", "auto_cleanup")),
        ("discarded", None, ("terminated", "manually_killed")),
        ("discarded", "killed", ("terminated", "manually_killed")),
        ("discarded", "crash", ("terminated", "runtime_lost")),
        ("discarded", "done", ("done", "research_complete")),
        ("discarded", "handoff", ("done", "research_complete")),
        ("promoted", None, ("done", "research_complete")),
    ],
)
def test_every_end_of_a_session_is_an_end_here(state: str, outcome: str | None, comes_to: tuple[str, str]) -> None:
    session = Watched()
    session.tell(3, "session.ended", state=state, **({} if outcome is None else {"outcome": outcome}))

    assert (session.observations.session.state, session.observations.session.reason) == comes_to == ended_as(state, outcome)
    assert session.observations.session.over
    assert (session.observations.session.completed_ns or session.observations.session.terminated_ns) == at(3)


def test_an_imported_session_is_as_its_record_says() -> None:
    for state, expected in (("active", "working"), ("promoted", "done"), ("expired", "terminated")):
        event = Event(0, NOW, "s", "session.imported", "system", {"metadata": {"state": state}})
        assert observations_of([event]).session.state == expected


def test_a_promotion_without_a_pull_request_ends_the_session_and_one_with_it_waits() -> None:
    promoted = {"commit": "c" * 40, "ref": "refs/heads/main", "branch": "main", "strategy": "commit"}
    done, waiting = Watched(), Watched()
    done.tell(1, "promote.done", **promoted)
    waiting.tell(1, "promote.done", **promoted, pr_url="https://github.com/acme/app/pull/7")
    waiting.tell(1, "session.ended", state="promoted")

    assert done.observations.session.state == "done"
    assert (waiting.observations.session.state, waiting.observations.session.reason) == ("idle", "pr_created")
    assert waiting.observations.pr == pull_request_at("https://github.com/acme/app/pull/7")


def test_nothing_but_a_restoring_moves_a_session_that_is_over() -> None:
    session = Watched()
    session.decided(1, "terminated", "manually_killed")
    over = session.observations.session
    session.decided(2, "working")
    session.tell(3, "session.ended", state="expired")
    session.tell(4, "promote.done", commit="c", ref="r", branch="b", strategy="commit")
    assert session.observations.session == over

    session.tell(5, "session.restored")
    assert (session.observations.session.state, session.observations.session.terminated_ns, session.observations.session.restored_ns) == (
        "working",
        None,
        at(5),
    )


def test_what_was_started_once_is_not_being_started_again() -> None:
    session = Watched()
    session.decided(1, "working")
    session.decided(2, "not_started", "spawn_requested")

    assert session.observations.session.state == "working"


def test_a_restoring_forgets_what_was_seen_and_an_ended_pull_request() -> None:
    session = Watched()
    session.tell(1, "runtime.observed", state="missing")
    session.tell(1, "activity.observed", state="exited", source="native")
    session.tell(1, "report.submitted", report="completed", accepted=True)
    session.tell(1, "pr.observed", state="merged", number=7)
    session.decided(2, "detecting", "probe_failure", evidence="e", attempts=1)
    session.tell(3, "session.restored")

    assert session.observations == Observations(
        session=session.observations.session, pr=ObservedPullRequest(cleared=True), runtime=Runtime(reason="spawn_incomplete")
    )
    assert session.observations.pr.reason == "cleared_on_restore"


def test_a_restoring_keeps_a_pull_request_that_is_open() -> None:
    session = Watched()
    session.tell(1, "pr.observed", state="open", number=7)
    session.decided(2, "terminated", "manually_killed")
    session.tell(3, "session.restored")

    assert (session.observations.pr.state, session.observations.pr.number) == ("open", 7)


def test_what_was_before_disagreement_and_since_when_is_remembered_until_it_is_over() -> None:
    session = Watched()
    session.decided(1, "needs_input", "awaiting_user_input")
    session.decided(2, "detecting", "probe_failure", evidence="a", attempts=1)
    session.decided(3, "detecting", "runtime_lost", evidence="b", attempts=1)
    assert session.observations.memory == Memory(1, "b", at(2))
    assert session.observations.session.before == ("needs_input", "awaiting_user_input")
    assert session.observations.session.changed_ns == at(2)

    session.decided(4, "working")
    assert session.observations.memory is None
    assert session.observations.session.before is None


# What was seen -----------------------------------------------------------------------------------------------------------------


def test_what_was_seen_last_counts() -> None:
    session = Watched()
    session.tell(1, "runtime.observed", state="alive", pid=7, start_time=12, source="process")
    session.tell(2, "activity.observed", state="idle", source="native", observed_ns=at(1), detail="d")

    assert session.observations.runtime == Runtime("alive", 7, 12, source="process", seen_ns=at(1))
    assert session.observations.activity == Activity("idle", "native", at(1), "d", at(2))
    session.tell(3, "runtime.observed", state="exited", exit_code=3)
    assert session.observations.runtime == Runtime("exited", exit_code=3, seen_ns=at(3))
    assert session.observations.runtime.gone


def test_of_a_pull_request_what_is_not_told_is_as_it_was() -> None:
    session = Watched()
    session.tell(1, "pr.observed", state="open", number=7, title="Mend it", owner="acme", repo="app", draft=True)
    session.tell(2, "pr.observed", state="open", ci="passing", draft=False)

    assert session.observations.pr == ObservedPullRequest("open", 7, title="Mend it", owner="acme", repo="app", ci="passing")


def test_another_pull_request_is_another() -> None:
    session = Watched()
    session.tell(1, "pr.observed", state="closed", number=7, title="Mend it", ci="failing")
    session.tell(2, "pr.observed", state="open", number=8)
    assert session.observations.pr == ObservedPullRequest("open", 8)

    session.tell(3, "pr.observed", state="none")
    assert session.observations.pr == ObservedPullRequest()


def test_a_merged_pull_request_stays_merged() -> None:
    session = Watched()
    session.tell(1, "pr.observed", state="merged", number=7)
    for state in ("open", "closed", "none"):
        session.tell(2, "pr.observed", state=state, number=8)
    session.decided(3, "stuck", "probe_failure")

    assert (session.observations.pr.state, session.observations.pr.number) == ("merged", 7)
    assert session.observations.session.state == "not_started"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, "in_progress"),
        ({"ci": "failing", "review": "changes_requested", "mergeable": True}, "ci_failing"),
        ({"review": "changes_requested", "mergeable": True}, "changes_requested"),
        ({"review": "approved", "mergeable": True}, "merge_ready"),
        ({"review": "none", "mergeable": True}, "merge_ready"),
        ({"review": "approved", "mergeable": True, "ci": "pending"}, "approved"),
        ({"review": "none", "mergeable": True, "ci": "pending"}, "in_progress"),
        ({"review": "none", "mergeable": True, "draft": True}, "in_progress"),
        ({"review": "approved"}, "approved"),
        ({"review": "pending", "mergeable": True}, "review_pending"),
    ],
)
def test_an_open_pull_request_has_one_reason(facts: dict[str, Any], reason: str) -> None:
    assert ObservedPullRequest("open", **facts).reason == reason


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("https://github.com/acme/app/pull/7", ("acme", "app", 7)),
        ("https://github.com/acme/app/pull/7/files?w=1", ("acme", "app", 7)),
        ("http://127.0.0.1:8080/api/repos/acme/app/pulls/12", ("acme", "app", 12)),
        ("https://gitlab.com/group/acme/app/-/merge_requests/3", ("acme", "app", 3)),
        ("https://github.com/acme/app", (None, None, None)),
        ("nonsense", (None, None, None)),
    ],
)
def test_an_address_tells_what_it_tells(url: str, known: tuple[Any, ...]) -> None:
    pr = pull_request_at(url)

    assert (pr.state, pr.url) == ("open", url)
    assert (pr.owner, pr.repo, pr.number) == known


def test_a_number_that_is_none_a_forge_could_give_is_not_known() -> None:
    pr = pull_request_at(f"https://github.com/acme/app/pull/{'9' * 5000}")

    assert (pr.state, pr.number, pr.owner) == ("open", None, None)


def test_what_no_observation_is_made_of_is_damage() -> None:
    for type, data in [
        ("pr.observed", {}),
        ("pr.observed", {"state": "open", "number": "7"}),
        ("pr.observed", {"state": "open", "number": True}),
        ("pr.observed", {"state": "open", "draft": "no"}),
        ("pr.observed", {"state": "open", "owner": ["acme"]}),
        ("pr.observed", {"state": "open", "colour": "red"}),
        ("activity.observed", {"state": "active"}),
        ("activity.observed", {"state": "active", "source": "rumour"}),
        ("activity.observed", {"state": "active", "source": "native", "observed_ns": "now"}),
        ("runtime.observed", {"state": "alive", "pid": "7"}),
        ("report.submitted", {"report": "working"}),
        ("status.decided", {"session": "detecting", "reason": "probe_failure", "attempts": "three"}),
        ("session.ended", {}),
    ]:
        with pytest.raises(LogDamaged, match="Event 2 of session 'app-1' is"):
            observations_of([*Watched().events, Event(2, at(1), "app-1", type, "system", data)])


@pytest.mark.parametrize(
    ("moves", "status"),
    [
        ((), "spawning"),
        (("active",), "working"),
        (("active", "finalizing"), "working"),
        (("active", "killed"), "killed"),
        (("active", "failed"), "errored"),
        (("active", "finalizing", "completed"), "done"),
        (("active", "killed", "retained"), "killed"),
        (("active", "completed", "retained", "finalizing"), "done"),
        (("active", "failed", "retained", "removed"), "errored"),
    ],
)
def test_the_life_of_a_member_is_followed(moves: tuple[str, ...], status: str) -> None:
    lived = Lived(*moves)

    assert state_in(lived.events, "orchestrator") == status


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("runtime.observed", {"state": "asleep"}),
        ("activity.observed", {"state": "unknown", "source": "native"}),
        ("pr.observed", {"state": "draft"}),
        ("pr.observed", {"state": "open", "ci": "green"}),
        ("pr.observed", {"state": "open", "review": "fine"}),
        ("status.decided", {"session": "bored", "reason": "task_in_progress"}),
        ("status.decided", {"session": "working", "reason": "because"}),
    ],
)
def test_what_cannot_be_seen_is_damage(type: str, data: dict[str, Any]) -> None:
    session = Watched()
    session.tell(1, type, **data)

    with pytest.raises(LogDamaged, match=r"Event 2 of session 'app-1' is .* with the unknown"):
        _ = session.observations


def test_axes_folded_in_two_pieces_are_the_same() -> None:
    session = Watched()
    session.look(1, "alive", Activity("active", "native", at(1)))
    session.look(2, "missing")
    session.tell(3, "pr.observed", state="merged", number=7)
    session.look(4)
    session.tell(5, "session.restored")

    for cut in range(len(session.events) + 1):
        assert observations_of(session.events[cut:], observations_of(session.events[:cut])) == session.observations


def test_a_session_without_a_birth_is_as_if_nothing_was_known() -> None:
    assert observations_of([]) == Observations()
    assert observations_of([Event(0, NOW, "s", "session.created", "human", CREATED)]).session.of_project is False


# What the agent says -----------------------------------------------------------------------------------------------------------


def test_only_a_report_that_was_accepted_counts() -> None:
    session = Watched()
    session.tell(1, "report.submitted", report="working", accepted=True, note="half way")
    session.tell(2, "report.submitted", report="completed", accepted=False, reason="no")

    assert session.observations.report == AgentReport("working", at(1), "half way")


def test_every_report_leads_to_a_state_that_there_is_and_to_no_end() -> None:
    for state, reason in REPORTS.values():
        assert state in SESSION_STATES
        assert reason in SESSION_REASONS
        assert not Phase(state).over


@pytest.mark.parametrize("report", REPORTS)
def test_a_worker_may_report_of_itself(report: str) -> None:
    assert check_report(Watched().observations, report) is None
    assert check_report(Watched().observations, report, "worker") is None


@pytest.mark.parametrize("report", sorted(RESERVED))
def test_what_is_seen_cannot_be_declared(report: str) -> None:
    assert "cannot declare" in str(check_report(Watched().observations, report))


def refused(observations: Observations, role: str | None = None) -> str:
    """Why ``working`` is refused."""
    return str(check_report(observations, "working", role))


def test_a_report_is_refused_with_the_reason() -> None:
    assert "no report 'dancing'" in str(check_report(Observations(), "dancing"))
    assert "orchestrator" in refused(Observations(), "orchestrator")
    assert "orchestrator" in refused(Watched(role="orchestrator").observations, "worker")
    assert refused(Observations(Phase("done"))) == "The session is done."
    assert refused(Observations(Phase("terminated"))) == "The session is terminated."
    assert refused(Observations(pr=ObservedPullRequest("merged"))) == "Its pull request is merged."
    assert refused(Observations(pr=ObservedPullRequest("closed"))) == "Its pull request is closed."
    assert refused(Observations(runtime=Runtime("missing"))) == "Its runtime is missing."
    assert refused(Observations(runtime=Runtime("exited"))) == "Its runtime is exited."


def test_after_a_closed_pull_request_another_one_can_be_reported() -> None:
    taken = {report for report in REPORTS if check_report(Observations(pr=ObservedPullRequest("closed")), report) is None}

    assert taken == {"pr_created", "draft_pr_created", "ready_for_review"}


@pytest.mark.parametrize(
    ("text", "name"),
    [("working", "working"), (" Needs-Input ", "needs_input"), ("ci", "fixing_ci"), ("start", "started"), ("done", None), ("", None)],
)
def test_a_report_has_short_names(text: str, name: str | None) -> None:
    assert report_named(text) == name


@pytest.mark.parametrize(("age", "fresh"), [(0, True), (299, True), (300, False), (-60, True), (-61, False)])
def test_a_report_counts_for_five_minutes(age: int, fresh: bool) -> None:
    assert counts(NOW - age * SECOND, NOW) is fresh
