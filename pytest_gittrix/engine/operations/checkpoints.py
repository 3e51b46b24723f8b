"""Checkpoints: a workspace's files as they were earlier, so that a fork can begin with them.

A checkpoint is a tree in the engine's repository next to the workspace; its size grows with the agent's changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.errors import AdapterUnavailable, Advice, GittrixError, InvalidInput
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.git_directory import open_bare
from pytest_gittrix.git.objects import MissingObject, Objects, Trees, open_objects
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.git.tree import SUBMODULE, SYMLINK, Changes, Entry, changed_paths
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace

CHECKPOINTS: Final = ("engine", "commits.git")
# After these events the files, or the baseline that a fork has, are not as they were before.
_CHANGES: Final = ("session.write", "promote.kept", "session.rebased", "model.exchange")


class Checkpoint(NamedTuple):
    """The files of a session after one of its events.

    Attributes:
        seq: the event after which the files were so.
        id: the tree, or the agent's commit; None for the baseline.
    """

    seq: int
    id: str | None


@dataclass(frozen=True)
class Files:
    """Files as their difference from a baseline.

    Attributes:
        changes: their entries by path.
        blobs: the bytes of the new ones by id.
        left_out: a line for each that is too large for it.
        bases: as ``Workspace.bases``.
    """

    changes: Changes
    blobs: Mapping[str, bytes]
    left_out: tuple[str, ...] = ()
    bases: Changes = field(default_factory=dict)


def save_checkpoint(
    recorder: Recorder, state: SessionState, snapshot: Snapshot, *, left_out: tuple[str, ...] = (), always: bool = False
) -> SessionState:
    """Save the files, unless they are as in the last checkpoint. The caller holds the lease.

    Args:
        recorder: the session's record.
        state: its state.
        snapshot: the files.
        left_out: a line for each file that the snapshot should have, and does not; those that are too large for it are named anyway.
        always: record a checkpoint even then.

    Raises:
        OSError: the disk refused.
    """
    began_at_baseline = state.lineage is None or state.lineage.relation == "crash"
    last = state.checkpoint or (snapshot.seed.root if began_at_baseline else None)
    missing = [*left_out, *snapshot.left_out]
    if snapshot.tree == last and not state.changed_since_checkpoint and not left_out and not always:
        return state
    repository = recorder.directory.joinpath(*CHECKPOINTS)
    objects = snapshot.objects
    if state.checkpoint is not None:
        known = _blobs_of(repository, snapshot.seed, state.checkpoint)
        objects = {id_: value for id_, value in objects.items() if id_ not in known}
    open_bare(repository, snapshot.seed.format.name, snapshot.seed.objects_dir)
    if objects:
        install_pack(str(repository / "objects"), build_pack(objects, snapshot.seed.format))
    return recorder.append("workspace.kept", {"tree": snapshot.tree, **({"left_out": missing} if missing else {})})


def save_blobs(recorder: Recorder, seed: Seed, blobs: Mapping[str, bytes]) -> None:
    """Save the bytes of files next to the checkpoints, for ``saved_blob``.

    Args:
        recorder: the session's record, whose lease the caller holds.
        seed: the baseline.
        blobs: bytes by id.

    Raises:
        OSError: the disk refused.
    """
    if blobs:
        repository = recorder.directory.joinpath(*CHECKPOINTS)
        open_bare(repository, seed.format.name, seed.objects_dir)
        install_pack(str(repository / "objects"), build_pack({id_: ("blob", data) for id_, data in blobs.items()}, seed.format))


def saved_blob(state_dir: str, seed: Seed, id_: str) -> bytes | None:
    """The bytes that ``save_blobs`` saved; None if a power cut destroyed them.

    Args:
        state_dir: where the engine keeps its notes about the workspace.
        seed: the baseline.
        id_: the id of the blob.
    """
    with suppress(MissingObject, AdapterUnavailable), _reading(Path(state_dir, CHECKPOINTS[-1]), seed) as objects:
        return objects.read(id_)[1]
    return None


def _blobs_of(repository: Path, seed: Seed, tree: str) -> set[str]:
    """The blobs of a checkpoint that the baseline does not have; none, if a power cut destroyed the checkpoint."""
    with suppress(MissingObject), _reading(repository, seed) as objects:
        return {entry.id for entry in _changes(objects, seed, tree).values() if entry is not None}
    return set()


def checkpoints_of(events: Iterable[Event]) -> list[Checkpoint]:
    """The checkpoints of a session, oldest first."""
    found: list[Checkpoint] = []
    began_at_baseline = True
    for event in events:
        if event.type == "session.created":
            began_at_baseline = event.data.get("lineage", {}).get("relation", "crash") == "crash"
        elif event.type == "workspace.ready" and began_at_baseline:
            found.append(Checkpoint(event.seq, None))
        elif event.type == "workspace.kept":
            found.append(Checkpoint(event.seq, event.data["tree"]))
        elif event.type == "session.commit":
            found.append(Checkpoint(event.seq, event.data["sha"]))
        elif event.type == "model.exchange" and "files" in event.data:
            found.append(Checkpoint(event.seq, event.data["files"]))
    return found


def checkpoint_at(events: list[Event], seq: int) -> Checkpoint:
    """The checkpoint with the files as they were after an event.

    Raises:
        InvalidInput: there is none, or files were written between it and the event; the message says which events will do.
    """
    saved = checkpoints_of(events)
    if (exact := next((checkpoint for checkpoint in saved if checkpoint.seq == seq), None)) is not None:
        return exact
    # Of an exchange with a model the files of that moment were saved: what its answer called ran afterwards.
    before = [checkpoint for checkpoint in saved if checkpoint.seq < seq and events[checkpoint.seq].type != "model.exchange"]
    if before and not any(event.type in _CHANGES for event in events[before[-1].seq + 1 : seq + 1]):
        return before[-1]
    possible = sorted({_last_like(events, checkpoint) for checkpoint in saved})
    raise InvalidInput(
        f"The files as they were after event {seq} were not saved.",
        why="They are saved at the start and end of turns, at commits and checkpoints, and before messages of a user.",
        fix=f"Fork after one of the events {', '.join(map(str, possible[-8:])) or '(none yet)'}; or call checkpoint() where it matters.",
        opt_out=Advice(
            "files='now' takes the files as they are, files='baseline' none of the changes.",
            "--files now takes the files as they are, --files baseline none of the changes.",
        ),
    )


def _last_like(events: list[Event], checkpoint: Checkpoint) -> int:
    """The last event after which the files were still as at a checkpoint."""
    if events[checkpoint.seq].type == "model.exchange":
        return checkpoint.seq
    return next((event.seq - 1 for event in events[checkpoint.seq + 1 :] if event.type in _CHANGES), events[-1].seq)


def files_at(repository: Path, seed: Seed, id_: str) -> Files:
    """The files of a checkpoint.

    Raises:
        AdapterUnavailable: it is not there any more.
    """
    if id_ == seed.root:
        return Files({}, {})
    with _reading(repository, seed) as objects:
        changes = _changes(objects, seed, id_)
        wanted = {entry.id for entry in changes.values() if entry is not None and entry.mode != SUBMODULE}
        return Files(changes, {blob: objects.read(blob)[1] for blob in wanted})


@contextmanager
def _reading(repository: Path, seed: Seed) -> Iterator[Objects]:
    """Open a repository of checkpoints for reading."""
    try:
        objects = open_objects(repository / "objects", seed.format)
    except (GittrixError, OSError, ValueError) as problem:
        raise AdapterUnavailable(f"What was kept in {repository} cannot be read: {problem}.") from problem
    try:
        yield objects
    finally:
        objects.close()


def _changes(objects: Objects, seed: Seed, id_: str) -> dict[str, Entry | None]:
    kind, data = objects.read(id_)
    tree = parse_commit(id_, data).tree if kind == "commit" else id_
    changed = changed_paths(seed.trees.read, seed.root, tree, read_new=Trees(objects).read)
    return {path: new for path, (_, new) in changed.items()}


def write_files(workspace: Workspace, files: Files) -> None:
    """Give a workspace that is still at its baseline the files of a checkpoint.

    Raises:
        WriteRejected: the disk refused.
    """
    for path, entry in files.changes.items():
        if entry is None and workspace.kind != "lazy":
            workspace.files.delete(path)
    for path, entry in files.changes.items():
        if entry is None or entry.mode == SUBMODULE:
            continue
        data = files.blobs[entry.id]
        if entry.mode == SYMLINK:
            workspace.files.make_link(path, data)
        else:
            workspace.files.write(path, data, executable=entry.kind == "executable")
