"""Questions to a store of a hundred thousand sessions: what finding some of them costs, that the answer is up to date included."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Measurement, Phases, Variant, interleave, scratch, summarise, timed
from benchmarks.sessions import AGENTS, APART_NS, START_NS, UNITS, fill, id_of
from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.durations import instant_at
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.testing.world import World

SESSIONS: Final = 100_000
_SOME: Final = 50


def query(*, quick: bool = False) -> list[Measurement]:
    """Each filter alone, several at once, and what nobody has; of an engine that looked at the store before, then of a new one."""
    count = SESSIONS // 20 if quick else SESSIONS
    with scratch(disk=True) as root, World.open(root / "world", files={"app.py": "print()\n"}, bare=True) as world:
        sessions = root / "gittrix" / "sessions"
        fill(sessions, count, events=3)

        def engine() -> GitTrix:
            durable = LocalDurable(world.durable.path, sync=False)
            return GitTrix(durable, LocalEphemeral("clone"), store=sessions, clock=world.clock, durability="fast", sweep_interval=None)

        built = timed(lambda: engine().query(limit=_SOME))
        warm = engine()
        for _ in range(2):
            warm.query(limit=_SOME)
        asked = {name: _asking(warm, wanted, least) for name, (wanted, least) in _questions(count).items()}
        asked["agent, after an event elsewhere"] = _after_an_event(warm, sessions, world.clock)
        found = summarise("query", interleave(asked, rounds=15, seconds=20), size=count)
        rest: dict[str, Variant] = {"the first question of an engine": lambda _turn: timed(lambda: engine().query(limit=_SOME))}
        turns = interleave(rest, rounds=5, seconds=20)
        turns["the first question of all"] = [built]
    return [*found, *summarise("first query", turns, size=count)]


def _questions(count: int) -> dict[str, tuple[dict[str, Any], int]]:
    """What is asked, and how many sessions there must be at least in the answer."""
    middle, later = (instant_at(START_NS + number * APART_NS) for number in (count // 2, count // 2 + _SOME))
    agent, unit, limit = f"agent-{7 % AGENTS}", f"unit-{9 % UNITS}", {"limit": _SOME}
    all_since = {"since": instant_at(START_NS), **limit}
    return {
        "agent": ({"agent": agent, **limit}, min(_SOME, count // AGENTS)),
        "rig": ({"rig": "rig-3", **limit}, _SOME),
        "work unit": ({"work_unit": unit, **limit}, min(_SOME, count // UNITS)),
        "chain": ({"chain": id_of(300), **limit}, 3),
        "outcome": ({"outcome": "crash", **limit}, _SOME),
        "since": ({"since": middle, **limit}, _SOME),
        "until": ({"until": middle, **limit}, _SOME),
        "since and until, no limit": ({"since": middle, "until": later}, _SOME),
        "agent, no limit": ({"agent": agent}, count // AGENTS),
        "agent, rig, outcome and since": ({"agent": agent, "rig": "rig-7", "outcome": "crash", **all_since}, 1),
        "rig, outcome, since and until": (
            {"rig": "rig-2", "outcome": "done", "until": middle, **all_since},
            _SOME,
        ),
        "an outcome that none has": ({"outcome": "killed", **limit}, 0),
        "a rig and an outcome that none has": ({"rig": "rig-2", "outcome": "killed", **limit}, 0),
    }


def _asking(engine: GitTrix, wanted: dict[str, Any], least: int) -> Variant:
    def run(_turn: int) -> Phases:
        answer: list[object] = []
        phases = timed(lambda: answer.extend(engine.query(**wanted)))
        if len(answer) < least:
            raise AssertionError(f"{len(answer)} sessions were found for {wanted}, not {least}")
        return phases

    return run


def _after_an_event(engine: GitTrix, sessions: Path, clock: FrozenClock) -> Variant:
    elsewhere = Store(sessions, durability="fast")
    ask = _asking(engine, {"agent": "agent-7", "limit": _SOME}, 1)

    def run(turn: int) -> Phases:
        elsewhere.log(id_of(7)).append("workspace.removed", {}, ts=clock.now_ns())
        return ask(turn)

    return run
