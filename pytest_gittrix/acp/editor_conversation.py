"""An editor's conversation about one session: prompts for the agent that works there, and the commands that the user types.

Only the user promotes: ``/promote`` shows the changes and asks, and nothing that the agent sends does it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from pytest_gittrix.acp.client import AcpAgent, acp_agent
from pytest_gittrix.acp.turns import take_turn
from pytest_gittrix.aio.threads import in_thread
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.engine.user_session import Review, UserSession
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, GittrixError, TurnBusy
from pytest_gittrix.extras import needs
from pytest_gittrix.safe_text import visible, visible_line

with needs("acp"):
    import acp
    from acp import schema


_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "diff": ("Show what differs from the repository.", ""),
    "promote": ("Make the changes one commit in the repository, after you have seen them.", "the commit message"),
}
_PROMOTE: Final = "promote"
_KEEP: Final = "keep"


class EditorConversation:
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
        self._showing = asyncio.Lock()  # held while the user is asked about a promotion: nothing of the agent is shown meanwhile
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
        unpromoted = [f"Not promoted: {visible_line(line)}" for line in review.beside]
        shown = [acp.tool_content(acp.text_block(visible(_fenced("\n".join([*secrets, *unpromoted, diff])))))]
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
