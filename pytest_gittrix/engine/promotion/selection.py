"""What a promotion takes: the selected paths and hunks of a snapshot (rules 1 and 7, docs/explanation/rules.md).

A pure function from a snapshot to the entries that are to change. Whether they fit on durable as it is now, ``conflicts`` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pytest_gittrix.engine.operations.validation import check_paths
from pytest_gittrix.errors import Advice, InvalidInput, PromoteFailed, WriteRejected, did_you_mean
from pytest_gittrix.git.hunks import choose
from pytest_gittrix.git.tree import SUBMODULE, SYMLINK, Changes, Entry
from pytest_gittrix.workspaces.snapshot import Snapshot

_SHOWN = 8


class SelectedChanges(NamedTuple):
    """The changes that are promoted.

    Attributes:
        changes: new entry by path, None for a deletion.
        blobs: bytes of the new entries by id.
    """

    changes: Changes
    blobs: Mapping[str, bytes]


def select(
    snapshot: Snapshot,
    files: Iterable[str] | None,
    hunks: Mapping[str, Collection[int]] | None,
    work_elsewhere: Callable[[], Sequence[str]] = tuple,
) -> SelectedChanges:
    """Choose from a snapshot: everything, some files, some hunks, or files and hunks together.

    Args:
        snapshot: the workspace.
        files: touched paths to take whole; None takes all, unless ``hunks`` says otherwise.
        hunks: for a path, the numbers (from 1) of the hunks to take; the rest of that file stays as the baseline has it.
        work_elsewhere: gives a line for each piece of work that is in no file, for the message of a promotion of nothing.

    Raises:
        PromoteFailed: nothing is selected, or a path was not touched; the message names it and lists those that were.
        WriteRejected: a selected path can never be promoted.
        InvalidInput: there is no such hunk.
    """
    chosen_hunks = dict(hunks or {})
    wanted = _wanted(snapshot, files, chosen_hunks)
    unknown = [path for path in wanted if path not in snapshot.changes]
    refused = [path for path in unknown if path in snapshot.refused] or ([*snapshot.refused] if files is None and not chosen_hunks else [])
    if refused:
        raise WriteRejected(
            f"{refused[0]!r} cannot be promoted: {snapshot.refused[refused[0]]}.",
            why="A promotion stores files exactly as they are, or refuses before it changes anything.",
            fix="Rename or remove it, or select the other files by name.",
        )
    if unknown:
        more = " ..." if len(snapshot.changes) > _SHOWN else ""
        touched = f"Touched: {', '.join([*snapshot.changes][:_SHOWN])}{more}." if snapshot.changes else "No file was touched."
        raise PromoteFailed(
            f"{', '.join(map(repr, unknown[:_SHOWN]))} {'was' if len(unknown) == 1 else 'were'} not touched in this session.",
            stage="staging",
            why="The promotion would have fewer changes than were asked for.",
            fix=f"{did_you_mean(unknown[0], snapshot.changes)}{touched}",
        )
    if not wanted and snapshot.changes:
        raise PromoteFailed(
            "No file was selected.",
            stage="staging",
            why="An empty list promotes nothing. Without a list, everything touched is promoted.",
            fix=Advice("Name the files to promote, or leave files= out.", "Name the files to promote, or leave --files out."),
        )
    if not wanted:
        raise _nothing(snapshot, work_elsewhere())
    changes: dict[str, Entry | None] = {path: snapshot.changes[path] for path in wanted}
    blobs = {entry.id: snapshot.blobs[entry.id] for entry in changes.values() if entry is not None}
    for path, numbers in chosen_hunks.items():
        data = _with_hunks(snapshot, path, numbers)
        entry = snapshot.changes[path]
        assert entry is not None
        changes[path] = Entry(entry.mode, snapshot.seed.format.hash_object("blob", data))
        blobs[changes[path].id] = data  # type: ignore[union-attr]
    return SelectedChanges(changes, blobs)


def _nothing(snapshot: Snapshot, work_elsewhere: Sequence[str]) -> PromoteFailed:
    """The error for a promotion without changed files, which lists work elsewhere."""
    fact = "There is nothing to promote: no file differs from the baseline."
    withheld = snapshot.withheld_lines
    if not work_elsewhere and not withheld:
        return PromoteFailed(fact, stage="staging", fix="Discard the session.")
    moving = "Check that work out in the workspace, with `git checkout` or `git stash pop`, then promote. " if work_elsewhere else ""
    return PromoteFailed(
        fact,
        stage="staging",
        why=f"There is work elsewhere: {'; '.join([*work_elsewhere, *withheld][:_SHOWN])}.",
        fix=Advice(
            f"{moving}{'Select ignored files by name, with files=[...].' if withheld else ''}".strip(),
            f"{moving}{'Select ignored files by name, with --files.' if withheld else ''}".strip(),
        ),
    )


def _wanted(snapshot: Snapshot, files: Iterable[str] | None, hunks: Mapping[str, Collection[int]]) -> list[str]:
    if files is None:
        return [*hunks] if hunks else [*snapshot.changes]
    return list(dict.fromkeys([*check_paths(files, "files"), *hunks]))


def _with_hunks(snapshot: Snapshot, path: str, numbers: Collection[int]) -> bytes:
    """The bytes of a file with only some of its hunks applied."""
    old, new = snapshot.seed.entries.get(path), snapshot.changes[path]
    if old is None or new is None or {old.mode, new.mode} & {SYMLINK, SUBMODULE}:
        raise InvalidInput(
            f"{path!r} has no hunks to choose from.",
            why="Hunks are parts of a text file that both sides have.",
            fix=Advice("Select the whole file with files=[...].", "Select the whole file with --files."),
        )
    if not numbers:
        raise InvalidInput(f"No hunk of {path!r} was chosen.", fix="Leave the path out, or name hunks by number from 1.")
    return choose(snapshot.seed.blob(old.id), snapshot.blobs[new.id], numbers)
