"""STA: the status of a session follows from what is observed of it (docs/explanation/you-know-agent-orchestrator.md)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, Final

from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.testing.scenarios.matrices import Combination, status_axes
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

STATUSES: Final = (
    *("spawning", "working", "pr_open", "ci_failed", "review_pending", "changes_requested", "approved", "mergeable", "merged"),
    *("cleanup", "needs_input", "stuck", "errored", "killed", "done", "terminated"),
)
OVER: Final = frozenset({"killed", "terminated", "done", "cleanup", "errored", "merged"})
ACTIVITIES: Final = (None, "active", "ready", "idle", "waiting_input", "blocked")
"""All but ``exited``, which is an end by itself."""

PULL_REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "pr_open": {"pr_state": "open", "ci": "pending"},
    "ci_failed": {"pr_state": "open", "ci": "failing", "review": "approved", "mergeable": True},
    "changes_requested": {"pr_state": "open", "ci": "passing", "review": "changes_requested", "mergeable": True},
    "review_pending": {"pr_state": "open", "ci": "passing", "review": "pending"},
    "approved": {"pr_state": "open", "ci": "passing", "review": "approved"},
    "mergeable": {"pr_state": "open", "ci": "passing", "review": "approved", "mergeable": True},
    "merged": {"pr_state": "merged"},
}
ENDS: Final[Mapping[str, tuple[str, str]]] = {
    "killed": ("terminated", "manually_killed"),
    "cleanup": ("terminated", "pr_merged"),
    "errored": ("terminated", "error_in_process"),
    "terminated": ("terminated", "agent_process_exited"),
    "done": ("done", "research_complete"),
}
AT_WORK: Final = {"after": 0, "runtime": "alive", "activity": "active"}


class StatusClauses(Clauses, needs=(Capability.STATUS,)):
    """Every combination of observations has one status, and contradictory ones are settled."""

    def test_sta_01_whatever_is_seen_there_is_one_status(self, stage: Stage) -> None:
        """Every combination of observations has one known status.

        Otherwise a board shows a session without a status as soon as an unexpected combination is observed.
        """
        statuses = {status_of(stage, one) for one in status_axes()}

        assert statuses <= {*STATUSES}

    def test_sta_02_the_same_sight_gives_the_same_status(self, stage: Stage) -> None:
        """The same observations give the same status. Otherwise the status of a session depends on the order of the observations."""
        some = status_axes()[::7]
        first = [status_of(stage, one) for one in some]

        assert [status_of(stage, one) for one in some[::-1]] == first[::-1]

    def test_sta_03_an_end_is_told_before_anything_else(self, stage: Stage) -> None:
        """An end takes precedence over everything else. Otherwise a killed session is shown as waiting for its review for ever."""
        for (status, (state, reason)), facts in product(ENDS.items(), ({}, *PULL_REQUESTS.values())):
            assert stage.gittrix.rules.of(session=state, reason=reason, **facts) == status, facts

    def test_sta_04_who_needs_a_person_is_told_before_a_pull_request(self, stage: Stage) -> None:
        """A need for a person takes precedence over a pull request.

        Otherwise a green tick hides the question of an agent, which stays unanswered.
        """
        for state, facts in product(("needs_input", "stuck"), ({}, *PULL_REQUESTS.values())):
            assert stage.gittrix.rules.of(session=state, reason="awaiting_user_input", **facts) == state, facts
        assert stage.gittrix.rules.of(session="not_started", reason="spawn_requested") == "spawning"

    def test_sta_05_a_pull_request_is_told_by_what_stops_it(self, stage: Stage) -> None:
        """A pull request has the status of what blocks it. Otherwise somebody is invited to merge a pull request whose checks fail."""
        rules = stage.gittrix.rules

        assert {status: rules.of(**facts) for status, facts in PULL_REQUESTS.items()} == {status: status for status in PULL_REQUESTS}
        assert rules.of(pr_state="closed") == rules.of() == "working"

    def test_sta_06_exactly_what_is_over_is_terminal(self, stage: Stage) -> None:
        """Exactly the ended statuses are terminal. Otherwise a running session is given up, or a dead one is waited for."""
        rules = stage.gittrix.rules

        assert {status for status in STATUSES if rules.is_terminal(status, None)} == OVER
        assert {status for status, activity in product(STATUSES, ACTIVITIES) if rules.is_terminal(status, activity)} == OVER
        assert all(rules.is_terminal(status, "exited") for status in STATUSES)

    def test_sta_07_what_is_over_can_be_restored_unless_it_is_merged(self, stage: Stage) -> None:
        """An ended session can be restored unless it is merged.

        Otherwise merged work is begun again, or a session that was killed by mistake is lost.
        """
        rules = stage.gittrix.rules

        for status, activity in product(STATUSES, (*ACTIVITIES, "exited")):
            expected = (status in OVER or activity == "exited") and status != "merged"
            assert rules.is_restorable(status, activity) == expected, (status, activity)

    def test_sta_08_what_is_over_is_not_looked_at_but_to_tell_its_end(self, stage: Stage) -> None:
        """An ended session is polled only until its end is reported.

        Otherwise dead sessions are polled for ever, or their end is never reported.
        """
        rules = stage.gittrix.rules

        for status, (state, reason) in ENDS.items():
            assert not rules.is_polled(status, session=state, reason=reason)
            assert rules.is_polled("working", session=state, reason=reason)
        assert not rules.is_polled("merged", pr_state="merged")
        assert all(rules.is_polled(status, **facts) for status, facts in PULL_REQUESTS.items() if status != "merged")

    def test_sta_09_one_probe_that_fails_ends_nothing(self, stage: Stage) -> None:
        """One failed probe ends nothing. Otherwise every short failure of a machine ends a session."""
        recovered = {**AT_WORK, "after": 60}
        statuses = stage.gittrix.rules.look_through(AT_WORK, {"after": 30, "runtime": "probe_failed"}, recovered)

        assert statuses == ["working"] * 3

    def test_sta_10_what_does_not_agree_is_not_looked_at_for_ever(self, stage: Stage) -> None:
        """A session whose probes keep failing becomes stuck. Otherwise a session that cannot be reached is reported as working for days."""
        often = [{"after": 30 * number, "runtime": "probe_failed"} for number in range(1, 6)]
        statuses = stage.gittrix.rules.look_through(AT_WORK, *often)
        seldom = stage.gittrix.rules.look_through(
            AT_WORK, {"after": 60, "runtime": "probe_failed"}, {"after": 361, "runtime": "probe_failed"}
        )

        assert statuses[:4] == ["working"] * 4
        assert statuses[4:] == ["stuck"] * 2
        assert seldom[-1] == "stuck"

    def test_sta_11_ten_minutes_of_rest_are_too_many(self, stage: Stage) -> None:
        """A session that is idle for ten minutes is stuck. Otherwise an agent that hangs is only found by chance."""
        statuses = stage.gittrix.rules.look_through(AT_WORK, {"after": 360, "activity": "idle"}, {"after": 599}, {"after": 600})
        awake = stage.gittrix.rules.look_through(AT_WORK, {"after": 600, "activity": "idle"}, {"after": 610, "activity": "active"})

        assert statuses == ["working", "working", "working", "stuck"]
        assert awake == ["working", "stuck", "working"]

    def test_sta_12_a_question_is_told_at_once_and_until_it_is_answered(self, stage: Stage) -> None:
        """A question is reported at once and until it is answered.

        Otherwise an agent waits all night for a person who does not know of the question.
        """
        question = {"after": 30, "activity": "waiting_input"}
        statuses = stage.gittrix.rules.look_through(AT_WORK, question, {"after": 3600}, {"after": 3630, "activity": "active"})

        assert statuses == ["working", "needs_input", "needs_input", "working"]

    def test_sta_13_who_is_gone_by_all_accounts_is_lost_and_stays_so(self, stage: Stage) -> None:
        """A session that every probe reports gone is over and stays so.

        Otherwise a session flickers between dead and alive, and somebody is alerted each time.
        """
        gone = {"after": 60, "runtime": "exited", "activity": "exited"}
        statuses = stage.gittrix.rules.look_through(AT_WORK, gone, {**AT_WORK, "after": 90})

        assert statuses in (["working", "errored", "errored"], ["working", "killed", "killed"])

    def test_sta_14_what_is_merged_stays_merged_whatever_is_seen_then(self, stage: Stage) -> None:
        """A merged session stays merged whatever is observed later.

        Otherwise finished work is reported as stuck or lost, because its agent has exited.
        """
        looks = ({"after": 60, "pr_state": "merged"}, {"after": 90, "runtime": "exited", "activity": "exited"}, {"after": 4000})

        assert stage.gittrix.rules.look_through(AT_WORK, *looks) == ["working", "merged", "merged", "merged"]


def status_of(stage: Stage, observed: Combination) -> str:
    """The status that the system gives for a combination of observations."""
    pr = observed.observations.pr
    facts = {"pr_state": pr.state, "ci": pr.ci, "review": pr.review, "mergeable": pr.mergeable}
    return stage.gittrix.rules.of(
        session=observed.session, reason=observed.reason, runtime=observed.runtime, activity=observed.activity, **facts
    )
