"""The agent side of the Agent Client Protocol: an editor talks to sessions of an engine, and in each another agent does the work.

That agent lives in its session's confinement. What it reports goes on to the editor, and what it asks permission for the editor's user
decides. Only that user promotes: ``/promote`` shows the changes and asks, and nothing that the agent sends does it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from pytest_gittrix import __version__
from pytest_gittrix.acp.client import AcpAgent, acp_agent, refusals
from pytest_gittrix.acp.mcp_servers import require_usable
from pytest_gittrix.acp.turns import take_turn
from pytest_gittrix.aio.threads import in_thread
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import Review, UserSession
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, GittrixError, SessionExpired, SessionNotFound, TurnBusy
from pytest_gittrix.extras import needs
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.safe_text import visible, visible_line

with needs("acp"):
    import acp
    from acp import schema

TASK: Final = "a conversation in an editor"

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "diff": ("Show what differs from the repository.", ""),
    "promote": ("Make the changes one commit in the repository, after you have seen them.", "the commit message"),
}
_PROMOTE: Final = "promote"
_KEEP: Final = "keep"
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
        self._conversations: dict[str, _Conversation] = {}
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
        conversation = _Conversation(session, self._argv, self._programs, self._editor, mcp_servers or ())
        self._conversations[session.id] = conversation
        conversation.announcing = asyncio.ensure_future(conversation.announce())


class _Conversation:
    """An editor's conversation about one session, with the agent that works there; the agent starts with the first prompt."""

    announcing: asyncio.Future[None] | None = None

    def __init__(
        self,
        session: UserSession,
        argv: Sequence[str],
        programs: Callable[[AgentSession], Programs],
        editor: Any,
        mcp_servers: Sequence[Any],
    ) -> None:
        self._session = session
        self._argv = argv
        self._make_programs = programs
        self._editor = editor
        self._mcp_servers = mcp_servers
        self._turn = asyncio.Lock()
        self._turns: dict[asyncio.Task[str], str | None] = {}  # with the command of ours that each is; None for a prompt to the agent
        self._showing = asyncio.Lock()  # held while the user is asked about a promotion: nothing of the agent is shown beside that
        self._held = AsyncExitStack()
        self._agent: AcpAgent | None = None
        self._agents_path = ""  # of the workspace, as the agent sees it
        self._durable = ""

    async def announce(self) -> None:
        """Tell the editor which commands its user may type."""
        commands = [
            schema.AvailableCommand(
                name=name,
                description=what,
                input=schema.AvailableCommandInput(schema.UnstructuredCommandInput(hint=hint)) if hint else None,
            )
            for name, (what, hint) in _COMMANDS.items()
        ]
        update = schema.AvailableCommandsUpdate(session_update="available_commands_update", available_commands=commands)
        await self._tell(update)

    def use_servers(self, mcp_servers: Sequence[Any]) -> None:
        """Give the agent other servers, unless none are named.

        Raises:
            CapabilityMissing: the agent is there already, and began with others.
        """
        if not mcp_servers or [*mcp_servers] == [*self._mcp_servers]:
            return
        if self._agent is not None or None in self._turns.values():
            raise CapabilityMissing(
                f"The agent of {self._session.id} is at work with the MCP servers that it began with, and they are not those named now.",
                why="An agent gets its servers when it starts.",
                fix="Close the conversation and load it with these servers. A new agent starts with them, which does not remember it.",
                opt_out="A load that names no servers leaves the agent those that it has.",
            )
        self._mcp_servers = mcp_servers

    async def close(self) -> None:
        """End the turn and the agent, also one that is only being started. A promotion that was agreed to is finished."""
        turns = [*self._turns]
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        await self._end_agent()

    async def _end_agent(self) -> None:
        self._agent = None
        await self._held.aclose()

    async def cancel(self) -> None:
        """End the turn of the agent, also of one that is only being started. A command of ours goes on."""
        with suppress(AdapterUnavailable):  # the agent has ended, as whoever waits for the turn learns
            if self._agent is None or not await self._agent.cancel():
                for turn in [turn for turn, command in self._turns.items() if command is None]:
                    turn.cancel()

    async def prompt(self, blocks: Sequence[Any]) -> str:
        """Take a turn: a command of ours, or a prompt for the agent; gives the stop reason. Raises as ``AcpAgent.prompt``."""
        command, message = _command(blocks)
        turn = asyncio.create_task(self._take_turn(command, message, blocks))
        self._turns[turn] = command
        turn.add_done_callback(self._turns.pop)
        try:
            await asyncio.wait([turn])
        finally:
            turn.cancel()  # unless it is over: whoever waited for it has gone
        return "cancelled" if turn.cancelled() else turn.result()

    async def _take_turn(self, command: str | None, message: str | None, blocks: Sequence[Any]) -> str:
        async with self._turn:
            if command is None:
                return await self._ask_agent(blocks)
            try:
                return await (self._show_diff() if command == "diff" else self._promote(message))
            except GittrixError as problem:
                return await self._say(str(problem))

    async def _ask_agent(self, blocks: Sequence[Any]) -> str:
        text = "\n".join(filter(None, map(_text, blocks)))
        try:
            agent = self._agent or await self._start()
            return (await take_turn(self._session, agent, text, blocks=[self._inside(block) for block in blocks])).stop_reason
        except TurnBusy:
            raise
        except GittrixError:
            await self._end_agent()  # the next prompt starts another one
            raise

    async def _start(self) -> AcpAgent:
        session = self._session.for_agent()
        try:
            programs = await in_thread(partial(self._make_programs, session), Programs.close)
            self._held.push_async_callback(asyncio.to_thread, programs.close)
            self._agents_path = programs.workspace
            self._durable = (await asyncio.to_thread(self._session.metadata)).get("durablePath", "")
            starting = acp_agent(
                session, self._argv, programs=programs, policy=self._ask_user, watch=self._pass_on, mcp_servers=self._mcp_servers
            )
            self._agent = await self._held.enter_async_context(starting)
        except BaseException:
            await self._end_agent()
            raise
        return self._agent

    # Between the editor and the agent, whose workspace has another path.

    async def _pass_on(self, update: Mapping[str, Any]) -> None:
        """Pass on what the agent reports. It speaks neither for the user nor of commands, which are ours."""
        if update.get("sessionUpdate") not in ("user_message_chunk", "available_commands_update"):
            notification = {"sessionId": self._session.id, "update": self._outside(update)}
            async with self._showing:
                await self._tell(schema.SessionNotification.model_validate(notification).update)

    async def _ask_user(self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:
        asked = {"sessionId": self._session.id, "toolCall": self._outside(call), "options": list(options)}
        request = schema.RequestPermissionRequest.model_validate(asked)
        answer = await self._editor.request_permission(self._session.id, request.tool_call, request.options)
        return getattr(answer.outcome, "option_id", None)

    def _outside(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A tool call whose paths lead to the files of the session on this machine; it has no others."""
        found = dict(fields)
        for name in ("locations", "content"):
            if isinstance(fields.get(name), list):
                found[name] = [shown for one in fields[name] if (shown := self._with_path(one)) is not None]
        return found

    def _with_path(self, one: Mapping[str, Any]) -> dict[str, Any] | None:
        """A location or a diff with its path on this machine; None if that is not below the workspace, also by a link."""
        if "path" not in one:
            return dict(one)
        inside, root = _below(one["path"], self._agents_path), self._session.workspace_path
        if inside is None or root is None:
            return None
        path = str(Path(root, inside))
        return None if _below(os.path.realpath(path), os.path.realpath(root)) is None else {**one, "path": path}

    def _inside(self, block: Any) -> Any:
        """A block of a prompt whose link to a file of the repository leads to the agent's copy of it."""
        uri = getattr(block, "uri", None)
        if not isinstance(uri, str) or not uri.startswith("file:///"):
            return block
        parts = urlsplit(uri)
        inside = _below(unquote(parts.path), self._durable)
        if inside is None:
            return block
        return block.model_copy(update={"uri": parts._replace(path=quote(str(Path(self._agents_path, inside)))).geturl()})

    # What the user types.

    async def _show_diff(self) -> str:
        diff = await asyncio.to_thread(self._session.diff)
        return await self._say(_fenced(diff) if diff else "Nothing differs from the repository.")

    async def _promote(self, message: str | None) -> str:
        review = await asyncio.to_thread(self._session.review)
        if not review.changes:
            return await self._say("Nothing differs from the repository.")
        async with self._showing:
            agreed = await self._agreed(review)
        if not agreed:
            return await self._say("Nothing was promoted.")
        # The user saw what looks like credentials, and agreed.
        result = await in_thread(partial(self._session.promote, review, message=message, keep=True, refuse_secrets=False))
        lines = [f"Promoted {_files(len(review.changes))} to {result.branch} as {result.sha}.", *result.warnings]
        return await self._say("\n".join(lines))

    async def _agreed(self, review: Review) -> bool:
        """Whether the user, who sees the changes, agrees to promote exactly these."""
        call = f"gittrix-promote-{token_hex()}"  # else an agent could change what the user is shown under this id
        diff = await asyncio.to_thread(lambda: review.diff)  # of the reviewed bytes, whatever the agent does meanwhile
        secrets = [f"{visible_line(path)} seems to hold credentials: {', '.join(found)}" for path, found in review.secrets.items()]
        beside = [f"Not promoted: {visible_line(line)}" for line in review.beside]
        shown = [acp.tool_content(acp.text_block(visible(_fenced("\n".join([*secrets, *beside, diff])))))]
        title = f"Promote {_files(len(review.changes))}"
        await self._tell(acp.start_tool_call(call, title, kind="other", status="pending", content=shown))
        options = [
            schema.PermissionOption(option_id=_PROMOTE, name="Promote", kind="allow_once"),
            schema.PermissionOption(option_id=_KEEP, name="Do not promote", kind="reject_once"),
        ]
        wanted = schema.ToolCallUpdate(tool_call_id=call, title=title, kind="other", status="pending", content=shown)
        answer = await self._editor.request_permission(self._session.id, wanted, options)
        agreed = getattr(answer.outcome, "option_id", None) == _PROMOTE
        await self._tell(acp.update_tool_call(call, status="completed" if agreed else "failed"))
        return agreed

    async def _say(self, text: str) -> str:
        await self._tell(acp.update_agent_message_text(visible(text)))
        return "end_turn"

    async def _tell(self, update: Any) -> None:
        await self._editor.session_update(self._session.id, update)


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


def _text(block: Any) -> str:
    """A block of a prompt as text, for the record."""
    return str(getattr(block, "text", None) or getattr(block, "uri", ""))


def _command(blocks: Sequence[Any]) -> tuple[str | None, str | None]:
    """The command of ours that a prompt is, if it is one, and the text behind it."""
    typed = "\n".join(block.text for block in blocks if getattr(block, "text", None))
    name, *rest = typed.split(maxsplit=1) or [""]
    if not name.startswith("/") or name[1:] not in _COMMANDS:
        return None, None
    return name[1:], rest[0].strip() if rest else None


def _below(path: object, root: str) -> str | None:
    """An absolute path as it is from a directory; None if it does not lie there."""
    if not isinstance(path, str) or not os.path.isabs(path) or not root:
        return None
    inside = os.path.relpath(path, root)
    return None if inside == os.pardir or inside.startswith(f"{os.pardir}/") else inside


def _fenced(diff: str) -> str:
    """A diff in Markdown. No run of backticks in it is as long as its fence, so none ends it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", diff)), default=0))
    return "\n".join([f"{fence}diff", *diff.removesuffix("\n").split("\n"), fence])


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
