"""What a daemon is, apart from HTTP: one engine, the managers on it, and the threads that see to it that sessions go on.

An agent that is gone is noticed within half a second and its work is saved; what is retained is looked through from time to time; projects
are polled. All of it can be killed at any instant: the next daemon finds the agents that still run and goes on with the rest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pytest_gittrix.clock.file_clock import clock_from_environment
from pytest_gittrix.commands.managers import members_of, orchestrator_of
from pytest_gittrix.commands.output import put_error
from pytest_gittrix.commands.team_file import Team
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.os_level.process_tree import seconds
from pytest_gittrix.server.events import Feed
from pytest_gittrix.server.workers import Workers

if TYPE_CHECKING:
    from pytest_gittrix.clock.clock import Clock
    from pytest_gittrix.members.members import Members
    from pytest_gittrix.orchestrator.orchestrator import Orchestrator

T = TypeVar("T")

WATCH: Final = 0.5
"""Seconds between two looks for agents that are gone."""
FINALIZERS: Final = 4
"""How many sessions are finalized at a time."""
PATIENCE: Final = 15.0
"""Seconds that an answer waits for what takes long; after that it tells how things stand, and the rest is done without it."""
ASKED: Final = 32


class Daemon:
    """Use it as a context manager, or call ``start`` and ``stop``.

    Args:
        team: who is managed.
        store: directory of the sessions; the default one if None.
        clock: the time; what PYTEST_GITTRIX_CLOCK names, or the machine's.
        complain: told what went wrong in the background, a line.

    Attributes:
        engine, members: what manages the sessions.
        feed: what happens in them.

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
        self.engine = GitTrix(None, store=store, clock=clock if clock is not None else clock_from_environment())
        self.members: Members = members_of(self.engine, team)
        self._orchestrator: Orchestrator | None = None
        self.feed = Feed(self.engine)
        self.begun = seconds()
        self._hear = complain
        self._finishing = Workers(FINALIZERS, "gittrix-finish")
        self._asked = Workers(ASKED, "gittrix-asked")
        self._urgent = Workers(ASKED, "gittrix-urgent")
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="gittrix-watch", daemon=True)

    @property
    def orchestrator(self) -> Orchestrator:
        """The manager of the team's projects, which is made once the store has been recovered."""
        assert self._orchestrator is not None
        return self._orchestrator

    def __enter__(self) -> Daemon:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> Daemon:
        """Recover from whatever was killed, find the agents that still run, and begin to watch.

        Raises:
            GittrixError: the store cannot be used.
        """
        self.engine.init()
        self.members.watch()
        self._orchestrator = orchestrator_of(self.engine, self.team)
        if self.team.projects:
            self._orchestrator.watch()
        self._finishing.do("", self.members.recover)  # it may have to push; nobody has to wait for that
        self._watcher.start()
        return self

    def active(self) -> int:
        """How many members' sessions are active."""
        index = self.engine.records.index
        index.sync()
        return len(index.lives(("active",)))

    def stop(self, timeout: float = 5.0) -> None:
        """End the streams and the watching, and wait for what is being done, some seconds at most. Agents go on. Again: nothing.

        A finalization that is not done by then is killed with the process, and begun anew by the next daemon.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self.feed.close()
        if self._watcher.is_alive():
            self._watcher.join()
        deadline = seconds() + timeout
        for workers in (self._urgent, self._asked, self._finishing):
            workers.close(max(deadline - seconds(), 0.0))
        if self._orchestrator is not None:
            self._orchestrator.close()
        self.members.close()
        self.engine.close()

    async def wait_for(self, key: str, work: Callable[[], T], *, urgent: bool = False, patience: float = PATIENCE) -> T | None:
        """Have something done, and wait for it for some seconds; None if it goes on. No thread waits: many may ask at once.

        Args:
            key: what it is; the same is done once at a time.
            work: it.
            urgent: not to wait behind what is not.
            patience: how long to wait.

        Raises:
            GittrixError: whatever it raises.
        """
        future: Future[T] = (self._urgent if urgent else self._asked).do(key, work)
        loop, settled = asyncio.get_running_loop(), asyncio.Event()

        def settle(_done: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settled.set)

        future.add_done_callback(settle)
        try:
            await asyncio.wait_for(settled.wait(), patience)
        except TimeoutError:
            future.add_done_callback(lambda done: self._tell(key, done))
            return None
        try:
            return future.result()
        except CancelledError:
            raise AdapterUnavailable(f"The daemon is ending, and does not begin to {key}.", fix="Ask the next one.") from None

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH):
            try:
                gone = self.members.exited()
            except Exception as problem:  # noqa: BLE001  (nobody would notice agents that are gone any more)
                self._complain(f"sessions cannot be looked at: {_first_line(problem)}")
                self._stopping.wait(PATIENCE)
                continue
            for id_ in gone:
                if not self._finishing.rests(id_):
                    self._finish(id_)

    def _finish(self, id_: str) -> None:
        def finish() -> Any:
            try:
                return self.members.finish(id_)
            except Exception as problem:
                self._complain(f"{id_} could not be finished, and is tried again: {_first_line(problem)}")
                raise

        self._finishing.do(id_, finish)

    def _complain(self, line: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads standard error any more; that must end no thread
            self._hear(line)

    def _tell(self, key: str, done: Future[Any]) -> None:
        with suppress(Exception):
            if not done.cancelled() and (problem := done.exception()) is not None:
                self._complain(f"{key}: {_first_line(problem)}")


def _first_line(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).partition("\n")[0]
