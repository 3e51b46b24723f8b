"""``examples/third_party`` with nothing but the built wheel: a stranger's session system, its waivers, and the reports it gets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "third_party"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that the wheel is installed into."""
    base = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(base / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,) = (base / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, f"--target={base / 'site'}", str(wheel)], check=True, capture_output=True, timeout=300)
    return base / "site"


@pytest.fixture
def run(tmp_path: Path, site: Path) -> Run:
    """``run(*command)`` in a copy of the example, in an environment that finds the wheel and nothing else of ours."""
    project = tmp_path / "third_party"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", "conformance.*"))
    environment = {
        "PATH": os.pathsep.join([str(site / "bin"), os.environ.get("PATH", os.defpath)]),
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(site),
        "LC_ALL": "C.UTF-8",
    }

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False)

    return run


def test_the_example_is_run_from_the_wheel_and_gets_its_reports(run: Run, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-n", "2")

    assert done.returncode == 0, done.stdout + done.stderr
    (system,) = json.loads((tmp_path / "third_party" / "conformance.json").read_text(encoding="utf-8"))["systems"]
    found = {status: [one["code"] for one in system["clauses"] if one["status"] == status] for status in ("kept", "broken", "waived")}
    unclaimed = [one for one in system["clauses"] if one["status"] == "not claimed"]
    assert system["name"] == "toy 0.1"
    assert found["broken"] == []
    assert found["waived"] == re.findall(r"\b[A-Z]{3}-\d\d\b", (EXAMPLE / "test_conformance.py").read_text(encoding="utf-8"))
    assert len(found["kept"]) > 50
    assert unclaimed
    assert all(one["needs"] for one in unclaimed)
    assert len(system["clauses"]) == len(unclaimed) + len(found["kept"]) + len(found["waived"])
    assert "gittrix conformance: toy 0.1" in done.stdout
    assert all(f"waived, on purpose {code}: " in done.stdout for code in found["waived"])
    assert "<h1>toy 0.1</h1>" in (tmp_path / "third_party" / "conformance.html").read_text(encoding="utf-8")


def test_the_commands_that_the_readme_shows_work(run: Run) -> None:
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    (clause,) = re.findall(r"gittrix (conform toy_system:system --clause \S+)", readme)

    done = run("gittrix", *clause.split(), "--json")

    assert done.returncode == 1, done.stdout + done.stderr
    (system,) = json.loads(done.stdout)["data"]["systems"]
    assert [one["code"] for one in system["clauses"] if one["status"] == "broken"] == [clause.split()[-1]]


def test_the_installed_package_is_the_wheels(run: Run, site: Path) -> None:
    done = run(sys.executable, "-c", "import pytest_gittrix.conformance.suite as suite; print(suite.__file__)")

    assert done.stdout.strip() == str(site / "pytest_gittrix" / "conformance" / "suite.py")
