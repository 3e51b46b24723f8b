"""A run is killed at each point and at each call that changes its directory: what is left is whole, and goes on to the same digest."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.evals import SOLVES, agent_file, left_in, options, suite

from pytest_gittrix.evals.inputs.sample_record import decode
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.run import run_suite
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.supervisor import supported

POINTS = ("eval:lease-written", "eval:session-started", "eval:agent-done", "eval:promoted", "eval:record-ready")


def is_whole(store: RunStore, wanted: Options, place: Path, digest: str) -> None:
    """No record is torn, no object is damaged, and going on comes to the digest."""
    for file in (store.path / "samples").glob("*.json"):
        decode(file.read_bytes(), file)
    again = run_suite(Suite.load(place), replace(wanted, resume=True, trust_agent=True))
    assert again.digest == digest
    git = ["git", "-C", str(store.objects.path), "fsck", "--strict", "--no-dangling"]
    done = subprocess.run(git, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("program", [True, False])
def test_killed_at_a_point_a_run_goes_on_to_the_same_digest(tmp_path: Path, point: str, program: bool) -> None:
    place = suite(tmp_path, "a", "b", "c")
    agent = SOLVES if program else agent_file(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')")
    digest = run_suite(Suite.load(place), options(tmp_path, agent, out=tmp_path / "whole")).digest
    wanted = options(tmp_path, agent)

    nth = 1 if point == "eval:lease-written" else 2
    Crash().at(point, lambda: run_suite(Suite.load(place), wanted), nth=nth)

    store = RunStore.open(tmp_path / "run")
    assert len(store.keys()) == nth - 1
    is_whole(store, wanted, place, digest)
    assert [name for name in left_in(tmp_path / "scratch") if not name.startswith(".new-")] == []


def test_a_janitor_that_is_killed_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    place, wanted = suite(tmp_path), options(tmp_path, SOLVES)
    Crash().at("eval:agent-done", lambda: run_suite(Suite.load(place), wanted))
    assert len(left_in(tmp_path / "scratch")) == 1
    Crash().at("eval:lease-dead", lambda: run_suite(Suite.load(place), replace(wanted, resume=True, trust_agent=True)))

    summary = run_suite(Suite.load(place), replace(wanted, resume=True, trust_agent=True))

    assert summary.counts["pass"] == 1
    assert left_in(tmp_path / "scratch") == []


@pytest.mark.skipif(bool(supported()), reason=supported() or "calls can be struck here")
@pytest.mark.parametrize("kind", ["kill", "torn", "ENOSPC"])
def test_struck_at_any_call_that_changes_its_directory_a_run_goes_on_to_the_same_digest(tmp_path: Path, kind: str) -> None:
    place = suite(tmp_path, "a", "b")
    agent = agent_file(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')")
    digest = run_suite(Suite.load(place), options(tmp_path, agent, out=tmp_path / "whole")).digest
    wanted = options(tmp_path, agent)

    report = Crash().sweep(
        lambda: run_suite(Suite.load(place), wanted),
        lambda: shutil.rmtree(wanted.out, ignore_errors=True),
        lambda _run: is_whole(RunStore(wanted.out), wanted, place, digest),
        kinds=(kind,),
        limit=14,
        within=wanted.out,
    )

    assert report.calls
    report.verify()
