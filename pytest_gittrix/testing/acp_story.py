"""A story of an agent that speaks the Agent Client Protocol, from its first edit to the second promotion, and what it leaves behind.

The agent lives in its session's confinement. It edits, asks permission and runs the tests in a terminal; it is cancelled in the middle and
goes on; a person promotes twice, and a rival commits in between. ``gittrix agent --demo`` tells it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.os_level.command import Level
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.os_level.proc import descending, open_connections
from pytest_gittrix.os_level.process_tree import KILL_WAIT
from pytest_gittrix.testing import acp_program
from pytest_gittrix.testing.world import World

if TYPE_CHECKING:
    from pytest_gittrix.acp.client import AcpAgent
    from pytest_gittrix.engine.user_session import UserSession

FILES: Final = {"app.py": 'def greet():\n    return "hi"\n', "README.md": "A greeter.\n"}
MOST_SECONDS: Final = 60.0

_NAP: Final = 0.01

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Counts:
    """What of stories is there at one moment.

    Attributes:
        processes: processes that descend from this one.
        descriptors: pipes, sockets and handles of processes that this process has open.
        directories: entries of the directory that the stories happen in.
        locks: lock files in that directory.
    """

    processes: int
    descriptors: int
    directories: int
    locks: int

    @classmethod
    def now(cls, root: Path) -> Counts:
        """Count.

        Args:
            root: the directory that the stories happen in.
        """
        found = [name for _, names, files in os.walk(root) for name in (*names, *files)]
        return cls(
            sum(1 for _ in descending(os.getpid())) - 1,
            len(open_connections()),
            len(os.listdir(root)),
            sum(name.endswith(".lock") for name in found),
        )

    def beyond(self, before: Counts) -> Counts:
        """The increase since an earlier count."""
        return Counts(*(max(getattr(self, one.name) - getattr(before, one.name), 0) for one in fields(self)))

    def __bool__(self) -> bool:
        """Whether anything is there."""
        return any(getattr(self, one.name) for one in fields(self))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, one.name)} {one.name}" for one in fields(self))


def run_stories(times: int = 1, *, confine: Level = "auto", tell: Tell = lambda _: None) -> Counts:
    """Run the story some times, and count what is left.

    Args:
        times: how often. What stays in the process after a first program was confined is no leftover, so one runs before.
        confine: the level of the agent's confinement.
        tell: called with each sentence.

    Returns:
        What is left of all of them.

    Raises:
        ExtraMissing: the extra ``acp`` is not installed.
        CapabilityMissing: programs cannot be confined so here.
        AssertionError: something happened that the story does not tell.
    """
    with tempfile.TemporaryDirectory(prefix="gittrix-story-") as directory:
        root = Path(directory)
        with World.open(root / "first", files=FILES) as world:
            world.start().for_agent().run(["true"], confine=confine, timeout=MOST_SECONDS)
        before = Counts.now(root)
        for number in range(times):
            with World.open(root / str(number), files=FILES, keep=False) as world:
                asyncio.run(_story(world, confine, tell))
        return _left(root, before)


def _left(root: Path, before: Counts) -> Counts:
    """The count beyond an earlier one, once everything that is ending has ended."""
    deadline = real_seconds() + KILL_WAIT
    while (left := Counts.now(root).beyond(before)) and real_seconds() < deadline:
        pause(_NAP)
    return left


async def _story(world: World, confine: Level, tell: Tell) -> None:
    from pytest_gittrix.acp.client import acp_agent

    session = world.start("greet people")
    asked: list[str] = []

    def permit(call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:
        asked.append(call["title"])
        tell(f"The agent asks: {call['title']}? The person says yes.")
        return next(str(option["optionId"]) for option in options if option["kind"] == "allow_once")

    program = Path(acp_program.__file__)
    agents_side = session.for_agent()
    async with asyncio.timeout(MOST_SECONDS):
        programs = await asyncio.to_thread(lambda: agents_side.programs(confine=confine, readable=[program]))
        try:
            argv = [sys.executable, "-I", "-S", str(program)]
            async with acp_agent(agents_side, argv, programs=programs, policy=permit) as agent:
                tell(f"An agent of the Agent Client Protocol works in {session.id}, confined at level {programs.confinement.level}.")
                await _work(world, session, agent, tell)
        finally:
            await asyncio.to_thread(programs.close)
    assert asked == ["Write app.py", "Write test_app.py", "Write farewell.py"]
    await asyncio.to_thread(session.discard)
    tell("The person ends the session.")


async def _work(world: World, session: UserSession, agent: AcpAgent, tell: Tell) -> None:
    from pytest_gittrix.acp.turns import take_turn

    turn = asyncio.create_task(take_turn(session, agent, "greet"))
    while not (results := [event.data for event in session.history(["tool_result"]) if event.data.get("output")]):
        assert not turn.done(), turn
        await asyncio.sleep(0.005)
    assert results[0]["output"] == "1 passed\n"
    tell("The agent runs the tests in a terminal: 1 passed. Then it waits for another program.")
    await agent.cancel()
    assert (await turn).stop_reason == "cancelled"
    tell("The person cancels the turn; the program that ran is answered as cancelled.")
    assert (await take_turn(session, agent, "go on")).text == "The tests pass."
    tell("The same agent goes on, and says: The tests pass.")
    first = await asyncio.to_thread(lambda: session.promote(message="Say hello", keep=True))
    tell(f"The person promotes {first.sha[:8]}, Say hello; the session goes on from there.")
    rival = await asyncio.to_thread(lambda: world.rival.commit({"README.md": "A polite greeter.\n"}, "Polish the page"))
    tell(f"A rival commits {rival[:8]}, Polish the page.")
    assert (await take_turn(session, agent, "leave")).stop_reason == "end_turn"
    second = await asyncio.to_thread(lambda: session.promote(message="Say goodbye", keep=True))
    tell(f"The person promotes {second.sha[:8]}, Say goodbye, above the rival's commit.")
    parents = [world.durable.git("rev-parse", f"{sha}^").strip() for sha in (second.sha, rival)]
    assert parents == [rival, first.sha]
    assert world.durable.read("README.md") == b"A polite greeter.\n"
    assert world.durable.read("farewell.py").decode() == acp_program.FAREWELL
    assert await asyncio.to_thread(session.touched_files) == []
