"""Sessions and programs for asyncio: the same as without, nothing blocks the event loop, and a cancelled task leaves nothing running."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from support.confined import available

from pytest_gittrix import AgentSession, GitTrix, UserSession, World
from pytest_gittrix.aio import AsyncAgentSession, AsyncGitTrix, AsyncPrograms, AsyncUserSession, in_thread
from pytest_gittrix.aio.threads import AsyncProxy, decided, mirrored
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.errors import PathNotFound, SessionExpired

LONG = 60
T = TypeVar("T")
LEVELS = ("off", "guard by landlock", "jail by namespaces")
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")


@pytest.fixture
def world() -> Iterator[World]:
    with World.open(files={"app.py": "v1\n"}) as world:
        yield world


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    available(request.param)
    return request.param.split()[0]


def whole(main: Coroutine[Any, Any, T]) -> T:
    async def timed() -> T:
        async with asyncio.timeout(LONG):
            return await main

    return asyncio.run(timed())


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_a_session_from_start_to_promotion(world: World) -> None:
    async def main() -> None:
        engine = AsyncGitTrix(world.gittrix)
        session = await engine.start_session("task", agent="ada")
        agent = session.for_agent()
        await asyncio.gather(*(agent.write(f"{number}.py", "x\n") for number in range(5)))
        async with agent.step("one"):
            await agent.write("app.py", b"v2\n")
        with pytest.raises(ValueError, match="wrong"):
            async with agent.step("two"):
                raise ValueError("wrong")
        assert await agent.read("app.py") == b"v2\n"
        with pytest.raises(PathNotFound):
            await agent.read("none.py")
        assert [step.data["outcome"] for step in await agent.history() if step.type == "step.completed"] == ["done", "failed"]

        copy = await session.fork(task="again")
        assert await copy.touched_files() == await session.touched_files() == sorted([*(f"{n}.py" for n in range(5)), "app.py"])
        await copy.discard()
        await session.promote(["app.py"])
        assert await session.archives() == session.blocking.archives
        assert {one.id for one in await engine.query(agent="ada")} >= {session.id}
        with pytest.raises(SessionExpired):
            await engine.get_session(session.id)

    whole(main())
    assert world.durable.read("app.py") == b"v2\n"


def test_the_mirrors_have_the_methods_of_what_they_mirror() -> None:
    turns = {"start_turn", "turn_running"}  # such a turn is a function of the caller's, in a process or a thread

    assert public(AsyncUserSession) >= public(UserSession) - turns
    assert public(AsyncAgentSession) == public(AgentSession)
    assert public(AsyncGitTrix) >= public(GitTrix) - {"durable", "init", "stream", "gen_id", "iter_sessions"}
    assert public(AsyncPrograms) >= public(Programs)


def test_each_mirrored_method_makes_the_call_of_its_name() -> None:
    class Names:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: name

    async def main() -> None:
        for kind in (AsyncUserSession, AsyncAgentSession, AsyncGitTrix, AsyncPrograms):
            mirror: Any = AsyncProxy.__new__(kind)
            mirror.blocking = Names()
            made = mirrored(UserSession.discard).__code__
            names = [name for name in public(kind) if getattr(getattr(kind, name), "__code__", None) is made]
            assert len(names) > 1
            assert [await getattr(mirror, name)() for name in names] == names

    whole(main())
    with pytest.raises(TypeError, match="no method"):
        mirrored(UserSession.archives)  # type: ignore[arg-type]


def test_a_policy_that_waits_for_a_person_holds_up_nobody_and_ends_with_its_task() -> None:
    asked, over = threading.Event(), threading.Event()

    def slow(word: str) -> str:
        asked.set()
        over.wait(LONG)
        return word

    async def soon(word: str) -> str:
        return word

    async def main() -> None:
        # More than the pool of the event loop has threads.
        deciding = [asyncio.create_task(decided(slow, "yes")) for _ in range((os.cpu_count() or 1) + 6)]
        await asyncio.to_thread(asked.wait, LONG)
        deciding[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await deciding[0]
        assert await decided(soon, "no") == "no"
        over.set()
        assert {*await asyncio.gather(*deciding[1:])} == {"yes"}
        with pytest.raises(ZeroDivisionError):
            await decided(lambda: 1 // 0)

    whole(main())


def test_a_step_that_is_cancelled_at_its_beginning_has_failed(world: World) -> None:
    async def main() -> None:
        agent = AsyncUserSession(world.start()).for_agent()

        async def work() -> None:
            async with agent.step("one"):
                await agent.write("late.py", "x\n")

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        steps = await agent.history(["step.started", "step.completed"])
        assert [step.data.get("outcome") for step in steps] == [None, "failed"]
        assert await agent.touched_files() == []


def test_a_turn_of_a_task_is_recorded_and_a_cancelled_one_has_failed(world: World) -> None:
    async def main() -> None:
        session = await AsyncGitTrix(world.gittrix).start_session("task")
        await session.end_turn(await session.begin_turn(role="review"))
        async with session.turn() as context:
            await AsyncAgentSession(context.session).write("app.py", "v2\n")

        async def hang() -> None:
            async with session.turn():
                begun.set()
                await asyncio.Event().wait()

        begun = asyncio.Event()
        hanging = asyncio.create_task(hang())
        await begun.wait()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        for begins in (session.turn().__aenter__(), session.begin_turn()):
            beginning = asyncio.ensure_future(begins)
            await asyncio.sleep(0)
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
            assert not session.blocking.turn_running

        ended = [event.data["status"] for event in await session.history(["turn.ended"])]
        assert ended == ["done", "done", "failed", "failed", "done"]

    whole(main())


def test_a_cancelled_call_is_over_when_the_task_is_and_what_it_made_is_undone(world: World) -> None:
    begun, go_on = threading.Event(), threading.Event()
    steps: list[str] = []

    def call() -> str:
        begun.set()
        go_on.wait(LONG)
        steps.append("made")
        return "thing"

    async def main() -> None:
        calling = asyncio.create_task(in_thread(call, lambda made: steps.append(f"undid {made}")))
        await asyncio.to_thread(begun.wait, LONG)
        for _ in range(2):
            calling.cancel()
            await asyncio.sleep(0)
            assert not calling.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert steps == ["made", "undid thing"]

    whole(main())


def test_a_cancelled_start_leaves_no_session(world: World) -> None:
    async def main() -> None:
        starting = asyncio.create_task(AsyncGitTrix(world.gittrix).start_session("task"))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    whole(main())
    assert world.gittrix.list_sessions("active") == []


@needs_linux
def test_output_comes_while_the_program_runs(world: World, level: str) -> None:
    async def main() -> None:
        agent = AsyncUserSession(world.start()).for_agent()
        async with agent.programs(confine=level) as programs, programs.start(["sh"]) as shell:
            shell.write(b"echo one; read word; echo $word\n")
            assert await shell.stdout.read_async() == b"one\n"
            shell.write(b"two\n")
            assert await shell.stdout.read_async() == b"two\n"
        assert shell.poll() is not None
        ended = await agent.run(["sh", "-c", "cat; exit 3"], confine=level, stdin=b"words", timeout=LONG)
        assert (ended.code, ended.stdout) == (3, b"words")

    whole(main())


@needs_linux
def test_a_cancelled_task_ends_the_program_with_all_that_it_started(world: World, level: str) -> None:
    session = world.start()
    assert session.workspace_path is not None
    os.mkfifo(session.workspace_path / "one")

    async def main() -> None:
        agent = AsyncUserSession(session).for_agent()
        running = asyncio.create_task(agent.run(["sh", "-c", "(trap '' TERM; read line <> one) & : > up; wait"], confine=level))
        while not await agent.exists("up"):
            assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    whole(main())
    with pytest.raises(OSError, match="No such device"):  # nobody has the fifo open
        os.open(session.workspace_path / "one", os.O_WRONLY | os.O_NONBLOCK)


@needs_linux
def test_programs_that_wait_hold_up_nobody(world: World) -> None:
    async def main() -> None:
        agent = AsyncUserSession(world.start()).for_agent()
        async with agent.programs(confine="off") as programs:
            # More than the pool of the event loop has threads.
            names = [f"up-{number}" for number in range((os.cpu_count() or 1) + 6)]
            waiting = [asyncio.create_task(programs.run(["sh", "-c", f": > {name}; sleep 600"])) for name in names]
            while not {*names} <= {*await agent.touched_files()}:
                assert not any(task.done() for task in waiting)
        assert all([(await task).timed_out for task in waiting])

    whole(main())
