"""Connections to a server on this machine's loopback, each with a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_END_SECONDS: Final = 5.0


class LoopbackListener:
    """A socket on the loopback that serves from now on.

    Args:
        serve: serves one connection, until it is over.
    """

    def __init__(self, serve: Callable[[socket.socket, Any], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._socket.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, name="gittrix-model", daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        """Take no more connections, and end those that are open."""
        _shut(self._socket)
        with self._lock:
            connections = [*self._connections]
        for connection in connections:
            _shut(connection)

    def join(self) -> None:
        """Wait until nothing is served any more."""
        with self._lock:
            serving = [*self._connections.values()]
        for thread in [self._accepting, *serving]:
            if thread is not threading.current_thread():
                thread.join(_END_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._attend, args=(connection, address), name="gittrix-model-client", daemon=True)
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _attend(self, connection: socket.socket, address: Any) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._serve(connection, address)
        except OSError:
            return  # the client is gone
        finally:
            with self._lock:
                self._connections.pop(connection, None)
            _shut(connection)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
