"""A session as an environment of the Agent Development Kit: its tools, its files, and what ends with a command."""

from __future__ import annotations

import pytest

pytest.importorskip("google.adk", reason="needs the environment of make tools")

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai.types import Content, Part
from support.frameworks import ADDED, LEVELS, available, cancel, discard_while

from examples.integrations.adk_environment import GittrixEnvironment
from pytest_gittrix import UserSession
from pytest_gittrix.errors import SessionExpired

pytestmark = pytest.mark.filterwarnings("ignore")  # the kit warns of each part that it calls experimental


class Scripted(BaseLlm):
    """A model that calls tools, one after another, and then says that it is done."""

    calls: list[tuple[str, dict[str, Any]]]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        part = Part.from_function_call(name=self.calls[0][0], args=self.calls.pop(0)[1]) if self.calls else Part(text="Mended.")
        yield LlmResponse(content=Content(role="model", parts=[part]))


def test_an_agent_works_with_the_tools_of_the_kit(session: UserSession) -> None:
    calls = [
        ("ReadFile", {"path": "app.py"}),
        ("EditFile", {"path": "app.py", "old_string": "a - b", "new_string": "a + b"}),
        ("Execute", {"command": "python3 -B -c 'import app; print(app.add(2, 3))'"}),
        ("WriteFile", {"path": "notes/done.md", "content": "Done.\n"}),
    ]
    environment = GittrixEnvironment(session.for_agent())
    agent = Agent(name="mender", model=Scripted(model="scripted", calls=calls), tools=[EnvironmentToolset(environment=environment)])

    async def run() -> list[Any]:
        runner = InMemoryRunner(agent=agent)
        events = await runner.run_debug("Mend the sum.", quiet=True)
        await runner.close()
        return [answer.response for event in events for answer in event.get_function_responses()]

    answers = asyncio.run(run())

    assert [answer["status"] for answer in answers] == ["ok"] * 4
    assert answers[2]["stdout"] == "5\n"
    assert session.for_agent().read("app.py") == ADDED.encode()
    assert session.for_agent().read("notes/done.md") == b"Done.\n"


@pytest.mark.parametrize("level", LEVELS)
def test_commands_and_files_are_those_of_the_session(session: UserSession, level: str, tmp_path: Path) -> None:
    environment = GittrixEnvironment(session.for_agent(), confine=available(level))

    async def scenario() -> None:
        await environment.execute("touch ~/note")
        for _ in range(2):  # it can be used again after its end
            assert (await environment.execute("ls ~/note")).exit_code == 0  # the home is that of the session
            done = await environment.execute("pwd; echo err >&2; exit 3")
            assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (3, f"{environment.working_dir}\n", "err\n", False)
            await environment.close()
            await environment.initialize()
        await environment.write_file(Path("new/file"), "naïve")
        await environment.write_file(environment.working_dir / "new/bytes", b"\0")
        assert await environment.read_file(environment.working_dir / "new/file") == "naïve".encode()
        assert await environment.read_file("new/bytes") == b"\0"
        with pytest.raises(FileNotFoundError):
            await environment.read_file("no/file")

    asyncio.run(scenario())
    session.discard()
    with pytest.raises(SessionExpired):
        asyncio.run(environment.execute("true"))


def test_a_command_that_takes_too_long_or_is_cancelled_ends_with_all_it_started(session: UserSession) -> None:
    environment = GittrixEnvironment(session.for_agent(), confine=available("jail"))

    async def scenario() -> None:
        late = await environment.execute("echo out; setsid sleep 600 & sleep 600", timeout=0.3)
        assert (late.exit_code, late.stdout, late.timed_out) == (124, "out\n", True)
        await cancel(session, environment.execute("echo > started; setsid sleep 600 & sleep 600"))

    asyncio.run(scenario())


def test_a_command_that_ends_with_its_session_says_so(session: UserSession) -> None:
    environment = GittrixEnvironment(session.for_agent(), confine="off")

    command = environment.execute("echo > started; sleep 600", timeout=60)
    assert isinstance(asyncio.run(discard_while(session, command)), SessionExpired)
