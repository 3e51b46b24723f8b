"""What callers pass in is judged before anything happens: a wrong value is an error that names it, and nothing has changed."""

from __future__ import annotations

import array
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from support.engine import Site

from pytest_gittrix.clock import CLOCK_START, FrozenClock
from pytest_gittrix.engine.operations.validation import (
    LONGEST_TTL,
    check_contents,
    check_message,
    check_paths,
    check_text,
    check_ttl,
    policy_of,
)
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput, PromoteFailed, WriteRejected
from pytest_gittrix.os_level.files import temporary_name
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.record.state.values import Policy


class TestText:
    @pytest.mark.parametrize("value", ["", "plain", "\N{SNOWMAN} \U0001f600", "two\nlines", "nul\0"])
    def test_that_can_be_written_is_given_back(self, value: str) -> None:
        assert check_text(value, "task") is value

    @pytest.mark.parametrize("value", [None, 12, b"bytes", ["list"], 1.5])
    def test_of_another_type_is_refused_and_named(self, value: object) -> None:
        with pytest.raises(InvalidInput, match=rf"task is {type(value).__name__}, not str"):
            check_text(value, "task")

    @pytest.mark.parametrize("value", ["\ud800", "x\udc80", "end\udfff"])
    def test_with_half_a_character_is_refused_without_it_in_the_message(self, value: str) -> None:
        with pytest.raises(InvalidInput, match="lone surrogate") as caught:
            check_text(value, "task")
        assert str(caught.value).encode()

    def test_of_any_length_makes_a_short_message(self) -> None:
        with pytest.raises(InvalidInput) as caught:
            check_text("x" * 100_000 + "\ud800", "task")
        assert len(caught.value.fact) < 200

    @pytest.mark.parametrize("value", ["", " ", "\n\t "])
    def test_that_is_blank_is_no_commit_message(self, value: str) -> None:
        with pytest.raises(InvalidInput, match="empty"):
            check_message(value)


class TestContents:
    @pytest.mark.parametrize("value", [b"\0\xff", bytearray(b"\0\xff"), memoryview(b"\0\xff"), array.array("B", [0, 255])])
    def test_that_are_bytes_like_are_taken_as_they_are(self, value: object) -> None:
        assert check_contents(value, "data") == b"\0\xff"

    def test_that_are_text_are_utf_8(self) -> None:
        assert check_contents("é\r\n", "data") == b"\xc3\xa9\r\n"

    @pytest.mark.parametrize("value", [5, None, 1.5, [1, 2], {"a": 1}, True])
    def test_of_another_type_are_refused(self, value: object) -> None:
        # bytes(5) is five NULs and bytes([1, 2]) two bytes: nobody who writes a file means that.
        with pytest.raises(InvalidInput, match=f"data is {type(value).__name__}, not str or bytes"):
            check_contents(value, "data")


def test_one_text_is_no_list_of_paths() -> None:
    assert check_paths(iter(["a", "b"]), "files") == ["a", "b"]
    with pytest.raises(InvalidInput, match=r"Give \['app.py'\]"):
        check_paths("app.py", "files")


class TestTimeToLive:
    @pytest.mark.parametrize("value", [timedelta(microseconds=1), timedelta(hours=4), LONGEST_TTL])
    def test_that_a_deadline_can_be_made_of_is_given_back(self, value: timedelta) -> None:
        assert check_ttl(value) is value

    def test_may_be_a_text(self, session: UserSession) -> None:
        assert check_ttl("1h30m") == timedelta(minutes=90)
        session.extend("30m")
        info = session.info()
        assert info.deadline is not None
        assert info.deadline - info.last_access_at == timedelta(minutes=30)

    @pytest.mark.parametrize("value", [4, 4.5, None])
    def test_that_is_no_duration_is_refused_with_an_example(self, value: object) -> None:
        with pytest.raises(InvalidInput, match=r"timedelta\(hours=4\)"):
            check_ttl(value)

    @pytest.mark.parametrize("value", [timedelta(0), -timedelta(hours=1)])
    def test_that_is_not_positive_is_refused(self, value: timedelta) -> None:
        with pytest.raises(InvalidInput, match="not positive"):
            check_ttl(value)

    @pytest.mark.parametrize("value", [timedelta.max, LONGEST_TTL + timedelta(microseconds=1)])
    def test_that_no_calendar_can_hold_is_refused_and_the_session_stays_readable(self, session: UserSession, value: timedelta) -> None:
        before = session.info().deadline
        with pytest.raises(InvalidInput, match="longer than 36525 days"):
            session.extend(value)
        assert session.info().deadline == before


WRONG: dict[str, Callable[[UserSession], object]] = {
    "a number written": lambda session: session.write("new", 5),  # type: ignore[arg-type]
    "nothing written": lambda session: session.write("new", None),  # type: ignore[arg-type]
    "half a character written": lambda session: session.write("new", "\ud800"),
    "half a character as a message": lambda session: session.commit("\udc80x"),
    "a number as a message": lambda session: session.commit(5),  # type: ignore[arg-type]
    "several files and a blank message": lambda session: session.write_and_commit({"new": "x"}, " "),
    "several files and half a character as a message": lambda session: session.write_and_commit({"new": "x"}, "\ud800"),
    "several files, one of them no text": lambda session: session.write_and_commit({"new": "x", "other": 5}, "m"),  # type: ignore[dict-item]
    "a number as the message of a promotion": lambda session: session.promote(message=12),  # type: ignore[arg-type]
    "half a character as the message of a promotion": lambda session: session.promote(message="\ud800x"),
    "one text as the paths of a diff": lambda session: session.diff("app.py"),
    "one text as the files of a promotion": lambda session: session.promote(files="app.py"),
    "a text without a unit as a time to live": lambda session: session.extend("4"),
    "a text as the policy of a fork, and no duration": lambda session: session.fork(eviction="soon"),
    "a number as the policy of a fork": lambda session: session.fork(eviction=4),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_an_error_and_nothing_happens(site: Site, session: UserSession, call: Callable[[UserSession], object]) -> None:
    session.write("app.py", "v2\n")
    events, head = len(site.events(session.id)), site.durable.head()

    with pytest.raises(InvalidInput):
        call(session)

    assert len(site.events(session.id)) == events
    assert site.durable.head() == head
    assert session.touched_files() == ["app.py"]
    assert session.log() == []


def test_one_file_over_the_limit_keeps_the_others_from_being_written(session: UserSession) -> None:
    with pytest.raises(WriteRejected):
        session.write_and_commit({"new": "x", "large": b"x" * (session._limits.max_file + 1)}, "message")
    assert session.touched_files() == []


def test_a_name_that_would_be_passed_over_as_half_written_is_refused(session: UserSession) -> None:
    for path in (temporary_name(), f"src/{temporary_name()}/y"):
        with pytest.raises(WriteRejected, match="still being written"):
            session.write(path, "x")
    assert session.touched_files() == []


def test_an_empty_selection_is_not_called_an_unchanged_workspace(session: UserSession) -> None:
    with pytest.raises(PromoteFailed, match="no file differs"):
        session.promote(files=[])
    session.write("app.py", "v2\n")
    with pytest.raises(PromoteFailed, match="No file was selected"):
        session.promote(files=[])
    assert session.info().state == "active"


class TestClock:
    def test_starts_in_1970_at_the_earliest(self) -> None:
        assert FrozenClock(datetime(1970, 1, 1, tzinfo=UTC)).now_ns() == 0
        with pytest.raises(InvalidInput, match="before 1970"):
            FrozenClock(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC))

    def test_is_not_set_back_before_1970_either(self) -> None:
        clock = FrozenClock()
        with pytest.raises(InvalidInput, match="before 1970"):
            clock.skew(days=-366 * 60)
        assert clock.now() == CLOCK_START


def test_an_idle_ttl_by_itself_is_a_policy() -> None:
    hours = Policy(ttl_idle_ns=4 * 3600 * 10**9)

    assert policy_of("4h", None) == policy_of(timedelta(hours=4), None) == policy_of(EvictionPolicy(ttl_idle="4h"), None) == hours
    assert policy_of(None, hours) is hours
    with pytest.raises(InvalidInput, match=r"EvictionPolicy\(ttl_idle="):
        policy_of(4, None)
    with pytest.raises(InvalidInput, match="'4x' is not a duration"):
        policy_of("4x", None)
