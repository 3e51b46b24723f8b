"""Where a test meets processes that follow a script: named pipes for what they say, and one for each point at which they wait.

Nobody sleeps and nothing is shared but a directory. It must not know what the scripts do, nor pytest.
"""

from __future__ import annotations

import json
import os
import select
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import CapabilityMissing, Deadlock, InvalidInput
from pytest_gittrix.os_level.monotonic import real_seconds

NEWS: Final = "news"
STAY: Final = "stay"
_SLICE: Final = 0.02
_GRACE: Final = 0.5  # seconds without news after which a test no longer waits for processes that are all gone


class Meeting:
    """The test's side of the pipes.

    Args:
        directory: where they are; it exists.
        timeout: real seconds to wait for a process before it counts as stuck.
        hear: called with each piece of news that is not about a point.
        over: whether every process is gone, so that none will come to a point any more.

    Raises:
        CapabilityMissing: the system has no named pipes.
    """

    def __init__(self, directory: Path, *, timeout: float, hear: Callable[[Mapping[str, Any]], object], over: Callable[[], bool]) -> None:
        if not hasattr(os, "mkfifo"):
            raise CapabilityMissing("This system has no named pipes.", fix="Run scripted processes on Linux or macOS.")
        self.directory = directory
        self.timeout = timeout
        self._hear = hear
        self._over = over
        self._here: Counter[str] = Counter()
        self._points: dict[str, tuple[Path, int]] = {}
        self._rest = b""
        # Open for both, so that neither side waits for the other to open it, and what is said to nobody is kept.
        self._news = self._pipe(NEWS, os.O_RDWR)
        # Whoever stays reads from this one, and finds its end when the test is gone, however that came about.
        stay = self._pipe(STAY, os.O_RDWR)
        self._stay = os.open(directory / STAY, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(stay)

    def point(self, name: str) -> str:
        """The pipe at which a process waits at a point of that name; made when needed."""
        if name not in self._points:
            file = f"at-{len(self._points)}"
            self._points[name] = (self.directory / file, self._pipe(file, os.O_RDWR))
        return str(self._points[name][0])

    def wait_for(self, point: str, timeout: float | None = None) -> None:
        """Return when a process stands at a point; a second call waits for one to come there a second time.

        Raises:
            InvalidInput: no script has such a point.
            Deadlock: none came there in time, or all that were begun are gone.
        """
        self._require(point)
        limit = self.timeout if timeout is None else timeout
        began = heard = real_seconds()
        while not self._here[point]:
            if self.listen(_SLICE):
                heard = real_seconds()
                continue
            over = real_seconds() > heard + _GRACE and self._over()
            if over or real_seconds() > began + limit:
                waiting = ", ".join(name for name, count in self._here.items() if count)
                raise Deadlock(
                    f"{'Every process is gone' if over else 'The time is up'}, and {point!r} was not reached.",
                    why="The test would wait for ever.",
                    fix=f"Others stand at: {waiting}." if waiting else "None stands at any point; see what they said before they ended.",
                )
        self._here[point] -= 1

    def go(self, point: str, times: int = 1) -> None:
        """Let a process go on that stands at a point, or that comes there later; with ``times``, so many.

        Raises:
            InvalidInput: no script has such a point.
        """
        self._require(point)
        os.write(self._points[point][1], b"g" * times)

    def listen(self, patience: float = 0.0) -> bool:
        """Take all that was said so far, waiting some seconds if it is nothing; whether it was something."""
        heard = False
        while select.select([self._news], [], [], patience)[0]:
            heard, patience = True, 0.0
            *lines, self._rest = (self._rest + os.read(self._news, 65536)).split(b"\n")
            for line in lines:
                news = json.loads(line)
                if "at" in news:
                    self._here[news["at"]] += 1
                else:
                    self._hear(news)
        return heard

    def dismiss(self) -> None:
        """Have everybody end who stays."""
        if self._stay >= 0:
            os.close(self._stay)
            self._stay = -1

    def close(self) -> None:
        """Let go of the pipes; who waits at a point finds its end."""
        self.dismiss()
        for fd in (self._news, *(fd for _, fd in self._points.values())):
            os.close(fd)
        self._points.clear()

    def _require(self, point: str) -> None:
        if point not in self._points:
            known = ", ".join(self._points) or "none"
            raise InvalidInput(f"No script stops at {point!r}.", fix=f"Points: {known}. Add one with at({point!r}).")

    def _pipe(self, file: str, flags: int) -> int:
        os.mkfifo(self.directory / file)
        return os.open(self.directory / file, flags | os.O_NONBLOCK | os.O_CLOEXEC)
