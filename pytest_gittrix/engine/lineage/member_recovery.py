"""What a kill left of a member's session whose start or removal was under way (BotMinter).

A start that never finished is ended, since nobody has worked there; a removal goes on if it was recorded, and has not happened if not.
All else that a kill can leave of such a session (an agent that is gone, a finalization that stopped half-way) needs remotes and time, and
is left to whoever manages members. It must not know agents, work locks or remotes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.engine.operations.eviction import LEAVING
from pytest_gittrix.engine.operations.operation import Recorder
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.workspaces.workspace import Trash

WORKSPACE: Final = "workspace"
"""Where a member's agent works, in the directory of its session."""
AGENT: Final = "agent"
"""Where the files of its process are."""
HOME: Final = "home"
"""Its home directory, outside the workspace, so that nothing in it is taken for work."""
FINALIZATION: Final = "finalize"
"""Where its finalizations keep their notes."""
TURN: Final = ".finalizing"
"""The lock of whoever saves what is in the workspace, or takes that away."""

_MADE: Final = (WORKSPACE, LEAVING, AGENT, HOME, FINALIZATION)
_HALF_MADE: Final = re.compile(rf"{WORKSPACE}\.hydrating-[0-9a-f]+")


def mend_life(recorder: Recorder, state: SessionState, trash: Trash) -> bool:
    """Bring a session to a state that somebody meant, as far as that can be done here; whether something of it was taken away.

    Args:
        recorder: its record; the caller holds the lease.
        state: as it is, read under the lease.
        trash: where workspaces go.

    Raises:
        AdapterUnavailable, OSError: something cannot be stored or moved; another recovery goes on with it.
        EvictionRace: somebody saves what is in its workspace.
    """
    if not state.ended and state.life != "creating":
        if state.life == "retained" and _is_apart(recorder.directory):
            with Lease(recorder.directory / TURN, wait=0):
                put_back(recorder.directory)
        return False
    if not state.ended:
        recorder.append("session.ended", {"state": "discarded", "reason": "its start never finished"}, commit_point=True)
        points.reached("evict:ended")
    clear_away(recorder.directory, trash)
    if state.workspace_present:
        recorder.append("workspace.removed", {})
    return True


def apart(store: Store, ids: Iterable[str]) -> list[str]:
    """Those of some retained sessions whose workspace is out of its place: a kill stopped a removal, or one is under way."""
    return [id_ for id_ in ids if _is_apart(store.directory(id_))]


def _is_apart(directory: Path) -> bool:
    return os.path.lexists(directory / LEAVING)


def clear_away(directory: Path, trash: Trash) -> None:
    """Take away all that was made for a session, but for its record. Raises OSError where something cannot be moved."""
    half_made = (name for name in os.listdir(directory) if _HALF_MADE.fullmatch(name))
    for name in (*_MADE, *half_made):
        if os.path.lexists(directory / name):
            trash.discard(str(directory / name))
    with suppress(FileNotFoundError):
        os.unlink(directory / TURN)


def move_aside(directory: Path) -> bool:
    """Take a workspace out of its place, so that it can be seen that it can be removed; whether there is one. Raises OSError."""
    put_back(directory)
    try:
        os.rename(directory / WORKSPACE, directory / LEAVING)
    except FileNotFoundError:
        return False
    return True


def put_back(directory: Path) -> bool:
    """Undo ``move_aside``: a removal that a kill stopped before it was recorded has not happened. Whether there was one. Raises OSError."""
    if os.path.lexists(directory / WORKSPACE) or not os.path.isdir(directory / LEAVING):
        return False
    os.rename(directory / LEAVING, directory / WORKSPACE)
    return True
