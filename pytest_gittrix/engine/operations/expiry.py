"""When a session's time is up: strictly past its deadline (GitTrix), file changes in the workspace counting as use (rule 8)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from pytest_gittrix.clock.clock import Clock
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


def unseen_activity(state: SessionState, clock: Clock, on_step: Callable[[], object] = lambda: None) -> int | None:
    """When files in the workspace last changed, if that is later than the last recorded use; in nanoseconds of the clock.

    Also None where it cannot matter, because the absolute TTL has passed, and for a change in the future of a clock that was set back
    since: counted as now, it would count again at every call. ``on_step`` is that of ``latest_change``.
    """
    absolute, now = state.policy.ttl_absolute_ns, clock.now_ns()
    if state.workspace is None or (absolute is not None and now > state.created_ns + absolute):
        return None
    latest = latest_change(state.workspace, on_step)
    observed = clock.instant_of(latest) if latest else 0
    return observed if state.last_access_ns < observed <= now else None
