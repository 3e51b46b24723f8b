"""Counts how many files and functions of the package each operation of a session crosses, on a real repository.

``python -m tests.quality.crossings`` prints the table, ``python -m tests.quality.crossings write`` also the functions of an operation.
Everything has been imported and done once before it is counted, so that only calls count, and those of the engine's threads as well.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest_gittrix
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine import GitTrix
from pytest_gittrix.testing.repos.place import Place

PACKAGE: Final = str(Path(pytest_gittrix.__file__).parent) + "/"
FILES: Final = {"app.py": "print('hello')\n", "docs/index.md": "# App\n", "src/a.py": "a = 1\n", "src/b.py": "b = 2\n"}

Function = tuple[str, str]
"""A file below the package, and the name of a function in it."""
Crossed = Mapping[str, set[Function]]
"""The functions that each operation called."""


class Tracer:
    """Notes each function of the package that is called during an operation, in this thread and in those that begin while it is on."""

    def __init__(self) -> None:
        self.crossed: dict[str, set[Function]] = {}
        self._now: set[Function] | None = None

    def __enter__(self) -> Tracer:
        self._before = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(self._before[0])
        threading.setprofile(self._before[1])

    @contextmanager
    def during(self, operation: str) -> Iterator[None]:
        """A block whose calls are those of ``operation``, with those of the threads that it starts, which are waited for."""
        self._now, before = self.crossed.setdefault(operation, set()), set(threading.enumerate())
        try:
            yield
            for thread in set(threading.enumerate()) - before:
                thread.join(timeout=60)
        finally:
            self._now = None

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        code, now = frame.f_code, self._now
        if now is not None and event == "call" and code.co_filename.startswith(PACKAGE):
            now.add((code.co_filename.removeprefix(PACKAGE), code.co_qualname.partition(".<locals>.<")[0]))


def crossings(root: Path) -> Crossed:
    """Start a session, write, show it, promote, and sweep another one that expired; what each crossed, by the name of the operation.

    Args:
        root: an empty directory.
    """
    with Tracer() as tracer, Place.open(root / "place", files=FILES) as place:
        clock = FrozenClock(datetime.now(UTC))  # never twice the same, so that no text of an instant is in a cache
        with GitTrix(place.durable.path, store=root / "sessions", clock=clock, eviction="4h", sweep_interval=None) as engine:
            for turn in range(2):  # the first turn imports, chooses, and makes what is kept
                tracer.crossed.clear()
                _turn(tracer, engine, turn)
                clock.advance(timedelta(hours=5))
                with tracer.during("sweep"):
                    swept = engine.sweep()
                assert len(swept) == 1
    return tracer.crossed


def _turn(tracer: Tracer, engine: GitTrix, turn: int) -> None:
    expiring = engine.start_session(task="Try")
    expiring.write("app.py", f"print('try {turn}')\n")
    with tracer.during("start_session"):
        session = engine.start_session(task="Edit")
    with tracer.during("write"):
        session.write("app.py", f"print('hello {turn}')\n")
    with tracer.during("info"):
        session.info()
    with tracer.during("promote"):
        session.promote(["app.py"], message="Edit")


def counts(crossed: Crossed) -> dict[str, tuple[int, int]]:
    """The numbers of files and of functions by operation."""
    return {operation: (len({file for file, _ in functions}), len(functions)) for operation, functions in crossed.items()}


def main(shown: Sequence[str]) -> None:
    """Print the table, and the functions of the operations in ``shown``, by file."""
    with tempfile.TemporaryDirectory() as root:
        crossed = crossings(Path(root))
    for operation, (files, functions) in counts(crossed).items():
        print(f"{operation:14} {files:3} files {functions:4} functions")
        for file in sorted({file for file, _ in crossed[operation]} if operation in shown else ()):
            print(f"    {file}: {', '.join(sorted(name for where, name in crossed[operation] if where == file))}")


if __name__ == "__main__":
    main(sys.argv[1:])
