"""Limits of confined programs: passed, and kept, at every level that this machine has. No program here could use much if none worked."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.confined import JAILS, LONG, PATH, STRONGER, Confined, available

from pytest_gittrix.confine.command_line import Confinement, limits_of, wrapped
from pytest_gittrix.confine.kernel.meter import Meter
from pytest_gittrix.confine.kernel.namespace_jail import numbers_are_its_own
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.confine.limits import ResourceLimits, check_limits
from pytest_gittrix.confine.network import check_network
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.errors import CapabilityMissing, InvalidInput

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")

MB = 10**6
OWN_JAIL = "jail by namespaces"
# Each does something, and waits for its last argument then.
WAITS = "\nimport sys, time; time.sleep(float(sys.argv[-1]))"
CHILDREN = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
"""
THREADS = "import threading, time; [threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(40)]"
MEMORY = "import sys; kept = bytearray(int(sys.argv[1]))"
FORKED_MEMORY = "import os; kept = b'x' * 30_000_000; [os.fork() for _ in range(2)]"
CHILDRENS_MEMORY = "import os; [os.fork() for _ in range(2)]; kept = b'x' * 30_000_000"
FILE_IN_MEMORY = "import os; fd = os.memfd_create('m'); os.write(fd, bytes(60_000_000))"
FILES = """
import os, sys
for number in range(int(sys.argv[1])):
    with open(f"f{number}", "wb") as file:
        file.write(os.urandom(1 << 20))
"""
IN_HOME = 'import os; os.chdir(os.environ["TMPDIR"])' + FILES
NAMELESS = """
import os
file = open("gone", "wb", buffering=0)
os.unlink("gone")
for _ in range(16):
    file.write(os.urandom(1 << 20))
"""
BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
WORKS = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass"
WORKING_CHILDREN = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN if sys.argv[1] == "ignored" else signal.SIG_DFL)
for _ in range(100):
    if (child := os.fork()) == 0:
        while time.process_time() < 0.1: pass
        os._exit(0)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass
"""


def limited(name: str, root: Path, **limits: float) -> Confined:
    return Confined.make(root, replace(available(name), limits=check_limits(limits)))


@pytest.mark.parametrize("name", STRONGER)
@pytest.mark.parametrize(
    ("limits", "program", "argument", "passed"),
    [
        pytest.param({"processes": 32}, CHILDREN, "40", "processes", id="too many processes"),
        pytest.param({"processes": 32}, THREADS, "", "processes", id="too many threads"),
        pytest.param({"memory": 64 * MB}, MEMORY, "100000000", "memory", id="too much memory"),
        pytest.param({"memory": 64 * MB}, CHILDRENS_MEMORY, "", "memory", id="too much memory in several processes"),
        pytest.param({"memory": 48 * MB}, FILE_IN_MEMORY, "", "memory", id="too much in a file in memory"),
        pytest.param({"disk": 8 * MB}, FILES, "16", "disk", id="too much on disk"),
        pytest.param({"disk": 8 * MB}, IN_HOME, "16", "disk", id="too much in temporary files"),
        pytest.param({"disk": 8 * MB}, NAMELESS, "", "disk", id="too much in a file without a name"),
        pytest.param({"cpu_seconds": 0.3}, WORKS, "60", "cpu", id="too much work"),
        pytest.param({"cpu_seconds": 0.3}, WORKING_CHILDREN, "waited for", "cpu", id="too much work of children"),
        pytest.param({"cpu_seconds": 0.3}, WORKING_CHILDREN, "ignored", "cpu", id="too much work of children that nobody waits for"),
    ],
)
def test_a_program_that_passes_a_limit_is_ended_and_the_limit_is_named(
    name: str, limits: dict[str, float], program: str, argument: str, passed: str, tmp_path: Path
) -> None:
    ended = limited(name, tmp_path, **limits).python(program + WAITS, argument, str(LONG))

    assert (ended.limit, ended.signal, ended.code, ended.timed_out) == (passed, 9, None, False), ended


@pytest.mark.parametrize("name", STRONGER)
@pytest.mark.parametrize(
    ("program", "argument"),
    [
        pytest.param(CHILDREN, "28", id="processes"),
        pytest.param(MEMORY, "30000000", id="memory"),
        pytest.param(FORKED_MEMORY, "", id="memory that processes share"),
        pytest.param(FILES, "4", id="disk"),
        pytest.param(WORKS, "0.1", id="processor time"),
    ],
)
def test_a_program_that_keeps_to_its_limits_runs_to_its_end(name: str, program: str, argument: str, tmp_path: Path) -> None:
    kept = limited(name, tmp_path, processes=32, memory=64 * MB, disk=8 * MB, cpu_seconds=20)
    ended = kept.python(program + WAITS, argument, "0.2")

    assert (ended.limit, ended.code) == (None, 0), ended


@pytest.mark.parametrize("name", ["guard by landlock", OWN_JAIL])
def test_the_gateway_of_a_program_is_no_part_of_it(name: str, tmp_path: Path) -> None:
    found = replace(available(name), limits=ResourceLimits(processes=1), network=check_network("api.example.org:443"))

    assert Confined.make(tmp_path, found).run("sleep", "0.2").code == 0


@pytest.mark.parametrize("name", STRONGER)
def test_what_passed_a_limit_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    confined = limited(name, tmp_path, processes=8)
    os.mkfifo(confined.workspace / "held")
    ended = confined.shell("for i in 1 2 3 4 5 6 7 8 9; do (setsid sleep 60 <> held &); done; sleep 60")

    assert ended.limit == "processes"
    with pytest.raises(OSError, match="No such device or address"):  # nobody has it open
        os.open(confined.workspace / "held", os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("name", JAILS)
def test_the_files_in_memory_of_a_jail_hold_no_more_than_the_limit_of_memory(name: str, tmp_path: Path) -> None:
    confined = limited(name, tmp_path, memory=64 * MB)
    assert 62 * MB < int(confined.output("df -B1 --output=size /dev/shm | tail -1")) < 66 * MB

    ended = confined.python('kept = b"x" * 40_000_000\nopen("/dev/shm/f", "wb").write(kept)' + WAITS, "5")
    assert ended.limit == "memory", ended


@pytest.mark.skipif(not numbers_are_its_own(), reason="namespaces have no highest number of their own before Linux 6.14")
def test_the_kernel_itself_keeps_a_jail_to_300_processes_more_than_its_limit(tmp_path: Path) -> None:
    machines = Path("/proc/sys/kernel/pid_max").read_text()
    confined = limited(OWN_JAIL, tmp_path, processes=32)

    assert confined.output("cat /proc/sys/kernel/pid_max") == "333\n"
    assert Path("/proc/sys/kernel/pid_max").read_text() == machines
    assert confined.shell("echo 9999 > /proc/sys/kernel/pid_max").code != 0
    assert confined.python(BOMB).limit == "processes"


@pytest.mark.parametrize("name", JAILS)
def test_who_has_started_many_processes_may_still_have_as_many_at_a_time(name: str, tmp_path: Path) -> None:
    many = "import os\nfor _ in range(400):\n    if os.fork() == 0: os._exit(0)\n    os.wait()\n"
    ended = limited(name, tmp_path, processes=32).python(many + CHILDREN, "28")
    assert (ended.code, ended.limit) == (0, None), ended


@pytest.mark.parametrize("name", STRONGER)
def test_an_agent_that_stays_is_ended_and_its_limit_is_written_down(name: str, tmp_path: Path) -> None:
    confined = limited(name, tmp_path, memory=64 * MB)
    argv = [sys.executable, "-I", "-S", "-c", MEMORY + WAITS, "100000000", str(LONG)]
    file = tmp_path / "agent" / "limit"
    launch = wrapped(argv, confined.place(), confined.confinement, environment={"PATH": PATH}, limit_file=file)
    agent = start_agent(launch.argv, directory=file.parent, workspace=confined.workspace, environment=launch.environment)

    ended = agent.wait(LONG)

    assert (ended.state, ended.signal, ended.limit) == ("exited", 9, "memory")
    assert ended.reason == "it was ended, because it passed its limit of memory"
    assert "passed its limit of memory" in agent.capture()


def test_a_look_at_the_disk_may_be_interrupted_anywhere_even_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    monkeypatch.setattr("pytest_gittrix.confine.kernel.meter._STEP", -1)
    monkeypatch.setattr("pytest_gittrix.confine.kernel.meter._PAUSE", 0)
    monkeypatch.setattr("pytest_gittrix.confine.kernel.meter._SHARE", 0)
    meter = Meter({"disk": 50_000}, [str(tmp_path)], os.getpid(), ours=1, jailed=False)

    assert [meter.passed() for _ in range(3)] == ["disk"] * 3


@pytest.mark.parametrize("name", STRONGER)
def test_without_limits_nobody_measures(name: str, tmp_path: Path) -> None:
    confined = Confined.make(tmp_path, available(name))
    before = threading.active_count()
    ended = confined.python("import sys; kept = bytearray(100_000_000); print(sum(1 for _ in open('/proc/mounts')))")

    assert (ended.code, ended.limit) == (0, None)
    assert threading.active_count() == before


def test_limits_that_nothing_would_keep_are_refused() -> None:
    with pytest.raises(CapabilityMissing, match="level off"):
        confinement("off", limits={"processes": 32})
    assert confinement("off", limits={}).limits is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": 0},
        {"processes": 1.5},
        {"processes": True},
        {"memory": "much"},
        {"memory": -1},
        {"cpu_seconds": float("nan")},
        {"cpu_seconds": "inf"},
        {"cores": 2},
        "memory",
        ["memory=1GB", "memory=2GB"],
        [7],
        7,
    ],
)
def test_what_is_no_limit_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput, match=r"no limit|given twice"):
        check_limits(wrong)


def test_limits_are_given_as_values_as_a_mapping_or_as_texts() -> None:
    limits = ResourceLimits(processes=200, memory=2 * 10**9, cpu_seconds=0.5)

    assert check_limits(limits) is limits
    assert check_limits({"processes": 200, "memory": "2GB", "cpu_seconds": 0.5}) == limits
    assert check_limits(["processes=200", "memory=2G", "cpu_seconds=0.5"]) == limits
    assert check_limits("memory=7B") == ResourceLimits(memory=7)
    assert check_limits(None) is check_limits(ResourceLimits()) is check_limits([]) is None


def test_they_are_told_with_the_level_and_read_from_there() -> None:
    limits = ResourceLimits(processes=1_000_000, memory=2 * 10**9, disk=1234567, cpu_seconds=0.5)
    text = str(Confinement("jail", "bwrap", network="all", limits=limits))

    assert text == "jail(bwrap, network all, limits processes=1000000 memory=2GB disk=1234567B cpu_seconds=0.5)"
    assert limits_of(text) == limits
    assert limits_of("jail(bwrap, network all)") is None
    assert limits_of(None) is None


def test_a_limit_of_one_agent_takes_the_place_of_that_of_all_and_leaves_the_others() -> None:
    assert ResourceLimits(memory=1).or_else(ResourceLimits(memory=2, processes=3)) == ResourceLimits(memory=1, processes=3)
