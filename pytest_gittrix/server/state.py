"""The daemon apart from HTTP: one engine, the managers on it, and the threads that finish, clean up and poll sessions.

An agent that has ended is noticed within half a second, and its work is saved; retained workspaces are scanned from time to time; projects
are polled. The daemon can be killed at any instant: the next one finds the agents that still run, and continues the rest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_gittrix.clock.file_clock import FileClock, clock_from_environment
from pytest_gittrix.commands.managers import members_of, orchestrator_of
from pytest_gittrix.commands.output import put_error
from pytest_gittrix.commands.team_file import Team
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.eviction.evictor import BUDGET
from pytest_gittrix.engine.operations.resources import QUEUE_WAIT
from pytest_gittrix.engine.operations.validation import budget_from_environment, queue_wait_from_environment
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.server.events import Feed
from pytest_gittrix.server.workers import Workers

if TYPE_CHECKING:
    from pytest_gittrix.clock.clock import Clock
    from pytest_gittrix.members.members import Members
    from pytest_gittrix.orchestrator.orchestrator import Orchestrator

T = TypeVar("T")

WATCH: Final = 0.5
"""Seconds between two checks for agents that have ended."""
FINALIZERS: Final = 4
"""How many sessions are finalized at a time."""
PATIENCE: Final = 15.0
"""Seconds that a response waits for long work; then it reports the present state, and the work goes on without it."""
REQUESTS: Final = 32
"""How many requests for long work are served at a time."""


class Daemon:
    """The engine, the managers and the background threads of a daemon. Use it as a context manager, or call ``start`` and ``stop``.

    Args:
        team: the team that is managed.
        store: directory of the sessions; the default one if None.
        clock: the clock; by default the file that PYTEST_GITTRIX_CLOCK names, or the machine's time.
        complain: called with a line for each error in the background.

    Attributes:
        engine, members: the managers of the sessions.
        feed: the stream of their events.

    Raises:
        InvalidInput, CapabilityMissing: the team's managers cannot be made; see ``managers``.
    """

    def __init__(
        self,
        team: Team,
        *,
        store: Path | None = None,
        clock: Clock | None = None,
        complain: Callable[[str], object] = put_error,
    ) -> None:
        self.team = team
        clock = clock if clock is not None else clock_from_environment()
        budget, queue_wait = budget_from_environment(BUDGET), queue_wait_from_environment(QUEUE_WAIT)
        self.engine = GitTrix(None, store=store, clock=clock, sweep_budget=budget, queue_wait=queue_wait)
        self.members: Members = members_of(self.engine, team)
        self._orchestrator: Orchestrator | None = None
        self.feed = Feed(self.engine)
        self.begun = real_seconds()
        self._report_line = complain
        self._finishing = Workers(FINALIZERS, "gittrix-finish")
        self._requests = Workers(REQUESTS, "gittrix-request")
        self._urgent = Workers(REQUESTS, "gittrix-urgent")
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="gittrix-watch", daemon=True)

    @property
    def orchestrator(self) -> Orchestrator:
        """The manager of the team's projects, which ``start`` makes once the store has been recovered."""
        assert self._orchestrator is not None
        return self._orchestrator

    def __enter__(self) -> Daemon:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> Daemon:
        """Recover from a kill, find the agents that still run, and begin to watch.

        Raises:
            GittrixError: the store cannot be used.
        """
        self.engine.init()
        self.members.watch()
        self._orchestrator = orchestrator_of(self.engine, self.team)
        if self.team.projects:
            self._orchestrator.watch()
        self._finishing.do("", self.members.recover)  # it may have to push, so it runs in the background
        self._watcher.start()
        return self

    def active(self) -> int:
        """How many members' sessions are active."""
        index = self.engine.records.index
        index.sync()
        return len(index.lives(("active",)))

    def stop(self, timeout: float = 5.0) -> None:
        """End the streams and the watching, and wait ``timeout`` seconds at most for running work. A second call does nothing.

        Agents go on. A finalization that is not done by then ends with the process, and the next daemon starts it again.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self.feed.close()
        if self._watcher.is_alive():
            self._watcher.join()
        deadline = real_seconds() + timeout
        for workers in (self._urgent, self._requests, self._finishing):
            workers.close(max(deadline - real_seconds(), 0.0))
        if self._orchestrator is not None:
            self._orchestrator.close()
        self.members.close()
        self.engine.close()

    async def wait_for(self, key: str, work: Callable[[], T], *, urgent: bool = False, patience: float = PATIENCE) -> T | None:
        """Run work in a thread, and wait for its result for some seconds. No thread waits, so many requests can wait at once.

        Args:
            key: names the work; of the same key, only one runs at a time.
            work: the function to run.
            urgent: do not queue it behind work that is not urgent.
            patience: seconds to wait.

        Returns:
            The result, or None if the work still goes on.

        Raises:
            GittrixError: as ``work``.
        """
        future: Future[T] = (self._urgent if urgent else self._requests).do(key, work)
        loop, settled = asyncio.get_running_loop(), asyncio.Event()

        def settle(_done: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settled.set)

        future.add_done_callback(settle)
        try:
            await asyncio.wait_for(settled.wait(), patience)
        except TimeoutError:
            future.add_done_callback(lambda done: self._complain_if_failed(key, done))
            return None
        try:
            return future.result()
        except CancelledError:
            raise AdapterUnavailable(f"The daemon is ending, and does not begin to {key}.", fix="Ask the next one.") from None

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH):
            if isinstance(clock := self.engine.clock, FileClock):
                self._requests.do("timers", partial(self._run_timers, clock))
            self._requests.do("hear", self._hear)
            try:
                gone = self.members.exited()
            except Exception as problem:  # noqa: BLE001  (this thread must go on, or no ended agent would be noticed)
                self._complain(f"sessions cannot be looked at: {_first_line(problem)}")
                self._stopping.wait(PATIENCE)
                continue
            for id_ in gone:
                if not self._finishing.rests(id_):
                    self._finish(id_)

    def _hear(self) -> None:
        """Give brains what happened as prompts."""
        try:
            self.members.hear({name: one.hears for name, one in self.team.members.items()})
        except Exception as problem:  # noqa: BLE001  (the next look tries again)
            self._complain(f"events cannot be heard: {_first_line(problem)}")

    def _run_timers(self, clock: FileClock) -> None:
        """Run the timers that have fallen due on a test's clock file; any other clock runs its own."""
        try:
            clock.poll()
        except Exception as problem:  # noqa: BLE001  (the next look goes on with the timers after it)
            self._complain(f"a timer failed: {_first_line(problem)}")

    def _finish(self, id_: str) -> None:
        def finish() -> Any:
            try:
                return self.members.finish(id_)
            except Exception as problem:
                self._complain(f"{id_} could not be finished, and is tried again: {_first_line(problem)}")
                raise

        self._finishing.do(id_, finish)

    def _complain(self, line: str) -> None:
        with suppress(OSError, ValueError):  # standard error may be closed; that must end no thread
            self._report_line(line)

    def _complain_if_failed(self, key: str, done: Future[Any]) -> None:
        with suppress(Exception):
            if not done.cancelled() and (problem := done.exception()) is not None:
                self._complain(f"{key}: {_first_line(problem)}")


def _first_line(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).partition("\n")[0]
