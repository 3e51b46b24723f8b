"""What becomes of agents, what they say and what they hear. Real processes throughout."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.agent_processes import ENVIRONMENT, LONG, agents_fixture, hit, on_linux, owner, place_fixture, start, supervisor_of

from pytest_gittrix.engine.agents.processes import AgentProcess, Observation
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.lock_owner import SECOND_NS
from pytest_gittrix.os_level.process_tree import process
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit

pytestmark = on_linux

__all__ = ["agents_fixture", "place_fixture"]


# What became of it -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, 255])
def test_an_exit_status_is_known(place: Path, code: int) -> None:
    agent = start(place, "sh", "-c", f"exit {code}")

    assert replace(agent.wait(LONG), ended_ns=None) == Observation("exited", code)
    assert agent.stop().idle  # its supervisor is gone as well
    seen = agent.observe()
    assert (seen.code, seen.signal) == (code, None)
    assert seen.ended_ns is not None
    assert seen.ended_ns > 1_600_000_000 * SECOND_NS
    assert AgentProcess(agent.directory, agent.owner).observe() == AgentProcess(agent.directory).observe() == seen


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_signal_that_ended_it_is_known(agents: AgentKit, place: Path, number: int) -> None:
    agent = start(place, *agents.script().kill_itself(number).command)

    assert replace(agent.wait(LONG), ended_ns=None) == Observation("exited", None, number)


def test_one_that_is_stopped_is_alive(agents: AgentKit, place: Path) -> None:
    agent = start(place, *agents.script().at("up").exits(4).command)
    agents.wait_for("up")

    hit(owner(agent), signal.SIGSTOP)
    assert agent.observe().state == "alive"
    hit(owner(agent), signal.SIGCONT)
    agents.go("up")

    assert agent.wait(LONG).code == 4


def test_a_dead_one_that_nobody_waited_for_is_dead_and_tells_how_it_ended(agents: AgentKit, place: Path) -> None:
    one = start(place, *agents.script().at("up").exits(6).command, name="one")
    other = start(place, *agents.script().at("up").kill_itself().command, name="other")
    for _ in range(2):
        agents.wait_for("up")
    supervisors = [supervisor_of(one), supervisor_of(other)]
    for supervisor in supervisors:
        hit(supervisor, signal.SIGSTOP)
    agents.go("up", times=2)

    seen = [one.wait(LONG), other.wait(LONG)]
    assert [process(owner(agent).pid) is not None for agent in (one, other)] == [True, True]
    assert not (one.directory / "exit.json").exists()
    assert seen == [Observation("exited", 6), Observation("exited", None, signal.SIGKILL)]

    for supervisor in supervisors:
        hit(supervisor, signal.SIGCONT)
    assert one.stop().observation.code == 6  # waits for the supervisor
    assert one.observe().ended_ns is not None


def test_an_agent_outlives_its_supervisor_but_nobody_sees_how_it_ends(agents: AgentKit, place: Path) -> None:
    agent = start(place, *agents.script().say("one").at("up").say("two").exits(3).command)
    agents.wait_for("up")

    hit(supervisor_of(agent), signal.SIGKILL)
    assert agent.observe().state == "alive"
    agents.go("up")

    seen = agent.wait(LONG)
    assert (seen.state, agent.capture()) == ("exited", "one\ntwo\n")
    assert (seen.code, seen.signal) in ((None, None), (3, None))  # whoever adopted it may not have waited for it yet


def test_nothing_is_known_of_an_agent_that_never_was(place: Path) -> None:
    nobody = AgentProcess(place.parent / "agent")

    assert nobody.observe().state == "missing"
    assert nobody.stop().idle
    assert nobody.capture() == ""
    with pytest.raises(AdapterUnavailable, match="reads nothing any more"):
        nobody.send("hello\n")


@pytest.mark.parametrize("record", [b"", b"{", b"[1]", b'{"owner": {"pid": 1}}', b'{"owner": null, "mark": 1}', b"\xff"])
def test_a_damaged_record_tells_nothing(place: Path, record: bytes) -> None:
    (place / "agent.json").write_bytes(record)

    assert AgentProcess(place).observe().state == "missing"


def test_another_process_with_its_number_is_not_it(agents: AgentKit, place: Path) -> None:
    agent = start(place, *agents.script().at("up").command)
    agents.wait_for("up")
    former = replace(owner(agent), start_time=(owner(agent).start_time or 0) - 1)

    seen = AgentProcess(place.parent / "other", former)
    assert seen.observe().state == "missing"
    assert AgentProcess(agent.directory, former).observe().state == "missing"  # the files there are of another one
    agents.go("up")
    assert agent.wait(LONG).code == 0
    assert agent.stop().idle
    assert AgentProcess(agent.directory, former).observe().state == "missing"


def test_an_agent_of_an_earlier_boot_is_gone(agents: AgentKit, place: Path) -> None:
    agent = start(place, *agents.script().at("up").command)
    agents.wait_for("up")
    former = replace(owner(agent), boot_id="another")

    assert AgentProcess(place.parent / "other", former).observe().state == "missing"
    assert AgentProcess(place.parent / "other", former).stop().idle
    assert agent.observe().state == "alive"


@pytest.mark.parametrize("elsewhere", [{"host": "another"}, {"pid_space": 1}])
def test_an_agent_elsewhere_cannot_be_told_nor_stopped(agents: AgentKit, place: Path, elsewhere: dict[str, Any]) -> None:
    agent = start(place, *agents.script().at("up").command)
    agents.wait_for("up")
    there = AgentProcess(place.parent / "other", replace(owner(agent), **elsewhere))

    assert there.observe().state == "probe_failed"
    assert there.observe().reason
    with pytest.raises(CapabilityMissing, match="cannot be stopped from here"):
        there.stop(grace=0)
    assert agent.observe().state == "alive"


# What it says and hears --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "lines", "shown"),
    [
        ("printf ''", 100, ""),
        ("printf 'a\\nb\\nc\\n'", 2, "b\nc\n"),
        ("printf 'a\\nb\\nc'", 2, "b\nc"),
        ("printf 'a\\nb\\n'", 0, ""),
        ("printf '\\n\\n'", 100, "\n\n"),
        ("printf 'a\\r50%%\\rb\\n'", 1, "a\r50%\rb\n"),
        ("printf 'caf\\303\\251 \\377\\n'", 100, "café \ufffd\n"),
        ("echo out; echo err >&2; echo out", 100, "out\nerr\nout\n"),
    ],
)
def test_the_last_lines_are_shown(place: Path, script: str, lines: int, shown: str) -> None:
    agent = start(place, "sh", "-c", script)
    assert agent.wait(LONG).code == 0

    assert agent.capture(lines) == shown


def test_of_much_output_only_the_end_is_read(agents: AgentKit, place: Path) -> None:
    agent = start(place, *agents.script().fill(5_000_000).say("the end").command)
    assert agent.wait(LONG).code == 0

    assert len(agent.capture().splitlines()) == 100
    assert len(agent.capture(10**9)) <= 1 << 20
    assert agent.capture(1).endswith("the end\n")
    with pytest.raises(InvalidInput, match="-1 lines"):
        agent.capture(-1)


def test_an_agent_hears_what_is_sent_whoever_sends_it(place: Path) -> None:
    agent = start(place, "sh", "-c", "head -n 9 > heard")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: AgentProcess(agent.directory).send(f"{number}" * 200_000 + "\n", wait=LONG), range(8)))

    assert agent.observe().state == "alive"  # nobody who sends ends its input
    agent.send("last\n")
    assert agent.wait(LONG).code == 0
    heard = (place / "heard").read_text().splitlines()
    assert sorted(heard) == [*(f"{number}" * 200_000 for number in range(8)), "last"]


def test_an_agent_that_does_not_read_is_told_of(agents: AgentKit, place: Path) -> None:
    agent = start(place, *agents.script().at("up").command)
    agents.wait_for("up")

    with pytest.raises(AdapterUnavailable, match="of 200000 bytes were written"):
        agent.send("x" * 200_000, wait=0.05)
    with pytest.raises(AdapterUnavailable, match=r" 0 of 1 bytes were written"):
        agent.send("y", wait=0)


def test_nothing_can_be_sent_to_the_dead(place: Path) -> None:
    agent = start(place, "true")
    agent.wait(LONG)

    with pytest.raises(AdapterUnavailable, match="reads nothing any more"):
        agent.send("hello\n")


def test_an_agent_goes_on_when_its_starter_is_gone(agents: AgentKit, place: Path) -> None:
    command = agents.script().read().say("heard").exits(2).command
    source = (
        "import json, sys\nfrom pytest_gittrix.engine.agents.start import start_agent\n"
        "start_agent(json.loads(sys.argv[1]), directory=sys.argv[2], workspace=sys.argv[3], environment={'PATH': sys.argv[4]})\n"
    )
    directory = place.parent / "agent"
    subprocess.run(
        [sys.executable, "-c", source, json.dumps(command), str(directory), str(place), ENVIRONMENT["PATH"]], check=True, timeout=LONG
    )
    agent = AgentProcess(directory)

    assert agent.observe().state == "alive"
    agent.send("hello\n")
    assert agent.wait(LONG).code == 2
    assert agent.capture() == "heard\n"
