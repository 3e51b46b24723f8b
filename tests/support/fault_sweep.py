"""Plays faults in an operation on a scene at many points, and checks what must hold of every store afterwards.

Each test checks what must hold of the result of its own operation.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from support.scene import SOAK, Scene, Scenes

from pytest_gittrix.engine.engine import GitTrix, RecoveryReport
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState, deadline_ns, metadata_of
from pytest_gittrix.record.store.index import Index, IndexRow, unsettled
from pytest_gittrix.record.store.listing import is_temporary
from pytest_gittrix.testing.faults.fault_sweep import sweep
from pytest_gittrix.testing.faults.supervisor import Fault, KillAt, SupervisedRun, supervise_function
from pytest_gittrix.workspaces.seeds.seed import _recent as remembered_seeds

Durability = Literal["full", "fast"]

FAILURES: Final = ("ENOSPC", "sticky ENOSPC", "EIO", "sticky EIO")
"""How a disk fails: at one call, or from it on."""

ANNOUNCED: Final = "announced "
"""The beginning of the lines that an operation prints for its events."""

_DERIVED: Final = re.compile(r"\.lock|index\.sqlite.*")
_RANDOM: Final = re.compile(r"[0-9a-f]{16,}|\d+-\d+")


@dataclass(frozen=True)
class Operation:
    """An operation that meets faults.

    Attributes:
        prepare: brings a new scene into the state before; meets no faults.
        act: the operation, in a separate process; what it prints (see ``announcing_engine``) is its answer.
        judge: checks what must hold afterwards, after ``check_store``, given the printed lines; returns a word for what it found.
        stride: the distance between two calls with a fault in a normal run.
    """

    prepare: Callable[[Scene], None]
    act: Callable[[Scene], None]
    judge: Callable[[Scene, list[str]], str]
    stride: int = 6

    def some(self, times: int = 1) -> slice | None:
        """Return every ``stride``-th point, times a factor; all points in a soak."""
        stride = self.stride * times
        return None if SOAK else slice(stride // 2, None, stride)


@contextmanager
def announcing_engine(scene: Scene) -> Iterator[GitTrix]:
    """Open an engine for an operation that meets faults; it prints each event that it announces."""

    def announce(event: Event) -> None:
        if event.seq >= 0:
            print(f"{ANNOUNCED}{event.stream} {event.seq} {event.type}")

    with scene.engine(init=False) as engine:
        engine.on("*", announce)
        yield engine


def recover(scene: Scene) -> None:
    """Recover; the operation that follows each of the others."""
    with announcing_engine(scene) as engine:
        engine.recover()


def run(operation: Operation, scene: Scene, fault: Fault | None = None) -> SupervisedRun:
    """Run an operation on a scene that was prepared."""
    remembered_seeds.clear()
    return supervise_function(lambda: operation.act(scene), fault=fault, within=scene.root)


def sweep_scenes(
    directory: Path,
    make: Callable[[Path], Scene],
    run: Callable[[Scene, Fault | None], SupervisedRun],
    check: Callable[[Scene, SupervisedRun], str],
    *,
    kinds: Sequence[str],
    points: slice | Collection[int] | None,
    label: str = "",
) -> Counter[str]:
    """Play faults at many points, each in a new scene, and check what each left.

    Args:
        directory: where the scenes are made.
        make: makes a scene there.
        run: prepares a scene and runs the program with a fault.
        check: checks the scene after a run; returns a word for what it found.
        kinds: kinds of fault, as for ``fault_sweep.sweep``.
        points: which calls: a slice of them, or their numbers from 1; all if None.
        label: what the figures are printed under; without it they are not.

    Returns:
        How often each word was found.

    Raises:
        AssertionError: a fault was not survived; the message lists every one.
    """
    scenes = Scenes(directory, make)
    found: Counter[str] = Counter()
    wrong: list[str] = []
    current: list[Scene] = []

    def run_in_new_scene(fault: Fault | None) -> SupervisedRun:
        current[:] = [scenes.next()]
        remembered_seeds.clear()
        return run(current[0], fault)

    for fault, faulty in sweep(run_in_new_scene, kinds=kinds, points=points):
        remembered_seeds.clear()
        try:
            found[check(current[0], faulty)] += 1
        except Exception as problem:  # any error says that something does not hold
            call = faulty.fired
            path = os.path.relpath(call.path or "", directory) if call else "?"
            wrong.append(f"{fault} at {call and call.name} {path}: {type(problem).__name__}: {str(problem)[:900]}")
    tried = sum(found.values()) + len(wrong)
    if label:
        print(f"{label}: tried {tried}, survived {tried - len(wrong)}: {dict(found)}")
    assert not wrong, "\n".join(wrong)
    return found


def sweep_operation(
    operation: Operation,
    directory: Path,
    *,
    durability: Durability = "fast",
    kinds: Sequence[str] = ("kill",),
    points: slice | Collection[int] | None = None,
    label: str = "",
) -> Counter[str]:
    """Play faults in an operation at many points, and check what each left; arguments, result and errors as for ``sweep_scenes``.

    Args:
        operation: the operation.
        durability: the durability of the engine.
    """

    def prepare_and_run(scene: Scene, fault: Fault | None) -> SupervisedRun:
        operation.prepare(scene)
        return run(operation, scene, fault)

    found = sweep_scenes(
        directory,
        lambda root: Scene(root, durability=durability),
        prepare_and_run,
        partial(check_operation, operation),
        kinds=kinds,
        points=points,
        label=f"{label} ({', '.join(kinds)}; {durability})" if label else "",
    )
    assert found
    return found


def check_operation(operation: Operation, scene: Scene, faulty: SupervisedRun) -> str:
    """Check what an operation with a fault left; return the word for it. Raises AssertionError for what must not be."""
    error = faulty.stderr.decode().strip().rpartition("\nTraceback ")[2]
    assert faulty.killed or faulty.exit_code == 0 or "\npytest_gittrix.errors." in error, error[-900:]
    lines = faulty.stdout.decode().splitlines()
    live = check_store(scene, lines)
    word = operation.judge(scene, [line for line in lines if not line.startswith(ANNOUNCED)])
    with scene.engine(init=False) as engine:
        for id_ in live:
            engine.store.log(id_).read("strict")  # the recovery has mended a torn end
    return word


def sweep_recovery(operation: Operation, directory: Path, *, kinds: Sequence[str] = ("kill",), label: str) -> int:
    """Kill an operation at many points, and play faults in each recovery that makes other calls than the earlier ones.

    The files that a recovery removes as trash do not make it a different one.

    Args:
        operation: the operation to kill.
        directory: where the scenes are made.
        kinds: the kinds of fault of the recovery.
        label: what the figures are printed under.

    Returns:
        How many faults were played in recoveries.

    Raises:
        AssertionError: as for ``sweep_scenes``.
    """
    scenes = Scenes(directory, Scene)
    known: set[tuple[tuple[str, str], ...]] = set()
    tried = 0
    scene = scenes.next()
    operation.prepare(scene)
    number = len(run(operation, scene).calls)
    for at in range(1, number + 1)[operation.some(4) or slice(None)]:

        def prepare(scene: Scene, at: int = at) -> None:
            operation.prepare(scene)
            run(operation, scene, KillAt(at))

        recovery = Operation(prepare, recover, lambda scene, _lines: operation.judge(scene, []), operation.stride)
        scene = scenes.next()
        prepare(scene)
        paths = [(call.name, _RANDOM.sub("*", call.path or "")) for call in run(recovery, scene).calls]
        calls = tuple((name, path) for name, path in paths if "/.trash/" not in path)
        if calls and calls not in known:
            points = None if SOAK else slice(None, None, 3 * operation.stride)
            tried += sum(sweep_operation(recovery, directory, kinds=kinds, points=points).values())
        known.add(calls)
    print(f"the recovery of {label} ({', '.join(kinds)}): {len(known)} different ones, tried {tried}, survived {tried}")
    return tried


def log_writes(operation: Operation, directory: Path) -> list[int] | None:
    """Return the calls that write a line of a log: the first of each log and every third one after it; None, for all, in a soak."""
    if SOAK:
        return None
    scene = Scenes(directory, Scene).next()
    operation.prepare(scene)
    by_log: dict[str, list[int]] = {}
    for call in run(operation, scene).calls:
        if call.size and call.path and call.path.endswith(".jsonl"):
            by_log.setdefault(call.path, []).append(call.index)
    return [number for numbers in by_log.values() for number in numbers[::3]]


# What must hold of every store ------------------------------------------------------------------------------------------------


def check_store(scene: Scene, lines: Sequence[str] = ()) -> list[str]:
    """Start a new engine, and check that it recovers everything: logs are whole, a second recovery does nothing, the index is right.

    Args:
        scene: the scene.
        lines: what the operation printed: no event that it announced may be missing.

    Returns:
        The active sessions.
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
            if line.startswith(ANNOUNCED):
                _, id_, seq, type_ = line.split()
                # A start that failed takes its directory away, events and all.
                assert id_ not in logs or logs[id_][int(seq)].type == type_, line
        named = {path.name for path in engine.store.root.iterdir() if not path.name.startswith(".") and not _DERIVED.fullmatch(path.name)}
        assert named == logs.keys()
        left = [path for id_ in named for path in engine.store.directory(id_).iterdir() if is_temporary(path.name)]
        assert not left, left
        check_index(engine)
        live = [one.id for one in engine.list_sessions("active")]
    assert not scene.leftovers()
    return live


def contents(engine: GitTrix) -> dict[str, bytes]:
    """Return the bytes of the files of each session, except locks; of workspaces only that they exist."""
    found: dict[str, bytes] = {}
    for id_ in engine.store.ids():
        for path in engine.store.directory(id_).iterdir():
            if not _DERIVED.fullmatch(path.name):
                found[f"{id_}/{path.name}"] = path.read_bytes() if path.is_file() else b""
    return found


def check_index(engine: GitTrix) -> None:
    """Check that the index equals the fold of every log."""
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


def _expected(engine: GitTrix, id_: str) -> IndexRow:
    state = engine.store.load(id_)
    deadline = deadline_ns(state)
    log = engine.store.log(id_).path
    times = (state.created_ns, state.updated_ns, state.last_access_ns)
    size, metadata = log.stat().st_size, metadata_of(state)
    return IndexRow(id_, state.state, deadline, *times, state.seq, state.workspace_present, state.legacy, size, metadata)


def log_of(scene: Scene, id_: str) -> list[Event]:
    """Return a session's events."""
    with scene.engine(init=False) as engine:
        return engine.store.log(id_).read()


def states_of(scene: Scene) -> dict[str, SessionState]:
    """Return the state of each session, by id."""
    with scene.engine(init=False) as engine:
        return {state.id: state for state in engine.store.scan()[0]}
