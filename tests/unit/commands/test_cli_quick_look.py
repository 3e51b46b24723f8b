"""``session list`` and ``session info`` of a store at rest are answered from its index, with the bytes of the ordinary command."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_gittrix import EvictionPolicy, GitTrix, LocalDurable
from pytest_gittrix.cli.main import main
from pytest_gittrix.cli.quick_look import quick_look
from pytest_gittrix.os_level.files import is_older
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.record.store.up_to_date import is_up_to_date, up_to_date_index
from pytest_gittrix.testing.world import World

# What a command that only shows something has no use for; the last three cost less than the others, but more than the answer.
HEAVY = ("pydantic", "pygit2", "rich", "jinja2", "ssl", "asyncio", "importlib.metadata", "hypothesis", "multiprocessing")
MACHINERY = ("argparse", "dataclasses", "pathlib")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with sessions that ended in each way, and one that goes on, with an index in a file."""
    root = tmp_path_factory.mktemp("quick")
    with World.open(root / "world", files={"app.py": "print()\n"}, bare=True) as world:
        # The real clock, which a command has.
        engine = GitTrix(LocalDurable(world.durable.path), home=root / "home", durability="fast", sweep_interval=None)
        with engine:
            end_in_each_way(engine)
            end_in_each_way(engine)
            engine.start_session("goes on", eviction=EvictionPolicy(ttl_idle="2h", ttl_absolute="1d"))
            engine.recover()
        indexed(root / "home")
        yield root / "home"


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_GITTRIX_CLOCK", raising=False)


def end_in_each_way(engine: GitTrix) -> None:
    """A promotion, a discard with a report, an expiry, and a handoff to a session that is discarded, with a turn that was left open."""
    promoted = engine.start_session("promoted ünïcode", agent="ada", work_unit="td-7")
    promoted.write("app.py", f"print({promoted.id!r})\n".encode())
    promoted.promote()
    engine.start_session("discarded").discard("crash")
    engine.evict(engine.start_session("evicted\nin two lines").id)
    first = engine.start_session("first", rig="gastown", topic_branch="topic")
    first.write("new.py", b"")
    second = first.handoff("second")
    second.record("user_message", {"text": "go on"})
    second.discard()


def indexed(home: Path) -> None:
    index = Index(Store(home / "sessions"), persist_from=1)
    index.sync()
    index.close()


def ended(home: Path) -> list[str]:
    return [state.id for state in Store(home / "sessions").scan()[0] if state.ended]


def printed(capsysbinary: pytest.CaptureFixture[bytes], *line: str) -> bytes:
    assert main(line) == 0
    return capsysbinary.readouterr().out


def test_it_prints_what_the_ordinary_command_prints(home: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    store = ("--store", str(home / "sessions"))
    lines = [["session", "list"], *(["s", "info", id_] for id_ in (*ended(home), open_one(home / "sessions")))]

    for line in [*lines, *([*line, "--json"] for line in lines)]:
        assert quick_look([*line, *store]) is not None, line
        # The ordinary command, which "--" leads to, runs in the same second.
        quick, ordinary = (printed(capsysbinary, *line, *store, *more) for more in ((), ("--",)))
        assert without_ages(quick) == without_ages(ordinary), line
        if "--json" in line and "info" in line:
            assert [*json.loads(quick)["data"]] == [*json.loads(ordinary)["data"]], line


@pytest.mark.parametrize("made", [True, False], ids=["empty", "missing"])
def test_a_store_with_nothing_in_it_is_listed_as_it_is(made: bool, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    root = tmp_path / "sessions"
    if made:
        root.mkdir()

    quick = quick_look(["session", "list", "--store", str(root)])

    assert quick is not None
    assert quick[0].data == []
    assert root.exists() == made
    for flags in ([], ["--json"]):
        quickly = printed(capsysbinary, "session", "list", "--store", str(root), *flags)
        assert quickly == printed(capsysbinary, "session", "list", "--store", str(tmp_path / "another"), *flags, "--")


def without_ages(text: bytes) -> list[bytes]:
    """The words of an output but ages and times left, which may differ by a second."""
    return [word for word in text.split() if not word.rstrip(b"hms").isdigit() and b"m" not in word[-4:-1]]


def test_what_shows_sessions_loads_nothing_else(home: Path) -> None:
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
before = set(sys.modules)
from pytest_gittrix.cli.main import main
for line in {[["session", "list"], ["session", "info", ended(home)[0]]]!r}:
    assert main([*line, "--store", {str(home / "sessions")!r}]) == 0
print("loaded:", *sorted({{*{HEAVY!r}, *{MACHINERY!r}}} & (set(sys.modules) - before)))
"""

    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines()[-1] == "loaded: rich", "a task that is not ASCII is measured by rich"


def test_what_looks_into_a_workspace_loads_no_more_than_that_takes(home: Path) -> None:
    rooms = ("engine.engine", "engine.services", "engine.promotion", "engine.lineage", "backends", "commands.parser")
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from pytest_gittrix.cli.main import main
for verb in ("info", "touched", "diff", "list-files", "log", "history"):
    assert main(["session", verb, {open_one(home / "sessions")!r}, "--store", {str(home / "sessions")!r}]) == 0
    if verb == "info":
        print("loaded:", *(room for room in {rooms!r} if "pytest_gittrix." + room in sys.modules))
print("loaded:", *sorted({{*{HEAVY!r}}} & set(sys.modules)))
"""

    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert [line for line in done.stdout.splitlines() if line.startswith("loaded:")] == ["loaded:", "loaded:"]


def test_a_session_whose_workspace_is_gone_is_for_the_ordinary_command(home: Path, tmp_path: Path) -> None:
    root = copied(home, tmp_path) / "sessions"
    live = open_one(root)
    assert quick_look(["session", "info", live, "--store", str(root)]) is not None

    shutil.rmtree(root / live / "workspace")

    assert quick_look(["session", "info", live, "--store", str(root)]) is None


@pytest.mark.parametrize(
    "line",
    [
        ["session", "list", "--status", "active"],
        ["session", "list", "active"],
        ["session", "info"],
        ["session", "info", "sess_nowhere"],
        ["session", "list", "--store"],
        ["session", "list", "--store", "../sessions"],
        ["session", "list", "--help"],
        ["sweep"],
        [],
    ],
)
def test_every_other_line_is_for_the_ordinary_command(line: list[str], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITTRIX_HOME", str(home))

    assert quick_look(line) is None


def test_where_a_daemon_runs_it_is_asked(home: Path, tmp_path: Path) -> None:
    line = ["session", "list", "--store", str(copied(home, tmp_path) / "sessions")]
    assert quick_look(line) is not None
    (tmp_path / "home" / "daemon.json").touch()

    assert quick_look(line) is None
    assert quick_look([*line, "--no-daemon"]) is not None


def copied(home: Path, tmp_path: Path) -> Path:
    shutil.copytree(home, tmp_path / "home", symlinks=True)
    index = Index(Store(tmp_path / "home" / "sessions"))
    index.sync()
    index.close()
    return tmp_path / "home"


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def rests(root: Path, at: int | None = None) -> bool:
    with up_to_date_index(str(root), now() if at is None else at) as index:
        return index is not None


def set_aside(root: Path) -> None:
    (root / ".trash" / "0").mkdir(parents=True)


def unneeded_seed(root: Path) -> None:
    seed = root / ".seeds" / "0000-old"
    seed.mkdir()
    os.utime(seed, ns=(0, 0))


def unneeded_spare(root: Path) -> None:
    spare = root / ".spares" / "tmp_dead"
    spare.mkdir(parents=True)
    os.utime(spare, ns=(0, 0))


def rewrite_rows(root: Path, metadata: str) -> None:
    with closing(sqlite3.connect(root / "index.sqlite")) as database, database:
        database.execute("UPDATE session SET metadata = ?", (metadata,))


UNREST: dict[str, Callable[[Path], object]] = {
    "a start was killed": lambda root: (root / "sess_stillborn").mkdir(),
    "a session is gone": lambda root: shutil.rmtree(root / ended(root.parent)[0]),
    "a session was copied in": lambda root: shutil.copytree(root / ended(root.parent)[0], root / "sess_copied"),
    "an open session was written to": lambda root: os.utime(root / open_one(root) / "events.jsonl", ns=(1, 1)),
    "a writer of an open session was killed": lambda root: (root / open_one(root) / ".metadata.json.1-2.tmp").touch(),
    "the trash is not empty": set_aside,
    "a seed is of no use any more": unneeded_seed,
    "a spare is of no use any more": unneeded_spare,
    "the index is a directory": lambda root: ((root / "index.sqlite").unlink(), (root / "index.sqlite").mkdir()),
    "a row of the index is no record": lambda root: rewrite_rows(root, "{}"),
    "a row of the index is no JSON": lambda root: rewrite_rows(root, "no JSON"),
    "the index is damaged": lambda root: (root / "index.sqlite").write_bytes(b"no database, but long enough to be one" * 100),
    "the index is gone": lambda root: (root / "index.sqlite").unlink(),
}


def open_one(root: Path) -> str:
    return next(state.id for state in Store(root).scan()[0] if not state.ended)


@pytest.mark.parametrize("unrest", UNREST)
def test_a_store_in_which_something_is_to_be_done_is_not_at_rest(unrest: str, home: Path, tmp_path: Path) -> None:
    root = copied(home, tmp_path) / "sessions"
    assert rests(root)

    UNREST[unrest](root)

    assert not rests(root)


def test_a_store_with_a_session_past_its_time_or_used_in_the_future_is_not_at_rest(home: Path) -> None:
    root = home / "sessions"

    assert not rests(root, now() + 3 * 3_600_000_000_000)
    assert not rests(root, now() - 3 * 3_600_000_000_000)


def test_an_engine_recovers_a_store_that_is_not_at_rest(home: Path, tmp_path: Path) -> None:
    root = copied(home, tmp_path) / "sessions"
    left = ("a start was killed", "a writer of an open session was killed", "a seed is of no use any more", "a spare is of no use any more")
    for unrest in left:
        UNREST[unrest](root)

    with closing(GitTrix(None, store=root, sweep_interval=None).init()) as engine:
        engine.services.resources.trash.wait()
        assert not (root / "sess_stillborn").exists()
        assert not (root / ".seeds" / "0000-old").exists()
        assert not [*(root / ".spares").iterdir()]
        assert not [*root.glob("*/*.tmp")]
        assert rests(root)


def test_a_record_that_changed_behind_the_index_is_shown_as_it_is(home: Path, tmp_path: Path) -> None:
    root, id_ = copied(home, tmp_path) / "sessions", ended(home)[0]
    log = root / id_ / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b"ended", b"ENDED", 1))

    assert rests(root), "nothing can happen to a session that has ended"
    assert quick_look(["session", "info", id_, "--store", str(root)]) is None
    assert quick_look(["session", "list", "--store", str(root)]) is None


def test_a_command_with_a_clock_in_a_file_is_for_the_ordinary_command(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_GITTRIX_CLOCK", str(home / "clock"))

    assert quick_look(["session", "list", "--store", str(home / "sessions")]) is None


def test_a_command_leaves_an_index_for_the_next(home: Path, tmp_path: Path) -> None:
    root = copied(home, tmp_path) / "sessions"
    (root / "index.sqlite").unlink()
    line = ["session", "list", "--store", str(root)]
    assert quick_look(line) is None

    assert main(line) == 0

    assert quick_look(line) is not None


def damage_every_page(root: Path) -> Iterator[int]:
    """Overwrite one page of the index after another, but for the first."""
    index = root / "index.sqlite"
    whole = index.read_bytes()
    for page in range(4096, len(whole), 4096):
        for name in root.glob("index.sqlite*"):
            name.unlink()
        index.write_bytes(whole[:page] + b"\xff" * 4096 + whole[page + 4096 :])
        yield page // 4096


def test_a_damaged_page_of_the_index_makes_no_command_fail(home: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    root, id_ = copied(home, tmp_path) / "sessions", ended(home)[0]
    lines = [[*line, "--store", str(root), "--json"] for line in (["session", "list"], ["session", "info", id_])]
    expected = [printed(capsysbinary, *line) for line in lines]
    refused = 0

    for page in damage_every_page(root):
        refused += any(quick_look(line) is None for line in lines)
        assert [printed(capsysbinary, *line) for line in lines] == expected, page

    assert refused
    rewrite_rows(root, "no JSON")
    assert [printed(capsysbinary, *line) for line in lines] == expected
    assert quick_look(lines[0]) is not None, "the index was made anew"


def test_a_seed_that_is_renamed_meanwhile_is_not_old(tmp_path: Path) -> None:
    assert not is_older(tmp_path / "tmp_renamed", 0)


@pytest.mark.parametrize("directory", [".seeds", ".spares"])
def test_an_empty_store_is_looked_through_for_what_is_old(tmp_path: Path, directory: str) -> None:
    old = tmp_path / directory / "tmp_dead"
    old.mkdir(parents=True)
    assert is_up_to_date(str(tmp_path), now())

    os.utime(old, ns=(0, 0))

    assert not is_up_to_date(str(tmp_path), now())
    (tmp_path / directory / "tmp_link").symlink_to("nowhere")
    old.rmdir()
    assert is_up_to_date(str(tmp_path), now()), "a name that leads nowhere is as one that another process has just renamed"
