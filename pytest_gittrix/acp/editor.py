"""The agent side of the Agent Client Protocol: an editor talks to sessions of an engine, and in each another agent does the work.

That agent lives in its session's confinement. What it reports goes on to the editor, and what it asks permission for the editor's user
decides. Only that user promotes: ``/promote`` shows the changes and asks, and nothing that the agent sends does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pytest_gittrix import __version__
from pytest_gittrix.acp.client_side import refusals
from pytest_gittrix.acp.editor_conversation import EditorConversation
from pytest_gittrix.acp.mcp_servers import require_usable
from pytest_gittrix.aio.threads import in_thread
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import SessionExpired, SessionNotFound
from pytest_gittrix.extras import needs
from pytest_gittrix.record.eventlog.events import Event

with needs("acp"):
    import acp
    from acp import schema

TASK: Final = "a conversation in an editor"

_KINDS: Final = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")


class EditorAgent:
    """What an editor talks to; ``acp.run_agent`` serves it. Its methods raise the protocol's ``RequestError``, with our code in its data.

    Args:
        gittrix: the engine of the sessions.
        argv: the program that works in each session, and its arguments. It speaks the protocol, too.
        repository: finds the repository of a directory: its path and the branch that sessions start from.
        programs: makes what the program and its terminals are run by.
    """

    def __init__(
        self,
        gittrix: GitTrix,
        argv: Sequence[str],
        repository: Callable[[str], tuple[str, str]],
        programs: Callable[[AgentSession], Programs] = AgentSession.programs,
    ) -> None:
        self._gittrix = gittrix
        self._argv = argv
        self._repository = repository
        self._programs = programs
        self._conversations: dict[str, EditorConversation] = {}
        self._editor: Any = None

    async def close(self) -> None:
        """End all agents. The sessions stay."""
        for id_ in [*self._conversations]:
            await self._conversations.pop(id_).close()

    # Called by the connection, with the names and arguments of the protocol.

    def on_connect(self, editor: Any) -> None:
        """Take the connection to the editor."""
        self._editor = editor

    async def initialize(self, protocol_version: int, **_: Any) -> Any:
        """Agree on the protocol, and say what can be done with sessions."""
        sessions = schema.SessionCapabilities(
            list=schema.SessionListCapabilities(), fork=schema.SessionForkCapabilities(), close=schema.SessionCloseCapabilities()
        )
        return acp.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True, session_capabilities=sessions, mcp_capabilities=schema.McpCapabilities(http=True, sse=True)
            ),
            agent_info=schema.Implementation(name="gittrix", version=__version__),
        )

    async def new_session(self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any) -> Any:
        """Start a session on the repository around a directory; its agent gets the servers."""
        with refusals(cwd):
            path, branch = await asyncio.to_thread(self._repository, cwd)
            session = await asyncio.to_thread(self._gittrix.start_session, TASK, durable_path=path, durable_branch=branch)
            await self._check_new(session, mcp_servers)
        self._open(session, mcp_servers)
        return acp.NewSessionResponse(session_id=session.id)

    async def fork_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any  # noqa: ARG002  (a session knows its repository)
    ) -> Any:  # fmt: skip
        """Start a session with the files and the history of another one; its agent gets the servers."""
        with refusals(session_id):
            session = await asyncio.to_thread(self._gittrix.fork, session_id)
            await self._check_new(session, mcp_servers)
        self._open(session, mcp_servers)
        return schema.ForkSessionResponse(session_id=session.id)

    async def load_session(self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any) -> Any:  # noqa: ARG002
        """Send a session's history, and go on with the session unless it is over; an agent that starts then gets the servers."""
        with refusals(session_id):
            events = await asyncio.to_thread(self._gittrix.history, session_id)
            with suppress(SessionExpired):  # its history can be read all the same
                session = await asyncio.to_thread(self._gittrix.get_session, session_id)
                await self._check(session, mcp_servers)
                if (conversation := self._conversations.get(session_id)) is not None:
                    conversation.use_servers(mcp_servers or ())
                else:
                    self._open(session, mcp_servers)
        for update in replayed(events):
            await self._editor.session_update(session_id, update)
        return acp.LoadSessionResponse()

    async def list_sessions(self, cwd: str | None = None, **_: Any) -> Any:
        """List the sessions of the repository around a directory, or of all, the newest first."""
        with refusals(cwd or ""):
            wanted = None if cwd is None else (await asyncio.to_thread(self._repository, cwd))[0]
            found = await asyncio.to_thread(self._gittrix.list_sessions)
        shown = [one for one in reversed(found) if one.durable_path is not None and wanted in (None, one.durable_path)]
        infos = [
            schema.SessionInfo(session_id=one.id, cwd=str(one.durable_path), title=one.task, updated_at=one.updated_at.isoformat())
            for one in shown
        ]
        return schema.ListSessionsResponse(sessions=infos)

    async def close_session(self, session_id: str, **_: Any) -> None:
        """End the agent of a session, which stays."""
        conversation = self._conversations.pop(session_id, None)
        if conversation is not None:
            await conversation.close()

    async def cancel(self, session_id: str, **_: Any) -> None:
        """End the turn of a session."""
        conversation = self._conversations.get(session_id)
        if conversation is not None:
            await conversation.cancel()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> Any:
        """Take a turn of a session, to its stop reason."""
        conversation = self._conversations.get(session_id)
        with refusals(session_id):
            if conversation is None:
                raise SessionNotFound(f"No conversation about session {session_id!r} is open.", fix="Load the session, or make a new one.")
            return acp.PromptResponse(stop_reason=await conversation.prompt(prompt))

    async def _check(self, session: UserSession, mcp_servers: Sequence[Any] | None) -> None:
        """Check that the session's agent can have the servers. Raises as ``require_usable``."""

        def check(servers: Sequence[Any]) -> None:
            with self._programs(session.for_agent()) as programs:
                require_usable(servers, programs)

        if mcp_servers:
            await in_thread(partial(check, mcp_servers))

    async def _check_new(self, session: UserSession, mcp_servers: Sequence[Any] | None) -> None:
        """As ``_check``, for a session that was just made and is ended if its agent cannot have them."""
        try:
            await self._check(session, mcp_servers)
        except BaseException:
            await in_thread(session.discard)
            raise

    def _open(self, session: UserSession, mcp_servers: Sequence[Any] | None) -> None:
        conversation = EditorConversation(session, self._argv, self._programs, self._editor, mcp_servers or ())
        self._conversations[session.id] = conversation
        conversation.announcing = asyncio.ensure_future(conversation.announce())


async def serve(agent: EditorAgent) -> None:
    """Serve an editor on standard input and output until it goes away; then all agents end."""
    try:
        await acp.run_agent(agent, use_unstable_protocol=True)
    finally:
        await agent.close()


def replayed(events: Iterable[Event]) -> Iterator[Any]:
    """The updates that an editor gets of a conversation that it loads: messages, and tool calls with their results.

    Args:
        events: the history of a session.
    """
    for event in events:
        data = event.data
        match event.type:
            case "user_message":
                yield acp.update_user_message_text(data["text"])
            case "assistant_message":
                yield acp.update_agent_message_text(data["text"])
            case "tool_call":
                name, arguments = data["name"], data["args"]
                title = arguments.get("title") or name
                kind = name if name in _KINDS else "other"
                yield acp.start_tool_call(data["call_id"], title, kind=kind, status="in_progress", raw_input=arguments)
            case "tool_result":
                status = "completed" if data["ok"] else "failed"
                yield acp.update_tool_call(data["call_id"], status=status, raw_output=data.get("output", data.get("error")))
