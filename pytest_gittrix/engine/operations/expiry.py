"""When a session's time is up: strictly past its deadline (GitTrix), file changes in the workspace counting as use (rule 8).

So does a program that the engine runs there. While processes work in the workspace, idle time does not end the session.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from pytest_gittrix.clock.clock import Clock
from pytest_gittrix.engine.operations.in_use import ProcessFinder, last_program_ns, users_of
from pytest_gittrix.record.state.fold import SessionState, deadline_ns
from pytest_gittrix.workspaces.snapshot import latest_change

_MICROSECOND = timedelta(microseconds=1)


def resolution_ns(clock: Clock) -> int:
    """How far apart two accesses must be to be recorded apart, in nanoseconds."""
    return clock.resolution // _MICROSECOND * 1000


def is_past(state: SessionState, clock: Clock) -> bool:
    """Whether the session is past its deadline by what its log says.

    Accesses closer together than the clock's resolution are recorded as one, so a session gets that much more.
    """
    deadline = deadline_ns(state)
    return deadline is not None and clock.now_ns() > deadline + resolution_ns(clock)


def is_past_absolute(state: SessionState, clock: Clock) -> bool:
    """Whether the session is past its absolute time, which no use of it lengthens."""
    absolute = state.policy.ttl_absolute_ns
    return absolute is not None and clock.now_ns() > state.created_ns + absolute + resolution_ns(clock)


def outlasts_idle_time(state: SessionState, clock: Clock, directory: Path, finder: ProcessFinder | None = None) -> bool:
    """Whether an idle session past its deadline stays active, because processes work in its workspace."""
    return not is_past_absolute(state, clock) and bool(users_of(state, directory, finder=finder, turns=True))


def unseen_activity(state: SessionState, clock: Clock, directory: Path, on_step: Callable[[], object] = lambda: None) -> int | None:
    """When files in the workspace last changed, or the last program there ended, if that is later than the last recorded use.

    Returns:
        Nanoseconds of the clock. None also where it cannot matter, because the absolute TTL has passed, and for a change in the future of a
        clock that was set back since: counted as now, it would count again at every call.
    """
    absolute, now = state.policy.ttl_absolute_ns, clock.now_ns()
    if state.workspace is None or (absolute is not None and now > state.created_ns + absolute):
        return None
    latest = max(latest_change(state.workspace, on_step), last_program_ns(directory))
    observed = clock.instant_of(latest) if latest else 0
    return observed if state.last_access_ns < observed <= now else None
