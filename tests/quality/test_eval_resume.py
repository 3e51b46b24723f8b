"""A real ``gittrix eval run`` is killed in the middle: at most the samples in flight are lost, no record is torn, and it goes on.

What the dead leave is removed by the next run, and what the living own is not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.evals import agent_file, command_file, left_in, ran, suite

from pytest_gittrix.evals.inputs.sample_record import decode
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.work_dirs import owners, sweep
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.os_level.process_tree import process

CASES = [f"case-{number}" for number in range(8)]
STALLS = """
import os, sys, time
from pathlib import Path
Path("app.py").write_text("VERSION = 2\\n")
Path("seed.txt").write_text(os.environ["GITTRIX_SEED"])
stop = Path(__file__).with_name("stop")
if os.environ["GITTRIX_CASE"] in stop.read_text().split():
    Path(__file__).with_name(f"waits-{os.environ['GITTRIX_CASE']}").write_text(str(os.getpid()))
    time.sleep(600)
"""
"""An agent that stands still in the cases that are named in a file beside it, and says so."""


class Killed:
    """A suite, an agent that can be made to stand still, and a run of it as a process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = suite(root, *CASES)
        self.agent = command_file(root, STALLS)
        self.stall()

    def stall(self, *cases: str) -> None:
        (self.root / "stop").write_text(" ".join(cases))

    @contextmanager
    def running(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "pytest_gittrix.cli", "eval", "run", str(self.place), "--agent", self.agent]
        command += ["--out", str(self.root / "run"), "--scratch", str(self.root / "scratch"), "--confine", "off", *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as started:
            try:
                yield started
            finally:
                started.kill()

    def waits(self, case: str) -> int:
        """The agent's pid, once it stands still in a case."""
        file = self.root / f"waits-{case}"
        deadline = real_seconds() + 120
        while not (file.exists() and file.read_text()):
            assert real_seconds() < deadline, f"the agent never came to {case}"
            pause(0.01)
        return int(file.read_text())

    @property
    def store(self) -> RunStore:
        return RunStore.open(self.root / "run")

    def whole(self) -> list[str]:
        """Ids of the samples that have a record, each of which must be whole."""
        found = []
        for file in (self.store.path / "samples").iterdir():
            assert file.suffix == ".json" or file.name.startswith("tmp_"), file
            if file.suffix == ".json":
                found.append(decode(file.read_bytes(), file).id)
        return sorted(found)


def alive(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.alive


def gone(pid: int) -> bool:
    """Whether a process ends within a while."""
    deadline = real_seconds() + 60
    while alive(pid) and real_seconds() < deadline:
        pause(0.01)
    return not alive(pid)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_loses_what_was_in_flight_and_comes_to_the_same_digest(tmp_path: Path, workers: int) -> None:
    killed = Killed(tmp_path)
    whole = ran(killed.place, tmp_path, killed.agent, out=tmp_path / "whole")
    killed.stall("case-4")
    with killed.running("-n", str(workers)) as started:
        agent = killed.waits("case-4")
        workers_there = [owner.pid for owner, _ in owners(tmp_path / "scratch").values()]
        started.send_signal(signal.SIGKILL)
        started.wait()
    # A worker hears of it a little later, and may have kept one more record by then.
    assert all(map(gone, workers_there))
    done = killed.whole()

    assert len(set(CASES[:4]) - set(done)) <= workers - 1
    assert "case-4" not in done

    killed.stall()
    with killed.running("-n", str(workers), "--resume", "--trust-agent", "--json") as again:
        out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err.decode()
    data = json.loads(out)["data"]

    assert data["digest"] == whole.digest
    assert data["already"] == len(done)
    assert gone(agent)
    assert left_in(tmp_path / "scratch") == []
    fsck = subprocess.run(
        ["git", "-C", str(killed.store.objects.path), "fsck", "--no-dangling"], capture_output=True, timeout=60, check=False
    )
    assert fsck.returncode == 0, fsck.stderr


def test_workers_end_with_the_run_that_was_killed_and_so_do_their_agents(tmp_path: Path) -> None:
    killed = Killed(tmp_path)
    killed.stall("case-0", "case-1")
    with killed.running("-n", "2") as started:
        agents = [killed.waits("case-0"), killed.waits("case-1")]
        workers = [owner.pid for owner, _ in owners(tmp_path / "scratch").values()]
        assert len(workers) == 2
        started.send_signal(signal.SIGKILL)
        started.wait()

    assert all(gone(pid) for pid in workers)
    assert killed.whole() == []  # an agent that was ended with its worker did not end by itself
    assert all(gone(pid) for pid in agents)
    assert len(sweep(tmp_path / "scratch").removed) == 2


def test_a_worker_that_is_killed_costs_nobody_a_sample(tmp_path: Path) -> None:
    killed = Killed(tmp_path)
    whole = ran(killed.place, tmp_path, killed.agent, out=tmp_path / "whole")
    killed.stall("case-3")
    with killed.running("-n", "2", "--json") as started:
        agent = killed.waits("case-3")
        holder = _owner_of(tmp_path / "scratch", agent)
        killed.stall()
        os.kill(holder, signal.SIGKILL)
        out, err = started.communicate(timeout=300)

    assert started.returncode == 0, err.decode()
    data = json.loads(out)["data"]
    assert (data["digest"], data["samples"]) == (whole.digest, len(CASES))
    assert killed.whole() == CASES
    assert gone(agent)
    assert left_in(tmp_path / "scratch") == []


def _owner_of(scratch: Path, agent: int) -> int:
    """The worker in whose directory an agent works."""
    where = os.readlink(f"/proc/{agent}/cwd")
    return next(owner.pid for name, (owner, _) in owners(scratch).items() if f"/{name}/" in where)


def test_a_run_beside_a_living_one_leaves_its_directories_alone(tmp_path: Path) -> None:
    killed = Killed(tmp_path)
    killed.stall("case-2")
    with killed.running() as started:
        agent = killed.waits("case-2")
        before = owners(tmp_path / "scratch")
        other = ran(suite(tmp_path / "other"), tmp_path, "nop", out=tmp_path / "beside")

        assert other.swept == ()
        assert owners(tmp_path / "scratch") == before
        assert alive(agent)
        started.send_signal(signal.SIGKILL)
        started.wait()

    assert ran(tmp_path / "other" / "suite", tmp_path, "nop", out=tmp_path / "after").swept == tuple(before)
    assert gone(agent)


def test_a_sample_that_kills_its_worker_again_and_again_takes_no_other_with_it(tmp_path: Path) -> None:
    body = "import os\nif toolbox.case == 'case-2':\n    os.kill(os.getpid(), 9)\ntoolbox.write('app.py', 'VERSION = 2\\n')"

    summary = ran(suite(tmp_path, *CASES[:6]), tmp_path, agent_file(tmp_path, body), workers=2, retries=0)

    assert {record.id for record in summary.records if record.outcome != "pass"} == {"case-2"}
    assert summary.counts["infra_error"] == 1
    assert left_in(tmp_path / "scratch") == []


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_what_was_done_and_leaves_nothing_running(tmp_path: Path, workers: int) -> None:
    killed = Killed(tmp_path)
    killed.stall("case-3")
    with killed.running("-n", str(workers)) as started:
        agent = killed.waits("case-3")
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=300)

    assert started.returncode == 130
    assert b"go on with --resume" in err
    assert b"Traceback" not in err
    assert gone(agent)
    assert left_in(tmp_path / "scratch") == []
    assert len(killed.whole()) >= 2
