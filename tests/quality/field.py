"""Runs the worktree profile on published tools, each in its own environment, and writes ``docs/reference/field.md``: ``make field``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gittrix.conformance.base.script_end import FOUND
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses
from tests.support.throwaway import in_throwaway

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "examples/worktree-tools"
PAGE = ROOT / "docs/reference/field.md"
ENVIRONMENTS = ROOT / ".venv-field"
COLUMNS = ("kept", "as git", "documented", "no verdict", "not claimed")

PYTHON = os.environ.get("FIELD_PYTHON", sys.executable)
"""The Python of the tools, which some need newer than this package does."""
KEPT = "--kept"
LONGEST = 3600.0
"""Seconds after which the run of a tool is ended."""

_PACKAGES = re.compile(r"^# (pip|npm) install (.+)$", re.MULTILINE)
_HEAD = """\
# The field

Published tools that make git worktrees, put to the [worktree clauses](worktree-clauses.md) beside plain git's own commands. Their
descriptions are in `examples/worktree-tools`; `make field` installs the versions that these name, each in an environment of its own, runs
each on a throwaway machine, and writes this page. Of these {all} tools, {found} have a finding, {losing} of them lose work that plain git
keeps, and {none} have none. Tools that need a desktop, a database, a forge or a person at a menu are not among them.

A broken clause is something to talk about, and often a choice that was made on purpose. If yours is here and its help says so, a
[waiver](../how-to/test-your-worktree-tool.md#4-say-what-you-do-not-promise) with the words of the help makes it *documented*.
*As git* means that plain git's commands lose the same work: [how git loses work](../explanation/how-git-loses-work.md).

Each tool was put to {clauses} clauses, beside {git}, on {dates}. Each of the {scripts} scripts was run once more by a shell alone:
{shown} of them showed what they say.{missing}
"""


def packages(description: Path) -> list[str]:
    """The packages that a description names, with their versions."""
    return _packages(description)[1].split()


def _packages(description: Path) -> tuple[str, str]:
    found = _PACKAGES.search(description.read_text(encoding="utf-8"))
    assert found is not None, f"{description.name} names no package: # pip install tool==1.0, or # npm install tool@1.0"
    return found[1], found[2]


def pinned(description: Path) -> tuple[str, str]:
    """The name and the version of the package that is put to the clauses, the first of a description."""
    name, _, version = packages(description)[0].replace("==", "@").rpartition("@")
    return name, version


def installed(description: Path) -> str:
    """Install the packages of a description, and give the directories of their programs. Nothing of theirs runs meanwhile."""
    place, (installer, named) = ENVIRONMENTS / description.stem, _packages(description)
    if installer == "npm":
        command = ["npm", "install", "--prefix", str(place), "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*command, *named.split()], check=True)
        modules = place / "node_modules"
        return os.pathsep.join([str(modules / ".bin"), *(str(modules / one.rpartition("@")[0] / "bin") for one in named.split())])
    if not (place / "bin/python").exists():
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", place], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--only-binary", ":all:", *named.split()], check=True)
    return str(place / "bin")


def _python(description: Path) -> str:
    """The directory of the Python of a tool that is installed; empty if it needs none."""
    program = ENVIRONMENTS / description.stem / "bin/python"
    return str(program.resolve().parents[1]) if program.exists() else ""


def run(description: Path) -> dict[str, Any]:
    """Install a tool, put it to the clauses on a throwaway machine, and give the report. A run that judged nothing ends the program: a tool
    that does not run is not one without a finding.
    """
    command = [sys.executable, "-m", "pytest_gittrix.cli", "conform", "--json", "--workers", str(os.cpu_count() or 1)]
    programs = installed(description)
    done = in_throwaway([*command, "--worktree", str(description)], first=programs, keep=_python(description), timeout=LONGEST)
    report: dict[str, Any] = json.loads(done.stdout)["data"]
    if not judged(report):
        reason = next(one["reason"] for one in report["systems"][0]["clauses"] if one["status"] == "no verdict")
        raise SystemExit(f"{description.name}: no clause could be judged: {reason}")
    return report


def shown_outside(description: Path, report: Mapping[str, Any]) -> list[str]:
    """The clauses whose scripts say that the tool did it again, each run by a shell alone on a throwaway machine of its own."""
    programs, keep = installed(description), _python(description)
    found = []
    for one in report["systems"][0]["findings"]:
        done = in_throwaway(["/bin/sh"], stdin=one["script"].encode(), first=programs, keep=keep)
        if one["script"] and FOUND.search(done.stdout.decode("utf-8", "replace")):
            found += one["clauses"]
    return found


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
    report["shown"] = shown_outside(description, report)
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
    systems = {name: report["systems"][0] for name, report in reports.items()}
    found = sum(bool(system["findings"]) for system in systems.values())
    losing = sum(any(one["losesWork"] for one in system["findings"]) for system in systems.values())
    missing = [one.stem for one in descriptions() if one.stem not in reports]
    dates = sorted({system["properties"]["date"] for system in systems.values()})
    facts = {
        "all": len(systems),
        "found": found,
        "none": len(systems) - found,
        "losing": losing,
        "scripts": sum(bool(one["script"]) for system in systems.values() for one in system["findings"]),
        "shown": sum(len(report["shown"]) for report in reports.values()),
        "clauses": _same(len(system["clauses"]) for system in systems.values()),
        "git": _same(system["properties"]["git"] for system in systems.values()),
        "missing": f" Not put to them yet: {', '.join(missing)}." if missing else "",
        "dates": " to ".join(dict.fromkeys([dates[0], dates[-1]])),
    }
    return "\n".join([_HEAD.format(**facts), *_losses(systems), "", *_counts(systems), "", *_findings(systems)]).rstrip() + "\n"


def _same(values: Iterable[object]) -> str:
    """What is the same in all reports, or the different values."""
    return " or ".join(dict.fromkeys(map(str, values)))


def _losses(systems: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| tool | broken | what is lost |"
    yield "|---|---:|---|"
    for name, system in systems.items():
        broken = sum(one["status"] == "broken" for one in system["clauses"])
        lost = [one["title"] for one in system["findings"] if one["losesWork"]]
        yield f"| {name} {pinned(TOOLS / f'{name}.toml')[1]} | {broken} | {'. '.join(lost) or 'nothing that plain git keeps'} |"


def _counts(systems: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "The other clauses of each:\n"
    counted = {name: Counter(one["status"] for one in system["clauses"]) for name, system in systems.items()}
    columns = [column for column in COLUMNS if any(counts[column] for counts in counted.values())]
    yield f"| tool | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for name, counts in counted.items():
        yield f"| {name} | {' | '.join(str(counts[column]) for column in columns)} |"


def _findings(systems: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, system in systems.items():
        if not system["findings"]:
            continue
        yield f"## {name}\n"
        clauses = {one["code"]: one for one in system["clauses"]}
        for found in system["findings"]:
            (code,) = found["clauses"]
            first, *no_script = clauses[code]["reason"].splitlines()
            cases = re.search(r" \([^()]*\)$", first)
            lines = [f"{found['title']}{cases[0] if cases else ''}.", f"`{code}`: {clauses[code]['promise']}.", *no_script]
            yield f"{' '.join(lines)}\n"
            if found["script"]:
                yield f"```bash\n{found['script']}```\n"


def descriptions() -> list[Path]:
    """The descriptions, by name."""
    return sorted(TOOLS.glob("*.toml"))


def main(names: Sequence[str]) -> None:
    """Run the tools that are named, or all, and write the page. Tools that are not named keep reports that are current; with ``--kept``
    none runs, and the page says which have no report.
    """
    wanted = {*names} - {KEPT}
    chosen = [one for one in descriptions() if KEPT not in names or (ENVIRONMENTS / one.stem / "report.json").exists()]
    reports = {one.stem: report_of(one, again=KEPT not in names and (not wanted or one.stem in wanted)) for one in chosen}
    PAGE.write_text(page(reports), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
