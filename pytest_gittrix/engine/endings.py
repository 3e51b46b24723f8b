"""Ending sessions without a promotion: one by its id, and every one whose time to live has passed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pytest_gittrix import points
from pytest_gittrix.engine.eviction.evictor import check_end, check_outcome, is_repeated, require_evictable
from pytest_gittrix.engine.eviction.removal import was_postponed
from pytest_gittrix.engine.operations.expiry import resolution_ns
from pytest_gittrix.engine.services import EngineServices, Sweeper, Swept
from pytest_gittrix.errors import EvictionRace, GittrixError, SessionNotFound
from pytest_gittrix.os_level.monotonic import OutOfTime


def evict(services: EngineServices, id_: str, state: str, *, outcome: str | None = None) -> None:
    """End a session now; ``GitTrix.evict`` says how and what it raises."""
    end, reported = check_end(state), check_outcome(outcome)
    recorder = services.settled(services.recorder(id_))
    if is_repeated(recorder.read(), end, reported):
        return
    require_evictable(recorder.read())
    with recorder.leased() as now:
        require_evictable(now)
        services.evictor.evict(recorder, now, end, outcome=reported)
    services.tidy()


def postponed(services: EngineServices) -> list[str]:
    """The ended sessions whose eviction was postponed, as of the last ``sync`` of the index; ``GitTrix.postponed`` says more."""
    found = []
    for id_ in services.index.unsettled():
        with suppress(GittrixError):
            recorder = services.recorder(id_)
            state = recorder.read()
            if state.ended and state.workspace_present and was_postponed(recorder):
                found.append(id_)
    return found


def sweep(services: EngineServices, by: Sweeper = "sweep()") -> list[str]:
    """Evict every session past its time to live; ``GitTrix.sweep`` says more.

    Args:
        services: of the engine.
        by: what sweeps, for ``GitTrix.swept``.
    """
    services.index.sync()
    evicted: list[str] = []
    slow: list[str] = []

    def end(id_: str, end_it: Callable[[], bool]) -> None:
        try:
            if end_it():
                evicted.append(id_)
        except OutOfTime:
            slow.append(id_)
        except (EvictionRace, SessionNotFound):
            pass
        except Exception as problem:  # noqa: BLE001  (one odd record must not stop the others from being swept)
            services.complain(id_, problem)

    def end_due(id_: str, *, patient: bool) -> None:
        end(id_, lambda: services.evictor.sweep_one(services.settled(services.recorder(id_)), patient=patient))

    now = services.clock.now_ns()
    unfinished = postponed(services)
    for id_ in services.index.ahead(now + resolution_ns(services.clock)):
        with suppress(GittrixError, OSError):
            services.evictor.rebase_one(services.recorder(id_))
    for id_ in services.index.due(now):
        points.reached("sweep:found-due")
        end_due(id_, patient=False)
    for id_ in unfinished:  # after the others, since each has held up a sweep before
        end(id_, partial(services.recovery().resume, id_))
    for id_ in tuple(slow):  # last, since each takes as long as it needs to say when it was used
        end_due(id_, patient=True)
    if evicted:
        services.swept += (Swept(id_, now, by) for id_ in evicted)
        services.tidy()
    return evicted
