"""Runs the worktree profile on published tools, each in its own environment, and writes ``docs/reference/field.md``: ``make field``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "examples/worktree-tools"
PAGE = ROOT / "docs/reference/field.md"
ENVIRONMENTS = ROOT / ".venv-field"
COLUMNS = ("kept", "broken", "as git", "documented", "no verdict", "not claimed")

_PACKAGES = re.compile(r"^# pip install (.+)$", re.MULTILINE)
_HEAD = """\
# The field

Published tools that make git worktrees, put to the [worktree clauses](worktree-clauses.md) beside plain git's own commands. Their
descriptions are in `examples/worktree-tools`; `make field` installs the versions that these name, each in an environment of its own, and
writes this page. Of these {all} tools, {found} have a finding and {none} have none. Tools that need a desktop, a database, a forge or a
person at a menu are not among them.

*As git* means that plain git's commands lose the same work: [how git loses work](../explanation/how-git-loses-work.md).

A broken clause is something to talk about, and often a choice that was made on purpose. If yours is here and its help says so, a
[waiver](../how-to/test-your-worktree-tool.md#4-say-what-you-do-not-promise) with the words of the help makes it *documented*.
"""


def packages(description: Path) -> list[str]:
    """The packages that a description names, with their versions."""
    found = _PACKAGES.search(description.read_text(encoding="utf-8"))
    assert found is not None, f"{description.name} names no package: # pip install tool==1.0"
    return found[1].split()


def run(description: Path) -> dict[str, Any]:
    """Install a tool, put it to the clauses, and give the report. A run that judged nothing ends the program: a tool that does not run is
    not one without a finding.
    """
    place = ENVIRONMENTS / description.stem
    if not (place / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    pip = [sys.executable, "-m", "pip", "--python", place / "bin/python", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages(description)], check=True)
    command = [sys.executable, "-m", "pytest_gittrix.cli", "conform", "--json", "--workers", str(os.cpu_count() or 1)]
    command += ["--worktree", str(description)]
    with tempfile.TemporaryDirectory() as scratch:
        env = os.environ | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "TMPDIR": scratch}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=False)
    report: dict[str, Any] = json.loads(done.stdout)["data"]
    if not judged(report):
        reason = next(one["reason"] for one in report["systems"][0]["clauses"] if one["status"] == "no verdict")
        raise SystemExit(f"{description.name}: no clause could be judged: {reason}")
    return report


def judged(report: Mapping[str, Any]) -> bool:
    """Whether there is a verdict about any clause."""
    (system,) = report["systems"]
    return any(one["status"] not in ("no verdict", "not claimed") for one in system["clauses"])


def report_of(description: Path, *, again: bool) -> dict[str, Any]:
    """The report on a tool, from its environment; it is made if there is none of this description and these clauses, or ``again``."""
    file = ENVIRONMENTS / description.stem / "report.json"
    if not again and file.exists():
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if is_current(kept, description):
            return kept
    report = run(description) | {"description": description.read_text(encoding="utf-8"), "promises": promises()}
    file.write_text(json.dumps(report), encoding="utf-8")
    return report


def is_current(report: Mapping[str, Any], description: Path) -> bool:
    """Whether a report is of a description as it is now, and of the clauses as they are now."""
    return report.get("description") == description.read_text(encoding="utf-8") and report.get("promises") == promises()


def promises() -> list[list[str]]:
    """What the clauses of now promise: the code, the promise and the cases of each."""
    return [[one.code, one.promise, *one.cases] for one in worktree_clauses()]


def page(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """The page.

    Args:
        reports: the reports, by the name of the description.
    """
    found = sum(bool(report["systems"][0]["findings"]) for report in reports.values())
    head = _HEAD.format(all=len(reports), found=found, none=len(reports) - found)
    return "\n".join([head, *_table(reports), "", *_findings(reports)]).rstrip() + "\n"


def _table(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"| tool | date | beside | clauses run | {' | '.join(COLUMNS)} |"
    yield f"|---|---|---|---|{'---|' * len(COLUMNS)}"
    for name, report in reports.items():
        (system,) = report["systems"]
        date, git = (system["properties"][key] for key in ("date", "git"))
        counts = Counter(one["status"] for one in system["clauses"])
        tool = packages(TOOLS / f"{name}.toml")[0].replace("==", " ")
        yield f"| {tool} | {date} | {git} | {counts.total()} | {' | '.join(str(counts[column]) for column in COLUMNS)} |"


def _findings(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, report in reports.items():
        (system,) = report["systems"]
        if not system["findings"]:
            continue
        yield f"## {name}\n"
        clauses = {one["code"]: one for one in system["clauses"]}
        for found in system["findings"]:
            (code,) = found["clauses"]
            reason, *no_script = clauses[code]["reason"].splitlines()
            lost = reason.removeprefix("lost: ")
            yield (
                f"`{code}` {clauses[code]['promise']}. {'Seen' if lost == reason else 'Lost'} here: {lost}. {' '.join(no_script)}".rstrip()
                + "\n"
            )
            if found["script"]:
                yield f"```bash\n{found['script']}```\n"


def descriptions() -> list[Path]:
    """The descriptions, by name."""
    return sorted(TOOLS.glob("*.toml"))


def main(names: Iterable[str]) -> None:
    """Run the tools that are named, or all, and write the page. Tools that are not named keep reports that are current."""
    wanted = {*names}
    reports = {one.stem: report_of(one, again=not wanted or one.stem in wanted) for one in descriptions()}
    PAGE.write_text(page(reports), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
