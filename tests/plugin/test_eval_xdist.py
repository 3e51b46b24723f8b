"""Evals in several processes: one run, one digest, whoever does the samples; and what a worker that dies leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.eval_tests import EvalTests, properties

from pytest_gittrix.evals.inputs.sample_record import digest

IDS = ("one", "two", "three", "four")


def by_command(evals: EvalTests, agent: str, out: str, *more: str) -> dict[str, str]:
    """The same suite, run by ``gittrix eval run``; gives what it says."""
    words = ["eval", "run", "suite", "--agent", agent, "--out", out, "--confine", "off", "--json", *more]
    done = subprocess.run(
        [sys.executable, "-m", "pytest_gittrix.cli", *words], cwd=evals.root, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data: dict[str, str] = json.loads(done.stdout)["data"]
    return data


def dying(evals: EvalTests) -> tuple[str, Path]:
    """An agent that takes its process with it at one sample, the first time; and the file with its calls."""
    flag = evals.root / "died"
    body = (
        f"import os, pathlib; flag = pathlib.Path({str(flag)!r})\n"
        "    if toolbox.case == 'three' and not flag.exists():\n        flag.touch()\n        os.kill(os.getpid(), 9)\n"
        "    toolbox.write('app.py', 'VERSION = 2\\n')"
    )
    return evals.counting(body)


def test_one_process_two_workers_and_the_command_line_come_to_one_digest(evals: EvalTests) -> None:
    evals.suite(*IDS)
    agent, calls = evals.counting("toolbox.write('app.py', f'VERSION = {2 if toolbox.case != \"two\" else toolbox.seed[:4]!r}\\n')")
    evals.tests(agent, 'confine="off", seed=7, epochs=2')

    serial = evals.run("--gittrix-eval-run=runs/serial")
    workers = evals.run_apart("-n", "2", "--gittrix-eval-run=runs/workers", "--junitxml=junit.xml")
    command = by_command(evals, agent, "runs/command", "--seed", "7", "--epochs", "2")

    serial.assert_outcomes(passed=6, failed=2)
    workers.assert_outcomes(passed=6, failed=2)
    stores = [evals.store(name) for name in ("serial", "workers", "command")]
    assert {digest(store.records()) for store in stores} == {command["digest"]}
    assert {store.manifest().digest for store in stores} == {command["manifest"]}
    assert properties(evals.root / "junit.xml")[0]["gittrix_eval.workers.digest"] == command["digest"]
    assert len(calls.read_text().splitlines()) == 3 * len(IDS) * 2
    assert evals.left() == []


def test_the_controller_writes_what_is_true_of_the_whole_run(evals: EvalTests) -> None:
    evals.suite(*IDS)
    evals.tests("nop")

    result = evals.run_apart("-n", "2", "--junitxml=junit.xml", "--gittrix-eval-fail-under=10")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    whole, cases = properties(evals.root / "junit.xml")
    assert (whole["gittrix_eval.suite.samples"], whole["gittrix_eval.suite.fail"], whole["gittrix_eval.suite.pass_rate"]) == (
        "4",
        "4",
        "0.0",
    )
    assert {name: recorded["gittrix_eval_outcome"] for name, recorded in cases.items()} == {f"test_case[{id_}]": "fail" for id_ in IDS}
    result.stdout.fnmatch_lines(["*gittrix eval: suite*", "4 samples: 4 fail", "pass rate 0.0%*less than the 10% that must pass"])
    assert evals.runs() == ["suite"]
    assert (evals.root / "runs" / "suite" / "report.html").is_file()


def test_workers_find_the_run_of_several_agents_at_the_same_places(evals: EvalTests) -> None:
    evals.suite(*IDS)
    evals.source("""
        import pytest

        @pytest.mark.gittrix_eval(suite="suite", agent="nop", confine="off")
        def test_nobody(): pass

        @pytest.mark.gittrix_eval(suite="suite", agent="true", confine="off")
        def test_true(): pass
    """)

    evals.run_apart("-n", "2", "--dist=load").assert_outcomes(failed=8)

    kinds = {name: evals.store(name).manifest().core["setting"]["agent"]["kind"] for name in evals.runs()}
    assert kinds == {"suite": "nop", "suite-2": "command"}
    assert [len(evals.outcomes(name)) for name in evals.runs()] == [4, 4]


def test_a_worker_that_dies_loses_one_sample_and_the_run_can_be_gone_on_with(evals: EvalTests) -> None:
    evals.suite(*IDS)
    agent, calls = dying(evals)
    evals.tests(agent)

    first = evals.run_apart("-n", "2")
    left = evals.left()
    second = evals.run_apart("-n", "2", "--gittrix-eval-resume", "--gittrix-eval-trust-agent")

    first.assert_outcomes(passed=3, failed=1)
    first.stdout.fnmatch_lines(["*worker 'gw*' crashed while running 'test_it.py::test_case?three?'*"])
    assert left == []
    second.assert_outcomes(passed=4)
    assert sorted(calls.read_text().splitlines()) == sorted(f"{id_} #0" for id_ in (*IDS, "three"))
    assert digest(evals.store().records()) == by_command(evals, agent, "runs/command")["digest"]


def test_a_run_that_was_killed_is_gone_on_with_by_the_command_line(evals: EvalTests) -> None:
    evals.suite(*IDS)
    agent, calls = dying(evals)
    evals.tests(agent)

    killed = evals.run_apart()
    done = len(evals.outcomes())
    data = by_command(evals, agent, "runs/suite", "--resume", "--trust-agent")

    assert killed.ret == -signal.SIGKILL
    assert 0 < done < len(IDS)
    assert len(calls.read_text().splitlines()) == len(IDS) + 1
    assert data["digest"] == by_command(evals, agent, "runs/command")["digest"]
    assert evals.left() == []


def test_samples_of_two_runs_at_once_do_not_mix(evals: EvalTests) -> None:
    evals.suite("one")
    agent, _ = evals.counting()
    evals.tests(agent)
    evals.run().assert_outcomes(passed=1)

    with evals.store().locked():
        result = evals.run("--gittrix-eval-resume", "--gittrix-eval-run=runs/suite")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Another process writes to the run *"])


def test_nodes_have_the_same_names_in_workers_without_a_configuration_file(evals: EvalTests, pytester: pytest.Pytester) -> None:
    evals.suite(*IDS)
    evals.tests("nop")
    deep = pytester.mkdir("deep")
    Path(evals.root, "test_it.py").rename(deep / "test_it.py")
    Path(evals.root, "suite").rename(deep / "suite")

    result = evals.run_apart("-n", "2", "deep/test_it.py", "-rf")

    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines_random([f"FAILED *test_it.py::test_case[[]{id_}[]]*" for id_ in IDS])
    assert evals.runs() == [] or evals.runs() == ["suite"]
    assert len([*evals.root.rglob("manifest.json")]) == 1
