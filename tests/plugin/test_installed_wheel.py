"""The built wheel, as a stranger has it: installed into a virtualenv, with nothing of this checkout.

There the README runs from top to bottom, and so does the project in ``user_project``, which uses every fixture, every argument of the
marker and every option; that it does is tested too. What the wheel needs comes from the virtualenv that runs this test, so nothing is
downloaded.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from pytest_gittrix import more_fixtures, plugin
from pytest_gittrix.integrations.archives import unpack
from pytest_gittrix.plugin import config, marker
from tests.docs.test_docs_examples import SESSION_ID, blocks, user_repository

ROOT = Path(__file__).resolve().parents[2]
USER_PROJECT = Path(__file__).with_name("user_project")
PROJECT_TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

FIXTURES = sorted(name for name in vars(plugin) | vars(more_fixtures) if re.fullmatch(r"gittrix(_\w+)?", name))
ARGUMENTS = sorted(inspect.signature(marker.gittrix).parameters)

GIVEN = {
    "command line": {
        "clock-start": "2041-02-03T04:05:06Z",
        "freeze": "all",
        "autojump": "yes",
        "freeze-children": "yes",
        "model": "rewrite",
        "model-lenient": "yes",
        "unconfined": "skip",
        "workspace": "lazy",
        "keep": "all",
        "git-variables": "keep",
        "profile": "soak",
    },
    "environment": {
        "clock-start": "2042-02-03T04:05:06Z",
        "freeze": "none",
        "autojump": "yes",
        "freeze-children": "yes",
        "model": "once",
        "model-lenient": "no",
        "unconfined": "fail",
        "workspace": "copy",
        "keep": "none",
        "git-variables": "keep",
        "profile": "quick",
    },
    "configuration": {
        "clock-start": "2043-02-03T04:05:06Z",
        "freeze": "wall",
        "autojump": "no",
        "freeze-children": "no",
        "model": "live",
        "model-lenient": "yes",
        "unconfined": "skip",
        "workspace": "worktree",
        "keep": "failed",
        "git-variables": "drop",
        "profile": "soak",
    },
}
EVALS = sorted(option.name for option in config.OPTIONS if option.name.startswith("eval-"))  # those of the eval tests
SWITCHES = {option.name for option in config.OPTIONS if option.switch}
ANYWHERE = {
    "artifacts": "kept",
    "git": "",
    "system": "house_system:system",
    "conformance-report": "report.json",
    "waive": "ERR-01=later",
    "clauses": "2026.1",
    "crash": "1",
    "race": "1",
}


@dataclass(frozen=True)
class Installed:
    """A wheel and an sdist, the virtualenv that the wheel was installed into, and an environment that finds it there alone.

    Attributes:
        wheel, sdist: what was built.
        directory: the virtualenv's ``site-packages``.
        programs: its ``bin``.
        environment: the variables of whoever uses it.
    """

    wheel: Path
    sdist: Path
    directory: Path
    programs: Path
    environment: Mapping[str, str]

    def run(self, *command: str, where: Path, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **more}
        return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def pytest(self, *arguments: str, where: Path, **more: str) -> subprocess.CompletedProcess[str]:
        python, temporary = str(self.programs / "python"), where.parent / "base"
        return self.run(python, "-m", "pytest", "-p", "no:schemathesis", f"--basetemp={temporary}", *arguments, where=where, **more)

    def gittrix(self, *arguments: str, where: Path) -> str:
        done = self.run(str(self.programs / "gittrix"), *arguments, where=where)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("installed")
    built, virtualenv = base / "dist", base / "venv"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(built)], cwd=ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    venv.create(virtualenv, symlinks=True)
    directory = Path(sysconfig.get_path("purelib", vars={"base": str(virtualenv)}))
    (directory / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    for name in (
        "pytest",
        "_pytest",
        "py.py",
        "pluggy",
        "iniconfig",
        "packaging",
        "pygments",
    ):  # for confined checks
        source = Path(sysconfig.get_path("purelib"), name)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, directory / name)
    pip = [str(virtualenv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheel)], check=True, capture_output=True)
    subprocess.run([*pip, f"pytest-gittrix[evals]=={PROJECT_TABLE['version']}"], check=True, capture_output=True)  # all it needs is there
    environment = {
        "PATH": os.pathsep.join([str(virtualenv / "bin"), os.environ.get("PATH", os.defpath)]),
        "HOME": str(base / "home"),
        "GITTRIX_HOME": str(base / "gittrix"),
        "INSTALLED": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(base / "no-gitconfig"),
        "LC_ALL": "C.UTF-8",
    }
    return Installed(wheel, sdist, directory, virtualenv / "bin", environment)


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
    assert {
        "pytest_gittrix/py.typed",
        "pytest_gittrix/report/templates/report.html",
        "pytest_gittrix/conformance/reports/templates/badge.svg",
    } < files
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


def test_the_sdist_makes_the_same_wheel(installed: Installed, tmp_path: Path) -> None:
    with tarfile.open(installed.sdist) as archive:
        unpack(archive, tmp_path)
    (source,) = tmp_path.iterdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (again,) = (tmp_path / "dist").glob("*.whl")

    first, second = ({one.filename: one.CRC for one in ZipFile(wheel).infolist()} for wheel in (installed.wheel, again))
    assert first == second
    assert {"tests", "docs", "examples", "fixtures", "CHANGELOG.md", "SECURITY.md", "tox.ini"} <= {path.name for path in source.iterdir()}


# What it does ---------------------------------------------------------------------------------------------------------------------


def test_the_readme_runs_from_top_to_bottom(installed: Installed, tmp_path: Path) -> None:
    directory = user_repository(tmp_path, installed.environment)
    for name in ("fixtures", "examples"):  # what the README has of a clone
        (directory / name).symlink_to(ROOT / name)
    ids: dict[str, str] = {}
    for block in blocks((ROOT / "README.md").read_text(encoding="utf-8"), "README.md"):
        if block.file:
            (directory / block.file).write_text(block.body, encoding="utf-8")
            assert set(summary(installed.pytest(block.file, where=directory))) == {"passed"}, block.where
        shown = [line.removeprefix("$ ") for line in block.body.splitlines() if re.match(r"(\$ )?(gittrix|echo) ", line)]
        for command in shown if block.language in ("bash", "console") else ():
            for placeholder, id_ in ids.items():
                command = command.replace(placeholder, id_)
            done = installed.run("sh", "-c", command, where=directory)
            differ = command.startswith("gittrix eval compare")
            assert done.returncode == (3 if differ else 0), f"$ {command}\n{done.stdout}{done.stderr}"
            assert "--agent gold" not in command or "pass rate   100.0%" in done.stdout
            if command.startswith("gittrix session start"):
                ids[SESSION_ID.findall(block.body)[0]] = done.stdout.splitlines()[0]

    assert ids
    assert (directory / "runs" / "a" / "report.html").stat().st_size > 1000
    assert installed.gittrix("--version", where=directory) == f"gittrix {PROJECT_TABLE['version']}\n"


def test_the_project_uses_everything_there_is() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in USER_PROJECT.glob("check_*.py"))
    asked = set(re.findall(r"\b(gittrix\w*):", sources))
    marked = {name for mark in re.findall(r"mark\.gittrix\((.*)\)$", sources, re.MULTILINE) for name in re.findall(r"\b(\w+)=", mark)}

    assert [name for name in FIXTURES if name not in asked] == []
    assert [name for name in ARGUMENTS if name not in marked] == []
    assert [{*given, *ANYWHERE, *EVALS} for given in GIVEN.values()] == [{option.name for option in config.OPTIONS}] * 3


def test_the_project_passes_on_workers_in_random_order(installed: Installed, project: Path) -> None:
    modules = [f"check_{name}.py" for name in ("evals", "fixtures", "marker", "nothing")]
    done = installed.pytest("-n", "2", "--randomly-seed=7", *modules, where=project)

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
    done = installed.pytest(*arguments, "check_options.py", where=project, **variables, GIVEN=json.dumps(given), GIT_PREFIX="src/")

    versions = {line.split()[0]: line.split()[1] for line in table.stdout.splitlines()}
    assert {name: value for name, value in versions.items() if name not in EVALS} == given, table.stderr
    assert summary(done) == {"passed": 13, "failed": 1}, done.stdout + done.stderr
    assert "gittrix: git " in done.stdout
    assert "gittrix session events" in done.stdout
    assert "version" in calls.read_text(encoding="utf-8").split()
    (system,) = json.loads((project / "report.json").read_text(encoding="utf-8"))["systems"]
    assert (system["name"], system["families"][0]["kept"]) == ("house", 3)
    (bundle,) = (project / "kept").iterdir()
    assert bundle.name == "check_options.py-test_that_fails"
    assert (bundle / "durable.log").read_text(encoding="utf-8").endswith("Say who owns what\n")
    worlds = [path.name[5:] for path in (project.parent / "base" / "gittrix").glob("[0-9]*")]
    kept = {"all": 11, "failed": 1, "none": 0}[given["keep"]]
    assert len(worlds) == kept
    assert ("test_that_fails" in worlds) is (kept > 0)


def give(way: str, given: Mapping[str, str], project: Path) -> tuple[list[str], dict[str, str]]:
    """The arguments and variables that give options one way; a configuration is written into the project."""
    if way == "command line":
        return [f"--gittrix-{name}" if name in SWITCHES else f"--gittrix-{name}={value}" for name, value in given.items()], {}
    given = {name.replace("-", "_"): value for name, value in given.items()}
    if way == "environment":
        return [], {f"PYTEST_GITTRIX_{name.upper()}": value for name, value in given.items()}
    with (project / "pytest.ini").open("a", encoding="utf-8") as file:
        file.writelines(f"gittrix_{name} = {value}\n" for name, value in given.items())
    return [], {}


def test_a_package_of_somebody_elses_adds_one_of_each_kind(installed: Installed, project: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "extend-it.md").read_text(encoding="utf-8")
    for name, body in re.findall(r"^```\w+\n# file: (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        assert body == (USER_PROJECT / "acme" / name).read_text(encoding="utf-8")
    python, target = str(installed.programs / "python"), tmp_path / "site"
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    done = installed.run(*pip, f"--target={target}", str(project / "acme"), where=project)
    assert done.returncode == 0, done.stderr
    gittrix = [python, "-m", "pytest_gittrix.cli"]

    def said(*arguments: str) -> str:
        done = installed.run(*gittrix, *arguments, where=project, PYTHONPATH=str(target), GITTRIX_HOME=str(tmp_path / "home"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    id_ = said("session", "start", "-t", "count").splitlines()[0]
    assert json.loads(said("session", "show", id_, "--as", "acme", "--json"))["data"] == {"ticket": id_, "state": "open"}
    assert (said("count"), said("acme", "count", "--state", "promoted")) == ("1\n", "0\n")
    jailed = said("session", "start", "-t", "count", "--workspace", "jailed").splitlines()[0]
    assert json.loads(said("session", "info", jailed, "--json"))["data"]["workspaceKind"] == "jailed"
    unknown = installed.run(*gittrix, "promote", id_, "--forge", "gitlab", where=project, PYTHONPATH=str(target))
    assert "Choose from: github, acme." in unknown.stderr
    (report,) = json.loads(said("conform", "house_system:system", "--family", "ACM", "--json"))["data"]["systems"]
    assert [one["status"] for one in report["clauses"] if one["code"] == "ACM-01"] == ["kept"]
    assert "count the sessions of a store" in said("--help")
    unknown = installed.run(*gittrix, "cuont", where=project, PYTHONPATH=str(target))
    assert "Did you mean count?" in unknown.stderr


def test_switched_off_it_leaves_the_project_alone(installed: Installed, project: Path) -> None:
    run = installed.pytest("-p", "no:gittrix", "check_nothing.py", "check_fixtures.py", "-k", "arithmetic or rivals", where=project)

    assert summary(run).get("passed") == summary(run).get("error") == 1, run.stdout + run.stderr
    assert "fixture 'gittrix_session' not found" in run.stdout
