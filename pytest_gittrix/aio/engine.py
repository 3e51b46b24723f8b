"""The engine, and a session as the person in charge holds it, for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any

from pytest_gittrix.aio.sessions import AsyncAgentSession
from pytest_gittrix.aio.threads import AsyncProxy, entered, in_thread, mirrored
from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.records import SessionMetadata


class AsyncUserSession(AsyncAgentSession):
    """The session of the person in charge for asyncio: each method is that of ``UserSession``, with its arguments, results and errors."""

    blocking: UserSession

    def __init__(self, blocking: UserSession) -> None:
        super().__init__(blocking)

    def for_agent(self) -> AsyncAgentSession:
        """The object to hand to the agent."""
        return AsyncAgentSession(self.blocking.for_agent())

    def subscribe(self, listener: Callable[[Event], object], types: Iterable[str] | None = None) -> Callable[[], None]:
        """As ``UserSession.subscribe``, which does not block. The listener is called in the thread in which something happens."""
        return self.blocking.subscribe(listener, types)

    def turn(self, *, role: str | None = None) -> AbstractAsyncContextManager[TurnContext]:
        """As ``UserSession.turn``. ``AsyncAgentSession(context.session)`` is the agent's side of the session in the turn."""
        return entered(self.blocking.turn(role=role))

    async def begin_turn(self, *, role: str | None = None) -> TurnContext:
        """As ``UserSession.begin_turn``. A cancelled task leaves no turn."""
        return await in_thread(partial(self.blocking.begin_turn, role=role), self.blocking.end_turn)

    end_turn = mirrored(UserSession.end_turn)
    review = mirrored(UserSession.review)
    promote = mirrored(UserSession.promote)
    rebase = mirrored(UserSession.rebase)
    discard = mirrored(UserSession.discard)
    extend = mirrored(UserSession.extend)
    relocate = mirrored(UserSession.relocate)
    view = mirrored(UserSession.view)
    interrupt = mirrored(UserSession.interrupt)
    archive = mirrored(UserSession.archive)
    moved_refs = mirrored(UserSession.moved_refs)
    metadata = mirrored(UserSession.metadata)
    register_pressure_warning = mirrored(UserSession.register_pressure_warning)

    async def archives(self) -> tuple[str, ...]:
        """As ``UserSession.archives``, which reads a directory: a method here, and no property."""
        return await in_thread(lambda: self.blocking.archives)

    async def identify(self, **identity: str | None) -> None:
        """As ``UserSession.identify``."""
        await in_thread(partial(self.blocking.identify, **identity))

    async def fork(self, *arguments: Any, **options: Any) -> AsyncUserSession:
        """As ``UserSession.fork``. A cancelled task leaves no fork."""
        return AsyncUserSession(await in_thread(partial(self.blocking.fork, *arguments, **options), UserSession.discard))

    async def handoff(self, *arguments: Any, **options: Any) -> AsyncUserSession:
        """As ``UserSession.handoff``. A handoff that was begun is finished, also if the task is cancelled."""
        return AsyncUserSession(await in_thread(partial(self.blocking.handoff, *arguments, **options)))


class AsyncGitTrix(AsyncProxy[GitTrix]):
    """The engine for asyncio: each method is that of ``GitTrix``. As a context manager it closes the engine at the end."""

    async def __aenter__(self) -> AsyncGitTrix:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def start_session(self, task: str, **options: Any) -> AsyncUserSession:
        """As ``GitTrix.start_session``. A cancelled task leaves no session."""
        return AsyncUserSession(await in_thread(partial(self.blocking.start_session, task, **options), UserSession.discard))

    async def get_session(self, id_: str) -> AsyncUserSession:
        """As ``GitTrix.get_session``."""
        return AsyncUserSession(await in_thread(partial(self.blocking.get_session, id_)))

    async def fork(self, id_: str, at_seq: int | None = None, **options: Any) -> AsyncUserSession:
        """As ``GitTrix.fork``. A cancelled task leaves no fork."""
        return AsyncUserSession(await in_thread(partial(self.blocking.fork, id_, at_seq, **options), UserSession.discard))

    async def query(self, **wanted: Any) -> list[SessionMetadata]:
        """As ``GitTrix.query``."""
        return await in_thread(partial(self.blocking.query, **wanted))

    def on(self, event: str, listener: Callable[[Event], object]) -> Callable[[], None]:
        """As ``GitTrix.on``, which does not block. The listener is called in the thread in which something happens."""
        return self.blocking.on(event, listener)

    close = mirrored(GitTrix.close)
    info = mirrored(GitTrix.info)
    history = mirrored(GitTrix.history)
    attached = mirrored(GitTrix.attached)
    view = mirrored(GitTrix.view)
    list_sessions = mirrored(GitTrix.list_sessions)
    problems = mirrored(GitTrix.problems)
    chain = mirrored(GitTrix.chain)
    tree = mirrored(GitTrix.tree)
    evict = mirrored(GitTrix.evict)
    archives = mirrored(GitTrix.archives)
    sweep = mirrored(GitTrix.sweep)
    swept = mirrored(GitTrix.swept)
    postponed = mirrored(GitTrix.postponed)
    in_use = mirrored(GitTrix.in_use)
    recover = mirrored(GitTrix.recover)
    overlaps = mirrored(GitTrix.overlaps)
    moved_refs = mirrored(GitTrix.moved_refs)
