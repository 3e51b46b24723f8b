"""``python -m benchmarks`` runs and says what it found; how fast anything was is nobody's business here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.scene import SOAK

from benchmarks.__main__ import parts
from benchmarks.day import HEAD
from benchmarks.exponents import exponent_of
from benchmarks.measure import Measurement
from benchmarks.report import EXPONENTS, Run, text

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_a_run_prints_tables_and_writes_every_number_as_json(tmp_path: Path) -> None:
    target = tmp_path / "run.json"

    done = run("--quick", "--only", "record", "--json", str(target))

    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert set(found) == {"schema", "environment", "measurements", "verdicts"}
    assert {"python", "git", "system", "load", "memory", "disk"} <= set(found["environment"])
    names = [item["name"] for item in found["measurements"]]
    assert names == ["fast, memory", "full, each synced, memory", "fast, disk", "full, each synced, disk"]
    assert all(item["unit"] == "events/s" and item["median"] > 0 and item["rounds"] >= 3 for item in found["measurements"])
    assert all(name in done.stdout for name in names)


def test_a_history_is_compared_with_the_same_bytes_by_hand(tmp_path: Path) -> None:
    target = tmp_path / "run.json"

    done = run("--quick", "--only", "history", "--json", str(target))

    assert done.returncode == 0, done.stderr
    measured = {(item["bench"], item["name"]): item for item in json.loads(target.read_text())["measurements"]}
    recorded = {"by hand: flock, open, write", "EventLog.append", "session.record", "session.record, one subscriber"}
    rebuilt = {"5 events a session", "500 events a session", "one session"}
    assert set(measured) == {*(("history", name) for name in recorded), *(("rebuild", name) for name in rebuilt)}
    assert all(item["unit"] == "events/s" and item["median"] > 0 for item in measured.values())


@pytest.mark.skipif(not SOAK, reason="fifty programs at once, at each level")
def test_programs_that_stay_are_measured_until_their_first_output_and_in_memory(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    done = run("--quick", "--only", "programs", "--json", str(target))

    assert done.returncode == 0, done.stderr
    found = [(item["bench"], item["name"], item["unit"]) for item in json.loads(target.read_text())["measurements"]]
    assert {("programs", "off", "ms"), ("programs at once", "off", "MB")} <= {*found}


@pytest.mark.skipif(not SOAK, reason="six processes, for some seconds")
def test_promotions_beside_a_rival_and_a_sweeper_are_counted() -> None:
    command = [sys.executable, "-m", "benchmarks.contention", "--count", "8", "--durability", "fast"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 promotions, ")
    assert done.stdout.endswith(": 0 lost\n")


@pytest.mark.skipif(not SOAK, reason="a store, three repositories and two dozen sessions")
def test_a_day_of_work_shows_what_it_uses_as_it_goes_on() -> None:
    command = [sys.executable, "-m", "benchmarks.day", "--repositories", "3", "--promotions", "24", "--files", "40"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    head, _, *rows = done.stdout.splitlines()
    assert head.split() == " ".join(HEAD).split()
    assert [row.split()[:2] for row in rows] == [["1", "1"], ["6", "6"], ["12", "12"], ["24", "24"]]


def test_the_cycle_compares_every_kind_with_every_baseline(tmp_path: Path) -> None:
    target = tmp_path / "run.json"

    done = run("--quick", "--only", "cycle", "--sizes", "10", "--json", str(target))

    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    cycle = {(item["name"], item["phase"]) for item in found["measurements"] if item["bench"] == "cycle"}
    totals = {name for name, phase in cycle if phase == "total"}
    assert {"(a) git commands", "(b) pygit2 floor", "(c) floor by hand", "clone", "lazy", "copy", "worktree"} <= totals
    assert {phase for name, phase in cycle if name == "clone"} >= {"start", "write", "review", "diff", "promote", "evict"}
    goals = [verdict for verdict in found["verdicts"] if verdict["goal"].startswith("cycle at 10 files")]
    assert len(goals) == 5
    assert all(verdict["limit"] == 5 and isinstance(verdict["met"], bool) for verdict in goals)


def test_an_exponent_is_fitted_to_the_larger_sizes_and_judged() -> None:
    times = {10: 500.0, 100: 1.0, 1_000: 100.0, 10_000: 10_000.0}
    taken = [Measurement(EXPONENTS, "files", "start", size, best * 2, best, 3) for size, best in times.items()]

    run = Run([*taken, exponent_of("files", "start", taken)])

    (verdict,) = run.verdicts()
    assert (round(verdict.best, 6), verdict.limit, verdict.met) == (2.0, 1.1, False)
    assert "2.00 (10 000)" in text(run, {})


def test_the_page_says_what_each_part_measures() -> None:
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")

    assert [part for part in parts([]) if f"**{part.capitalize()}** " not in page] == []


@pytest.mark.parametrize("arguments", [("--only", "nothing"), ("--sizes", "many")])
def test_what_cannot_be_run_is_refused(arguments: tuple[str, str]) -> None:
    done = run(*arguments)

    assert done.returncode == 2
    assert arguments[0] in done.stderr
