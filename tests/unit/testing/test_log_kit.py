"""A log to build and to damage: each change is of the real file, and what readers make of it is what they document."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.engine import open_site

from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.errors import InvalidInput, LogDamaged, MetadataVersionUnsupported, SessionNotFound
from pytest_gittrix.record.eventlog.vocabulary import VOCABULARY
from pytest_gittrix.record.state.fold import fold
from pytest_gittrix.testing.scenarios.log_kit import LogKit, open_log


@pytest.fixture
def log(tmp_path: Path) -> LogKit:
    """One without events."""
    return LogKit(tmp_path / "store")


@pytest.fixture
def built(log: LogKit) -> LogKit:
    """One of twenty."""
    log.build(20)
    return log


def seqs(log: LogKit) -> list[int]:
    """What can still be believed."""
    return [event.seq for event in log.events("skip")]


class TestBuilding:
    def test_gives_as_many_events_as_asked_for_and_all_are_in_the_file(self, log: LogKit) -> None:
        made = log.build(20)

        assert made == log.events("strict")
        assert [event.seq for event in made] == list(range(20))
        assert log.path.read_bytes().count(b"\n") == 20
        assert log.state() == fold(made)

    def test_goes_on_where_it_was(self, log: LogKit) -> None:
        log.build(7)
        more = log.build(5, seed=3)

        assert [event.seq for event in more] == list(range(7, 12))
        assert log.invariants() == []

    @pytest.mark.parametrize("seed", range(12))
    def test_gives_legal_histories_of_many_kinds_of_events(self, log: LogKit, seed: int) -> None:
        made = log.build(150, seed=seed)

        assert log.invariants() == []
        assert len({event.type for event in made}) > 14

    def test_is_the_same_for_the_same_seed_and_another_for_another(self, tmp_path: Path) -> None:
        one, same, other = (LogKit(tmp_path / name).build(30, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))

        assert [event.type for event in one] == [event.type for event in same] != [event.type for event in other]

    def test_gives_sessions_a_store_can_load(self, built: LogKit) -> None:
        assert built.store.ids() == [built.id]
        assert built.store.load(built.id).seq == 19


class TestAppending:
    def test_lets_a_session_be_born_first(self, log: LogKit) -> None:
        log.append("user_message", text="hello")

        assert [event.type for event in log.events()] == ["session.created", "workspace.ready", "user_message"]

    def test_fills_in_what_a_birth_needs_and_keeps_what_was_said(self, log: LogKit) -> None:
        log.append("session.created", task="mine", identity={"agent": "toast"})

        assert (log.state().task, log.state().identity) == ("mine", {"agent": "toast"})

    def test_refuses_what_cannot_happen_and_stores_nothing(self, built: LogKit) -> None:
        built.append("session.ended", state="discarded")
        before = built.path.read_bytes()

        with pytest.raises(LogDamaged, match="cannot happen"):
            built.append("user_message", text="late")
        with pytest.raises(InvalidInput, match=r"no event 'session\.exploded'"):
            built.append("session.exploded")
        assert built.path.read_bytes() == before

    def test_stores_what_cannot_happen_if_that_is_asked_for(self, built: LogKit) -> None:
        built.append("session.ended", state="discarded")
        built.put("user_message", {"text": "late"}, legal=False)

        with pytest.raises(LogDamaged):
            built.state()
        assert built.state("skip").state == "discarded"

    def test_has_a_second_between_events_or_the_time_that_is_given(self, log: LogKit) -> None:
        log.append("user_message", text="hello")
        log.put("assistant_message", {"text": "hello"}, at=datetime(2040, 1, 1, tzinfo=UTC))
        log.append("user_message", text="bye")
        start = int(CLOCK_START.timestamp())

        assert [event.ts // 10**9 for event in log.events()] == [start, start + 1, start + 2, 2208988800, 2208988801]

    def test_takes_what_another_writer_stored_into_account(self, built: LogKit) -> None:
        other = LogKit.of(built.path)
        other.append("user_message", text="from there")

        assert built.append("assistant_message", text="from here").seq == 21
        assert built.invariants() == []


class TestDamage:
    def test_cut_off_bytes_are_a_torn_end(self, built: LogKit) -> None:
        built.truncate(-3)

        assert len(built.events()) == 19
        with pytest.raises(LogDamaged, match="cut short"):
            built.events("strict")

    def test_a_torn_end_is_mended_by_the_next_writer(self, built: LogKit) -> None:
        built.truncate(-3)
        built.append("user_message", text="on")

        assert [event.type for event in built.events("strict")[-2:]] == ["log.recovered", "user_message"]
        assert built.invariants() == []

    def test_a_log_can_be_emptied(self, built: LogKit) -> None:
        built.truncate(0)

        assert built.events() == []
        with pytest.raises(SessionNotFound):
            built.state()

    @pytest.mark.parametrize("line", [1, 10, 19])
    def test_garbage_in_a_line_is_damage_there(self, built: LogKit, line: int) -> None:
        built.garbage(line)

        with pytest.raises(LogDamaged, match=f"in line {line}, at byte"):
            built.events()
        assert seqs(built) == [seq for seq in range(20) if seq != line - 1]

    def test_garbage_after_the_last_line_is_a_torn_end(self, built: LogKit) -> None:
        built.garbage(21, b"{")

        assert seqs(built) == list(range(20))
        with pytest.raises(LogDamaged, match="line 21"):
            built.events("strict")

    def test_garbage_may_hold_line_ends_of_other_systems(self, built: LogKit) -> None:
        built.garbage(4, b"\r\r\n\r")
        built.garbage(4, b"one line")

        assert built.path.read_bytes().count(b"\n") == 21

    def test_a_line_that_is_there_twice_is_damage(self, built: LogKit) -> None:
        built.duplicate(5)

        with pytest.raises(LogDamaged, match=r"line 7.*Its seq is 5, and 6 comes next"):
            built.events()
        assert seqs(built) == list(range(20))

    def test_a_line_that_is_missing_is_damage(self, built: LogKit) -> None:
        built.drop(5)

        with pytest.raises(LogDamaged, match=r"line 6.*Its seq is 6, and 5 comes next"):
            built.events()

    def test_a_last_line_that_is_missing_cannot_be_missed(self, built: LogKit) -> None:
        built.drop(19)

        assert [event.seq for event in built.events("strict")] == list(range(19))

    def test_an_unknown_type_is_read_and_not_understood(self, built: LogKit) -> None:
        built.unknown_type("session.exploded")

        assert built.events("strict")[-1].type == "session.exploded" not in VOCABULARY
        with pytest.raises(MetadataVersionUnsupported, match=r"session\.exploded"):
            built.state()

    @pytest.mark.parametrize(("byte", "bit"), [(0, 0), (40, 7), (-200, 3)])
    def test_one_bit_is_damage(self, built: LogKit, byte: int, bit: int) -> None:
        before = built.path.read_bytes()
        built.flip(byte, bit)
        after = built.path.read_bytes()

        assert [(old ^ new) for old, new in zip(before, after, strict=True) if old != new] == [1 << bit]
        with pytest.raises(LogDamaged):
            built.events("strict")
        built.flip(byte, bit)
        assert len(built.events("strict")) == 20

    def test_what_is_not_there_cannot_be_damaged(self, built: LogKit) -> None:
        before = built.path.read_bytes()

        ways: list[Callable[[], None]] = [
            lambda: built.garbage(22),
            lambda: built.drop(20),
            lambda: built.duplicate(-1),
            lambda: built.flip(10**6),
        ]
        for damage in ways:
            with pytest.raises(InvalidInput):
                damage()
        with pytest.raises(InvalidInput, match="bit 8"):
            built.flip(0, 8)
        assert built.path.read_bytes() == before

    def test_of_a_missing_line_the_next_writer_stores_nothing(self, built: LogKit) -> None:
        built.drop(5)
        before = built.path.read_bytes()

        with pytest.raises(LogDamaged):
            built.append("user_message", text="on")
        assert built.path.read_bytes() == before


class TestOfASession:
    def test_it_is_the_sessions_own_file(self, tmp_path: Path) -> None:
        with open_site(tmp_path, {"app.py": "v1\n"}) as site:
            session = site.start()
            log = LogKit.of(session)
            log.append("user_message", text="from the kit")

            assert session.history("user_message")[0].data == {"text": "from the kit"}
            assert log.path == site.directory(session) / "events.jsonl"
            assert log.invariants() == []

    def test_damage_reaches_the_engine(self, tmp_path: Path) -> None:
        with open_site(tmp_path, {"app.py": "v1\n"}) as site:
            session = site.start()
            session.write("app.py", "v2\n")
            LogKit.of(session).flip(20)

            with site.another() as engine:
                assert [problem.id for problem in engine.problems()] == [session.id]

    def test_a_path_must_be_that_of_a_log(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="is not the log of a session"):
            LogKit.of(tmp_path / "events.jsonl")


def test_a_log_without_a_directory_is_gone_after_its_block() -> None:
    with open_log(step=timedelta(minutes=1)) as log:
        first, second = log.build(2)
        assert log.path.exists()

    assert second.ts - first.ts == 60 * 10**9
    assert not log.path.exists()


def test_a_log_in_a_directory_stays(tmp_path: Path) -> None:
    with open_log(tmp_path, id="sess_mine") as log:
        log.build(3)

    assert len(LogKit.of(tmp_path / "sess_mine" / "events.jsonl").events()) == 3
