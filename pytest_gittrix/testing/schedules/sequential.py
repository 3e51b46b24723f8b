"""A sequential model of sessions: what each operation returns when operations come one at a time, to check histories against.

It is smaller than the model of the state machine, since it has no contents: a commit is the paths it changed, and its name is its height
on the branch. So a lost commit shows, whatever lost it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pytest_gittrix.testing.schedules.linearize import Call, answered_before


@dataclass(frozen=True, slots=True)
class SessionOp:
    """An operation on durable and its sessions.

    Attributes:
        do: ``start``, ``promote``, ``evict`` and ``sweep`` (of one session each), ``late`` (time passes beyond all deadlines), ``head``,
            and ``commit`` (by a person).
        session: the name of the session, for the first four.
        paths: what the session's agent changes, for ``start``; what the person changes, for ``commit``. No content is ever written twice.
        in_time: whether the session's time had not run out when the operation began, whatever has happened since.
    """

    do: Literal["start", "promote", "evict", "sweep", "late", "head", "commit"]
    session: str = ""
    paths: tuple[str, ...] = ()
    in_time: bool = False

    def __str__(self) -> str:
        return f"{self.do}({', '.join([self.session] * bool(self.session) + list(self.paths))})"


@dataclass(frozen=True, slots=True)
class _Session:
    baseline: int
    touched: tuple[str, ...]
    ended: bool = False
    due: bool = False


@dataclass(frozen=True, slots=True)
class Sessions:
    """Durable's branch and the sessions over it.

    Attributes:
        commits: the paths that each commit on the branch changed, the oldest first. The name of a commit is its height, 1 for the root.
        sessions: names and sessions, sorted.
    """

    commits: tuple[tuple[str, ...], ...] = ((),)
    sessions: tuple[tuple[str, _Session], ...] = ()

    @property
    def height(self) -> int:
        """The height of the branch's head."""
        return len(self.commits)

    def committed(self, paths: tuple[str, ...]) -> Sessions:
        """Return the state after one more commit."""
        return replace(self, commits=(*self.commits, paths))

    def having(self, **sessions: _Session) -> Sessions:
        """Return the state with these sessions replaced."""
        return replace(self, sessions=tuple(sorted({**dict(self.sessions), **sessions}.items())))


def sessions_model(state: Sessions, op: SessionOp) -> tuple[Sessions, object]:
    """Return what a correct session system does in one operation: the state after it, and its result.

    The result of ``start`` is the height of the baseline, of ``promote`` and ``commit`` that of their commit, of ``head`` that of the
    branch, of ``sweep`` whether it evicted the session, of ``evict`` and ``late`` None, and of a refusal its code.
    """
    known = dict(state.sessions)
    match op.do:
        case "head":
            return state, state.height
        case "commit":
            return state.committed(op.paths), state.height + 1
        case "late":
            return state.having(**{name: replace(one, due=True) for name, one in known.items()}), None
        case "start":
            return state.having(**{op.session: _Session(state.height, op.paths)}), state.height
    if op.session not in known:
        return state, "SESSION_NOT_FOUND"
    session = known[op.session]
    ended = state.having(**{op.session: replace(session, ended=True)})
    if op.do == "sweep":
        evicted = session.due and not session.ended
        return (ended, True) if evicted else (state, False)
    if session.ended or (op.do == "promote" and session.due and not op.in_time):
        return state, "SESSION_EXPIRED"
    if op.do == "evict":
        return ended, None
    drift = [path for paths in state.commits[session.baseline :] for path in paths]
    if not session.touched:
        return state, "PROMOTE_FAILED"
    if any(_overlap(mine, theirs) for mine in session.touched for theirs in drift):
        return state, "BASELINE_CONFLICT"
    return ended.committed(session.touched), state.height + 1


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


LOST: Final = "LOST"
"""The height of a commit that is not on the branch."""


def session_calls(calls: Sequence[Call[SessionOp]], log: Sequence[str]) -> list[Call[SessionOp]]:
    """Translate a history into the results of the model.

    Commit ids become heights. Two operations take longer than an instant: one that began before a session's time was up goes on to its end;
    and a sweep leaves a session alone that is in use, so its result says nothing of such a session (rule 8, docs/explanation/rules.md). An
    operation that gave up waiting for another one is left out.

    Args:
        calls: the history, with commit ids as results where the model has heights.
        log: the ids on the branch afterwards, the newest first.
    """
    heights = {id_: len(log) - position for position, id_ in enumerate(log)}
    known = [replace(call, result=_height(call.result, heights)) for call in calls if call.result != "EVICTION_RACE"]
    return [_in_time(call, known) for call in known if not _left_alone(call, known)]


def _height(result: object, heights: Mapping[str, int]) -> object:
    if not isinstance(result, str) or len(result) not in (40, 64):
        return result
    return heights.get(result, LOST)


def _left_alone(call: Call[SessionOp], calls: Sequence[Call[SessionOp]]) -> bool:
    if call.op.do != "sweep" or call.result is not False:
        return False
    others = (other for other in calls if other is not call and other.op.session == call.op.session)
    return any(not answered_before(other, call) and not answered_before(call, other) for other in others)


def _in_time(call: Call[SessionOp], calls: Sequence[Call[SessionOp]]) -> Call[SessionOp]:
    """Mark a promotion that was not refused as late as in time, if its session's time ran out only while it was under way."""
    if call.op.do != "promote" or call.result == "SESSION_EXPIRED":
        return call
    late = any(other.op.do == "late" and answered_before(other, call) for other in calls)
    return call if late else replace(call, op=replace(call.op, in_time=True))
