"""The daemon as a web application: all its requests.

A request that blocks is a plain function, which the framework runs in its threads; only the stream of events runs on the event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, Header
from starlette.responses import Response, StreamingResponse

from pytest_gittrix import __version__
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.server import projects, sessions
from pytest_gittrix.server.command import run_command
from pytest_gittrix.server.events import Listener, resumed
from pytest_gittrix.server.request_check import require_known
from pytest_gittrix.server.responses import FAILURES, catch_all, done
from pytest_gittrix.server.schema import CommandRequest, CommandResponse, OkResponse
from pytest_gittrix.server.state import Daemon

_GREETERS: Final = 4
"""Threads kept for ``/health``, so that it is answered however busy the others are."""


def application(daemon: Daemon) -> FastAPI:
    """The application of a daemon, without the guard.

    Args:
        daemon: the daemon that serves the requests; the caller starts and stops it.
    """
    app = FastAPI(
        title="gittrix",
        version=__version__,
        description="Sessions of coding agents: BotMinter's daemon, agent-orchestrator's operations, events, and every command.",
        docs_url=None,  # the pages load their scripts from elsewhere
        redoc_url=None,
        dependencies=[Depends(require_known)],
    )
    greeters = CapacityLimiter(_GREETERS)
    catch_all(app)
    app.include_router(sessions.routes(daemon))
    app.include_router(projects.routes(daemon))

    @app.get("/health", response_model=OkResponse, responses=FAILURES)
    async def health() -> Response:
        """Whether the daemon answers, and whose it is."""
        uptime = round(real_seconds() - daemon.begun, 3)
        return done(
            version=__version__,
            team=daemon.team.team,
            uptime_s=uptime,
            active=await to_thread.run_sync(daemon.active, limiter=greeters),
            store=str(daemon.engine.store.root),
        )

    @app.get("/api/events", responses={200: {"content": {"text/event-stream": {}}}, **FAILURES})
    async def events(
        since: str | None = None,
        types: str | None = None,
        session: str | None = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """What happens from now on; of one session also what happened after an event."""
        after = _after(since, session, last_event_id)
        listener = daemon.feed.listener(session, _names(types))
        try:
            await to_thread.run_sync(daemon.feed.subscribe, listener, after)
        except BaseException:
            daemon.feed.forget(listener)
            raise
        return StreamingResponse(_stream(daemon, listener), media_type="text/event-stream", headers={"cache-control": "no-store"})

    @app.post("/api/command", response_model=CommandResponse, responses=FAILURES)
    def command(body: CommandRequest) -> Response:
        """Run a command of ``gittrix`` on the daemon's engine."""
        return run_command(daemon, body)

    return app


def _after(since: str | None, session: str | None, last: str | None) -> tuple[str, int] | None:
    """The event after which the stream begins, if any: ``Last-Event-ID`` is newer than the ``since`` of the first request."""
    resume = resumed(last)
    if resume is not None and session in (None, resume[0]):
        return resume
    if since is None:
        return None
    if session is None:
        raise InvalidInput("since is the number of an event of one session.", fix="Name the session too: ?session=ID&since=3.")
    return resumed(f"{session}:{since}")


def _names(types: str | None) -> list[str] | None:
    if types is None:
        return None
    found = [name for part in types.split(",") if (name := part.strip())]
    if not found:
        raise InvalidInput(f"types={types!r} names no event.", fix="Separate names by commas, or leave it out for all.")
    return found


async def _stream(daemon: Daemon, listener: Listener) -> AsyncIterator[bytes]:
    try:
        async for line in listener.lines():
            yield line
    finally:
        daemon.feed.forget(listener)
