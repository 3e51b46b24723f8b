"""The disk usage of runs, and the removal of old ones."""

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
class DiskUsage:
    """The disk usage of a run.

    Attributes:
        path: the run's directory.
        samples: the number of its records.
        began: when it began; None if its manifest does not say.
        parts: bytes by part: ``samples``, ``events``, ``objects.git`` and so on.
    """

    path: Path
    samples: int
    began: datetime | None
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """The bytes of all parts."""
        return sum(self.parts.values())


def runs_below(directory: Path) -> Iterator[RunStore]:
    """The runs in a directory, by name, or the directory itself if it is a run. Links to runs are skipped.

    Raises:
        InvalidInput: the directory does not exist.
    """
    if not directory.is_dir():
        raise InvalidInput(f"There is no directory {directory}.", fix="Give a run, or a directory with runs in it.")
    if RunStore(directory).exists:
        yield RunStore(directory)
        return
    for path in sorted(directory.iterdir()):
        if RunStore(path).exists and not path.is_symlink():
            yield RunStore(path)


def usage(store: RunStore) -> DiskUsage:
    """Measure the disk usage of a run."""
    parts: Counter[str] = Counter()
    for path, size in store.files():
        parts[Path(path).parts[0]] += size
    return DiskUsage(store.path, len(store.keys()), _began(store), dict(sorted(parts.items())))


def prune(directory: Path, *, older: timedelta, dry_run: bool = False, clock: Clock | None = None) -> list[DiskUsage]:
    """Remove runs that began longer than ``older`` ago, except those that a process writes to.

    Args:
        directory: a directory of runs.
        older: the least age of a run that is removed.
        dry_run: remove nothing; only return what would be removed.
        clock: the clock; the real one by default.

    Returns:
        The runs that were removed, or would be.

    Raises:
        InvalidInput: the directory does not exist.
        AdapterUnavailable: a run cannot be removed.
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
    """Remove the files of a run, its manifest last, so that the next call finishes a removal that was killed. Other files stay."""
    try:
        for name in sorted(filter(belongs_to_run, os.listdir(path)), key=lambda name: (name == MANIFEST, name)):
            item = path / name
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            else:
                item.unlink()
        with suppress(OSError):
            path.rmdir()
    except OSError as problem:
        raise AdapterUnavailable(f"{path} cannot be removed: {problem.strerror}.", fix="Check who owns it.") from None


def _began(store: RunStore) -> datetime | None:
    try:
        return parse_instant(store.manifest().host["began"])
    except (GittrixError, KeyError, TypeError):
        return None
