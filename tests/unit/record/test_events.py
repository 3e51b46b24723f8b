"""One event as one line: what the vocabulary refuses, what a line looks like, and that no other line is taken for one."""

from __future__ import annotations

import json
from zlib import crc32

import pytest

from pytest_gittrix.errors import InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.record.eventlog.events import Event, check, decode, encode, live_event, path_fields, path_of
from pytest_gittrix.record.eventlog.vocabulary import LIVE, VOCABULARY

EPOCH_2030 = 1_893_456_000_000_000_000
WRITE = Event(7, EPOCH_2030 + 1_500_000, "sess_a", "session.write", "agent", {"path": "src/é.py", "op": "write"})
LINE = (
    '{"v":1,"seq":7,"ts":"2030-01-01T00:00:00.001500Z","stream":"sess_a","type":"session.write","actor":"agent",'
    '"data":{"path":"src/é.py","op":"write"},"crc":"1a8ebe4d"}'
).encode()


def sealed(body: str) -> bytes:
    """A line with a right checksum, whatever it says."""
    return f'{body},"crc":"{crc32(body.encode()):08x}"}}'.encode()


def test_an_event_is_one_line_of_json_in_a_fixed_spelling() -> None:
    assert encode(WRITE) == LINE
    assert json.loads(LINE)["data"]["path"] == "src/é.py"
    assert decode(LINE) == WRITE


@pytest.mark.parametrize("type", VOCABULARY)
def test_every_row_of_the_vocabulary_can_be_written_and_read(type: str) -> None:
    kind = VOCABULARY[type]
    data = {key: f"some {key}" for key in sorted(kind.required | kind.optional)}
    check(type, data)
    event = Event(0, EPOCH_2030, "s", type, "system", data)
    assert decode(encode(event)) == event


@pytest.mark.parametrize("table", [VOCABULARY, LIVE])
def test_every_row_says_in_one_sentence_what_it_means(table: dict[str, object]) -> None:
    for type, kind in table.items():
        assert kind.doc[0].isupper(), type  # type: ignore[attr-defined]
        assert kind.doc.endswith("."), type  # type: ignore[attr-defined]
        assert "\n" not in kind.doc, type  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("type", "data", "actor", "named"),
    [
        ("session.wrote", {}, "agent", "session.wrote"),
        ("session.write", {"path": "a"}, "agent", "lacks op"),
        ("session.write", {"path": "a", "op": "write", "size": 3}, "agent", "no place for size"),
        ("session.write", {"path": "a", "op": "write"}, "robot", "'robot' is not an actor"),
        ("sweep.finished", {"evicted": [], "problems": []}, "system", "announced, not stored"),
    ],
)
def test_what_the_vocabulary_does_not_know_is_refused_by_name(type: str, data: dict[str, object], actor: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        check(type, data, actor)


def test_live_events_have_no_place_in_a_stream() -> None:
    event = live_event("sweep.finished", {"evicted": ["a"], "problems": []}, ts=EPOCH_2030 + 999)
    assert (event.seq, event.ts) == (-1, EPOCH_2030)
    with pytest.raises(InvalidInput, match="no event"):
        live_event("session.ended", {"state": "expired"}, ts=0)


@pytest.mark.parametrize("path", ["a/b.py", "é", "\udce9.txt", "dir/\udcff\udc80", "nl\n", ""])
def test_a_path_survives_its_event_whatever_its_bytes(path: str) -> None:
    event = Event(0, 0, "s", "session.write", "agent", {**path_fields(path), "op": "write"})
    check(event.type, event.data)
    assert path_of(decode(encode(event)).data) == path


def test_only_a_path_that_is_not_utf8_is_spelt_in_base64() -> None:
    assert path_fields("é") == {"path": "é"}
    assert path_fields("\udce9", "workspace") == {"workspace_b64": "6Q=="}


def test_a_surrogate_that_stands_for_no_byte_is_no_path() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        path_fields("a\ud800")


@pytest.mark.parametrize("data", [{"path": "\udce9", "op": "write"}, {"path": object(), "op": "write"}, {"path": float("nan"), "op": "w"}])
def test_what_json_cannot_hold_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"session\.write"):
        encode(Event(0, 0, "s", "session.write", "agent", data))


def test_a_time_no_calendar_has_is_refused() -> None:
    with pytest.raises(InvalidInput, match="years 1 to 9999"):
        encode(Event(0, 10**21, "s", "session.accessed", "agent", {}))


@pytest.mark.parametrize("ts", [-62_135_596_800_000_000_000, -1_000, 0, 253_402_300_799_999_999_000])
def test_times_from_year_1_to_9999_survive(ts: int) -> None:
    event = Event(0, ts, "s", "session.accessed", "agent", {})
    assert decode(encode(event)) == event


def test_no_single_flipped_bit_goes_unnoticed() -> None:
    for place in range(len(LINE)):
        for bit in range(8):
            flipped = bytearray(LINE)
            flipped[place] ^= 1 << bit
            with pytest.raises(LogDamaged):
                decode(bytes(flipped))


def test_no_prefix_of_a_line_is_taken_for_a_line() -> None:
    for length in range(len(LINE)):
        with pytest.raises(LogDamaged):
            decode(LINE[:length])


HEAD = '{"v":1,"seq":0,"ts":"2030-01-01T00:00:00.000000Z","stream":"s","type":"t","actor":"agent","data":{}'


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        '["v"',
        HEAD.replace('"seq":0', '"seq":"0"'),
        HEAD.replace('"data":{}', '"data":[]'),
        HEAD.replace('"actor":"agent"', '"actor":"robot"'),
        HEAD.replace('"seq":0,', ""),
        HEAD.replace('"stream"', '"extra":1,"stream"'),
        HEAD.replace("2030-01-01T", "2030-13-01T"),
        HEAD.replace("2030-01-01T", "0000-01-01T"),
        HEAD.replace("T00:00:00", "T24:00:00"),
        HEAD.replace("T00:00:00", "T00:00:60"),
        HEAD.replace('"data":{}', '"data":{"text":"\x01"}'),
        HEAD.replace(".000000Z", ".00000aZ"),
        HEAD.replace('"data":{}', '"data":' + "[" * 100_000),
    ],
)
def test_a_line_with_a_right_checksum_must_still_be_an_event(body: str) -> None:
    with pytest.raises(LogDamaged):
        decode(sealed(body))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"v":1', '{ "v": 1'),
        ('"stream":"s"', '"stream":"\\u0073"'),
        ('"type":"t"', '"type":"T é"'),
        ('"data":{}', '"data": {} '),
        ('"seq":0', '"seq":1234567890123456789'),
        ("2030-01-01T00:00:00.000000Z", "2030-12-31T23:59:59.999999Z"),
        ("2030-01-01T00:00:00.000000Z", "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_a_line_in_any_spelling_says_what_its_json_says(old: str, new: str) -> None:
    line = sealed(HEAD.replace(old, new))
    fields = json.loads(line)
    event = decode(line)
    values = (event.seq, event.stream, event.type, event.actor, event.data)
    assert values == tuple(fields[name] for name in ("seq", "stream", "type", "actor", "data"))
    assert f'"ts":"{fields["ts"]}"'.encode() in encode(event)


def test_a_line_of_a_later_version_is_left_to_a_later_engine() -> None:
    assert decode(sealed(HEAD)).type == "t"
    with pytest.raises(MetadataVersionUnsupported, match="version 2"):
        decode(sealed(HEAD.replace('"v":1', '"v":2')))
