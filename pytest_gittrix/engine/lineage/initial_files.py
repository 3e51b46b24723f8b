"""Files that a session begins with in addition to its baseline: ``GitTrix.start_session(seed_files=...)``.

They are not work of its agent. A snapshot holds them as changes only once they differ from what was given (``review.snapshot_of``). Their
bytes are attached to the session, so that a fork can begin with them, also once the session has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gittrix.engine.operations.attachments import attach, attached, resource_name
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.validation import check_file
from pytest_gittrix.errors import Advice, InvalidInput
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.tree import parents
from pytest_gittrix.record.eventlog.events import path_fields
from pytest_gittrix.workspaces.workspace import Workspace

InitialFiles = Mapping[str, bytes]


def check_initial_files(value: Mapping[str, bytes | str] | None, max_bytes: int) -> dict[str, bytes]:
    """Validate the files that a session begins with; their paths become canonical.

    Raises:
        InvalidInput: it is not a mapping of paths to bytes or text.
        WriteRejected: a path is not allowed, or a file has more than ``max_bytes``.
    """
    if value is not None and not isinstance(value, Mapping):
        raise InvalidInput(
            f"seed_files is {type(value).__name__}, not a mapping.",
            why="Each file needs a path and its contents.",
            fix="Pass a dict of paths to str or bytes, such as {'NOTES.md': 'Begin here.'}.",
        )
    return {check_path(path): check_file(path, data, max_bytes) for path, data in (value or {}).items()}


def to_data(files: InitialFiles) -> list[dict[str, Any]]:
    """The files as ``session.created`` holds them: their paths, and the names of the attachments with their bytes."""
    return [{**path_fields(path), "resource": resource_name(data)} for path, data in files.items()]


def place_initial_files(recorder: Recorder, workspace: Workspace, files: InitialFiles) -> None:
    """Attach the files to a new session, and write them into its workspace.

    Raises:
        InvalidInput: the baseline has something at a path, or above or below it.
        WriteRejected: two of the files exclude each other, or the disk refused.
        OSError: the disk refused.
    """
    seed, sync = workspace.seed, recorder.store.durability == "full"
    for path, data in files.items():
        if path in seed.directories or any(one in seed.entries for one in (path, *parents(path))):
            raise InvalidInput(
                f"The repository already has something at the seed file's path {path!r}.",
                why="It would be unclear whether the agent changed it, or the start did.",
                fix=Advice("Give it another path, or write it with session.write(), as a change.", "Give it another path."),
            )
        attach(recorder.directory, data, sync=sync)
        workspace.files.write(path, data, executable=False)


def read_initial_files(directory: Path, names: Mapping[str, str]) -> dict[str, bytes]:
    """The files that the session of a directory was given.

    Args:
        directory: of the session's record.
        names: the names of the attachments by path, as in its state.

    Raises:
        PathNotFound, LogDamaged: an attachment is gone, or is not what it was.
    """
    return {path: attached(directory, name) for path, name in names.items()}
