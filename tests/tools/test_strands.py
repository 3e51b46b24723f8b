"""A session as the sandbox of a Strands agent: its tools, its files, and what ends with a command."""

from __future__ import annotations

import pytest

pytest.importorskip("strands", reason="needs the environment of make tools")

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent
from strands.models import Model
from strands.sandbox import ExecutionResult, FileInfo, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from support.frameworks import ADDED, LEVELS, available, cancel

from examples.integrations.strands_sandbox import GittrixSandbox
from pytest_gittrix import UserSession
from pytest_gittrix.engine.agents.programs import MOST_OUTPUT
from pytest_gittrix.errors import SessionExpired


class Scripted(Model):
    """A model that calls tools, one after another, and then says that it is done."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.calls = [*calls]

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        name, arguments = self.calls.pop(0) if self.calls else ("", {})
        tool = {"toolUse": {"name": name, "toolUseId": str(len(self.calls))}}
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": tool if name else {}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}} if name else {"text": "Mended."}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if name else "end_turn"}}

    def get_config(self) -> dict[str, Any]:
        return {}

    update_config = structured_output = None


def test_an_agent_works_with_the_tools_that_the_sandbox_brings(session: UserSession) -> None:
    sandbox = GittrixSandbox(session.for_agent())
    app = f"{sandbox.programs.workspace}/app.py"
    model = Scripted(
        ("sandbox_file_editor", {"command": "view", "path": app}),
        ("sandbox_file_editor", {"command": "str_replace", "path": app, "old_str": "a - b", "new_str": "a + b"}),
        ("sandbox_shell", {"command": "python3 -B -c 'import app; print(app.add(2, 3))'"}),
    )

    agent = Agent(model=model, sandbox=sandbox, callback_handler=None)
    assert str(agent("Mend the sum.")) == "Mended.\n"

    results = [part["toolResult"] for message in agent.messages for part in message["content"] if "toolResult" in part]
    assert [one["status"] for one in results] == ["success"] * 3
    assert json.loads(results[-1]["content"][0]["text"])["output"] == "5\n"
    assert session.for_agent().read("app.py") == ADDED.encode()


@pytest.mark.parametrize("level", LEVELS)
def test_commands_and_files_are_those_of_the_session(session: UserSession, level: str) -> None:
    sandbox = GittrixSandbox(session.for_agent(), confine=available(level))

    async def scenario() -> None:
        line = "echo out; echo err >&2; printf '\\303'; sleep 0.1; printf '\\251'; pwd; echo $WHO; exit 3"
        pieces = [piece async for piece in sandbox.execute_streaming(line, cwd="/", env={"WHO": "Ada"})]
        *chunks, result = pieces
        assert result == ExecutionResult(3, "out\né/\nAda\n", "err\n")
        assert all(isinstance(chunk, StreamChunk) for chunk in chunks)
        assert "".join(chunk.data for chunk in chunks if chunk.stream_type == "stdout") == result.stdout
        assert (await sandbox.execute_code("print(6 * 7)", "python3")).stdout == "42\n"

        await sandbox.write_file("new/file", bytes(range(256)))
        assert await sandbox.read_file("new/file") == bytes(range(256))
        assert await sandbox.list_files("new") == [FileInfo("file", is_dir=False)]
        await sandbox.remove_file("new/file")
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file("new/file")
        with pytest.raises(SandboxPathNotFoundError):
            await sandbox.list_files("nowhere")

    asyncio.run(scenario())
    session.discard()
    with pytest.raises(SessionExpired):
        asyncio.run(sandbox.execute("true"))


def test_a_command_that_takes_too_long_is_cancelled_or_left_ends_with_all_it_started(session: UserSession) -> None:
    sandbox = GittrixSandbox(session.for_agent(), confine=available("jail"), timeout=0.3)

    async def scenario() -> None:
        with pytest.raises(SandboxTimeoutError) as late:
            await sandbox.execute("echo out; setsid sleep 600 & sleep 600")
        assert late.value.stdout == "out\n"
        stream = sandbox.execute_streaming("echo out; sleep 600", timeout=600)
        assert await anext(stream) == StreamChunk("out\n")
        await stream.aclose()
        await cancel(session, sandbox.execute("echo > started; setsid sleep 600 & sleep 600", timeout=600))

    asyncio.run(scenario())


def test_output_is_bounded_for_a_caller_that_reads_slowly_and_in_the_result(session: UserSession) -> None:
    sandbox = GittrixSandbox(session.for_agent(), confine=available("jail"))
    assert session.workspace_path is not None
    written = session.workspace_path / "written"

    async def scenario() -> None:
        stream = sandbox.execute_streaming("head -c 24000000 /dev/zero; touch written")
        first = await anext(stream)
        await asyncio.sleep(0.3)
        assert not written.exists()  # the program waits for its reader
        *chunks, result = [first, *[piece async for piece in stream]]
        assert written.exists()
        assert sum(len(chunk.data) for chunk in chunks) == 24_000_000
        assert isinstance(result, ExecutionResult)
        assert len(result.stdout) == MOST_OUTPUT

        large = b"0123456789" * 1_500_000  # more than a result holds
        await sandbox.write_file("large", large)
        assert await sandbox.read_file("large") == large

    asyncio.run(scenario())


def test_a_command_that_ends_with_its_session_says_so_and_was_started_beside_the_event_loop(
    session: UserSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = GittrixSandbox(session.for_agent(), confine="off")
    start, threads = sandbox.programs.start, []
    monkeypatch.setattr(sandbox.programs, "start", lambda *a, **k: (threads.append(threading.current_thread()), start(*a, **k))[1])

    async def scenario() -> None:
        stream = sandbox.execute_streaming("echo started; sleep 600")
        assert await anext(stream) == StreamChunk("started\n")
        await asyncio.to_thread(session.discard, force=True)
        with pytest.raises(SessionExpired):
            _ = [piece async for piece in stream]

    asyncio.run(scenario())
    assert threading.main_thread() not in threads


def test_a_limit_that_a_command_passes_shows_in_its_exit_code(session: UserSession) -> None:
    sandbox = GittrixSandbox(session.for_agent(), confine=available("jail"), limits={"cpu_seconds": 1})

    assert asyncio.run(sandbox.execute("while :; do :; done")).exit_code == 124
