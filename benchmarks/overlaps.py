"""What overlaps cost: fifty live sessions on 10 000 files, as both sides change more; by the logs, and by a look at every file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.measure import Measurement, Phases, Variant, interleave, scratch, summarise, timed
from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.testing.world import World

FILES: Final = 10_000
SESSIONS: Final = 50
CHANGED: Final = (1, 10, 100)
BENCH: Final = "overlaps"


def overlaps(*, quick: bool = False) -> list[Measurement]:
    """The overlaps of all sessions, with 1, 10 and 100 paths changed by durable and by each session; the size is that number."""
    found: list[Measurement] = []
    files, count = (1_000, 10) if quick else (FILES, SESSIONS)
    tree = {f"src/{number // 100:03d}/module{number}.py": f"VALUE = {number}\n" for number in range(files)}
    with scratch() as root, World.open(root / "world", files=tree, bare=True) as world:
        durable = LocalDurable(world.durable.path, sync=False)
        made = GitTrix(
            durable, LocalEphemeral("clone"), store=Path(root) / "sessions", clock=world.clock, durability="fast", sweep_interval=None
        )
        with made as engine:
            sessions = [engine.start_session(f"task {number}") for number in range(count)]
            for before, changed in zip((0, *CHANGED), CHANGED, strict=False):
                paths = list(tree)[before:changed]
                for session in sessions:
                    for path in paths:
                        session.write(path, f"VALUE = {session.id!r}\n")
                world.rival.commit(dict.fromkeys(paths, f"VALUE = {changed}\n"))

                def quickly(_turn: int) -> Phases:
                    return timed(engine.overlaps)

                def whole(_turn: int) -> Phases:
                    return timed(lambda: engine.overlaps(look=True))

                variants: dict[str, Variant] = {"overlaps()": quickly, "overlaps(look=True)": whole}
                found += summarise(BENCH, interleave(variants, rounds=3 if quick else 5, seconds=15), size=changed)
    return found
