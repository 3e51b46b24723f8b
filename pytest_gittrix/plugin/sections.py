"""The world of a failed test as short sections of pytest's report, and as a bundle of files.

Everything is read from the disk, without the engine, so that reading changes nothing: no event, no sweep, no lock.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.durations import format_instant, instant_at
from pytest_gittrix.engine.operations.review import file_changes, snapshot_of
from pytest_gittrix.git.commit import Commit
from pytest_gittrix.git.patch import patch_bytes
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.store.store import LOG, Store
from pytest_gittrix.workspaces.snapshot import Limits
from pytest_gittrix.workspaces.workspace import open_workspace

if TYPE_CHECKING:
    from pytest_gittrix.plugin.fixtures import Opened
    from pytest_gittrix.testing.world import World

_LONGEST_NAME = 100
_LONGEST_LINE = 160
_SHOWN = {"gittrix durable log": 10, "gittrix session events": 30, "gittrix clock": 5, "gittrix diff": 60}
# The ends of logs matter most, and the beginnings of diffs.
_FROM_THE_END = frozenset({"gittrix durable log", "gittrix session events"})


@dataclass(frozen=True, slots=True)
class Scene:
    """The paths of a world that the sections are read from.

    Attributes:
        durable: the durable repository.
        branch: its branch.
        store: the directory of the sessions.
        clock: the clock of the test.
    """

    durable: Path
    branch: str
    store: Path
    clock: FrozenClock

    @classmethod
    def of(cls, world: World) -> Scene:
        """The scene of a world, open or closed."""
        return cls(world.durable.path, world.durable.branch, world.gittrix.store.root, world.clock)


def explain_failure(worlds: Sequence[Opened], nodeid: str, *, kept: bool, artifacts: Path | None) -> list[tuple[str, str]]:
    """The sections of a failed test's report.

    Args:
        worlds: the worlds of the test; the last one is shown.
        nodeid: the node id of the test.
        kept: whether its worlds stay on disk.
        artifacts: the directory for a bundle, if one is wanted.
    """
    scene = Scene.of(worlds[-1].world)
    where = [f"kept in {worlds[-1].path}"] if kept else ["not kept; --gittrix-keep=failed keeps the worlds of failed tests"]
    where += [f"and {len(worlds) - 1} more of this test beside it"] if kept and len(worlds) > 1 else []
    if artifacts is not None:
        directory = artifacts / slug(nodeid)
        try:
            write_bundle(scene, directory)
            where.append(f"bundle in {directory}")
        except OSError as problem:
            where.append(f"no bundle could be written: {problem}")
    return [*sections(scene), ("gittrix world", "\n".join(_printable(line) for line in where))]


def slug(nodeid: str) -> str:
    """Make a node id the name of a directory; different ids have different names."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid).strip("-.")
    if len(name) <= _LONGEST_NAME and re.fullmatch(r"[A-Za-z0-9_./:]+", nodeid):
        return name
    return f"{name[-_LONGEST_NAME:]}-{crc32(nodeid.encode(errors='surrogatepass')):08x}"


def sections(scene: Scene) -> list[tuple[str, str]]:
    """The title and the shortened text of each section; a section that cannot be read says why."""
    readers: Mapping[str, Callable[[Scene], list[str]]] = {
        "gittrix durable log": durable_log,
        "gittrix session events": session_events,
        "gittrix clock": clock_lines,
        "gittrix diff": lambda scene: _lines(b"".join(patch for _, patch in patches(scene))),
    }
    return [(title, "\n".join(_shortened(title, _attempt(read, scene)))) for title, read in readers.items()]


def write_bundle(scene: Scene, directory: Path) -> None:
    """Write all files of the bundle into a directory, which is replaced.

    ``durable.log``, ``clock.txt``, and for each session ``<id>/events.jsonl`` as stored and, if it is active, ``<id>/changes.patch`` for
    ``git apply``.

    Raises:
        OSError: the directory cannot be written.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, read in (("durable.log", durable_log), ("clock.txt", clock_lines)):
        (directory / name).write_text("\n".join(_attempt(read, scene)) + "\n", encoding="utf-8")
    store = Store(scene.store)
    for id_ in store.ids():
        (directory / id_).mkdir()
        log = store.directory(id_) / LOG
        if log.exists():
            shutil.copyfile(log, directory / id_ / LOG)
    try:
        for id_, patch in patches(scene):
            (directory / id_ / "changes.patch").write_bytes(patch)
    except Exception as problem:  # noqa: BLE001 - the rest of the bundle is worth having
        (directory / "problem.txt").write_text(f"{type(problem).__name__}: {problem}\n", encoding="utf-8")


def durable_log(scene: Scene) -> list[str]:
    """The commits of durable's branch, newest last: short id, time, author, subject."""
    with Repository.open(scene.durable) as repository:
        head = repository.head(branch_ref(scene.branch))
        commits = list(repository.log(head, limit=1000)) if head else []
    return [_commit_line(commit) for commit in reversed(commits)] or [f"{scene.branch} has no commit"]


def _commit_line(commit: Commit) -> str:
    subject = commit.message.partition("\n")[0]
    return f"{commit.id[:10]}  {format_instant(commit.author.when)}  {commit.author.name}: {subject}"


def session_events(scene: Scene) -> list[str]:
    """The events of every session, oldest first, one a line."""
    store = Store(scene.store)
    lines: list[str] = []
    for id_ in store.ids():
        scan = store.log(id_).salvage()
        lines += [f"session {id_}", *(_event_line(event) for event in scan.events)]
        lines += [f"  line {damage.line} cannot be believed: {damage.reason}" for damage in scan.damaged]
        lines += [f"  then {scan.torn} bytes of an unfinished line"] if scan.torn else []
    return lines or ["no session was started"]


def _event_line(event: Event) -> str:
    data = " ".join(f"{name}={_short(value)}" for name, value in event.data.items())
    return f"  {event.seq:>3}  {format_instant(instant_at(event.ts))}  {event.type} ({event.actor})  {data}"


def _short(value: Any) -> str:
    text = str(value)
    is_id = len(text) in (40, 64) and all(digit in "0123456789abcdef" for digit in text)
    return text[:10] if is_id else text if len(text) <= 60 else f"{text[:57]}..."


def clock_lines(scene: Scene) -> list[str]:
    """The time of the clock, and how far the test moved it."""
    return [format_instant(scene.clock.now()), f"advanced by {scene.clock.elapsed_ns / 1e9:,.6f} s, skews not counted"]


def patches(scene: Scene) -> Iterator[tuple[str, bytes]]:
    """The id of each session with a workspace, and the changes since its baseline as a patch. Members' sessions have no baseline."""
    store = Store(scene.store)
    for state in store.scan()[0]:
        if state.life is None and state.workspace is not None and state.workspace_present and os.path.isdir(state.workspace):
            yield state.id, _patch(store, state, state.workspace)


def _patch(store: Store, state: SessionState, path: str) -> bytes:
    workspace = open_workspace(path, str(store.directory(state.id) / "engine"))
    try:
        return patch_bytes(file_changes(snapshot_of(state, workspace, Limits())))
    finally:
        workspace.close()


def _attempt(read: Callable[[Scene], list[str]], scene: Scene) -> list[str]:
    try:
        return [_printable(line) for line in read(scene)]
    except Exception as problem:  # noqa: BLE001 - a second failure must not hide the first
        return [_printable(line) for line in f"cannot be read: {type(problem).__name__}: {problem}".splitlines()]


def _lines(raw: bytes) -> list[str]:
    return raw.decode("utf-8", "surrogateescape").splitlines() or ["nothing differs from a baseline"]


def _printable(line: str) -> str:
    """Escape control characters and invalid Unicode, so that any terminal, file and process can take the line."""
    clean = line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").expandtabs(4)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in clean)


def _shortened(title: str, lines: list[str]) -> list[str]:
    lines = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in lines]
    left_out = len(lines) - _SHOWN[title]
    if left_out <= 0:
        return lines
    if title in _FROM_THE_END:
        return [f"... {left_out} earlier lines", *lines[left_out:]]
    return [*lines[:-left_out], f"... {left_out} more lines"]
