"""The repository is fit to be read by a stranger: nothing of one machine, nothing half-done, its papers in order.

Forbidden words are put together from pieces, so that this file passes its own inspection.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import pytest_gittrix
from tests.quality import compatibility

ROOT = Path(__file__).resolve().parents[2]

UNMERGED = "fixtures/evals/puzzles/cases/finish-the-merge/repo/"
"""A puzzle whose task is to take conflict markers away."""
REGISTRIES = (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("crates", "io"), ("anaconda", "org"))
FORBIDDEN: Mapping[str, re.Pattern[str]] = {
    # A slash after a name or a closing bracket continues a relative path; only a path from the root names a machine. In a jail the
    # agent's home is the same everywhere.
    "a path of one machine": re.compile(
        r"(?<![\w.})\]-])/(?:" + "|".join(["home" + r"/(?!agent\b)\w", "ro" + "ot/", "wo" + "rk/", "fa" + r"rm\b"]) + ")"
    ),
    "work left for later": re.compile(r"\b(?:TO" + "DO|FIX" + r"ME)\b"),
    "a conflict marker": re.compile("^(?:" + "<" * 7 + "|" + ">" * 7 + ")(?: |$)", re.MULTILINE),
    "a test that cannot fail": re.compile(r"\bassert " + r"True\b"),
    "an unexplained type escape": re.compile(r"#\s*type:\s*" + r"ignore(?!\[)"),
    "a package registry": re.compile("|".join(re.escape(f"{name}.{domain}") for name, domain in REGISTRIES)),
}


def faults(text: str) -> list[str]:
    """What is wrong with ``text``: ``"line: what: the words found"``, one for each place."""
    return [
        f"{text.count(chr(10), 0, found.start()) + 1}: {what}: {found.group()!r}"
        for what, pattern in FORBIDDEN.items()
        for found in pattern.finditer(text)
    ]


def git(*arguments: str) -> str:
    """What git answers in this repository. Skips the test where there is none, as in an unpacked sdist."""
    try:
        done = subprocess.run(["git", "-C", os.fspath(ROOT), *arguments], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if done.returncode:
        pytest.skip(f"not in a git repository: {os.fsdecode(done.stderr).partition(chr(10))[0]}")
    return os.fsdecode(done.stdout)


@pytest.fixture
def texts() -> dict[str, str]:
    """Each text file that is committed, or would be by ``git add --all``: path from the root -> contents."""
    top = Path(git("rev-parse", "--show-toplevel").strip())
    if not top.samefile(ROOT):
        pytest.skip(f"this tree is no repository of its own; it lies inside {top}")
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    found = {}
    for name in filter(None, names):
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            found[name] = data.decode("utf-8", "replace")
    return found


@pytest.fixture
def project() -> dict[str, Any]:
    """The ``[project]`` table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def test_no_file_holds_what_a_stranger_should_not_meet(texts: dict[str, str]) -> None:
    found = [f"{name}:{fault}" for name, text in texts.items() if not name.startswith(UNMERGED) for fault in faults(text)]

    assert "pyproject.toml" in texts
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("open('/" + "home/jo/notes')", "a path of one machine"),
        ("cd /" + "root/src", "a path of one machine"),
        ("see /" + "wo" + "rk/main", "a path of one machine"),
        ("/" + "fa" + "rm", "a path of one machine"),
        ("# TO" + "DO: later", "work left for later"),
        ("<" * 7 + " ours", "a conflict marker"),
        ("    assert " + "True", "a test that cannot fail"),
        ("x = y  # type: " + "ignore", "an unexplained type escape"),
        ("https://pypi" + ".org/simple", "a package registry"),
    ],
)
def test_the_inspection_sees_each_fault(text: str, what: str) -> None:
    assert [fault.split(": ")[:2] for fault in faults("fine\n" + text)] == [["2", what]]


@pytest.mark.parametrize(
    "text", ["tmp/wo" + "rk/x", "{base}/wo" + "rk/x", "x  # type: " + "ignore[attr-defined]", "=" * 7, "assert " + "Truthful"]
)
def test_the_inspection_lets_the_innocent_pass(text: str) -> None:
    assert faults(text) == []


def test_the_licence_is_here(project: dict[str, Any]) -> None:
    assert project["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License\n")


def test_the_version_is_said_once(project: dict[str, Any]) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert project["version"] == pytest_gittrix.__version__
    assert re.search(rf"^## \[(?:Unreleased|{re.escape(project['version'])})\]", changelog, re.MULTILINE)


def test_the_versions_of_python_agree(project: dict[str, Any]) -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")

    assert project["requires-python"] == f">={named[0]}"
    assert (tools["ruff"]["target-version"], tools["mypy"]["python_version"]) == (f"py{named[0].replace('.', '')}", named[0])
    assert re.findall(r"\bpy\d+\b", tox.partition("\n[")[0]) == [f"py{one.replace('.', '')}" for one in named]
    assert f"base_python = python{named[0]}" in tox.partition("[testenv:lowest]")[2]
    assert tuple(named) == compatibility.PYTHONS


def test_the_lowest_environment_pins_what_pyproject_allows_at_least(project: dict[str, Any]) -> None:
    wanted = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["test"]])
    floors = {f"{one.name}=={specifier.version}" for one in wanted for specifier in one.specifier if specifier.operator == ">="}

    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    section = tox.partition("[testenv:lowest]")[2].partition("\n[")[0]
    pinned = set(re.findall(r"^ +(\S+==\S+)$", section, re.MULTILINE))

    assert pinned == floors


def test_the_check_a_server_runs_is_executable() -> None:
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("an sdist does not carry .ci")

    assert os.access(script, os.X_OK)
    assert "make --no-print-directory test" in script.read_text(encoding="utf-8")
