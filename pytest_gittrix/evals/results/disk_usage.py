"""What runs take on the disk, and old ones taken away. Must not know what is in a run."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pytest_gittrix.clock.clock import Clock, SystemClock
from pytest_gittrix.durations import parse_instant
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput
from pytest_gittrix.evals.results.store import MANIFEST, RunStore, belongs_to_run


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run takes.

    Attributes:
        path: of the run.
        samples: how many records it has.
        began: when it was begun; None if its manifest does not tell.
        parts: bytes by part: ``samples``, ``events``, ``objects.git`` and so on.
    """

    path: Path
    samples: int
    began: datetime | None
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes of all of it."""
        return sum(self.parts.values())


def runs_below(directory: Path) -> Iterator[RunStore]:
    """The runs in a directory, or the one that it is, by name. A link to a run is none.

    Raises:
        InvalidInput: there is no such directory.
    """
    if not directory.is_dir():
        raise InvalidInput(f"There is no directory {directory}.", fix="Give a run, or a directory with runs in it.")
    if RunStore(directory).exists:
        yield RunStore(directory)
        return
    for path in sorted(directory.iterdir()):
        if RunStore(path).exists and not path.is_symlink():
            yield RunStore(path)


def usage(store: RunStore) -> Usage:
    """What a run takes."""
    parts: Counter[str] = Counter()
    for path, size in store.files():
        parts[Path(path).parts[0]] += size
    return Usage(store.path, len(store.keys()), _began(store), dict(sorted(parts.items())))


def prune(directory: Path, *, older: timedelta, dry_run: bool = False, clock: Clock | None = None) -> list[Usage]:
    """Remove runs that were begun longer ago than a while; one that somebody works on stays.

    Args:
        directory: with runs in it.
        older: how long ago.
        dry_run: remove nothing, only tell.
        clock: the time; the real one by default.

    Returns:
        Those that were removed, or would be.

    Raises:
        InvalidInput: there is no such directory.
        AdapterUnavailable: one cannot be removed.
    """
    before = (clock or SystemClock()).now() - older
    found = []
    for store in runs_below(directory):
        found_usage = usage(store)
        if found_usage.began is None or found_usage.began >= before:
            continue
        with ExitStack() as held:
            try:
                held.enter_context(store.locked())
            except AdapterUnavailable:
                continue
            if not dry_run:
                _remove(store.path)
            found.append(found_usage)
    return found


def _remove(path: Path) -> None:
    """What belongs_to_run to the run, its manifest last so that one that was killed is found again; what somebody put beside it stays."""
    try:
        for name in sorted(filter(belongs_to_run, os.listdir(path)), key=lambda name: (name == MANIFEST, name)):
            path_of_it = path / name
            if path_of_it.is_dir() and not path_of_it.is_symlink():
                shutil.rmtree(path_of_it)
            else:
                path_of_it.unlink()
        with suppress(OSError):
            path.rmdir()
    except OSError as problem:
        raise AdapterUnavailable(f"{path} cannot be removed: {problem.strerror}.", fix="See to whom it belongs_to_run.") from None


def _began(store: RunStore) -> datetime | None:
    try:
        return parse_instant(store.manifest().host["began"])
    except (GittrixError, KeyError, TypeError):
        return None
