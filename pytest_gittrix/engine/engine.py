"""GitTrix: the engine that starts, finds, promotes and evicts sessions of a durable repository (GitTrix; DESIGN 4.3)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix import points
from pytest_gittrix.backends.forge.protocol import Forge
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.clock.clock import Clock, SystemClock, Timer
from pytest_gittrix.engine.agents.turns import Turns
from pytest_gittrix.engine.event_stream import EventStream
from pytest_gittrix.engine.lineage.fork import FilesOf
from pytest_gittrix.engine.lineage.member_recovery import apart
from pytest_gittrix.engine.lineage.origins import Births
from pytest_gittrix.engine.lineage.recovery import Recovery, RecoveryReport, settled
from pytest_gittrix.engine.operations.archive import Archive
from pytest_gittrix.engine.operations.conversation import check_types, events_of, picked
from pytest_gittrix.engine.operations.eviction import Evictor, check_end, check_outcome, is_repeated, require_evictable
from pytest_gittrix.engine.operations.expiry import resolution_ns
from pytest_gittrix.engine.operations.ids import random_id, sortable_id
from pytest_gittrix.engine.operations.info import SessionInfo, info_of
from pytest_gittrix.engine.operations.moved_refs import MovedRef, moved_references
from pytest_gittrix.engine.operations.operation import Emitter, Listener, Recorder, require_live, typed
from pytest_gittrix.engine.operations.resources import Credentials, Resources
from pytest_gittrix.engine.promotion.promoter import Choice, Gate
from pytest_gittrix.engine.promotion.promotion import PromoteResult
from pytest_gittrix.engine.promotion.pull_requests import ForgeOf, PullRequests, forges_of
from pytest_gittrix.engine.promotion.strategy import Ask, Preferences, check_strategy
from pytest_gittrix.engine.queries import DEPTH, Node, Records
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError, SessionNotFound
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.log import Durability
from pytest_gittrix.record.state.fold import Policy, StateName
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Problem, Store, default_home
from pytest_gittrix.views import view
from pytest_gittrix.workspaces.seed import prune_seeds
from pytest_gittrix.workspaces.workspace import WorkspaceKind

if TYPE_CHECKING:
    from pytest_gittrix.record.state.records import EvictionPolicy, SessionMetadata

__all__ = ["GitTrix", "MovedRef", "RecoveryReport"]


class GitTrix:
    """The engine. Use it as a context manager, or call ``init`` and ``close``.

    Args:
        durable: the human's repository: an adapter, a path, or the address of a remote such as ``https://host/app.git#main``, which is
            mirrored below ``<home>/mirrors``. None for an engine that only works on sessions there are.
        ephemeral: how workspaces are made; ``LocalEphemeral()`` by default.
        store: directory of sessions; ``<home>/sessions`` by default.
        home: directory of everything else the engine keeps (locks, preferences); ``GITTRIX_HOME`` or ``~/.gittrix``.
        clock: the time; ``SystemClock`` by default.
        eviction: policy of sessions that are started without one of their own.
        sweep_interval: how often the sweep runs by itself; None for never.
        durability: ``full`` (starts, handoffs, promotions and ends survive a power cut once they are reported; what is said and written
            in a session may lose its last moments) or ``fast`` (they survive a crash).
        strategy: what ``auto`` means before the contributor heuristic is asked.
        ask: how to ask a person for a strategy; see ``strategy.Question``.
        ids: makes session ids; random by default.
        forge: where pull requests are opened: that of ``durable``, or a function from a durable to its forge (None where it has none).
        credentials: user and password (or token) by the address of a remote, for those that are known by an address without any.

    Attributes:
        records: the sessions there are, for lists and queries.

    Raises:
        AdapterUnavailable: ``durable`` is no repository.
        InvalidInput: an argument has a value that is not allowed.
    """

    def __init__(
        self,
        durable: Durable | str | os.PathLike[str] | None,
        ephemeral: LocalEphemeral | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
        home: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        eviction: EvictionPolicy | None = None,
        sweep_interval: timedelta | None = timedelta(minutes=5),
        durability: Durability = "full",
        strategy: str = "auto",
        ask: Ask | None = None,
        ids: Callable[[], str] | None = None,
        forge: Forge | ForgeOf | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        # Absolute, since git runs elsewhere.
        place = Path(store).absolute() if store is not None else None
        self.home = Path(home).absolute() if home is not None else place.parent if place is not None else default_home()
        self.store = Store(place or self.home / "sessions", durability=durability)
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.ephemeral = ephemeral or LocalEphemeral()
        self._resources = Resources(self.home, self.store, durable, self.ephemeral, credentials)
        self._own_clock = clock is None
        self._policy = eviction.policy() if eviction is not None else Policy()
        self._sweep_interval = sweep_interval
        self._ids = ids or random_id
        self._evictor = Evictor(self._resources.open_workspace, self._resources.trash, self.ephemeral.limits)
        self._emitter = Emitter()
        self._index = Index(self.store)
        self.records = Records(self._index)
        self._turns = Turns(self._emitter.on)
        preferences = Preferences(self.home / "preferences.json")
        pull_requests = PullRequests(forges_of(forge, self._resources.is_own))
        self._gate = Gate(self._resources, self._evictor, check_strategy(strategy), preferences, ask, pull_requests)
        self._timer: Timer | None = None

    @property
    def durable(self) -> Durable | None:
        """The engine's own durable repository, if it has one."""
        return self._resources.durable

    def __enter__(self) -> GitTrix:
        return self.init()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def init(self) -> GitTrix:
        """Make the store, recover from whatever was killed, sweep once, and start the timer. Calling it again does nothing more."""
        with typed():
            self.store.root.mkdir(parents=True, exist_ok=True)
        self.recover()
        self.sweep()
        if self._timer is None and self._sweep_interval is not None:
            self._timer = self.clock.every(self._sweep_interval, _weakly(self))
        return self

    def close(self) -> None:
        """Stop the timer and give back descriptors and processes. Sessions stay; calling it again is no error."""
        self._turns.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._own_clock:
            self.clock.close()
        self._index.close()
        self._resources.trash.wait()
        if self.store.durability == "full":
            self._resources.trash.empty()
        self._resources.close()

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Have ``listener(event)`` called after each stored event of a name.

        Args:
            event: a GitTrix name (``session.start``, ``session.write``, ``session.commit``, ``session.promote``, ``session.evict``), a
                stored event's name (``promote.conflict``), or ``*``.
            listener: gets the ``Event``; what it raises is reported to ``threading.excepthook``.

        Returns:
            A function that ends the subscription.
        """
        return self._emitter.on(event, listener)

    def stream(self, path: str | os.PathLike[str]) -> EventStream:
        """Tell what happens in this engine's sessions on a Unix socket, until it is closed; ``stream.follow`` listens.

        Raises:
            AdapterUnavailable: somebody listens there, or the system refused.
            InvalidInput: the path is too long for a socket.
        """
        return EventStream(lambda listener: self.on("*", listener), path)

    # Sessions ------------------------------------------------------------------------------------------------------------------

    def start_session(
        self,
        task: str,
        *,
        durable_branch: str | None = None,
        durable_path: str | os.PathLike[str] | None = None,
        durable_ref: str | None = None,
        eviction: EvictionPolicy | None = None,
        workspace: WorkspaceKind | None = None,
        strategy: str | None = None,
        parent: str | None = None,
        id: str | None = None,
        **identity: str,
    ) -> UserSession:
        """Start a session from the head of a branch.

        Args:
            task: what the agent is to do; free text, used in the commit message.
            durable_branch: the branch; the durable adapter's by default.
            durable_path: another repository on this machine than the engine's.
            durable_ref: the same as ``local://<path>#<branch>``, or a remote as ``<address>#<branch>``.
            eviction: this session's policy.
            workspace: this session's kind of workspace.
            strategy: what ``auto`` means for this session.
            parent: a session that crashed, with which this one goes on (Gas Town).
            id: its id, where somebody else chose one, such as the agent's runtime; made here by default.
            identity: who works in it, and on what: ``agent``, ``rig``, ``role``, ``work_unit`` and so on; see ``values.IDENTITY``.

        Raises:
            InvalidInput: there is no such branch, the id is taken, or an argument is not allowed.
            SessionExpired: ``parent`` has not crashed, or has a successor.
            SessionNotFound: there is no such parent.
            AdapterUnavailable, UnsupportedRepository: the repository cannot be used; nothing is left behind.
        """
        durable, branch = self._resources.resolve(durable_path, durable_ref, durable_branch)
        ephemeral = self.ephemeral if workspace is None else replace(self.ephemeral, kind=workspace)
        recorder, made = self._births().begin(
            task,
            durable,
            branch,
            ephemeral=ephemeral,
            policy=eviction.policy() if eviction is not None else self._policy,
            strategy=strategy,
            parent=parent,
            id_=id,
            identity=identity,
        )
        return UserSession(recorder, made, ephemeral.limits, self)

    def fork(
        self,
        id_: str,
        at_seq: int | None = None,
        *,
        task: str | None = None,
        summary: str | bool | None = None,
        files: FilesOf = "then",
        eviction: EvictionPolicy | None = None,
        id: str | None = None,
        **identity: str,
    ) -> UserSession:
        """Start a session that begins as another one, perhaps ended, was after an event; see ``UserSession.fork``."""
        policy = eviction.policy() if eviction is not None else None
        parent = self._recorder(id_)
        recorder, made = self._births().fork(
            parent, at_seq, task=task, summary=summary, files=files, policy=policy, id_=id, identity=identity
        )
        return UserSession(recorder, made, self.ephemeral.limits, self)

    def get_session(self, id_: str) -> UserSession:
        """A live session.

        Raises:
            SessionNotFound: there is none of that id.
            SessionExpired: it has ended; ``.state`` says how.
            MetadataVersionUnsupported, LogDamaged: its record cannot be read.
            AdapterUnavailable: its workspace or durable repository is gone.
        """
        recorder = self._recorder(id_)
        state = recorder.read()
        require_live(state)
        return UserSession(recorder, self._resources.open_workspace(state), self.ephemeral.limits, self)

    def info(self, id_: str) -> SessionInfo:
        """What a session is or was, ended ones too. Raises as ``get_session``, but not for having ended."""
        state = self._recorder(id_).read()
        if state.ended or state.life is not None:
            return info_of(state, None, state.api_touched)
        return self.get_session(id_).info()

    def history(self, id_: str, types: Iterable[str] | None = None) -> list[Event]:
        """The stored events of a session, ended ones too; see ``AgentSession.history``. Raises SessionNotFound if there is none.

        A session of a TypeScript store has one: that it was imported, as its log will say once it has one.
        """
        return picked(events_of(self._recorder(id_)), check_types(types))

    def view(self, id_: str, name: str) -> dict[str, Any]:
        """The record of a session, ended ones too, in another system's own schema; see ``UserSession.view``."""
        return view(self.history(id_), name)

    def gen_id(self) -> str:
        """An id as Pixir makes them, for ``start_session(id=...)``: in order of time, and fit for a file's name."""
        return sortable_id(self.clock.now())

    def list_sessions(self, state: StateName | None = None) -> list[SessionMetadata]:
        """Every session that can be read, oldest first; ``problems`` tells of those that cannot.

        Args:
            state: only those in this state.
        """
        return self.records.every(state)

    def problems(self) -> list[Problem]:
        """The records that cannot be read, each with the reason."""
        return self.records.problems()

    def query(self, **wanted: Any) -> list[SessionMetadata]:
        """The sessions that fit; ``Records.query`` says what can be asked for."""
        return self.records.query(**wanted)

    def chain(self, chain: str | None = None, *, work_unit: str | None = None) -> list[SessionMetadata]:
        """A line of handoffs, or all that a work unit had, oldest first; see ``Records.chain``."""
        return self.records.chain(chain, work_unit=work_unit)

    def tree(self, id_: str, *, depth: int = DEPTH) -> Node:
        """A session and what came of it; see ``Records.tree``."""
        return self.records.tree(id_, depth=depth)

    # Ends ----------------------------------------------------------------------------------------------------------------------

    def promote_session(self, session: UserSession, choice: Choice) -> PromoteResult:
        """Promote a session; ``UserSession.promote`` says how and what it raises."""
        recorder = settled(session._recorder, self._recovery())
        result = self._gate.promote(recorder, session._workspace, choice, self._settle)
        self._tidy()
        return result

    def hand_off(
        self, session: UserSession, task: str | None, eviction: EvictionPolicy | None, id: str | None, facts: Mapping[str, str]
    ) -> UserSession:
        """End a session and hand its workspace on to a new one; ``UserSession.handoff`` says how and what it raises."""
        recorder = settled(session._recorder, self._recovery())
        with self._turns.pausing(recorder):
            policy = eviction.policy() if eviction is not None else None
            child = self._births().hand_on(recorder, task=task, policy=policy, id_=id, identity=facts)
        session._workspace.close()
        return self.get_session(child)

    def evict(self, id_: str, state: str = "expired", *, outcome: str | None = None) -> None:
        """End a session now, whatever its TTL: archive what was not promoted, remove its workspace, keep its record.

        Args:
            id_: the session.
            state: how it ends, ``expired`` or ``discarded``.
            outcome: how its agent did: ``done``, ``crash`` or ``killed`` (Gas Town). Told a second time, it is no error.

        Raises:
            InvalidInput: ``state`` is no end, or ``outcome`` none.
            SessionNotFound, SessionExpired: there is no such live session.
            EvictionRace: somebody works on it and does not let go.
        """
        how, said = check_end(state), check_outcome(outcome)
        recorder = settled(self._recorder(id_), self._recovery())
        if is_repeated(recorder.read(), how, said):
            return
        require_evictable(recorder.read())
        with recorder.leased() as now:
            require_evictable(now)
            self._evictor.evict(recorder, now, how, outcome=said)
        self._tidy()

    def sweep(self) -> list[str]:
        """Evict every session past its TTL; gives their ids. One bad record does not stop it, nor does another sweep beside it."""
        self._index.sync()
        evicted: list[str] = []
        now = self.clock.now_ns()
        for id_ in self._index.ahead(now + resolution_ns(self.clock)):
            with suppress(GittrixError, OSError):
                self._evictor.rebase_one(self._recorder(id_))
        for id_ in self._index.due(now):
            points.reached("sweep:found-due")
            try:
                gone = self._evictor.sweep_one(settled(self._recorder(id_), self._recovery()))
            except SessionNotFound:
                continue
            except Exception as problem:  # noqa: BLE001  (one odd record must not stop the others from being swept)
                self._emitter.complain(id_, problem, ts=self.clock.now_ns())
                continue
            if gone:
                evicted.append(id_)
        if evicted:
            self._tidy()
        return evicted

    def recover(self) -> RecoveryReport:
        """Bring every session that a kill left half-way to a state somebody meant; see ``session.recovery``."""
        self._index.sync()
        report = self._recovery().run([*self._index.unsettled(), *apart(self.store, self._index.lives(("retained",)))])
        self._index.sync()
        report.problems.extend(self._index.problems())
        if not report.problems:
            prune_seeds(str(self._resources.seeds_path), self.records.baselines)
        return report

    def archive_session(self, session: UserSession) -> Archive | None:
        """Set aside what a session holds; see ``UserSession.archive``."""
        recorder = self._recorder(session.id)
        with recorder.working("archive", "human") as state:
            return self._evictor.set_aside(recorder, state, self._resources.open_workspace(state))

    def moved_refs(self, id_: str) -> list[MovedRef]:
        """The branches and tags of durable that moved since a live session started, and that no promotion of this store moved.

        A person's own commits are among them. Raises AdapterUnavailable once the session has ended.
        """
        state = self._recorder(id_).read()
        return moved_references(self.store.directory(id_) / "engine", self._resources.durable_of(state), self.records.promoted())

    # Parts ---------------------------------------------------------------------------------------------------------------------

    def _recorder(self, id_: str) -> Recorder:
        return Recorder(self.store, id_, self.clock, self._emitter.emit)

    def _births(self) -> Births:
        return Births(self.store, self._recorder, self._resources, self._ids)

    def _settle(self, contents: str) -> bool:
        """Mend the promotion of this store whose commit a lock's contents are, if its process is gone; whether it was."""
        self._index.sync()
        for id_ in self._index.unsettled():
            try:
                intent = self._recorder(id_).read().intent
            except GittrixError:
                continue
            if intent is not None and intent.commit == contents:
                # It holds its session's lease for as long as it lives, and a recovery breaks no lease.
                report = self._recovery().run([id_])
                return id_ in (*report.rolled_forward, *report.rolled_back)
        return False

    def _recovery(self) -> Recovery:
        return Recovery(self.store, self._recorder, self._resources.durable_of, self._evictor, pull_requests=self._gate.pull_requests)

    def _tidy(self) -> None:
        if self.store.durability == "full":
            self._resources.trash.empty_soon()


def _weakly(engine: GitTrix) -> Callable[[], None]:
    """A timer's callback that does not keep the engine alive, nor lead from the clock (which agents see) to durable."""
    reference = weakref.ref(engine)

    def sweep() -> None:
        held = reference()
        if held is not None:
            held.sweep()

    return sweep
