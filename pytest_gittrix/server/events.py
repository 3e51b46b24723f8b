"""What happens in the sessions of a store, as server-sent events: whoever writes it, this process or another.

One thread looks at the store for all who listen, and only while somebody does. It goes by the logs, so an event is told once it is stored,
and nothing that is stored is left out. It must not know HTTP beyond the lines of its stream.
"""

from __future__ import annotations

import asyncio
import json
import threading
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
"""Seconds without an event after which a comment is sent, so that both ends notice when the other is gone."""
BACKLOG: Final = 10_000
"""How many events a listener may be behind."""
HELD: Final = 64 << 20
"""How many bytes of events wait for a listener, before it is let go as one that is too far behind."""
LOOK: Final = 0.25
"""Seconds between two looks for what other processes wrote; what this engine writes is told at once."""

_TOO_SLOW: Final = {"code": "TOO_SLOW", "message": f"More than {BACKLOG} events or {HELD} bytes behind; what was missed is in the logs."}


def resumed(text: str | None) -> tuple[str, int] | None:
    """Read a ``Last-Event-ID``: the session and the number of the event that came last.

    Raises:
        InvalidInput: it is none that was given out.
    """
    if text is None:
        return None
    session, _, seq = text.rpartition(":")
    if not session or not (seq.isascii() and seq.isdigit() and len(seq) < 16):
        raise InvalidInput(f"{text!r} is no id of an event.", fix="Give it as it came: <session>:<seq>.")
    return session, int(seq)


class Listener:
    """One that listens: what it wants, and what waits for it."""

    def __init__(self, session: str | None, types: frozenset[str] | None) -> None:
        self._session = session
        self._types = types
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._held = 0
        self.over = False

    def wants(self, event: Event) -> bool:
        """Whether it asked for such an event."""
        return self._session in (None, event.stream) and (self._types is None or event.type in self._types)

    def tell(self, event: Event) -> None:
        """Let it have an event; from any thread."""
        if self.over:
            return
        if self._waiting.qsize() >= BACKLOG or self._held >= HELD:
            self.end(_message(_TOO_SLOW, name="error"))
            return
        self._put(_message(line_of(event), id_=f"{event.stream}:{event.seq}"))

    def end(self, last: bytes | None = None) -> None:
        """Let it have what there is, then ``last``, then no more."""
        self.over = True
        if last is not None:
            self._put(last)
        self._put(None)

    def _put(self, told: bytes | None) -> None:
        with suppress(RuntimeError):  # its loop was closed while it was told
            self._loop.call_soon_threadsafe(self._hold, told)

    def _hold(self, told: bytes | None) -> None:
        self._held += len(told or b"")
        self._waiting.put_nowait(told)

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of its stream, until it ends."""
        yield b": listening\n\n"
        while True:
            try:
                told = await asyncio.wait_for(self._waiting.get(), HEARTBEAT)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if told is None:
                return
            self._held -= len(told)
            yield told


class Feed:
    """Tells all who listen. Close it at the end.

    Args:
        engine: whose store is looked at.
        look: seconds between two looks.
    """

    def __init__(self, engine: GitTrix, *, look: float = LOOK) -> None:
        self._engine = engine
        self._store = engine.store
        self._look = look
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._seen: dict[str, Signature] = {}
        self._told: dict[str, int] = {}
        self._logs: dict[str, EventLog] = {}
        self._closed = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] = engine.on("*", lambda _event: self._wake.set())

    def listener(self, session: str | None, types: Iterable[str] | None) -> Listener:
        """One that is to listen, on the loop of who asks. Raises InvalidInput for a type of event that there is not."""
        return Listener(session, check_types(types))

    def subscribe(self, listener: Listener, after: tuple[str, int] | None = None) -> None:
        """Let it have what happens from now on, and before that what was stored in a session after an event. Not for an event loop.

        Raises:
            SessionNotFound, LogDamaged, AdapterUnavailable: that session cannot be read.
        """
        if after is not None:
            self._store.load(after[0])
        with self._lock:
            if self._closed:
                listener.end()
                return
            self._let_go()
            self._scan(begin=not self._listeners)
            if after is not None:
                self._tell_past(listener, *after)
            self._listeners.append(listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="gittrix-events", daemon=True)
                self._thread.start()
        self._wake.set()

    def _tell_past(self, listener: Listener, session: str, after: int) -> None:
        """What was stored until the look from which the listener goes on."""
        told = self._told.get(session, -1)
        for event in self._store.log(session).read():
            if after < event.seq <= told and listener.wants(event):
                listener.tell(event)

    def forget(self, listener: Listener) -> None:
        """It does not listen any more. It waits for nothing, since an event loop calls it; the next look takes it off the list."""
        listener.over = True
        self._wake.set()

    def _let_go(self) -> None:
        self._listeners = [listener for listener in self._listeners if not listener.over]

    def close(self) -> None:
        """End every stream, once it has what there was."""
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
            self._wake.wait(self._look if self._listeners else None)
            self._wake.clear()
            with self._lock:
                self._let_go()
                if self._listeners:
                    with suppress(Exception):  # a store that cannot be listed now is looked at again; nobody else would look
                        self._scan(begin=False)

    def _scan(self, *, begin: bool) -> None:
        """Tell what was stored since the last look; of the first look nothing, it only says where the next goes on."""
        now = signatures(self._store.root, self._seen)
        if begin:
            index = self._engine.records.index
            index.sync()
            self._logs, self._told = {}, {row.id: row.seq for row in index.rows()}
        else:
            for id_ in [id_ for id_, seen in now.items() if self._seen.get(id_) != seen]:
                with suppress(GittrixError):  # a damaged log; `gittrix session list` says so
                    self._tell_new(id_)
        self._seen = now

    def _tell_new(self, id_: str) -> None:
        log = self._logs.setdefault(id_, self._store.log(id_))
        for event in log.refresh():
            if event.seq <= self._told.get(id_, -1):
                continue
            self._told[id_] = event.seq
            for listener in self._listeners:
                if listener.wants(event):
                    listener.tell(event)


def _message(data: dict[str, Any], *, id_: str | None = None, name: str | None = None) -> bytes:
    lines = [f"id: {id_}" if id_ else "", f"event: {name}" if name else "", f"data: {json.dumps(data)}"]
    return ("\n".join(line for line in lines if line) + "\n\n").encode("ascii")
