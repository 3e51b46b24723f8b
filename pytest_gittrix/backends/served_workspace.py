"""Requests for a workspace at a server over HTTP, each with a limit of time for its whole answer (docs/reference/http.md)."""

from __future__ import annotations

import http.client
import io
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, urlsplit

from pytest_gittrix.errors import AdapterUnavailable, AuthFailed

_SUCCESSES: Final = frozenset({200, 201, 204, 304})
_MOST_BYTES: Final = 1 << 20
_PASSING: Final = frozenset({408, 429})


class ServerAnswer(NamedTuple):
    """An answer of the server: its status, the tag of all files, and the body, or None for one that is too large."""

    status: int
    tag: str
    body: bytes | None


class ServerRefusal(AdapterUnavailable):
    """The server refused a request."""

    status = 200

    @property
    def is_passing(self) -> bool:
        """Whether the same request may be done later."""
        return self.status >= 500 or self.status in _PASSING


class _UntilDeadline(io.RawIOBase):
    """The stream of what a socket receives until a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._socket, self._deadline = connection, deadline
        self._raw = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As of every raw stream. Raises TimeoutError at the deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        return self._raw.readinto(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """The stream itself, as ``http.client`` asks a socket for it."""
        return io.BufferedReader(self)

    def close(self) -> None:
        """Let go of the socket."""
        self._raw.close()
        super().close()


@dataclass(frozen=True)
class ServedWorkspace:
    """One workspace at a server, with the requests for it."""

    url: str
    token: str | None = field(repr=False)
    timeout: float
    _mine: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    @contextmanager
    def connected(self) -> Iterator[http.client.HTTPConnection]:
        """One connection for all requests of this thread in a block."""
        held: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if held is not None:
            yield held
            return
        parts = urlsplit(self.url)
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        with closing(make(parts.netloc, timeout=self.timeout)) as connection:
            self._mine.connection = connection
            try:
                yield connection
            finally:
                self._mine.connection = None

    def request(
        self,
        method: str,
        below: str = "",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        most: int = _MOST_BYTES,
    ) -> ServerAnswer:
        """Send a request, and read at most ``most`` bytes of the answer.

        Raises:
            AuthFailed: it refused the token.
            AdapterUnavailable: it cannot be reached, or did not do what it was asked.
        """
        with self.connected() as connection:
            is_used = connection.sock is not None
            try:
                try:
                    answer = self._exchange(connection, method, below, body, headers, most)
                except (ConnectionError, http.client.RemoteDisconnected):
                    if not is_used:
                        raise
                    connection.close()  # the server closed it since the last request; to repeat this one does no harm
                    answer = self._exchange(connection, method, below, body, headers, most)
            except (OSError, http.client.HTTPException) as problem:
                connection.close()
                raise AdapterUnavailable(
                    f"{self.url} cannot be reached: {problem or type(problem).__name__}.",
                    why="The session's files are at the server; what it did not confirm may not be stored.",
                    fix="Try again when the server answers. Everything that it confirmed is stored.",
                ) from problem
        if answer.status in (401, 403):
            raise AuthFailed(f"{self.url} refused the token.", fix="Give RemoteEphemeral(token=...) the server's token.")
        if answer.status not in _SUCCESSES:
            refused = ServerRefusal(
                f"{self.url} answered {method} with status {answer.status}: {(answer.body or b'')[:200].decode(errors='replace')!r}.",
                why="The session's files are at the server, which refused the request.",
                fix="Fix the server, then try again.",
            )
            refused.status = answer.status
            raise refused
        return answer

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        below: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        most: int,
    ) -> ServerAnswer:
        sent = {**({"Authorization": f"Bearer {self.token}"} if self.token is not None else {}), **(headers or {})}
        if connection.sock is not None:
            connection.sock.settimeout(self.timeout)
        connection.request(method, f"{urlsplit(self.url).path}{below}", body, sent)
        deadline = time.monotonic() + self.timeout

        def in_time(received: Any, **options: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(cast("socket.socket", _UntilDeadline(received, deadline)), **options)

        connection.response_class = cast("type[http.client.HTTPResponse]", in_time)
        with connection.getresponse() as response:
            data = response.read(most + 1)
            if len(data) <= most:
                return ServerAnswer(response.status, response.headers.get("ETag", ""), data)
        connection.close()  # the rest of the answer is still on its way
        return ServerAnswer(response.status, response.headers.get("ETag", ""), None)

    def file(self, path: str) -> str:
        """The address of a file, below that of the workspace."""
        return f"/files/{quote(os.fsencode(path))}"
