"""Directories that samples work in, each with its owner's name on it; and the janitor, which removes what dead owners left.

No hook runs when a process is killed, so what is left is found at the next start instead (the eval research, finding 8). A directory whose
owner lives is never touched, nor one whose owner cannot be judged from here before its time is up. Must not know what samples are.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.clock.clock import Clock, SystemClock
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.process_tree import AgentTree
from pytest_gittrix.workspaces.workspace import Trash

MARK: Final = "GITTRIX_EVAL_MARK"
"""The variable that every program of a sample inherits; its value is the name of the directory it works in."""

TTL: Final = timedelta(days=1)
"""After which a directory goes whose owner cannot be judged: another machine's, another container's."""

_NOTE: Final = "owner.json"
_NEW: Final = ".new-"
_DEAD: Final = ".dead-"
# No other directory is ever looked into: whoever gives --scratch may have things of their own there.
_OURS: Final = re.compile(r"(?:\.new-)?[0-9]+-[0-9a-f]{12}|\.dead-(?:[0-9]+-[0-9a-f]{12}-[0-9a-f]{8}|[0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class WorkDir:
    """A directory that this process owns.

    Attributes:
        path: the directory.
        mark: what its programs are known by.
    """

    path: Path
    mark: str

    def make_sample_dir(self) -> Path:
        """An empty directory in it, for one sample; what the one before left there is removed."""
        self.clear()
        path = self.path / "sample"
        path.mkdir()
        return path

    def clear(self) -> None:
        """Remove what a sample left."""
        if os.path.lexists(self.path / "sample"):
            _remove(self.path / "sample")

    def release(self) -> None:
        """Remove it."""
        _remove(self.path)


@dataclass(frozen=True, slots=True)
class Swept:
    """What the janitor did.

    Attributes:
        removed: directories, by name.
        ended: processes of theirs that still ran.
    """

    removed: tuple[str, ...] = ()
    ended: tuple[int, ...] = ()


def scratch_root(given: str | os.PathLike[str] | None = None) -> Path:
    """The directory that samples of this user work in.

    Args:
        given: instead of one in the system's directory for temporary files.

    Raises:
        AdapterUnavailable: it belongs to somebody else, or cannot be made.
    """
    root = Path(given).absolute() if given is not None else Path(tempfile.gettempdir(), f"gittrix-evals-{os.getuid()}").absolute()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.lstat()
    except OSError as problem:
        raise AdapterUnavailable(f"{root} cannot be made: {problem.strerror}.", fix="Give a directory of your own by --scratch.") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise AdapterUnavailable(
            f"{root} is not a directory of yours.",
            why="Whoever owns it could change what samples see.",
            fix="Give a directory of your own by --scratch.",
        )
    return Path(os.path.realpath(root))


def make_work_dir(root: Path, run: str, *, clock: Clock | None = None, ttl: timedelta = TTL) -> WorkDir:
    """Make a directory that this process owns.

    Args:
        root: see ``scratch_root``.
        run: what it is for, for people who find it.
        clock: the time; the real one by default.
        ttl: after which somebody who cannot judge the owner may remove it.

    Raises:
        AdapterUnavailable: the disk refused.
    """
    name = f"{os.getpid()}-{secrets.token_hex(6)}"
    fresh, path = root / (_NEW + name), root / name
    now = (clock or SystemClock()).now_ns()
    note = {**Owner.current().to_json(), "run": run, "expires_ns": now + ttl // timedelta(microseconds=1) * 1000}
    try:
        fresh.mkdir(mode=0o700)
        write_file(str(fresh / _NOTE), json.dumps(note, sort_keys=True).encode())
        points.reached("eval:lease-written")
        os.rename(fresh, path)
    except OSError as problem:
        raise AdapterUnavailable(f"{path} cannot be made: {problem.strerror}.", fix="Make room, or give another --scratch.") from None
    return WorkDir(path, name)


def owners(root: Path) -> dict[str, tuple[Owner, str]]:
    """Who owns which directory below a root, and for which run."""
    found = {}
    for name in _work_dir_names(root):
        note = _owner_of(root / name)
        if note is not None:
            found[name] = (note[0], str(note[1].get("run", "")))
    return found


def sweep(root: Path, *, clock: Clock | None = None) -> Swept:
    """Remove the directories of dead owners, and end what still runs in them.

    Args:
        root: see ``scratch_root``.
        clock: the time; the real one by default.
    """
    now = (clock or SystemClock()).now_ns()
    removed: list[str] = []
    ended: list[int] = []
    for name in _work_dir_names(root):
        if name.startswith(_DEAD):
            _remove(root / name)
        elif _is_dead(root / name, now):
            # The new name is the janitor's alone, so that two of them never work on one.
            dead = root / f"{_DEAD}{name.removeprefix(_NEW)}-{secrets.token_hex(4)}"
            with suppress(OSError):
                os.rename(root / name, dead)
                points.reached("eval:lease-dead")
                gone = AgentTree(None, mark=name.removeprefix(_NEW), variable=MARK).end(grace=0, poll=0.01)
                ended += [*gone.killed, *gone.left]
                _remove(dead)
                removed.append(name)
    return Swept(tuple(removed), tuple(ended))


def _work_dir_names(root: Path) -> list[str]:
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    return [name for name in names if _OURS.fullmatch(name) and (root / name).is_dir() and not (root / name).is_symlink()]


def _is_dead(path: Path, now: int) -> bool:
    note = _owner_of(path)
    if note is None:
        # Made and not yet named by somebody who lives, or by somebody who was killed between the two.
        with suppress(OSError):
            return path.lstat().st_mtime_ns + TTL // timedelta(microseconds=1) * 1000 < now
        return False
    owner, fields = note
    alive = owner.alive()
    if alive is None:
        expires = fields.get("expires_ns")
        return isinstance(expires, int) and expires < now
    return not alive


def _owner_of(path: Path) -> tuple[Owner, dict[str, Any]] | None:
    try:
        fields = json.loads((path / _NOTE).read_bytes())
        return Owner.from_json(fields), fields
    except (OSError, ValueError, InvalidInput):
        return None


def _remove(path: Path) -> None:
    """Away in one rename, to where any janitor goes on if this one is killed."""
    heap = path.with_name(f"{_DEAD}{secrets.token_hex(6)}")
    trash = Trash(str(heap))
    trash.discard(str(path))
    trash.empty()
    with suppress(OSError):
        os.rmdir(heap)
