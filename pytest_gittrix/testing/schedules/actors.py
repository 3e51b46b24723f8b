"""Threads that run one at a time and stop at points, so that a test says who goes next. It must not know what the points mean.

The engine's locks are waited for at points too (``lease:busy``, ``ref:busy``): an actor that stands at one gives up its turn, so that the
holder can go on.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from pytest_gittrix.errors import Deadlock, GittrixError, InvalidInput

WAITING: Final = ":busy"
"""How the names of points end at which an actor waits for another."""


class _Abandoned(BaseException):
    """Unwinds an actor whose race is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an actor.

    Attributes:
        value: what it returned.
        error: what it raised instead, if anything.
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
    """Actors that take turns. Made by ``Race.actors``.

    Args:
        actors: what each does, by name.
        timeout: real seconds from one point to the next, or for all to wait for each other.
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
    def outcomes(self) -> dict[str, Outcome]:
        """What became of those that have ended, by name."""
        return {name: actor.outcome for name, actor in self._actors.items() if actor.outcome is not None}

    def step(self, name: str, *, to: str | None = None) -> str | None:
        """Let one actor go on to its next point, or to the point ``to``; one that has ended stays as it is.

        Returns:
            The point it stands at, or None if it has ended.

        Raises:
            InvalidInput: there is no such actor.
            Deadlock: it ended, or waits for another actor, without having reached ``to``; or it came to no point in time.
        """
        actor = self._named(name)
        if to is None:
            return self._go(actor)
        deadline = time.monotonic() + self._timeout
        while (point := self._go(actor)) != to:
            if point is None:
                raise Deadlock(
                    f"{name} ended without having reached {to!r}.",
                    why="The order the test asked for cannot happen.",
                    fix=f"Points it passed: {', '.join(dict.fromkeys(actor.path)) or 'none'}.",
                )
            if point.endswith(WAITING) and time.monotonic() > deadline:
                raise self._stuck(actor)
        return point

    def finish(self, *names: str) -> None:
        """Let actors (all, by default) go on to their ends, in turn; one that waits for a lock lets the others go first.

        Raises:
            Deadlock: they wait for each other, or for an actor that is not to go on.
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
        """Called on an actor's own thread at each point: wait there for the next turn. Other threads go on."""
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
        # One that was stuck may have come to stop since: it is not let go on a second time.
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
            why="A schedule says which actor goes next.",
            fix=f"Actors: {', '.join(self._actors) or 'none'}.",
        )

    def _stuck(self, stuck: _Actor) -> Deadlock:
        everyone = "; ".join(f"{actor.name} {actor.where}" for actor in self._actors.values())
        frame = sys._current_frames().get(stuck.thread.ident or 0) if stuck.thread else None
        inside = traceback.extract_stack(frame)[-1] if frame else None
        return Deadlock(
            f"{stuck.name} did not go on within {self._timeout:g} s: {everyone}.",
            why="It waits for something that an actor standing still holds, so this order cannot happen.",
            fix=f"Let the holder go on first.{f' {stuck.name} is in {inside.name} ({inside.filename}:{inside.lineno}).' if inside else ''}",
            opt_out="An actor that is only slow needs a longer timeout: Race(..., timeout=).",
        )
