"""The command line's client of a daemon: two requests over one connection, with nothing but the standard library.

Its errors distinguish a daemon that never got the command (``Silent``: it can run elsewhere) from one that may have run it (``Lost``).
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Sequence
from typing import Any, Final

from pytest_gittrix.server.daemon_file import DaemonFile

PATIENCE: Final = 1.0
"""Seconds within which a daemon has to answer a greeting."""

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Silent(Exception):
    """The daemon did not answer, and has received no command."""


class Lost(Exception):
    """The daemon received a command, and its result did not come back."""


class Refused(Exception):
    """The daemon refused to run the command."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message.partition("\n")[0])
        self.code = code


class Client:
    """A connection to a daemon.

    Args:
        daemon: the contents of the daemon's file.
        patience: seconds within which it has to answer a greeting.
    """

    def __init__(self, daemon: DaemonFile, *, patience: float = PATIENCE) -> None:
        self._daemon = daemon
        host = _EVERYWHERE.get(daemon.host, daemon.host)
        self._connection = http.client.HTTPConnection(host, daemon.port, timeout=patience)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def greet(self) -> None:
        """Check that the daemon answers. Raises Silent if it does not, or if another program does."""
        try:
            status, reply = self._request("GET", "/health", None)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise Silent(_reason(problem)) from None
        if status != 200 or not isinstance(reply, dict) or reply.get("store") != self._daemon.store:
            raise Silent(f"status {status}")

    def command(self, argv: Sequence[str], directory: str, stdin: bytes | None, runtime_id: str = "") -> dict[str, Any]:
        """Have the daemon run a command, and return its exit status and result.

        Args:
            argv: the command line, without the program's name.
            directory: the working directory.
            stdin: the contents of standard input; None if it is closed.
            runtime_id: the id that the runtime of the caller's agent gives its conversation; empty if there is none.

        Raises:
            Silent: the daemon refused the connection.
            Lost: the command was sent, and no result came back.
            Refused: the daemon does not run it; the message says why.
        """
        body: dict[str, Any] = {"argv": list(argv), "cwd": directory}
        if stdin is not None:
            body["stdin_base64"] = base64.b64encode(stdin).decode("ascii")
        if runtime_id:
            body["runtime_session_id"] = runtime_id
        if self._connection.sock is not None:
            self._connection.sock.settimeout(None)  # a command takes as long as it takes
        try:
            status, reply = self._request("POST", "/api/command", body)
        except (ConnectionRefusedError, ConnectionAbortedError) as problem:
            raise Silent(_reason(problem)) from None
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise Lost(_reason(problem)) from None
        if status == 200 and isinstance(reply, dict):
            return reply
        error = reply.get("error") if isinstance(reply, dict) else None
        if status >= 500 or not isinstance(error, dict):
            raise Lost(f"status {status}")
        raise Refused(str(error.get("code")), str(error.get("message")))

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        headers, data = {}, None
        if body is not None:  # a greeting needs no key, and whoever answers it may be another program
            data = json.dumps(body).encode("ascii")
            headers = {"Authorization": f"Bearer {self._daemon.key}", "Content-Type": "application/json"}
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())


def _reason(problem: Exception) -> str:
    return str(problem) or type(problem).__name__
