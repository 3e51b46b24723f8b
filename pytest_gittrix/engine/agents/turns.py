"""Turns: the agent's code, run so that it can be ended at any moment without harm to its session (Pixir).

The guarantee depends on where a turn runs. In a ``process`` (the default) it is ended for certain, with every process it started, even in a
system call or with signals ignored. In a ``thread`` it is asked to end, and can do nothing to the session from then on; Python cannot do
more to a thread. A ``task`` is run by the caller, who begins and ends it; it is interrupted as a thread is. A session has one turn at a
time, in whichever process. See docs/explanation/you-know-pixir.md.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal

from pytest_gittrix import points
from pytest_gittrix.engine.agents.context_pressure import Pressure
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.engine.agents.turn_log import Status, checkpoint, claim, end_lost, record_end, record_start, release
from pytest_gittrix.engine.agents.turn_messages import SILENT, ask_engine, follow_engine, receive
from pytest_gittrix.engine.operations.conversation import close_orphans
from pytest_gittrix.engine.operations.recorder import Listener, Recorder
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, TurnOver
from pytest_gittrix.git.environment import local_variables
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.os_level.process_tree import end_tree, lead
from pytest_gittrix.record.eventlog.events import Event, live_event
from pytest_gittrix.record.eventlog.log import report_ignored
from pytest_gittrix.record.eventlog.vocabulary import ROLE
from pytest_gittrix.record.store.store import TURN

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pytest_gittrix.engine.agents.agent_session import AgentSession

Runs = Literal["process", "thread", "task"]

RUNS: Final[tuple[Runs, ...]] = ("process", "thread")
"""Where the engine runs the function of a turn."""
_LONGEST_BEGINNING: Final = 60.0
"""Real seconds that an interrupt waits for a turn that another thread is just beginning."""


@dataclass(frozen=True)
class TurnContext:
    """A turn as its code has it: the argument of a turn's function, and the result of ``begin_turn``.

    Attributes:
        session: the session, as its agent has it.
        turn: the turn's name.
        role: the role of the agent, as the caller that started the turn gave it.
        fork_root_session_id: the first ancestor by forks; the session itself if it was not forked.
        cancelled: set once the turn is to end; a turn in a process is killed instead.
    """

    session: AgentSession
    turn: str
    role: str
    fork_root_session_id: str
    cancelled: threading.Event

    _warn: Callable[[int | None, str], str]

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.session.id

    @property
    def workspace(self) -> Path | None:
        """The directory of its files; None where the kind of workspace has none."""
        return self.session.workspace_path

    def record(self, type: str, data: dict[str, Any]) -> Event:
        """Store an event of the conversation; see ``AgentSession.record``."""
        return self.session.record(type, data)

    def emit(self, type: str, data: dict[str, Any]) -> None:
        """Announce an event without storing it; see ``AgentSession.emit``."""
        self.session.emit(type, data)

    def register_pressure_warning(self, checkpoint_to_seq: int | None, tier: str) -> str:
        """Whether to warn; see ``UserSession.register_pressure_warning``. Remembered for all turns of the session."""
        return self._warn(checkpoint_to_seq, tier)


TurnFunction = Callable[[TurnContext], Any]
AwaitEnd = Callable[[], object]
"""Returns when a turn is over, with its value and error in the turn."""


@dataclass(eq=False)
class Turn:
    """A turn that was started.

    Attributes:
        ref: its name, as the log has it.
        runs: in a process or a thread, or as a task of the caller.
        status: running, or how it ended.
        value: the result of its function, if it is done.
        error: the exception of its function, as text.
    """

    ref: str
    runs: Runs
    status: Status = "running"
    value: Any = None
    error: str | None = None
    _over: threading.Event = field(default_factory=threading.Event, repr=False)
    _interrupted: bool = field(default=False, repr=False)
    _kill: Callable[[], None] = field(default=lambda: None, repr=False)
    _finish: Callable[[Any, str | None], None] = field(default=lambda _value, _error: None, repr=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for ``timeout`` real seconds until it is over and recorded; returns whether it is."""
        return self._over.wait(timeout)


class Turns:
    """The turns that one engine runs. Safe to use from several threads. The end of a session ends its turn.

    Args:
        on: subscribes a listener to the stored events of a name, as ``GitTrix.on``.

    Attributes:
        pressure: the warnings that were given in its sessions.
    """

    def __init__(self, on: Callable[[str, Listener], Callable[[], None]]) -> None:
        self.pressure = Pressure()
        self._on: Callable[[str, Listener], object] | None = on
        self._running: dict[str, Turn] = {}
        self._beginning: dict[str, tuple[int, threading.Event]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def running(self, id_: str) -> Turn | None:
        """The turn of a session that this engine runs, if it does."""
        return self._running.get(id_)

    def is_running(self, recorder: Recorder) -> bool:
        """Whether a turn of a session runs, in whichever process."""
        return recorder.id in self._running or Lease(recorder.directory / TURN).state() != "available"

    def start(self, recorder: Recorder, agent: AgentSession, fn: TurnFunction, *, runs: str, role: str | None) -> Turn:
        """Start a turn; ``UserSession.start_turn`` says how, and what is raised.

        Args:
            recorder: of the session; from here on used by the turn alone.
            agent: the session as its agent has it, for the function.
            fn: a function or coroutine function of the context.
            runs: ``process`` or ``thread``.
            role: for the context.
        """
        if runs not in RUNS:
            raise InvalidInput(f"A turn cannot run in {runs!r}.", fix=f"Use one of: {', '.join(RUNS)}.")
        run = _in_process if runs == "process" else _in_thread
        turn, _ = self._begin(recorder, agent, lambda turn, context: run(turn, context, fn, recorder.emit), runs=runs, role=role)
        return turn

    def begin(self, recorder: Recorder, agent: AgentSession, *, role: str | None) -> TurnContext:
        """Begin a turn that the caller runs; ``UserSession.begin_turn`` says how, and what is raised. Arguments as for ``start``."""
        _, context = self._begin(recorder, agent, _until_finished, runs="task", role=role)
        return context

    def end(self, id_: str, context: TurnContext, error: str | None) -> None:
        """End a turn of a session that was begun with ``begin``; ``UserSession.end_turn`` says what is raised."""
        recorder = parts_of(context.session).recorder
        recorder.require_unrevoked()
        turn = self._running.get(id_)
        if turn is None or turn.runs != "task" or (context.session_id, context.turn) != (id_, turn.ref):
            raise InvalidInput(
                f"Turn {context.turn} of session {context.session_id} is none that end_turn() of session {id_} ends.",
                why="The turn of a function ends when the function does.",
                fix="Pass what begin_turn() of this session returned.",
            )
        turn._finish(None, error)
        turn.wait()
        if turn.status == "interrupted":
            raise _over(context, "was interrupted")
        recorder.revoke(lambda: _over(context, "is over"))

    def _begin(
        self, recorder: Recorder, agent: AgentSession, begin: Callable[[Turn, TurnContext], AwaitEnd], *, runs: str, role: str | None
    ) -> tuple[Turn, TurnContext]:
        if self._closed:
            raise AdapterUnavailable(
                "The engine was closed.", why="Nothing would end the turn.", fix="Start turns before close(), or open another engine."
            )
        begun = threading.Event()
        lease = self._claim(recorder, begun)
        self._subscribe_to_ends()
        try:
            with recorder.working("turn", "agent", marks=False) as state:
                state = end_lost(recorder, state, "before_start_turn")
                state = checkpoint(recorder, state, agent)
                turn = Turn(record_start(recorder, state, runs), runs)  # type: ignore[arg-type]
            warn = partial(self.pressure.register, recorder.id)
            role = role if role is not None else state.identity.get("role", ROLE)
            context = TurnContext(agent, turn.ref, role, state.root, threading.Event(), warn)
            with self._lock:  # so that no caller interrupts a turn that cannot be ended yet
                await_end = begin(turn, context)
                self._running[recorder.id] = turn
        except BaseException:
            self._running.pop(recorder.id, None)
            lease.release()
            raise
        finally:
            self._beginning.pop(recorder.id, None)
            begun.set()

        def supervise() -> None:
            try:
                await_end()
            finally:
                self._end(recorder, agent, turn, lease)

        threading.Thread(target=supervise, name=f"gittrix-turn-{recorder.id}", daemon=True).start()
        return turn, context

    def interrupt(self, recorder: Recorder) -> bool:
        """End a session's turn, if this engine runs one, and answer its open calls; whether there was one."""
        with self._lock:
            thread, begun = self._beginning.get(recorder.id, (0, None))
        if begun is not None and thread != threading.get_ident():
            begun.wait(_LONGEST_BEGINNING)
        with self._lock:
            turn = self._running.get(recorder.id)
        if turn is None:
            # Only while no other process runs a turn, which answers its own calls.
            with self.pausing(recorder), recorder.working("interrupt", "human", marks=False) as state:
                end_lost(recorder, state, "interrupt_no_turn")
            return False
        turn._interrupted = True
        turn._kill()
        turn.wait()
        return True

    @contextmanager
    def pausing(self, recorder: Recorder) -> Iterator[None]:
        """Let no turn of a session start while the block runs.

        Raises:
            TurnBusy: one is running.
        """
        lease = self._claim(recorder)
        try:
            yield
        finally:
            release(lease)

    def close(self) -> None:
        """Interrupt every turn, and start none any more."""
        self._closed = True
        for turn in [*self._running.values()]:
            turn._interrupted = True
            turn._kill()
            turn.wait()

    def _subscribe_to_ends(self) -> None:
        on, self._on = self._on, None
        if on is not None:
            on("session.ended", self._drop)
            on("promote.done", self._drop)

    def _drop(self, event: Event) -> None:
        """End the turn of a session that has ended. The caller holds the lease, so the turn's end is recorded later."""
        turn = self._running.get(event.stream)
        if turn is not None:
            turn._interrupted = True
            turn._kill()

    def _claim(self, recorder: Recorder, begun: threading.Event | None = None) -> Lease:
        """Take the right to run a turn, and where that is about to begin, note by whom and what is set when it has begun."""
        with self._lock:
            lease = claim(recorder)
            if begun is not None:
                self._beginning[recorder.id] = (threading.get_ident(), begun)
            return lease

    def _end(self, recorder: Recorder, agent: AgentSession, turn: Turn, lease: Lease) -> None:
        """Record how a turn ended. If that cannot be stored, the turn stays open, and the next start records it as lost."""
        status: Status = "interrupted" if turn._interrupted else "failed" if turn.error is not None else "done"
        try:
            with recorder.leased() as state:
                if not state.ended:
                    state = checkpoint(recorder, state, agent)
                if state.turn == turn.ref:
                    state = record_end(recorder, turn.ref, status, turn.error)
                if status == "interrupted" and not state.ended:
                    close_orphans(recorder, state, "interrupt")
        except (GittrixError, OSError) as problem:
            report_ignored(problem)
        finally:
            turn.status = status
            self._running.pop(recorder.id, None)
            release(lease)
            if status == "interrupted":
                now = recorder.clock.now_ns()
                recorder.emit(live_event("status", {"status": "interrupted"}, ts=now, stream=recorder.id))
            turn._over.set()


def call(fn: TurnFunction, context: TurnContext) -> Any:
    """Run a turn's function to its end, a coroutine function on a new event loop."""
    result = fn(context)
    if not inspect.isawaitable(result):
        return result
    import asyncio  # 15 ms, which few turns need

    return asyncio.run(_awaited(result))


async def _awaited(result: Any) -> Any:
    return await result


# In a process ------------------------------------------------------------------------------------------------------------------


def _in_process(turn: Turn, context: TurnContext, fn: TurnFunction, emit: Callable[[Event], None]) -> AwaitEnd:
    from multiprocessing import Pipe

    from pytest_gittrix.os_level.forks import fork

    messages, send = Pipe(duplex=False)
    engine, answers = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = fork()
    if pid == 0:
        messages.close()
        answers.close()
        _child(context, fn, send, engine)
    send.close()
    engine.close()
    turn._kill = lambda: end_tree(pid)
    points.reached("turn:forked")

    def await_end() -> None:
        try:
            turn.value, turn.error = receive(messages, emit, lambda warning: answers.send(context.register_pressure_warning(*warning)))
        finally:
            end_tree(pid)
            _, status = os.waitpid(pid, 0)
            answers.close()
            messages.close()
        if turn.error == SILENT:
            turn.error = f"its process ended with {os.waitstatus_to_exitcode(status)}"

    return await_end


def _child(context: TurnContext, fn: TurnFunction, messages: Connection, engine: Connection) -> None:
    """The turn's process. It ends by being killed, so that no process that it started is left without its parent."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        lead()
        answers: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=follow_engine, args=(engine, answers), daemon=True).start()
        sending = threading.Lock()

        def send(kind: str, content: Any) -> None:
            with sending:
                messages.send((kind, content))

        parts_of(context.session).recorder.emit = partial(send, "event")
        context = replace(context, _warn=partial(ask_engine, send, answers))
        for name in local_variables(os.environ):
            del os.environ[name]
        os.environ.update(context.session.environment({}))
        try:
            outcome: tuple[str, Any] = ("done", call(fn, context))
        except BaseException as problem:  # noqa: BLE001  (whatever it is, it ends this turn and nothing else)
            outcome = ("failed", f"{type(problem).__name__}: {problem}")
        try:
            send(*outcome)
        except Exception as problem:  # noqa: BLE001
            send("failed", f"what it returned cannot be sent: {problem}")
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pause()
    finally:
        os._exit(1)


# In a thread, or as a task -----------------------------------------------------------------------------------------------------


def _in_thread(turn: Turn, context: TurnContext, fn: TurnFunction, _emit: Callable[[Event], None]) -> AwaitEnd:
    await_end = _until_finished(turn, context)

    def body() -> None:
        try:
            value, error = call(fn, context), None
        except BaseException as problem:  # noqa: BLE001
            value, error = None, f"{type(problem).__name__}: {problem}"
        turn._finish(value, error)

    threading.Thread(target=body, name=f"gittrix-turn-body-{context.session_id}", daemon=True).start()
    return await_end


def _until_finished(turn: Turn, context: TurnContext) -> AwaitEnd:
    """Have a turn last until its code says that it is finished, or until it is interrupted."""
    ended = threading.Event()

    def finish(value: Any, error: str | None) -> None:
        if not context.cancelled.is_set():
            turn.value, turn.error = value, error
        ended.set()

    def stop() -> None:
        context.cancelled.set()
        parts_of(context.session).recorder.revoke(lambda: _over(context, "was interrupted"))
        ended.set()

    turn._finish, turn._kill = finish, stop
    return ended.wait


def _over(context: TurnContext, how: str) -> TurnOver:
    return TurnOver(
        f"Turn {context.turn} of session {context.session_id} {how}.",
        why="Its calls have been answered, or another turn has begun; what comes later would contradict that.",
        fix="Look at context.cancelled, and return; or begin another turn.",
    )
