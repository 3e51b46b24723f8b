"""The fold that passes over what it cannot use: a guess at a damaged session, for a person to look at."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.events import CREATED, NOW

from pytest_gittrix.errors import InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState, fold

STREAM = "sess_a"


def event(seq: int, type: str, stream: str = STREAM, **data: Any) -> Event:
    """An event, a second later than the one before."""
    return Event(seq, NOW + seq * 10**9, stream, type, "agent", data)


def born() -> Event:
    """The event a session begins with."""
    return event(0, "session.created", **CREATED)


def commit(seq: int, stream: str = STREAM) -> Event:
    """A commit by which a fold shows that it took the event; its sha is the event's seq."""
    return event(seq, "session.commit", stream, sha=str(seq), message="")


def taken(events: list[Event], state: SessionState | None = None) -> list[str]:
    """The commits that a skipping fold took."""
    return fold(events, state, policy="skip").commits


def test_a_whole_history_is_folded_as_ever() -> None:
    events = [born(), commit(1), event(2, "session.ended", state="expired")]
    assert fold(events, policy="skip") == fold(events) == fold(events, policy="strict")


def test_it_goes_on_after_a_hole() -> None:
    events = [born(), commit(1), commit(3), commit(7)]
    with pytest.raises(InvalidInput, match="does not follow"):
        fold(events)
    state = fold(events, policy="skip")
    assert (state.commits, state.seq, state.updated_ns) == (["1", "3", "7"], 7, NOW + 7 * 10**9)


def test_what_comes_again_or_too_late_is_passed_over() -> None:
    assert taken([born(), commit(1), commit(3), commit(2), commit(3), commit(4)]) == ["1", "3", "4"]


def test_what_cannot_have_happened_is_passed_over_and_leaves_no_trace() -> None:
    events = [born(), event(1, "turn.ended", turn="t9", status="done"), commit(2), born(), event(4, "session.ended", state="bogus")]
    with pytest.raises(LogDamaged, match="cannot happen"):
        fold(events)
    assert fold(events, policy="skip") == fold([born(), commit(2)], policy="skip")


def test_nothing_that_is_passed_over_counts_as_the_last_event() -> None:
    ended = [born(), event(1, "session.ended", state="discarded"), commit(2), commit(3)]
    state = fold(ended, policy="skip")
    assert (state.state, state.commits, state.seq) == ("discarded", [], 1)


def test_what_a_later_engine_wrote_is_passed_over() -> None:
    events = [born(), event(1, "dream.started"), commit(2)]
    with pytest.raises(MetadataVersionUnsupported):
        fold(events)
    assert taken(events) == ["2"]


def test_events_of_another_session_are_passed_over() -> None:
    assert taken([born(), commit(1, "sess_b"), commit(1), commit(2, "sess_b")]) == ["1"]


def test_a_birth_is_still_needed_and_may_come_after_something_else() -> None:
    with pytest.raises(LogDamaged, match=r"begins with 'session\.commit' \(event 1\)"):
        fold([commit(1), event(2, "session.accessed")], policy="skip")
    with pytest.raises(InvalidInput, match="no event"):
        fold([], policy="skip")
    assert taken([commit(5), born(), commit(1)]) == ["1"]


def test_a_state_that_is_given_is_gone_on_from_and_not_changed() -> None:
    state = fold([born(), commit(1)])
    before = copy.deepcopy(state)
    assert taken([commit(0), commit(1), commit(4)], state) == ["1", "4"]
    assert state == before


def test_an_unknown_way_to_fold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'repair-tail' is not a way to fold"):
        fold([born()], policy="repair-tail")  # type: ignore[arg-type]
