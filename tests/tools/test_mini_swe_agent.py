"""mini-swe-agent in a session: a scripted model, real commands, and a trajectory that says which tree each of them left."""

from __future__ import annotations

import pytest

pytest.importorskip("minisweagent", reason="needs the environment of make tools")

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output
from support.frameworks import ADDED, available, discard_while, programs_of
from support.git import git

from examples.integrations.mini_swe_agent_environment import SUBMIT, GittrixEnvironment
from pytest_gittrix.errors import InvalidInput, SessionExpired

FIX = (
    "cat app.py",
    "sed -i 's/a - b/a + b/' app.py",
    "git commit -qam 'Add' && git log -1 --format=%cI",
    f"echo {SUBMIT}; git diff HEAD~1",
)

Make = Callable[..., GittrixEnvironment]


@pytest.fixture
def make(project: Path) -> Iterator[Make]:
    made: list[GittrixEnvironment] = []

    def make(**settings: Any) -> GittrixEnvironment:
        made.append(GittrixEnvironment(**{"repository": str(project), "confine": "off", **settings}))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


def solve(environment: GittrixEnvironment, *commands: str, output: Path | None = None) -> dict[str, Any]:
    """What an agent ends with whose model gives these commands."""
    outputs = [make_output(f"step {number}", [{"command": command}]) for number, command in enumerate(commands)]
    agent = DefaultAgent(
        DeterministicModel(outputs=outputs),
        environment,
        system_template="You are at {{cwd}}.",
        instance_template="{{task}}",
        cost_limit=0,
        output_path=output,
    )
    return agent.run("Mend the sum")


def steps_of(environment: GittrixEnvironment) -> list[dict[str, Any]]:
    """What the trajectory keeps of each command."""
    found: list[dict[str, Any]] = environment.serialize()["info"]["gittrix"]["steps"]
    return found


def test_an_agent_mends_a_bug_and_its_work_is_promoted(make: Make, project: Path, tmp_path: Path) -> None:
    environment = make()

    done = solve(environment, *FIX, output=tmp_path / "trajectory.json")
    came = environment.promote("Add")

    assert done["exit_status"] == "Submitted"
    assert "+    return a + b" in done["submission"]
    assert came.verdict == "promoted"
    assert environment.bench.world.durable.read("app.py").decode() == ADDED
    kept = json.loads((tmp_path / "trajectory.json").read_text())["info"]["gittrix"]
    assert len(kept["steps"]) == len(FIX)
    assert kept["session"] == environment.bench.session.id
    assert git("show", "HEAD:app.py", cwd=project).decode() != ADDED


@pytest.mark.parametrize("level", ["off", "jail"])
def test_two_runs_leave_the_same_trees_outputs_and_commit(make: Make, level: str) -> None:
    first, second = make(), make(confine=available(level))

    solve(first, *FIX)
    solve(second, *FIX)

    assert steps_of(first) == steps_of(second)
    assert first.promote().sha == second.promote().sha != ""


def test_of_a_project_that_drifted_the_first_step_that_differs_is_told(make: Make, project: Path) -> None:
    before = make()
    (project / "README.md").write_text("# Another\n")
    git("commit", "-qam", "drift", cwd=project)
    after = make()
    for environment in (before, after):
        solve(environment, "cat app.py", "cat README.md", f"echo {SUBMIT}")

    differing = [a["output"] != b["output"] for a, b in zip(steps_of(before), steps_of(after), strict=True)]

    assert differing == [False, True, False]


def test_a_command_that_takes_too_long_is_ended_with_all_it_started_and_the_agent_goes_on(make: Make) -> None:
    environment = make(timeout=0.3)

    done = environment.execute({"command": "setsid sleep 600 & sleep 600"})
    after = environment.execute({"command": "echo on; exit 3"})

    assert (done["returncode"], "0.3 seconds" in done["exception_info"]) == (-1, True)
    assert (after["returncode"], after["output"], after["exception_info"]) == (3, "on\n", "")
    assert programs_of(environment.bench.session.id) == []


def test_a_command_that_ends_with_its_session_says_so(make: Make) -> None:
    environment = make()
    command = asyncio.to_thread(environment.execute, {"command": "touch started; sleep 600"})

    assert isinstance(asyncio.run(discard_while(environment.bench.session, command)), SessionExpired)


def test_the_sentinel_counts_only_where_the_command_succeeded(make: Make) -> None:
    environment = make()

    assert environment.execute({"command": f"echo {SUBMIT}; exit 1"})["returncode"] == 1
    assert environment.execute({"command": f"echo no; echo {SUBMIT}"})["returncode"] == 0
    with pytest.raises(Submitted):
        environment.execute({"command": f"echo {SUBMIT}"})


def test_prompts_and_trajectories_hold_no_variable_of_this_process(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    environment = make(env={"GIVEN": "yes"})

    seen = environment.execute({"command": "env"})["output"]

    assert "s3cr3t" not in json.dumps([environment.get_template_vars(), environment.serialize(), seen], default=str)
    assert "GIVEN=yes" in seen
    assert "SECRET_TOKEN" in os.environ


def test_mini_swe_agent_finds_it_by_its_name_and_a_wrong_setting_is_refused(project: Path) -> None:
    name = "examples.integrations.mini_swe_agent_environment.GittrixEnvironment"
    environment = get_environment({"environment_class": name, "repository": str(project), "confine": "off"})
    environment.cleanup()

    assert type(environment) is GittrixEnvironment
    assert not environment.bench.world.path.exists()
    with pytest.raises(InvalidInput, match="repositry"):
        GittrixEnvironment(repositry=str(project))
