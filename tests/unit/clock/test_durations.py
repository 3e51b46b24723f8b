"""Instants and durations survive being written and read, and anything else is refused by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.durations import (
    distance_ns,
    duration_of,
    format_duration,
    format_instant,
    instant_at,
    ns_of,
    parse_duration,
    parse_instant,
)
from pytest_gittrix.errors import InvalidInput

zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=zones)
durations = st.timedeltas(min_value=timedelta())


@given(instants)
def test_an_instant_survives_being_written_and_read(when: datetime) -> None:
    assert parse_instant(format_instant(when)) == when


@given(instants)
def test_an_instant_survives_being_counted_in_nanoseconds(when: datetime) -> None:
    assert instant_at(ns_of(when)) == when


@given(instants, instants)
def test_nanoseconds_order_instants_as_datetimes_do(a: datetime, b: datetime) -> None:
    assert (ns_of(a) < ns_of(b)) == (a < b)


@given(durations)
def test_a_duration_survives_being_written_and_read(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.text())
def test_any_text_is_a_duration_or_refused_by_name(text: str) -> None:
    try:
        written = format_duration(parse_duration(text))
    except InvalidInput as problem:
        written = problem.fact
    assert parse_duration(written) == parse_duration(text) if written[:1].isdigit() else "duration" in written


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("4h", timedelta(hours=4)),
        ("30m", timedelta(minutes=30)),
        ("2d", timedelta(days=2)),
        ("90s", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("1m1ms", timedelta(minutes=1, milliseconds=1)),
        ("0s", timedelta()),
    ],
)
def test_durations_people_write(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "4", "h", "-4h", "1.5h", "30m1h", "1h1h", "4 h", "4H", "4w", "٤h", "inf"])
def test_other_spellings_are_refused_with_the_list_of_units(text: str) -> None:
    with pytest.raises(InvalidInput, match="the units are d, h, m, s, ms, us") as caught:
        parse_duration(text)
    assert repr(text) in caught.value.fact


@pytest.mark.parametrize("text", ["999999999999d", "9" * 5000 + "d"])
def test_a_duration_too_long_for_a_timedelta_is_refused_in_a_short_message(text: str) -> None:
    with pytest.raises(InvalidInput, match="too long") as caught:
        parse_duration(text)
    assert len(caught.value.fact) < 100


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(hours=4), "4h"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(days=1, microseconds=1), "1d1us"),
        (timedelta(minutes=-5), "-5m"),
    ],
)
def test_durations_are_written_in_the_largest_units(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@pytest.mark.parametrize(
    ("when", "text"),
    [
        (datetime(2030, 1, 1, tzinfo=UTC), "2030-01-01T00:00:00.000Z"),
        (datetime(2030, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC), "2030-01-01T00:00:00.123Z"),
        (datetime(2030, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC), "2030-01-01T00:00:00.123456Z"),
        (datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "2030-01-01T00:00:00.000Z"),
        (datetime(99, 1, 1, tzinfo=UTC), "0099-01-01T00:00:00.000Z"),
    ],
)
def test_instants_are_written_in_utc_with_milliseconds_unless_that_loses_some(when: datetime, text: str) -> None:
    assert format_instant(when) == text


@pytest.mark.parametrize("text", ["2030-01-01T00:00:00Z", "2030-01-01T01:00:00+01:00", "2030-01-01 00:00:00.000000+00:00"])
def test_instants_are_read_from_iso_8601(text: str) -> None:
    when = parse_instant(text)
    assert when == datetime(2030, 1, 1, tzinfo=UTC)
    assert when.tzinfo is UTC


@pytest.mark.parametrize("text", ["", "now", "1893456000", "2030-13-01T00:00:00Z", None])
def test_what_is_not_an_instant_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="ISO 8601") as caught:
        parse_instant(text)
    assert repr(text) in caught.value.fact


@pytest.mark.parametrize("use", [ns_of, format_instant, lambda when: parse_instant(when.isoformat())])
def test_an_instant_without_a_time_zone_is_refused(use: object) -> None:
    with pytest.raises(InvalidInput, match="has no time zone") as caught:
        use(datetime(2030, 1, 1))  # type: ignore[operator]
    assert caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("not_a_datetime", [1893456000, "2030-01-01T00:00:00Z", None])
def test_what_is_not_a_datetime_is_refused(not_a_datetime: datetime) -> None:
    with pytest.raises(InvalidInput, match="is not an instant"):
        ns_of(not_a_datetime)


def test_an_instant_no_datetime_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        instant_at(10**21)


@pytest.mark.parametrize(
    ("by", "units"),
    [
        (None, {}),
        (timedelta(hours=1), {"hours": 1}),
        (None, {"years": 1}),
        (None, {"hours": "1"}),
        (None, {"days": 1e12}),
        (None, {"days": float("nan")}),
        (3600, {}),
        ("1h", {"hours": 1}),
    ],
)
def test_a_distance_is_one_timedelta_one_text_or_its_known_parts(by: timedelta, units: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="the units are weeks, days, hours"):
        distance_ns(by, units)


@pytest.mark.parametrize(
    ("by", "units", "sentences"),
    [
        (3, {}, ["3 was given, whose unit is not said."]),
        ("1h", {"hours": 2}, ["Both '1h' and hours=2 were given.", "Give one of them."]),
        (None, {"hours": "1"}, ["hours='1' is not a distance in time"]),
        ("-1h", {}, ["'-1h' is not a duration.", "A duration cannot be negative."]),
    ],
)
def test_a_wrong_distance_is_told_as_it_was_typed(by: str, units: dict[str, float], sentences: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        distance_ns(by, units)

    assert [sentence for sentence in sentences if sentence not in str(caught.value)] == []


def test_a_duration_is_a_timedelta_or_a_text() -> None:
    assert duration_of("1h30m") == duration_of(timedelta(minutes=90)) == timedelta(minutes=90)
    assert distance_ns("90s", {}) == 90 * 10**9
    with pytest.raises(InvalidInput, match="A bare number"):
        duration_of(4)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'4 hours' is not a duration"):
        duration_of("4 hours")
