"""A store of thousands of sessions: what sweeping and listing it costs; and how fast events are recorded."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from benchmarks.measure import TOTAL, Measurement, Phases, Stopwatch, Variant, interleave, scratch, summarise, timed
from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.record.eventlog.log import Durability
from pytest_gittrix.record.state.fold import Policy
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.testing.world import World

SESSIONS: Final = 5_000
SWEEP: Final = "sweep, none due"
_DUE: Final = 100
_LONG: Final = Policy(ttl_idle_ns=10_000 * 3600 * 10**9)
_SHORT: Final = timedelta(minutes=1)
_FILES: Final = {f"src/module{number}.py": f"VALUE = {number}\n" for number in range(10)}


def store(*, quick: bool = False) -> list[Measurement]:
    """Sweep and list over a large store: warm, in a new engine, and with some sessions due."""
    count = SESSIONS // 5 if quick else SESSIONS
    with scratch() as root, World.open(root / "world", files=_FILES, bare=True) as world:
        clock = world.clock
        sessions = root / "gittrix" / "sessions"
        _fill(Store(sessions, durability="fast"), count, clock.now_ns())

        def engine() -> GitTrix:
            durable = LocalDurable(world.durable.path, sync=False)
            return GitTrix(durable, LocalEphemeral("clone"), store=sessions, clock=clock, durability="fast", sweep_interval=None)

        build = timed(engine().sweep)  # there is no index yet
        warm = engine()
        variants: dict[str, Variant] = {
            SWEEP: lambda _turn: timed(warm.sweep),
            "list": lambda _turn: timed(warm.list_sessions),
            "sweep, none due, new engine": lambda _turn: timed(engine().sweep),
            "list, new engine": lambda _turn: timed(engine().list_sessions),
        }
        turns = interleave(variants, rounds=7 if quick else 15, seconds=20)
        turns["index built anew"] = [build]
        turns[f"sweep, {_DUE} due"] = [_sweep_due(warm, clock) for _ in range(3)]
        turns["list, some ended"] = [timed(warm.list_sessions) for _ in range(5)]
    return summarise("store", turns, size=count)


def _fill(store: Store, count: int, now: int) -> None:
    for number in range(count):
        id_ = f"sess_{number:012d}"
        directory = store.create(id_)
        created = {
            "task": f"Task number {number}",
            "durable_ref": "local:///srv/project#main",
            "durable_path": "/srv/project",
            "durable_branch": "main",
            "baseline": f"{number:040x}",
            "ephemeral_ref": f"local://{directory}/workspace",
            "workspace": f"{directory}/workspace",
            "workspace_kind": "clone",
            "git_backed": True,
            "policy": _LONG.to_data(),
            "format": "sha1",
            "history": "none",
        }
        log = store.log(id_)
        log.append("session.created", created, ts=now, actor="human")
        log.append("workspace.ready", {"path": f"{directory}/workspace"}, ts=now)
        for name in range(3):
            log.append("session.write", {"path": f"src/module{name}.py", "op": "write"}, ts=now, actor="agent")


def _sweep_due(engine: GitTrix, clock: FrozenClock) -> Phases:
    """Real sessions with unpromoted work, so that each is archived and removed."""
    for number in range(_DUE):
        session = engine.start_session(f"Due {number}", eviction=EvictionPolicy(ttl_idle=_SHORT))
        session.for_agent().write("src/module1.py", "VALUE = 'edited'\n")
    clock.advance(2 * _SHORT)
    watch = Stopwatch()
    evicted = engine.sweep()
    watch.lap(TOTAL)
    if len(evicted) != _DUE:
        raise AssertionError(f"{len(evicted)} sessions were evicted, not {_DUE}")
    return watch.phases


def record(*, quick: bool = False) -> list[Measurement]:
    """Events a second into one log, by durability and place."""
    found: list[Measurement] = []
    durabilities: tuple[Durability, ...] = ("fast", "full")
    with scratch() as memory, scratch(disk=True) as disk:
        variants: dict[str, Variant] = {}
        counts: dict[str, int] = {}
        for place, root in (("memory", memory), ("disk", disk)):
            for durability in durabilities:
                synced = durability == "full"  # the worst case: each event is a commit point
                name = f"{durability}{', each synced' if synced else ''}, {place}"
                counts[name] = (100 if synced else 500) // (2 if quick else 1)
                variants[name] = _appends(root / durability, durability, synced, counts[name])
        turns = interleave(variants, rounds=5, seconds=10)
    for item in summarise("record", turns):
        events = counts[item.name] * 1000
        found.append(Measurement("record", item.name, TOTAL, None, events / item.median, events / item.best, item.rounds, "events/s"))
    return found


def _appends(root: Path, durability: Durability, commit_points: bool, count: int) -> Variant:
    def run(turn: int) -> Phases:
        kept = Store(root / str(turn), durability=durability)
        kept.create("sess_bench")
        log = kept.log("sess_bench")
        watch = Stopwatch()
        for number in range(count):
            event = {"path": f"src/module{number}.py", "op": "write"}
            log.append("session.write", event, ts=number * 1000, actor="agent", commit_point=commit_points)
        watch.lap(TOTAL)
        return watch.phases

    return run
