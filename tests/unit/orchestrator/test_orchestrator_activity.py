"""What an agent is doing, by its own files: whole, torn, foreign, busy, damaged, or not there."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.orchestrator import NOW, SECOND, at

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.agent_activity import TAIL, SqliteQuery, read_jsonl, read_sqlite, state_at
from pytest_gittrix.record.state.observations import Activity
from pytest_gittrix.views.orchestrator_status import signal

MS = SqliteQuery("SELECT state, seen FROM sessions")


def line(state: object = "active", ts: object = "2030-01-01T00:00:00Z", **other: object) -> bytes:
    """A line of a log of states."""
    return json.dumps({"ts": ts, "state": state, "source": "native", **other}).encode() + b"\n"


def seen(tmp_path: Path, raw: bytes, age: float = 0) -> Activity:
    """What a log of these bytes tells, so many seconds after ``NOW``."""
    (tmp_path / "log").write_bytes(raw)
    return read_jsonl(tmp_path / "log", NOW + round(age * SECOND))


@pytest.mark.parametrize(
    ("state", "age", "now"),
    [
        *(("active", 30, "active"), ("active", 30.1, "ready"), ("active", 300, "ready"), ("active", 300.1, "idle")),
        *(("ready", 0, "ready"), ("ready", 300, "ready"), ("ready", 301, "idle"), ("idle", 0, "idle")),
        *(("waiting_input", 300, "waiting_input"), ("waiting_input", 301, "idle"), ("blocked", 300, "blocked"), ("blocked", 301, "idle")),
        *(("exited", 9999, "exited"), ("active", -600, "active")),
    ],
)
def test_a_state_becomes_another_with_time(tmp_path: Path, state: str, age: float, now: str) -> None:
    found = seen(tmp_path, line(state), age)

    assert (found.state, found.observed_ns, found.source) == (now, NOW, "native")
    assert state_at(state, NOW, NOW + round(age * SECOND)) == now


def test_the_last_line_counts_and_says_who_told_it(tmp_path: Path) -> None:
    found = seen(tmp_path, line("active") + line("blocked", source="terminal", trigger="rate limit"))

    assert found == Activity("blocked", "terminal", NOW, "rate limit", NOW)


@pytest.mark.parametrize(
    "end",
    [b'{"ts": "2030', b'{"state": "dancing"}\n', b"[]\n", b"\n\n", b"\xff\x00\n", b"null", b"[" * 3000, b'{"state": ["active"]}\n'],
)
def test_what_makes_no_sense_at_the_end_is_passed_over(tmp_path: Path, end: bytes) -> None:
    assert seen(tmp_path, line("ready") + end).state == "ready"


@pytest.mark.parametrize("size", range(1, len(line())))
def test_a_line_that_was_cut_anywhere_is_not_believed(tmp_path: Path, size: int) -> None:
    assert seen(tmp_path, line("ready") + line("waiting_input")[:size]).state in ("ready", "waiting_input")
    if size < len(line("waiting_input")) - 1:
        assert seen(tmp_path, line("ready") + line("waiting_input")[:size]).state == "ready"


@pytest.mark.parametrize("raw", [b"", b"\n", b"nonsense\n", b'{"state": "dancing"}\n'])
def test_a_log_without_a_state_tells_nothing(tmp_path: Path, raw: bytes) -> None:
    found = seen(tmp_path, raw)

    assert found == Activity(source="native", seen_ns=NOW)
    assert signal(found, NOW) == "null"


def test_only_the_last_four_kilobytes_are_read(tmp_path: Path) -> None:
    last = line("ready")
    assert seen(tmp_path, last + b"x" * (TAIL - len(last))).state == "ready"
    assert seen(tmp_path, b"\n" + last + b"x" * (TAIL - len(last))).state == "ready"
    assert seen(tmp_path, line("active") + last + b"x" * (TAIL - len(last) + 1)).state == "unknown"
    # A line of which only the end is in the tail is not taken for one.
    inner = line("blocked")
    assert seen(tmp_path, b'{"x": ' + inner + b"y" * (TAIL - len(inner))).state == "unknown"


@pytest.mark.parametrize("ts", [None, "yesterday", True, "2030-01-01T00:00:00", [], 1e300, float("nan")])
def test_a_state_without_a_time_is_stale(tmp_path: Path, ts: object) -> None:
    for state in ("active", "ready", "idle", "blocked"):
        found = seen(tmp_path, line(state, ts))
        assert (found.state, found.observed_ns, signal(found, NOW)) == (state, None, "stale")


def test_a_time_may_be_a_number_of_milliseconds(tmp_path: Path) -> None:
    assert seen(tmp_path, line("active", NOW // 1_000_000)).observed_ns == NOW


def test_a_log_that_is_not_there_is_no_source(tmp_path: Path) -> None:
    found = read_jsonl(tmp_path / "missing", NOW)

    assert found == Activity(seen_ns=NOW)
    assert signal(found, NOW) == "unavailable"


def test_a_log_that_cannot_be_read_is_a_failure_and_no_exception(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")

    for name in ("directory", "pipe", "loop"):
        found = read_jsonl(tmp_path / name, NOW)
        assert (found.state, found.failed, signal(found, NOW)) == ("unknown", True, "probe_failure")


# A database --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """An agent's own, in which nothing happened yet."""
    with closing(sqlite3.connect(tmp_path / "db ?#%20.sqlite", isolation_level=None, timeout=0)) as connection:
        connection.execute("CREATE TABLE sessions (state, seen)")
        yield connection


def asked(database: sqlite3.Connection, query: SqliteQuery = MS, age: float = 0) -> Activity:
    """What it tells, so many seconds after ``NOW``."""
    (path,) = (file for _, name, file in database.execute("PRAGMA database_list") if name == "main")
    return read_sqlite(path, query, NOW + round(age * SECOND))


@pytest.mark.parametrize(
    ("state", "age", "now"),
    [(None, 10, "active"), (None, 31, "ready"), (None, 301, "idle"), ("waiting_input", 10, "waiting_input"), ("blocked", 301, "idle")],
)
def test_a_database_tells_a_state_or_only_when(database: sqlite3.Connection, state: str | None, age: float, now: str) -> None:
    database.execute("INSERT INTO sessions VALUES (?, ?)", (state, NOW // 1_000_000))

    assert asked(database, age=age) == Activity(now, "native", NOW, None, NOW + round(age * SECOND))


@pytest.mark.parametrize(("unit", "value"), [("s", NOW // SECOND), ("ns", NOW), ("s", "2030-01-01T00:00:00Z"), ("ms", NOW / 1_000_000)])
def test_a_database_counts_time_as_it_likes(database: sqlite3.Connection, unit: str, value: object) -> None:
    database.execute("INSERT INTO sessions VALUES ('ready', ?)", (value,))

    assert asked(database, SqliteQuery(MS.sql, unit)).observed_ns == at(0)
    with pytest.raises(InvalidInput, match="'fortnight' is not a unit"):
        SqliteQuery(MS.sql, "fortnight")


def test_a_database_without_a_row_tells_nothing(database: sqlite3.Connection) -> None:
    assert asked(database) == asked(database, SqliteQuery("SELECT NULL, max(seen) FROM sessions")) == Activity(source="native", seen_ns=NOW)


def test_a_state_of_a_database_without_a_time_is_stale(database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO sessions VALUES ('idle', NULL)")

    assert signal(asked(database), NOW) == "stale"


def test_a_database_that_is_busy_is_a_failure_and_no_exception(database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO sessions VALUES ('ready', 1)")
    database.execute("BEGIN EXCLUSIVE")
    busy = asked(database)
    database.execute("ROLLBACK")

    assert (busy.failed, busy.state, signal(busy, NOW)) == (True, "unknown", "probe_failure")
    assert "locked" in str(busy.detail)
    assert not asked(database).failed


@pytest.mark.parametrize(
    "sql",
    [
        *(
            "SELECT * FROM elsewhere",
            "SELECT 'ready'",
            "SELECT 'dancing', 1",
            "SELECT 'ready', 'soon'",
            "SELECT 'ready', x'00'",
            "nonsense",
        ),
        *("SELECT 3, 4", "INSERT INTO sessions VALUES (1, 2)", "SELECT 1, 2; SELECT 3, 4", "SELECT 'ready', 1e300"),
    ],
)
def test_an_answer_of_another_shape_is_a_failure(database: sqlite3.Connection, sql: str) -> None:
    assert asked(database, SqliteQuery(sql)).failed
    assert database.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


def test_a_damaged_database_is_a_failure_at_whatever_byte(database: sqlite3.Connection, tmp_path: Path) -> None:
    database.executemany("INSERT INTO sessions VALUES ('ready', ?)", [(number,) for number in range(500)])
    (whole,) = (path.read_bytes() for path in tmp_path.iterdir())
    broken = tmp_path / "broken"
    for start in range(0, len(whole), 509):
        broken.write_bytes(whole[:start] + b"\xa5" * 97 + whole[start + 97 :])
        assert read_sqlite(broken, SqliteQuery("SELECT state, max(seen) FROM sessions"), NOW).state in ("unknown", "idle")
    broken.write_bytes(b"not a database" * 100)
    assert read_sqlite(broken, MS, NOW).failed
    broken.write_bytes(whole[: len(whole) // 2])
    assert read_sqlite(broken, SqliteQuery("SELECT state, max(seen) FROM sessions"), NOW).failed


def test_a_database_that_is_not_there_is_no_source_and_is_not_made(tmp_path: Path) -> None:
    assert read_sqlite(tmp_path / "missing", MS, NOW) == Activity(seen_ns=NOW)
    assert read_sqlite(tmp_path, MS, NOW).failed
    assert os.listdir(tmp_path) == []


# What an agent can put in the way ------------------------------------------------------------------------------------------------


def stored(path: Path, *statements: str) -> Path:
    """A database that somebody made so."""
    with closing(sqlite3.connect(path)) as made:
        for statement in statements:
            made.execute(statement)
        made.commit()
    return path


NUMBERS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
ENDLESS = f"CREATE VIEW sessions AS {NUMBERS} SELECT 'active' AS state, max(x) AS seen FROM n"


@pytest.mark.parametrize(
    "view",
    [
        ENDLESS,
        "CREATE VIEW sessions AS SELECT 'active' AS state, zeroblob(500000000) AS seen",
        "CREATE VIEW sessions AS SELECT 'active' AS state, randomblob(500000000) AS seen",
    ],
    ids=["endless", "large", "large and dear"],
)
def test_a_database_that_answers_without_end_is_given_up(tmp_path: Path, view: str) -> None:
    found = read_sqlite(stored(tmp_path / "agent.db", view), MS, NOW)
    assert (found.failed, found.state) == (True, "unknown")
    assert len(found.detail or "") < 300


@pytest.mark.parametrize("beside", ["-journal", "-wal", "-shm"])
def test_a_pipe_beside_a_database_is_not_waited_at(tmp_path: Path, beside: str) -> None:
    made = stored(tmp_path / "agent.db", "CREATE TABLE sessions (state, seen)", "INSERT INTO sessions VALUES ('active', 1)")
    os.mkfifo(f"{made}{beside}")
    assert "not a file" in str(read_sqlite(made, MS, NOW).detail)


def test_a_large_row_of_which_little_is_asked_is_no_harm(tmp_path: Path) -> None:
    row = f"INSERT INTO sessions VALUES ('ready', {NOW // 1_000_000}, zeroblob(5000000))"
    made = stored(tmp_path / "agent.db", "CREATE TABLE sessions (state, seen, talk)", row)
    assert read_sqlite(made, MS, NOW) == Activity("ready", "native", NOW, None, NOW)


def test_half_a_character_in_a_log_is_told_as_one_that_can_be_stored(tmp_path: Path) -> None:
    assert seen(tmp_path, line("blocked", trigger="\ud800 limit")).detail == "? limit"
