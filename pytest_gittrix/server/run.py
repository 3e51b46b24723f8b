"""Serving a daemon: its socket, the application behind its guard, the file by which it is found, and an orderly end.

The end closes the socket and the streams of events, lets running requests finish, and leaves agents running: the next daemon finds them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from anyio import to_thread

from pytest_gittrix.commands.team_file import Team, read_team
from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.extras import needs
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.record.store.store import default_home
from pytest_gittrix.server import daemon_file
from pytest_gittrix.server.daemon_file import DaemonFile
from pytest_gittrix.server.guard import read_token, require_token_beyond_loopback

PORT: Final = 8484
"""The default port; BotMinter's."""
GRACE: Final = 30
"""Seconds that running requests have to finish when the daemon ends."""
THREADS: Final = 100
"""The number of requests that are answered at a time."""
BACKLOG: Final = 1024


@dataclass(frozen=True)
class Settings:
    """The settings of a daemon.

    Attributes:
        host, port: the address to listen at; port 0 takes a free one.
        store: directory of the sessions; the default one if None.
        team: the team file; if None, ``team.toml`` in the engine's home, if it exists.
        token_file: a file with a token that requests may send instead of the key of the daemon's file; needed beyond loopback.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    store: Path | None = None
    team: Path | None = None
    token_file: Path | None = None

    @property
    def home(self) -> Path:
        """The engine's home, which holds the daemon's file."""
        return self.store.parent if self.store is not None else default_home()


class Serving:
    """A daemon that listens. ``run`` blocks until ``end`` is called, or until a signal if it runs in the main thread.

    Args:
        settings: its settings.
        listening: called with the contents of its file, once it listens and can be found.

    Raises:
        CapabilityMissing: the web framework is not installed.
        InvalidInput: the team file, the token or the address is not valid.
        AuthFailed: other machines could reach it, and there is no token.
        DaemonRuns: a daemon of the same home runs.
        AdapterUnavailable: the address is taken.
    """

    def __init__(self, settings: Settings, *, listening: Callable[[DaemonFile], object] = lambda _file: None) -> None:
        with needs("serve"):
            from pytest_gittrix.server.state import Daemon

        token = None if settings.token_file is None else read_token(settings.token_file)
        require_token_beyond_loopback(settings.host, token)
        team = read_team(settings.home, settings.team)
        daemon_file.require_none(settings.home)
        self._listening = listening
        self._home = settings.home
        self._socket = _bound(settings.host, settings.port)
        try:
            self.daemon = Daemon(team, store=settings.store)
        except BaseException:
            self._socket.close()
            raise
        self.file = self._file_of(settings, team)
        self._server = _server(self, token)

    def run(self) -> None:
        """Serve until the end. Raises GittrixError if the store cannot be used, or if another daemon was first."""
        try:
            with self.daemon, _signals(self.end):
                self._server.run(sockets=[self._socket])
                if (problem := self._server.problem) is not None:
                    raise problem
        finally:
            daemon_file.withdraw(self._home, self.file)
            self._socket.close()

    def end(self) -> None:
        """Make ``run`` end; from any thread, or a signal handler."""
        self._server.should_exit = True

    def publish(self) -> None:
        """Write the daemon's file, and call ``listening``."""
        daemon_file.publish(self._home, self.file)
        self._listening(self.file)

    def _file_of(self, settings: Settings, team: Team) -> DaemonFile:
        owner = Owner.current()
        clock = os.environ.get("PYTEST_GITTRIX_CLOCK")
        return DaemonFile(
            team=team.team,
            host=settings.host,
            port=self._socket.getsockname()[1],
            pid=owner.pid,
            start_time=owner.start_time,
            started_at=format_instant(self.daemon.engine.clock.now()),
            store=str(self.daemon.engine.store.root),
            clock=os.path.abspath(clock) if clock else None,
            token_file=None if settings.token_file is None else str(settings.token_file.absolute()),
            key=secrets.token_urlsafe(32),
            owner=owner.to_json(),
        )


def _server(serving: Serving, token: str | None) -> Any:
    """A uvicorn server that publishes the daemon's file once it listens, and ends streams before it waits for requests."""
    import uvicorn

    from pytest_gittrix.server.app import application
    from pytest_gittrix.server.connections import Connection
    from pytest_gittrix.server.guard import Guard

    class Server(uvicorn.Server):
        problem: BaseException | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            to_thread.current_default_thread_limiter().total_tokens = THREADS
            await super().startup(sockets)
            try:
                await asyncio.to_thread(serving.publish)
            except BaseException as problem:  # noqa: BLE001  (raised again where the server ends)
                self.problem = problem
                self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await asyncio.to_thread(serving.daemon.feed.close)
            await super().shutdown(sockets)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # ``_signals`` handles them: uvicorn would raise them once more at the end, before the daemon has ended

    guarded = Guard(application(serving.daemon), host=serving.file.host, token=token, key=serving.file.key)
    settings = uvicorn.Config(
        guarded,
        http=Connection,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",  # a client that sends no HTTP is no news for a person
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
        backlog=BACKLOG,
    )
    return Server(settings)


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        InvalidInput: this machine has no such address.
        AdapterUnavailable: the address is taken, or the system refused.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as problem:
        raise InvalidInput(
            f"{host!r} is no address to listen at: {problem}.", fix="Use 127.0.0.1, or an address of this machine."
        ) from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as problem:
        listening.close()
        raise AdapterUnavailable(
            f"{daemon_file.at(host, port)} cannot be listened at: {problem.strerror}.",
            why="Another program may have it.",
            fix="Choose another port with --port, or 0 for one that is free.",
        ) from None
    return listening


@contextmanager
def _signals(end: Callable[[], None]) -> Iterator[None]:
    """Call ``end`` on a signal; a second signal changes nothing. Only the main thread can handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = [signal.SIGTERM, signal.SIGINT]
    before = {number: signal.signal(number, lambda *_: end()) for number in known}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
