"""Harbor's trials in sessions: its own oracle solves a task of ours, without docker, twice with the same result."""

from __future__ import annotations

import pytest

from pytest_gittrix.extras import missing

if reason := missing("harbor"):
    pytest.skip(reason, allow_module_level=True)

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from support.frameworks import ADDED, available

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.integrations.harbor_environment import GittrixEnvironment, sources, workdir_of

TASK = {
    "task.toml": 'version = "1.0"\n\n[verifier]\ntimeout_sec = 60.0\n\n[agent]\ntimeout_sec = 60.0\n\n[environment]\n',
    "instruction.md": "Mend `add` in app.py.\n",
    "environment/Dockerfile": "FROM python:3.12-slim\nWORKDIR /app\nCOPY app.py .\n",
    "environment/app.py": "def add(a, b):\n    return a - b\n",
    "solution/solve.sh": "#!/bin/bash\nset -e\nsed -i 's/a - b/a + b/' app.py\npwd\n",
    "tests/test.sh": (
        "#!/bin/bash\ncd /app\nif python3 -B -c 'import app; assert app.add(2, 3) == 5'; then echo 1; else echo 0; fi"
        " > /logs/verifier/reward.txt\n"
    ),
}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    root = tmp_path / "sums"
    for name, text in TASK.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.endswith(".sh"):
            path.chmod(0o755)
    return root


def run_job(task: Path, root: Path, name: str, agent: str) -> dict[str, object]:
    """Let Harbor run one trial in a process of its own; what is kept of it."""
    available("jail")
    config = {
        "job_name": name,
        "jobs_dir": str(root / "jobs"),
        "n_attempts": 1,
        "agents": [{"name": agent}],
        "environment": {"import_path": "pytest_gittrix.integrations.harbor_environment:GittrixEnvironment"},
        "tasks": [{"path": str(task)}],
    }
    (root / f"{name}.json").write_text(json.dumps(config))
    command = [str(Path(sys.executable).parent / "harbor"), "run", "--config", str(root / f"{name}.json"), "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"HOME": str(root)}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [trial] = (root / "jobs" / name).glob("sums__*")
    result = json.loads((trial / "result.json").read_text())
    kept = json.loads((trial / "gittrix" / "session.json").read_text())
    return {"result": result, "kept": kept, "diff": (trial / "gittrix" / "diff.patch").read_text()}


def test_the_oracle_solves_a_task_and_two_trials_give_the_same_commits(task: Path, tmp_path: Path) -> None:
    first, second = (run_job(task, tmp_path, name, "oracle") for name in ("first", "second"))

    assert first["result"]["verifier_result"]["rewards"] == {"reward": 1.0}
    assert first["kept"]["promotion"] == "promoted"
    assert "+    return a + b" in first["diff"]
    assert first["kept"] == second["kept"]


def test_an_agent_that_does_nothing_gets_nothing(task: Path, tmp_path: Path) -> None:
    done = run_job(task, tmp_path, "nothing", "nop")

    assert done["result"]["verifier_result"]["rewards"] == {"reward": 0.0}
    assert done["kept"]["promotion"] == "nothing"


def test_a_trial_starts_with_the_files_beside_the_dockerfile_where_that_says(task: Path) -> None:
    assert sources(task / "environment") == {"app.py": TASK["environment/app.py"].encode()}
    assert workdir_of(task / "environment", None) == "/app"
    assert workdir_of(task / "environment", "/srv") == "/srv"
    assert workdir_of(task / "solution", None) == "/app"


def environment_of(task: Path, tmp_path: Path) -> GittrixEnvironment:
    """An environment as Harbor makes one."""
    from harbor.models.task.config import EnvironmentConfig
    from harbor.models.trial.paths import TrialPaths

    paths = TrialPaths(trial_dir=tmp_path / "trial")
    paths.mkdir()
    return GittrixEnvironment(
        environment_dir=task / "environment",
        environment_name="sums",
        session_id="sums__x__env",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(),
    )


def test_files_come_in_and_out_and_what_an_agent_left_to_lead_elsewhere_does_not(task: Path, tmp_path: Path) -> None:
    available("jail")
    environment = environment_of(task, tmp_path)

    async def scenario() -> None:
        await environment.start(force_build=False)
        try:
            await environment.upload_dir(task / "tests", "/tests")
            ran = await environment.exec("/tests/test.sh && cat /logs/verifier/reward.txt; pwd")
            assert ran.stdout == "0\n/app\n"
            made = await environment.exec("mkdir -p /logs/out && cd /logs/out && echo x > file && ln -s /etc/passwd link && mkfifo pipe")
            assert made.return_code == 0
            await environment.download_dir("/logs/out", tmp_path / "out")
            await environment.download_file("/app/app.py", tmp_path / "app.py")
            with pytest.raises(CapabilityMissing):
                await environment.exec("id", user="somebody")
            with pytest.raises(TimeoutError):
                await environment.exec("sleep 600", timeout_sec=1)
            with pytest.raises(FileNotFoundError):
                await environment.download_file("/app/nothing", tmp_path / "nothing")
        finally:
            await environment.stop(delete=True)
        with pytest.raises(InvalidInput):
            await environment.exec("id")

    asyncio.run(scenario())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["file"]
    assert (tmp_path / "app.py").read_text() != ADDED
