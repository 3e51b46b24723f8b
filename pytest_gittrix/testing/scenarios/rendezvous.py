"""Where a test meets processes and turns that follow a script: one named pipe for their messages, and one for each point where they wait.

Neither side sleeps; a test and its scripts share only a directory.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from pytest_gittrix.errors import CapabilityMissing, Deadlock, InvalidInput
from pytest_gittrix.os_level.monotonic import pause, real_seconds

NEWS: Final = "news"
STAY: Final = "stay"
_SLICE: Final = 0.01  # seconds of one wait for messages


class Rendezvous:
    """The test's side of the pipes.

    Args:
        directory: where the pipes are made; it exists.
        timeout: real seconds to wait for a script before it counts as stuck.
        grace: real seconds without a message after which the test no longer waits for scripts that are all over.
        receive: called with each message, also with ``{"at": point}`` when a script reaches a point.
        over: whether every script that began is over, so that none will reach a point any more.
        all_over: says so, in the message of a Deadlock.
        report: the advice at the end of that message.

    Raises:
        CapabilityMissing: the system has no named pipes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        timeout: float,
        grace: float,
        receive: Callable[[Mapping[str, Any]], object],
        over: Callable[[], bool],
        all_over: str,
        report: Callable[[], str],
    ) -> None:
        if not hasattr(os, "mkfifo"):
            raise CapabilityMissing("This system has no named pipes.", fix="Run scripted agents and turns on Linux or macOS.")
        self.directory = directory
        self.timeout = timeout
        self.grace = grace
        self._receive = receive
        self._over = over
        self._all_over = all_over
        self._report = report
        self._lock = threading.RLock()
        self._waiting: Counter[str] = Counter()
        self._points: dict[str, tuple[Path, int]] = {}
        self._rest = b""
        # Open for both, so that neither side waits for the other to open it, and messages wait until the test reads them.
        self._news = self._pipe(NEWS)
        # Processes that stay until the test is gone read from this pipe: they find its end, however the test ended.
        both = self._pipe(STAY)
        self._stay = os.open(directory / STAY, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(both)

    def point(self, name: str) -> str:
        """The path of the pipe at which a script waits at a point; made when it is needed."""
        if name not in self._points:
            file = f"at-{len(self._points)}"
            self._points[name] = (self.directory / file, self._pipe(file))
        return str(self._points[name][0])

    def descriptor(self, point: str) -> int:
        """The pipe of a point, open and non-blocking, for a script that has it from its parent."""
        return self._points[point][1]

    def wait_for(self, point: str, timeout: float | None = None) -> None:
        """Return when a script waits at a point; a second call waits for the next script to arrive there.

        Raises:
            InvalidInput: no script has such a point.
            Deadlock: none came there in time, or all that began are over.
        """
        self._require(point)
        limit = self.timeout if timeout is None else timeout
        began = received = real_seconds()
        while not self._arrived(point):
            if self.listen(_SLICE):
                received = real_seconds()
                continue
            over = real_seconds() > received + self.grace and self._over()
            if over or real_seconds() > began + limit:
                raise self._deadlock(point, self._all_over if over else "The time is up")

    def go(self, point: str, times: int = 1) -> None:
        """Release a script that waits at a point, or that arrives there later; with ``times``, so many scripts.

        Raises:
            InvalidInput: no script has such a point.
        """
        self._require(point)
        os.write(self._points[point][1], b"g" * times)

    def tell(self, **message: Any) -> None:
        """Called by a script in a fork or thread of the test: send the test a message, whole or not at all."""
        os.write(self._news, json.dumps(message).encode() + b"\n")

    def listen(self, patience: float = 0.0) -> bool:
        """Receive every message so far; wait up to ``patience`` seconds for a first one. Whether there was one."""
        with self._lock:
            received = False
            while select.select([self._news], [], [], patience)[0]:
                received, patience = True, 0.0
                *lines, self._rest = (self._rest + os.read(self._news, 65536)).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if "at" in message:
                        self._waiting[message["at"]] += 1
                    self._receive(message)
            return received

    def dismiss(self) -> None:
        """Have every process end that stays until the test is gone."""
        if self._stay >= 0:
            os.close(self._stay)
            self._stay = -1

    def close(self) -> None:
        """Close the pipes; processes that wait at a point find the end of its pipe."""
        self.dismiss()
        for descriptor in (self._news, *(descriptor for _, descriptor in self._points.values())):
            os.close(descriptor)
        self._points.clear()

    def _arrived(self, point: str) -> bool:
        with self._lock:
            arrived = self._waiting[point] > 0
            self._waiting[point] -= arrived
        return arrived

    def _require(self, point: str) -> None:
        if point not in self._points:
            known = ", ".join(self._points) or "none"
            raise InvalidInput(f"No script stops at {point!r}.", fix=f"Points: {known}. Add one with at({point!r}).")

    def _deadlock(self, point: str, what: str) -> Deadlock:
        others = ", ".join(name for name, count in self._waiting.items() if count)
        standing = f"Others wait at: {others}." if others else "None waits at a point."
        return Deadlock(f"{what}, and {point!r} was not reached.", why="The test would wait for ever.", fix=f"{standing} {self._report()}")

    def _pipe(self, file: str) -> int:
        os.mkfifo(self.directory / file)
        return os.open(self.directory / file, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


class ScriptKit:
    """Scripts that stop at points, and the test's side of them; a context manager that closes the kit.

    Args:
        directory: for its programs and pipes; by default a temporary one, which is removed with the kit.
        prefix: of the name of a temporary one.

    Attributes:
        directory: as given, absolute.
        test_pid: the id of the test's process.
    """

    _rendezvous: Rendezvous

    def __init__(self, directory: str | os.PathLike[str] | None, prefix: str) -> None:
        self._temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix=prefix)).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.test_pid = os.getpid()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.close()

    def close(self) -> None:
        """End every script, and what it started. Does nothing in a fork of the test, or a second time."""
        if self._closed or os.getpid() != self.test_pid:
            return
        self._end()
        self._closed = True
        self._rendezvous.close()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self) -> None:
        raise NotImplementedError

    def _listen(self) -> None:
        if not self._closed:
            self._rendezvous.listen()

    def _wait_until(self, over: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a condition, for as long as for a script by default; whether it holds."""
        deadline = real_seconds() + (self._rendezvous.timeout if timeout is None else timeout)
        while not (holds := over()) and real_seconds() < deadline:
            pause(_SLICE)
        return holds

    def wait_for(self, point: str, timeout: float | None = None) -> None:
        """Return when a script waits at a point; a second call waits for the next script to arrive there.

        Raises:
            InvalidInput: no script has such a point.
            Deadlock: none came there in time, or every script that began has been over for a while.
        """
        self._rendezvous.wait_for(point, timeout)

    def go(self, point: str, times: int = 1) -> None:
        """Release a script that waits at a point, or that arrives there later; with ``times``, so many scripts.

        Raises:
            InvalidInput: no script has such a point.
        """
        self._rendezvous.go(point, times)

    def step(self, point: str, timeout: float | None = None) -> None:
        """``wait_for``, then ``go``."""
        self.wait_for(point, timeout)
        self.go(point)
