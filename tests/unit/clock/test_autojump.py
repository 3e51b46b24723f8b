"""Sleeps that move a clock instead of waiting for it. Each freeze in a process of its own."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.freeze import FROZEN, run

PRELUDE = """
import asyncio, contextvars, subprocess
from pytest_gittrix.clock.jumper import really_sleep

def now():
    return datetime.datetime.now().strftime("%H:%M:%S.%f").rstrip("0").rstrip(".")

order = []
out_of_time = 3600  # real seconds: who really waited them would fail by the limit of the test
"""


def jumping(script: str, tmp_path: Path, autojump: str = "autojump=True") -> Any:
    """Run a script in a process that is frozen on ``clock``, whose sleeps jump."""
    body = "\n".join(f"    {line}" for line in dedent(script).splitlines())
    return run(f"{PRELUDE}\nwith process_freeze(clock, {autojump}):\n{body}\n", tmp_path)


CASES = {
    "a loop that waits by the clock ends": (
        """
        deadline, turns = time.time() + 30, 0
        while time.time() < deadline:
            time.sleep(1e-9 if turns == 0 else 1 / 3)
            turns += 1
        out["turns"] = turns
        """,
        {"turns": 91},
    ),
    "a sleep refuses what it refuses without a clock": (
        """
        for wrong in (-1, "x", None):
            try:
                time.sleep(wrong)
            except Exception as problem:
                order.append(type(problem).__name__)
        time.sleep(0)
        out["order"], out["now"] = order, now()
        """,
        {"order": ["ValueError", "TypeError", "TypeError"], "now": "00:00:00"},
    ),
    "locks and programs are waited for as before": (
        """
        import filelock
        with filelock.FileLock("lock"):
            try:
                filelock.FileLock("lock", is_singleton=False).acquire(timeout=0.05, poll_interval=0.01)
            except filelock.Timeout:
                order.append("filelock")
        if not threading.Event().wait(0.01):
            order.append("event")
        try:
            subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(600)"], timeout=0.05)
        except subprocess.TimeoutExpired:
            order.append("subprocess")
        out["order"], out["now"] = order, now()
        """,
        {"order": ["filelock", "event", "subprocess"], "now": "00:00:00"},
    ),
    "a sleep in another thread is real and moves nothing": (
        """
        thread = threading.Thread(target=lambda: (time.sleep(0.01), order.append(now())))
        thread.start()
        thread.join()
        out["order"], out["now"] = order, now()
        """,
        {"order": ["00:00:00"], "now": "00:00:00"},
    ),
    "a sleep in a timer does not move the clock from inside a move": (
        """
        clock.every("1h", lambda: (time.sleep(0.001), order.append(now())))
        time.sleep(7200)
        out["order"], out["now"] = order, now()
        """,
        {"order": ["01:00:00", "02:00:00"], "now": "02:00:00"},
    ),
    "a task that a timer wakes goes on at the timers instant": (
        """
        async def main():
            swept = asyncio.Event()
            clock.at(clock.now() + datetime.timedelta(minutes=5), swept.set)
            sleeping = asyncio.create_task(asyncio.sleep(out_of_time))
            await swept.wait()
            order.append(now())
            await sleeping
            order.append(now())
        asyncio.run(main())
        out["order"] = order
        """,
        {"order": ["00:05:00", "01:00:00"]},
    ),
    "a timeout of what only sleeps is over at its instant": (
        """
        async def main():
            for wait in (lambda: asyncio.wait_for(asyncio.sleep(out_of_time), 5), lambda: asyncio.wait_for(asyncio.Lock().acquire(), 5)):
                try:
                    await wait()
                    order.append("in time")
                except TimeoutError:
                    order.append(now())
            queue = asyncio.Queue()
            asyncio.get_running_loop().call_later(3, queue.put_nowait, "late")
            order.append([await asyncio.wait_for(queue.get(), 5), now()])
        asyncio.run(main())
        out["order"] = order
        """,
        {"order": ["00:00:05", "in time", ["late", "00:00:08"]]},
    ),
    "a loop of another thread keeps real time": (
        """
        thread = threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(asyncio.sleep(0.01), 60)))
        thread.start()
        thread.join()
        out["now"] = now()
        """,
        {"now": "00:00:00"},
    ),
}
"""What each test shows: a script whose sleeps jump, and what it puts into ``out``."""


@pytest.mark.parametrize(("script", "expected"), CASES.values(), ids=CASES)
def test_sleeps_jump(script: str, expected: dict[str, Any], tmp_path: Path) -> None:
    assert jumping(script, tmp_path) == expected


# --- time.sleep -------------------------------------------------------------------------------------------------------


def test_a_sleep_moves_the_clock_by_what_was_slept_however_it_was_imported(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text("from time import sleep as nap\ndef rest(): nap(7200)\n")
    out = run(
        """
        from time import sleep
        import sleeper
        ran = []
        clock.every("1h", lambda: ran.append(clock.now().hour))
        with process_freeze(clock, autojump=True):
            time.sleep(3600)
            sleep(0.25)
            sleeper.rest()
            out["moved"] = time.time()
        out["ran"], out["real again"] = ran, sleep is time.sleep is sleeper.nap
        """,
        tmp_path,
    )
    assert out == {"moved": FROZEN + 3 * 3600 + 0.25, "ran": [1, 2, 3], "real again": True}


def test_a_module_that_was_loaded_meanwhile_sleeps_for_real_afterwards(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("from time import sleep\n")
    out = run(
        """
        with process_freeze(clock, autojump=True):
            import late
            late.sleep(3600)
        late.sleep(0.01)
        out["hour"] = clock.now().hour, clock.now().microsecond
        """,
        tmp_path,
    )
    assert out == {"hour": [1, 0]}


@pytest.mark.parametrize(
    ("work", "done"),
    [
        ("subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.3)'])", "work.poll() is not None"),
        ("threading.Thread(target=lambda: really_sleep(0.3))", "not work.is_alive()"),
    ],
)
def test_while_real_work_goes_on_a_sleep_is_real_so_that_nobody_gives_up_too_early(tmp_path: Path, work: str, done: str) -> None:
    out = jumping(
        f"""
        work = {work}
        getattr(work, "start", lambda: None)()
        turns = 0
        while not ({done}) and turns < {60 * 100}:
            time.sleep(0.01)
            turns += 1
        out["done"], out["moved"] = {done}, time.time() - {FROZEN} < 60
        time.sleep(out_of_time)
        """,
        tmp_path,
    )
    assert out == {"done": True, "moved": True}


def test_with_a_number_it_waits_for_real_work_only_so_long(tmp_path: Path) -> None:
    out = jumping(
        """
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
            time.sleep(out_of_time)
            asyncio.run(asyncio.sleep(out_of_time))
            out["now"] = now()
            program.communicate(b"\\n")
        """,
        tmp_path,
        "autojump=0.01",
    )
    assert out == {"now": "02:00:00"}


# --- asyncio ----------------------------------------------------------------------------------------------------------

SLEEPERS = """
async def sleeper(name, seconds):
    await LIBRARY.sleep(seconds)
    order.append([name, now()])
"""


def test_tasks_of_asyncio_wake_in_order_each_at_its_instant_and_timers_run_on_the_way(tmp_path: Path) -> None:
    out = jumping(
        SLEEPERS.replace("LIBRARY", "asyncio")
        + """
async def main():
    clock.every("5m", lambda: order.append(["timer", now()]))
    async with asyncio.TaskGroup() as group:
        for name, seconds in (("c", 900), ("a", 1 / 3), ("b", 360.1), ("d", 900)):
            group.create_task(sleeper(name, seconds))

asyncio.run(main())
out["order"] = order
""",
        tmp_path,
    )
    assert out["order"] == [
        ["a", "00:00:00.333334"],
        ["timer", "00:05:00"],
        ["b", "00:06:00.1"],
        ["timer", "00:10:00"],
        ["timer", "00:15:00"],
        ["c", "00:15:00"],
        ["d", "00:15:00"],
    ]


@pytest.mark.parametrize(
    "work",
    [
        "(await asyncio.create_subprocess_exec(sys.executable, '-c', 'import time; time.sleep(0.3)')).wait()",
        "(await asyncio.create_subprocess_exec(sys.executable, '-c', 'import time; time.sleep(0.3)', stdout=-1)).communicate()",
        "asyncio.to_thread(really_sleep, 0.3)",
        "asyncio.wrap_future(concurrent.futures.ThreadPoolExecutor(1).submit(really_sleep, 0.3))",
        "from_a_thread()",
        "over_a_socket()",
    ],
)
def test_a_timeout_of_real_work_is_not_over_early_and_the_clock_does_not_move(tmp_path: Path, work: str) -> None:
    out = jumping(
        f"""
        import concurrent.futures, socket
        async def from_a_thread():
            done, loop = asyncio.Event(), asyncio.get_running_loop()
            threading.Thread(target=lambda: (really_sleep(0.3), loop.call_soon_threadsafe(done.set))).start()
            await done.wait()
        async def over_a_socket():
            near, far = socket.socketpair()
            timer = threading.Timer(0.3, far.send, [b"x"])
            timer.start()
            reader, writer = await asyncio.open_connection(sock=near)
            assert await reader.read(1) == b"x"
            writer.close()
        async def main():
            for _ in range(2):  # the second time, threads that were started for the first wait for work
                await asyncio.wait_for({work}, 60)
                order.append(now())
            await asyncio.sleep(out_of_time)
            order.append(now())
        asyncio.run(main())
        out["order"] = order
        """,
        tmp_path,
    )
    assert out["order"] == ["00:00:00", "00:00:00", "01:00:00"]


def test_programs_and_operations_of_a_session_are_waited_for(tmp_path: Path) -> None:
    out = run(
        """
        import asyncio
        from pytest_gittrix import World
        from pytest_gittrix.aio import AsyncUserSession

        async def work(session):
            await asyncio.wait_for(session.write("app.py", "v2"), 60)
            async with session.programs() as programs, programs.start(["sh", "-c", "sleep 0.3; echo done"]) as running:
                out["code"] = (await asyncio.wait_for(running.wait_async(), 60)).code
            out["moved"] = world.clock.elapsed_ns
            await asyncio.sleep(3600)
            await asyncio.wait_for(session.promote(message="two"), 60)

        with World.open("world", files={"app.py": "v1"}) as world, process_freeze(world.clock, autojump=True):
            asyncio.run(work(AsyncUserSession(world.start())))
            out["hours"] = world.clock.elapsed_ns / 3600e9
            out["promoted"] = world.durable.log()[0].message.strip()
        """,
        tmp_path,
    )
    assert out == {"code": 0, "moved": 0, "hours": 1, "promoted": "two"}


def test_a_loop_that_was_made_before_follows_and_goes_on_in_real_time_afterwards(tmp_path: Path) -> None:
    out = run(
        f"""
        {PRELUDE.replace(chr(10), chr(10) + " " * 8)}
        loop = asyncio.new_event_loop()
        async def sleep(seconds):
            await asyncio.sleep(seconds)
            return now()
        before = loop.time()
        async def begin():
            return asyncio.create_task(sleep(0.5))
        with process_freeze(clock, autojump=True):
            out["jumped"] = loop.run_until_complete(sleep(3600))
            left = loop.run_until_complete(begin())
        out["real"] = -1 < loop.time() - before < 600
        loop.run_until_complete(asyncio.wait_for(left, 60))
        loop.close()
        """,
        tmp_path,
    )
    assert out == {"jumped": "01:00:00", "real": True}


def test_what_is_not_reached_sleeps_for_real_and_moves_nothing(tmp_path: Path) -> None:
    out = run(
        """
        import asyncio, selectors
        kept = [time.sleep]
        with process_freeze(clock, autojump=True):
            kept[0](0.01)
            loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()
            out["stood"] = clock.elapsed_ns == 0
        """,
        tmp_path,
    )
    assert out == {"stood": True}


def test_without_autojump_sleeps_are_real_and_the_clock_stands(tmp_path: Path) -> None:
    out = jumping("asyncio.run(asyncio.sleep(0.01)); time.sleep(0.01); out['now'] = now()", tmp_path, "autojump=False")
    assert out == {"now": "00:00:00"}


def test_monotonic_time_of_mode_all_moves_with_the_sleeps(tmp_path: Path) -> None:
    out = jumping(
        """
        before = time.monotonic()
        asyncio.run(asyncio.sleep(60))
        time.sleep(60)
        out["moved"] = time.monotonic() - before
        """,
        tmp_path,
        "'all', autojump=True",
    )
    assert out == {"moved": 120}


@pytest.mark.parametrize("wrong", ["-1", "float('nan')"])
def test_a_number_below_zero_is_refused(tmp_path: Path, wrong: str) -> None:
    out = run(f"out['refusal'] = refusal(lambda: process_freeze(clock, autojump={wrong}).__enter__())", tmp_path)
    assert out["refusal"][0] == "InvalidInput"


# --- trio and anyio ---------------------------------------------------------------------------------------------------

trio = pytest.mark.skipif(not __import__("importlib.util").util.find_spec("trio"), reason="trio is not installed")


@trio
def test_tasks_of_trio_wake_in_order_each_at_its_instant_and_timers_run_on_the_way(tmp_path: Path) -> None:
    out = jumping(
        SLEEPERS.replace("LIBRARY", "trio")
        + """
import trio

async def main():
    clock.every("5m", lambda: order.append(["timer", now()]))
    async with trio.open_nursery() as nursery:
        for name, seconds in (("c", 900), ("a", 1 / 3), ("b", 360.1)):
            nursery.start_soon(sleeper, name, seconds)
    with trio.move_on_after(5):
        await trio.sleep(3600)
    order.append(["timeout", now()])

trio.run(main)
out["order"] = order
""",
        tmp_path,
    )
    assert out["order"] == [
        ["a", "00:00:00.333334"],
        ["timer", "00:05:00"],
        ["b", "00:06:00.1"],
        ["timer", "00:10:00"],
        ["timer", "00:15:00"],
        ["c", "00:15:00"],
        ["timeout", "00:15:05"],
    ]


@trio
@pytest.mark.parametrize(
    "work",
    [
        "trio.run_process([sys.executable, '-c', 'import time; time.sleep(0.3)'])",
        "trio.to_thread.run_sync(really_sleep, 0.3)",
        "over_a_socket()",
    ],
)
def test_a_deadline_of_trio_is_not_over_early_for_real_work(tmp_path: Path, work: str) -> None:
    out = jumping(
        f"""
        import trio
        async def over_a_socket():
            near, far = trio.socket.socketpair()
            threading.Thread(target=lambda: (really_sleep(0.3), trio.from_thread.run(far.send, b"x", trio_token=token))).start()
            assert await near.recv(1) == b"x"
        async def main():
            global token
            token = trio.lowlevel.current_trio_token()
            for _ in range(2):
                with trio.fail_after(60):
                    await {work}
                order.append(now())
            await trio.sleep(out_of_time)
            order.append(now())
        trio.run(main)
        out["order"] = order
        """,
        tmp_path,
    )
    assert out["order"] == ["00:00:00", "00:00:00", "01:00:00"]


@trio
def test_a_run_of_trio_with_a_clock_of_its_own_keeps_it(tmp_path: Path) -> None:
    out = jumping(
        """
        import trio, trio.testing
        trio.run(trio.sleep, 3600, clock=trio.testing.MockClock(autojump_threshold=0))
        out["now"] = now()
        """,
        tmp_path,
    )
    assert out == {"now": "00:00:00"}


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=trio)])
def test_sleeps_and_threads_of_anyio_are_those_of_its_backend(tmp_path: Path, backend: str) -> None:
    out = jumping(
        f"""
        import anyio
        async def main():
            with anyio.move_on_after(7):
                await anyio.sleep(3600)
            for _ in range(2):
                with anyio.fail_after(60):
                    await anyio.to_thread.run_sync(really_sleep, 0.2)
            order.append(now())
            await anyio.sleep(3600)
            return now()
        out["order"] = [anyio.run(main, backend={backend!r}), *order]
        """,
        tmp_path,
    )
    assert out["order"] == ["01:00:07", "00:00:07"]
