"""The directories that samples work in, each with a note of its owner; and the sweep, which removes those of dead owners.

No hook runs when a process is killed, so the next run removes what it left. A directory whose owner is alive is never touched, and one
whose owner cannot be examined from here is not touched before it expires.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
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
from pytest_gittrix.git.environment import HOME, HOME_OWNER
from pytest_gittrix.os_level.files import PUBLIC, write_file
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.process_tree import ProcessTree
from pytest_gittrix.workspaces.trash import Trash

MARK: Final = "GITTRIX_EVAL_MARK"
"""The environment variable that every program of a sample inherits; its value is the name of the sample's work directory."""

TTL: Final = timedelta(days=1)
"""The time after which a directory expires whose owner cannot be examined, because it is on another machine or in another container."""

_NOTE: Final = "owner.json"
_NEW: Final = ".new-"
_DEAD: Final = ".dead-"
# Other directories are never touched: the directory that --scratch names may hold other files of the user.
_OURS: Final = re.compile(r"(?:\.new-)?[0-9]+-[0-9a-f]{12}|\.dead-(?:[0-9]+-[0-9a-f]{12}-[0-9a-f]{8}|[0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class WorkDir:
    """A directory that this process owns, for one sample at a time.

    Attributes:
        path: the directory.
        mark: the value of ``MARK`` in the environment of its programs.
    """

    path: Path
    mark: str

    def make_sample_dir(self) -> Path:
        """Make an empty directory for a sample; that of the sample before is removed."""
        self.clear()
        path = self.path / "sample"
        path.mkdir()
        return path

    def clear(self) -> None:
        """Remove the directory of the last sample."""
        if os.path.lexists(self.path / "sample"):
            _remove(self.path / "sample")

    def release(self) -> None:
        """Remove the work directory."""
        _remove(self.path)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        removed: the names of the removed directories.
        ended: the pids of their processes that still ran.
    """

    removed: tuple[str, ...] = ()
    ended: tuple[int, ...] = ()


def scratch_root(given: str | os.PathLike[str] | None = None) -> Path:
    """Make the directory of this user's work directories.

    Args:
        given: its path; by default it is in the system's directory for temporary files.

    Raises:
        AdapterUnavailable: it belongs to another user, or cannot be made.
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
            why="Its owner could change what samples see.",
            fix="Give a directory of your own by --scratch.",
        )
    return Path(os.path.realpath(root))


def make_work_dir(root: Path, run: str, *, clock: Clock | None = None, ttl: timedelta = TTL) -> WorkDir:
    """Make a work directory that this process owns.

    Args:
        root: see ``scratch_root``.
        run: the run that it is for, for people who find it.
        clock: the clock; the real one by default.
        ttl: the time after which a sweep that cannot examine the owner may remove it.

    Raises:
        AdapterUnavailable: the disk refused.
    """
    name = f"{os.getpid()}-{secrets.token_hex(6)}"
    fresh, path = root / (_NEW + name), root / name
    now = (clock or SystemClock()).now_ns()
    note = {**Owner.current().to_json(), "run": run, "expires_ns": now + ttl // timedelta(microseconds=1) * 1000}
    try:
        fresh.mkdir(mode=0o700)
        write_file(str(fresh / _NOTE), json.dumps(note, sort_keys=True).encode(), mode=PUBLIC)
        points.reached("eval:lease-written")
        os.rename(fresh, path)
    except OSError as problem:
        raise AdapterUnavailable(f"{path} cannot be made: {problem.strerror}.", fix="Make room, or give another --scratch.") from None
    return WorkDir(path, name)


def owners(root: Path) -> dict[str, tuple[Owner, str]]:
    """The owner and the run of each work directory, by its name."""
    found = {}
    for name in _work_dir_names(root):
        note = _owner_of(root / name)
        if note is not None:
            found[name] = (note[0], str(note[1].get("run", "")))
    return found


def sweep(root: Path, *, clock: Clock | None = None) -> SweepResult:
    """Remove the directories of dead owners, and end the programs that still run in them.

    Args:
        root: see ``scratch_root``.
        clock: the clock; the real one by default.
    """
    now = (clock or SystemClock()).now_ns()
    removed: list[str] = []
    ended: list[int] = []
    for name in _work_dir_names(root):
        if name.startswith(_DEAD):
            _remove(root / name)
        elif _is_dead(root / name, now):
            # The new name is unique to this sweep, so that two sweeps never work on one directory.
            dead = root / f"{_DEAD}{name.removeprefix(_NEW)}-{secrets.token_hex(4)}"
            with suppress(OSError):
                os.rename(root / name, dead)
                points.reached("eval:lease-dead")
                gone = ProcessTree(mark=name.removeprefix(_NEW), variable=MARK).end()
                ended += [*gone.killed, *gone.left]
                _remove(dead)
                removed.append(name)
    _sweep_homes()
    return SweepResult(tuple(removed), tuple(ended))


def _sweep_homes() -> None:
    """Remove the homes that git had for processes of this user that were killed."""
    for home in Path(tempfile.gettempdir()).glob(f"{HOME}*"):
        with suppress(OSError, ValueError, InvalidInput):
            owner = Owner.from_json(json.loads((home / HOME_OWNER).read_bytes()))
            if home.lstat().st_uid == os.getuid() and owner.alive() is False:
                shutil.rmtree(home, ignore_errors=True)


def _work_dir_names(root: Path) -> list[str]:
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    return [name for name in names if _OURS.fullmatch(name) and (root / name).is_dir() and not (root / name).is_symlink()]


def _is_dead(path: Path, now: int) -> bool:
    note = _owner_of(path)
    if note is None:
        # The owner is about to write its note, or was killed before.
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
    """Remove a directory: rename it first, so that another sweep continues if this one is killed."""
    heap = path.with_name(f"{_DEAD}{secrets.token_hex(6)}")
    trash = Trash(str(heap))
    trash.discard(str(path))
    trash.empty()
    with suppress(OSError):
        os.rmdir(heap)
