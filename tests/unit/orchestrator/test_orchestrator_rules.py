"""One status for whatever was seen, and what is made of it: rule by rule, and on timelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from support.orchestrator import NOW, SECOND, Watched, at, does

from pytest_gittrix.record.state.observations import (
    ACTIVITIES,
    CI_STATES,
    PR_STATES,
    REVIEW_STATES,
    RUNTIME_STATES,
    SESSION_REASONS,
    SESSION_STATES,
    Activity,
    Observations,
    ObservedPullRequest,
    Phase,
    Runtime,
)
from pytest_gittrix.views.orchestrator_status import (
    HEAD_LEGAL,
    HEAD_STATUSES,
    LEGAL,
    NON_RESTORABLE_STATUSES,
    STATUSES,
    TERMINAL_ACTIVITIES,
    TERMINAL_STATUSES,
    Decision,
    Dialect,
    PollResult,
    can_restore,
    decide,
    ended,
    fingerprint,
    is_restorable,
    is_terminal,
    shows_life,
    signal,
    status,
    strength,
    to_poll,
)

DIALECTS: tuple[Dialect, ...] = ("document", "head")
OPEN = {"ci_failed", "changes_requested", "review_pending", "approved", "mergeable", "pr_open"}


def sessions() -> Iterator[Phase]:
    """Every state with every reason; one that is detecting with everything it can have been before."""
    for state, reason in product(SESSION_STATES, SESSION_REASONS):
        if state != "detecting":
            yield Phase(state, reason)
        else:
            yield from (Phase(state, reason, before=(old, reason)) for old in ("not_started", "working", "idle", "needs_input", "stuck"))
            yield Phase(state, reason)


def pull_requests() -> Iterator[ObservedPullRequest]:
    """Every state, with every check, review, mergeability and draft."""
    for state, ci, review, mergeable, draft in product(PR_STATES, CI_STATES, REVIEW_STATES, (False, True), (False, True)):
        yield ObservedPullRequest(state, ci=ci, review=review, mergeable=mergeable, draft=draft)


# The status --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_combination_of_the_axes_has_one_status(dialect: Dialect) -> None:
    statuses = set(STATUSES if dialect == "document" else HEAD_STATUSES)
    prs = list(pull_requests())
    reached = set()
    for session in sessions():
        state = session.state
        if state == "detecting" and dialect == "document":
            state = session.before[0] if session.before else "working"
        for pr in prs:
            found = status(Observations(session, pr), dialect=dialect)
            at_pr = state in ("working", "idle")
            assert (found in OPEN) == (at_pr and pr.state == "open")
            assert (found == "merged") == (at_pr and pr.state == "merged")
            assert (found in TERMINAL_STATUSES) == (state in ("done", "terminated") or found == "merged")
            assert (found == "spawning") == (state == "not_started")
            reached.add(found)
    assert reached == statuses


@pytest.mark.parametrize("dialect", DIALECTS)
def test_neither_the_runtime_nor_the_activity_makes_a_status(dialect: Dialect) -> None:
    for session, pr in product(map(Phase, SESSION_STATES), map(ObservedPullRequest, PR_STATES)):
        seen = {
            status(Observations(session, pr, Runtime(runtime), Activity(activity)), dialect=dialect)
            for runtime, activity in product(RUNTIME_STATES, (*ACTIVITIES, "unknown"))
        }
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("session", "pr", "document", "head"),
    [
        (Phase(), ObservedPullRequest("open"), "spawning", "spawning"),
        (Phase("working"), ObservedPullRequest(), "working", "working"),
        (Phase("idle"), ObservedPullRequest(), "working", "idle"),
        (Phase("idle"), ObservedPullRequest("closed"), "working", "idle"),
        (Phase("needs_input"), ObservedPullRequest("merged"), "needs_input", "needs_input"),
        (Phase("stuck"), ObservedPullRequest("open"), "stuck", "stuck"),
        (Phase("done"), ObservedPullRequest("merged"), "done", "done"),
        (Phase("detecting"), ObservedPullRequest(), "working", "detecting"),
        (Phase("detecting", before=("idle", "pr_created")), ObservedPullRequest("open", ci="failing"), "ci_failed", "detecting"),
        (Phase("detecting", before=("needs_input", "awaiting_user_input")), ObservedPullRequest(), "needs_input", "detecting"),
        (Phase("detecting", before=("not_started", "spawn_requested")), ObservedPullRequest(), "spawning", "detecting"),
        (Phase("terminated", "manually_killed"), ObservedPullRequest(), "killed", "killed"),
        (Phase("terminated", "runtime_lost"), ObservedPullRequest("merged"), "errored", "killed"),
        (Phase("terminated", "auto_cleanup"), ObservedPullRequest(), "cleanup", "cleanup"),
        (Phase("terminated", "pr_merged"), ObservedPullRequest("merged"), "cleanup", "cleanup"),
        (Phase("terminated", "error_in_process"), ObservedPullRequest(), "errored", "errored"),
        (Phase("terminated", "probe_failure"), ObservedPullRequest(), "errored", "errored"),
        (Phase("terminated", "agent_process_exited"), ObservedPullRequest(), "terminated", "terminated"),
        (Phase("working"), ObservedPullRequest("merged"), "merged", "merged"),
        (Phase("working"), ObservedPullRequest("open"), "pr_open", "pr_open"),
        (Phase("working"), ObservedPullRequest("open", ci="failing", review="approved"), "ci_failed", "ci_failed"),
        (Phase("idle"), ObservedPullRequest("open", review="changes_requested"), "changes_requested", "changes_requested"),
        (Phase("idle"), ObservedPullRequest("open", review="pending"), "review_pending", "review_pending"),
        (Phase("idle"), ObservedPullRequest("open", review="approved"), "approved", "approved"),
        (Phase("idle"), ObservedPullRequest("open", review="approved", mergeable=True), "mergeable", "mergeable"),
    ],
)
def test_the_status_is_the_documented_one(session: Phase, pr: ObservedPullRequest, document: str, head: str) -> None:
    assert (status(Observations(session, pr)), status(Observations(session, pr), dialect="head")) == (document, head)


# Ends --------------------------------------------------------------------------------------------------------------------------


def test_the_ends_are_the_documented_ones() -> None:
    assert {"killed", "terminated", "done", "cleanup", "errored", "merged"} == TERMINAL_STATUSES
    assert {"exited"} == TERMINAL_ACTIVITIES
    assert {"document": {"merged"}, "head": set()} == NON_RESTORABLE_STATUSES


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_over_can_be_restored_unless_it_is_merged(dialect: Dialect) -> None:
    for name, activity in product(HEAD_STATUSES, (*ACTIVITIES, None)):
        over = name in TERMINAL_STATUSES or activity == "exited"
        assert is_terminal(name, activity) is over
        assert is_restorable(name, activity, dialect=dialect) is (over and (name != "merged" or dialect == "head"))


def test_the_newest_code_asks_the_axes_and_not_the_activity() -> None:
    for state, pr, runtime, activity in product(SESSION_STATES, PR_STATES, RUNTIME_STATES, (*ACTIVITIES, "unknown")):
        observations = Observations(Phase(state), ObservedPullRequest(pr), Runtime(runtime), Activity(activity))
        expected = state in ("done", "terminated") or pr == "merged" or runtime in ("missing", "exited")
        assert ended(observations, dialect="head") is expected
        assert can_restore(observations, dialect="head") is expected
        assert ended(observations) is is_terminal(status(observations), activity)
        assert can_restore(observations) is is_restorable(status(observations), activity)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_over_is_never_polled_but_once_for_its_end(dialect: Dialect) -> None:
    for state, pr, runtime, activity in product(SESSION_STATES, PR_STATES, RUNTIME_STATES, (*ACTIVITIES, "unknown")):
        observations = Observations(Phase(state), ObservedPullRequest(pr), Runtime(runtime), Activity(activity))
        now = status(observations, dialect=dialect)
        over = ended(observations, dialect=dialect)
        assert to_poll(observations, None, dialect=dialect) is not over
        assert to_poll(observations, now, dialect=dialect) is not over
        assert to_poll(observations, "some other", dialect=dialect)


@pytest.mark.parametrize(("legal", "statuses"), [(LEGAL, STATUSES), (HEAD_LEGAL, HEAD_STATUSES)])
def test_what_may_follow_is_told_for_every_status(legal: dict[str, frozenset[str]], statuses: tuple[str, ...]) -> None:
    assert legal.keys() == set(statuses)
    for name, after in legal.items():
        assert name not in after
        assert "spawning" not in after
        assert after <= set(statuses)
        assert after & TERMINAL_STATUSES == (TERMINAL_STATUSES - {name} if name not in TERMINAL_STATUSES - {"merged"} else set())


def test_only_the_newest_code_lets_work_follow_a_merge() -> None:
    assert "working" not in LEGAL["merged"]
    assert "working" in HEAD_LEGAL["merged"]
    assert all("working" in LEGAL[name] for name in TERMINAL_STATUSES - {"merged"})


# What is seen, and its worth ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "worth"),
    [
        (0, "strong"),
        (60, "strong"),
        (60.001, "weak"),
        (300, "weak"),
        (300.001, "stale"),
        (-5, "strong"),
        (-5.001, "stale"),
        (None, "stale"),
    ],
)
def test_evidence_grows_old(age: float | None, worth: str) -> None:
    assert strength(None if age is None else NOW - round(age * SECOND), NOW) == worth


@pytest.mark.parametrize(
    ("activity", "worth", "life"),
    [
        (does("active", 0), "valid", True),
        (does("ready", -4), "valid", True),
        (does("active", -6), "stale", False),
        (does("active"), "stale", False),
        (does("idle", -60), "valid", False),
        (does("idle"), "stale", False),
        (does("blocked"), "stale", False),
        (does("waiting_input"), "valid", False),
        (does("exited"), "valid", False),
        (Activity(source="native"), "null", False),
        (Activity(), "unavailable", False),
        (Activity("active", "native", NOW, failed=True), "probe_failure", False),
    ],
)
def test_an_activity_is_worth_what_it_is(activity: Activity, worth: str, life: bool) -> None:
    assert (signal(activity, NOW), shows_life(activity, NOW)) == (worth, life)


def test_a_fingerprint_is_short_and_tells_apart() -> None:
    assert fingerprint("a") != fingerprint("b")
    assert fingerprint("a") == "ca978112ca1b"


# Rule by rule ------------------------------------------------------------------------------------------------------------------

WORKING = Observations(Phase("working", "task_in_progress"))


def verdict(observations: Observations, now_ns: int = NOW, **seen: Any) -> tuple[str, str]:
    """State and reason."""
    found = decide(observations, PollResult(**seen), now_ns)
    return found.session, found.reason


@pytest.mark.parametrize(
    "observations",
    [Observations(Phase("done", "research_complete")), Observations(Phase("terminated", "manually_killed"))],
)
def test_what_is_over_stays_so(observations: Observations) -> None:
    found = decide(observations, PollResult(Runtime("alive"), does("active", 0), ObservedPullRequest("merged")), NOW)

    assert (found.session, found.reason, found.changed) == (observations.session.state, observations.session.reason, False)


def test_a_merged_pull_request_ends_it_whatever_else_is_seen() -> None:
    for activity in (does("waiting_input"), does("active", 0), Activity(failed=True)):
        assert verdict(WORKING, runtime=Runtime("missing"), activity=activity, pr=ObservedPullRequest("merged")) == (
            "idle",
            "merged_waiting_decision",
        )


def test_a_merge_that_was_seen_is_not_unseen() -> None:
    merged = replace(WORKING, pr=ObservedPullRequest("merged"))

    assert verdict(merged, pr=ObservedPullRequest("open"), activity=does("active", 0)) == ("idle", "merged_waiting_decision")


def test_a_question_needs_input_unless_nobody_is_there_to_answer() -> None:
    assert verdict(WORKING, activity=does("waiting_input")) == ("needs_input", "awaiting_user_input")
    assert verdict(WORKING, runtime=Runtime("probe_failed"), activity=does("waiting_input"))[0] == "needs_input"
    assert verdict(WORKING, runtime=Runtime("missing"), activity=does("waiting_input")) == ("detecting", "runtime_lost")


@pytest.mark.parametrize(
    ("runtime", "activity", "comes_to"),
    [
        ("probe_failed", None, ("detecting", "probe_failure")),
        ("probe_failed", does("active", 0), ("detecting", "probe_failure")),
        ("alive", Activity(failed=True), ("detecting", "probe_failure")),
        ("missing", does("active", 0), ("detecting", "runtime_lost")),
        ("exited", does("active", 0), ("detecting", "runtime_lost")),
        ("missing", None, ("detecting", "runtime_lost")),
        ("missing", does("idle", -60), ("detecting", "runtime_lost")),
        ("alive", does("exited"), ("detecting", "agent_process_exited")),
        ("missing", does("exited"), ("terminated", "runtime_lost")),
        ("exited", None, ("terminated", "runtime_lost")),
        ("exited", does("active", -6), ("terminated", "runtime_lost")),
        ("exited", does("waiting_input"), ("terminated", "runtime_lost")),
        ("alive", None, ("working", "task_in_progress")),
        ("unknown", does("exited"), ("working", "task_in_progress")),
    ],
)
def test_what_ran_the_agent_is_lost_only_when_all_agree(runtime: str, activity: Activity | None, comes_to: tuple[str, str]) -> None:
    assert verdict(WORKING, runtime=Runtime(runtime), activity=activity) == comes_to


@pytest.mark.parametrize("state", ["stuck", "needs_input"])
def test_who_cannot_be_seen_stays_stuck_or_asking(state: str) -> None:
    assert verdict(Observations(Phase(state, "awaiting_user_input")), activity=Activity(failed=True)) == (
        state,
        "awaiting_user_input",
    )


@pytest.mark.parametrize("runtime", ["unknown", "missing", "probe_failed"])
def test_who_is_being_started_need_not_be_there_yet(runtime: str) -> None:
    assert verdict(Observations(), runtime=Runtime(runtime)) == ("not_started", "spawn_requested")
    assert verdict(Observations(), runtime=Runtime("exited")) == ("terminated", "runtime_lost")
    assert verdict(Observations(), runtime=Runtime("alive")) == ("working", "task_in_progress")


@pytest.mark.parametrize(
    ("pr", "comes_to"),
    [
        (ObservedPullRequest("closed"), ("idle", "pr_closed_waiting_decision")),
        (ObservedPullRequest("open", ci="failing"), ("working", "fixing_ci")),
        (ObservedPullRequest("open", review="changes_requested"), ("working", "resolving_review_comments")),
        (ObservedPullRequest("open", review="none", mergeable=True), ("idle", "awaiting_external_review")),
        (ObservedPullRequest("open", review="approved"), ("idle", "awaiting_external_review")),
        (ObservedPullRequest("open", review="pending"), ("idle", "awaiting_external_review")),
        (ObservedPullRequest("open"), ("idle", "pr_created")),
    ],
)
def test_the_pull_request_says_more_than_the_agent(pr: ObservedPullRequest, comes_to: tuple[str, str]) -> None:
    session = Watched()
    session.tell(0, "report.submitted", report="needs_input", accepted=True)

    assert verdict(session.observations, pr=pr, activity=does("active", 0)) == comes_to


def test_an_open_pull_request_that_nobody_works_on_is_stuck() -> None:
    assert verdict(WORKING, pr=ObservedPullRequest("open"), activity=does("idle", -10)) == ("stuck", "probe_failure")
    assert verdict(WORKING, pr=ObservedPullRequest("open", review="pending"), activity=does("idle", -10))[0] == "idle"


@pytest.mark.parametrize(("age", "comes_to"), [(4.99, "needs_input"), (5, "working"), (-1, "needs_input"), (-1.01, "working")])
def test_a_fresh_report_is_believed(age: float, comes_to: str) -> None:
    session = Watched()
    session.decided(0, "working")
    session.tell(20, "report.submitted", report="needs_input", accepted=True)

    assert verdict(session.observations, at(20 + age), activity=does("active", 20 + age))[0] == comes_to


@pytest.mark.parametrize(
    ("activity", "comes_to"),
    [
        (does("idle", -10), ("stuck", "probe_failure")),
        (does("blocked", -10), ("stuck", "error_in_process")),
        (does("idle", -9.99), ("working", "task_in_progress")),
        (does("idle"), ("working", "task_in_progress")),
        (does("active", -10), ("working", "task_in_progress")),
    ],
)
def test_ten_minutes_of_rest_are_too_many(activity: Activity, comes_to: tuple[str, str]) -> None:
    assert verdict(WORKING, activity=activity) == comes_to


def test_who_has_completed_may_rest() -> None:
    assert verdict(Observations(Phase("idle", "research_complete")), activity=does("idle", -60)) == ("idle", "research_complete")


@pytest.mark.parametrize("state", ["not_started", "stuck", "needs_input"])
def test_only_a_fresh_sign_of_life_brings_back_to_work(state: str) -> None:
    before = Observations(Phase(state, "awaiting_user_input"))

    assert verdict(before, activity=does("active", -1)) == ("working", "task_in_progress")
    for weak in (does("active", -1.01), does("active"), does("idle", -1), Activity(), does("active", 0.1)):
        assert verdict(before, activity=weak) == (state, "awaiting_user_input")


def test_what_is_no_news_is_not_recorded() -> None:
    assert not decide(WORKING, PollResult(activity=does("active", 0)), NOW).changed
    assert decide(WORKING, PollResult(activity=does("waiting_input", 0)), NOW).changed
    assert Decision("detecting", "probe_failure", "x", "e", 2).to_data() == {
        "session": "detecting",
        "reason": "probe_failure",
        "evidence": "e",
        "attempts": 2,
    }


def test_what_was_seen_before_counts_where_nobody_looks() -> None:
    seen = replace(WORKING, runtime=Runtime("missing"), activity=does("exited"))

    assert verdict(seen) == ("terminated", "runtime_lost")
