"""Scripted agents: they do their steps in order, stop where the test says, and end with the kit whatever they do."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.git import GitRepo

from pytest_gittrix.errors import Deadlock, InvalidInput
from pytest_gittrix.os_level.lock_owner import SECOND_NS
from pytest_gittrix.os_level.process_tree import process, signal_process
from pytest_gittrix.record.state.agent_activity import read_jsonl
from pytest_gittrix.testing.scenarios.agent_kit import ACTIVITY, AgentKit, AgentScript

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents as processes need Linux")

LONG = 60.0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[AgentKit]:
    """A kit."""
    with AgentKit(tmp_path / "agents", timeout=LONG) as kit:
        yield kit


def run(
    script: AgentScript, cwd: Path, *arguments: str, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A script as anybody runs a program."""
    return subprocess.run(
        [*script.command, *arguments], cwd=cwd, input=stdin, env=env, capture_output=True, text=True, timeout=LONG, check=False
    )


def read_json(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def test_the_steps_are_done_in_order(agents: AgentKit, tmp_path: Path) -> None:
    script = agents.script().say("one").say("wrong", error=True).write("deep/a.txt", "a").append("deep/a.txt", "b").say("two").exits(3)

    done = run(script, tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (3, "one\ntwo\n", "wrong\n")
    assert (tmp_path / "deep/a.txt").read_text() == "ab"


def test_a_script_without_steps_is_a_program_that_succeeds(agents: AgentKit, tmp_path: Path) -> None:
    assert run(agents.script(), tmp_path).returncode == 0


def test_a_script_tells_who_it_is(agents: AgentKit, tmp_path: Path) -> None:
    run(agents.script().facts(), tmp_path, "--prompt", "fix it", env={"PATH": os.defpath, "ASKED_BY": "test"})

    facts = read_json(tmp_path / "facts.json")
    assert facts["pid"] == agents.processes("agent")[0].pid
    assert facts["parent"] == os.getpid()
    assert facts["directory"] == str(tmp_path)
    assert facts["arguments"] == ["--prompt", "fix it"]
    assert facts["environment"]["ASKED_BY"] == "test"
    assert "GITTRIX_AGENT_KIT" not in facts["environment"]


def test_a_script_stops_at_a_point_until_it_is_told_to_go(agents: AgentKit, tmp_path: Path) -> None:
    agent = agents.start(agents.script().say("before").at("here").say("after").exits(7))

    agents.wait_for("here")
    assert agent.capture() == "before\n"
    assert agent.observe().state == "alive"
    agents.go("here")

    assert agents.gone("agent")
    assert agent.capture() == "before\nafter\n"
    assert agent.observe().code == 7


def test_a_point_is_passed_again_and_again(agents: AgentKit) -> None:
    agent = agents.start(agents.script().at("round").say("1").at("round").say("2").at("round"))

    for number in range(3):
        agents.wait_for("round")
        assert len(agent.capture().splitlines()) == number
        agents.go("round")
    assert agents.gone()


def test_several_scripts_meet_at_one_point(agents: AgentKit, tmp_path: Path) -> None:
    for number in range(3):
        agents.start(agents.script(f"agent-{number}").at("gate"))

    for _ in range(3):
        agents.wait_for("gate")
    assert len(agents.alive()) == 3
    agents.go("gate", times=3)
    assert agents.gone()


def test_a_point_that_no_script_has_is_an_error(agents: AgentKit) -> None:
    agents.script().at("there")

    with pytest.raises(InvalidInput, match="there"):
        agents.go("here")
    with pytest.raises(InvalidInput, match="No script stops"):
        agents.wait_for("here")


def test_a_point_that_is_not_reached_is_told(agents: AgentKit, tmp_path: Path) -> None:
    agents.start(agents.script().at("here").at("there"))
    agents.wait_for("here")

    with pytest.raises(Deadlock, match="The time is up"):
        agents.wait_for("there", timeout=0.05)


def test_nobody_waits_for_the_dead(agents: AgentKit, tmp_path: Path) -> None:
    run(agents.script().kill_itself().at("later"), tmp_path)

    with pytest.raises(Deadlock, match="Every process is gone"):
        agents.wait_for("later")


def test_a_script_reads_its_input(agents: AgentKit, tmp_path: Path) -> None:
    run(agents.script().read().read(), tmp_path, stdin="first\nsecond\n")

    assert agents.processes()
    assert agents.heard == ["first", "second"]


def test_a_script_fills_its_output(agents: AgentKit, tmp_path: Path) -> None:
    done = run(agents.script().fill(1_000_001), tmp_path)

    assert len(done.stdout) == 1_000_001
    assert done.stdout.splitlines()[1] == f"{1:063}"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_script_dies_by_a_signal(agents: AgentKit, tmp_path: Path, number: int) -> None:
    assert run(agents.script().deaf().kill_itself(number), tmp_path).returncode == -number


def test_a_deaf_script_does_not_hear_and_a_polite_one_tells(agents: AgentKit) -> None:
    agents.start(agents.script("deaf").deaf().at("deaf").exits(1))
    polite = agents.start(agents.script("polite").polite(5).at("polite").exits(1))
    agents.wait_for("deaf")
    agents.wait_for("polite")

    for pid in agents.alive():
        one = process(pid)
        assert one is not None
        assert signal_process(one, signal.SIGTERM)

    assert agents.gone("polite")
    assert polite.observe().code == 5
    assert agents.asked == ["SIGTERM"]
    assert agents.alive("deaf")


def test_a_script_writes_heartbeats_and_what_it_does(agents: AgentKit, tmp_path: Path) -> None:
    now_ns = 1_893_456_000 * SECOND_NS
    script = agents.script().line("beats.jsonl", beat=1).activity("active", ts="2030-01-01T00:00:00Z")
    run(script.activity("waiting_input", ts="2030-01-01T00:00:00Z"), tmp_path)

    seen = read_jsonl(tmp_path / ACTIVITY, now_ns)
    assert (seen.state, seen.source) == ("waiting_input", "native")
    beat = json.loads((tmp_path / "beats.jsonl").read_text())
    assert beat.keys() == {"ts", "beat"}


def test_a_script_commits_where_it_works(agents: AgentKit, tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "work", {"a.txt": "a\n"})
    script = agents.script().commit("First", {"new/b.txt": "b\n"}).write("c.txt", "c\n").commit("Second")

    agent = agents.start(script, workspace=repo.path)

    assert agents.gone("agent")
    assert agent.observe().code == 0, agent.capture()
    assert repo.git("log", "--format=%s %an", "-2").splitlines() == [b"Second Agent", b"First Agent"]
    assert repo.git("show", "HEAD:c.txt") == b"c\n"


def test_a_program_that_fails_ends_the_script(agents: AgentKit, tmp_path: Path) -> None:
    done = run(agents.script().run("sh", "-c", "exit 9").say("not said"), tmp_path)

    assert (done.returncode, done.stdout) == (9, "")
    assert "sh ended with 9" in done.stderr


def test_children_and_daemons_are_up_when_the_script_goes_on(agents: AgentKit) -> None:
    server = agents.script("server").deaf().facts("server.json").hang()
    agents.start(agents.script().facts().spawn_child(server).spawn_daemon().spawn_daemon(scrub=True).at("up").hang())
    agents.step("up")

    [child], daemons, [agent] = agents.alive("server"), agents.alive("daemon"), agents.alive("agent")
    seen = {pid: process(pid) for pid in (agent, child, *daemons)}
    sessions = {pid: one.session for pid, one in seen.items() if one is not None}
    assert sessions[child] == sessions[agent] == agent
    assert len(daemons) == 2
    assert agent not in {sessions[pid] for pid in daemons}
    assert b"GITTRIX" in Path(f"/proc/{daemons[0]}/environ").read_bytes()
    assert Path(f"/proc/{daemons[1]}/environ").read_bytes() == b""


def test_nothing_is_left_after_the_kit_whoever_started_it(tmp_path: Path) -> None:
    with AgentKit() as agents:
        agents.start(agents.script("ours").deaf().spawn_child().spawn_daemon(scrub=True).at("up").hang())
        theirs = subprocess.Popen(agents.script("theirs").deaf().spawn_daemon().at("up").hang().command, start_new_session=True)
        agents.step("up")
        agents.step("up")
        everything = [process(pid) for pid in agents.alive()]
        assert len(everything) == 5
        left = agents
    theirs.wait(LONG)

    now = [process(one.pid) for one in everything if one is not None]
    assert not [one for one in now if one in everything and one is not None and one.alive]
    assert not left.bin.exists()


def ends(pid: int, word: str) -> bool:
    """Whether a process that has a word in its command line ends."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ours = word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        return not ours or bool(select.select([fd], [], [], LONG)[0])
    except OSError:
        return True
    finally:
        os.close(fd)


def test_scripts_end_when_the_process_of_the_test_is_killed(tmp_path: Path) -> None:
    source = """
        import os, signal, sys
        from pathlib import Path
        from pytest_gittrix.testing.scenarios.agent_kit import AgentKit

        kit = AgentKit(sys.argv[1])
        kit.start(kit.script().deaf().spawn_daemon(scrub=True).at("up").hang())
        kit.step("up")
        print(*kit.alive(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    argv = [sys.executable, "-c", textwrap.dedent(source), str(tmp_path / "agents")]
    killed = subprocess.run(argv, capture_output=True, text=True, timeout=LONG, check=False)

    pids = [int(pid) for pid in killed.stdout.split()]
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(pids) == 2
    assert [pid for pid in pids if not ends(pid, str(tmp_path))] == []


def test_a_stub_stands_for_a_program_in_the_path(agents: AgentKit, tmp_path: Path) -> None:
    agents.install("claude", agents.script().facts().say("done"))
    env = {"PATH": f"{agents.bin}{os.pathsep}{os.environ['PATH']}"}

    done = subprocess.run(["claude", "--print"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LONG, check=True)
    assert done.stdout == "done\n"
    assert read_json(tmp_path / "facts.json")["arguments"] == ["--print"]

    agents.install("claude", agents.script().exits(1))
    assert subprocess.run(["claude"], cwd=tmp_path, env=env, timeout=LONG, check=False).returncode == 1


@pytest.mark.parametrize("code", [-1, 256])
def test_a_status_that_no_process_can_have_is_refused(agents: AgentKit, code: int) -> None:
    with pytest.raises(InvalidInput, match="no exit status"):
        agents.script().exits(code)
