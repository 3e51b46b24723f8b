"""The client of the Agent Client Protocol: an agent program that lives in a session's confinement, and works by the session.

Files that it asks for are read and written by the session, its terminals run where it runs, and what it may do a policy decides. What it
does by itself is confined as every program of the session is.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pytest_gittrix.acp.client_side import ReportListener, SessionClient, Starts, Watch
from pytest_gittrix.acp.permissions import Policy, allow
from pytest_gittrix.acp.transcript import Log
from pytest_gittrix.aio.threads import in_thread
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.errors import AdapterUnavailable, Advice, CapabilityMissing
from pytest_gittrix.extras import needs
from pytest_gittrix.safe_text import visible, visible_line

with needs("acp"):
    from acp import PROTOCOL_VERSION, RequestError, connect_to_agent, text_block
    from acp.schema import Implementation

CANCELLED: Final = "cancelled"
"""The stop reason of a prompt that was cancelled."""
FAILED: Final = "failed"
"""What is recorded as the stop reason of a prompt that the agent did not answer."""

GRACE: Final = 10.0
"""Real seconds that an agent has to end a prompt that was cancelled; then it is killed."""

_MOST_IN_A_LINE: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Prompted:
    """What came of a prompt.

    Attributes:
        stop_reason: ``end_turn``, ``max_tokens``, ``max_turn_requests``, ``refusal`` or ``cancelled``.
        text: what the agent said.
    """

    stop_reason: str
    text: str


class _Prompt:
    """A prompt on its way: it waits until the agent has ended the one before, and is sent unless it is cancelled first."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.answer: asyncio.Future[Any] | None = None  # once it was sent

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to cancel any more."""
        return self.is_cancelled or (self.answer is not None and self.answer.done())


class AcpAgent:
    """An agent that speaks the protocol. ``acp_agent`` starts one.

    Attributes:
        running: its program.
        acp_session: the id of the agent's own session.
    """

    def __init__(self, running: Running, client: ReportListener) -> None:
        self.running = running
        self.acp_session = ""
        self._lines = _Lines(running)
        self._connection: Any = connect_to_agent(client, self._lines)
        self._client = client
        self._prompts: list[_Prompt] = []  # in their order
        self._turn = asyncio.Lock()  # of the prompt that the agent has, or gets next
        self._answer: asyncio.Future[Any] | None = None  # to the prompt that it got last

    async def prompt(self, text: str, *, blocks: Sequence[Any] | None = None, cancelled: asyncio.Event | None = None) -> Prompted:
        """Send a prompt and wait for the end of the turn. A cancelled task cancels the turn, and does not wait for the agent.

        If the agent still works on another prompt, this one waits until the agent has ended that, or was killed.

        Args:
            text: the prompt; it is recorded.
            blocks: the prompt as blocks of the protocol's schema, where it is more than the text.
            cancelled: once it is set, this prompt is cancelled, and no other, as by ``cancel``.

        Raises:
            AdapterUnavailable: the agent refused, gave no answer of the protocol, or ended; its last errors are in the message.
            GittrixError: the prompt cannot be recorded; as for ``AgentSession.record``.
        """
        prompt = _Prompt()
        self._prompts.append(prompt)
        watching = None if cancelled is None else asyncio.create_task(self._cancel_once(cancelled, prompt))
        try:
            async with self._turn:
                if self._answer is not None:  # to a prompt whose task did not wait for it
                    await asyncio.wait([self._answer])
                return await self._converse(prompt, text, blocks or [text_block(text)])
        finally:
            self._prompts.remove(prompt)
            if watching is not None:
                watching.cancel()

    async def _converse(self, prompt: _Prompt, text: str, blocks: Sequence[Any]) -> Prompted:
        """Record a prompt, send it, and record the end of the turn."""
        client = self._client
        client.turn_over.clear()
        reason = FAILED
        try:
            await asyncio.shield(client.in_order(client.transcript.begin, text))
            if prompt.is_cancelled:
                reason = CANCELLED
                return Prompted(reason, "")
            self._answer = prompt.answer = asyncio.create_task(self._send(blocks))
            reason = str((await asyncio.shield(prompt.answer)).stop_reason)
        except asyncio.CancelledError:
            reason = CANCELLED
            with suppress(AdapterUnavailable):  # it has ended
                await self._cancel(prompt)
            raise
        finally:
            client.turn_over.set()
            said = await asyncio.shield(client.in_order(client.transcript.end, reason))
        return Prompted(reason, said)

    async def _send(self, blocks: Sequence[Any]) -> Any:
        """Send a prompt, and wait for the answer, with which the turn is over."""
        try:
            return await self._asked(self._connection.prompt(self.acp_session, blocks))
        finally:
            self._client.turn_over.set()

    async def cancel(self) -> bool:
        """Cancel the running prompt, which then ends with ``cancelled``; or the next one, if that is cancelled already.

        Questions for permission are answered so, too.

        An agent that does not answer the prompt within ``GRACE`` seconds is killed. Whoever waits for the prompt gets
        ``AdapterUnavailable`` then.

        Returns:
            Whether a prompt was running.

        Raises:
            AdapterUnavailable: the agent has ended, or reads nothing any more.
        """
        running = [*self._prompts]
        for prompt in running:
            if not prompt.is_over:
                await self._cancel(prompt)
                break
        return bool(running)

    async def _cancel(self, prompt: _Prompt) -> None:
        """Cancel a prompt once: one that was not sent never is."""
        if prompt.is_over:
            return
        prompt.is_cancelled = True
        if prompt.answer is None:
            return
        self._client.turn_over.set()
        loop = asyncio.get_running_loop()
        killing = loop.call_later(GRACE, lambda: loop.run_in_executor(None, self.running.kill))
        prompt.answer.add_done_callback(partial(_answered, killing))
        await self._asked(self._connection.cancel(self.acp_session))

    async def _cancel_once(self, cancelled: asyncio.Event, prompt: _Prompt) -> None:
        await cancelled.wait()
        with suppress(AdapterUnavailable):  # it has ended
            await self._cancel(prompt)

    async def begin(self, mcp_servers: Sequence[Any] = ()) -> None:
        """Agree on the protocol, and begin a session of the agent in the workspace, with these servers.

        Args:
            mcp_servers: as for ``acp_agent``.

        Raises:
            CapabilityMissing: the agent uses no servers of such a kind.
            AdapterUnavailable: the program does not speak the protocol.
        """
        about, can = Implementation(name="pytest-gittrix", version="1"), self._client.capabilities
        agreed = await self._asked(self._connection.initialize(PROTOCOL_VERSION, client_capabilities=can, client_info=about))
        _require_kinds(mcp_servers, agreed.agent_capabilities)
        beginning = self._connection.new_session(cwd=self._client.workspace, mcp_servers=[*mcp_servers])
        self.acp_session = (await self._asked(beginning)).session_id

    async def close(self) -> None:
        """End the agent with its terminals, and with everything that they started."""
        try:
            await self._connection.close()
        finally:
            await self._client.close()
            await asyncio.to_thread(self.running.kill)

    async def _asked(self, question: Any) -> Any:
        try:
            return await question
        except (RequestError, ConnectionError) as problem:
            ended = self.running.poll()
            state = "" if ended is None else f" It has ended with {ended.code if ended.signal is None else f'signal {ended.signal}'}."
            errors = visible(self._client.last_errors())
            raise AdapterUnavailable(
                f"The agent did not do what it was asked: {visible_line(self._lines.problem or str(problem))}.{state}",
                why=f"Its last errors: {errors}" if errors else "",
                fix=Advice(
                    "See whether the program speaks the Agent Client Protocol, and has what it needs (readable=, network=).",
                    "See whether the program speaks the Agent Client Protocol, and has what it needs (--readable, --network).",
                ),
            ) from problem


@asynccontextmanager
async def acp_agent(
    session: AgentSession,
    argv: Sequence[str],
    *,
    programs: Starts | None = None,
    policy: Policy = allow,
    environment: Mapping[str, str] | None = None,
    watch: Watch | None = None,
    mcp_servers: Sequence[Any] = (),
) -> AsyncIterator[AcpAgent]:
    """Start an agent that speaks the protocol, in a session; at the end of the block everything of it ends.

    Args:
        session: the agent's side of the session.
        argv: the agent's program and its arguments.
        programs: runs the agent and its terminals; ``session.programs()`` by default.
        policy: decides what the agent asks permission for; ``allow`` by default, since it stays confined and cannot promote.
        environment: more variables of the agent.
        watch: called with each update of the agent, in their order, once it is recorded.
        mcp_servers: servers of the Model Context Protocol that the agent is to use, as the protocol's schema has them. It starts and
            reaches them where it is confined.

    Raises:
        ExtraMissing: the extra ``acp`` is not installed.
        CapabilityMissing: the session's workspace is an overlay, or the agent uses no servers of such a kind.
        AdapterUnavailable: the program does not speak the protocol, or could not be confined.
        GittrixError: as for ``Programs.start``.
    """
    if parts_of(session).workspace.layers is not None:
        raise CapabilityMissing(
            f"No agent of the Agent Client Protocol can work in {session.id}: its workspace is an overlay.",
            why="While a program runs in an overlay, no other process can mount or write it, and the agent is such a program.",
            fix=Advice("Start the session with workspace='clone'.", "Start the session with --workspace clone."),
        )
    async with AsyncExitStack() as held:
        if programs is None:
            own = await in_thread(session.programs, Programs.close)
            held.push_async_callback(asyncio.to_thread, own.close)
            programs = own
        running = await in_thread(partial(programs.start, argv, environment=environment), Running.kill)
        async with _attended(running, SessionClient(session, programs, policy, running, watch), mcp_servers) as agent:
            yield agent


@asynccontextmanager
async def conversation(start: Callable[[], Running], log: Log, workspace: str, policy: Policy = allow) -> AsyncIterator[AcpAgent]:
    """Start an agent that gets neither files nor terminals of this client; at the end of the block everything of it ends.

    Args:
        start: starts its program.
        log: what the conversation is recorded in.
        workspace: the directory that it works in, as it sees it.
        policy: decides what it asks permission for.

    Raises:
        AdapterUnavailable: the program does not speak the protocol; or as ``start``.
    """
    running = await in_thread(start, Running.kill)
    async with _attended(running, ReportListener(log, workspace, policy, running)) as agent:
        yield agent


@asynccontextmanager
async def _attended(running: Running, client: ReportListener, mcp_servers: Sequence[Any] = ()) -> AsyncIterator[AcpAgent]:
    agent = AcpAgent(running, client)
    try:
        await agent.begin(mcp_servers)
        yield agent
    finally:
        await asyncio.shield(agent.close())


def _answered(killing: asyncio.TimerHandle, answer: asyncio.Future[Any]) -> None:
    """The agent has answered a prompt that was cancelled, or has ended: it is not to be killed any more."""
    killing.cancel()
    if not answer.cancelled():
        answer.exception()  # marks it as read: asyncio reports an error that no task has read


def _require_kinds(servers: Sequence[Any], capabilities: Any) -> None:
    """Check that the agent uses servers of these kinds; each uses programs."""
    can = getattr(capabilities, "mcp_capabilities", None)
    for server in servers:
        kind = getattr(server, "type", "stdio")
        if kind != "stdio" and not getattr(can, kind, False):
            raise CapabilityMissing(
                f"The agent does not use MCP servers of kind {kind!r}, as {visible_line(server.name)} is.",
                why="It says so when it starts.",
                fix="Give the server as a program, or leave it out.",
            )


def run_prompt(
    session: AgentSession,
    argv: Sequence[str],
    text: str,
    *,
    timeout: float | None = None,
    programs: Starts | None = None,
    policy: Policy = allow,
    environment: Mapping[str, str] | None = None,
) -> Prompted:
    """Start an agent, send it one prompt, and wait for the end of the turn; for a caller without an event loop.

    Args:
        session, argv, programs, policy, environment: as for ``acp_agent``.
        text: the prompt.
        timeout: real seconds from the agent's start until the prompt is cancelled and the agent killed; None for none.

    Raises:
        TimeoutError: the time was over.
        GittrixError: as for ``acp_agent`` and ``AcpAgent.prompt``.
    """

    async def whole() -> Prompted:
        async with (
            asyncio.timeout(timeout) as limit,
            acp_agent(session, argv, programs=programs, policy=policy, environment=environment) as agent,
        ):
            answer = await agent.prompt(text)
            limit.reschedule(None)  # it has answered, and may take its time to end
        return answer

    return asyncio.run(whole())


class _Lines:
    """Messages of the protocol on the standard streams of a program, one a line.

    Attributes:
        problem: why no more messages are received, if that is not the end of the stream.
    """

    problem = ""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._lines: deque[bytes] = deque()
        self._begun = bytearray()  # the line whose end did not come yet

    async def send(self, message: dict[str, Any]) -> None:
        self._running.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        if self._running.reads_no_more:
            raise ConnectionError("It has closed its standard input")

    async def receive(self) -> dict[str, Any] | None:
        while self._lines or await self._read():
            await asyncio.sleep(0)  # an agent that writes without end leaves everybody else a turn
            try:
                message = json.loads(self._lines.popleft())
            except (ValueError, RecursionError):  # a program that also prints
                continue
            if isinstance(message, dict):
                if isinstance(message.get("error") or {}, dict):
                    return message
                self.problem = "It answered with an error that is no object"  # the connection would wait for another answer for ever
                break
        return None

    async def _read(self) -> bool:
        """Wait for at least one line; whether one came."""
        while not self._lines:
            piece = await self._running.stdout.read_async()
            first, *more = piece.split(b"\n")
            self._begun += first
            if len(self._begun) > _MOST_IN_A_LINE:
                self.problem = f"It wrote a line of more than {_MOST_IN_A_LINE} bytes"
            if not piece or self.problem:
                return False
            if more:
                self._lines.extend([bytes(self._begun), *more[:-1]])
                self._begun = bytearray(more[-1])
        return True

    async def close(self) -> None:
        self._running.close_stdin()
