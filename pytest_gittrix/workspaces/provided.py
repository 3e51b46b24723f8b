"""What the engine noted of the files that a start put into a workspace, in a file that no agent reaches.

A file counts as provided for as long as nothing changed it: its kernel change time, which no program can set back, is older than a stamp
that was taken when all of them had been written. What an agent changed or added below the same paths is work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import Final, Literal, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.os_level.files import read_text, write_file
from pytest_gittrix.workspaces.creation_note import boot_offset, is_same_boot, json_name, name_of

Origin = Literal["durable"]
"""Where provided files are from: durable's checkout."""

_NOTE: Final = "provided.json"
_STAMP: Final = "provided-stamp"
_TRIES: Final = 1000


class Provision(NamedTuple):
    """Files that were put into a workspace together.

    Attributes:
        origin: where they are from.
        tops: the uppermost paths with nothing but such files; that of a directory ends in ``/``.
        stamp: a kernel change time, in nanoseconds, later than that of each of them.
    """

    origin: Origin
    tops: tuple[str, ...]
    stamp: int

    def covers(self, path: str) -> bool:
        """Whether a path is one of ``tops`` or below one."""
        return path in self.tops or any(path.startswith(top) for top in self.tops if top.endswith("/"))


class Provided(NamedTuple):
    """Everything that was put into a workspace at its start.

    Attributes:
        provisions: in the order in which it was done.
        is_comparable: whether change times can be compared with the stamps; else every file counts as changed.
    """

    provisions: tuple[Provision, ...] = ()
    is_comparable: bool = True

    def includes(self, path: str) -> bool:
        """Whether a path is one of the files that are from durable's checkout, or below such a directory; changed or not."""
        return any(one.origin == "durable" and one.covers(path) for one in self.provisions)

    def origin_of(self, path: str, status: os.stat_result) -> Origin | None:
        """Where a file is from that is as it was put there; None for any other."""
        if not self.is_comparable:
            return None
        return next((one.origin for one in self.provisions if status.st_ctime_ns < one.stamp and one.covers(path)), None)


NOTHING: Final = Provided()


def note_provision(state_dir: str, origin: Origin, tops: Collection[str], latest: int) -> None:
    """Store that files were put into a workspace.

    Args:
        state_dir: where the engine keeps its notes about it.
        origin: where the files are from.
        tops: see ``Provision.tops``.
        latest: the newest kernel change time of one of them, in nanoseconds.

    Raises:
        OSError: the disk refused.
    """
    before = read_provided(state_dir).provisions
    made = (*before, Provision(origin, tuple(tops), _later_than(state_dir, latest)))
    listed = [{"origin": one.origin, "tops": [*map(json_name, one.tops)], "stamp": one.stamp} for one in made]
    write_file(os.path.join(state_dir, _NOTE), json.dumps({"boot": boot_offset(), "provisions": listed}).encode())


def read_provided(state_dir: str | None) -> Provided:
    """What was put into the workspace with these notes.

    Raises:
        AdapterUnavailable: the note is damaged.
    """
    text = None if state_dir is None else read_text(os.path.join(state_dir, _NOTE))
    if text is None:
        return NOTHING
    try:
        note = json.loads(text)
        found = tuple(Provision(one["origin"], tuple(map(name_of, one["tops"])), one["stamp"]) for one in note["provisions"])
        return Provided(found, is_same_boot(note["boot"]))
    except (ValueError, KeyError, TypeError) as problem:
        raise AdapterUnavailable(
            f"{os.path.join(state_dir or '', _NOTE)} cannot be read: {problem}.",
            why="It says which files of the workspace a person's checkout has, and which are work.",
            fix="Discard the session; the whole workspace is kept then.",
        ) from problem


def _later_than(state_dir: str, latest: int) -> int:
    """A kernel change time that is later than another one: the kernel's clock for files ticks every few milliseconds.

    Where the clock was set back meanwhile it may not be later; then the files count as changed.
    """
    path, stamp = os.path.join(state_dir, _STAMP), 0
    for _ in range(_TRIES):
        write_file(path, b"")
        stamp = os.stat(path).st_ctime_ns
        if stamp > latest:
            break
    return stamp
