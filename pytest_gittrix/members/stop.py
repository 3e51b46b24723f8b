"""Ending the run of a member's session: its agent ends or is stopped, its work is saved, and its workspace is retained.

This is BotMinter's behaviour, with every ending retained (docs/explanation/you-know-botminter.md). The long steps (stopping an agent,
saving its work) are done without the session's lock, under the workspace's: of two processes that save one workspace, one does it. An
ending that was killed half-way is continued by the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.acp.driver import END_TURN, speaks_acp
from pytest_gittrix.acp.transcript import SOURCE
from pytest_gittrix.engine.agents.launch import network_summary
from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.lineage.member_recovery import is_apart, put_back
from pytest_gittrix.engine.operations.recorder import convert_os_errors
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, GittrixError, InvalidInput
from pytest_gittrix.members.finalize import finalize
from pytest_gittrix.members.finalize_record import plain
from pytest_gittrix.members.record import LockedSession, MemberRecord, TeamSettings, workspace_lock_wait
from pytest_gittrix.members.start import mark_never_started, retain, ssh_variables
from pytest_gittrix.members.work_items import release
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.lifecycle import TERMINAL, Life, require_legal

SAVED_AT_ONCE: Final = 4
"""How many of the sessions that are stopped together are finalized at a time; their agents are all asked to end at once."""


@dataclass(frozen=True, slots=True)
class StopSummary:
    """The outcome of stopping several sessions.

    Attributes:
        deactivated: ids of the sessions that were stopped and finalized, oldest first.
        killed: ids of the sessions that were stopped by force.
        skipped_interactive: ids of the interactive sessions, which were left alone.
        errors: why other sessions could not be stopped, by id.
    """

    deactivated: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    skipped_interactive: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


class _Superseded(Exception):
    """The session is no longer being finalized: it was killed meanwhile."""


@dataclass(frozen=True)
class MemberEnd:
    """Ending runs of a team's sessions."""

    team: TeamSettings

    # Agents that have ended --------------------------------------------------------------------------------------------------------

    def exited(self, ids: Iterable[str]) -> list[str]:
        """The sessions among these that have to be finished."""
        found = []
        for id_ in ids:
            try:
                record = self.team.record(id_)
                if self._is_unfinished(record, record.life()):
                    found.append(id_)
            except GittrixError:
                continue  # reading the session by its id raises the reason
        return found

    def _is_unfinished(self, record: MemberRecord, life: Life) -> bool:
        if life.state == "active":
            process = record.process(life)
            if process is None:
                return life.kind != "interactive" and not record.busy()
            return process.observe().state in ("exited", "missing") and not record.busy()
        return (life.state == "finalizing" or life.state in TERMINAL) and not record.busy()

    def each(self, ids: Iterable[str], do: Callable[[str], Life]) -> list[Life]:
        """Do something to sessions, one after the other. A failure is announced, and stops no other."""
        done: list[Life] = []
        for id_ in ids:
            try:
                done.append(do(id_))
            except Exception as problem:  # noqa: BLE001  (one session must not keep the others from being finished)
                self.team.complain(id_, problem)
        return done

    def finish(self, id_: str) -> Life:
        """End a session whose agent has ended, as ``Members.finish`` documents."""
        record = self.team.record(id_)
        life = record.life()
        if life.state in ("retained", "removed"):
            return life
        self._require_no_agent(record, life)
        self._stop_processes(record, life)
        with self._workspace_locked(record):
            with record.locked() as session:
                self._require_no_agent(record, session.life)  # it may have been launched since
                attempt = self._begin(session)
            return session.life if attempt is None else self._save(record, attempt)

    def _require_no_agent(self, record: MemberRecord, life: Life) -> None:
        if life.state == "creating":
            raise InvalidInput(
                f"Session {life.id} is still being made.",
                why="Its agent has not started yet.",
                fix="Wait for its start; if that was killed, recover: gittrix recover.",
            )
        process = record.process(life) if life.state == "active" else None
        observed = process.observe() if process is not None else None
        if observed is not None and observed.state in ("alive", "probe_failed"):
            what = "runs" if observed.state == "alive" else f"may run ({observed.reason})"
            raise InvalidInput(
                f"The agent of session {life.id} {what}.",
                why="Its later work would not be saved.",
                fix="Wait for it, or stop the session.",
            )

    def _stop_processes(self, record: MemberRecord, life: Life) -> None:
        """Stop all processes of an agent, so that none works in the workspace while it is saved."""
        process = record.process(life)
        if process is None or (life.state != "active" and life.agent is not None and life.agent.exited_ns is not None):
            return
        grace = 0 if life.ended == "killed" and life.state in TERMINAL else self.team.grace
        _stop(process, grace, life, "They could change the workspace while it is being saved.")

    @contextmanager
    def _workspace_locked(self, record: MemberRecord) -> Iterator[None]:
        with convert_os_errors(), record.workspace_lock(wait=workspace_lock_wait(self.team)):
            put_back(record.directory)
            yield

    def _begin(self, session: LockedSession) -> int | None:
        """Store that an agent has ended; return the number of the attempt that is due now, or None if nothing has to be saved."""
        life = session.life
        if life.state == "active":
            life = self._agent_ended(session)
        if life.state in TERMINAL:
            self._note_exit(session)
            retain(self.team, session)
        return life.attempts + 1 if life.state == "finalizing" else None

    def _agent_ended(self, session: LockedSession) -> Life:
        life = session.life
        if life.agent is None and life.kind != "interactive":
            return mark_never_started(session, "whoever started it was killed")
        self._note_exit(session)
        if self.team.fails_dead and life.agent is not None and life.stop_ns is None:
            session.move("failed", reason="its agent was found dead")
            points.reached("member:ended")
            return session.life
        return session.move("finalizing")

    def _note_exit(self, session: LockedSession) -> None:
        life = session.life
        if life.agent is None or life.agent.exited_ns is not None:
            return
        process = self.team.record(life.id).process(life)
        assert process is not None
        end, network = process.observe(), network_summary(process.directory)
        fields = {"code": end.code, "signal": end.signal, "reason": end.reason or None, "network": network, "limit": end.limit}
        fields["stop_reason"] = last_stop_reason(self.team.record(life.id).events())
        session.add("agent.exited", fields, commit_point=True)
        points.reached("member:exited")

    # Saving ------------------------------------------------------------------------------------------------------------------------

    def finalize(self, id_: str, allow_secrets: Iterable[str] = ()) -> Life:
        """Save a retained session's work once more, as ``Members.finalize`` documents."""
        record = self.team.record(id_)
        _require_retained(record.life())
        self._stop_processes(record, record.life())
        with self._workspace_locked(record):
            with record.locked() as session:
                _require_retained(session.life)
                self._note_exit(session)
                attempt = session.move("finalizing").attempts + 1
            return self._save(record, attempt, allow_secrets)

    def _save(self, record: MemberRecord, attempt: int, allow_secrets: Iterable[str] = ()) -> Life:
        """Run an attempt and store its outcome, unless the session was killed meanwhile."""
        points.reached("member:finalizing")
        try:
            ended = finalize(
                record.multi_repo(),
                record.id,
                on_event=lambda type_, data: self._store(record, attempt, type_, data),
                deadline=self.team.deadline,
                forge=self.team.forge,
                attempt=attempt,
                home=record.finalization,
                credentials=self.team.credentials,
                environment=ssh_variables(self.team),
                allow_secrets=(*self.team.allow_secrets, *allow_secrets),
                archive=record.held,
            )
        except _Superseded:
            return record.life()
        except EvictionRace:
            raise
        except Exception as problem:  # noqa: BLE001  (credentials are the user's code; a session that cannot be saved must not finalize for ever)
            to, reason = "failed", _reason(problem)
        else:
            to, reason = ("failed" if ended.status == "Failed" else "completed"), ended.reason or ""
        with record.locked() as session:
            if to == "completed" and (stopped := _stopped_short(session.life)) is not None:
                to, reason = "failed", f"its agent stopped with {stopped}, and its work is saved"
            if session.life.state == "finalizing":
                session.move(to, reason=plain(reason) or None)
                points.reached("member:ended")
                retain(self.team, session)
            return session.life

    def _store(self, record: MemberRecord, attempt: int, type_: str, data: Mapping[str, Any]) -> None:
        begun = attempt - 1 if type_ == "finalize.started" else attempt
        with record.locked() as session:
            if (session.life.state, session.life.attempts) != ("finalizing", begun):
                raise _Superseded
            session.add(type_, data, commit_point=type_ == "finalize.finished")

    # Stopping ----------------------------------------------------------------------------------------------------------------------

    def stop(self, id_: str, *, force: bool, reason: str | None) -> Life:
        """End a session's run, as ``Members.stop`` documents."""
        record = self.team.record(id_)
        text = None if reason is None else plain(reason)
        return self._kill(record, text) if force else self._ask_to_end(record, text)

    def _ask_to_end(self, record: MemberRecord, reason: str | None) -> Life:
        self._end_agent(record, reason)
        return self.finish(record.id)

    def _end_agent_of(self, id_: str) -> None:
        self._end_agent(self.team.record(id_), None)

    def _kill_one(self, id_: str) -> None:
        self._kill(self.team.record(id_), None)

    def _end_agent(self, record: MemberRecord, reason: str | None) -> None:
        life = record.life()
        if life.state == "active":
            with record.locked() as session:
                life = session.life
                if life.state == "active":
                    life = session.add("stop.requested", {"reason": reason}, commit_point=True)
                    points.reached("member:stopping")
            self._stop_processes(record, life)

    def _kill(self, record: MemberRecord, reason: str | None) -> Life:
        """Kill a session. Its state is stored first, so that a finalization that runs meanwhile finds that it has been superseded."""
        with record.locked() as session:
            life = session.life
            if life.state in ("active", "finalizing"):
                session.add("stop.requested", {"force": True, "reason": reason}, commit_point=True)
                points.reached("member:stopping")
                session.move("killed", reason=reason)
                points.reached("member:ended")
                session.move("retained")
                points.reached("member:retained")
            elif life.state in TERMINAL:
                retain(self.team, session)
            elif life.state == "creating":
                self._require_no_agent(record, life)
        return self.ensure_stopped(record)

    def ensure_stopped(self, record: MemberRecord) -> Life:
        """Stop all processes of a session that is over, and release its work items; a later call does what an earlier one left.

        Raises:
            AdapterUnavailable: a process cannot be ended.
            CapabilityMissing: its agent runs on another machine.
        """
        life = record.life()
        if life.state not in ("retained", "removed"):
            return life
        process = record.process(life)
        unrecorded = life.agent is not None and life.agent.exited_ns is None
        if process is not None and unrecorded:
            _stop(process, 0, life, "They keep running in a workspace that is no longer saved.")
        if not unrecorded and not life.locks:
            return life
        with record.locked() as session:
            self._note_exit(session)
            release(self.team, session)
            return session.life

    def repair(self, id_: str) -> Life:
        """Complete a forced stop or a removal that was killed. Raises as ``ensure_stopped``; EvictionRace if another process does it."""
        record = self.team.record(id_)
        if is_apart(record.directory):
            with convert_os_errors(), record.workspace_lock(), record.locked():
                put_back(record.directory)
        return self.ensure_stopped(record)

    def stop_all(self, lives: Iterable[Life], *, force: bool, chats: bool) -> StopSummary:
        """Stop these sessions side by side, interactive ones too if ``chats``; see ``Members.stop_all``."""
        every = [*lives]
        chosen = [life.id for life in every if chats or life.kind != "interactive"]
        skipped = tuple(life.id for life in every if life.id not in chosen)
        failures = self._side_by_side(chosen, self._kill_one if force else self._end_agent_of, len(chosen))
        if not force:
            failures |= self._side_by_side([id_ for id_ in chosen if id_ not in failures], self.finish, SAVED_AT_ONCE)
        ended = tuple(id_ for id_ in chosen if id_ not in failures)
        return StopSummary(() if force else ended, ended if force else (), skipped, failures)

    def _side_by_side(self, ids: Sequence[str], do: Callable[[str], object], most: int) -> dict[str, str]:
        """Do something to sessions, to so many at a time; why it failed, by id, which must not keep the others from it."""
        if not ids:
            return {}
        with ThreadPoolExecutor(min(most, len(ids)), "gittrix-stop") as threads:
            doing = {id_: threads.submit(copy_context().run, do, id_) for id_ in ids}
        problems = {id_: one.exception() for id_, one in doing.items()}
        for problem in problems.values():
            if problem is not None and not isinstance(problem, Exception):
                raise problem
        return {id_: _reason(problem) for id_, problem in problems.items() if isinstance(problem, Exception)}


def _stop(process: AgentProcess, grace: float, life: Life, why: str) -> None:
    left = process.stop(grace=grace).left
    if left:
        raise AdapterUnavailable(
            f"Processes of session {life.id} cannot be ended: {', '.join(map(str, left))}.",
            why=why,
            fix="End them as the user that they belong to, then try again.",
        )


def last_stop_reason(events: Iterable[Event]) -> str | None:
    """Why the last turn of a session's agent ended, if it speaks the Agent Client Protocol; ``lost`` if the turn was cut short."""
    speaks, found = False, None
    for event in events:
        data = event.data
        if event.type == "agent.launched":
            speaks, found = speaks_acp(data.get("command", ())), None
        elif event.type == "user_message":
            found = "lost"
        elif event.type == "workflow_event" and data.get("source") == SOURCE and "update" not in data:
            found = data.get("stop_reason", found)
    return found if speaks else None


def _stopped_short(life: Life) -> str | None:
    """Why its agent's last turn ended, if that was not the end of its work and no stop was requested."""
    reason = None if life.agent is None or life.stop_ns is not None else life.agent.stop_reason
    return None if reason == END_TURN else reason


def _reason(problem: Exception) -> str:
    return problem.fact if isinstance(problem, GittrixError) else str(problem) or type(problem).__name__


def _require_retained(life: Life) -> None:
    if life.state == "retained":
        return
    require_legal(life.state, "finalizing")
    raise InvalidInput(
        f"Session {life.id} is active, and only what is retained is finalized again.",
        why="Its agent may still work, and it is finalized by itself when that ends.",
        fix="Stop it.",
    )
