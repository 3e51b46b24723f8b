"""Evicting sessions: one by its id, and every one whose time to live has passed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from pytest_gittrix import points
from pytest_gittrix.engine.eviction.archiver import is_awaited, was_postponed
from pytest_gittrix.engine.eviction.evictor import WhoWorksThere, check_end, check_outcome, is_repeated, require_evictable
from pytest_gittrix.engine.operations.expiry import is_past, is_past_absolute, outlasts_idle_time, resolution_ns
from pytest_gittrix.engine.operations.in_use import InUse, ProcessFinder, require_unused, users_of
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.services import EngineServices, Sweeper, SweptSession
from pytest_gittrix.errors import EvictionRace, GittrixError, SessionNotFound
from pytest_gittrix.os_level.monotonic import OutOfTime, TimeLimit
from pytest_gittrix.record.state.fold import SessionState


def evict(services: EngineServices, id_: str, state: str, *, outcome: str | None = None, force: bool = False) -> None:
    """End a session now; ``GitTrix.evict`` says how and what it raises.

    Args:
        services: of the engine.
        id_: the session.
        state: how it ends.
        outcome: how its agent did.
        force: end it although somebody works in its workspace.
    """
    end, reported = check_end(state), check_outcome(outcome)
    recorder = services.settled(services.recorder(id_))
    if is_repeated(recorder.read(), end, reported):
        return
    require_evictable(recorder.read())
    with recorder.leased() as now:
        require_evictable(now)
        if not force and now.workspace_present:
            require_unused(now, recorder.directory, "discard" if end == "discarded" else "evict")
        services.evictor.evict(recorder, now, end, outcome=reported, users="ignore")
    services.tidy()


def postponed(services: EngineServices, why: Callable[[Recorder], bool] = was_postponed) -> list[str]:
    """The ended sessions whose eviction was postponed, as of the last ``sync`` of the index; ``GitTrix.postponed`` says more.

    Args:
        services: of the engine.
        why: judges the reason.
    """
    found = []
    for id_ in services.index.unsettled():
        with suppress(GittrixError):
            recorder = services.recorder(id_)
            state = recorder.read()
            if state.ended and state.workspace_present and why(recorder):
                found.append(id_)
    return found


def in_use(services: EngineServices) -> list[InUse]:
    """The sessions that a sweep does not evict because somebody works in their workspaces; ``GitTrix.in_use`` says more."""
    services.index.sync()
    finder, found = ProcessFinder(services.store.root), []
    for id_ in dict.fromkeys([*services.index.due(services.clock.now_ns()), *postponed(services, is_awaited)]):
        with suppress(GittrixError, OSError):
            recorder = services.recorder(id_)
            state = recorder.read()
            if state.workspace_present and (users := users_of(state, recorder.directory, finder=finder, turns=not state.ended)):
                found.append(InUse(id_, users))
    return found


@dataclass
class Sweep:
    """One sweep of an engine's sessions; ``GitTrix.sweep`` says more.

    Attributes:
        services: of the engine.
        by: what sweeps, for ``GitTrix.swept``.
        evicted: the sessions that it evicted.
        slow: those whose files took too long to look at.
    """

    services: EngineServices
    by: Sweeper = "sweep()"
    evicted: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Evict every session past its time to live; returns their ids."""
        services, finder = self.services, ProcessFinder(self.services.store.root)
        services.index.sync()
        now = services.clock.now_ns()
        unfinished = postponed(services, lambda recorder: was_postponed(recorder) or is_awaited(recorder))
        for id_ in services.index.ahead(now + resolution_ns(services.clock)):
            with suppress(GittrixError, OSError):
                restart_idle_time(services.recorder(id_))
        for id_ in services.index.due(now):
            points.reached("sweep:found-due")
            self._note(id_, lambda id_: self._evict_if_due(id_, finder))
        for id_ in unfinished:  # after the others, since each has held up a sweep before
            self._note(id_, services.recovery().resume)
        for id_ in tuple(self.slow):  # last, since each takes as long as it needs to say when it was used
            self._note(id_, lambda id_: self._evict_if_due(id_, finder, patient=True))
        if self.evicted:
            services.swept += (SweptSession(id_, now, self.by) for id_ in self.evicted)
            services.tidy()
        return self.evicted

    def _note(self, id_: str, end: Callable[[str], bool]) -> None:
        """End a session, and note what became of it. What is wrong with it stops no other."""
        try:
            if end(id_):
                self.evicted.append(id_)
        except OutOfTime:
            self.slow.append(id_)
        except (EvictionRace, SessionNotFound):
            pass
        except Exception as problem:  # noqa: BLE001  (one odd record must not stop the others from being swept)
            self.services.complain(id_, problem)

    def _evict_if_due(self, id_: str, finder: ProcessFinder, *, patient: bool = False) -> bool:
        """Evict one session if it is past its time to live, judged under its lease; returns whether it was evicted.

        A session with a running operation is left for the next sweep, and so is one that takes longer than the budget to archive. One that
        was only idle is left, too, while somebody works in its workspace. Past its absolute time it ends, and so do the engine's programs.

        Raises:
            OutOfTime: to look at its files takes longer than the budget, unless ``patient``.
        """
        evictor, recorder = self.services.evictor, self.services.settled(self.services.recorder(id_))
        look = TimeLimit(None if patient else evictor.budget)
        with recorder.leased(wait=0) as state:
            if (state.ended and not state.workspace_present) or not is_past(state, recorder.clock):
                return False
            points.reached("sweep:past-deadline")
            if not state.ended:
                state = recorder.with_activity(state, look.check)
            if not is_past(state, recorder.clock) or outlasts_idle_time(state, recorder.clock, recorder.directory, finder):
                return False
            removed = evictor.evict(recorder, state, "expired", within=TimeLimit(evictor.budget), users=_users_of_due(state, recorder))
            return removed.done


def _users_of_due(state: SessionState, recorder: Recorder) -> WhoWorksThere:
    """What to do about those who work in the workspace of a session that is due."""
    if not is_past_absolute(state, recorder.clock):
        return "ignore"  # there are none
    return "await" if state.ended else "end"


def restart_idle_time(recorder: Recorder) -> None:
    """Restart the idle time of a session that was last used in the future, because the clock was set back since."""
    with suppress(EvictionRace), recorder.leased(wait=0) as state:
        if not state.ended and state.last_access_ns > recorder.clock.now_ns() + resolution_ns(recorder.clock):
            recorder.append("session.accessed", {"op": "clock set back"})


def sweeping(services: EngineServices) -> Callable[[], None]:
    """A timer's callback that does not keep an engine's parts alive, nor lead from the clock (which agents see) to durable."""
    reference = weakref.ref(services)

    def sweep_if_alive() -> None:
        alive = reference()
        if alive is not None:
            Sweep(alive, "the timer").run()

    return sweep_if_alive
