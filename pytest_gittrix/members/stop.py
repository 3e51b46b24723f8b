"""How the run of a member's session ends: its agent goes or is stopped, what it left is saved, and the workspace is kept for a while.

BotMinter (session-systems 4.2 and 4.3), with every ending retained. What takes long (stopping an agent, saving its work) is done without
the session's lease, under a lock of its own: of two who save one workspace, one does it. Whoever is killed in between is gone on with.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_gittrix import points
from pytest_gittrix.engine.lineage.member_recovery import put_back
from pytest_gittrix.engine.operations.eviction import LEAVING
from pytest_gittrix.engine.operations.operation import typed
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, GittrixError, InvalidInput
from pytest_gittrix.members.finalize import finalize
from pytest_gittrix.members.record import Held, MemberRecord, Team, plain, turn_wait
from pytest_gittrix.members.start import never_started, release, retain, ssh_variables
from pytest_gittrix.record.state.lifecycle import TERMINAL, Life, require_legal


@dataclass(frozen=True, slots=True)
class StopSummary:
    """What came of stopping several sessions.

    Attributes:
        deactivated: ids of those that were stopped and finalized, oldest first.
        killed: ids of those that were stopped by force.
        skipped_interactive: ids of those that a person talks to, and that were left alone.
        errors: why others could not be stopped, by id.
    """

    deactivated: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    skipped_interactive: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


class _GivenUp(Exception):
    """The session is not being finalized any more: somebody killed it meanwhile."""


@dataclass(frozen=True)
class MemberEnd:
    """Ending runs of a team's sessions."""

    team: Team

    # What goes by itself -----------------------------------------------------------------------------------------------------------

    def exited(self, ids: Iterable[str]) -> list[str]:
        """Those of some sessions that somebody has to finish."""
        found = []
        for id_ in ids:
            try:
                record = self.team.record(id_)
                if self._is_left(record, record.life()):
                    found.append(id_)
            except GittrixError:
                continue  # whoever reads it by its id is told why
        return found

    def _is_left(self, record: MemberRecord, life: Life) -> bool:
        if life.state == "active":
            process = record.process(life)
            if process is None:
                return life.kind != "interactive" and not record.busy()
            return process.observe().state in ("exited", "missing") and not record.busy()
        return (life.state == "finalizing" or life.state in TERMINAL) and not record.busy()

    def finish(self, id_: str) -> Life:
        """Bring a session whose agent is gone to its end; ``Members.finish`` says how and what is raised."""
        record = self.team.record(id_)
        life = record.life()
        if life.state in ("retained", "removed"):
            return life
        self._require_gone(record, life)
        self._end_rest(record, life)
        with self._turn(record):
            with record.held() as held:
                self._require_gone(record, held.life)  # it may have been launched since
                attempt = self._begin(held)
            return held.life if attempt is None else self._save(record, attempt)

    def _require_gone(self, record: MemberRecord, life: Life) -> None:
        if life.state == "creating":
            raise InvalidInput(
                f"Session {life.id} is still being made.",
                why="Nobody works in it yet.",
                fix="Wait for its start; if that was killed, recover: gittrix recover.",
            )
        process = record.process(life) if life.state == "active" else None
        seen = process.observe() if process is not None else None
        if seen is not None and seen.state in ("alive", "probe_failed"):
            what = "runs" if seen.state == "alive" else f"may run ({seen.reason})"
            raise InvalidInput(
                f"The agent of session {life.id} {what}.",
                why="What it does from now on would not be saved.",
                fix="Wait for it, or stop the session.",
            )

    def _end_rest(self, record: MemberRecord, life: Life) -> None:
        """End what an agent left running, so that nobody works where its work is saved."""
        process = record.process(life)
        if process is None or (life.state != "active" and life.agent is not None and life.agent.exited_ns is not None):
            return
        left = process.stop(grace=0 if life.ended == "killed" and life.state in TERMINAL else self.team.grace).left
        if left:
            raise AdapterUnavailable(
                f"Processes of session {life.id} cannot be ended: {', '.join(map(str, left))}.",
                why="They could change the workspace while it is being saved.",
                fix="End them as the user that they belong to, then try again.",
            )

    @contextmanager
    def _turn(self, record: MemberRecord) -> Iterator[None]:
        with typed(), record.turn(wait=turn_wait(self.team)):
            put_back(record.directory)
            yield

    def _begin(self, held: Held) -> int | None:
        """Note that an agent is gone; the number of the attempt that is due now, or None if there is nothing to save."""
        life = held.life
        if life.state == "active":
            life = self._gone(held)
        if life.state in TERMINAL:
            self._note_exit(held)
            retain(self.team, held)
        return life.attempts + 1 if life.state == "finalizing" else None

    def _gone(self, held: Held) -> Life:
        life = held.life
        if life.agent is None and life.kind != "interactive":
            return never_started(held, "whoever started it was killed")
        self._note_exit(held)
        if self.team.fails_dead and life.agent is not None and life.stop_ns is None:
            held.move("failed", reason="its agent was found dead")
            points.reached("member:ended")
            return held.life
        return held.move("finalizing")

    def _note_exit(self, held: Held) -> None:
        life = held.life
        if life.agent is None or life.agent.exited_ns is not None:
            return
        process = self.team.record(life.id).process(life)
        assert process is not None
        seen = process.observe()
        held.add("agent.exited", {"code": seen.code, "signal": seen.signal, "reason": seen.reason or None}, commit_point=True)
        points.reached("member:exited")

    # Saving ------------------------------------------------------------------------------------------------------------------------

    def finalize(self, id_: str) -> Life:
        """Save a retained session's work once more; ``Members.finalize`` says how and what is raised."""
        record = self.team.record(id_)
        _require_retained(record.life())
        self._end_rest(record, record.life())
        with self._turn(record):
            with record.held() as held:
                _require_retained(held.life)
                self._note_exit(held)
                attempt = held.move("finalizing").attempts + 1
            return self._save(record, attempt)

    def _save(self, record: MemberRecord, attempt: int) -> Life:
        """Run an attempt and store what it came to, unless somebody killed the session meanwhile."""
        points.reached("member:finalizing")
        try:
            ended = finalize(
                record.hydrated(),
                record.id,
                tell=lambda type_, data: self._tell(record, attempt, type_, data),
                deadline=self.team.deadline,
                forge=self.team.forge,
                attempt=attempt,
                home=record.finalization,
                credentials=self.team.credentials,
                environment=ssh_variables(self.team),
            )
        except _GivenUp:
            return record.life()
        except EvictionRace:
            raise
        except Exception as problem:  # noqa: BLE001  (credentials are a stranger's; a session that cannot be saved must not finalize for ever)
            to, reason = "failed", _why(problem)
        else:
            to, reason = ("failed" if ended.status == "Failed" else "completed"), ended.reason or ""
        with record.held() as held:
            if held.life.state == "finalizing":
                held.move(to, reason=plain(reason) or None)
                points.reached("member:ended")
                retain(self.team, held)
            return held.life

    def _tell(self, record: MemberRecord, attempt: int, type_: str, data: Mapping[str, Any]) -> None:
        begun = attempt - 1 if type_ == "finalize.started" else attempt
        with record.held() as held:
            if (held.life.state, held.life.attempts) != ("finalizing", begun):
                raise _GivenUp
            held.add(type_, data, commit_point=type_ == "finalize.finished")

    # Stopping ----------------------------------------------------------------------------------------------------------------------

    def stop(self, id_: str, *, force: bool, reason: str | None) -> Life:
        """End a session's run; ``Members.stop`` says how and what is raised."""
        record = self.team.record(id_)
        told = None if reason is None else plain(reason)
        return self._kill(record, told) if force else self._stop(record, told)

    def _stop(self, record: MemberRecord, reason: str | None) -> Life:
        life = record.life()
        if life.state == "active":
            with record.held() as held:
                life = held.life
                if life.state == "active":
                    life = held.add("stop.requested", {"reason": reason}, commit_point=True)
                    points.reached("member:stopping")
            self._end_rest(record, life)
        return self.finish(record.id)

    def _kill(self, record: MemberRecord, reason: str | None) -> Life:
        """The state comes first, so that whoever saves the work meanwhile finds that it is not his any more (session-systems 4.6)."""
        with record.held() as held:
            life = held.life
            if life.state in ("active", "finalizing"):
                held.add("stop.requested", {"force": True, "reason": reason}, commit_point=True)
                points.reached("member:stopping")
                held.move("killed", reason=reason)
                points.reached("member:ended")
                held.move("retained")
                points.reached("member:retained")
            elif life.state in TERMINAL:
                retain(self.team, held)
            elif life.state == "creating":
                self._require_gone(record, life)
        return self.bury(record)

    def bury(self, record: MemberRecord) -> Life:
        """See that nothing runs for a session that is over, and that it holds nothing; done again, it does what is left.

        Raises:
            AdapterUnavailable: something runs all the same.
            CapabilityMissing: its agent runs on another machine.
        """
        life = record.life()
        if life.state not in ("retained", "removed"):
            return life
        process = record.process(life)
        unseen = life.agent is not None and life.agent.exited_ns is None
        if process is not None and unseen:
            left = process.stop(grace=0).left
            if left:
                raise AdapterUnavailable(
                    f"Processes of session {life.id} cannot be ended: {', '.join(map(str, left))}.",
                    why="They go on in a workspace that nobody saves any more.",
                    fix="End them as the user that they belong to, then try again.",
                )
        if not unseen and not life.locks:
            return life
        with record.held() as held:
            self._note_exit(held)
            release(self.team, held)
            return held.life

    def settle(self, id_: str) -> Life:
        """Do what a kill kept a forced stop or a removal from doing. Raises as ``bury``; EvictionRace if somebody is at it."""
        record = self.team.record(id_)
        if os.path.lexists(record.directory / LEAVING):
            with typed(), record.turn(), record.held():
                put_back(record.directory)
        return self.bury(record)

    def stop_all(self, lives: Iterable[Life], *, force: bool, chats: bool) -> StopSummary:
        """Stop these, one after the other, interactive ones too if ``chats``; see ``Members.stop_all``."""
        stopped: list[str] = []
        skipped: list[str] = []
        errors: dict[str, str] = {}
        for life in lives:
            if life.kind == "interactive" and not chats:
                skipped.append(life.id)
                continue
            try:
                self.stop(life.id, force=force, reason=None)
                stopped.append(life.id)
            except Exception as problem:  # noqa: BLE001  (one session must not keep the others from being stopped)
                errors[life.id] = _why(problem)
        ended = tuple(stopped)
        return StopSummary(() if force else ended, ended if force else (), tuple(skipped), errors)


def _why(problem: Exception) -> str:
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
