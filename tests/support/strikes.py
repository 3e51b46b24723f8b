"""Striking an operation on a scene at many points, and what must hold of every store afterwards, whatever the operation was.

What must hold of one operation's own result, the tests say that strike it.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from support.scene import SOAK, Scene, Scenes

from pytest_gittrix.engine.engine import GitTrix, RecoveryReport
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState, deadline_ns, metadata_of
from pytest_gittrix.record.store.index import Index, Row, unsettled
from pytest_gittrix.testing.faults.fault_sweep import sweep
from pytest_gittrix.testing.faults.supervisor import Fault, Kill, SupervisedRun, supervise_function
from pytest_gittrix.workspaces.seed import _recent as remembered_seeds

Durability = Literal["full", "fast"]

FAILURES: Final = ("ENOSPC", "sticky ENOSPC", "EIO", "sticky EIO")
"""How a disk refuses: at one call, or from it on."""

_DERIVED: Final = re.compile(r"\.lock|index\.sqlite.*")
_RANDOM: Final = re.compile(r"[0-9a-f]{16,}|\d+-\d+")


@dataclass(frozen=True)
class Operation:
    """What is struck.

    Attributes:
        prepare: brings a new scene into the state before; not struck.
        act: the operation, in a process of its own; what it prints (see ``listening``) is its answer.
        judge: what must hold afterwards, once ``settled`` has looked, by what was told; gives a word for what was found.
        stride: which calls the normal run strikes: every so many-th.
    """

    prepare: Callable[[Scene], None]
    act: Callable[[Scene], None]
    judge: Callable[[Scene, list[str]], str]
    stride: int = 6

    def some(self, times: int = 1) -> slice | None:
        """Every so many-th point, times a factor; all of them in a soak."""
        stride = self.stride * times
        return None if SOAK else slice(stride // 2, None, stride)


@contextmanager
def listening(scene: Scene) -> Iterator[GitTrix]:
    """An engine for an operation that is struck; it prints each event that it announces."""

    def tell(event: Event) -> None:
        if event.seq >= 0:
            print(f"heard {event.stream} {event.seq} {event.type}")

    with scene.engine(init=False) as engine:
        engine.on("*", tell)
        yield engine


def recover(scene: Scene) -> None:
    """The operation that comes after each of the others."""
    with listening(scene) as engine:
        engine.recover()


def run(operation: Operation, scene: Scene, fault: Fault | None = None) -> SupervisedRun:
    """Run an operation on a scene that was prepared."""
    remembered_seeds.clear()
    return supervise_function(lambda: operation.act(scene), fault=fault, within=scene.root)


def strike(
    operation: Operation,
    place: Path,
    *,
    durability: Durability = "fast",
    kinds: Sequence[str] = ("kill",),
    points: slice | Collection[int] | None = None,
    told: str = "",
) -> Counter[str]:
    """Strike an operation at many points and judge each.

    Args:
        operation: what is struck.
        place: where its scenes are made.
        durability: of the engine.
        kinds: of faults, as for ``supervisor.sweep``.
        points: which calls: a slice of them, or their numbers from 1; all by default.
        told: what the figures are printed under; without it they are not.

    Returns:
        How often each end was found.

    Raises:
        AssertionError: a point was not survived; the message lists every one of them.
    """
    scenes = Scenes(place, lambda root: Scene(root, durability=durability))
    found: Counter[str] = Counter()
    wrong: list[str] = []
    now: list[Scene] = []

    def prepared_and_run(fault: Fault | None) -> SupervisedRun:
        now[:] = [scenes.next()]
        remembered_seeds.clear()
        operation.prepare(now[0])
        return run(operation, now[0], fault)

    for fault, struck in sweep(prepared_and_run, kinds=kinds, points=points):
        try:
            found[judged(operation, now[0], struck)] += 1
        except Exception as problem:  # whatever it is, it is not what must hold
            call = struck.fired
            where = os.path.relpath(call.path or "", place) if call else "?"
            wrong.append(f"{fault} at {call and call.name} {where}: {type(problem).__name__}: {str(problem)[:900]}")
    tried = sum(found.values()) + len(wrong)
    if told:
        survived = tried - len(wrong)
        print(f"{told} ({', '.join(kinds)}; {durability}): tried {tried}, survived {survived}: {dict(found)}")
    assert not wrong, "\n".join(wrong)
    assert tried
    return found


def judged(operation: Operation, scene: Scene, struck: SupervisedRun) -> str:
    """Judge what a struck operation left; gives the word for it. Raises AssertionError for what must not be."""
    remembered_seeds.clear()
    error = struck.stderr.decode().strip().rpartition("\nTraceback ")[2]
    assert struck.killed or struck.exit_code == 0 or "\npytest_gittrix.errors." in error, error[-900:]
    lines = struck.stdout.decode().splitlines()
    live = settled(scene, lines)
    word = operation.judge(scene, [line for line in lines if not line.startswith("heard ")])
    with scene.engine(init=False) as engine:
        for id_ in live:
            engine.store.log(id_).read("strict")  # a torn end was mended by whoever went on
    return word


def strike_recovery(operation: Operation, place: Path, *, kinds: Sequence[str] = ("kill",), told: str) -> int:
    """Kill an operation at many points, and strike each recovery that makes other calls than those before; gives how often.

    What a recovery finds to throw away, and so how many files it deletes, makes it no other one.

    Args:
        operation: whose recovery is struck.
        place: where its scenes are made.
        kinds: of faults of the recovery.
        told: what the figures are printed under.

    Raises:
        AssertionError: as ``strike``.
    """
    scenes = Scenes(place, Scene)
    seen: set[tuple[tuple[str, str], ...]] = set()
    tried = 0
    scene = scenes.next()
    operation.prepare(scene)
    number = len(run(operation, scene).calls)
    for at in range(1, number + 1)[operation.some(4) or slice(None)]:

        def prepare(scene: Scene, at: int = at) -> None:
            operation.prepare(scene)
            run(operation, scene, Kill(at))

        again = Operation(prepare, recover, lambda scene, _told: operation.judge(scene, []), operation.stride)
        scene = scenes.next()
        prepare(scene)
        paths = [(call.name, _RANDOM.sub("*", call.path or "")) for call in run(again, scene).calls]
        calls = tuple((name, path) for name, path in paths if "/.trash/" not in path)
        if calls and calls not in seen:
            tried += sum(strike(again, place, kinds=kinds, points=None if SOAK else slice(None, None, 3 * operation.stride)).values())
        seen.add(calls)
    print(f"the recovery of {told} ({', '.join(kinds)}): {len(seen)} different ones, tried {tried}, survived {tried}")
    return tried


def lines_of_logs(operation: Operation, place: Path) -> list[int] | None:
    """Which calls write a line of a log: the first of each log and every third one after it; None, for all calls, in a soak."""
    if SOAK:
        return None
    scene = Scenes(place, Scene).next()
    operation.prepare(scene)
    by_log: dict[str, list[int]] = {}
    for call in run(operation, scene).calls:
        if call.size and call.path and call.path.endswith(".jsonl"):
            by_log.setdefault(call.path, []).append(call.index)
    return [number for numbers in by_log.values() for number in numbers[::3]]


# What must hold of every store ------------------------------------------------------------------------------------------------


def settled(scene: Scene, lines: Sequence[str] = ()) -> list[str]:
    """Start a new engine, and see that it left nothing to mend: logs are whole, a second recovery does nothing, the index is right.

    Args:
        scene: where.
        lines: what the struck operation printed: of what it announced, nothing may be missing.

    Returns:
        The sessions that live.
    """
    with scene.engine() as engine:
        assert engine.problems() == []
        before = contents(engine)
        assert engine.recover() == RecoveryReport()
        assert contents(engine) == before
        logs = {id_: engine.store.log(id_).read() for id_ in engine.store.ids()}
        for log in logs.values():
            assert [event.seq for event in log] == [*range(len(log))]
        for line in lines:
            if line.startswith("heard "):
                _, id_, seq, type_ = line.split()
                # A start that failed takes its directory away, events and all.
                assert id_ not in logs or logs[id_][int(seq)].type == type_, line
        named = {path.name for path in engine.store.root.iterdir() if not path.name.startswith(".") and not _DERIVED.fullmatch(path.name)}
        assert named == logs.keys()
        judge_index(engine)
        live = [one.id for one in engine.list_sessions("active")]
    assert not scene.leftovers()
    return live


def contents(engine: GitTrix) -> dict[str, bytes]:
    """The bytes of what is kept of each session, but for locks; of workspaces only that they are there."""
    found: dict[str, bytes] = {}
    for id_ in engine.store.ids():
        for path in engine.store.directory(id_).iterdir():
            if not _DERIVED.fullmatch(path.name):
                found[f"{id_}/{path.name}"] = path.read_bytes() if path.is_file() else b""
    return found


def judge_index(engine: GitTrix) -> None:
    """What the index says is what the fold of every log says."""
    states, problems = engine.store.scan()
    index = Index(engine.store)
    try:
        index.sync()
        rows = {row.id: row for row in index.rows()}
        assert index.problems() == problems == []
        assert index.unsettled() == [state.id for state in states if unsettled(state)]
        assert rows == {state.id: _expected(engine, state.id) for state in states}
    finally:
        index.close()


def _expected(engine: GitTrix, id_: str) -> Row:
    state = engine.store.load(id_)
    deadline = deadline_ns(state)
    log = engine.store.log(id_).path
    times = (state.created_ns, state.updated_ns, state.last_access_ns)
    size, metadata = log.stat().st_size, json.dumps(metadata_of(state))
    return Row(id_, state.state, deadline, *times, state.seq, state.workspace_present, state.legacy, size, metadata)


def log_of(scene: Scene, id_: str) -> list[Event]:
    """A session's events."""
    with scene.engine(init=False) as engine:
        return engine.store.log(id_).read()


def states_of(scene: Scene) -> dict[str, SessionState]:
    """The state of each session there is, by its id."""
    with scene.engine(init=False) as engine:
        return {state.id: state for state in engine.store.scan()[0]}
