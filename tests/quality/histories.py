"""``make histories``: suites from the releases of four published packages, validated, and the table of them in the documentation.

The source distributions of each package are pinned by hash. Each becomes a commit, so that ``make_history`` makes a case of every release
that changed code together with tests. Each case gets two wrong solutions: one that lacks the changes of code, and one whose modules end the
process that imports them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.cli.evals_output import watching
from pytest_gittrix.evals import Options, Suite, Validation, validate_suite
from pytest_gittrix.evals.inputs.history_suite import make_history
from pytest_gittrix.evals.inputs.suite import CaseSource
from pytest_gittrix.evals.inputs.wheels import Pins
from pytest_gittrix.evals.results.grades import grade_of
from pytest_gittrix.git.environment import hermetic_env

ROOT: Final = Path(__file__).resolve().parents[2]
PINS: Final = ROOT / "fixtures" / "evals" / "histories"
PAGE: Final = ROOT / "docs" / "how-to" / "eval-on-real-releases.md"
BEGIN, END = "<!-- histories -->\n", "<!-- end -->\n"

_GENERATED: Final = re.compile(r"(^|/)(PKG-INFO|[^/]+\.egg-info(/.*)?|setup\.cfg)$")
_CHANGES: Final = re.compile(r"^(CHANGE|HISTORY|NEWS)", re.IGNORECASE)
_MOST_NEWS: Final = 60
_APART: Final = re.compile(r"(^|/)(docs|setup\.py)")
_CODE: Final = re.compile(r"\+\+\+ b/(?P<path>\S+\.py)\n")


@dataclass(frozen=True)
class PackageRow:
    """A package in the table.

    Attributes:
        package: its name.
        versions: its first and last release.
        found: the validation of its suite.
    """

    package: str
    versions: tuple[str, str]
    found: Validation

    @property
    def line(self) -> str:
        """The row of the table."""
        cases = self.found.cases
        golds, wrongs = sum(len(case.gold) for case in cases), sum(len(case.wrong) for case in cases)
        grade = grade_of(record for case in cases for record in case.gold[:1])
        cells = (
            f"{self.package} {self.versions[0]} to {self.versions[1]}",
            f"{self.found.valid} of {len(cases)}",
            f"{sum(case.green for case in cases)} of {golds}",
            f"{sum(case.nop.outcome == 'fail' for case in cases)} of {len(cases)}",
            f"{sum(case.red for case in cases)} of {wrongs}",
            f"{grade.tests}",
            grade.mix,
        )
        return f"| {' | '.join(cells)} |\n"


def table(rows: list[PackageRow]) -> str:
    """The rows as Markdown, and a sentence on each case that is not valid."""
    head = f"| package and releases | valid cases | gold green | nop refused | wrong refused | tests | judged |\n|{'---|' * 7}\n"
    bad = [f"- `{case.id}` of {row.package}: {problem.text}\n" for row in rows for case in row.found.cases for problem in case.problems]
    return head + "".join(row.line for row in rows) + ("\nNot valid:\n\n" + "".join(bad) if bad else "")


def repository_of(pins: Pins, sdists: Path, to: Path) -> Path:
    """Make a repository with a commit for each release, the same one each time."""
    _git("init", "-q", "--initial-branch=main", str(to))
    before: dict[str, bytes] = {}
    for number, pin in enumerate(pins.releases):
        [archive] = sdists.glob(f"*-{pin.version}.tar.gz")
        files = dict(_files(archive))
        for path in before.keys() - files.keys():
            (to / path).unlink()
        for path, data in files.items():
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            (to / path).write_bytes(data)
        message = f"{pins.package} {pin.version}\n\n{_news(before, files)}".strip()
        _git("-C", str(to), "add", "--all", "--force")
        date = f"{1_700_000_000 + number} +0000"
        _git("-C", str(to), "commit", "-q", "--allow-empty", "--message", message, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)
        before = files
    return to


def add_wrong_solutions(suite: Suite) -> None:
    """Give each case two wrong solutions that are made of its solution."""
    for case in suite.cases:
        assert case.gold is not None
        text = case.gold.read_text(encoding="utf-8", errors="surrogateescape")
        patches = re.split(r"^(?=diff --git )", text, flags=re.MULTILINE)[1:]
        code = {found["path"]: patch for patch in patches if (found := _CODE.search(patch))}
        rest = "".join(patch for patch in patches if patch not in code.values())
        wrong = {
            "lacks-the-code": rest,
            "ends-the-process": "".join(_ending(case.source, path) for path in code if not _APART.search(path)),
        }
        (case.directory / "wrong").mkdir()
        for name, patch in wrong.items():
            if patch:
                (case.directory / "wrong" / f"{name}.patch").write_text(patch, encoding="utf-8", errors="surrogateescape")


def _ending(source: CaseSource, path: str) -> str:
    """The patch after which a module ends the process that imports it; empty if the module is not there before the change."""
    place = f"{source.ref}:{path}"
    try:
        lines = _git("-C", str(source.path), "show", place).decode().splitlines()
    except subprocess.CalledProcessError:
        return ""
    header = f"--- a/{path}\n+++ b/{path}\n"
    return f"{header}@@ -{len(lines)} +{len(lines)},2 @@\n {lines[-1]}\n+__import__('os')._exit(0)\n" if lines else ""


def _row(pins: Pins, scratch: Path, workers: int) -> PackageRow:
    scratch.mkdir()
    sdists = _download(pins, scratch / "sdists")
    suite = make_history(repository_of(pins, sdists, scratch / "repository"), scratch / "suite").suite
    add_wrong_solutions(suite)
    with watching(pins.package, quiet=False) as watch:
        options = Options(agent="", out=scratch / "runs", workers=workers)
        found = validate_suite(Suite.load(suite.directory), options, watch=watch)
    return PackageRow(pins.package, (pins.releases[0].version, pins.releases[-1].version), found)


def _download(pins: Pins, to: Path) -> Path:
    """Fetch the source distributions, which pip refuses if a hash is another one."""
    to.mkdir()
    for pin in pins.releases:
        wanted = to / f"{pin.version}.txt"
        wanted.write_text(f"{pins.package}=={pin.version} --hash=sha256:{pin.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
        subprocess.run([*command, "-d", str(to), "-r", str(wanted)], check=True)
    return to


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a source distribution by their paths below its one directory, without those that its builder made."""
    with tarfile.open(archive) as opened:
        for member in opened:
            path = member.name.partition("/")[2]
            content = opened.extractfile(member) if member.isfile() and path and ".." not in path.split("/") else None
            if content is not None and not _GENERATED.search(path):
                yield path, content.read()


def _news(before: Mapping[str, bytes], files: Mapping[str, bytes]) -> str:
    """The lines that a release added to its list of changes: the task says what is to be done."""
    found = []
    for path, data in files.items():
        if _CHANGES.match(path.rpartition("/")[2]):
            old = {*before.get(path, b"").decode(errors="replace").splitlines()}
            found += [line for line in data.decode(errors="replace").splitlines() if line not in old] if old else []
    return "\n".join(found[:_MOST_NEWS])


def _git(*arguments: str, **more: str) -> bytes:
    who = {
        f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in (("NAME", "Release"), ("EMAIL", "r@example.com"))
    }
    return subprocess.run(["git", *arguments], env={**hermetic_env(), **who, **more}, check=True, capture_output=True).stdout


def main(arguments: list[str] | None = None) -> int:
    """Make and validate the suites, and write the table; gives the exit status."""
    parser = argparse.ArgumentParser(prog="make histories", description=__doc__)
    parser.add_argument("packages", nargs="*", help="only these; all that are pinned by default, and only then is the page written")
    parser.add_argument("-n", "--workers", type=int, default=2)
    asked = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory(prefix="gittrix-histories-") as scratch:
        for file in sorted(PINS.glob("*.toml")):
            if asked.packages and file.stem not in asked.packages:
                continue
            rows.append(_row(Pins.read(file), Path(scratch, file.stem), asked.workers))
            print(rows[-1].line, end="", flush=True)
    if not asked.packages:
        text = PAGE.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}{table(rows)}{END}{rest.partition(END)[2]}", encoding="utf-8")
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
