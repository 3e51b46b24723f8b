"""Our engine under the state machine, and the machine as its users take it: for a system of their own, with rules of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from pytest_gittrix.harness.edits import DurableEdit, Edits, Tree
from pytest_gittrix.harness.history import Executable, Symlink
from pytest_gittrix.harness.machine import SandboxMachine, in_another_process, machine_for, steps_of
from pytest_gittrix.harness.sandbox import another_engine
from pytest_gittrix.harness.trial import Trial
from pytest_gittrix.harness.world import World
from pytest_gittrix.record.model import EvictionPolicy

FILES = Tree({"a": b"1\n2\n3\n", "lib/b": b"2\n"})

TestEngine = machine_for(World.open).TestCase


def test_settings_are_those_of_the_profile_but_for_the_deadline() -> None:
    taken, profile = machine_for(World.open).TestCase.settings, settings()

    assert taken.deadline is None
    assert (taken.max_examples, taken.stateful_step_count) == (profile.max_examples, profile.stateful_step_count)
    assert taken.suppress_health_check == profile.suppress_health_check


def test_a_machine_opens_the_system_it_is_for_and_runs_rules_of_its_users() -> None:
    opened: list[dict[str, Any]] = []
    seen: list[str] = []

    @contextmanager
    def system(**arguments: Any) -> Iterator[World]:
        opened.append(arguments)
        with World.open(**arguments) as world:
            yield world

    @rule(session=SandboxMachine.sessions)
    def archive(self: SandboxMachine, session: Any) -> None:
        seen.append(session.name)

    machine = machine_for(system, rules=[archive])
    profile = settings(max_examples=60, stateful_step_count=10, deadline=None, database=None, derandomize=True)
    run_state_machine_as_test(machine, settings=profile)

    assert {"files", "workspace", "bare", "sweep_interval"} == set(opened[0])
    assert "s1" in seen


def test_a_failure_of_a_users_rule_tells_its_steps() -> None:
    @rule(session=SandboxMachine.sessions)
    def explode(self: SandboxMachine, session: Any) -> None:
        raise AssertionError("boom")

    profile = settings(max_examples=100, stateful_step_count=5, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="boom") as caught:
        run_state_machine_as_test(machine_for(World.open, rules=[explode]), settings=profile)

    assert re.fullmatch(r"state\.explode\(session=sessions_\d\)", steps_of(caught.value)[-1])


@pytest.mark.parametrize("workspace", ["lazy", "clone", "copy"])
def test_a_trial_can_be_written_down(workspace: str) -> None:
    with Trial(World.open, files=FILES, workspace=workspace) as trial:
        first, second = trial.start(EvictionPolicy()), trial.start(EvictionPolicy())
        trial.write(first, "a", b"1\n2\nthree\n")
        trial.delete(second, "lib/b")
        trial.commit(first)
        trial.durable_edit(DurableEdit("disjoint", (Edits({"c": b"3\n"}),)), at_the_desk=True)

        answers = [trial.promote(first), trial.promote(second, ["a"]), trial.promote(second), trial.promote(first)]
        trial.check_all()

    assert answers == ["OK", "PROMOTE_FAILED", "OK", "SESSION_EXPIRED"]


@pytest.mark.parametrize("workspace", ["clone", "copy"])
def test_programs_of_the_agent_are_seen(workspace: str) -> None:
    with Trial(World.open, files=FILES, workspace=workspace) as trial:
        session = trial.start(EvictionPolicy())
        trial.shell(session, Edits({"a": Executable(b"1\n2\n3\n"), "link": Symlink(b"a"), "lib/b": None, "lib": b"now a file\n"}))
        trial.run(session, "git add -A && git commit -qm own && git rm -rq --cached .")
        trial.look(session)

        assert trial.promote(session) == "OK"
        trial.check_all()


@pytest.mark.parametrize("dies_at", range(1, 9))
def test_a_promotion_killed_in_another_process_is_whole_or_not_at_all(dies_at: int) -> None:
    with Trial(World.open, files=FILES, workspace="lazy") as trial:
        session = trial.start(EvictionPolicy())
        trial.write(session, "a", b"agent\n")

        landed = trial.promote_elsewhere(session, lambda action: in_another_process(action, dies_at=dies_at))
        trial.check_all()

        assert trial.promote(session) == ("SESSION_EXPIRED" if landed else "OK")


def test_another_process_that_fails_in_earnest_fails_the_test() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        in_another_process(fail)
    assert in_another_process(lambda: None)


def test_another_engine_works_on_the_same_sessions() -> None:
    with World.open(files=FILES) as world:
        session = world.start()
        other = another_engine(world, 1)

        assert [record.id for record in other.list_sessions()] == [session.id]
        assert other.start_session("more").id != session.id
        other.close()


def test_a_sandbox_that_can_reopen_itself_is_asked_to() -> None:
    class Reopening:
        def reopen(self) -> str:
            return "mine"

    assert another_engine(Reopening(), 1) == "mine"


def test_the_trial_complains_about_a_system_that_lies() -> None:
    with World.open(files=FILES) as world:
        world.gittrix.sweep = list  # type: ignore[method-assign]

        @contextmanager
        def system(**_arguments: Any) -> Iterator[World]:
            yield world

        with Trial(system, files=FILES) as trial:
            trial.start(EvictionPolicy())
            world.clock.advance(hours=5)
            with pytest.raises(AssertionError, match="exactly the sessions past their deadline"):
                trial.sweep()
