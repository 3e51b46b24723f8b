"""The recorder of a session: its log, state and lease, with which every operation begins and is recorded.

An operation takes the lease, reads the state again, is refused if the session has ended, does its work, and appends one event (rule 7,
docs/explanation/rules.md). A recorder has no reference to durable, since the agent's object is built on it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final

from pytest_gittrix.clock.clock import Clock
from pytest_gittrix.engine.operations.expiry import is_past, outlasts_idle_time, resolution_ns, unseen_activity
from pytest_gittrix.engine.operations.requester import actor_of_requester
from pytest_gittrix.errors import AdapterUnavailable, Advice, EvictionRace, GittrixError, SessionExpired, SessionNotFound
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.events import Actor, Event, live_event, path_fields
from pytest_gittrix.record.eventlog.log import EventLog, report_ignored
from pytest_gittrix.record.eventlog.vocabulary import CONVERSATION, OBSERVED
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.store.fold_checkpoint import fold_log
from pytest_gittrix.record.store.store import Store

Listener = Callable[[Event], object]
Emit = Callable[[Event], None]

PUBLIC_NAMES: Final[Mapping[str, str]] = {
    "workspace.ready": "session.start",
    "session.write": "session.write",
    "session.commit": "session.commit",
    "promote.done": "session.promote",
    "promote.kept": "session.promote",
    "workspace.removed": "session.evict",
}
"""GitTrix's names of events, by the name of the stored event."""

_DERIVE_EVERY_NS: Final = 60 * 10**9
# What changes nothing in metadata.json but times and the list of touched files: a session can hold thousands of these.
_QUIET: Final = frozenset({"session.accessed", "session.write", *CONVERSATION})


class Emitter:
    """The listeners of one engine. An exception of a listener is reported and never reaches the operation, which is stored already."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Call ``listener(event)`` for events of that name; returns a function that ends it."""
        listeners = self._listeners.setdefault(name, [])
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    def emit(self, event: Event) -> None:
        """Call every listener of the event's stored name, of its GitTrix name, or of ``*``."""
        if not self._listeners:
            return
        for name in dict.fromkeys((event.type, PUBLIC_NAMES.get(event.type, event.type), "*")):
            for listener in tuple(self._listeners.get(name, ())):
                try:
                    listener(event)
                except Exception as problem:  # noqa: BLE001  (a listener is foreign code: no exception of it may undo what is stored)
                    report_ignored(problem)

    def complain(self, id_: str, problem: Exception, *, ts: int) -> None:
        """Announce a failure of background work, which has no caller to raise to, as ``engine.error``."""
        code = problem.code if isinstance(problem, GittrixError) else "OS_ERROR"
        self.emit(live_event("engine.error", {"code": code, "message": str(problem)}, ts=ts, stream=id_))


def _weak(emit: Emit) -> Emit:
    """The same emitter, as long as its engine lives."""
    if not inspect.ismethod(emit):
        return emit
    reference = weakref.WeakMethod(emit)

    def emit_if_alive(event: Event) -> None:
        alive = reference()
        if alive is not None:
            alive(event)

    return emit_if_alive


class Recorder:
    """The record of one session, for operations on it.

    Args:
        store: where the session is stored.
        id_: its id.
        clock: the engine's clock.
        emit: called with each event, once it is stored.
        wait: real seconds to wait for the session's lease.

    Attributes:
        last: the event that this recorder stored last.
    """

    def __init__(self, store: Store, id_: str, clock: Clock, emit: Emit, *, wait: float = 10.0) -> None:
        self.store = store
        self.id = id_
        self.clock = clock
        self.emit = emit
        self.wait = wait
        self.directory = store.directory(id_)
        self.log: EventLog = store.log(id_)
        self._lease = store.lease(id_, wait=wait)
        self.last: Event | None = None
        self._refusal: Callable[[], GittrixError] | None = None
        self._state: SessionState | None = None
        self._located: str | None = None
        self._resolution_ns = resolution_ns(clock)
        self._derived_ns = 0
        self._underived = False

    def revoke(self, refusal: Callable[[], GittrixError]) -> None:
        """End the use of this recorder: from now on its operations raise what ``refusal`` returns."""
        self._refusal = refusal

    def require_unrevoked(self) -> None:
        """Raise what ``revoke`` said, if this recorder was revoked."""
        if self._refusal is not None:
            raise self._refusal()

    def twin(self) -> Recorder:
        """Another recorder of the same session, with the state that this one has read.

        It shares nothing that changes and references no listener, so that an agent that gets it cannot reach the engine through one.
        """
        twin = self.of_session(self.id)
        twin._state, twin._derived_ns = self._state, self._derived_ns
        twin.log = self.log.twin()
        return twin

    def of_session(self, id_: str) -> Recorder:
        """A recorder of another session of the store, which references no listener either."""
        return Recorder(self.store, id_, self.clock, _weak(self.emit), wait=self.wait)

    def read(self) -> SessionState:
        """The session's state as the log has it now.

        Raises:
            SessionNotFound: there is no such session.
            LogDamaged: the log is damaged in the middle.
            MetadataVersionUnsupported: it, or the record of a TypeScript store, is of a version this engine does not know.
        """
        if self._state is None or self._state.legacy:
            state = fold_log(self.log)
            self._state = self.store.load(self.id) if state is None else self._placed(state)
        elif events := self.log.refresh():
            self._state = self._fold(events, self._state)
        return self._state

    def _fold(self, events: Sequence[Event], state: SessionState | None) -> SessionState:
        return self._placed(fold(events, state))

    def _placed(self, state: SessionState) -> SessionState:
        if state.workspace is not self._located:  # hardly ever: this is run for each event
            self._located = self.store.located(state).workspace
        return state

    def append(self, type_: str, data: Mapping[str, Any], *, actor: Actor = "system", commit_point: bool = False) -> SessionState:
        """Store an event, fold it, call the listeners. The caller holds the lease; ``metadata.json`` is derived when it is released.

        Raises:
            AdapterUnavailable: it could not be stored; nothing happened.
            LogDamaged: it is illegal in this state of the session, or has a value that its type does not allow; nothing was stored.
        """
        now, actor = self.clock.now_ns(), actor_of_requester(self.store.root, actor)
        # An illegal event must not be stored: no reader would get past it.
        event = Event(0 if self._state is None else self._state.seq + 1, now - now % 1000, self.id, type_, actor, data)
        if type_ in OBSERVED:
            from pytest_gittrix.record.state.observations import observations_of

            observations_of([event])
        next_state = self._state and self._fold([event], self._state)
        self.require_unrevoked()
        event = self.last = self.log.append(type_, data, ts=now, actor=actor, commit_point=commit_point)
        others = self.log.refresh() if self.log.behind else []
        self._state = next_state if next_state is not None and not others else self._fold(others or [event], self._state)
        self._underived = self._underived or type_ not in _QUIET or now - self._derived_ns >= _DERIVE_EVERY_NS
        self.emit(event)
        return self._state

    def take_over(self, events: Sequence[Event]) -> list[Event]:
        """Store events of another session as this one's, with their times; listeners are not called. The caller holds the lease.

        Returns:
            The events as they are stored.

        Raises:
            AdapterUnavailable: they could not be stored; none is.
        """
        stored = self.log.append_all(events)
        if stored:
            self._state = self._fold(stored, self._state)
        return stored

    def with_activity(self, state: SessionState, on_step: Callable[[], object] = lambda: None) -> SessionState:
        """Count changes of files, and programs that ended, as use of the session; see ``unseen_activity``. The caller holds the lease."""
        observed = unseen_activity(state, self.clock, self.directory, on_step)
        return state if observed is None else self.append("session.activity", {"observed_ns": observed})

    def note_touched(self, state: SessionState, touched: Collection[str]) -> SessionState:
        """Store which paths a snapshot found touched, if the log does not say so already. The caller holds the lease."""
        now, known = {*touched}, {*state.touched}
        if now == known:
            return state
        added, gone = ([path_fields(path) for path in sorted(paths)] for paths in (now - known, known - now))
        return self.append("touched.seen", {"added": added, "gone": gone})

    def derive(self) -> None:
        """Write ``metadata.json`` from the state. It is derived, so a failure to write it is only reported."""
        if self._state is None:
            return
        self._derived_ns, self._underived = self.clock.now_ns(), False
        try:
            self.store.write_metadata(self.id, self._state)
        except GittrixError as problem:
            report_ignored(problem)

    @contextmanager
    def leased(self, *, wait: float | None = None) -> Iterator[SessionState]:
        """Hold the session's lease, with its state read under it; a torn end of the log is mended first.

        Args:
            wait: real seconds to wait for it; the recorder's own by default.

        Raises:
            EvictionRace: another operation held it for longer than ``wait``.
            SessionNotFound: there is no such session (and none is made).
            AdapterUnavailable: the system refused something in the block.
        """
        lease = self._lease if wait is None else self.store.lease(self.id, wait=wait)
        self._take(lease)
        try:
            with convert_os_errors():
                yield self._read_under_lease()
        finally:
            self._release(lease)

    @contextmanager
    def working(self, op: str, actor: Actor, *, marks: bool = True) -> Iterator[SessionState]:
        """As ``leased``, for an operation on a live session; using it slides the idle deadline.

        Args:
            op: the name of the operation, for the record.
            actor: who does it.
            marks: record the use, unless the last one was just now; False for an operation that stores an event in any case, or that only
                looks at the session.

        Raises:
            SessionExpired: the session has ended, or its TTL has passed and only the sweep is missing.
        """
        if self._state is not None and self._state.ended:
            with suppress(GittrixError):  # for the message, which says where its workspace is now
                self.read()
            require_live(self._state)
        lease = self._lease
        try:
            self._take(lease)
        except (AdapterUnavailable, EvictionRace):
            require_live(self.read())
            raise
        try:
            with convert_os_errors():
                state = self._read_under_lease()
                require_live(state)
                yield self._used(state, op, actor, marks=marks)
        finally:
            self._release(lease)

    def _take(self, lease: Lease) -> None:
        self.require_unrevoked()
        try:
            lease.acquire()
        except AdapterUnavailable:
            if not self.directory.is_dir():
                raise not_found(self.id, str(self.store.root)) from None
            raise

    def _release(self, lease: Lease) -> None:
        if self._underived:
            self.derive()
        if self._state is not None and self._state.ended:
            lease.remove()  # an ended session has no lock file
        lease.release()

    def _read_under_lease(self) -> SessionState:
        state = self.read()
        if self.log.torn and self.log.repair(ts=self.clock.now_ns()) is not None:
            self._state = state = self._fold(self.log.read(), None)
        if state.legacy:
            self._state = state = self.store.import_legacy(self.id, ts=self.clock.now_ns())
            self.log.refresh()
        return state

    def _used(self, state: SessionState, op: str, actor: Actor, *, marks: bool) -> SessionState:
        now, resolution = self.clock.now_ns(), self._resolution_ns
        if state.last_access_ns > now + resolution:
            # The clock was set back: idle time counts from now, or the session would outlive every TTL.
            state = self.append("session.accessed", {"op": op}, actor=actor)
        if is_past(state, self.clock):
            state = self.with_activity(state)
            if is_past(state, self.clock) and not outlasts_idle_time(state, self.clock, self.directory):
                require_in_time(state, self.clock)
        if marks and now - state.last_access_ns > resolution:
            state = self.append("session.accessed", {"op": op}, actor=actor)
        return state


class convert_os_errors:  # noqa: N801  (a block, as contextlib's are; a generator would cost more than the block)
    """Convert every OSError of the block into the engine's error.

    Raises:
        AdapterUnavailable: a disk is full, a directory is not writable.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(problem, OSError) and not isinstance(problem, GittrixError):  # some of ours are OSErrors too
            raise _refused(problem) from problem


@contextmanager
def settled_later(what: str, *, session: str | None = None) -> Iterator[None]:
    """Mark each error of a block as one of an operation that had begun, which a recovery finishes or undoes.

    Args:
        what: the operation, as the subject of a sentence.
        session: the id of the session that it makes.

    Raises:
        AdapterUnavailable: the system refused something.
        GittrixError: whatever the block raised; ``outcome`` is ``unknown``.
    """
    try:
        with convert_os_errors():
            yield
    except GittrixError as problem:
        made = f" If it is finished, session {session} has the workspace." if session is not None else ""
        problem.leave_open(
            f"{what} had begun: the next recovery finishes or undoes it, and nothing of the work is lost.{made}",
            "Fix the cause, then call recover() or `gittrix recover`, and check the session again.",
            session,
        )
        raise


def _refused(problem: OSError) -> AdapterUnavailable:
    return AdapterUnavailable(
        f"The system refused: {problem.strerror or problem}{f' ({problem.filename})' if problem.filename else ''}.",
        why="The operation stopped there. Events stored before this point are intact.",
        fix="Free disk space, or check the permissions of its files, then try again.",
    )


def require_in_time(state: SessionState, clock: Clock) -> None:
    """Refuse to work on a session past its deadline, whether a sweep has run since or not.

    Raises:
        SessionExpired: its deadline has passed.
    """
    if not is_past(state, clock):
        return
    raise SessionExpired(
        f"The TTL of session {state.id} has passed.",
        state="expired",
        why="The next sweep evicts it; until then it refuses every operation.",
        fix="Start a new session; its work will be in its archive.",
        opt_out=Advice(
            "Give sessions a longer TTL with EvictionPolicy(ttl_idle=...), or extend() them in time.",
            "Start sessions with a longer --ttl, or give them more time with `gittrix session extend`.",
        ),
    )


def not_found(id_: str, root: str) -> SessionNotFound:
    """The error for an id that is not in the store."""
    return SessionNotFound(f"There is no session {id_!r} in {root}.", fix="List them with `gittrix session list`.")


def require_live(state: SessionState) -> None:
    """Refuse to work on a session that has ended.

    Raises:
        SessionExpired: it has; ``.state`` says how.
    """
    if not state.ended:
        return
    what = {"promoted": "was promoted", "discarded": "was discarded", "expired": "has expired"}[state.state]
    if state.outcome == "handoff":
        what = "was handed on"
    if state.successor is not None:
        fix = f"Go on in session {state.successor}, its successor."
    elif state.kept_workspace is not None:
        fix = f"Start a new session; its workspace is kept in {state.kept_workspace}, where its files can be read until it is evicted."
    else:
        fix = "Start a new session; what was not promoted is in its archive, if there was anything."
    raise SessionExpired(f"Session {state.id} {what}.", state=state.state, why="A session that has ended does not change.", fix=fix)
