"""The events of an engine's sessions, as they happen, for programs that listen on a Unix socket (Gas Town, phase 3).

A listener connects, writes one line with its request (``{}`` for everything), and then reads one JSON object a line. Earlier events are in
the logs. A listener that does not keep up gets an error and is disconnected, since the engine waits for no listener. The permissions of the
socket's directory decide who may connect.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from pytest_gittrix.durations import format_instant, instant_at
from pytest_gittrix.engine.operations.conversation import check_types
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput
from pytest_gittrix.record.eventlog.events import Event

PATIENCE: Final = 5.0
"""Seconds that a listener has to send its request."""

_LONGEST: Final = 100  # bytes that the system takes for a socket's path, with some to spare
_LARGEST: Final = 1 << 16
_KEYS: Final = ("session", "types")

Subscribe = Callable[[Callable[[Event], object]], Callable[[], None]]


def line_of(event: Event) -> dict[str, Any]:
    """An event as listeners get it; ``seq`` is null for one that is only announced."""
    return {
        "session": event.stream,
        "seq": event.seq if event.seq >= 0 else None,
        "ts": format_instant(instant_at(event.ts)),
        "type": event.type,
        "actor": event.actor,
        "data": dict(event.data),
    }


class EventStream:
    """A socket that sends events to its listeners. Use it as a context manager, or ``close`` it.

    Args:
        subscribe: subscribes a function to every event; returns a function that ends the subscription.
        path: of the socket; one whose engine is gone is replaced.
        backlog: how many events a listener may be behind.

    Raises:
        AdapterUnavailable: another engine uses that socket, or the system refused.
        InvalidInput: the path is too long for a socket.
    """

    def __init__(self, subscribe: Subscribe, path: str | os.PathLike[str], *, backlog: int = 10_000) -> None:
        self.path = Path(path)
        self._backlog = backlog
        self._listeners: set[_Listener] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._socket = _bound(self.path)
        self._unsubscribe = subscribe(self._send)
        threading.Thread(target=self._accept, name="gittrix-stream", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect every listener, once it has the events up to now, and remove the socket. Closing again does nothing."""
        self._unsubscribe()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            self._closed = True
            listeners, self._listeners = self._listeners, set()
        for listener in listeners:
            listener.put(None)
        for listener in listeners:
            listener.thread.join(PATIENCE)
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _send(self, event: Event) -> None:
        with self._lock:
            for listener in tuple(self._listeners):
                if not listener.wants(event):
                    continue
                if listener.behind >= self._backlog:
                    self._listeners.discard(listener)
                    listener.put(
                        {"error": "TOO_SLOW", "message": f"More than {self._backlog} events behind; the missed events are in the logs."}
                    )
                    listener.put(None)
                    continue
                listener.put(line_of(event))

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="gittrix-listener", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(PATIENCE)
            try:
                listener = _Listener(_request(connection))
            except GittrixError as problem:
                connection.sendall(_line({"error": problem.code, "message": problem.fact}))
                return
            listener.put({"listening": True})
            with self._lock:
                if self._closed:
                    return
                self._listeners.add(listener)
            try:
                for message in listener.messages():
                    connection.sendall(_line(message))
            finally:
                with self._lock:
                    self._listeners.discard(listener)


class _Listener:
    """One listener.

    Attributes:
        thread: the thread that serves it.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._session = request.get("session")
        self._types = check_types(request.get("types"))
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.thread = threading.current_thread()

    @property
    def behind(self) -> int:
        return self._queue.qsize()

    def wants(self, event: Event) -> bool:
        return self._session in (None, event.stream) and (self._types is None or event.type in self._types)

    def put(self, message: dict[str, Any] | None) -> None:
        self._queue.put(message)

    def messages(self) -> Iterator[dict[str, Any]]:
        while (message := self._queue.get()) is not None:
            yield message


def follow(path: str | os.PathLike[str], *, session: str | None = None, types: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Listen to an engine: the events from now on, until it closes its stream.

    Args:
        path: of the socket.
        session: only events of this session.
        types: only events of these types.

    Raises:
        AdapterUnavailable: no engine uses that socket.
        InvalidInput: there is no such type, or the engine disconnected this listener because it was too slow.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.fspath(path))
    except OSError as problem:
        connection.close()
        raise AdapterUnavailable(
            f"No engine listens at {path}: {problem.strerror}.", fix="Call stream() with this path in the engine's process."
        ) from problem
    request = {name: value for name, value in (("session", session), ("types", types)) if value is not None}
    connection.sendall(_line(request))
    messages = _received(connection)
    next(messages, None)  # the engine has subscribed this listener now
    return messages


def _received(connection: socket.socket) -> Iterator[dict[str, Any]]:
    with connection, connection.makefile("rb") as file:
        for line in file:
            message = json.loads(line)
            if "error" in message:
                raise InvalidInput(f"The engine refused the listener: {message['message']}")
            yield message


def _request(connection: socket.socket) -> dict[str, Any]:
    """A listener's request. Raises InvalidInput if it is malformed."""
    raw = b""
    while not raw.endswith(b"\n") and len(raw) < _LARGEST and (piece := connection.recv(4096)):
        raw += piece
    try:
        request = json.loads(raw)
    except ValueError:
        request = None
    if not isinstance(request, dict) or any(name not in _KEYS for name in request) or not isinstance(request.get("types") or [], list):
        raise InvalidInput(f"The request is not one line of JSON with any of {', '.join(_KEYS)}.")
    return request


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def _bound(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST:
        raise InvalidInput(
            f"{path} is too long for a socket.",
            why=f"The system takes {_LONGEST} bytes.",
            fix="Put it into a directory with a shorter name.",
        )
    server = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()
        server.bind(os.fspath(path))
        os.chmod(path, 0o600)
        server.listen()
    except OSError as problem:
        server.close()
        raise AdapterUnavailable(
            f"The socket {path} cannot be made: {problem.strerror}.",
            fix="Check that its directory exists and is writable, and that no other program listens at that path.",
        ) from problem
    return server


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
