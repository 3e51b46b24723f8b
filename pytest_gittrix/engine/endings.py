"""Ending sessions without a promotion: one by its id, and every one whose time to live has passed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pytest_gittrix import points
from pytest_gittrix.engine.eviction.evictor import check_end, check_outcome, is_repeated, require_evictable
from pytest_gittrix.engine.eviction.removal import is_awaited, was_postponed
from pytest_gittrix.engine.operations.expiry import resolution_ns
from pytest_gittrix.engine.operations.in_use import InUse, Lookout, require_unused, users_of
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.services import EngineServices, Sweeper, Swept
from pytest_gittrix.errors import EvictionRace, GittrixError, SessionNotFound
from pytest_gittrix.os_level.monotonic import OutOfTime


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
    """The sessions that a sweep would evict if nobody worked in their workspaces; ``GitTrix.in_use`` says more."""
    services.index.sync()
    lookout, found = Lookout(services.store.root), []
    for id_ in dict.fromkeys([*services.index.due(services.clock.now_ns()), *postponed(services, is_awaited)]):
        with suppress(GittrixError, OSError):
            recorder = services.recorder(id_)
            state = recorder.read()
            if state.workspace_present and (users := users_of(state, recorder.directory, lookout=lookout, turns=not state.ended)):
                found.append(InUse(id_, users))
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
        end(id_, lambda: services.evictor.sweep_one(services.settled(services.recorder(id_)), lookout=lookout, patient=patient))

    now, lookout = services.clock.now_ns(), Lookout(services.store.root)
    unfinished = postponed(services, lambda recorder: was_postponed(recorder) or is_awaited(recorder))
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
