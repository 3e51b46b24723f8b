"""Ending agents: all of an agent ends, nothing else does, whoever asks and however often. Real processes, real kills."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.agent_processes import ENVIRONMENT, LONG, agents_fixture, hit, on_linux, owner, record, started, supervisor_of
from support.patience import long_enough

from pytest_gittrix.engine.agents.processes import AgentProcess, StopOutcome
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.process_tree import Process, ProcessTree, marked, process, signal_process, table
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit, AgentScript

pytestmark = on_linux

__all__ = ["agents_fixture"]

# What another process does with an agent that it did not start.
OTHER = """
    import json, sys
    from pathlib import Path
    from pytest_gittrix.os_level.lock_owner import Owner
    from pytest_gittrix.engine.agents.processes import AgentProcess

    directory, owner, what = sys.argv[1:4]
    agent = AgentProcess(Path(directory), Owner.from_json(json.loads(owner)))
    if what == "stop":
        stopped = agent.stop(grace=float(sys.argv[4]), poll=0.01)
        seen = stopped.observation
        print(json.dumps([seen.state, seen.code, seen.signal, stopped.asked, stopped.killed, stopped.left]))
    else:
        seen = agent.observe()
        print(json.dumps([seen.state, seen.code, seen.signal]))
"""


def other(agent: AgentProcess, *what: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", textwrap.dedent(OTHER), str(agent.directory), json.dumps(owner(agent).to_json()), *what]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def answer(asked: subprocess.Popen[str]) -> list[Any]:
    said, _ = asked.communicate(timeout=LONG)
    assert asked.returncode == 0
    answers: list[Any] = json.loads(said)
    return answers


def assert_nothing_left(agents: AgentKit, agent: AgentProcess, *, mark: str) -> None:
    assert agents.alive() == []
    assert [pid for pid in marked(table(), mark) if (one := process(pid)) is not None and one.alive] == []
    assert agent.observe().state != "alive"


@pytest.fixture
def bystander() -> Iterator[Process]:
    """A process that has nothing to do with any agent."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        found = process(child.pid)
        assert found is not None
        yield found
        child.kill()


def untouched(bystander: Process) -> bool:
    now = process(bystander.pid)
    return now is not None and now.start_time == bystander.start_time and now.state in ("R", "S")


def test_a_polite_agent_is_asked_and_not_killed(agents: AgentKit) -> None:
    agent = started(agents, agents.script().polite(7))
    mark = record(agent)["mark"]

    stopped = agent.stop(grace=LONG, poll=0.01)

    assert stopped == StopOutcome(agent.observe(), asked=(owner(agent).pid,))
    assert (stopped.observation.state, stopped.observation.code) == ("exited", 7)
    assert agents.asked == ["SIGTERM"]
    assert_nothing_left(agents, agent, mark=mark)


def test_an_agent_that_does_not_listen_is_killed_when_its_time_is_up(agents: AgentKit) -> None:
    agent = started(agents, agents.script().deaf())

    stopped = agent.stop(grace=0.05, poll=0.01)

    assert (stopped.asked, stopped.killed, stopped.left) == ((owner(agent).pid,), (owner(agent).pid,), ())
    assert (stopped.observation.state, stopped.observation.signal) == ("exited", signal.SIGKILL)
    assert agents.alive() == []


def test_without_grace_nobody_is_asked(agents: AgentKit) -> None:
    agent = started(agents, agents.script().polite(7))

    stopped = agent.stop(grace=0)

    assert (stopped.asked, stopped.killed) == ((), (owner(agent).pid,))
    assert stopped.observation.signal == signal.SIGKILL
    assert agents.asked == []


def test_an_agent_is_asked_before_what_it_started(agents: AgentKit) -> None:
    child = agents.script("child").polite(0).hang()
    daemon = agents.script("daemon").polite(0).hang()
    agent = started(agents, agents.script().polite(7).spawn_child(child).spawn_daemon(daemon))
    below = {*agents.alive("child"), *agents.alive("daemon")}

    stopped = agent.stop(grace=LONG, poll=0.01)

    assert stopped.asked[0] == owner(agent).pid
    assert {*stopped.asked[1:]} == below
    assert stopped.killed == ()
    assert agents.asked == ["SIGTERM"] * 3


def test_nobody_else_is_asked_while_the_agent_is_ending(agents: AgentKit) -> None:
    agent = started(agents, agents.script().deaf().spawn_child(agents.script("child").polite(0).hang()))

    stopped = agent.stop(grace=0.1, poll=0.01)

    assert stopped.asked == (owner(agent).pid,)
    assert len(stopped.killed) == 2
    assert agents.asked == []


def test_one_that_is_stopped_can_still_end_politely(agents: AgentKit) -> None:
    agent = started(agents, agents.script().polite(7))
    hit(owner(agent), signal.SIGSTOP)

    stopped = agent.stop(grace=LONG, poll=0.01)

    assert (stopped.observation.code, stopped.killed) == (7, ())


def test_stopping_again_does_nothing(agents: AgentKit) -> None:
    agent = started(agents, agents.script().deaf().spawn_daemon())
    first = agent.stop(grace=0)

    assert not first.idle
    for _ in range(2):
        again = agent.stop(grace=0)
        assert again.idle
        assert again == StopOutcome(first.observation)


WAYS: dict[str, Callable[[AgentKit], AgentScript]] = {
    "a child": lambda kit: kit.script().deaf().spawn_child(),
    "a daemon": lambda kit: kit.script().deaf().spawn_daemon(),
    "a daemon without an environment": lambda kit: kit.script().deaf().spawn_daemon(scrub=True),
    "a daemon of a daemon": lambda kit: kit.script().deaf().spawn_daemon(kit.script("middle").deaf().spawn_daemon().hang()),
    "a child of a dead child": lambda kit: kit.script().deaf().spawn_child(kit.script("middle").spawn_child()),
}


@pytest.mark.parametrize("agent_is", ["running", "stopped", "dead"])
@pytest.mark.parametrize("way", WAYS)
def test_all_that_an_agent_started_ends_with_it(agents: AgentKit, way: str, agent_is: str, bystander: Process) -> None:
    agent = started(agents, WAYS[way](agents))
    mark = record(agent)["mark"]
    if agent_is != "running":
        hit(owner(agent), signal.SIGSTOP if agent_is == "stopped" else signal.SIGKILL)
    if agent_is == "dead":
        agent.wait(LONG)
        assert agents.alive()

    stopped = agent.stop(grace=0)

    assert stopped.left == ()
    assert len(stopped.killed) >= 1
    assert stopped.observation.signal == signal.SIGKILL
    assert_nothing_left(agents, agent, mark=mark)
    assert untouched(bystander)


@pytest.mark.parametrize("way", ["a child", "a daemon", "a daemon of a daemon"])
def test_all_ends_without_the_supervisor_too(agents: AgentKit, way: str) -> None:
    agent = started(agents, WAYS[way](agents))
    mark = record(agent)["mark"]
    hit(supervisor_of(agent), signal.SIGKILL)

    stopped = agent.stop(grace=0)

    assert stopped.left == ()
    assert (stopped.observation.state, stopped.observation.code) == ("exited", None)
    assert_nothing_left(agents, agent, mark=mark)


def test_a_daemon_is_found_by_its_mark_alone(agents: AgentKit) -> None:
    """Its parent, its leader and its supervisor are dead: only the environment tells whose it is."""
    agent = started(agents, agents.script().spawn_daemon())
    hit(supervisor_of(agent), signal.SIGKILL)
    hit(owner(agent), signal.SIGKILL)
    assert agents.gone("agent")
    [daemon] = agents.alive("daemon")

    assert agent.stop(grace=0).killed == (daemon,)
    assert agents.gone("daemon")


def test_a_child_is_found_by_its_session_alone(agents: AgentKit) -> None:
    """Its parent and its supervisor are dead and its environment is empty: only the leader of its session tells whose it is."""
    agent = started(agents, agents.script().deaf().spawn_child(agents.script("middle").spawn_child(scrub=True)))
    assert agents.gone("middle")
    hit(supervisor_of(agent), signal.SIGKILL)

    assert {*agent.stop(grace=0).killed} == {owner(agent).pid, *[one.pid for one in agents.processes("child")]}
    assert agents.gone("child")


def test_a_stopped_supervisor_is_no_hindrance(agents: AgentKit) -> None:
    def stop_within(seconds: float) -> tuple[int | None, AgentProcess, str]:
        agent = started(agents, agents.script().polite(7).spawn_daemon())
        mark = record(agent)["mark"]
        hit(supervisor_of(agent), signal.SIGSTOP)
        return agent.stop(grace=seconds, poll=0.01).observation.code, agent, mark

    code, agent, mark = long_enough(stop_within, lambda found: found[0] == 7)

    assert code == 7
    assert_nothing_left(agents, agent, mark=mark)


# Both end by themselves at last, lest a machine suffers from a failed test.
SWARM = """
    trap '' TERM
    for i in 1 2 3 4; do (for n in $(seq 3000); do sleep 0.01; done) & done
    (setsid sh -c 'for n in $(seq 3000); do sleep 0.01; done' &)
    echo up
    wait
"""
CHAIN = """
    import os, time
    print("up", flush=True)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
"""


@pytest.mark.parametrize("command", [["sh", "-c", SWARM], [sys.executable, "-c", textwrap.dedent(CHAIN)]], ids=["swarm", "chain"])
def test_processes_that_come_and_go_all_end(tmp_path: Path, command: list[str]) -> None:
    agent = start_agent(command, directory=tmp_path / "agent", workspace=tmp_path, environment=ENVIRONMENT)
    mark = record(agent)["mark"]
    while "up" not in agent.capture():
        time.sleep(0.005)

    stopped = agent.stop(grace=0)

    assert stopped.left == ()
    assert [pid for pid in marked(table(), mark) if (one := process(pid)) is not None and one.alive] == []
    assert not supervisor_of(agent).alive()
    assert agent.stop(grace=0).idle


def test_a_process_that_got_its_number_is_left_alone(tmp_path: Path, bystander: Process) -> None:
    former = Owner.here(bystander.pid, bystander.start_time - 1)
    directory = tmp_path / "agent"
    directory.mkdir()
    record = {"owner": former.to_json(), "keeper": replace(former, start_time=bystander.start_time - 2).to_json(), "mark": "0" * 16}
    (directory / "agent.json").write_text(json.dumps(record))

    assert AgentProcess(directory).stop(grace=0).idle
    assert untouched(bystander)
    assert not signal_process(former, signal.SIGKILL)


def test_a_session_of_a_number_used_again_is_left_alone(bystander: Process) -> None:
    """The bystander leads a session of its own number, which an agent that is dead had before."""
    former = Owner.here(bystander.pid, bystander.start_time - 1)

    assert ProcessTree(former).look() == []
    assert [one.pid for one in ProcessTree(replace(former, start_time=bystander.start_time)).look()] == [bystander.pid]


def test_an_agent_whose_files_are_gone_ends_by_its_stored_identity(agents: AgentKit) -> None:
    agent = started(agents, agents.script().deaf().spawn_child())
    shutil.rmtree(agent.directory)

    stopped = AgentProcess(agent.directory, agent.owner).stop(grace=0)

    assert len(stopped.killed) == 2
    assert stopped.observation.state in ("exited", "missing")  # exited, while its parent has not yet waited for it
    assert agents.gone()


def test_other_agents_go_on(agents: AgentKit) -> None:
    kept, ended = (started(agents, agents.script(name).spawn_daemon(agents.script(f"{name}-daemon").hang())) for name in ("kept", "ended"))

    ended.stop(grace=0)

    assert agents.gone("ended-daemon")
    assert kept.observe().state == "alive"
    assert agents.alive("kept-daemon")


@pytest.mark.parametrize(("grace", "poll"), [(-1, 0.5), (1, 0), (1, -1), (float("nan"), 1)])
def test_times_that_make_no_sense_are_refused(agents: AgentKit, grace: float, poll: float) -> None:
    agent = started(agents, agents.script())

    with pytest.raises(InvalidInput, match="grace is"):
        agent.stop(grace=grace, poll=poll)
    assert agent.observe().state == "alive"


# From another process ----------------------------------------------------------------------------------------------------------


def test_another_process_looks_and_stops(agents: AgentKit) -> None:
    def stop_within(seconds: float) -> tuple[AgentProcess, list[Any], list[Any]]:
        agent = started(agents, agents.script().polite(7).spawn_daemon())
        pid, [daemon] = owner(agent).pid, agents.alive("daemon")
        assert answer(other(agent, "observe")) == ["alive", None, None]
        return agent, answer(other(agent, "stop", str(seconds))), ["exited", 7, None, [pid, daemon], [daemon], []]

    agent, said, wanted = long_enough(stop_within, lambda found: found[1] == found[2])

    assert said == wanted
    assert answer(other(agent, "observe")) == ["exited", 7, None]
    assert agent.stop(grace=0).idle


def test_many_who_stop_at_once_all_find_it_ended(agents: AgentKit) -> None:
    agent = started(agents, agents.script().deaf().spawn_child().spawn_daemon(scrub=True))

    answers = [answer(one) for one in [other(agent, "stop", "0") for _ in range(4)]]

    assert {tuple(ended[:3]) for ended in answers} == {("exited", None, signal.SIGKILL)}
    assert {tuple(ended[5]) for ended in answers} == {()}
    assert agents.alive() == []


def test_an_agent_can_end_all_of_itself_but_who_asks(agents: AgentKit, tmp_path: Path) -> None:
    go = tmp_path / "go.py"
    go.write_text(
        "import sys, pathlib\nfrom pytest_gittrix.engine.agents.processes import AgentProcess\n"
        "stopped = AgentProcess(pathlib.Path(sys.argv[1])).stop(grace=0)\n"
        "pathlib.Path(sys.argv[2]).write_text(repr(stopped.left))\n"
    )
    directory = agents.bin.parent / "agent-0"  # before any step that takes a number
    script = agents.script().spawn_daemon().at("ready").run(sys.executable, str(go), str(directory), str(tmp_path / "said"))
    agent = agents.start(script)
    agents.wait_for("ready")
    go.write_text(go.read_text().replace("sys.argv[1]", repr(str(agent.directory)), 1))
    agents.go("ready")

    assert agents.gone()
    while not (tmp_path / "said").exists():
        time.sleep(0.005)
    assert agent.observe().signal == signal.SIGKILL
