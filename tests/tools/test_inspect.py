"""Inspect AI on sessions: the sandbox by its name, a scorer that promotes, logs that read back, and JUnit from them. No model is called."""

from __future__ import annotations

import pytest

pytest.importorskip("inspect_ai", reason='needs pip install "pytest-gittrix[inspect]"')

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import anyio
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import SandboxEnvironmentSpec, SandboxUnavailableError, SandboxUserUnsupportedError, sandbox
from support.frameworks import ADDED, CHECK, available, discard_while, programs_of
from support.git import git

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.runs.work_dirs import make_work_dir, sweep
from pytest_gittrix.integrations.inspect.junit import junit, main
from pytest_gittrix.integrations.inspect.provider import GittrixSandbox, GittrixSandboxConfig, settled
from pytest_gittrix.integrations.inspect.scorer import promotion

# Inspect leaves streams of its own open; whatever is collected later would be told of a test that has nothing to do with it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

Run = Callable[..., EvalLog]


@solver
def agent() -> Solver:
    """What a sample's input says: lines of shell."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        done = await sandbox().exec(["sh", "-c", state.input_text])
        state.metadata["code"] = done.returncode
        if done.returncode == 99:
            raise RuntimeError("the agent broke \x1b[31mred")
        return state

    return solve


FIX = "sed -i 's/a - b/a + b/' app.py"


@pytest.fixture
def run(project: Path, tmp_path: Path) -> Run:
    def run(*commands: str, log_dir: str = "logs", epochs: int = 1, confine: str = "off", **settings: Any) -> EvalLog:
        config = GittrixSandboxConfig(repository=str(project), confine=confine, **settings)
        task = Task(
            dataset=[Sample(id=f"case-{number}", input=text, target="") for number, text in enumerate(commands, 1)],
            solver=agent(),
            scorer=promotion(CHECK, message="Solve it"),
            sandbox=SandboxEnvironmentSpec("gittrix", config),
            name="sums",
        )
        [log] = eval(
            task,
            model="mockllm/model",
            log_dir=str(tmp_path / log_dir),
            epochs=epochs,
            display="none",
            fail_on_error=False,
            log_level="warning",
        )
        return read_eval_log(log.location)

    return run


def metadata_of(log: EvalLog) -> dict[str, dict[str, Any]]:
    """The metadata of each sample's score."""
    assert log.samples is not None
    return {str(sample.id): sample.scores["promotion"].metadata for sample in log.samples if sample.scores}


def test_a_sample_that_solves_it_is_promoted_and_scored_with_its_diff(run: Run, project: Path) -> None:
    head = git("rev-parse", "HEAD", cwd=project)

    log = run(FIX, "echo hello > note.txt", "true")

    found = metadata_of(log)
    assert log.status == "success"
    assert [found[one]["outcome"] for one in sorted(found)] == ["pass", "fail", "fail"]
    assert found["case-1"]["promotion"] == "promoted"
    assert "+    return a + b" in found["case-1"]["diff"]
    assert found["case-2"]["touched"] == ["note.txt"]
    assert found["case-2"]["sha"] == ""
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == pytest.approx(1 / 3)
    assert git("rev-parse", "HEAD", cwd=project) == head


@pytest.mark.parametrize("level", ["off", "jail"])
def test_two_runs_and_every_level_give_the_same_commit(run: Run, level: str) -> None:
    first = metadata_of(run(FIX, confine="off"))["case-1"]
    second = metadata_of(run(FIX, log_dir="again", confine=available(level)))["case-1"]

    assert first["sha"] == second["sha"] != ""
    assert second["confinement"].startswith(level)


def test_each_epoch_of_a_sample_is_a_session_of_its_own(run: Run) -> None:
    log = run(FIX, epochs=3)

    assert log.samples is not None
    sessions = [sample.scores["promotion"].metadata["session"] for sample in log.samples if sample.scores]
    assert len(set(sessions)) == 3


def test_the_configuration_comes_back_from_the_log(run: Run, project: Path) -> None:
    log = run("true", history="full")

    assert log.eval.sandbox is not None
    assert log.eval.sandbox.config == GittrixSandboxConfig(repository=str(project), confine="off", history="full")


def test_nothing_is_left_of_samples_that_pass_fail_or_break(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))

    log = run(FIX, "exit 99", "setsid sleep 600 & true")

    assert log.samples is not None
    assert sorted(sample.error is not None for sample in log.samples) == [False, False, True]
    # The root of this user's directories stays, and nothing in it.
    assert [path.name for path in place.glob("gittrix-*")] == [f"gittrix-evals-{os.getuid()}"]
    assert [*place.glob("gittrix-*/*")] == []
    assert all(programs_of(found["session"]) == [] for found in metadata_of(log).values())


def test_a_sample_can_be_kept_for_a_look(run: Run, tmp_path: Path) -> None:
    run(FIX, directory=str(tmp_path / "kept"))

    [durable] = (tmp_path / "kept").glob("*/*/world/durable")
    assert git("show", "main:app.py", cwd=durable).decode() == ADDED


@pytest.mark.parametrize("kind", ["eval", "json"])
def test_junit_shows_each_sample_as_a_test(run: Run, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSPECT_LOG_FORMAT", kind)
    log = run(FIX, "true", "exit 99")

    status = main([log.location, "-o", str(tmp_path / "junit.xml")])

    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert status == 0
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
    }
    by_name = {case.get("name"): {child.tag for child in case} for case in suite.iter("testcase")}
    assert by_name == {"case-1[1]": {"properties"}, "case-2[1]": {"properties", "failure"}, "case-3[1]": {"error"}}
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert properties["score.promotion"] in ("C", "I")
    assert "sha" in properties


def test_junit_of_what_is_no_log_or_has_no_such_score_is_refused(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.eval").write_text("no log")

    with pytest.raises(InvalidInput, match="promotion"):
        junit(run("true"), scorer="accuracy")
    assert main([str(tmp_path / "no.eval")]) == 1
    assert main([str(tmp_path / "nowhere.eval")]) == 1
    assert "is no log of Inspect" in capsys.readouterr().err


@pytest.mark.parametrize("config", ["nowhere", "bad.toml", "typo.toml"])
def test_a_configuration_that_is_none_is_refused_before_the_first_sample(config: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("no toml at all")
    (tmp_path / "typo.toml").write_text('repositry = "."\n')

    with pytest.raises(InvalidInput, match="configures no gittrix sandbox"):
        anyio.run(GittrixSandbox.task_init, "task", str(tmp_path / config))


def test_a_configuration_can_be_a_repository_or_a_file(project: Path, tmp_path: Path) -> None:
    (tmp_path / "sandbox.toml").write_text('confine = "jail"\nhistory = 3\n')

    assert settled(str(project)) == GittrixSandboxConfig(repository=str(project))
    assert settled(str(tmp_path / "sandbox.toml")) == GittrixSandboxConfig(confine="jail", history=3)
    (tmp_path / "sandbox.toml").write_text("clock_start = 2040-05-06T00:00:00Z\n")
    assert settled(str(tmp_path / "sandbox.toml")).clock_start == datetime(2040, 5, 6, tzinfo=UTC)


def test_another_user_is_refused_and_the_same_one_is_not() -> None:
    async def scenario() -> None:
        [made] = (await GittrixSandbox.sample_init("task", GittrixSandboxConfig(confine="off"), {})).values()
        try:
            with pytest.raises(SandboxUserUnsupportedError):
                await made.exec(["id"], user="nobody-of-this-name")
            assert (await made.exec(["id", "-u"], user=str(os.geteuid()))).success
        finally:
            await GittrixSandbox.task_cleanup("task", None, True)
        assert not (await anyio.Path(made.bench.world.path).exists())  # type: ignore[attr-defined]

    anyio.run(scenario)


def test_a_program_that_ends_with_its_session_finds_the_sandbox_unavailable() -> None:
    async def scenario() -> None:
        [made] = (await GittrixSandbox.sample_init("task", GittrixSandboxConfig(confine="off"), {})).values()
        try:
            program = made.exec(["sh", "-c", "touch started; sleep 600"], timeout=600)
            assert isinstance(await discard_while(made.as_type(GittrixSandbox).bench.session, program), SandboxUnavailableError)
        finally:
            await GittrixSandbox.task_cleanup("task", None, True)

    anyio.run(scenario)


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    program = "import os, sys; from pathlib import Path; from pytest_gittrix.evals.runs.work_dirs import make_work_dir; " + (
        "(make_work_dir(Path(sys.argv[1]), 'killed').path / 'file').write_text('x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    mine = make_work_dir(tmp_path, "mine").path
    left = [path.name for path in tmp_path.iterdir() if path != mine]

    assert len(left) == 1
    assert [*sweep(tmp_path).removed] == left
    assert mine.is_dir()
    assert sweep(tmp_path).removed == ()
