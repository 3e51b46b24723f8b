"""Sessions that are looked at again and again: what they are, from one look to the next."""

from __future__ import annotations

from support.orchestrator import MINUTE, NOW, Watched, does

from pytest_gittrix.record.state.observations import Activity, ObservedPullRequest


def test_an_agent_that_falls_silent_is_stuck_after_ten_minutes() -> None:
    session = Watched()

    assert session.look(0, "alive", does("active", 0)) == "working"
    assert session.look(6, "alive", does("idle", 0)) == "working"
    assert session.look(10, "alive", does("idle", 0)) == "stuck"
    assert session.look(11, "alive", does("active", 11)) == "working"


def test_disagreement_is_looked_at_three_times_and_then_the_session_is_stuck() -> None:
    session = Watched()
    session.look(0, "alive", does("active", 0))
    looks = [(session.look(minute, "probe_failed"), session.status()) for minute in (1, 1.5, 2, 2.5, 3, 60)]

    assert looks == [("detecting", "working")] * 3 + [("stuck", "stuck")] * 3
    assert [decision.attempts for decision in session.decisions[1:5]] == [1, 2, 3, None]
    assert not session.decisions[-1].changed


def test_disagreement_is_looked_at_for_five_minutes_at_most() -> None:
    session = Watched()
    session.look(0, "alive", does("active", 0))

    assert session.look(1, "probe_failed") == "detecting"
    assert session.look(6, "probe_failed") == "detecting"
    assert session.look(6.01, "probe_failed") == "stuck"


def test_other_evidence_is_counted_anew_but_not_timed_anew() -> None:
    session = Watched()
    session.look(0, "alive", does("active", 0))
    for number, minute in enumerate((1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6)):
        assert session.look(minute, ("probe_failed", "missing")[number % 2], Activity()) == "detecting"
        assert session.decisions[-1].attempts == 1

    assert session.look(6.5, "probe_failed") == "stuck"


def test_the_time_of_an_activity_is_no_other_evidence() -> None:
    session = Watched()
    session.look(0, "alive", does("active", 0))
    looks = [session.look(minute, "missing", does("active", minute)) for minute in (1, 1.5, 2, 2.5)]

    assert looks == ["detecting"] * 3 + ["stuck"]


def test_a_session_that_is_found_alive_was_never_lost() -> None:
    session = Watched()
    session.look(0, "alive", does("active", 0))
    session.look(1, "missing", does("active", 1))

    assert session.look(1.5, "alive", does("active", 1.5)) == "working"
    assert session.observations.memory is None


def test_a_session_that_is_lost_stays_lost_until_it_is_restored() -> None:
    session = Watched()
    session.look(0, "alive", does("active", 0))
    assert session.look(8, "exited", does("exited")) == "killed"
    assert session.look(9, "alive", does("active", 9)) == "killed"

    session.tell(10, "session.restored")
    assert session.status() == "working"
    assert session.look(10.5, "alive", does("active", 10.5)) == "working"


def test_a_session_goes_from_its_issue_to_its_merge() -> None:
    session = Watched()
    pr = ObservedPullRequest("open", 7)
    looks = [
        session.status(),
        session.look(1, "alive", does("active", 1)),
        session.look(5, pr=pr, activity=does("active", 5)),
    ]
    for facts in ({"ci": "failing"}, {"ci": "passing", "review": "pending"}, {"review": "approved"}, {"mergeable": True}):
        session.tell(6, "pr.observed", state="open", number=7, **facts)
        looks.append(session.look(6, activity=does("active", 6)))
    session.tell(7, "pr.observed", state="merged", number=7)

    assert [*looks, session.look(7), session.look(8, "missing", does("exited"))] == [
        *("spawning", "working", "pr_open", "ci_failed", "review_pending", "approved", "mergeable", "merged", "merged"),
    ]
    session.decided(9, "terminated", "pr_merged")
    assert session.status() == "cleanup"
    assert session.observations.session.terminated_ns == MINUTE * 9 + NOW
