"""The event log against real files: nothing lost, nothing invented (rule 10)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.log import NOW, STREAM, write

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog import log as log_module
from pytest_gittrix.record.eventlog.events import Event, encode, scan
from pytest_gittrix.record.eventlog.log import EventLog


def lines_of(count: int) -> list[bytes]:
    """``count`` good lines, with their line ends."""
    return [encode(Event(seq, NOW, STREAM, "log.recovered", "system", {"dropped_bytes": seq})) + b"\n" for seq in range(count)]


# Storing ------------------------------------------------------------------------------------------------------------------------


def test_events_are_numbered_from_0_and_read_back_as_they_were(log: EventLog, path: Path) -> None:
    appended = [log.append("session.write", {"path": f"é{n}", "op": "write"}, ts=NOW + n, actor="human") for n in range(3)]
    assert [event.seq for event in appended] == [0, 1, 2]
    assert EventLog(path, STREAM).read() == appended
    assert path.read_bytes().count(b"\n") == 3


def test_time_is_kept_in_whole_microseconds(log: EventLog, path: Path) -> None:
    event = log.append("session.accessed", {}, ts=NOW + 1_999)
    assert event.ts == NOW + 1_000
    assert log.read() == [event]


def test_an_event_the_vocabulary_does_not_know_leaves_no_trace(log: EventLog, path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"session\.wrote"):
        log.append("session.wrote", {}, ts=NOW)
    assert not path.exists()


def test_an_event_that_cannot_be_written_leaves_the_log_as_it_was(log: EventLog, path: Path) -> None:
    write(log)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="path_fields"):
        write(log, "\udce9")
    assert path.read_bytes() == before
    assert write(log).seq == 1


def test_two_writers_in_turn_continue_each_others_count(path: Path) -> None:
    first, second = (EventLog(path, STREAM, durability="fast") for _ in range(2))
    assert [write(log).seq for log in (first, second, second, first, second)] == [0, 1, 2, 3, 4]


def test_an_unknown_durability_is_refused(path: Path) -> None:
    with pytest.raises(InvalidInput, match="'sometimes'"):
        EventLog(path, STREAM, durability="sometimes")  # type: ignore[arg-type]


def test_a_missing_directory_is_a_typed_error(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "gone" / "events.jsonl", STREAM)
    assert log.read() == []
    with pytest.raises(AdapterUnavailable, match="gone"):
        write(log)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to count descriptors")
def test_logs_that_are_not_in_use_hold_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    logs = [EventLog(tmp_path / f"{number}.jsonl", STREAM, durability="fast") for number in range(50)]
    for log in logs:
        write(log)
        log.read()
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # listing them takes one


def test_a_log_is_written_whole_however_little_the_system_takes(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    takes_little = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: takes_little(fd, data[:7]))
    event = write(log)
    assert log.read("strict") == [event]


# Reading ------------------------------------------------------------------------------------------------------------------------


def test_refresh_gives_each_event_once(log: EventLog, path: Path) -> None:
    other = EventLog(path, STREAM, durability="fast")
    assert log.refresh() == []
    first = write(other)
    assert log.refresh() == [first]
    assert log.refresh() == []


def test_refresh_does_not_repeat_what_append_returned(log: EventLog) -> None:
    write(log)
    assert log.refresh() == []


def test_refresh_has_no_gap_when_append_met_another_writers_events(log: EventLog, path: Path) -> None:
    mine = write(log)
    theirs = write(EventLog(path, STREAM, durability="fast"))
    again = write(log)
    assert [mine.seq, theirs.seq, again.seq] == [0, 1, 2]
    assert log.refresh() == [theirs, again]


def test_reading_does_not_wait_for_a_writer(log: EventLog, path: Path) -> None:
    event = write(log)
    with Lease(path.with_name(".lock")):
        assert EventLog(path, STREAM).read() == [event]


def test_an_unknown_way_to_read_is_refused(log: EventLog) -> None:
    with pytest.raises(InvalidInput, match="'lenient'"):
        log.read("lenient")  # type: ignore[arg-type]


def test_a_reader_that_meets_a_repair_half_way_looks_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = b"".join(lines_of(3))
    path.write_bytes(good)
    mixture = good[:150] + good
    answers = [mixture, good]
    monkeypatch.setattr(log_module, "_read_fd", lambda fd, offset: answers.pop(0))
    assert len(EventLog(path, STREAM).read()) == 3
    assert answers == []


def test_a_log_that_lost_events_is_damaged(log: EventLog, path: Path) -> None:
    write(log)
    write(log)
    path.write_bytes(b"")
    for act in (log.refresh, lambda: write(log), lambda: log.repair(ts=NOW)):
        with pytest.raises(LogDamaged, match="lost events"):
            act()


# Torn ends ----------------------------------------------------------------------------------------------------------------------


def test_cut_at_any_byte_a_log_reads_as_the_events_that_were_whole(tmp_path: Path) -> None:
    lines = lines_of(20)
    raw = b"".join(lines)
    whole = scan(raw, STREAM).events
    ends = [sum(map(len, lines[:count])) for count in range(21)]
    for length in range(len(raw) + 1):
        found = scan(raw[:length], STREAM)
        count = max(count for count in range(21) if ends[count] <= length)
        assert found.events == whole[:count]
        assert found.damaged == ()
        assert (found.end.offset, found.end.seq, found.torn) == (ends[count], count, length - ends[count])


@pytest.mark.parametrize("cut", [1, 60, 130])
def test_a_torn_end_is_cut_off_and_said_so_by_the_next_append(path: Path, cut: int) -> None:
    raw = b"".join(lines_of(3))
    path.write_bytes(raw[:-cut])
    log = EventLog(path, STREAM, durability="fast")
    kept = log.read()
    assert [event.seq for event in kept] == [0, 1]
    with pytest.raises(LogDamaged, match=r"line 3.*cut short"):
        log.read("strict")

    event = write(log)
    assert event.seq == 3
    recovered, again = log.read("strict")[2:]
    assert (recovered.type, again) == ("log.recovered", event)
    assert recovered.data == {"dropped_bytes": len(lines_of(3)[2]) - cut}
    assert log.refresh() == []


def test_refresh_tells_of_what_an_append_mended_first(path: Path) -> None:
    path.write_bytes(b"".join(lines_of(2)))
    log = EventLog(path, STREAM, durability="fast")
    log.read()
    with path.open("ab") as file:
        file.write(b'{"half')

    written = write(log)

    assert log.behind
    assert [event.type for event in log.refresh()] == ["log.recovered", written.type]
    assert log.refresh() == []


def test_repair_mends_without_an_append_and_once(path: Path) -> None:
    path.write_bytes(b"".join(lines_of(2)) + b'{"v":1,"se')
    log = EventLog(path, STREAM, durability="fast")
    event = log.repair(ts=NOW)
    assert event is not None
    assert (event.seq, event.type, event.data) == (2, "log.recovered", {"dropped_bytes": 10})
    assert log.repair(ts=NOW) is None
    assert EventLog(path, STREAM).read("strict")[-1] == event


def test_a_last_line_that_fails_its_checksum_is_torn(path: Path) -> None:
    lines = lines_of(3)
    path.write_bytes(lines[0] + lines[1] + lines[2].replace(b"recovered", b"recxvered"))
    log = EventLog(path, STREAM, durability="fast")
    assert len(log.read()) == 2
    assert write(log).seq == 3


def test_a_last_line_that_only_says_the_wrong_thing_is_not_torn(path: Path) -> None:
    lines = lines_of(5)
    path.write_bytes(lines[0] + lines[4])
    with pytest.raises(LogDamaged, match="line 2"):
        EventLog(path, STREAM).repair(ts=NOW)


def test_a_log_of_which_no_line_is_whole_becomes_empty(path: Path) -> None:
    path.write_bytes(lines_of(1)[0][:-5])
    log = EventLog(path, STREAM, durability="fast")
    assert log.repair(ts=NOW) is None
    assert path.read_bytes() == b""
    assert write(log).seq == 0


def test_repairing_what_is_not_there_makes_nothing(log: EventLog, path: Path) -> None:
    assert log.repair(ts=NOW) is None
    assert not path.exists()


# Damage -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_is_ever_read_as_an_event(bit: int) -> None:
    raw = b"".join(lines_of(20))
    whole = scan(raw, STREAM).events
    for place in range(len(raw)):
        flipped = bytearray(raw)
        flipped[place] ^= 1 << bit
        found = scan(bytes(flipped), STREAM)
        assert len(found.events) < 20
        assert all(event == whole[event.seq] for event in found.events)
        assert found.damaged or found.torn


def test_a_damaged_middle_is_reported_with_its_place_and_nothing_is_written(path: Path) -> None:
    lines = lines_of(4)
    path.write_bytes(b"".join(lines[:2]) + b"X" + b"".join(lines[2:])[1:])
    before = path.read_bytes()
    log = EventLog(path, STREAM)
    for act in (log.read, log.refresh, lambda: log.read("strict"), lambda: write(log), lambda: log.repair(ts=NOW)):
        with pytest.raises(LogDamaged, match=rf"events\.jsonl is damaged in line 3, at byte {len(lines[0] + lines[1])}: "):
            act()
    assert path.read_bytes() == before


def test_salvage_gives_what_is_left_of_a_damaged_log(path: Path) -> None:
    lines = lines_of(6)
    path.write_bytes(lines[0] + b"garbage\n" + lines[2] + lines[4] + lines[3] + lines[5][:-3])
    found = EventLog(path, STREAM).salvage()
    assert [event.seq for event in found.events] == [0, 2, 4]
    assert [damage.line for damage in found.damaged] == [2, 5]
    assert (found.end.seq, found.torn) == (1, len(lines[5]) - 3)


@pytest.mark.parametrize(
    ("order", "reason"), [((0, 2, 3), "Its seq is 2, and 1 comes next"), ((0, 1, 1, 2), "Its seq is 1"), ((1, 2), "Its seq is 1")]
)
def test_events_out_of_their_order_are_damage(path: Path, order: tuple[int, ...], reason: str) -> None:
    lines = lines_of(4)
    path.write_bytes(b"".join(lines[seq] for seq in order))
    with pytest.raises(LogDamaged, match=reason):
        EventLog(path, STREAM).read()


def test_a_log_copied_from_another_session_is_damage(path: Path) -> None:
    path.write_bytes(b"".join(lines_of(2)))
    with pytest.raises(LogDamaged, match="belongs to the session 'sess_a'"):
        EventLog(path, "sess_b").read()


def test_a_log_of_a_later_version_is_named_and_left_alone(path: Path) -> None:
    from zlib import crc32

    body = b'{"v":2,"anything":[]'
    path.write_bytes(body + b',"crc":"%08x"}\n' % crc32(body))
    with pytest.raises(MetadataVersionUnsupported, match=r"events\.jsonl cannot be read"):
        EventLog(path, STREAM).read()


def test_events_of_another_log_are_stored_in_one_write_under_new_numbers(tmp_path: Path) -> None:
    source, target = EventLog(tmp_path / "source", "sess_a"), EventLog(tmp_path / "target", "sess_b")
    for number in range(3):
        source.append("session.accessed", {"op": str(number)}, ts=number * 1000, actor="agent")
    target.append("session.accessed", {}, ts=7000)

    stored = target.append_all(source.read()[1:])

    assert stored == target.read()[1:]
    assert [(event.seq, event.ts, event.stream, event.actor, event.data) for event in stored] == [
        (1, 1000, "sess_b", "agent", {"op": "1"}),
        (2, 2000, "sess_b", "agent", {"op": "2"}),
    ]
    assert target.append_all([]) == []


def test_of_events_that_are_stored_together_all_are_checked_first(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", "sess_a")
    good = log.append("session.accessed", {}, ts=0)
    with pytest.raises(InvalidInput):
        log.append_all([good, replace(good, type="session.unknown")])
    assert log.read() == [good]


def test_the_first_event_is_read_alone(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", "sess_a")
    assert log.first() is None
    first = log.append("session.accessed", {}, ts=0)
    (tmp_path / "log").write_bytes((tmp_path / "log").read_bytes() + b"damaged\n")
    assert log.first() == first
    (tmp_path / "log").write_bytes(b'{"v":1')
    assert log.first() is None
