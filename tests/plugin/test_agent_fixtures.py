"""The fixture for agents as processes: it needs no world, and nothing is left of a test, passed or failed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents as processes need Linux")


def test_agents_need_no_world(run: Run) -> None:
    source = """
        def test_it(gittrix_agent_process, request):
            agents = gittrix_agent_process
            agent = agents.start(agents.script().say("hello").exits(3))
            assert agent.wait(60).code == 3
            assert agent.capture() == "hello\\n"
            assert "_gittrix_world" not in request.fixturenames
    """
    run(source).assert_outcomes(passed=1)


@pytest.mark.parametrize("end", ["pass", "raise ValueError"])
def test_an_agent_that_a_test_leaves_ends_with_it(run: Run, end: str) -> None:
    source = f"""
        left = []

        def test_left(gittrix_agent_process):
            agents = gittrix_agent_process
            agents.start(agents.script().deaf().spawn_child().spawn_daemon(scrub=True).at("up").hang())
            agents.step("up")
            left.append(agents)
            assert len(agents.alive()) == 3
            {end}

        def test_next():
            assert left[0].alive() == []
    """
    run(source, "-p", "no:randomly").assert_outcomes(passed=2 if end == "pass" else 1, failed=0 if end == "pass" else 1)
