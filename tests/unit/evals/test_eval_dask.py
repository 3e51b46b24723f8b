"""Samples on Dask distributed: the same digest, and a worker that is killed in the middle costs nothing and counts nothing twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.evals import SOLVES, command_file, options, ran, suite

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.runs.executors import dask, factory_of
from pytest_gittrix.evals.runs.run import Progress, run_suite
from pytest_gittrix.evals.runs.work_dirs import owners

CASES = [f"case-{number}" for number in range(6)]
KILLS = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
Path("app.py").write_text("VERSION = 2\\n")
once = Path(__file__).with_name("once")
if os.environ["GITTRIX_CASE"] == "case-2" and once.exists():
    from pytest_gittrix.evals.runs.work_dirs import owners
    once.unlink()
    mark = os.environ["GITTRIX_EVAL_MARK"]
    os.kill(owners(Path({scratch!r}))[mark][0].pid, signal.SIGKILL)
    signal.pause()
"""


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a scheduler with two workers, each a process of its own."""
    distributed: Any = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50) as started:
        yield started.scheduler_address


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_cluster_comes_to_the_digest_of_one_process(tmp_path: Path, cluster: str) -> None:
    place = suite(tmp_path, *CASES)
    serial = ran(place, tmp_path, SOLVES, out=tmp_path / "serial")

    spread = run_suite(Suite.load(place), options(tmp_path, SOLVES, out=tmp_path / "spread", workers=2), factory=dask(cluster))

    assert spread.digest == serial.digest
    assert spread.counts["pass"] == len(CASES)


def test_the_sample_of_a_killed_worker_is_done_again_and_counted_once(tmp_path: Path, cluster: str) -> None:
    place = suite(tmp_path, *CASES)
    here = Path(__file__).resolve().parents[3]
    agent = command_file(tmp_path, KILLS.format(here=str(here), scratch=str(tmp_path / "scratch")))
    whole = ran(place, tmp_path, agent, out=tmp_path / "whole")
    (tmp_path / "once").write_text("")
    progress: list[Progress] = []

    spread = run_suite(
        Suite.load(place), options(tmp_path, agent, out=tmp_path / "spread", workers=2), factory=dask(cluster), watch=progress.append
    )

    assert not (tmp_path / "once").exists()
    assert spread.digest == whole.digest
    assert sorted(one.last.id for one in progress if one.last) == CASES
    assert progress[-1].done == progress[-1].total == len(CASES)
    for owner, _ in owners(tmp_path / "scratch").values():
        assert owner.alive()


def test_what_is_no_executor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "", "local:2"):
        with pytest.raises(InvalidInput, match="no executor"):
            factory_of(name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(CapabilityMissing, match="not installed"):
        factory_of("dask")
