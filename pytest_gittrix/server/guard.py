"""The check of every request before the application sees it: its host, its origin, its secret, and its size.

Everything but ``/health`` takes the daemon's token, or the key of its file, because all users of a machine reach loopback.
A page in a browser has neither; should it get one, it could send requests under a name that its own server resolves to 127.0.0.1 (DNS
rebinding), which the ``Host`` header shows, or across origins, which ``Origin`` shows. Both are refused.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import os
import stat
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.exceptions import HTTPException

from pytest_gittrix.engine.operations.requester import on_behalf_of
from pytest_gittrix.errors import AuthFailed, InvalidInput
from pytest_gittrix.os_level.proc import peer_process

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN: Final = "/health"
"""The path that needs no secret."""
COMMAND: Final = "/api/command"
"""The path of commands, whose requests may be large."""
SHORTEST: Final = 16
"""The smallest number of characters of a token."""
LARGEST: Final = 160 << 20
"""The largest size of a command in bytes: the largest file that a session takes, as base64, and some more."""
LARGE: Final = 8 << 20
"""The largest size of every other request in bytes."""
STALLED: Final = 30.0
"""Seconds within which the next part of a request has to arrive."""


class Refusal(Exception):
    """A request that is refused before the application sees it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def is_loopback(host: str) -> bool:
    """Whether a name or address reaches this machine only."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(file: str | os.PathLike[str]) -> str:
    """The token in a file, without the space around it.

    Raises:
        InvalidInput: there is no such file, other users have it or can read it, or the token is too short or not printable ASCII.
    """
    path = Path(file).absolute()
    try:
        found, text = path.stat(), path.read_bytes().decode("ascii").strip()
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"The token file {path} cannot be read: {problem}.", fix="Put a token of printable ASCII into it.") from None
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidInput(
            f"The token file {path} can be read or written by others.", why="Who has the token runs agents.", fix=f"chmod 600 {path}"
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise InvalidInput(
            f"The token file {path} belongs to another user ({found.st_uid}).",
            why="Who has the token runs agents.",
            fix="Make a file of your own.",
        )
    if len(text) < SHORTEST or not all("!" <= character <= "~" for character in text):
        raise InvalidInput(
            f"The token file {path} holds no token of {SHORTEST} or more printable characters without space.",
            why="A short one can be guessed.",
            fix=f"head -c 32 /dev/urandom | base64 > {path}",
        )
    return text


def require_token_beyond_loopback(host: str, token: str | None) -> None:
    """Refuse to listen beyond loopback without a token.

    Raises:
        AuthFailed: ``host`` is beyond loopback, and there is no token.
    """
    if token is None and not is_loopback(host):
        raise AuthFailed(
            f"Without a token the daemon does not listen at {host}, which others can reach.",
            why="Whoever can ask it can run agents on this machine.",
            fix="Give it a token with --token-file FILE, or listen on 127.0.0.1.",
        )


class Guard:
    """Wraps an application, and passes on the requests that are allowed.

    Args:
        app: the application.
        host: the host that the daemon listens at.
        token: the secret that requests send as ``Authorization: Bearer``; None if there is only the key.
        key: a secret that is accepted as well.
    """

    def __init__(self, app: App, *, host: str, token: str | None, key: str) -> None:
        self._app = app
        self._local = is_loopback(host)
        self._secrets = [secret.encode() for secret in (token, key) if secret is not None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, and pass on all others."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except Refusal as refusal:
            await _refuse(send, refusal)
            return
        with on_behalf_of(partial(_peer, scope)):
            await self._app(scope, _Limited(receive, _most(scope)), send)

    def _check(self, scope: Scope) -> None:
        headers = _headers(scope)
        host = headers.get("host", "")
        if self._local and not is_loopback(_name_of(host)):
            raise Refusal(
                403,
                "FOREIGN_HOST",
                f"The daemon is not asked by the name {_name_of(host)!r}: ask it as localhost or by a loopback address.",
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refusal(403, "FOREIGN_ORIGIN", f"A page of {origin!r} may not ask the daemon.")
        if "content-length" in headers and "transfer-encoding" in headers:
            raise Refusal(400, InvalidInput.code, "A request with two lengths is none: servers disagree on where it ends.")
        if scope["path"] != OPEN:
            self._check_secret(headers.get("authorization", ""))
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length) > _most(scope):
            raise Refusal(413, InvalidInput.code, _too_large(_most(scope)))

    def _check_secret(self, given: str) -> None:
        scheme, _, secret = given.partition(" ")
        offered = secret.strip().encode("latin-1", "replace")
        # All are compared, so that the time of a comparison reveals nothing.
        fits = [hmac.compare_digest(offered, known) for known in self._secrets]
        if scheme.lower() != "bearer" or not any(fits):
            raise Refusal(
                401,
                AuthFailed.code,
                "The daemon asks for its token, or for the key in the daemon.json of its home: Authorization: Bearer SECRET.",
            )


class _Limited:
    """The body of a request, with limits on its size and on the time between its parts.

    It raises the framework's HTTPException: the framework is reading, and would answer any other error as its own.
    """

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._size = 0
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:  # only the end of the connection can follow
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), STALLED)
        except TimeoutError:
            raise HTTPException(408, f"Nothing more of the request came for {STALLED:g} seconds.", {"connection": "close"}) from None
        self._whole = not message.get("more_body", False)
        self._size += len(message.get("body", b""))
        if self._size > self._most:
            raise HTTPException(413, _too_large(self._most))
        return message


def _peer(scope: Scope) -> int | None:
    """The process of this machine that a request comes from, where it can be seen."""
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None or server[1] is None or not is_loopback(client[0]):
        return None
    return peer_process(server[1], client[1])


def _most(scope: Scope) -> int:
    return LARGEST if scope["path"] == COMMAND else LARGE


def _too_large(most: int) -> str:
    return f"Such a request has {most} bytes at most."


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by name; one that is repeated gets a value that matches nothing, so that the application cannot use the other value."""
    found: dict[str, str] = {}
    repeated = set()
    for name, value in scope["headers"]:
        text = name.decode("latin-1")
        if text in found:
            repeated.add(text)
        found[text] = value.decode("latin-1")
    return {name: value if name not in repeated else "\0" for name, value in found.items()}


def _name_of(host: str) -> str:
    """A ``Host`` header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if host.count(":") == 1 else host


async def _refuse(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"ok": False, "error": {"code": refusal.code, "message": refusal.message}}).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
