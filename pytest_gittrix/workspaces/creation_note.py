"""What the engine notes about a workspace when it makes one, in a file that no agent reaches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.git.tree import Changes, Entry
from pytest_gittrix.os_level.files import read_text, write_all, write_file
from pytest_gittrix.os_level.monotonic import real_wall_ns
from pytest_gittrix.workspaces.kinds import INCOMPLETE
from pytest_gittrix.workspaces.seeds.seed import Seed

_STEP_NS: Final = 1_000_000


class CreationState(NamedTuple):
    """What was noted about a workspace when it was made.

    Attributes:
        stamp: a kernel change time, in nanoseconds, later than that of every file written then.
        boot: the wall clock minus the time since boot, in nanoseconds; changes only if the clock is stepped or the machine restarted.
        directories: inode of each directory, by path ('' is the root).
        complete: whether every file of the baseline was written, so that a missing file is a deletion.
        layered: whether it is the upper layer of an overlay, in which whiteouts and opaque directories are the deletions.
        taken: of one that was made ahead: a kernel change time of when its session got it. Its agent did not change what changed
            between ``stamp`` and then.
    """

    stamp: int
    boot: int
    directories: Mapping[str, int]
    complete: bool
    layered: bool = False
    taken: int = 0

    @property
    def is_comparable(self) -> bool:
        """Whether change times can be compared with the stamp: neither was the clock stepped, nor the machine started again."""
        return is_same_boot(self.boot)


def boot_offset() -> int:
    """The wall clock minus the time since boot, in nanoseconds."""
    return real_wall_ns() - time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def is_same_boot(offset: int) -> bool:
    """Whether neither was the clock stepped nor the machine started again since ``boot_offset`` gave an offset."""
    return abs(boot_offset() - offset) <= _STEP_NS


CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
NOTE: Final = "workspace.json"
"""The file of the note, in the directory where the engine keeps its notes about a workspace."""
_TAKEN: Final = "taken"


def note_creation(kind: str, state_dir: str, seed: Seed, directories: Mapping[str, int], admin: str | None) -> CreationState:
    """Store what ``open_workspace`` and snapshots have to know of a workspace that was made just now.

    Args:
        kind: its kind.
        state_dir: where it is stored; an earlier note of the same workspace is replaced.
        seed: its baseline.
        directories: the inode of each of its directories.
        admin: its git directory in durable, if it is a linked work tree.
    """
    write_file(os.path.join(state_dir, "stamp"), b"")
    stamp = os.stat(os.path.join(state_dir, "stamp")).st_ctime_ns
    created = CreationState(stamp, boot_offset(), directories, kind not in INCOMPLETE, kind == "overlay")
    state = {
        "kind": kind,
        "commit": seed.commit,
        "history": seed.history,
        "format": seed.format.name,
        "seeds": os.path.dirname(seed.directory),
        "admin": admin,
        "stamp": created.stamp,
        "boot": created.boot,
        "directories": {json_name(name): inode for name, inode in directories.items()},
    }
    write_file(os.path.join(state_dir, NOTE), json.dumps(state).encode())
    return created


def note_taken(state_dir: str, created: CreationState) -> CreationState:
    """Store that a session has got a workspace that was made ahead, and when."""
    descriptor = os.open(os.path.join(state_dir, _TAKEN), CREATE_FLAGS, 0o666)
    try:
        taken = os.fstat(descriptor).st_ctime_ns
        write_all(descriptor, b"%d" % taken)
    finally:
        os.close(descriptor)
    return created._replace(taken=taken)


def note_stamp(state_dir: str) -> tuple[int, ...]:
    """What the system says of the note of a workspace, to see that it was not written since. Raises OSError."""
    status = os.stat(os.path.join(state_dir, NOTE))
    return status.st_ino, status.st_size, status.st_ctime_ns


def taken_in(state_dir: str) -> int:
    """When a session got a workspace that was made ahead, as ``note_taken`` stored it; 0 for any other workspace."""
    return int(read_text(os.path.join(state_dir, _TAKEN)) or 0)


def read_note(state_dir: str, path: str) -> dict[str, Any]:
    """What ``note_creation`` stored. Raises AdapterUnavailable if it cannot be read."""
    try:
        with open(os.path.join(state_dir, NOTE), "rb") as file:
            note: dict[str, Any] = json.load(file)
            return {**note, "commit": note["commit"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable_note(path, error) from error


def bases_in(note: Mapping[str, Any]) -> Changes:
    """The ``bases`` of a workspace, from its note."""
    return {name_of(name): Entry(*entry) if entry is not None else None for name, entry in note.get("bases", {}).items()}


def unreadable_note(path: str, error: Exception) -> AdapterUnavailable:
    """The error for a note that cannot be read."""
    return AdapterUnavailable(f"What the engine noted about the workspace {path} cannot be read: {error}.", fix="Discard the session.")


def json_name(name: str) -> str:
    """Encode a path of any bytes as text that JSON can hold. Reversible, and unchanged for ASCII names."""
    return os.fsencode(name).decode("latin-1")


def name_of(json: str) -> str:
    """What ``json_name`` encoded."""
    return os.fsdecode(json.encode("latin-1"))
