"""The events of a store's sessions as server-sent events, whichever process stores them.

One thread reads the store for all listeners, and only while there are any. It reads the logs, so an event is sent only once it is stored,
and every stored event is sent (rule 10, docs/explanation/rules.md).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.engine.event_stream import line_of
from pytest_gittrix.engine.operations.conversation import check_types
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.store.listing import Signature, signatures

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix

HEARTBEAT: Final = 15.0
"""Seconds without an event after which a comment is sent, so that each end notices when the other is gone."""
MAX_EVENTS: Final = 10_000
"""How many events may wait for a listener; beyond that its stream is ended after them."""
MAX_BYTES: Final = 64 << 20
"""How many bytes of events may wait for all listeners together."""
SCAN_INTERVAL: Final = 0.25
"""Seconds between two scans for events that other processes stored; those of this engine are sent at once."""

_TOO_SLOW: Final = {
    "code": "TOO_SLOW",
    "message": f"More than {MAX_EVENTS} events behind, or the slowest of all that listen when {MAX_BYTES} bytes wait for them; "
    "what was missed is in the logs.",
}


def resumed(text: str | None) -> tuple[str, int] | None:
    """Read a ``Last-Event-ID``: the session and the number of the last event that was received.

    Raises:
        InvalidInput: it is no such id.
    """
    if text is None:
        return None
    session, _, seq = text.rpartition(":")
    if not session or not (seq.isascii() and seq.isdigit() and len(seq) < 16):
        raise InvalidInput(f"{text!r} is no id of an event.", fix="Give it as it came: <session>:<seq>.")
    return session, int(seq)


class Backlog:
    """What waits for all listeners of a feed together. It counts a listener, also one whose stream is to end, until that has left.

    Attributes:
        size: how many bytes wait.
    """

    def __init__(self) -> None:
        self.size = 0
        self.lock = threading.Lock()
        self._listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        """Count what waits for a listener, too."""
        with self.lock:
            self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        """Count a listener no more. The caller holds the lock."""
        with suppress(ValueError):
            self._listeners.remove(listener)

    def make_room(self, size: int, wanting: Listener) -> bool:
        """Drop those that more waits for than for ``wanting``, until so many more bytes can wait for it. The caller holds the lock.

        Returns:
            Whether they can; not if it is the slowest itself.
        """
        while self.size + size > MAX_BYTES:
            slowest = max(self._listeners, key=lambda listener: listener.size)
            if slowest.size <= wanting.size:
                return False
            slowest.drop()
        return True


class Listener:
    """One client of the feed: which events it wants, and the messages that wait for it.

    Attributes:
        size: how many bytes wait for it.
        ended: whether it gets no more events.
    """

    def __init__(self, session: str | None, types: frozenset[str] | None, backlog: Backlog) -> None:
        self._session = session
        self._types = types
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._backlog = backlog
        self._waiting: deque[bytes] = deque()
        self._last: bytes | None = None
        self.size = 0
        self.ended = False
        backlog.add(self)

    def wants(self, event: Event) -> bool:
        """Whether the listener asked for such an event."""
        return self._session in (None, event.stream) and (self._types is None or event.type in self._types)

    def send(self, message: bytes) -> None:
        """Have a message wait for the listener, or end its stream with ``TOO_SLOW`` after those that wait; from any thread."""
        with self._backlog.lock:
            if self.ended:
                return
            if len(self._waiting) >= MAX_EVENTS or not self._backlog.make_room(len(message), self):
                self._end_slow()
                return
            self._waiting.append(message)
            self._count(len(message))
            self._wake()

    def drop(self) -> None:
        """End the stream with ``TOO_SLOW`` in place of what waits. The caller holds the backlog's lock."""
        self._clear()
        self._end_slow()

    def _end_slow(self) -> None:
        self._last = _message(_TOO_SLOW, name="error")
        self._finish()

    def end(self) -> None:
        """End the stream after the messages that wait."""
        with self._backlog.lock:
            self._finish()

    def leave(self) -> None:
        """Free what waits for a client that has gone."""
        with self._backlog.lock:
            self._clear()
            self._finish()
            self._backlog.remove(self)

    def _finish(self) -> None:
        self.ended = True
        self._wake()

    def _clear(self) -> None:
        self._waiting.clear()
        self._count(-self.size)

    def _count(self, size: int) -> None:
        self.size += size
        self._backlog.size += size

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the listener's loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _next(self) -> bytes | None:
        with self._backlog.lock:
            self._arrived.clear()
            if not self._waiting:
                last, self._last = self._last, None
                return last
            message = self._waiting.popleft()
            self._count(-len(message))
            return message

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the stream, until it ends."""
        yield b": listening\n\n"
        while True:
            ended = self.ended  # before a look at what waits: nothing is added after the end
            if (message := self._next()) is not None:
                yield message
                continue
            if ended:
                return
            try:
                await asyncio.wait_for(self._arrived.wait(), HEARTBEAT)
            except TimeoutError:
                yield b": still here\n\n"


class Feed:
    """Sends a store's events to all listeners. Close it at the end.

    Args:
        engine: the engine whose store is read.
        interval: seconds between two scans.
    """

    def __init__(self, engine: GitTrix, *, interval: float = SCAN_INTERVAL) -> None:
        self._engine = engine
        self._store = engine.store
        self._interval = interval
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._signatures: dict[str, Signature] = {}
        self._sent: dict[str, int] = {}
        self._logs: dict[str, EventLog] = {}
        self._backlog = Backlog()
        self._closed = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] = engine.on("*", lambda _event: self._wake.set())

    def listener(self, session: str | None, types: Iterable[str] | None) -> Listener:
        """Make a listener on the caller's event loop. Raises InvalidInput for an unknown type of event."""
        return Listener(session, check_types(types), self._backlog)

    def subscribe(self, listener: Listener, after: tuple[str, int] | None = None) -> None:
        """Send a listener the events from now on, and first those of a session after an event. It blocks, so not for an event loop.

        Args:
            listener: the listener.
            after: a session and the number of an event of it; the later stored events are sent first.

        Raises:
            SessionNotFound, LogDamaged, AdapterUnavailable: that session cannot be read.
        """
        if after is not None:
            self._store.load(after[0])
        with self._lock:
            if self._closed:
                listener.end()
                return
            self._drop_ended()
            self._scan(begin=not self._listeners)
            if after is not None:
                self._send_stored(listener, *after)
            self._listeners.append(listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="gittrix-events", daemon=True)
                self._thread.start()
        self._wake.set()

    def _send_stored(self, listener: Listener, session: str, after: int) -> None:
        """Send what was stored up to the last scan; the next scan goes on from there."""
        last = self._sent.get(session, -1)
        for event in self._store.log(session).read():
            if after < event.seq <= last and listener.wants(event):
                listener.send(_event_message(event))

    def forget(self, listener: Listener) -> None:
        """Remove a listener that has gone. An event loop calls this, so it does not wait: the next scan drops the listener."""
        listener.leave()
        self._wake.set()

    def _drop_ended(self) -> None:
        self._listeners = [listener for listener in self._listeners if not listener.ended]

    def close(self) -> None:
        """End every stream, after the events that are stored by now."""
        self._unsubscribe()
        with self._lock:
            self._closed = True
            if self._listeners:
                with suppress(GittrixError):
                    self._scan(begin=False)
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.end()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed:
            self._wake.wait(self._interval if self._listeners else None)
            self._wake.clear()
            with self._lock:
                self._drop_ended()
                if self._listeners:
                    with suppress(Exception):  # a store that cannot be listed now is scanned again; this thread must go on
                        self._scan(begin=False)

    def _scan(self, *, begin: bool) -> None:
        """Send the events that were stored since the last scan; the first scan (``begin``) sends none, and notes where the next begins."""
        now = signatures(self._store.root, self._signatures)
        if begin:
            index = self._engine.records.index
            index.sync()
            self._logs, self._sent = {}, {row.id: row.seq for row in index.rows()}
        else:
            for id_ in [id_ for id_, signature in now.items() if self._signatures.get(id_) != signature]:
                with suppress(GittrixError):  # a damaged log; `gittrix session list` says so
                    self._send_new(id_)
        self._signatures = now

    def _send_new(self, id_: str) -> None:
        log = self._logs.setdefault(id_, self._store.log(id_))
        for event in log.refresh():
            if event.seq <= self._sent.get(id_, -1):
                continue
            self._sent[id_] = event.seq
            wanting = [listener for listener in self._listeners if listener.wants(event)]
            message = _event_message(event) if wanting else b""  # one for all
            for listener in wanting:
                listener.send(message)


def _event_message(event: Event) -> bytes:
    return _message(line_of(event), id_=f"{event.stream}:{event.seq}")


def _message(data: dict[str, Any], *, id_: str | None = None, name: str | None = None) -> bytes:
    lines = [f"id: {id_}" if id_ else "", f"event: {name}" if name else "", f"data: {json.dumps(data)}"]
    return ("\n".join(line for line in lines if line) + "\n\n").encode("ascii")
