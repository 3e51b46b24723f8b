"""How agents start and fail to start: real processes, kills and failing disks, and nothing that runs unknown."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.agent_processes import ENVIRONMENT, LONG, SOAK, agents_fixture, hit, on_linux, owner, place_fixture, start, supervisor_of

from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.process_tree import MARK, table
from pytest_gittrix.testing.faults.fault_sweep import sweep
from pytest_gittrix.testing.faults.faults import Fault, SupervisedRun
from pytest_gittrix.testing.faults.supervisor import supervise_function, supported
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit

pytestmark = on_linux

__all__ = ["agents_fixture", "place_fixture"]


def below(directory: Path) -> list[int]:
    """Processes that have a directory in their command line."""
    found = []
    for pid in table():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if pid != os.getpid() and os.fsencode(directory) in command:
            found.append(pid)
    return found


# What it gets ------------------------------------------------------------------------------------------------------------------


def test_an_agent_works_in_its_workspace_with_its_environment_and_nothing_else(agents: AgentKit, place: Path) -> None:
    command = [*agents.script().facts().command, "--prompt", "fix it"]

    agent = start(place, *command, GITTRIX_SESSION_ID="sess_1", ODD="\udcff=x\n")

    assert agent.wait(LONG).code == 0, agent.capture()
    facts: dict[str, Any] = json.loads((place / "facts.json").read_text())
    assert facts["directory"] == str(place)
    assert facts["arguments"] == ["--prompt", "fix it"]
    mark = facts["environment"].pop(MARK)
    # A shell that starts a program adds some of its own.
    assert {name: value for name, value in facts["environment"].items() if name not in ("PWD", "_", "SHLVL", "OLDPWD", "LC_CTYPE")} == {
        **ENVIRONMENT,
        "GITTRIX_SESSION_ID": "sess_1",
        "ODD": "\udcff=x\n",
    }
    assert len(mark) == 16


def test_an_agent_leads_a_session_and_group_of_its_own(agents: AgentKit, place: Path) -> None:
    agent = start(place, *agents.script().facts().command)

    assert agent.wait(LONG).code == 0
    facts = json.loads((place / "facts.json").read_text())
    assert owner(agent).pid == facts["pid"] == facts["group"] == facts["session"]
    assert facts["parent"] != os.getpid()


def test_an_agent_has_no_open_file_and_no_signal_setting_of_its_starter(place: Path) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with (place.parent / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        try:
            agent = start(place, "sh", "-c", "ls -l /proc/self/fd; grep -E 'SigIgn|SigBlk' /proc/self/status")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert agent.wait(LONG).code == 0

    said = agent.capture()
    assert "secret" not in said
    masks = [int(line.split()[1], 16) for line in said.splitlines() if line.startswith("Sig")]
    # Of the signals that the C library keeps for itself, it ignores some in whatever it spawns; no program can change that.
    changeable = sum(1 << (number - 1) for number in signal.valid_signals())
    assert [mask & changeable for mask in masks] == [0, 0]


def test_who_it_is_is_told_before_it_does_anything(agents: AgentKit, place: Path) -> None:
    owners: list[Owner] = []
    command = agents.script().write("done", "").command

    def confirm(who: Owner) -> None:
        assert who.alive()
        assert AgentProcess(place.parent / "agent").observe().state == "alive"
        assert not (place / "done").exists()
        owners.append(who)

    agent = start_agent(command, directory=place.parent / "agent", workspace=place, environment=ENVIRONMENT, confirm=confirm)

    assert agent.wait(LONG).code == 0
    assert owners == [agent.owner]
    assert Owner.from_json(json.loads(json.dumps(owners[0].to_json()))) == agent.owner
    assert (place / "done").exists()


def test_a_program_is_found_as_its_environment_says(place: Path) -> None:
    for folder in ("first", "second"):
        (place / folder).mkdir()
        (place / folder / "tool").write_text(f"#!/bin/sh\necho {folder} $0\n")
        (place / folder / "tool").chmod(0o755)
    (place / "first/tool").chmod(0o644)

    by_path = start(place, "tool", name="a", PATH=f"first:{place / 'second'}:{ENVIRONMENT['PATH']}")
    by_place = start(place, "second/tool", name="b")

    assert by_path.wait(LONG).code == by_place.wait(LONG).code == 0
    assert by_path.capture().split()[0] == by_place.capture().split()[0] == "second"


# How it does not start ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-program"], "There is no program 'no-such-program'"),
        (["./plain"], "There is no program './plain'"),
        (["./folder"], "There is no program './folder'"),
        (["./lost"], "cannot be executed: No such file or directory"),
        (["./broken"], "cannot be executed: Exec format error"),
        (["sh", "x" * 300_000], "cannot be executed: Argument list too long"),
        ([], "no command"),
        ("sh", "no command"),
        (["sh", "a\0b"], "cannot be given to a program"),
        (["sh", "\ud800"], "cannot be given to a program"),
    ],
)
def test_a_program_that_cannot_run_is_an_error_and_leaves_nothing(place: Path, command: Sequence[str], said: str) -> None:
    (place / "plain").write_text("#!/bin/sh\n")
    (place / "folder").mkdir()
    for name, text in {"lost": "#!/no/such/interpreter\n", "broken": "\x7fELF"}.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)

    with pytest.raises(InvalidInput, match=said):
        start_agent(command, directory=place.parent / "agent", workspace=place, environment=ENVIRONMENT)

    assert os.listdir(place.parent) == ["workspace"]
    assert below(place.parent) == []


@pytest.mark.parametrize("variable", ["", "A=B", "A\0"])
def test_a_variable_that_cannot_be_is_an_error(place: Path, variable: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be"):
        start_agent(["true"], directory=place.parent / "agent", workspace=place, environment={**ENVIRONMENT, variable: "x"})

    assert os.listdir(place.parent) == ["workspace"]


def test_without_a_workspace_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="There is no workspace"):
        start(tmp_path / "nowhere", "true")

    assert os.listdir(tmp_path) == []


def test_two_agents_never_share_their_files(place: Path) -> None:
    first = start(place, "sh", "-c", "echo first")
    first.wait(LONG)

    with pytest.raises(InvalidInput, match="is there already"):
        start(place, "sh", "-c", "echo second")
    assert first.capture() == "first\n"


def test_files_that_cannot_be_made_are_an_error(place: Path) -> None:
    (place.parent / "file").write_text("")

    with pytest.raises(AdapterUnavailable, match="cannot be made"):
        start_agent(["true"], directory=place.parent / "file" / "agent", workspace=place, environment=ENVIRONMENT)


def test_an_agent_that_nobody_wants_to_know_of_does_not_start(agents: AgentKit, place: Path) -> None:
    command = agents.script().write("done", "").command
    owners: list[Owner] = []

    def refuse(who: Owner) -> None:
        owners.append(who)
        raise ValueError("the log is full")

    with pytest.raises(ValueError, match="the log is full"):
        start_agent(command, directory=place.parent / "agent", workspace=place, environment=ENVIRONMENT, confirm=refuse)

    assert owners[0].alive() is False
    assert not (place.parent / "agent").exists()
    assert os.listdir(place) == []
    assert agents.processes() == []
    assert AgentProcess(place.parent / "agent", owners[0]).observe().state == "missing"


def test_a_supervisor_that_is_killed_at_the_start_is_an_error(agents: AgentKit, place: Path) -> None:
    command = agents.script().write("done", "").command
    owners: list[Owner] = []

    def kill(who: Owner) -> None:
        owners.append(who)
        hit(supervisor_of(AgentProcess(place.parent / "agent")), signal.SIGKILL)

    with pytest.raises(AdapterUnavailable, match="its supervisor ended early"):
        start_agent(command, directory=place.parent / "agent", workspace=place, environment=ENVIRONMENT, confirm=kill)

    assert owners[0].alive() is False
    assert not (place.parent / "agent").exists()
    assert os.listdir(place) == []


def own_children() -> set[int]:
    """The processes that this one started; another test may have left the launcher of confined programs, which goes with this process."""
    return {pid for pid, one in table().items() if one.parent == os.getpid()}


def test_many_start_at_once_and_leave_nothing_open(agents: AgentKit, place: Path) -> None:
    command = agents.script().at("up").say("done").command
    start(place, "true", name="first").wait(LONG)  # what is loaded once is loaded
    gc.collect()  # what other tests left is not to be closed in between
    files, threads, children = os.listdir("/proc/self/fd"), threading.active_count(), own_children()

    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda number: start(place, *command, name=f"agent-{number}"), range(32)))
    for _ in started:
        agents.wait_for("up")
    assert len({owner(agent) for agent in started}) == len(started)
    assert {agent.observe().state for agent in started} == {"alive"}
    agents.go("up", times=len(started))

    assert [agent.wait(LONG).code for agent in started] == [0] * len(started)  # never dead without a status
    assert [(agent.observe().code, agent.capture()) for agent in started] == [(0, "done\n")] * len(started)
    assert len(os.listdir("/proc/self/fd")) <= len(files)
    assert threading.active_count() <= threads
    assert own_children() <= children


# A starter that is killed ------------------------------------------------------------------------------------------------------


def cleared(directory: Path) -> bool:
    deadline = time.monotonic() + LONG
    while directory.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return not directory.exists()


def test_a_starter_that_dies_before_it_knows_starts_nothing(agents: AgentKit, tmp_path: Path) -> None:
    command = agents.script().write(str(tmp_path / "done"), "").command
    source = """
        import json, os, signal, sys
        from pytest_gittrix.engine.agents.start import start_agent

        start_agent(json.loads(sys.argv[1]), directory=sys.argv[2], workspace="/", environment={}, confirm=lambda who: (
            print(who.pid, flush=True), os.kill(os.getpid(), signal.SIGKILL)))
    """
    argv = [sys.executable, "-c", textwrap.dedent(source), json.dumps(command), str(tmp_path / "agent")]
    killed = subprocess.run(argv, stdout=subprocess.PIPE, timeout=LONG, check=False)

    assert killed.returncode == -signal.SIGKILL
    assert cleared(tmp_path / "agent")
    assert not (tmp_path / "done").exists()
    assert agents.processes() == []


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
@pytest.mark.parametrize("kind", ["kill", "ENOSPC", "EIO"])
def test_no_agent_runs_of_which_nobody_knows(tmp_path: Path, kind: str) -> None:
    """Struck at any call that changes a file: what ran was known before; what was not started left no process."""
    roots: list[Path] = []

    def act() -> None:
        root = roots[-1]

        def confirm(who: Owner) -> None:
            (root / "known").write_text(json.dumps(who.to_json()))

        agent = start_agent(
            ["sh", "-c", "echo ran > ran"], directory=root / "agent", workspace=root, environment=ENVIRONMENT, confirm=confirm
        )
        agent.wait(LONG)

    def run(fault: Fault | None) -> SupervisedRun:
        roots.append(tmp_path / f"run-{len(roots)}")
        roots[-1].mkdir()
        return supervise_function(act, fault=fault, within=roots[-1], timeout=LONG)

    ends = set()
    for fault, struck in sweep(run, kinds=[kind], points=None if SOAK else slice(0, None, 2)):
        root = roots[-1]
        assert not struck.timed_out, fault
        if (root / "ran").exists():
            assert Owner.from_json(json.loads((root / "known").read_text())) == AgentProcess(root / "agent").owner, fault
        seen = AgentProcess(root / "agent").observe()
        assert seen.state in ("exited", "missing"), fault
        if kind != "kill" and struck.exit_code != 0:
            assert not (root / "agent").exists(), fault
            assert b"pytest_gittrix.errors." in struck.stderr or b"known" in struck.stderr, (fault, struck.stderr)
        ends.add((seen.state, seen.code))
        with suppress(GittrixError):
            assert AgentProcess(root / "agent").stop(grace=0).idle, fault
    assert len(ends) > 1
