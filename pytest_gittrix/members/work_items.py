"""The work items of members' sessions: locked for a session until its run ends, on the disk and in its record."""

from __future__ import annotations

from pytest_gittrix.errors import GittrixError, InvalidInput, SessionNotFound, WorkItemHeld
from pytest_gittrix.members.record import RUNNING, LockedSession, TeamSettings
from pytest_gittrix.members.work_locks import LockAnswer
from pytest_gittrix.record.store.store import Store


def may_work(store: Store, id_: str) -> bool:
    """Whether a session may still work on its items: one that runs, is being started, or cannot be read."""
    try:
        state = store.load(id_)
    except SessionNotFound:
        return store.directory(id_).is_dir() and store.lease(id_).state() != "available"
    except GittrixError:
        return True
    return not state.ended and (state.life is None or state.life.state in RUNNING)


def take(team: TeamSettings, item: str, id_: str) -> None:
    """Lock an item for a session that is being started. Raises WorkItemHeld; else as ``WorkLocks.acquire``."""
    lock = team.locks.acquire(item, id_)
    if not lock.acquired:
        raise WorkItemHeld(
            f"Session {lock.holder} works on {item!r} already.",
            why="Two who work on one thing undo each other's work.",
            fix="Wait for it to end, stop it, or work on something else.",
            holder=lock.holder,
        )


def lock(team: TeamSettings, id_: str, item: str) -> LockAnswer:
    """Lock an item for a session, as ``Members.lock`` documents."""
    with team.record(id_).locked() as session:
        if session.life.state not in RUNNING:
            raise InvalidInput(
                f"Session {id_} is {session.life.state}, and works on nothing any more.",
                why="A session without an agent would keep others from the item.",
                fix="Ask for it from a session that runs.",
            )
        answer = team.locks.acquire(item, id_)
        if answer.acquired and item not in session.life.locks:
            session.add("work.locked", {"item": item})
        return answer


def unlock(team: TeamSettings, id_: str, item: str) -> bool:
    """Release an item, as ``Members.unlock`` documents."""
    with team.record(id_).locked() as session:
        released = team.locks.release(item, id_)
        if released or item in session.life.locks:
            session.add("work.released", {"item": item})
        return released


def release_stale(team: TeamSettings) -> None:
    """Release the items of sessions that are over; an error is only announced."""
    try:
        for session in {lock.session for lock in team.locks.held()}:
            if not may_work(team.engine.store, session):
                team.locks.release_all(session)
    except GittrixError as problem:
        team.complain("", problem)


def release(team: TeamSettings, session: LockedSession) -> None:
    """Release a session's work items. Raises as ``LockedSession.add``; a lock that cannot be read is only announced."""
    items = set(session.life.locks)
    try:
        items.update(team.locks.release_all(session.life.id))
    except GittrixError as problem:
        team.complain(session.life.id, problem)
    for item in sorted(items):
        session.add("work.released", {"item": item})
