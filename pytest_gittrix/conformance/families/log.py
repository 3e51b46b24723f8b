"""LOG: events of a session are stored in one order, then announced, and stay readable (docs/explanation/you-know-pixir.md)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from pytest_gittrix.conformance.base.clause import needs, protects_work, without_search
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import refused
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

SAID: Final = "user_message"
ANSWERED: Final = "assistant_message"
PASSING: Final = "text_delta"

ODD: Final[Mapping[str, Any]] = {
    "text": 'naïve 日本 \U0001f600 \u0000 \u2028 \r\n "quoted" \\ {}\t',
    "metadata": {"": None, "deep": [[], {}, [{"a": [True, False, None]}]], "large": 2**63 + 1, "small": -1.5e-7, "long": "x" * 100_000},
}
"""Data that are JSON, and that it is easy to change on the way."""


class LogClauses(Clauses):
    """What is recorded, announced and read."""

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.PROCESSES)
    @protects_work
    @without_search
    def test_log_01_whoever_writes_the_numbers_have_no_gap(self, stage: Stage) -> None:
        """Events are numbered without a gap even with several writers.

        Otherwise two programs give two events of one session the same number, and one event is lost.
        """
        mine = stage.start()
        theirs = stage.reopen().get_session(mine.id)
        given: list[object] = []
        for turn in range(3):
            given += [say(one, f"{who} {turn}") for who, one in (("mine", mine), ("theirs", theirs))]
            elsewhere = in_fork(partial(say_anew, stage, mine.id, f"elsewhere {turn}"))
            assert elsewhere.error is None, elsewhere.error
            given.append(elsewhere.value)

        events = mine.events()
        assert [event["seq"] for event in events] == [*range(len(events))]
        assert [event["seq"] for event in events if event["type"] == SAID] == given
        assert texts(mine) == [f"{who} {turn}" for turn in range(3) for who in ("mine", "theirs", "elsewhere")]

    @needs(Capability.EVENTS, Capability.HISTORY)
    @protects_work
    def test_log_02_an_event_is_stored_before_anyone_is_told(self, stage: Stage) -> None:
        """An event is stored before it is announced.

        Otherwise a subscriber cannot find an event that it was notified of, or a crash loses an event that was already announced.
        """
        session = stage.start()
        found = []
        session.subscribe(lambda event: found.append(without_extras(event) in said_in(session)), [SAID])

        say(session, "first")
        say(session, "second")

        assert found == [True, True]

    @needs(Capability.EVENTS, Capability.HISTORY)
    def test_log_03_an_event_that_is_refused_leaves_no_trace(self, stage: Stage) -> None:
        """A refused event leaves no trace.

        Otherwise a caller's mistake leaves a gap in the log, or subscribers are notified of an event that was refused.
        """
        session = stage.start()
        before, received = session.events(), listen(session)

        refused("INVALID_INPUT", session.record, "tool_call", {"call_id": "c1"})
        refused("INVALID_INPUT", session.record, SAID, {"text": {1, 2}})

        assert (session.events(), received) == (before, [])
        assert say(session, "after") == len(before)

    @needs(Capability.EVENTS, Capability.HISTORY)
    def test_log_04_what_nobody_knows_is_not_recorded(self, stage: Stage) -> None:
        """Events of unknown types are refused.

        Otherwise a typing error in a type is only found when somebody reads the history, months later.
        """
        session = stage.start()
        before, received = session.events(), listen(session)

        refused("INVALID_INPUT", session.record, "no_such_message", {"text": "x"})
        refused("INVALID_INPUT", session.emit, "no_such_delta", {"chunk": "x"})

        assert (session.events(), received) == (before, [])

    @needs(Capability.EVENTS, Capability.HISTORY)
    def test_log_05_what_is_only_announced_is_not_stored(self, stage: Stage) -> None:
        """Transient events are announced but not stored.

        Otherwise the history holds a thousand fragments for each answer, or has gaps where they were.
        """
        session = stage.start()
        before, received = session.events(), listen(session)

        session.emit(PASSING, {"chunk": "he"})
        refused("INVALID_INPUT", session.record, PASSING, {"chunk": "he"})

        assert session.events() == before
        assert [(event["type"], event["data"], event["seq"]) for event in received] == [(PASSING, {"chunk": "he"}, -1)]
        assert say(session, "after") == len(before)

    @needs(Capability.EVENTS, Capability.HISTORY)
    def test_log_06_keys_are_text_for_all_who_see_them(self, stage: Stage) -> None:
        """Keys are text for subscribers and readers alike.

        Otherwise a program finds a value under 7 while it runs, and under "7" after a restart.
        """
        session = stage.start()
        received = listen(session)

        session.record(SAID, {"text": "x", "metadata": {7: [{8: "y"}]}})

        assert [event["data"] for event in received] == [{"text": "x", "metadata": {"7": [{"8": "y"}]}}]
        assert said_in(session) == received

    @needs(Capability.EVENTS, Capability.HISTORY)
    @protects_work
    def test_log_07_keys_that_come_to_one_are_refused(self, stage: Stage) -> None:
        """Keys that become the same text are refused. Otherwise one of two values is lost, and it is unknown which."""
        session = stage.start()
        before = session.events()

        refused("INVALID_INPUT", session.record, SAID, {"text": "x", "metadata": {"deep": {7: "a", "7": "b"}}})

        assert session.events() == before

    @needs(Capability.HISTORY)
    def test_log_08_what_happens_is_told_at_once_and_in_order(self, stage: Stage) -> None:
        """Events are delivered to subscribers at once and in order.

        Otherwise a subscriber sees the end of an answer before its beginning.
        """
        session = stage.start()
        received = listen(session)

        for number in range(3):
            session.emit(PASSING, {"chunk": f"{number}"})
            say(session, f"{number}")
            assert [event["type"] for event in received] == [PASSING, SAID] * (number + 1)

        assert [event["data"].get("chunk") or event["data"]["text"] for event in received] == ["0", "0", "1", "1", "2", "2"]

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.RESUME)
    def test_log_09_what_was_said_outlives_the_engine(self, stage: Stage) -> None:
        """Recorded events survive the engine. Otherwise a restarted agent has forgotten its conversation."""
        session = stage.start()
        say(session, "first")
        before = session.events()
        stage.gittrix.close()

        again = stage.reopen().get_session(session.id)

        assert again.events() == before
        assert say(again, "second") == len(before)
        assert texts(again) == ["first", "second"]

    @needs(Capability.EVENTS, Capability.HISTORY)
    def test_log_10_a_listener_that_raises_harms_nothing(self, stage: Stage) -> None:
        """A subscriber that raises an exception harms nothing.

        Otherwise a bug in a display stops the agent, or keeps other subscribers from receiving events.
        """
        session = stage.start()
        session.subscribe(fail)
        received = listen(session)

        with nothing_reported():
            seq = say(session, "first")
            session.emit(PASSING, {"chunk": "x"})

        assert [event["type"] for event in received] == [SAID, PASSING]
        assert said_in(session)[0]["seq"] == seq

    @needs(Capability.HISTORY)
    def test_log_11_a_listener_is_told_of_the_types_it_asked_for(self, stage: Stage) -> None:
        """A subscriber receives only the event types it subscribed to.

        Otherwise a program that waits for an answer is woken by every fragment of a word.
        """
        session = stage.start()
        received = listen(session, ANSWERED, PASSING)

        say(session, "hello")
        session.record(ANSWERED, {"text": "hi"})
        session.emit(PASSING, {"chunk": "x"})

        assert [event["type"] for event in received] == [ANSWERED, PASSING]

    @needs(Capability.HISTORY)
    def test_log_12_a_listener_is_told_of_its_session_alone(self, stage: Stage) -> None:
        """A subscriber receives only the events of its session. Otherwise one agent's messages are shown in the window of another."""
        session, other = stage.start(), stage.start()
        received, of_other = listen(session), listen(other)

        say(session, "mine")
        other.emit(PASSING, {"chunk": "theirs"})

        assert [event["type"] for event in received] == [SAID]
        assert [event["type"] for event in of_other] == [PASSING]

    @needs(Capability.HISTORY)
    def test_log_13_a_subscription_ends_when_it_is_ended(self, stage: Stage) -> None:
        """A cancelled subscription receives no more events.

        Otherwise every window that was ever opened receives every event for as long as the program runs.
        """
        session = stage.start()
        received: list[Mapping[str, Any]] = []
        ends = session.subscribe(received.append)
        stays = listen(session)
        say(session, "first")

        ends()
        ends()
        say(session, "second")

        assert [event["data"]["text"] for event in received] == ["first"]
        assert [event["data"]["text"] for event in stays] == ["first", "second"]

    @needs(Capability.EVENTS, Capability.HISTORY)
    def test_log_14_data_are_given_back_as_they_were_given(self, stage: Stage) -> None:
        """Data are read back exactly as they were recorded.

        Otherwise a model is shown something other than what was said, or a large number used as an id changes.
        """
        session = stage.start()
        received = listen(session)

        session.record(SAID, ODD)

        assert [event["data"] for event in received] == [ODD]
        assert [event["data"] for event in said_in(session)] == [ODD]

    @needs(Capability.EVENTS, Capability.HISTORY)
    @protects_work
    def test_log_15_an_ended_session_is_read_and_not_written(self, stage: Stage) -> None:
        """An ended session can be read but not written.

        Otherwise an agent's history is lost with its session, or still changes after a person has judged it.
        """
        session = stage.start()
        say(session, "first")
        session.evict()
        before = session.events()

        refused("SESSION_EXPIRED", say, session, "late")

        assert texts(session) == ["first"]
        assert session.events() == before


def say(session: DrivenSession, text: str) -> int:
    """Record that the user said something; gives its number."""
    return session.record(SAID, {"text": text})


def say_anew(stage: Stage, id_: str, text: str) -> int:
    """Do the same with a new engine."""
    return say(stage.reopen().get_session(id_), text)


def without_extras(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event without the fields that a system may add."""
    return {name: event[name] for name in ("seq", "type", "data")}


def said_in(session: DrivenSession) -> list[Mapping[str, Any]]:
    """The session's events of what the user said."""
    return [without_extras(event) for event in session.events() if event["type"] == SAID]


def texts(session: DrivenSession) -> list[str]:
    """The texts of what the user said."""
    return [event["data"]["text"] for event in said_in(session)]


def listen(session: DrivenSession, *types: str) -> list[Mapping[str, Any]]:
    """Subscribe to a session; gives a list to which every event of the given types is added, by default of all types used here."""
    received: list[Mapping[str, Any]] = []
    session.subscribe(lambda event: received.append(without_extras(event)), types or [SAID, ANSWERED, PASSING, "tool_call", "tool_result"])
    return received


def fail(_event: object) -> None:
    """A listener with a bug."""
    raise ValueError("a bug of the listener's")


@contextmanager
def nothing_reported() -> Iterator[None]:
    """A block in which an error in a listener's thread is no warning of the test's."""
    before, threading.excepthook = threading.excepthook, lambda _about: None
    try:
        yield
    finally:
        threading.excepthook = before
