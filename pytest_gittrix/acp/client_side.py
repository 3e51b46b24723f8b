"""What an agent may ask its client for by the protocol: permission, and files and terminals of its session."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from pytest_gittrix.acp.permissions import Policy
from pytest_gittrix.acp.transcript import Log, Transcript
from pytest_gittrix.aio.threads import decided
from pytest_gittrix.confine.runner import MOST_OUTPUT
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.errors import CapabilityMissing, GittrixError, PathNotFound
from pytest_gittrix.extras import needs

with needs("acp"):
    from acp import RequestError
    from acp.schema import (
        AllowedOutcome,
        ClientCapabilities,
        CreateTerminalResponse,
        DeniedOutcome,
        FileSystemCapabilities,
        KillTerminalResponse,
        ReadTextFileResponse,
        ReleaseTerminalResponse,
        RequestPermissionResponse,
        TerminalExitStatus,
        TerminalOutputResponse,
        WaitForTerminalExitResponse,
        WriteTextFileResponse,
    )

_MOST_ERRORS: Final = 1 << 12
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


class ReportListener:
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
        async for piece in self._running.stderr:  # an agent stalls if its errors are not read
            self._errors += piece
            del self._errors[:-_MOST_ERRORS]

    def last_errors(self) -> str:
        """The end of what the agent wrote to standard error."""
        return self._errors.decode("utf-8", "replace").strip()

    async def in_order(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a blocking call in a thread, once the calls before it have returned."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(call, *arguments)

    async def close(self) -> None:
        """Stop reading errors."""
        self._reading.cancel()

    # Called by the connection, with the names and arguments of the protocol.

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:  # noqa: ARG002
        """Record an update, then pass it to the watcher."""
        fields = _json(update)
        async with self._one_at_a_time:
            await asyncio.to_thread(self.transcript.take, fields)
            if self._watch is not None:
                await self._watch(fields)

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **_: Any) -> Any:  # noqa: ARG002
        """Answer with the option that the policy chooses."""
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


class SessionClient(ReportListener):
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
