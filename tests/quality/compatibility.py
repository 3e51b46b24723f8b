"""Run a small project with the built wheel under each pytest and each neighbouring plugin, and write down what passed.

``make compat`` runs this module. It needs the package index, and takes ten minutes on an idle machine. Each Python and pytest has a
virtualenv of its own, into which one plugin after the other is installed, and at last all of them. The result is
``docs/reference/compatibility.md``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from pytest_gittrix import __version__

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "compatibility.md"

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
PYTESTS: Final = ("pytest==8.2.0", "pytest>=8.2,<9", "pytest>=9,<10")


class Neighbour(NamedTuple):
    """A plugin of pytest that many projects have.

    Attributes:
        package: what is installed.
        arguments: what pytest is given, so that the plugin does its work.
    """

    package: str
    arguments: tuple[str, ...]


NEIGHBOURS: Final[Mapping[str, Neighbour]] = {
    "xdist": Neighbour("pytest-xdist", ("-n", "2")),
    "randomly": Neighbour("pytest-randomly", ("-p", "randomly")),
    "asyncio": Neighbour("pytest-asyncio", ("--asyncio-mode=auto", "async_case.py")),
    "cov": Neighbour("pytest-cov", ("--cov=toy_agent", "--cov-fail-under=100")),
}
COLUMNS: Final = ("alone", *NEIGHBOURS, "all four", "mypy --strict")

PROJECT: Final[Mapping[str, str]] = {
    "toy_agent.py": '''\
"""The code under test: an agent that is a function."""


def improve(session):
    session.write("app.py", session.read("app.py") + b"print('more')\\n")
''',
    "test_agent.py": """\
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toy_agent
from pytest_gittrix import BaselineConflict

FILES = {"app.py": "print('v1')\\n"}


@pytest.mark.gittrix(files=FILES)
def test_a_promotion_is_one_commit(gittrix_session, gittrix_agent, gittrix_durable):
    toy_agent.improve(gittrix_agent)
    assert gittrix_durable.read("app.py") == b"print('v1')\\n"
    assert gittrix_session.promote().sha == gittrix_durable.head()
    assert gittrix_durable.read("app.py").endswith(b"print('more')\\n")


@pytest.mark.gittrix(files=FILES)
def test_a_rivals_commit_is_not_overwritten(gittrix_session, gittrix_agent, gittrix_rival):
    toy_agent.improve(gittrix_agent)
    gittrix_rival.commit({"app.py": "theirs\\n"}, message="hot fix")
    with pytest.raises(BaselineConflict):
        gittrix_session.promote()


def test_four_idle_hours_end_a_session(gittrix, gittrix_session, gittrix_clock):
    gittrix_clock.advance(hours=4)
    assert gittrix.sweep() == []
    gittrix_clock.advance(seconds=1)
    assert gittrix.sweep() == [gittrix_session.id]


@settings(max_examples=3, deadline=None)
@given(contents=st.binary(max_size=8))
def test_bytes_arrive_as_they_are(gittrix_worlds, contents):
    with gittrix_worlds.open(files=FILES) as world:
        session = world.gittrix.start_session("bytes")
        session.write("new.bin", b"0" + contents)
        session.promote()
        assert world.durable.read("new.bin") == b"0" + contents
""",
    # A module that is only checked for its types: a test with annotations, against the types that the wheel brings.
    "typed_case.py": """\
import pytest

from pytest_gittrix import AgentSession, BaselineConflict, DurableRepo, FrozenClock, GitTrix, Rival, UserSession


@pytest.mark.gittrix(files={"app.py": "v1\\n"})
def test_it(
    gittrix: GitTrix,
    gittrix_session: UserSession,
    gittrix_agent: AgentSession,
    gittrix_durable: DurableRepo,
    gittrix_rival: Rival,
    gittrix_clock: FrozenClock,
) -> None:
    gittrix_agent.write("app.py", "v2\\n")
    gittrix_rival.commit({"app.py": "theirs\\n"}, message="hot fix")
    with pytest.raises(BaselineConflict) as caught:
        gittrix_session.promote(strategy="commit")
    conflicting: list[str] = caught.value.conflicting_files
    contents: bytes = gittrix_durable.read(conflicting[0])
    gittrix_clock.advance(hours=4)
    evicted: list[str] = gittrix.sweep()
    assert (contents, evicted) == (b"theirs\\n", [])
""",
    # A module that is collected only where it is named: without its plugin, pytest cannot run an asynchronous test.
    "async_case.py": """\
import asyncio


async def test_a_session_in_a_loop(gittrix_session, gittrix_durable):
    gittrix_session.write("app.py", "async\\n")
    result = await asyncio.to_thread(gittrix_session.promote)
    assert gittrix_durable.head() == result.sha
""",
}


def interpreter(version: str) -> str | None:
    """The program of a version of Python, on PATH or among pyenv's; None if this machine has none."""
    found = shutil.which(f"python{version}")
    candidates = [*([found] if found else []), *map(str, Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))]
    asking = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    for program in candidates:
        done = subprocess.run([program, "-c", asking], capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.strip() == version:
            return program
    return None


def build(directory: Path) -> Path:
    """Build the wheel of this checkout into a directory."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


class Environment:
    """A virtualenv with the wheel and one pytest, in a directory of its own."""

    def __init__(self, python: str, directory: Path, *packages: str) -> None:
        self.python = directory / "bin" / "python"
        subprocess.run([python, "-m", "venv", str(directory)], check=True)
        self.pip("install", *packages)

    def pip(self, *arguments: str) -> str:
        """Run pip, and return what it prints."""
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def versions(self) -> dict[str, str]:
        """The installed packages and their versions."""
        return {one["name"]: one["version"] for one in json.loads(self.pip("list", "--format=json"))}

    def passes(self, neighbours: Sequence[Neighbour], project: Path) -> bool:
        """Whether the project's tests pass with these plugins beside ours. What fails is printed."""
        arguments = [argument for one in neighbours for argument in one.arguments]
        files = [*(name for name in arguments if name.endswith(".py")), "test_agent.py"]
        flags = [argument for argument in arguments if not argument.endswith(".py")]
        return self.succeeds(["pytest", "-q", "-W", "error::pytest.PytestUnknownMarkWarning", *flags, *files], project)

    def succeeds(self, module: Sequence[str], project: Path) -> bool:
        """Whether ``python -m`` with a module and its arguments ends with 0. What it prints is printed if not."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITTRIX_", "PYTHON"))}
        command = [str(self.python), "-m", *module]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            print(done.stdout[-2000:], file=sys.stderr)
        return done.returncode == 0


def row(python: str, pytest: str, wheel: Path, directory: Path) -> tuple[dict[str, bool], dict[str, str]]:
    """One row of the table: whether the project passes, by column; and the versions that were installed."""
    project = directory / "project"
    project.mkdir(parents=True)
    for name, text in PROJECT.items():
        (project / name).write_text(text, encoding="utf-8")
    environment = Environment(python, directory / "venv", str(wheel), pytest)
    passed = {"alone": environment.passes([], project)}
    for name, neighbour in NEIGHBOURS.items():
        environment.pip("install", neighbour.package, pytest)
        passed[name] = environment.passes([neighbour], project)
        environment.pip("uninstall", "--yes", neighbour.package)
    environment.pip("install", pytest, *(one.package for one in NEIGHBOURS.values()))
    passed["all four"] = environment.passes([*NEIGHBOURS.values()], project)
    environment.pip("install", "mypy")
    passed["mypy --strict"] = environment.succeeds(["mypy", "--strict", "typed_case.py"], project)
    return passed, environment.versions()


def page(rows: Sequence[tuple[str, Mapping[str, bool], Mapping[str, str]]], missing: Sequence[str], day: str) -> str:
    """The page of the reference, from what was run."""
    plugins = [one.package for one in NEIGHBOURS.values()]
    intro = f"""
        Each cell is a run of a small project with the wheel of pytest-gittrix {__version__}: a promotion, a conflict, an expiry and a
        Hypothesis test. With `asyncio` there is an asynchronous test too, with `xdist` there are two workers, and with `cov` a coverage of
        100 % is asked for. In the last column mypy checks an annotated test against the types that the wheel brings. The environment of a
        row has this pytest and this plugin beside ours, in the newest versions of {day} that go together. `make compat` runs it again, and
        writes this page."""
    lines = [
        "# Compatibility",
        "",
        textwrap.fill(" ".join(intro.split()), 140),
        "",
        "| Python | pytest | " + " | ".join(COLUMNS) + " |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    for python, passed, versions in rows:
        cells = ["passes" if passed[column] else "**fails**" for column in COLUMNS]
        lines.append(f"| {python} | {versions['pytest']} | " + " | ".join(cells) + " |")
    lines += ["", "The versions of the plugins, and of what pytest-gittrix itself needs:", ""]
    named = [*plugins, "mypy", "hypothesis", "GitPython", "pygit2", "pydantic", "freezegun"]
    lines += ["| Python | pytest | " + " | ".join(named) + " |", "|---" * (2 + len(named)) + "|"]
    for python, _, versions in rows:
        lines.append(f"| {python} | {versions['pytest']} | " + " | ".join(versions.get(name, "") for name in named) + " |")
    lines += [""]
    if missing:
        lines += [f"Not run, because the machine had no such interpreter: Python {', '.join(missing)}.", ""]
    lines += ["`tox` runs the whole suite of tests with each Python that is there, and with the oldest version of each dependency.", ""]
    return "\n".join(lines)


def main() -> int:
    """Run every combination that this machine has an interpreter for, and write the page. Returns 1 if one failed."""
    rows: list[tuple[str, Mapping[str, bool], Mapping[str, str]]] = []
    missing = []
    with tempfile.TemporaryDirectory(prefix="gittrix-compat-") as temporary:
        base = Path(temporary)
        wheel = build(base / "dist")
        for version in PYTHONS:
            python = interpreter(version)
            if python is None:
                missing.append(version)
                continue
            for number, pytest in enumerate(PYTESTS):
                passed, versions = row(python, pytest, wheel, base / f"{version}-{number}")
                rows.append((full_version(python), passed, versions))
                print(rows[-1][0], versions["pytest"], passed, flush=True)
                shutil.rmtree(base / f"{version}-{number}")
    PAGE.write_text(page(rows, missing, datetime.now(UTC).date().isoformat()), encoding="utf-8")
    return 0 if all(all(passed.values()) for _, passed, _ in rows) else 1


def full_version(python: str) -> str:
    """The full version of an interpreter."""
    command = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
