"""Small suites and agents for tests of eval runs, and runs of them in a directory of the test's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.run import Summary, run_suite

FILES = {"app.py": "VERSION = 1\n", "README.md": "# App\n", "tests/test_app.py": "def test_nothing():\n    pass\n"}
TWO = "app.py"
"""The path that the usual task is about."""
CHECK = """
    def check(result):
        assert result.read("app.py") == b"VERSION = 2\\n", "the version is not 2"
"""
SOLVES = "python -c \"open('app.py', 'w').write('VERSION = 2\\n')\""
"""A command that does the usual task."""


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Files below a directory; gives it."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def case(
    suite: Path, id_: str, *, files: Mapping[str, str | bytes] = FILES, more: str = "", extra: Mapping[str, str | bytes] | None = None
) -> Path:
    """A case with the usual task: make the version 2.

    Args:
        suite: its directory.
        id_: of the case.
        files: of the repository.
        more: TOML to add.
        extra: further files of the case.
    """
    place = suite / "cases" / id_
    write(place / "repo", files)
    check = "" if "[check]" in more else '[check]\nfunction = "check.py:check"\n'
    text = f'task = "Make the version 2."\n{_top(more)}[durable]\nfiles = "repo"\n{check}{_tables(more)}'
    write(place, {"case.toml": text, "check.py": dedent(CHECK), **(extra or {})})
    return place


def suite(root: Path, *ids: str, **options: Any) -> Path:
    """A suite of cases with the usual task; gives its directory."""
    place = write(root / "suite", {"suite.toml": "schema = 1\n"})
    for id_ in ids or ("one",):
        case(place, id_, **options)
    return place


def agent_file(root: Path, body: str) -> str:
    """The spec of an agent that is a function ``work(toolbox)`` with this body."""
    lines = dedent(body).strip().splitlines()
    write(root, {"agent.py": "\n".join(["def work(toolbox):", *(f"    {line}" for line in lines), ""])})
    return f"python:{root / 'agent.py'}:work"


def command_file(root: Path, body: str, name: str = "agent_program.py") -> str:
    """The spec of an agent that is a Python program."""
    write(root, {name: dedent(body)})
    return f"{sys.executable} {root / name}"


def options(root: Path, agent: str, **changed: Any) -> Options:
    """Options of a run in the test's own directory, unconfined."""
    given = Options(agent=agent, out=root / "run", scratch=root / "scratch", confine="off")
    return replace(given, **changed)


def ran(place: Path, root: Path, agent: str, **changed: Any) -> Summary:
    """A suite, run."""
    return run_suite(Suite.load(place), options(root, agent, **changed))


def left_in(scratch: Path) -> list[str]:
    """Names of what runs left where they worked."""
    return sorted(path.name for path in scratch.iterdir() if path.name != "cases") if scratch.exists() else []


def edit_json(file: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def _top(more: str) -> str:
    head = more.split("[", 1)[0].strip()
    return f"{head}\n" if head else ""


def _tables(more: str) -> str:
    return more[more.index("[") :] if "[" in more else ""
