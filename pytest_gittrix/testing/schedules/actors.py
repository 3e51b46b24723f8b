"""Threads that run one at a time and stop at points, so that a test decides which one goes next.

The engine waits for its locks at points too (``lease:busy``, ``ref:busy``): an actor that stops there gives up its turn, so that the
holder of the lock can go on.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, Self

from pytest_gittrix.errors import Deadlock, GittrixError, InvalidInput

WAITING: Final = ":busy"
"""The end of the names of points at which an actor waits for another one."""


class _Abandoned(BaseException):
    """Unwinds an actor whose race is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an actor ended.

    Attributes:
        value: what the actor returned.
        error: what it raised instead, or None.
    """

    value: object = None
    error: BaseException | None = None


@dataclass(eq=False)
class _Actor:
    name: str
    fn: Callable[[], object]
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None
    path: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    running: bool = False

    @property
    def where(self) -> str:
        if self.outcome is not None:
            return "has ended"
        return f"is at {self.path[-1]!r}" if self.path else "has passed no point"


class Actors:
    """Actors that take turns. Created by ``Race.actors``.

    Args:
        actors: what each actor does, by name.
        timeout: real seconds that an actor may take from one point to the next, or that all may wait for each other.
    """

    def __init__(self, actors: Mapping[str, Callable[[], object]], *, timeout: float) -> None:
        self._actors = {name: _Actor(name, fn) for name, fn in actors.items()}
        self._timeout = timeout
        self._mine = threading.local()
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self._over = True
        for actor in self._actors.values():
            actor.turn.release()
        for actor in self._actors.values():
            if actor.thread is not None:
                actor.thread.join(self._timeout)

    @property
    def current(self) -> str | None:
        """The name of the actor whose thread this is, or None."""
        actor: _Actor | None = getattr(self._mine, "actor", None)
        return actor.name if actor is not None else None

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes of the actors that have ended, by name."""
        return {name: actor.outcome for name, actor in self._actors.items() if actor.outcome is not None}

    def step(self, name: str, *, to: str | None = None) -> str | None:
        """Let an actor go on to its next point, or to the point ``to``. Does nothing if the actor has ended.

        Returns:
            The point at which the actor stops, or None if it has ended.

        Raises:
            InvalidInput: there is no such actor.
            Deadlock: the actor ended, or waits for another one, without reaching ``to``; or it reached no point in time.
        """
        actor = self._named(name)
        if to is None:
            return self._go(actor)
        deadline = time.monotonic() + self._timeout
        while (point := self._go(actor)) != to:
            if point is None:
                raise Deadlock(
                    f"{name} ended without having reached {to!r}.",
                    why="The requested order cannot happen.",
                    fix=f"Points it passed: {', '.join(dict.fromkeys(actor.path)) or 'none'}.",
                )
            if point.endswith(WAITING) and time.monotonic() > deadline:
                raise self._stuck(actor)
        return point

    def finish(self, *names: str) -> None:
        """Let actors (by default all) go on to their ends, in turn; one that waits for a lock lets the others go first.

        Raises:
            Deadlock: they wait for each other, or for an actor that was not named.
        """
        going = [self._named(name) for name in names or self._actors]
        deadline = time.monotonic() + self._timeout
        while going := [actor for actor in going if actor.outcome is None]:
            for actor in going:
                while (point := self._go(actor)) is not None and not point.endswith(WAITING):
                    deadline = time.monotonic() + self._timeout
            if time.monotonic() > deadline and all(actor.outcome is None for actor in going):
                raise self._stuck(going[0])

    def pause(self, point: str) -> None:
        """Wait for the next turn. Called at each point; does nothing on a thread that is no actor's."""
        actor: _Actor | None = getattr(self._mine, "actor", None)
        if actor is None:
            return
        actor.path.append(point)
        if self._over:
            raise _Abandoned
        actor.stopped.release()
        actor.turn.acquire()
        if self._over:
            raise _Abandoned

    def _go(self, actor: _Actor) -> str | None:
        # An actor that was stuck may have stopped since: it is not released a second time.
        if not actor.running:
            if actor.outcome is not None:
                return None
            actor.running = True
            if actor.thread is None:
                actor.thread = threading.Thread(target=self._play, args=(actor,), name=f"gittrix-actor-{actor.name}", daemon=True)
                actor.thread.start()
            else:
                actor.turn.release()
        if not actor.stopped.acquire(timeout=self._timeout):
            raise self._stuck(actor)
        actor.running = False
        outcome: Outcome | None = actor.outcome
        if outcome is None:
            return actor.path[-1]
        if outcome.error is not None and not isinstance(outcome.error, GittrixError):
            raise outcome.error
        return None

    def _play(self, actor: _Actor) -> None:
        self._mine.actor = actor
        try:
            actor.outcome = Outcome(actor.fn())
        except _Abandoned:
            return
        except BaseException as error:  # noqa: BLE001 - an outcome, or raised on the test's thread
            actor.outcome = Outcome(error=error)
        actor.stopped.release()

    def _named(self, name: str) -> _Actor:
        if name in self._actors:
            return self._actors[name]
        raise InvalidInput(
            f"There is no actor {name!r}.",
            why="A schedule names the actor that goes next.",
            fix=f"Actors: {', '.join(self._actors) or 'none'}.",
        )

    def _stuck(self, stuck: _Actor) -> Deadlock:
        everyone = "; ".join(f"{actor.name} {actor.where}" for actor in self._actors.values())
        frame = _frame_of(stuck.thread) if stuck.thread else None
        inside = traceback.extract_stack(frame)[-1] if frame else None
        return Deadlock(
            f"{stuck.name} did not go on within {self._timeout:g} s: {everyone}.",
            why="It waits for something that a stopped actor holds, so this order cannot happen.",
            fix=f"Let the holder go on first.{f' {stuck.name} is in {inside.name} ({inside.filename}:{inside.lineno}).' if inside else ''}",
            opt_out="An actor that is only slow needs a longer timeout: Race(..., timeout=).",
        )


def _frame_of(thread: threading.Thread) -> FrameType | None:
    """What a thread is at; None if it has ended."""
    collects = gc.isenabled()
    gc.disable()  # a finalizer that runs while the interpreter lists its threads can make it wait for itself
    try:
        return sys._current_frames().get(thread.ident or 0)
    finally:
        if collects:
            gc.enable()
