"""How fast a session's history grows, beside the same bytes appended by hand, and how fast an index reads histories anew."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from benchmarks.measure import TOTAL, Measurement, Phases, Stopwatch, Variant, interleave, scratch, summarise, timed
from benchmarks.sessions import fill
from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.record.store.fold_checkpoint import FILE
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.testing.world import World

EVENTS: Final = 50_000
BY_HAND, RECORD, HEARD = "by hand: flock, open, write", "session.record", "session.record, one subscriber"
SHORT, LONG, ONE = "5 events a session", "500 events a session", "one session"
_TYPE: Final = "assistant_message"
_ROUNDS: Final = 3


def history(*, quick: bool = False) -> list[Measurement]:
    """Events a second through ``session.record`` without sync, up to a long history; and read back into an index."""
    return [*_recorded(EVENTS // 50 if quick else EVENTS), *_rebuilt(quick=quick)]


def _recorded(count: int) -> list[Measurement]:
    with scratch() as root, World.open(root / "world", files={"app.py": "print()\n"}, bare=True) as world:
        durable = LocalDurable(world.durable.path, sync=False)
        engine = GitTrix(durable, LocalEphemeral("clone"), store=root / "store", clock=world.clock, durability="fast", sweep_interval=None)

        def record(subscribed: bool) -> Variant:
            return lambda _turn: _record(engine, count, subscribed=subscribed)

        bare = encode(Event(count // 2, world.clock.now_ns(), "sess_0123456789ab", _TYPE, "agent", _said(count // 2))) + b"\n"
        variants: dict[str, Variant] = {
            BY_HAND: lambda turn: _by_hand(root / f"bare{turn}", count, bare),
            "EventLog.append": lambda turn: _append(Store(root / f"logs{turn}", durability="fast"), count, world.clock.now_ns()),
            RECORD: record(False),
            HEARD: record(True),
        }
        turns = interleave(variants, rounds=_ROUNDS, seconds=40, warm=0 if count == EVENTS else 1)
    return _a_second("history", turns, dict.fromkeys(variants, count), count)


def _said(number: int) -> dict[str, str]:
    return {"text": f"That was step number {number}; what comes next is the one after it."}


def _record(engine: GitTrix, count: int, *, subscribed: bool) -> Phases:
    session = engine.start_session("Speak")
    heard: list[Event] = []
    if subscribed:
        session.subscribe(heard.append)
    watch = Stopwatch()
    for number in range(count):
        session.record(_TYPE, _said(number))
    watch.lap(TOTAL)
    if len(heard) != count * subscribed:
        raise AssertionError(f"{len(heard)} events were heard, of {count}")
    session.discard()
    return watch.phases


def _append(store: Store, count: int, now: int) -> Phases:
    store.create("sess_bench")
    log = store.log("sess_bench")
    watch = Stopwatch()
    for number in range(count):
        log.append(_TYPE, _said(number), ts=now, actor="agent")
    watch.lap(TOTAL)
    return watch.phases


def _by_hand(directory: Path, count: int, line: bytes) -> Phases:
    """The same bytes and a lock, each opened for the event as the engine does, and nothing else."""
    directory.mkdir()
    lock, log = str(directory / "lock"), str(directory / "log")
    watch = Stopwatch()
    for _ in range(count):
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(held, fcntl.LOCK_EX)
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.write(fd, line)
        os.close(fd)
        os.close(held)
    watch.lap(TOTAL)
    return watch.phases


def _rebuilt(*, quick: bool) -> list[Measurement]:
    less = 20 if quick else 1
    shapes = {SHORT: (4_000 // less, 5), LONG: (200 // less, 500), ONE: (1, EVENTS // less)}
    with scratch() as root:
        variants: dict[str, Variant] = {}
        for name, (sessions, events) in shapes.items():
            store = Store(root / name, durability="fast")
            fill(store.root, sessions, events=events)
            variants[name] = _rebuild(Index(store))
        turns = interleave(variants, rounds=5, seconds=15)
    counts = {name: sessions * events for name, (sessions, events) in shapes.items()}
    return _a_second("rebuild", turns, counts, None)


def _rebuild(index: Index) -> Variant:
    def run(_turn: int) -> Phases:
        for checkpoint in index.store.root.glob(f"*/{FILE}"):
            checkpoint.unlink()  # every line is to be read
        phases = timed(index.rebuild)
        if index.problems():
            raise AssertionError(index.problems()[0].message)
        return phases

    return run


def _a_second(bench: str, turns: dict[str, list[Phases]], counts: dict[str, int], size: int | None) -> list[Measurement]:
    found = []
    for item in summarise(bench, turns):
        events = 1000 * counts[item.name]
        found.append(Measurement(bench, item.name, TOTAL, size, events / item.median, events / item.best, item.rounds, "events/s"))
    return found
