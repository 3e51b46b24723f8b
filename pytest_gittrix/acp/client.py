"""The client of the Agent Client Protocol: an agent program that lives in a session's confinement, and works by the session.

Files that it asks for are read and written by the session, its terminals run where it runs, and what it may do a policy decides. What it
does by itself is confined as every program of the session is.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from pytest_gittrix.acp.permissions import Policy, allow
from pytest_gittrix.acp.transcript import Log, Transcript
from pytest_gittrix.aio.threads import decided, in_thread
from pytest_gittrix.confine.runner import MOST_OUTPUT
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.errors import AdapterUnavailable, Advice, CapabilityMissing, GittrixError, PathNotFound
from pytest_gittrix.extras import needs
from pytest_gittrix.safe_text import visible, visible_line

with needs("acp"):
    from acp import PROTOCOL_VERSION, RequestError, connect_to_agent, text_block
    from acp.schema import (
        AllowedOutcome,
        ClientCapabilities,
        CreateTerminalResponse,
        DeniedOutcome,
        FileSystemCapabilities,
        Implementation,
        KillTerminalResponse,
        ReadTextFileResponse,
        ReleaseTerminalResponse,
        RequestPermissionResponse,
        TerminalExitStatus,
        TerminalOutputResponse,
        WaitForTerminalExitResponse,
        WriteTextFileResponse,
    )

CANCELLED: Final = "cancelled"
"""The stop reason of a prompt that was cancelled."""
FAILED: Final = "failed"
"""What is recorded as the stop reason of a prompt that the agent did not answer."""

GRACE: Final = 10.0
"""Real seconds that an agent has to end a prompt that was cancelled; then it is killed."""

_MOST_ERRORS: Final = 1 << 12
_MOST_IN_A_LINE: Final = 1 << 26
_MOST_TERMINALS: Final = 64
_MOST_QUESTIONS: Final = 16

T = TypeVar("T")

Watch = Callable[[Mapping[str, Any]], Awaitable[object]]
"""Is called with each update of the agent, as the protocol's JSON has it."""


class Starts(Protocol):
    """What starts the agent and its terminals: ``Programs``, or what does the same."""

    @property
    def workspace(self) -> str:
        """The workspace as programs see it."""
        ...

    def start(self, argv: Sequence[str], *more: Any, **options: Any) -> Running:
        """Start a program that stays, with options of ``Programs.start``."""
        ...


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

    def __init__(self, running: Running, client: _Listener) -> None:
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
            why="While a program runs in an overlay nobody else can mount or write it, and the agent itself is such a program.",
            fix=Advice("Start the session with workspace='clone'.", "Start the session with --workspace clone."),
        )
    async with AsyncExitStack() as held:
        if programs is None:
            own = await in_thread(session.programs, Programs.close)
            held.push_async_callback(asyncio.to_thread, own.close)
            programs = own
        running = await in_thread(partial(programs.start, argv, environment=environment), Running.kill)
        async with _attended(running, _Client(session, programs, policy, running, watch), mcp_servers) as agent:
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
    async with _attended(running, _Listener(log, workspace, policy, running)) as agent:
        yield agent


@asynccontextmanager
async def _attended(running: Running, client: _Listener, mcp_servers: Sequence[Any] = ()) -> AsyncIterator[AcpAgent]:
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
        answer.exception()  # else asyncio reports that nobody has read it, where nobody waits for the prompt


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


class _Listener:
    """Receives what the agent reports, and has the policy decide what it asks permission for."""

    capabilities = ClientCapabilities()

    def __init__(self, log: Log, workspace: str, policy: Policy, running: Running, watch: Watch | None = None) -> None:
        self.workspace = workspace
        self.transcript = Transcript(log)
        self.turn_over = asyncio.Event()
        self.turn_over.set()
        self._policy = policy
        self._running = running
        self._watch = watch
        self._one_at_a_time = asyncio.Lock()
        self._questions = 0
        self._errors = bytearray()
        self._reading = asyncio.create_task(self._read_errors())

    async def _read_errors(self) -> None:
        async for piece in self._running.stderr:  # an agent whose errors nobody reads would stall
            self._errors += piece
            del self._errors[:-_MOST_ERRORS]

    def last_errors(self) -> str:
        return self._errors.decode("utf-8", "replace").strip()

    async def in_order(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a blocking call in a thread, once the calls before it have returned."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(call, *arguments)

    async def close(self) -> None:
        self._reading.cancel()

    # Called by the connection, with the names and arguments of the protocol.

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:  # noqa: ARG002
        fields = _json(update)
        async with self._one_at_a_time:
            await asyncio.to_thread(self.transcript.take, fields)
            if self._watch is not None:
                await self._watch(fields)

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **_: Any) -> Any:  # noqa: ARG002
        call, shown = _json(tool_call), [_json(option) for option in options]
        chosen = await self._chosen(call, shown)
        kinds = {option["optionId"]: option["kind"] for option in shown}
        if chosen is not None and chosen not in kinds:
            raise RequestError.internal_error({"details": f"The policy chose {chosen!r}, which is no option."})
        await self.in_order(self.transcript.decided, call["toolCallId"], kinds.get(chosen, "cancelled") if chosen else "cancelled")
        outcome = DeniedOutcome(outcome="cancelled") if chosen is None else AllowedOutcome(outcome="selected", option_id=chosen)
        return RequestPermissionResponse(outcome=outcome)

    async def _chosen(self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:
        """The option that the policy chooses. None if the turn is over: then it is not asked, or its answer is dropped."""
        if self.turn_over.is_set():
            return None
        if self._questions >= _MOST_QUESTIONS:
            raise RequestError.invalid_params({"details": f"{_MOST_QUESTIONS} questions are open, which is the most. Wait for an answer."})
        self._questions += 1
        deciding = asyncio.ensure_future(decided(self._policy, call, options))
        over = asyncio.ensure_future(self.turn_over.wait())
        try:
            await asyncio.wait({deciding, over}, return_when=asyncio.FIRST_COMPLETED)
            return None if over.done() else deciding.result()
        finally:
            self._questions -= 1
            deciding.cancel()
            over.cancel()


class _Client(_Listener):
    """Also gives the agent what it asks its client for: files and terminals of the session."""

    capabilities = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True)

    def __init__(self, session: AgentSession, programs: Starts, policy: Policy, running: Running, watch: Watch | None) -> None:
        super().__init__(session, programs.workspace, policy, running, watch)
        self._session = session
        self._programs = programs
        self._terminals: dict[str, asyncio.Future[Running]] = {}  # also those that are starting
        self._numbers = itertools.count(1)

    async def close(self) -> None:
        for starting in [*self._terminals.values()]:
            with suppress(Exception):  # it could not be started
                await asyncio.to_thread(Running.kill, await starting)
        self._terminals.clear()
        await super().close()

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **_: Any  # noqa: ARG002
    ) -> Any:  # fmt: skip
        with refusals(path):
            text = (await asyncio.to_thread(self._session.read, self._inside(path))).decode("utf-8")
        if line is not None or limit is not None:
            first = max(line or 1, 1) - 1
            text = "".join(itertools.islice(io.StringIO(text), first, None if limit is None else first + max(limit, 0)))
        return ReadTextFileResponse(content=text)

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> Any:  # noqa: ARG002
        with refusals(path):
            await asyncio.to_thread(self._session.write, self._inside(path), content)
        return WriteTextFileResponse()

    async def create_terminal(
        self,
        session_id: str,  # noqa: ARG002
        command: str,
        args: list[str] | None = None,
        env: list[Any] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **_: Any,
    ) -> Any:
        most = MOST_OUTPUT if output_byte_limit is None else min(output_byte_limit, MOST_OUTPUT)
        variables = {variable.name: variable.value for variable in env or []}

        def start() -> Running:
            return self._programs.start(
                [command, *(args or [])], cwd=cwd or ".", environment=variables, merged=True, keep="last", most_output=most
            )

        with refusals(command):
            if len(self._terminals) >= _MOST_TERMINALS:
                raise CapabilityMissing(f"There are {_MOST_TERMINALS} terminals, which is the most.", fix="Release one before.")
            name = f"term-{next(self._numbers)}"
            starting = self._terminals[name] = asyncio.ensure_future(asyncio.to_thread(start))
            try:
                await asyncio.shield(starting)
            except Exception:
                del self._terminals[name]
                raise
        return CreateTerminalResponse(terminal_id=name)

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> Any:  # noqa: ARG002
        running = self._terminal(terminal_id)
        ended, output = running.poll(), running.stdout
        shown = output.peek()
        if output.truncated:  # it may begin in the middle of a character
            shown = shown[next((at for at, byte in enumerate(shown[:4]) if byte & 0xC0 != 0x80), 0) :]
        status = None if ended is None else TerminalExitStatus(**_exit_fields(ended))
        return TerminalOutputResponse(output=shown.decode("utf-8", "replace"), truncated=output.truncated, exit_status=status)

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **_: Any) -> Any:  # noqa: ARG002
        with refusals(terminal_id):
            return WaitForTerminalExitResponse(**_exit_fields(await self._terminal(terminal_id).wait_async()))

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> Any:  # noqa: ARG002
        await asyncio.to_thread(self._terminal(terminal_id).kill)
        return KillTerminalResponse()

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> Any:  # noqa: ARG002
        running = self._terminal(terminal_id)
        del self._terminals[terminal_id]
        await asyncio.to_thread(running.kill)
        return ReleaseTerminalResponse()

    def _terminal(self, name: str) -> Running:
        starting = self._terminals.get(name)
        if starting is None or not starting.done():
            raise RequestError.resource_not_found(name)
        return starting.result()

    def _inside(self, path: str) -> str:
        """A path as the session takes it: the agent names the workspace as programs see it."""
        return os.path.relpath(path, self.workspace) if path.startswith(f"{self.workspace}/") else path


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn the errors of a session into those of the protocol."""
    try:
        yield
    except PathNotFound as error:
        raise RequestError.resource_not_found(what) from error
    except GittrixError as error:
        raise RequestError.invalid_params({"details": str(error), "code": error.code}) from error
    except UnicodeDecodeError as error:
        raise RequestError.invalid_params({"details": f"{what!r} is no text in UTF-8."}) from error


def _json(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _exit_fields(ended: Finished) -> dict[str, Any]:
    return {"exit_code": ended.code, "signal": None if ended.signal is None else _signal_name(ended.signal)}


def _signal_name(number: int) -> str:
    """The name of a signal; the number itself for one between the real-time signals, which have no names."""
    return signal.Signals(number).name if number in {*signal.Signals} else str(number)
