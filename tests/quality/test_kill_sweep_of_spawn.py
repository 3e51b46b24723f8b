"""Killed anywhere while a session is spawned, with all it started or alone: no half session, no id twice, no process that nobody leads.

A normal run plays faults at a sample of the calls; ``PYTEST_GITTRIX_SOAK=1`` at every one. Figures are printed (``pytest -rP``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from support.engine import kill_at, passed
from support.fault_sweep import (
    FAILURES,
    Durability,
    Operation,
    announcing_engine,
    contents,
    log_writes,
    states_of,
    sweep_operation,
    sweep_recovery,
)
from support.orchestrator import NOTHING, Fleet, on_linux, open_fleet
from support.scene import SOAK, Scene

from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.orchestrator.config import CommandAgent, Project, SpawnConfig
from pytest_gittrix.orchestrator.flat_files import read
from pytest_gittrix.orchestrator.orchestrator import Orchestrator
from pytest_gittrix.testing.faults.supervisor import supported

pytestmark = [on_linux, pytest.mark.skipif(supported() is not None, reason=str(supported()))]

CONFIG: Final = SpawnConfig("app", issue_id="42", prompt="Mend the login")


# Killed with all that it started, as when the machine goes down -----------------------------------------------------------------


def lead_of(scene: Scene, engine: GitTrix) -> Orchestrator:
    agent = CommandAgent("sleep", ("sleep", "600"), prompt_as="input")
    project = Project("app", scene.durable, agents=(agent,))
    return Orchestrator(engine, [project], environment={"PATH": os.environ.get("PATH", os.defpath)}, grace=0, confine="off")


def agent_of(engine: GitTrix, id: str, number: int = 1) -> AgentProcess:
    return AgentProcess(engine.store.directory(id) / f"agent-{number}")


def one_before(scene: Scene) -> None:
    """A session that was killed, and one that was purged: their numbers are taken."""
    with scene.engine() as engine:
        lead = lead_of(scene, engine)
        assert [lead.spawn(CONFIG).id for _ in range(2)] == ["app-1", "app-2"]
        lead.kill("app-1")
        lead.kill("app-2", purge=True)
    scene.clock.advance(seconds=1)


def spawn(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        lead = lead_of(scene, engine)
        id = lead.spawn(CONFIG).id
        print(id)
        agent_of(engine, id).stop(grace=0)


def judge(scene: Scene, printed: list[str]) -> str:
    known = {*states_of(scene), *printed}
    with scene.engine() as engine:
        lead = lead_of(scene, engine)
        before = contents(engine)
        assert lead_of(scene, engine).recover() == []
        assert contents(engine) == before
        files = lead.directory / "app" / "sessions"
        named = sorted(path.name for path in files.iterdir() if path.is_file() and path.name != ".lock")
        shown = {one.id: one.status for one in lead.list()}
        assert named == sorted(shown)
        assert all(read(files / name) is not None for name in named)  # no reservation
        assert shown.pop("app-1") == "killed"
        if shown:
            assert shown == {"app-3": "working"}
            assert [one.status for one in lead.poll("app-3")] == ["errored"]  # its agent went with the machine
            assert lead.restore("app-3").status == "working"
            lead.kill("app-3")
        assert not printed or shown
        again = lead.spawn(CONFIG)
        assert again.id not in known
        assert again.status == "working"
        lead.kill(again.id)
        return "whole" if shown else "undone" if "app-3" in known else "none"


OPERATION: Final = Operation(one_before, spawn, judge, 14)
DURABILITIES: Final[list[Durability]] = ["fast", "full"] if SOAK else ["fast"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_kill_at_any_call_is_survived(place: Path, durability: Durability) -> None:
    found = sweep_operation(OPERATION, place, durability=durability, points=OPERATION.some(), label="spawn")

    assert found.keys() == {"none", "undone", "whole"}


def test_a_write_that_was_torn_is_survived(place: Path) -> None:
    assert sweep_operation(OPERATION, place, kinds=("torn",), points=log_writes(OPERATION, place), label="spawn")


@pytest.mark.parametrize("kind", FAILURES if SOAK else FAILURES[:1])
def test_a_failing_disk_is_a_typed_error_and_harms_nothing(place: Path, kind: str) -> None:
    assert sweep_operation(OPERATION, place, kinds=(kind,), points=OPERATION.some(2), label="spawn")


def test_a_kill_of_its_recovery_is_survived(place: Path) -> None:
    assert sweep_recovery(OPERATION, place, label="spawn")


# Killed alone: what it started goes on ------------------------------------------------------------------------------------------

SPAWNED: Final = ("start:head-read", "start:created", "start:seeded", "start:ready", "spawn:reserved", "spawn:started", "spawn:launched")


def test_these_are_the_points_before_a_session_works(tmp_path: Path) -> None:
    with open_fleet(tmp_path) as fleet:
        steps = passed(lambda: fleet.spawn(prompt="x"))

    assert set(SPAWNED) <= set(steps)
    assert steps.index("spawn:launched") < steps.index("spawn:ready")


@pytest.mark.parametrize("point", SPAWNED)
def test_a_spawner_that_is_killed_leaves_no_agent_that_nobody_leads(tmp_path: Path, point: str) -> None:
    with open_fleet(tmp_path) as fleet:
        kill_at(point, lambda: fleet.spawn(prompt="x"))
        fleet.site.engine.recover()
        undone = fleet.another()

        assert undone.list() == []
        assert fleet.kit.alive() == []
        assert fleet.left()["reservations"] == NOTHING["reservations"]
        assert undone.recover() == []
        started = sorted(fleet.site.engine.store.ids())
        again = fleet.spawn()
        assert again.id not in started
        assert [one.id for one in fleet.lead.list()] == [again.id]
        assert len(fleet.kit.alive()) <= 1


def test_a_spawner_that_is_killed_while_it_tells_leaves_a_session_that_works(tmp_path: Path) -> None:
    with open_fleet(tmp_path) as fleet:
        kill_at("spawn:ready", lambda: fleet.spawn(prompt="x"))
        (session,) = fleet.another().list()

        assert (session.id, session.status) == ("app-1", "working")
        assert fleet.process("app-1").observe().state == "alive"
        fleet.lead.kill("app-1")
        assert fleet.kit.alive() == []


def test_a_poll_undoes_a_spawn_that_was_killed_too(tmp_path: Path) -> None:
    with open_fleet(tmp_path) as fleet:
        kill_at("spawn:launched", lambda: fleet.spawn(prompt="x"))
        assert fleet.process("app-1").observe().state == "alive"

        assert fleet.lead.poll() == []
        assert fleet.process("app-1").observe().state == "exited"
        assert fleet.lead.list() == []


@pytest.mark.parametrize("point", ["evict:ended", "evict:apart", "evict:workspace-gone"])
@pytest.mark.parametrize("leads", [False, True])
def test_a_recovery_that_is_killed_is_made_up_for(tmp_path: Path, point: str, leads: bool) -> None:
    with open_fleet(tmp_path) as fleet:
        kill_at("spawn:started", lambda: fleet.lead.spawn_orchestrator("app") if leads else fleet.spawn())
        kill_at(point, fleet.another)
        fleet.site.engine.recover()
        again = fleet.another()

        assert again.list() == []
        assert again.recover() == []
        assert (again.spawn_orchestrator("app").id if leads else fleet.spawn(again).id) == ("app-orchestrator-2" if leads else "app-2")


def restored(fleet: Fleet, point: str) -> None:
    """A session that was killed, and whose restoring was killed at a point."""
    fleet.spawn()
    fleet.lead.kill("app-1")
    kill_at(point, lambda: fleet.lead.restore("app-1"))


@pytest.mark.parametrize(("point", "status"), [("restore:checked", "killed"), ("restore:launched", "working")])
def test_a_restorer_that_is_killed_leaves_the_session_over_or_at_work(tmp_path: Path, point: str, status: str) -> None:
    with open_fleet(tmp_path) as fleet:
        restored(fleet, point)
        (session,) = fleet.another().list()

        assert session.status == status
        assert len(fleet.kit.alive()) <= (status == "working")
        assert fleet.lead.kill("app-1").already_terminated == (status == "killed")


@pytest.mark.parametrize("point", ["kill:asked", "kill:ended"])
def test_a_killer_that_is_killed_is_made_up_for(tmp_path: Path, point: str) -> None:
    with open_fleet(tmp_path) as fleet:
        fleet.spawn()
        kill_at(point, lambda: fleet.lead.kill("app-1"))
        assert not fleet.another().kill("app-1").already_terminated
        assert fleet.now("app-1").status == "killed"
        assert fleet.kit.alive() == []
