"""Sessions in any state of any of the systems, of any age: ``session_in("retained", outcome="failed", age="25h")``.

Each is a real session in the store of an engine: its events have instants in the past and a legal order, and what they describe was done
(the workspace is filled, work is pushed, a promotion is made).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.durations import duration_of
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.members.finalize import finalize
from pytest_gittrix.record.eventlog.events import Event, path_fields
from pytest_gittrix.record.state.lifecycle import KINDS, STATES, TERMINAL, Life
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.record.state.values import NEVER_SWEPT
from pytest_gittrix.testing.repos.member_workspaces import git
from pytest_gittrix.testing.scenarios.log_kit import LogKit
from pytest_gittrix.testing.scenarios.status_scripts import STATUS_SCRIPTS, play
from pytest_gittrix.testing.scenarios.timeline import Timeline
from pytest_gittrix.views.orchestrator import state_in
from pytest_gittrix.workspaces.multi_repo import MultiRepoWorkspace, RepositorySpec, checkout_all

GITTRIX_STATES: Final = ("active", "promoted", "discarded", "expired")
"""The states of GitTrix's own sessions."""

BRANCH: Final = "work"
"""The branch on which the agents of these sessions work."""

_STEP: Final = timedelta(minutes=1)
_FAILED: Final[Mapping[str, str]] = {"unsaved.txt": "This is nowhere else.\n"}
_WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "creating": ("creating",),
    "active": ("creating", "active"),
    "finalizing": ("creating", "active", "finalizing"),
    "completed": ("creating", "active", "finalizing", "completed"),
    "failed": ("creating", "active", "finalizing", "failed"),
    "killed": ("creating", "active", "killed"),
}


@dataclass(frozen=True)
class SessionIn:
    """A session that was made in a state. Every property reads its log again.

    Attributes:
        log: its log, to continue, to compare and to damage.
    """

    log: LogKit

    @property
    def id(self) -> str:
        """Its id."""
        return self.log.id

    @property
    def events(self) -> list[Event]:
        """Its events."""
        return self.log.events()

    @property
    def life(self) -> Life | None:
        """Its lifecycle as a member's session; None for other sessions. Raises LogDamaged for an impossible history."""
        return self.log.state().life

    @property
    def state(self) -> str:
        """Its state as a member's session, or otherwise as a session of GitTrix. Raises LogDamaged for an impossible history."""
        found = self.log.state()
        return found.state if found.life is None else found.life.state

    @property
    def status(self) -> str:
        """Its status as agent-orchestrator documents statuses."""
        return state_in(self.events)

    @property
    def path(self) -> Path:
        """The directory of its workspace, existing or not."""
        return self.log.store.directory(self.id) / "workspace"


class SessionsIn:
    """Makes sessions in an engine's store.

    Args:
        gittrix: the engine.
        clock: its clock, which is set back while events of the past are made.
    """

    def __init__(self, gittrix: GitTrix, clock: FrozenClock) -> None:
        self._gittrix = gittrix
        self._clock = clock

    def timeline(self, **options: Any) -> Timeline:
        """Create a timeline of a session of this store that is observed from outside, on the clock. Options are those of ``Timeline``."""
        return Timeline(lambda: self(status="spawning", age="0s").log, self._clock, **options)

    def __call__(
        self,
        state: str | None = None,
        *,
        status: str | None = None,
        of: str | None = None,
        age: str | timedelta = timedelta(hours=1),
        outcome: str | None = None,
        kind: str = "loop",
        member: str = "engineer-alice",
        task: str = "fix the bug",
        files: Mapping[str, str] | None = None,
        events: Iterable[tuple[str, Mapping[str, Any]]] = (),
        legal: bool = True,
        id: str | None = None,
        **identity: str,
    ) -> SessionIn:
        """Make a session.

        Args:
            state: a state of BotMinter's sessions (``creating`` to ``removed``), or of GitTrix's (``active``, ``promoted``, ``discarded``,
                ``expired``). A state that both have is BotMinter's.
            status: a status of agent-orchestrator's sessions, ``spawning`` to ``terminated``, instead of a state.
            of: ``botminter`` or ``gittrix``, for a state that both have.
            age: how long it has been in that state: ``25h`` or a timedelta. Earlier events are a minute apart.
            outcome: how the run of a retained or removed one ended: ``completed`` (the default), ``failed``, ``killed``.
            kind, member: of a member's session: ``loop``, ``interactive`` or ``brain``, and the name of the member.
            task: its task.
            files: uncommitted files that its agent left in the workspace, on the branch ``work`` in a member's session. A failed
                session has one by default.
            events: more events, at the present instant: types with their data.
            legal: refuse ``events`` that cannot happen. Otherwise every event of the vocabulary is stored.
            id: its id.
            identity: who works in it, and on what, for a session that is not a member's; see ``values.IDENTITY``.

        Raises:
            InvalidInput: the state, status, outcome or kind is unknown; they contradict each other; or the age is not valid.
            LogDamaged: one of ``events`` cannot happen, and ``legal`` is True.
        """
        since = self._clock.now() - _age(age)
        if (state is None) == (status is None):
            raise InvalidInput("A session is made in one state, or with one status.", fix="Give a state, or status=.")
        if status is not None:
            made = self._observed(status, since, task, id, files, identity)
        elif _system(str(state), of) == "gittrix":
            _refuse(outcome is not None, "outcome", "a session of GitTrix's ends as its state says")
            made = self._of_gittrix(str(state), since, task, id, files, identity)
        else:
            _refuse(bool(identity), ", ".join(identity), "a life knows a member")
            made = self._of_member(str(state), _MemberSpec(kind, member, task, _outcome(str(state), outcome), files), since, id)
        for type_, data in events:
            made.put(type_, data, actor="system", at=self._clock.now(), legal=legal)
        made.store.write_metadata(made.id, made.state("repair-tail" if legal else "skip"))
        return SessionIn(made)

    # GitTrix ---------------------------------------------------------------------------------------------------------------------

    def _of_gittrix(
        self, state: str, since: datetime, task: str, id: str | None, files: Mapping[str, str] | None, identity: dict[str, Any]
    ) -> LogKit:
        with self._then(since if state == "active" else since - _STEP):
            session = self._gittrix.start_session(task, id=id, **identity)
            left = {"promoted.txt": "promoted\n"} if state == "promoted" else {}
            for path, text in (left if files is None else files).items():
                session.write(path, text)
        if state != "active":
            with self._then(since):
                if state == "promoted":
                    session.promote(strategy="commit")
                else:
                    self._gittrix.evict(session.id, state)
        return LogKit.of(session)

    @contextmanager
    def _then(self, when: datetime) -> Iterator[None]:
        """Set the clock to another instant for the block, also for the times of files. No timer of the clock fires."""
        now = self._clock.now()
        self._clock.skew(when - now)
        try:
            yield
        finally:
            self._clock.skew(now - when)

    # agent-orchestrator ------------------------------------------------------------------------------------------------------------

    def _observed(
        self, status: str, since: datetime, task: str, id: str | None, files: Mapping[str, str] | None, identity: dict[str, Any]
    ) -> LogKit:
        script = STATUS_SCRIPTS.get(status)
        if script is None:
            raise InvalidInput(f"{status!r} is no status of a session.", fix=f"Use: {', '.join(STATUS_SCRIPTS)}.")
        project = identity.get("project", "app")
        chosen = id or self._numbered(project)
        # As an orchestrator starts sessions, so that one can manage this session.
        facts: dict[str, Any] = {"project": project, "runtime": "process", "topic_branch": f"session/{chosen}", **identity}
        with self._then(since - script.lasts):
            session = self._gittrix.start_session(task, id=chosen, eviction=EvictionPolicy(manual=True), **facts)
            for path, text in (files or {}).items():
                session.write(path, text)
        log = LogKit.of(session)
        play(script, log, since)
        return log

    def _numbered(self, prefix: str) -> str:
        number = 1
        while self._gittrix.store.directory(f"{prefix}-{number}").exists():
            number += 1
        return f"{prefix}-{number}"

    # BotMinter -------------------------------------------------------------------------------------------------------------------

    def _of_member(self, state: str, spec: _MemberSpec, since: datetime, id: str | None) -> LogKit:
        engine = self._gittrix
        chosen = id if id is not None else engine.services.resources.make_id()
        durable = engine.durable
        if durable is None:
            raise InvalidInput("The engine has no repository to fill a workspace from.", fix="Give GitTrix() a durable repository.")
        repository = RepositorySpec("app", getattr(durable, "url", None) or str(durable.path), durable.branch)
        marker = {"session_id": chosen, "member": spec.member}
        with self._then(since):
            path = engine.store.create(chosen) / "workspace"
            log = LogKit(engine.store.root, chosen)
            workspace = checkout_all([repository], path, engine.home / "clones", marker=marker, refetch_after=0)
            _Lifecycle(log, workspace, spec).go(state, since)
        return log


@dataclass(frozen=True)
class _MemberSpec:
    """How a member's session is opened, how it ends, and the files that its agent leaves."""

    kind: str
    member: str
    task: str
    outcome: str
    files: Mapping[str, str] | None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"{self.kind!r} is no kind of session.", fix=f"Use: {', '.join(KINDS)}.")

    @property
    def files_left(self) -> Mapping[str, str]:
        """The files that its agent leaves."""
        if self.files is not None:
            return self.files
        return _FAILED if self.outcome == "failed" else {}


@dataclass(frozen=True)
class _Lifecycle:
    """Takes a member's session through its states, up to one of them."""

    log: LogKit
    workspace: MultiRepoWorkspace
    spec: _MemberSpec

    def go(self, state: str, since: datetime) -> None:
        """Enter every state up to one, which is entered at the instant ``since``."""
        way: tuple[tuple[str, ...], ...] = tuple((one,) for one in _WAYS.get(state, _WAYS[self.spec.outcome]))
        if state in ("retained", "removed"):
            way = (*way[:-1], (*way[-1], "retained"))  # a session that ended is retained at once
        if state == "removed":
            way = (*way, ("removed",))
        for number, together in enumerate(way, start=1):
            for one in together:
                self._enter(one, since - (len(way) - number) * _STEP)

    def _enter(self, state: str, at: datetime) -> None:
        match state:
            case "creating":
                self._put("session.opened", self._opened(), at)
                return
            case "active":
                self._put("workspace.ready", path_fields(self.workspace.path), at)
                self._work(int(at.timestamp()))
            case "killed":
                self._put("stop.requested", {"force": True}, at)
            case "completed" | "failed":
                self._finalize(state, at)
                return
        self._put("life.moved", {"to": state}, at)
        if state == "removed":
            shutil.rmtree(self.workspace.path)
            self._put("workspace.removed", {}, at)

    def _opened(self) -> dict[str, Any]:
        placed = [
            {"name": one.name, "url": one.url, "branch": one.branch, "commit": one.commit, "place": one.directory}
            for one in self.workspace.repositories
        ]
        fields = {"task": self.spec.task, "kind": self.spec.kind, "member": self.spec.member, "repositories": placed}
        return {**fields, **path_fields(self.workspace.path, "workspace"), "policy": NEVER_SWEPT.to_data()}

    def _work(self, seconds: int) -> None:
        root = Path(self.workspace.path, self.workspace.repositories[0].directory)
        if self.spec.files_left:
            git(root, "checkout", "-q", "-b", BRANCH)
        for path, text in self.spec.files_left.items():
            at = root / path
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text, encoding="utf-8")
            os.utime(at, (seconds, seconds))

    def _finalize(self, state: str, at: datetime) -> None:
        workspace = self.workspace
        if state == "failed":
            gone = Path(workspace.path).with_name("no-remote")
            workspace = replace(workspace, repositories=tuple(replace(one, url=str(gone)) for one in workspace.repositories))
        home = Path(workspace.path).with_name("finalize")
        ended = finalize(workspace, self.log.id, on_event=lambda type_, data: self._put(type_, data, at), home=home)
        wanted = "failed" if ended.status == "Failed" else "completed"
        if wanted != state:
            raise InvalidInput(
                f"The session {wanted}, and was to end as {state}: {ended.reason or 'there was nothing to save'}.",
                why="A finalization fails if there is work that it cannot save.",
                fix="Leave files= out, or give files that can (or cannot) be saved.",
            )
        self._put("life.moved", {"to": state}, at)

    def _put(self, type_: str, data: Mapping[str, Any], at: datetime) -> None:
        self.log.put(type_, data, actor="system", at=at)


# Arguments ---------------------------------------------------------------------------------------------------------------


def _age(age: str | timedelta) -> timedelta:
    found = duration_of(age)
    if found < timedelta(0):
        raise InvalidInput(f"{age!r} is no age.", fix="Write it like 25h, or give a timedelta that is not negative.")
    return found


def _system(state: str, of: str | None) -> str:
    known: dict[str, Sequence[str]] = {"botminter": STATES, "gittrix": GITTRIX_STATES}
    if of is not None and of not in known:
        raise InvalidInput(f"{of!r} has no sessions that can be made here.", fix=f"Use: {', '.join(known)}.")
    for system in known if of is None else (of,):
        if state in known[system]:
            return system
    listed = "; ".join(f"{system}: {', '.join(known[system])}" for system in (known if of is None else (of,)))
    raise InvalidInput(
        f"There is no state {state!r}.",
        why="A session is made by the events that lead to its state.",
        fix=f"Use one of {listed}; or status= with one of agent-orchestrator's.",
    )


def _outcome(state: str, outcome: str | None) -> str:
    if outcome is not None and outcome not in TERMINAL:
        raise InvalidInput(f"{outcome!r} is no end of a run.", fix=f"Use: {', '.join(sorted(TERMINAL))}.")
    if state in ("retained", "removed"):
        return outcome or "completed"
    _refuse(outcome not in (None, state), "outcome", f"a session that is {state} has {'that end' if state in TERMINAL else 'no end yet'}")
    return state if state in TERMINAL else "completed"


def _refuse(given: bool, name: str, why: str) -> None:
    if given:
        raise InvalidInput(f"{name} says nothing here: {why}.", fix="Leave it out.")
