"""GitTrix: the engine that starts, finds, promotes and evicts sessions of a durable repository."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.backends.protocol import Durable, Ephemeral, check_ephemeral
from pytest_gittrix.clock.clock import Clock, SystemClock, Timer
from pytest_gittrix.clock.shown import clock_of_a_test
from pytest_gittrix.durations import duration_of
from pytest_gittrix.engine.agents.agent_session import look_at
from pytest_gittrix.engine.eviction.archive import archives_in
from pytest_gittrix.engine.eviction.evictor import BUDGET
from pytest_gittrix.engine.lineage.fork import FilesOf, ForkRequest
from pytest_gittrix.engine.lineage.handoff import Succession
from pytest_gittrix.engine.lineage.initial_files import check_initial_files
from pytest_gittrix.engine.lineage.recovery import RecoveryReport
from pytest_gittrix.engine.lineage.start import SessionStart, check_identity, with_values
from pytest_gittrix.engine.operations.attachments import attached
from pytest_gittrix.engine.operations.conversation import check_types, events_of, of_types
from pytest_gittrix.engine.operations.ids import SeededIds, SortableIds, random_id
from pytest_gittrix.engine.operations.in_use import InUse
from pytest_gittrix.engine.operations.info import SessionInfo, info_of
from pytest_gittrix.engine.operations.moved_refs import MovedRef
from pytest_gittrix.engine.operations.recorder import Listener, convert_os_errors
from pytest_gittrix.engine.operations.requester import require_person
from pytest_gittrix.engine.operations.resources import QUEUE_WAIT, Credentials, Resources
from pytest_gittrix.engine.operations.validation import check_budget, check_queue_wait, check_text, policy_of
from pytest_gittrix.engine.overlaps import SessionOverlap, find_overlaps
from pytest_gittrix.engine.promotion.pull_requests import ForgeOf, PullRequests, forges_of
from pytest_gittrix.engine.promotion.strategy import Ask, check_strategy
from pytest_gittrix.engine.queries import DEPTH, Node
from pytest_gittrix.engine.services import EngineServices
from pytest_gittrix.engine.sweep import Sweep, evict, in_use, postponed, sweeping
from pytest_gittrix.engine.user_session import UserSession, fork_session, moved_refs, open_session
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.files import private_directory
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.log import Durability
from pytest_gittrix.record.state.fold import Policy, StateName
from pytest_gittrix.record.store.store import Problem, Store, default_home, default_store
from pytest_gittrix.record.store.up_to_date import is_up_to_date
from pytest_gittrix.views import view
from pytest_gittrix.workspaces.kinds import WorkspaceKind

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.protocol import Forge
    from pytest_gittrix.engine.event_stream import EventStream
    from pytest_gittrix.record.state.records import Eviction, SessionMetadata

__all__ = ["GitTrix", "MovedRef", "RecoveryReport"]


class GitTrix:
    """The engine. Use it as a context manager, or call ``init`` and ``close``.

    Args:
        durable: the human's repository: an adapter, a path, or the address of a remote such as ``https://host/app.git#main``, which is
            mirrored below ``<home>/mirrors``. None for an engine that only works on existing sessions.
        ephemeral: how workspaces are made; ``LocalEphemeral()`` by default. Any ``backends.Ephemeral`` will do.
        store: directory of sessions; ``<home>/sessions`` by default.
        home: directory of everything else that the engine stores (locks, preferences); ``GITTRIX_HOME`` or ``~/.gittrix``.
        clock: the time; by default ``SystemClock``, or the clock of a test while ``process_freeze`` shows one, unless both ``store`` and
            ``home`` are left out: then it is the person's own store.
        eviction: policy of sessions that are started without one of their own: an ``EvictionPolicy``, or an idle TTL such as ``"4h"``.
        sweep_interval: how often the sweep runs by itself, as a timedelta or a text such as ``"5m"``; None for never.
        sweep_budget: the real time that one session may take in a sweep or a recovery; None for as long as it takes. See ``postponed``.
        durability: ``full`` (starts, handoffs, promotions and ends survive a power cut once they are reported; the last events and writes
            of a session may be lost) or ``fast`` (they survive a crash).
        strategy: what ``auto`` means before the contributor heuristic is asked.
        ask: how to ask a person for a strategy; see ``strategy.Question``.
        ids: makes session ids; random by default.
        forge: where pull requests are opened: that of ``durable``, or a function from a durable to its forge (None where it has none).
        credentials: user and password (or token) by the address of a remote, for addresses without credentials.
        queue_wait: the real time that a promotion waits for its turn, while another one into the same repository is under way.

    Attributes:
        records: lists and queries of sessions.
        services: the engine's interface for systems that are built on it.

    Raises:
        AdapterUnavailable: ``durable`` is no repository.
        InvalidInput: an argument has a value that is not allowed.
    """

    def __init__(
        self,
        durable: Durable | str | os.PathLike[str] | None,
        ephemeral: Ephemeral | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
        home: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        eviction: Eviction | None = None,
        sweep_interval: timedelta | str | None = timedelta(minutes=5),
        sweep_budget: timedelta | str | None = BUDGET,
        durability: Durability = "full",
        strategy: str = "auto",
        ask: Ask | None = None,
        ids: Callable[[], str] | None = None,
        forge: Forge | ForgeOf | None = None,
        credentials: Credentials | None = None,
        queue_wait: timedelta | str = QUEUE_WAIT,
    ) -> None:
        # Absolute, since git runs elsewhere.
        sessions = Path(store).absolute() if store is not None else None
        self.home = Path(home).absolute() if home is not None else sessions.parent if sessions is not None else default_home()
        self.store = Store(sessions or self.home / "sessions", durability=durability)
        if clock is None:
            clock = clock_of_a_test(persons_store=store is None and home is None)
        self._own_clock = clock is None
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.ephemeral: Ephemeral = LocalEphemeral() if ephemeral is None else check_ephemeral(ephemeral)
        resources = Resources(
            self.home,
            self.store,
            self.clock,
            durable,
            self.ephemeral,
            make_id=ids or random_id,
            credentials=credentials,
            queue_wait=check_queue_wait(queue_wait),
        )
        self.services = EngineServices(
            resources,
            policy=policy_of(eviction, Policy()),
            sweep_budget=check_budget(sweep_budget),
            pull_requests=PullRequests(forges_of(forge, resources.is_own)),
            strategy=check_strategy(strategy),
            ask=ask,
        )
        self.records = self.services.records
        self._sortable = SortableIds(ids.bits) if isinstance(ids, SeededIds) else SortableIds()
        self._sweep_interval = None if sweep_interval is None else duration_of(sweep_interval)
        self._timer: Timer | None = None

    @property
    def durable(self) -> Durable | None:
        """The engine's own durable repository, if it has one."""
        return self.services.resources.durable

    def __enter__(self) -> GitTrix:
        return self.init()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def init(self) -> GitTrix:
        """Make the store, recover from whatever was killed, sweep once, and start the timer. Calling it again does nothing more.

        Where the index says that there is nothing to recover or to sweep, no session is looked at.
        """
        with convert_os_errors():
            # Another directory may have other uses: it keeps its mode.
            private_directory(self.store.root, close=self.store.root == default_store())
        if not is_up_to_date(str(self.store.root), self.clock.now_ns()):
            self.recover()
            Sweep(self.services, "the start of the engine").run()
        if self._timer is None and self._sweep_interval is not None:
            self._timer = self.clock.every(self._sweep_interval, sweeping(self.services))
        return self

    def close(self) -> None:
        """Stop the timer and give back descriptors and processes. Sessions stay; calling it again is no error."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._own_clock:
            self.clock.close()
        self.services.close()

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Have ``listener(event)`` called after each stored event of a name.

        Args:
            event: a GitTrix name (``session.start``, ``session.write``, ``session.commit``, ``session.promote``, ``session.evict``), a
                stored event's name (``promote.conflict``), or ``*``.
            listener: gets the ``Event``; what it raises is reported to ``threading.excepthook``.

        Returns:
            A function that ends the subscription.
        """
        return self.services.emitter.on(event, listener)

    def stream(self, path: str | os.PathLike[str]) -> EventStream:
        """Send the events of this engine's sessions to listeners on a Unix socket, until it is closed; ``engine.follow`` listens.

        Raises:
            AdapterUnavailable: another engine uses that socket, or the system refused.
            InvalidInput: the path is too long for a socket.
        """
        from pytest_gittrix.engine.event_stream import EventStream

        return EventStream(lambda listener: self.on("*", listener), path)

    def start_session(
        self,
        task: str,
        *,
        durable_branch: str | None = None,
        branch: str | None = None,
        durable_path: str | os.PathLike[str] | None = None,
        durable_ref: str | None = None,
        eviction: Eviction | None = None,
        workspace: WorkspaceKind | str | None = None,
        strategy: str | None = None,
        parent: str | None = None,
        id: str | None = None,
        seed_files: Mapping[str, bytes | str] | None = None,
        keep_after_promote: bool = False,
        **identity: str,
    ) -> UserSession:
        """Start a session from the head of a branch.

        Args:
            task: what the agent is to do; free text, used in the commit message.
            durable_branch: the branch that it begins at and is promoted to; the durable adapter's by default.
            branch: the same, in short. The name of the agent's own branch is a fact of its identity, ``topic_branch``.
            durable_path: another repository on this machine than the engine's.
            durable_ref: the same as ``local://<path>#<branch>``, or a remote as ``<address>#<branch>``, such as ``github://owner/repo#main``.
            eviction: this session's policy: an ``EvictionPolicy``, or an idle TTL such as ``"4h"``.
            workspace: this session's kind of workspace: one of ``LocalEphemeral``, or one that a package registered.
            strategy: what ``auto`` means for this session.
            parent: a session that crashed, which this one continues (Gas Town).
            id: its id, if another program chose it, such as the agent's runtime; made here by default.
            seed_files: files to begin with in addition to the baseline: contents by path, text as UTF-8. They can be promoted once they
                are changed, and are then added to durable whole. Forks and handoffs have them too.
            keep_after_promote: whether it goes on after a promotion to a pull request, and after the next ones to the same branch, as with
                ``promote(keep=True)``. A promotion that says ``keep=False`` ends it all the same.
            identity: who works in it, and on what: ``agent``, ``rig``, ``role``, ``work_unit`` and so on; see ``values.IDENTITY``.

        Raises:
            InvalidInput: there is no such branch, the id is taken, the baseline has something where a seed file is to be, or an argument is
                not allowed.
            WriteRejected: the path of a seed file is not allowed, or it is too large.
            SessionExpired: ``parent`` has not crashed, or has a successor.
            SessionNotFound: there is no such parent.
            AdapterUnavailable, UnsupportedRepository: the repository cannot be used; nothing is left behind.
            CapabilityMissing: the engine's ``ephemeral`` makes no such workspaces.
        """
        if branch is not None and durable_branch not in (None, branch):
            raise InvalidInput(
                f"Two branches were given: durable_branch={durable_branch!r} and branch={branch!r}.",
                why="Both name the branch that the session begins at and is promoted to.",
                fix="Give one of them; topic_branch= names the agent's own branch.",
            )
        resources = self.services.resources
        durable, branch = resources.resolve(durable_path, durable_ref, branch if durable_branch is None else durable_branch)
        ephemeral = resources.ephemeral_for(workspace)
        start = SessionStart(
            check_text(task, "task"),
            durable,
            branch,
            ephemeral,
            policy_of(eviction, self.services.policy),
            strategy,
            with_values(check_identity(identity)),
            None if parent is None else Succession(resources.recorder(parent)),
            initial_files=check_initial_files(seed_files, ephemeral.limits.max_file),
            keep_after_promote=keep_after_promote,
            id=id,
        )
        return UserSession(self.services, *start.run(resources))

    def fork(
        self,
        id_: str,
        at_seq: int | None = None,
        *,
        task: str | None = None,
        summary: str | bool | None = None,
        files: FilesOf = "then",
        eviction: Eviction | None = None,
        id: str | None = None,
        **identity: str,
    ) -> UserSession:
        """Start a session that begins as another one, perhaps ended, was after an event; see ``UserSession.fork``."""
        request = ForkRequest(at_seq, task, summary, files, policy_of(eviction, None), id, identity)
        return fork_session(self.services, id_, request)

    def get_session(self, id_: str) -> UserSession:
        """A live session.

        Raises:
            SessionNotFound: there is no session of that id.
            SessionExpired: it has ended; ``.state`` says how.
            MetadataVersionUnsupported, LogDamaged: its record cannot be read.
            AdapterUnavailable: its workspace or durable repository is gone.
        """
        return open_session(self.services, id_)

    def info(self, id_: str) -> SessionInfo:
        """A session as it is, or was when it ended. Looking is not using: its idle time goes on.

        Raises as ``get_session``, but not for ended sessions.
        """
        state = self.services.recorder(id_).read()
        if state.ended or state.life is not None:
            return info_of(state, None, state.touched)
        return look_at(self.get_session(id_))

    def history(self, id_: str, types: Iterable[str] | None = None) -> list[Event]:
        """The stored events of a session, ended ones too; see ``AgentSession.history``. Raises SessionNotFound if there is none.

        A session of a TypeScript store has one event: its import, which its log will begin with.
        """
        return of_types(events_of(self.services.recorder(id_)), check_types(types))

    def attached(self, id_: str, name: str) -> bytes:
        """The bytes that were attached to a session under a name, also once it has ended.

        Args:
            id_: the session.
            name: what ``AgentSession.attach`` returned, or what an event has among its ``resources``.

        Raises:
            SessionNotFound: there is no session of that id.
            InvalidInput: it is no such name.
            PathNotFound: nothing of that name is attached.
            LogDamaged: the bytes are not what they were.
        """
        recorder = self.services.recorder(id_)
        recorder.read()
        return attached(recorder.directory, name)

    def view(self, id_: str, name: str) -> dict[str, Any]:
        """The record of a session, ended ones too, in another system's own schema; see ``UserSession.view``."""
        return view(self.history(id_), name)

    def gen_id(self) -> str:
        """An id as Pixir makes them, for ``start_session(id=...)``: in order of this engine's time, and fit for a file's name."""
        return self._sortable(self.clock.now())

    def list_sessions(self, state: StateName | None = None) -> list[SessionMetadata]:
        """Every session that can be read, oldest first; ``problems`` lists those that cannot.

        Args:
            state: only those in this state.
        """
        return self.records.every(state)

    def iter_sessions(self, state: StateName | None = None) -> Iterator[SessionMetadata]:
        """The same as ``list_sessions``, one after the other: for stores whose list would take much memory."""
        return self.records.each(state)

    def problems(self) -> list[Problem]:
        """The records that cannot be read, each with the reason."""
        return self.records.problems()

    def query(self, **wanted: Any) -> list[SessionMetadata]:
        """The sessions that match; ``Records.query`` has the criteria."""
        return self.records.query(**wanted)

    def chain(self, chain: str | None = None, *, work_unit: str | None = None) -> list[SessionMetadata]:
        """The sessions of a chain of handoffs, or of all chains of a work unit, oldest first; see ``Records.chain``."""
        return self.records.chain(chain, work_unit=work_unit)

    def tree(self, id_: str, *, depth: int = DEPTH) -> Node:
        """A session and its descendants; see ``Records.tree``."""
        return self.records.tree(id_, depth=depth)

    def evict(self, id_: str, state: str = "expired", *, outcome: str | None = None, force: bool = False) -> None:
        """End a session now, whatever its TTL: archive what was not promoted, remove its workspace, keep its record.

        Args:
            id_: the session.
            state: how it ends, ``expired`` or ``discarded``.
            outcome: how its agent did: ``done``, ``crash`` or ``killed`` (Gas Town). The same call again is no error then.
            force: do so although processes work in its workspace; see ``UserSession.discard``.

        Raises:
            SessionInUse: processes work in its workspace; nothing was changed.
            InvalidInput: there is no such end, or no such outcome.
            SessionNotFound, SessionExpired: there is no such live session.
            EvictionRace: another operation on it holds its lease for too long.
            AdapterUnavailable: the system refused something; see ``UserSession.discard``.
            PersonRequired: an agent's process asks.
        """
        require_person(self.store.root, "evict")
        evict(self.services, id_, state, outcome=outcome, force=force)

    def archives(self, id_: str) -> tuple[str, ...]:
        """The paths of what was archived of a session's work; none if nothing was. Raises InvalidInput for a malformed id."""
        return archives_in(self.store.directory(id_))

    def sweep(self) -> list[str]:
        """Evict every session past its TTL; returns their ids. Neither a bad record nor a concurrent sweep stops it.

        A session whose work takes longer to archive than ``sweep_budget`` is postponed. One whose files take longer to look at comes last.
        One that was idle is left as long as a program of any engine, a turn or another process works in its workspace; ``in_use`` names
        them. Past its absolute time it ends: the engine's programs get SIGTERM, and SIGKILL five seconds later. Its workspace stays as
        long as other processes work there.
        """
        return Sweep(self.services).run()

    def swept(self) -> list[str]:
        """The sessions that sweeps of this engine evicted, in order; at most the last 1000.

        The timer sweeps every ``sweep_interval``, so that ``sweep()`` often finds nothing left to evict.
        """
        return [one.id for one in self.services.swept.copy()]  # the timer may sweep meanwhile

    def postponed(self) -> list[str]:
        """The sessions that have ended, and whose work took longer to archive than one session may take in a sweep.

        Each is out of its agent's reach, with all its work, and ``eviction.postponed`` is in its log. The next sweep goes on with it, after
        all others. If it takes too long then as well, its workspace is kept whole. ``evict(id)`` archives it now, and takes as long as it
        needs.
        """
        self.services.index.sync()
        return postponed(self.services)

    def in_use(self) -> list[InUse]:
        """The sessions that a sweep leaves because processes work in their workspaces, each with those processes.

        They are past their idle or absolute time, or were promoted. The first sweep that finds no process there evicts them. Processes of
        other users are not seen.
        """
        return in_use(self.services)

    def recover(self) -> RecoveryReport:
        """Finish or undo every operation that a kill interrupted; see ``lineage.recovery``."""
        return self.services.recover()

    def overlaps(self, *, look: bool = False) -> list[SessionOverlap]:
        """Which live sessions touch the same paths, or paths that durable changed, and how a promotion of each would end now.

        Args:
            look: look at every file of every workspace first. Without it, a file that a program changed counts where durable changed it
                too, and otherwise once the session has looked at its files (``touched_files``, a turn's end and so on).
        """
        return find_overlaps(self.services, look=look)

    def moved_refs(self, id_: str) -> list[MovedRef]:
        """The branches and tags of durable that moved since a live session started, and that no promotion of this store moved.

        A person's own commits are among them. Raises SessionExpired once the session has ended.
        """
        return moved_refs(self.services, id_)
