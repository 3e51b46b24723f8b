"""A prompt is a turn of its session, whichever program sends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pytest_gittrix.acp.client import CANCELLED, AcpAgent, Prompted
from pytest_gittrix.aio.engine import AsyncUserSession
from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import TurnOver


async def take_turn(session: UserSession, agent: AcpAgent, text: str, *, blocks: Sequence[Any] | None = None) -> Prompted:
    """Send a prompt to an agent that works in a session, as one turn of that session.

    The turn is ``done`` when the agent has answered, ``failed`` if it could not, and ``interrupted`` if the prompt was cancelled.
    ``session.interrupt()`` cancels the prompt; an agent that does not end it within ten seconds is killed.

    Args:
        session: the session.
        agent: the agent, started by ``acp_agent`` for this session.
        text: the prompt; it is recorded.
        blocks: the prompt as blocks of the protocol's schema, where it is more than the text.

    Returns:
        What came of the prompt.

    Raises:
        TurnBusy: the session has a turn running, here or in another process; the agent was not asked.
        SessionExpired: the session has ended, before the prompt or while the agent worked on it.
        AdapterUnavailable: as for ``AcpAgent.prompt``.
    """
    turns, loop, over = AsyncUserSession(session), asyncio.get_running_loop(), asyncio.Event()
    context = await turns.begin_turn()
    unsubscribe = session.subscribe(lambda _event: loop.call_soon_threadsafe(over.set), ["turn.ended"])
    if context.cancelled.is_set():  # interrupted before this listened
        over.set()
    try:
        answer = await agent.prompt(text, blocks=blocks, cancelled=over)
    except BaseException as problem:
        await _end(turns, context, cancelled=isinstance(problem, asyncio.CancelledError), error=f"{type(problem).__name__}: {problem}")
        raise
    finally:
        unsubscribe()
    await _end(turns, context, cancelled=answer.stop_reason == CANCELLED)
    return answer


async def _end(turns: AsyncUserSession, context: TurnContext, *, cancelled: bool, error: str | None = None) -> None:
    with suppress(TurnOver):  # somebody else has ended it
        if cancelled and not context.cancelled.is_set():
            await turns.interrupt()
        else:
            await turns.end_turn(context, error=error)
