"""What a promotion that is in stores in the session's log, whether the promotion records it or a recovery after a kill."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pytest_gittrix.backends.protocol import LandingResult
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.promotion.pull_requests import PrOutcome
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.record.eventlog.events import Actor
from pytest_gittrix.record.state.fold import SessionState


def record_done(
    recorder: Recorder, done: Mapping[str, Any], outcome: PrOutcome | None, keep: Mapping[str, Any] | None, *, actor: Actor
) -> SessionState:
    """Store the end of a promotion, and the state of its pull request.

    Args:
        recorder: of the session; the caller holds its lease.
        done: the data of ``promote.done``, without the pull request.
        keep: what ``promote.kept`` has beside that; None where the promotion ends the session.
        outcome: whether the pull request was opened; None where the promotion opens none.
        actor: who promoted.

    Raises:
        AdapterUnavailable: the end could not be stored. A pull request whose state could not be stored is no failure: the end has its
            address.
    """
    pull_request = outcome.done_fields() if outcome is not None else {}
    type_ = "promote.done" if keep is None else "promote.kept"
    state = recorder.append(type_, {**done, **pull_request, **(keep or {})}, actor=actor, commit_point=True)
    observation = outcome.observation() if outcome is not None else None
    if observation is not None:
        with suppress(GittrixError):
            state = recorder.append("pr.observed", observation)
    return state


def record_checkouts(recorder: Recorder, commit: str, landed: LandingResult) -> None:
    """Store which checkouts were brought forward to a promoted commit, and which were left behind. The caller holds the lease.

    Raises:
        AdapterUnavailable: an event could not be stored.
    """
    for _ in landed.forwarded:
        recorder.append("worktree.updated", {"commit": commit})
    for reason in (landed.stale or {}).values():
        recorder.append("worktree.stale", {"commit": commit, "reason": reason[:500]})
