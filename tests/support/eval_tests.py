"""Projects whose tests are evals, and runs of pytest in them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support.evals import SOLVES, left_in, suite

# A run in this process forgets what it was the first to import. This holds classes that must not be loaded twice.
from pytest_gittrix.evals.results.store import RunStore

_QUIET = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:anyio")
SOURCE = """
    import pytest

    @pytest.mark.gittrix_eval(suite="suite", agent={agent!r}, {more})
    def test_case():
        pass
"""


class EvalTests:
    """A project with a suite beside its test file.

    Args:
        pytester: of the test.
        monkeypatch: of the test.

    Attributes:
        root: of the project.
    """

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pytester = pytester
        self.root = pytester.path
        self._temporary = pytester.path.parent / f"{pytester.path.name}-temporary"
        self._temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(self._temporary))
        monkeypatch.setattr("tempfile.tempdir", str(self._temporary))
        for name in ("GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID"):
            monkeypatch.delenv(name, raising=False)

    def suite(self, *ids: str, **options: object) -> Path:
        """A suite of cases with the usual task; see ``support.evals.suite``."""
        return suite(self.root, *ids, **options)

    def tests(self, agent: str = SOLVES, more: str = 'confine="off"') -> None:
        """A test file with one function that leaves the judgement to the outcome."""
        self.source(SOURCE.format(agent=agent, more=more))

    def source(self, source: str) -> None:
        """A test file."""
        self._pytester.makepyfile(test_it=source)

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in this process."""
        return self._pytester.runpytest_inprocess(*_QUIET, *arguments)

    def run_apart(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in a process of its own."""
        return self._pytester.runpytest_subprocess(*_QUIET, *arguments, timeout=120)

    def store(self, name: str = "suite") -> RunStore:
        """A run below ``runs``."""
        return RunStore.open(self.root / "runs" / name)

    def outcomes(self, name: str = "suite") -> dict[str, str]:
        """Outcomes of a run by sample."""
        return {f"{record.id} #{record.epoch}": record.outcome for record in self.store(name).records()}

    def runs(self) -> list[str]:
        """Names of all runs."""
        place = self.root / "runs"
        return sorted(path.name for path in place.iterdir()) if place.exists() else []

    def left(self) -> list[str]:
        """Directories that were left where samples work."""
        places = [path for path in self._temporary.iterdir() if path.name.startswith("gittrix-evals-")]
        return [name for place in places for name in left_in(place) if not name.endswith(".lock")]

    def counting(self, body: str = "toolbox.write('app.py', 'VERSION = 2\\n')") -> tuple[str, Path]:
        """An agent that writes down each sample it was asked for; and the file it does that in."""
        calls = self.root / "calls.txt"
        lines = [f"with open({str(calls)!r}, 'a') as file:", "    file.write(f'{toolbox.case} #{toolbox.epoch}\\n')", body]
        (self.root / "counting.py").write_text("\n".join(["def work(toolbox):", *(f"    {line}" for line in lines), ""]))
        return f"python:{self.root / 'counting.py'}:work", calls


def properties(junit: Path) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The properties in a JUnit file: of the whole, and of each test case by its name."""
    suite = ET.parse(junit).getroot()[0]
    return _of(suite), {case.attrib["name"]: _of(case) for case in suite.iter("testcase")}


def _of(element: ET.Element) -> dict[str, str]:
    found = element.find("properties")
    return {} if found is None else {one.attrib["name"]: one.attrib["value"] for one in found}
