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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "examples/worktree-tools"
PAGE = ROOT / "docs/reference/field.md"
ENVIRONMENTS = ROOT / ".venv-field"
FAMILIES = ("WREM", "WMRG", "WFIN", "WNEW", "WTRU")
COLUMNS = ("kept", "broken", "as git", "documented", "no verdict", "not claimed")

_PACKAGES = re.compile(r"^# pip install (.+)$", re.MULTILINE)
_HEAD = """\
# The field

Published tools that make git worktrees, put to the [worktree clauses](worktree-clauses.md) beside plain git's own commands. Their
descriptions are in `examples/worktree-tools`; `make field` installs the versions that these name, and writes this page. What was run on
{date} with {git} is of the families {families}.
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
    """Install a tool, put it to the clauses, and give the report."""
    place = ENVIRONMENTS / description.stem
    if not (place / "bin/pip").exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([place / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages(description)], check=True)
    command = [sys.executable, "-m", "pytest_gittrix.cli", "conform", "--json", "--worktree", str(description)]
    for family in FAMILIES:
        command += ["--family", family]
    with tempfile.TemporaryDirectory() as scratch:
        env = os.environ | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "TMPDIR": scratch}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=False)
    report: dict[str, Any] = json.loads(done.stdout)["data"]
    return report


def page(reports: Mapping[str, Mapping[str, Any]], date: str, git: str) -> str:
    """The page.

    Args:
        reports: the reports, by the name of the description.
        date: the day of the run.
        git: what ``git --version`` prints.
    """
    head = _HEAD.format(families=", ".join(FAMILIES), date=date, git=git)
    return "\n".join([head, *_table(reports), "", *_findings(reports)]).rstrip() + "\n"


def _table(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"| tool | clauses run | {' | '.join(COLUMNS)} |"
    yield f"|---|---|{'---|' * len(COLUMNS)}"
    for report in reports.values():
        (system,) = report["systems"]
        tool, version = system["name"], report["version"]
        shown = version if tool in version else f"{tool} {version}".strip()
        counts = Counter(one["status"] for one in system["clauses"])
        yield f"| {shown} | {counts.total()} | {' | '.join(str(counts[column]) for column in COLUMNS)} |"


def _findings(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, report in reports.items():
        (system,) = report["systems"]
        if not system["findings"]:
            continue
        yield f"## {name}\n"
        reasons = {one["code"]: one["reason"] for one in system["clauses"]}
        for found in system["findings"]:
            (code,) = found["clauses"]
            yield f"`{code}` {found['title']}: {reasons[code].splitlines()[0]}.\n"
            if found["script"]:
                yield f"```bash\n{found['script']}```\n"


def descriptions() -> list[Path]:
    """The descriptions, by name."""
    return sorted(TOOLS.glob("*.toml"))


def main(names: Iterable[str]) -> None:
    """Run the tools that are named, or all, and write the page."""
    wanted = {*names}
    reports = {one.stem: run(one) for one in descriptions() if not wanted or one.stem in wanted}
    git = subprocess.run(["git", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    PAGE.write_text(page(reports, f"{datetime.now(tz=UTC):%Y-%m-%d}", git), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
