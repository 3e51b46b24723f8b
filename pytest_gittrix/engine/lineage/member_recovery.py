"""Recovery of a member's session whose start or removal was killed (BotMinter).

A start that never finished is ended, since no agent has worked there; a removal goes on if it was recorded, and is undone if not. Other
remains of such a session (an agent that is gone, a finalization that stopped half-way) need remotes and time, and are left to the
manager of members.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.engine.eviction.archive import WHOLE
from pytest_gittrix.engine.eviction.evictor import LEAVING
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.workspaces.trash import Trash

WORKSPACE: Final = "workspace"
"""The workspace of a member's agent, in the directory of its session."""
AGENT: Final = "agent"
"""The directory of the files of its process."""
HOME: Final = "home"
"""Its home directory, outside the workspace, so that nothing in it is taken for work."""
FINALIZATION: Final = "finalize"
"""The directory of the notes of its finalizations."""
TURN: Final = ".finalizing"
"""The lock for saving or removing the workspace."""

_KEPT: Final = "leaving.kept"
_DEEP: Final = 100
"""How many directories above a file that is kept by itself there can be: Python may be too deep in calls to remove more."""
_UNSAVED: Final = "it held what is in no remote"
_MADE: Final = (WORKSPACE, LEAVING, AGENT, HOME, FINALIZATION)
_HALF_MADE: Final = re.compile(rf"{WORKSPACE}\.hydrating-[0-9a-f]+")


def mend_life(recorder: Recorder, state: SessionState, trash: Trash) -> bool:
    """Finish or undo a killed start or removal; returns whether something of the session was removed.

    Args:
        recorder: its record; the caller holds the lease.
        state: its state, read under the lease.
        trash: where workspaces go.

    Raises:
        AdapterUnavailable, OSError: something cannot be stored or moved; another recovery goes on with it.
        EvictionRace: its workspace is being saved.
    """
    life = state.life
    if life is not None and not state.ended and life.state != "creating":
        if life.state == "retained" and is_apart(recorder.directory):
            with Lease(recorder.directory / TURN, wait=0):
                put_back(recorder.directory)
        return False
    if not state.ended:
        recorder.append("session.ended", {"state": "discarded", "reason": "its start never finished"}, commit_point=True)
        points.reached("evict:ended")
    clear_away(recorder.directory, trash)
    if state.archive is None and (kept := kept_data(recorder.directory)) is not None:
        recorder.append("archive.written", kept)
    if state.workspace_present:
        recorder.append("workspace.removed", {})
    return True


def interrupted_removals(store: Store, ids: Iterable[str]) -> list[str]:
    """The retained sessions whose workspace is set apart: a kill stopped its removal, or its removal is running."""
    return [id_ for id_ in ids if is_apart(store.directory(id_))]


def is_apart(directory: Path) -> bool:
    """Whether the workspace of a session is set apart, for its removal."""
    return os.path.lexists(directory / LEAVING) or os.path.lexists(directory / _KEPT)


def clear_away(directory: Path, trash: Trash) -> None:
    """Remove a session's files, except its record and its archive. Raises OSError where something cannot be moved."""
    if os.path.lexists(directory / _KEPT):
        os.rename(directory / _KEPT, directory / WHOLE)
    half_made = (name for name in os.listdir(directory) if _HALF_MADE.fullmatch(name))
    for name in (*_MADE, *half_made):
        if os.path.lexists(directory / name):
            trash.discard(str(directory / name))
    with suppress(FileNotFoundError):
        os.unlink(directory / TURN)


def move_aside(directory: Path) -> bool:
    """Rename a workspace, as a test that it can be removed; returns whether there is one. Raises OSError."""
    put_back(directory)
    try:
        os.rename(directory / WORKSPACE, directory / LEAVING)
    except FileNotFoundError:
        return False
    return True


def keep(directory: Path, paths: Collection[str] | None = None) -> None:
    """Choose the files of a moved workspace that ``clear_away`` archives; ``put_back`` undoes it.

    Args:
        directory: the session's directory.
        paths: the files, relative to the workspace. The whole workspace if None, or if one of them is too deep or cannot be kept by itself.

    Raises:
        OSError: the disk refused.
    """
    if paths is not None and all(path.count("/") < _DEEP for path in paths):
        try:
            _link(directory, paths)
            return
        except OSError:  # the file system may have no links
            shutil.rmtree(directory / _KEPT, ignore_errors=True)
    os.rename(directory / LEAVING, directory / _KEPT)


def _link(directory: Path, paths: Iterable[str]) -> None:
    for path in paths:
        target = directory / _KEPT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(directory / LEAVING / path, target, follow_symlinks=False)


def kept_data(directory: Path) -> dict[str, Any] | None:
    """The data of ``archive.written`` after ``clear_away``; None if it archived nothing."""
    return {"touched": 0, "patch": WHOLE, "reason": _UNSAVED} if os.path.lexists(directory / WHOLE) else None


def put_back(directory: Path) -> bool:
    """Undo ``move_aside`` and ``keep``, for a removal that was not recorded; returns whether it was. Raises OSError."""
    if os.path.lexists(directory / WORKSPACE):
        return False
    apart = os.path.isdir(directory / LEAVING)
    if apart and os.path.lexists(directory / _KEPT):
        shutil.rmtree(directory / _KEPT)  # links to files of the other
    if not apart and not os.path.isdir(directory / _KEPT):
        return False
    os.rename(directory / (LEAVING if apart else _KEPT), directory / WORKSPACE)
    return True
