"""The timeline of a session: its events, exchanges with its model and commits as sentences, in the order of time."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.vocabulary import VOCABULARY
from pytest_gittrix.views.timeline import _NOISE, _TELL, TimelineEntry, timeline


def event(seq: int, type_: str, **data: Any) -> Event:
    return Event(seq=seq, ts=seq * 1_000, stream="sess_a", type=type_, actor="system", data=data)


def test_it_is_told_in_the_order_of_time_with_commits_between() -> None:
    events = [
        event(1, "session.created", baseline="a" * 40, durable_branch="main", task="Improve it"),
        event(2, "session.accessed"),
        event(3, "session.write", path="app.py", op="write"),
        event(5, "session.commit", sha="b" * 40, message="By the engine\n\nWith a body"),
        event(9, "session.ended", state="promoted", outcome="done"),
    ]

    told = timeline(events, [(4_000, "c" * 40, "By the agent"), (5_000, "b" * 40, "By the engine")])

    assert told == [
        TimelineEntry(1_000, "session", f"began at {'a' * 12} of main: Improve it", 1),
        TimelineEntry(3_000, "file", "wrote app.py", 3),
        TimelineEntry(4_000, "commit", f"{'c' * 12} By the agent", None),
        TimelineEntry(5_000, "commit", f"{'b' * 12} By the engine ...", 5),
        TimelineEntry(9_000, "session", "ended: promoted, done", 9),
    ]


def test_an_exchange_says_what_the_model_did_and_what_went_wrong() -> None:
    known = {"protocol": "chat", "digest": "d", "duration_ns": 12_400_000}
    calls = event(1, "model.exchange", number=1, input=120, output=30, calls=["bash", "edit"], delivered=True, **known)
    fails = event(2, "model.exchange", number=2, failure="overloaded", fault="fail(529)", delivered=True, **known)
    lost = event(3, "model.exchange", number=3, input=1, output=2, calls=[], side="title", delivered=False, **known)

    assert [one.text for one in timeline([calls, fails, lost])] == [
        "exchange 1 called bash, edit, 120 + 30 tokens, 12 ms",
        "exchange 2 failed: overloaded, 12 ms (fault fail(529))",
        "exchange 3 answered, 1 + 2 tokens, 12 ms (side title) (not delivered)",
    ]


def test_every_kind_that_it_knows_is_one_of_the_log_and_any_other_is_told_by_its_name() -> None:
    assert {*_TELL, *_NOISE} <= {*VOCABULARY}
    assert [(one.what, one.text) for one in timeline([event(1, "pr.observed", state="open")])] == [("other", "pr.observed")]


def test_a_long_text_is_cut() -> None:
    (one,) = timeline([event(1, "user_message", text="x" * 900)])

    assert len(one.text) < 220
    assert one.text.endswith("x ...")
