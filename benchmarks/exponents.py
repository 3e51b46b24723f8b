"""How the cost of each operation grows, in each dimension that grows: the exponent of a power law, fitted to the larger sizes.

An operation must cost what changed: 0 is constant, 1 linear and 2 quadratic. Processor time is counted, of this process and its children,
because other programs on the machine hardly change it.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Measurement, Phases, interleave, scratch, summarise
from benchmarks.report import EXPONENT, EXPONENTS
from benchmarks.sessions import fill
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.testing.world import World
from pytest_gittrix.workspaces.kinds import WorkspaceKind

_QUICK: Final = 8
"""A quick run divides each size by this."""
_ROUNDS: Final = 3
_FITTED: Final = 3
"""The number of sizes, the largest ones, that an exponent is fitted to: below them the constant hides the growth."""
_TALK: Final = ("text", "That was one more step; what comes next is the one after it, as it was agreed on before.")


@dataclass(frozen=True)
class Scene:
    """What one size of one dimension consists of.

    Attributes:
        files: durable's files.
        edits: what the agent writes in each session.
        events: how many events each session has before it is read again.
        sessions: how many other sessions there are in the store.
        refs: how many packed references durable has.
        packs: how many packs of one object durable has.
        kind: the kind of workspaces.
    """

    files: Mapping[str, bytes] = field(default_factory=lambda: _flat(20))
    edits: Mapping[str, bytes] = field(default_factory=lambda: {"file00001.txt": b"edited\n", "new.txt": b"new\n"})
    events: int = 0
    sessions: int = 0
    refs: int = 0
    packs: int = 0
    kind: WorkspaceKind = "lazy"


DIMENSIONS: Final[Mapping[str, tuple[tuple[int, ...], Callable[[int], Scene]]]] = {
    "files (lazy)": ((400, 1_600, 6_400, 25_600), lambda size: Scene(files=_flat(size))),
    "files (clone)": ((200, 800, 3_200, 12_800), lambda size: Scene(files=_flat(size), kind="clone")),
    "depth": ((32, 64, 128, 256), lambda size: Scene(files=_flat(3) | _deep(size, b"one\n"), edits=_deep(size, b"two\n"))),
    "touched": ((80, 320, 1_280, 5_120), lambda size: Scene(edits=_flat(size, "new"))),
    "hunks": ((100, 400, 1_600, 6_400), lambda size: Scene(files=_flat(3) | _lines(size, "one"), edits=_lines(size, "two"))),
    "events": ((400, 1_600, 6_400, 25_600), lambda size: Scene(events=size)),
    "sessions": ((400, 1_600, 6_400, 25_600), lambda size: Scene(sessions=size)),
    "refs": ((800, 3_200, 12_800, 51_200), lambda size: Scene(refs=size)),
    "packs": ((24, 96, 384, 1_536), lambda size: Scene(packs=size)),
}
"""The sizes of each dimension, and its scene at a size."""


def exponents(*, quick: bool = False) -> list[Measurement]:
    """Every operation in every dimension: its time at each size, and its exponent."""
    found: list[Measurement] = []
    for dimension, (sizes, scene) in DIMENSIONS.items():
        shrunk = [size // _QUICK for size in sizes] if quick else sizes
        taken = [item for size in shrunk for item in _measured(dimension, scene(size), size)]
        found += taken
        found += [exponent_of(dimension, operation, taken) for operation in dict.fromkeys(item.phase for item in taken)]
    return found


def _measured(dimension: str, scene: Scene, size: int) -> list[Measurement]:
    with scratch() as root:
        if scene.sessions:
            fill(root / "store", scene.sessions, events=3)
        options: dict[str, Any] = {"workspace": scene.kind, "store": root / "store", "separate_files": False, "sweep_interval": None}
        with World.open(root / "world", files=scene.files, bare=True, **options) as world:
            _grow(world, scene)
            turns = interleave({dimension: lambda _turn: _turn_of(world, scene)}, rounds=_ROUNDS, seconds=10)
    return [item for item in summarise(EXPONENTS, turns, size=size) if item.phase != "total"]


def exponent_of(dimension: str, operation: str, taken: list[Measurement]) -> Measurement:
    """The slope of log time over log size, of an operation's best rounds at the larger sizes."""
    points = [(math.log(item.size or 1), math.log(item.best)) for item in taken if item.phase == operation][-_FITTED:]
    middle_x, middle_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / sum((x - middle_x) ** 2 for x, _ in points)
    return Measurement(EXPONENTS, dimension, operation, None, slope, slope, len(points), EXPONENT)


def _turn_of(world: World, scene: Scene) -> Phases:
    """Every operation once: two sessions, one of which is handed on and promoted, and one of which is forked and discarded."""
    engine, resources, baseline = world.gittrix, world.gittrix.services.resources, world.durable.head()
    watch = _Processor()
    session = engine.start_session("Edit")
    agent = session.for_agent()
    watch.lap("start")
    for path, data in scene.edits.items():
        agent.write(path, data)
    watch.lap("write")
    review = session.review()
    watch.lap("review")
    text = review.diff
    watch.lap("diff")
    _talk(engine.store.directory(session.id) / "events.jsonl", session.id, scene.events, world.clock.now_ns())
    watch.skip()
    session = engine.get_session(session.id)
    watch.lap("open")
    engine.info(session.id)
    watch.lap("info")
    child = session.fork()
    watch.lap("fork")
    child.discard()
    watch.lap("archive")
    heir = session.handoff()
    watch.lap("handoff")
    heir.promote()
    watch.lap("promote")
    listed = engine.list_sessions()
    watch.lap("list")
    asked = engine.query(agent="agent-7", limit=20)
    watch.lap("query")
    if not text or len(listed) <= scene.sessions or (scene.sessions > 7 and not asked):
        raise AssertionError("the operations did not do their job")
    resources.trash.wait()
    world.durable.rewind(baseline)
    return watch.phases


class _Processor:
    """Splits one turn into phases, as ``Stopwatch`` does, by processor time."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = _milliseconds()

    def lap(self, phase: str) -> None:
        now = _milliseconds()
        self.phases[phase] = max(now - self._last, 0.001)
        self._last = _milliseconds()

    def skip(self) -> None:
        self._last = _milliseconds()


def _milliseconds() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) * 1000


def _grow(world: World, scene: Scene) -> None:
    durable = world.durable.path
    if scene.refs:
        tags = [f"{world.durable.head()} refs/tags/v{number:06}" for number in range(scene.refs)]
        with (durable / "packed-refs").open("a") as packed:  # which has main alone, and so stays sorted
            packed.write("\n".join(tags) + "\n")
    for number in range(scene.packs):
        data = b"object %d\n" % number
        install_pack(str(durable / "objects"), build_pack({SHA1.hash_object("blob", data): ("blob", data)}, SHA1), mode=0o444)


def _talk(log: Path, id_: str, count: int, now: int) -> None:
    """Append messages and writes to a session's log, as an agent does that works for long."""
    if not count:
        return
    first = log.read_bytes().count(b"\n")
    with log.open("ab") as file:
        for seq in range(first, first + count):
            what = ("session.write", {"path": f"file{seq % 20:05}.txt", "op": "write"}) if seq % 2 else ("assistant_message", dict([_TALK]))
            file.write(encode(Event(seq, now, id_, what[0], "agent", what[1])) + b"\n")


def _flat(count: int, name: str = "file") -> dict[str, bytes]:
    return {f"{name}{number:05}.txt": b"%s %d\n" % (name.encode(), number) for number in range(count)}


def _deep(depth: int, data: bytes) -> dict[str, bytes]:
    return {"d/" * depth + "file.txt": data}


def _lines(hunks: int, text: str) -> dict[str, bytes]:
    """A file of which every twentieth line is ``text``, and the others do not change."""
    return {"table.txt": b"".join(b"%s %d\n" % (b"line" if at % 20 else text.encode(), at) for at in range(hunks * 20))}
