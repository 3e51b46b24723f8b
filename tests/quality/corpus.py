"""Judges the test suites of published packages on their own releases, beside plain pytest: ``make corpus``.

Each package is right by its own tests, so each test that plain pytest passes should pass as a hidden test too. The packages and what their
tests need are installed and unpacked below ``.venv-corpus``; a case for each file of tests is run in a jail, by an agent that changes
nothing. The result is ``docs/reference/evals-corpus.md``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "evals-corpus.md"
ENVIRONMENT: Final = ROOT / ".venv-corpus"
PYTHON: Final = ENVIRONMENT / "bin" / "python"
NEEDS: Final = ("freezegun", "hypothesis", "six", "pyyaml", "tzdata")
"""What the tests import apart from their package."""
JUDGES: Final = ("subject", "canary", "plain")
BAR: Final = 0.005
"""The most that may fail of the tests that plain pytest passes."""


class Package(NamedTuple):
    """A published package.

    Attributes:
        kind: what it is about.
        name: its name on the index.
        version: its release.
        tests: the directory of its tests in the source distribution.
    """

    kind: str
    name: str
    version: str
    tests: str = "tests"


PACKAGES: Final = (
    Package("text", "sqlparse", "0.5.3"),
    Package("data structures", "cachetools", "5.5.2"),
    Package("dates", "python-dateutil", "2.9.0.post0"),
    Package("command line", "click", "8.1.8"),
    Package("asynchronous", "asyncstdlib", "3.13.0", "unittests"),
    Package("numeric", "portion", "2.6.0"),
    Package("file format", "tomlkit", "0.13.2"),
    Package("network protocol", "h11", "0.14.0", "h11/tests"),
)

_PLAIN: Final = """\
import json, os, sys, pytest
class Outcomes:
    tests = {}
    def pytest_runtest_logreport(self, report):
        bad = report.failed or report.skipped
        if bad or report.when == "call":
            self.tests[report.nodeid] = self.tests.get(report.nodeid, True) and not bad
ini, answer, *files = sys.argv[1:]
sys.path[:0] = [os.path.abspath("src"), os.getcwd()]
pytest.main(["-q", "-p", "no:cacheprovider", "-c", ini, "--rootdir", ".", *files], plugins=[Outcomes()])
with open(answer, "w") as file:
    json.dump(sorted(name for name, passed in Outcomes.tests.items() if passed), file)
"""
_COUNTS: Final = {8: "eight"}
_HEAD: Final = """\
# Judged beside plain pytest

The tests of {count} published packages, each judged on its own release, as [hidden tests](evals.md#hidden-tests) in a jail: {tests:,} tests
that plain pytest passes with the same dependencies, and without settings and plugins. Of these {wrong} did not pass ({rate:.2%}).
`make corpus` downloads the source distributions, judges them, and writes this page; this one is of {day}, with {versions}.

| package | kind | plain pytest passes | subject | canary | plain | unjudgeable | failed |
|---|---|---|---|---|---|---|---|
"""


def install() -> None:
    """Make the environment with this package and what the tests need."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT], check=True)
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--editable", ROOT, *NEEDS], check=True)


def unpacked(package: Package) -> Path:
    """The source distribution of a package as a repository of one commit; it is downloaded once."""
    place = ENVIRONMENT / "sources" / f"{package.name}-{package.version}"
    if (place / ".git").is_dir():
        return place
    downloads = ENVIRONMENT / "downloads" / place.name
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", downloads]
    subprocess.run([*command, f"{package.name}=={package.version}"], check=True)
    (archive,) = downloads.iterdir()
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(archive) as source:
        source.extractall(downloads / "files", filter="data")
    (top,) = (downloads / "files").iterdir()
    place.parent.mkdir(exist_ok=True)
    top.rename(place)
    git = ["git", "-C", place, "-c", "user.name=corpus", "-c", "user.email=corpus@example.org", "-c", "core.excludesFile=/dev/null"]
    for arguments in (["init", "-q"], ["add", "--force", "."], ["commit", "-q", "-m", place.name]):
        subprocess.run([*git, *arguments], check=True)
    shutil.rmtree(downloads)
    return place


def test_files(source: Path, package: Package) -> list[str]:
    """The files of tests of a package, relative to its root."""
    found = [*(source / package.tests).rglob("test_*.py"), *(source / package.tests).rglob("*_test.py")]
    return sorted({file.relative_to(source).as_posix() for file in found})


def plain(source: Path, files: Sequence[str], directory: Path) -> list[str]:
    """The tests that plain pytest passes, with no settings and no plugins."""
    ini, answer = directory / "empty.ini", directory / "plain.json"
    ini.write_text("[pytest]\n", encoding="ascii")
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC"}
    command = [PYTHON, "-P", "-c", _PLAIN, ini, answer, *files]
    subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
    passed: list[str] = json.loads(answer.read_text(encoding="utf-8"))
    return passed


def write_case(suite: Path, package: Package, source: Path, file: str) -> str:
    """Write the case that judges one file of tests on the release; give its name."""
    name = f"{package.name}-{Path(file).with_suffix('').name}"
    place = suite / "cases" / name
    shutil.copytree(source / package.tests, place / "tests" / package.tests)
    head = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    lines = ['task = "Nothing: it is right."', "[durable]", f'path = "{source}"', f'commit = "{head}"']
    lines += ["[check]", 'tests = "tests"', f"must_pass = {json.dumps([file])}", '[limits]\ntimeout = "600s"', ""]
    (place / "case.toml").write_text("\n".join(lines), encoding="utf-8")
    return name


def judged(suite: Path, run: Path) -> dict[str, Mapping[str, Any]]:
    """Run the suite with an agent that changes nothing; give the record of each case."""
    shutil.rmtree(run, ignore_errors=True)
    command = [PYTHON, "-m", "pytest_gittrix.cli", "eval", "run", suite, "--agent", "nop", "--confine", "jail", "--workers", "2"]
    done = subprocess.run([*command, "--no-report", "--out", run], check=False)
    if done.returncode:
        raise SystemExit(f"The run ended with status {done.returncode}.")
    records = [json.loads(file.read_text(encoding="utf-8")) for file in (run / "samples").glob("*.json")]
    return {record["id"]: record for record in records}


class Row(NamedTuple):
    """What became of the tests of a package.

    Attributes:
        package: the package.
        passed: the tests that plain pytest passes.
        judges: what judged each of these that passed.
        unjudgeable: those of the others that none can judge.
        reasons: why the check of a file is not satisfied, by file.
    """

    package: Package
    passed: Sequence[str]
    judges: Mapping[str, str]
    unjudgeable: Collection[str]
    reasons: Mapping[str, str]

    @property
    def others(self) -> list[str]:
        """The tests that plain pytest passes, and no judge."""
        return [name for name in self.passed if name not in self.judges]


def row(package: Package, passed: Sequence[str], records: Mapping[str, Mapping[str, Any]]) -> Row:
    """The row of a package, from the records of its cases by file."""
    judges: dict[str, str] = {}
    unjudgeable: set[str] = set()
    reasons: dict[str, str] = {}
    for file, record in records.items():
        (check,) = record["checks"] or [{"detail": record["reason"]}]
        judges |= check.get("judges", {})
        unjudgeable |= {name for name, judge in check.get("failed", {}).items() if judge == "unjudgeable"}
        reasons[file] = check.get("detail", "")
    return Row(package, passed, {name: judges[name] for name in passed if name in judges}, unjudgeable, reasons)


def page(rows: Sequence[Row], day: str, versions: str) -> str:
    """The page, from what was judged; on a day, with versions of Python and pytest."""
    tests = sum(len(one.passed) for one in rows)
    wrong = sum(len(one.others) for one in rows)
    head = _HEAD.format(
        count=_COUNTS.get(len(rows), len(rows)), tests=tests, wrong=wrong, rate=wrong / max(tests, 1), day=day, versions=versions
    )
    return head + "".join(f"{line}\n" for line in [*map(_line, rows), "", *_not_passed(rows)]).rstrip() + "\n"


def versions() -> str:
    """The versions of Python and pytest that judge."""
    program = "import platform, pytest; print(f'Python {platform.python_version()} and pytest {pytest.__version__}')"
    return subprocess.run([PYTHON, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def _line(one: Row) -> str:
    counts = Counter(one.judges.values())
    unjudgeable = sum(name in one.unjudgeable for name in one.others)
    cells = [f"{one.package.name} {one.package.version}", one.package.kind, len(one.passed), *(counts[name] for name in JUDGES)]
    return f"| {' | '.join(map(str, [*cells, unjudgeable, len(one.others) - unjudgeable]))} |"


def _not_passed(rows: Sequence[Row]) -> Iterator[str]:
    if any(one.others for one in rows):
        yield from ("Those that did not pass, with the reason of their file:", "")
    for one in rows:
        for name in one.others:
            file, _, test = name.partition("::")
            reason = one.reasons[file].removeprefix(f"{file}: ")
            yield f"- {one.package.name}, `{file}`, `{test}` {'unjudgeable' if name in one.unjudgeable else 'failed'}: {reason}."


def main() -> int:
    """Judge every package, and write the page. Returns 1 if more tests fail than the bar allows."""
    install()
    suite = ENVIRONMENT / "suite"
    shutil.rmtree(suite, ignore_errors=True)
    suite.mkdir()
    (suite / "suite.toml").write_text("schema = 1\n", encoding="ascii")
    chosen = [one for one in PACKAGES if not sys.argv[1:] or one.name in sys.argv[1:]]
    cases: dict[str, dict[str, str]] = {}
    passed: dict[str, list[str]] = {}
    for package in chosen:
        source = unpacked(package)
        files = test_files(source, package)
        passed[package.name] = plain(source, files, ENVIRONMENT)
        cases[package.name] = {file: write_case(suite, package, source, file) for file in files}
    records = judged(suite, ENVIRONMENT / "run")
    rows = [row(one, passed[one.name], {file: records[name] for file, name in cases[one.name].items()}) for one in chosen]
    text = page(rows, datetime.now(UTC).date().isoformat(), versions())
    if len(chosen) == len(PACKAGES):
        PAGE.write_text(text, encoding="utf-8")
    print(text)
    return 0 if sum(len(one.others) for one in rows) <= BAR * sum(len(one.passed) for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
