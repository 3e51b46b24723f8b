"""The built wheel, as a stranger has it: installed somewhere else, used by the project in ``user_project``, with nothing of this checkout.

The project uses every fixture, every argument of the marker and every option; that it does is tested too.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from pytest_gittrix import plugin
from pytest_gittrix.plugin import config

ROOT = Path(__file__).resolve().parents[2]
USER_PROJECT = Path(__file__).with_name("user_project")
PROJECT_TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

FIXTURES = sorted(name for name in vars(plugin) if re.fullmatch(r"gittrix(_\w+)?", name))
ARGUMENTS = sorted(inspect.signature(config.gittrix).parameters)
MODES = {"one process": ["-p", "no:randomly"], "workers, random order": ["-n", "2", "--randomly-seed=7"]}

GIVEN = {
    "command line": {"epoch": "2041-02-03T04:05:06+00:00", "freeze": "all", "workspace": "lazy", "keep": "all", "profile": "soak"},
    "environment": {"epoch": "2042-02-03T04:05:06+00:00", "freeze": "none", "workspace": "copy", "keep": "none", "profile": "quick"},
    "configuration": {"epoch": "2043-02-03T04:05:06+00:00", "freeze": "wall", "workspace": "worktree", "keep": "failed", "profile": "soak"},
}
EVALS = sorted(option.name for option in config.OPTIONS if option.name.startswith("eval-"))  # those of the eval tests
ANYWHERE = {"artifacts": "kept", "git": "", "system": "house_system:system", "conformance-report": "report.json"}


@dataclass(frozen=True)
class Installed:
    """A wheel, the directory it was installed into, and an environment that finds it there and nothing else of ours."""

    wheel: Path
    directory: Path
    environment: Mapping[str, str]

    def run(self, *command: str, where: Path, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **more}
        return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def pytest(self, *arguments: str, where: Path, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            sys.executable, "-m", "pytest", "-p", "no:schemathesis", f"--basetemp={where.parent / 'base'}", *arguments, where=where, **more
        )

    def gittrix(self, *arguments: str, where: Path) -> str:
        done = self.run(str(self.directory / "bin" / "gittrix"), *arguments, where=where)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("installed")
    built, directory = base / "dist", base / "site"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, f"--target={directory}", str(wheel)], check=True, capture_output=True)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(base / "home"),
        "GITTRIX_HOME": str(base / "gittrix"),
        "PYTHONPATH": str(directory),
        "INSTALLED": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(base / "no-gitconfig"),
        "LC_ALL": "C.UTF-8",
    }
    return Installed(wheel, directory, environment)


@pytest.fixture
def project(tmp_path: Path, installed: Installed) -> Path:
    """The user's project in a directory of its own, as a git repository of one commit."""
    directory = tmp_path / "project"
    shutil.copytree(USER_PROJECT, directory, ignore=shutil.ignore_patterns("__pycache__"))
    person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "--all"], [*person, "commit", "-q", "-m", "Start"]):
        assert installed.run("git", *command, where=directory).returncode == 0
    return directory


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The outcomes that the last line of a run names, with how many there were."""
    counted = re.findall(r"(\d+) (passed|failed|errors?|skipped|warnings?|deselected)", done.stdout.rstrip().rpartition("\n")[2])
    return {name: int(number) for number, name in counted}


# What is in it --------------------------------------------------------------------------------------------------------------------


def test_the_wheel_holds_the_package_its_papers_and_nothing_else(installed: Installed) -> None:
    names = set(ZipFile(installed.wheel).namelist())
    papers = f"pytest_gittrix-{PROJECT_TABLE['version']}.dist-info/"
    package = (ROOT / "pytest_gittrix").rglob("*")
    files = {path.relative_to(ROOT).as_posix() for path in package if path.is_file() and "__pycache__" not in path.parts}

    assert {name for name in names if not name.startswith(papers)} == files
    assert {"pytest_gittrix/py.typed", "pytest_gittrix/report/page/report.html"} < files
    assert {name.removeprefix(papers) for name in names if name.startswith(papers)} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_wheel_says_what_it_is(installed: Installed) -> None:
    papers = installed.directory / f"pytest_gittrix-{PROJECT_TABLE['version']}.dist-info"
    said: Message = Parser().parsestr((papers / "METADATA").read_text(encoding="utf-8"))
    needed = [Requirement(text) for text in said.get_all("Requires-Dist", [])]

    assert (said["Name"], said["Version"], said["Requires-Python"]) == ("pytest-gittrix", PROJECT_TABLE["version"], ">=3.11")
    assert (said["License-Expression"], said["License-File"]) == ("MIT", "LICENSE")
    assert {str(one).lower() for one in needed if one.marker is None} == {text.lower() for text in PROJECT_TABLE["dependencies"]}
    assert said.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert (papers / "licenses" / "LICENSE").read_text(encoding="utf-8") == (ROOT / "LICENSE").read_text(encoding="utf-8")


# What it does ---------------------------------------------------------------------------------------------------------------------


def test_the_project_uses_everything_there_is() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in USER_PROJECT.glob("check_*.py"))
    asked = set(re.findall(r"\b(gittrix\w*):", sources))
    marked = {name for mark in re.findall(r"mark\.gittrix\((.*)\)$", sources, re.MULTILINE) for name in re.findall(r"\b(\w+)=", mark)}

    assert [name for name in FIXTURES if name not in asked] == []
    assert [name for name in ARGUMENTS if name not in marked] == []
    assert [{*given, *ANYWHERE, *EVALS} for given in GIVEN.values()] == [{option.name for option in config.OPTIONS}] * 3


@pytest.mark.parametrize("mode", MODES)
def test_the_project_passes(mode: str, installed: Installed, project: Path) -> None:
    done = installed.pytest(*MODES[mode], "check_evals.py", "check_fixtures.py", "check_marker.py", "check_nothing.py", where=project)

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(summary(done)) == {"passed"}


@pytest.mark.parametrize("way", GIVEN)
def test_every_option_is_heeded_however_it_is_given(way: str, installed: Installed, project: Path) -> None:
    calls = project.parent / "calls"
    git = project.parent / "my-git"
    git.write_text(f'#!/bin/sh\necho "$1" >> "{calls}"\nexec "{shutil.which("git")}" "$@"\n', encoding="utf-8")
    git.chmod(0o755)
    given = {**GIVEN[way], **ANYWHERE, "git": str(git)}
    arguments, variables = give(way, given, project)

    table = installed.pytest("--gittrix-show-config", *arguments, where=project, **variables)
    done = installed.pytest(*arguments, "check_options.py", where=project, **variables, GIVEN=json.dumps(given))

    told = {line.split()[0]: line.split()[1] for line in table.stdout.splitlines()}
    assert {name: value for name, value in told.items() if name not in EVALS} == given, table.stderr
    assert summary(done) == {"passed": 8, "failed": 1}, done.stdout + done.stderr
    assert "gittrix: git " in done.stdout
    assert "gittrix session events" in done.stdout
    assert "version" in calls.read_text(encoding="utf-8").split()
    (system,) = json.loads((project / "report.json").read_text(encoding="utf-8"))["systems"]
    assert (system["name"], system["families"][0]["kept"]) == ("house", 3)
    (bundle,) = (project / "kept").iterdir()
    assert bundle.name == "check_options.py-test_that_fails"
    assert (bundle / "durable.log").read_text(encoding="utf-8").endswith("Say who owns what\n")
    worlds = [path.name[5:] for path in (project.parent / "base" / "gittrix").glob("[0-9]*")]
    kept = {"all": 6, "failed": 1, "none": 0}[given["keep"]]
    assert len(worlds) == kept
    assert ("test_that_fails" in worlds) is (kept > 0)


def give(way: str, given: Mapping[str, str], project: Path) -> tuple[list[str], dict[str, str]]:
    """The arguments and variables that give options one way; a configuration is written into the project."""
    if way == "command line":
        return [f"--gittrix-{name}={value}" for name, value in given.items()], {}
    given = {name.replace("-", "_"): value for name, value in given.items()}
    if way == "environment":
        return [], {f"PYTEST_GITTRIX_{name.upper()}": value for name, value in given.items()}
    with (project / "pytest.ini").open("a", encoding="utf-8") as file:
        file.writelines(f"gittrix_{name} = {value}\n" for name, value in given.items())
    return [], {}


def test_switched_off_it_leaves_the_project_alone(installed: Installed, project: Path) -> None:
    without = installed.pytest("-p", "no:gittrix", "check_nothing.py", where=project)
    missed = installed.pytest("-p", "no:gittrix", "check_fixtures.py", "-k", "rivals", where=project)

    assert summary(without) == {"passed": 1}, without.stdout + without.stderr
    assert "fixture 'gittrix_session' not found" in missed.stdout


def test_the_command_works_in_a_repository_of_ones_own(installed: Installed, project: Path) -> None:
    helped = installed.gittrix("--help", where=project)
    started = json.loads(installed.gittrix("session", "start", "--task", "look around", "--json", where=project))
    listed = installed.gittrix("session", "list", where=project)

    assert "session" in helped
    assert installed.gittrix("--version", where=project) == f"gittrix {PROJECT_TABLE['version']}\n"
    assert (Path(started["data"]["workspacePath"]) / "check_nothing.py").exists()
    assert started["data"]["id"] in listed
