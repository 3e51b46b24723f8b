"""References to the clock that code captured before the freeze, and what else of Python is on it. Each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.freeze import FROZEN, HOUR, run

# The ways in which programs keep a function of the clock. None of them looks it up in a module when it reads.
CAPTURED = """
import datetime as module
import functools
import time
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from time import time as now
from time import gmtime, localtime, strftime, time_ns

from pydantic import BaseModel, Field

module_variable = datetime.now
TABLE = {"now": now, "today": date.today}


def default_argument(when=datetime.now):
    return when(UTC)


def closure(read):
    return lambda: read()


class Column:
    def __init__(self, default):
        self.default = default


class Row:
    clock = time.time
    created = Column(default=datetime.utcnow)


class Day(datetime):
    pass


@dataclass
class Event:
    at: datetime = field(default_factory=functools.partial(datetime.now, UTC))
    stamp: float = field(default_factory=time.time)


class Record(BaseModel):
    at: datetime = Field(default_factory=functools.partial(datetime.now, UTC))


class Stored:
    def __init__(self):
        self.read = module.datetime.now

READS = {
    "module variable": lambda: module_variable(UTC),
    "table": lambda: TABLE["now"](),
    "default argument": default_argument,
    "closure": closure(time_ns),
    "column": lambda: Row.created.default().replace(tzinfo=UTC),
    "class attribute": lambda: Row().clock(),
    "dataclass": lambda: Event().at,
    "default factory": lambda: Event().stamp,
    "pydantic": lambda: Record().at,
    "object": lambda: Stored().read(UTC),
    "partial": functools.partial(datetime.now, UTC),
    "subclass": lambda: Day.now(UTC),
    "struct": lambda: module.datetime(*gmtime()[:6], tzinfo=UTC),
    "local struct": lambda: time.mktime(localtime()),
    "text": lambda: datetime.strptime(strftime("%Y-%m-%dT%H:%M:%S+0000"), "%Y-%m-%dT%H:%M:%S%z"),
    "clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "clock_gettime_ns": lambda: time.clock_gettime_ns(time.CLOCK_REALTIME),
    "ctime": lambda: datetime.strptime(time.ctime(), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC),
    "asctime": lambda: datetime.strptime(time.asctime(), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC),
}


def readings():
    found = {name: read() for name, read in READS.items()}
    seconds = {name: value.timestamp() if isinstance(value, datetime) else value for name, value in found.items()}
    return {name: value / 1e9 if value > 1e12 else value for name, value in seconds.items()} | {"day": TABLE["today"]().isoformat()}
"""


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    (tmp_path / "captured.py").write_text(CAPTURED)
    return tmp_path


@pytest.mark.parametrize("mode", ["wall", "all"])
def test_every_captured_reference_follows_the_clock_and_is_real_again_afterwards(captured: Path, mode: str) -> None:
    out = run(
        f"""
        import warnings
        warnings.filterwarnings("ignore", "datetime.datetime.utcnow")
        import captured
        with process_freeze(clock, {mode!r}):
            out["start"] = captured.readings()
            clock.advance(hours=25)
            out["moved"] = captured.readings()
        out["after"] = captured.readings()
        out["names"] = len(captured.READS)
        """,
        captured,
    )
    start, moved, after = out["start"], out["moved"], out["after"]
    assert len(start) == out["names"] + 1
    assert (start.pop("day"), moved.pop("day")) == ("2030-01-01", "2030-01-02")
    assert start == dict.fromkeys(start, FROZEN)
    assert moved == dict.fromkeys(moved, FROZEN + 25 * HOUR)
    after.pop("day")
    assert not {name for name, seconds in after.items() if seconds >= FROZEN}


def test_the_classes_stay_those_that_they_are(tmp_path: Path) -> None:
    out = run(
        """
        import copy, pickle
        from datetime import date as captured_date, datetime as captured
        import pydantic
        for mode in ("wall", "all"):
            with process_freeze(clock, mode):
                now = datetime.datetime.now()
                class Late(pydantic.BaseModel):
                    at: datetime.datetime
                    day: datetime.date
                out[mode] = [
                    datetime.datetime is captured and datetime.date is captured_date,
                    type(now) is captured and type(captured.now()) is datetime.datetime,
                    type(clock.now()) is captured,
                    Late(at=now, day=now.date()).at == now,
                    pickle.loads(pickle.dumps(now.replace(fold=1))).fold == copy.copy(now.replace(fold=1)).fold == 1,
                ]
        """,
        tmp_path,
    )
    assert out == {"wall": [True] * 5, "all": [True] * 5}


def test_ids_and_log_records_have_the_clocks_time(tmp_path: Path) -> None:
    out = run(
        """
        import logging, uuid
        from uuid import uuid1
        with process_freeze(clock):
            out["record"] = logging.makeLogRecord({}).created
            out["ids"] = [(made.time - 0x01B21DD213814000) // 10**7 for made in (uuid1(), uuid.uuid1())]
        """,
        tmp_path,
    )
    assert out == {"record": FROZEN, "ids": [FROZEN, FROZEN]}


@pytest.mark.parametrize(
    ("zone", "hours"),
    [
        ({}, 0),
        ({"TZ": "America/New_York"}, -5),
        ({"TZ": "EST5"}, -5),
    ],
)
def test_local_time_is_utc_unless_a_zone_was_chosen(tmp_path: Path, zone: dict[str, str], hours: int) -> None:
    out = run(
        f"""
        import os
        os.environ.pop("TZ")
        os.environ.update({zone!r})
        time.tzset()
        before = os.environ.get("TZ"), time.localtime(0)
        with process_freeze(clock):
            local = datetime.datetime.now()
            out["hours"] = (local - datetime.datetime(2030, 1, 1)) / datetime.timedelta(hours=1)
            out["round trip"] = [local.timestamp(), time.mktime(time.localtime()), datetime.datetime.now().astimezone().timestamp()]
        out["as before"] = before == (os.environ.get("TZ"), time.localtime(0))
        """,
        tmp_path,
    )
    assert out == {"hours": hours, "round trip": [FROZEN] * 3, "as before": True}


def test_a_forked_child_keeps_the_instant_of_the_fork_and_one_of_its_own_has_real_time(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text("import time\ndef read(_): return time.time()\n")
    out = run(
        """
        import multiprocessing, warnings
        import child
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in processes with threads
        with process_freeze(clock):
            with multiprocessing.get_context("fork").Pool(1) as pool:
                clock.advance(hours=1)
                out["forked"] = pool.apply(child.read, (0,))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                out["spawned"] = pool.apply(child.read, (0,))
        """,
        tmp_path,
    )
    assert out["forked"] == FROZEN
    assert out["spawned"] < FROZEN


def test_what_is_not_reached_keeps_real_time(tmp_path: Path) -> None:
    out = run(
        """
        import os, sqlite3
        from time import asctime, ctime
        with process_freeze(clock):
            open("file", "w").close()
            out["stamp"] = os.stat("file").st_mtime
            out["sqlite"] = int(sqlite3.connect(":memory:").execute("select strftime('%s')").fetchone()[0])
            out["another clock"] = time.clock_gettime(5) if sys.platform == "linux" else 0
            out["years"] = [int(read()[-4:]) for read in (ctime, asctime)]
        """,
        tmp_path,
    )
    assert max(out.pop("years")) < 2030
    assert not {name for name, seconds in out.items() if seconds >= FROZEN}


def test_gitpythons_wait_for_a_lock_ends(tmp_path: Path) -> None:
    out = run(
        """
        from git.util import BlockingLockFile
        open("file.lock", "w").close()
        with process_freeze(clock):
            try:
                BlockingLockFile("file", check_interval_s=0.01, max_block_time_s=0.05)._obtain_lock()
            except OSError as problem:
                out["ended"] = "Waited" in str(problem)
        """,
        tmp_path,
    )
    assert out == {"ended": True}
