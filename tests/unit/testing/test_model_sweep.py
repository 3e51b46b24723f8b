"""A sweep of the model's faults: the good agent survives all, and each planted fault is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import coding_agent

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.answers.faults import FAULTS, bad_json, cut, fail, token_limit, too_long
from pytest_gittrix.model.answers.script import call, stop
from pytest_gittrix.os_level.proc import running_in
from pytest_gittrix.testing.world import World

AGENT = Path(coding_agent.__file__)
FIRST, SECOND = "echo one >> app.py && echo two >> app.py", "echo three >> app.py"


@pytest.fixture
def world() -> Iterator[World]:
    with World.open(files={"app.py": "v1\n"}) as world:
        world.model.script(call("bash", command=FIRST), call("bash", command=SECOND), stop())
        yield world


def agent(world: World, fault: str = "") -> object:
    """What runs the agent in a session, without a jail, so that nothing but the agent ends its processes."""

    def run(session: UserSession) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, **world.model.env()}
        return subprocess.run(
            [sys.executable, AGENT, fault], cwd=session.workspace_path, env=environment, capture_output=True, timeout=120, check=False
        )

    return run


def test_a_good_agent_survives_every_fault_at_every_exchange(world: World) -> None:
    report = world.model.sweep(agent(world))  # type: ignore[arg-type]
    # At the last exchange nobody asks for a tool, so five faults have nothing to spoil there.
    assert (report.calls, report.tried, report.failures) == (3, 3 * len(FAULTS) - 4, ())
    assert world.durable.read("app.py") == b"v1\n"


@pytest.mark.parametrize(
    ("planted", "fault", "at", "told"),
    [
        ("half", token_limit(), 1, "it ran a call that came damaged"),
        ("half", bad_json(), 1, "the workspace is at no state between two exchanges"),
        ("lies", fail(401, times=None), 2, "exit status 0"),
        ("lies", too_long(), 1, "exit status 0"),
        ("storms", fail(529, times=None), 1, "it asked the model 34 times, where 4 are enough"),
        ("doubles", cut("before stop"), 2, "the workspace is at no state between two exchanges"),
        ("doubles", cut("before stop"), 1, "the workspace is at no state between two exchanges"),
    ],
)
def test_a_planted_fault_is_told(world: World, planted: str, fault: object, at: int, told: str) -> None:
    report = world.model.sweep(agent(world, planted), faults=[fault], exchanges=[at])  # type: ignore[arg-type,list-item]
    [failure] = report.failures
    assert told in failure.problem
    assert failure.replay == f"gittrix_model.sweep(run, faults=[{fault}], exchanges=[{at}])"


def test_a_recorded_run_is_swept_as_one_of_a_script_is(world: World, tmp_path: Path) -> None:
    world.model.tape(tmp_path / "tape.jsonl", "rewrite")
    agent(world)(world.start("record"))  # type: ignore[operator]
    world.model.check()

    with World.open(files={"app.py": "v1\n"}) as again:
        again.model.tape(tmp_path / "tape.jsonl", "replay")
        good = again.model.sweep(agent(again), faults=[token_limit(), fail(529)])  # type: ignore[arg-type]
        [told] = again.model.sweep(agent(again, "half"), faults=[token_limit()], exchanges=[1]).failures  # type: ignore[arg-type]

    assert (good.calls, good.tried, good.failures) == (3, 6, ())
    assert "it ran a call that came damaged" in told.problem


def test_a_process_that_is_left_is_told(world: World) -> None:
    left: list[int] = []
    first = agent(world)

    def then(session: UserSession) -> object:
        if not left:
            left.append(0)
            return first(session)  # type: ignore[operator]
        done = agent(world, "lingers")(session)  # type: ignore[operator]
        left.extend(running_in(str(session.workspace_path)))
        return done

    report = world.model.sweep(then, faults=[fail(429)], exchanges=[1])
    for pid in left[1:]:
        os.kill(pid, signal.SIGKILL)
    assert "1 of its processes still run in the workspace" in report.failures[0].problem


def test_a_run_that_fails_without_a_fault_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="The run fails without any fault: its exit status is 1"):
        world.model.sweep(lambda _: 1)


def test_a_client_in_the_process_is_swept_too(world: World) -> None:
    from support.model_client import ask, results

    def run(session: UserSession) -> None:
        said: list[object] = ["Improve it"]
        while True:
            heard = ask(world.model.url, "anthropic", *said, stream=True)  # type: ignore[arg-type]
            assert heard.status == 200
            assert heard.stop in ("tool_use", "end_turn")
            if not heard.calls:
                return
            for _, _, arguments in heard.calls:
                subprocess.run(["sh", "-c", arguments["command"]], cwd=session.workspace_path, check=True)
            said += results("anthropic", heard, *("" for _ in heard.calls))

    report = world.model.sweep(run, faults=[fail(500), cut("tool arguments"), token_limit()])
    assert [(one.at, one.kind) for one in report.failures] == []
    assert str(report) == "faults tried 9, survived 9, failed 0 (3 exchanges)"


def test_what_was_said_in_a_sweep_is_forgotten_and_the_script_begins_anew(world: World) -> None:
    world.model.sweep(agent(world), faults=[fail(429)], exchanges=[1])  # type: ignore[arg-type]
    assert world.model.exchanges == ()
    agent(world)(world.start())  # type: ignore[operator]
    world.model.check()
