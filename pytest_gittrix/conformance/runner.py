"""Runs the clauses with pytest in a child process, for callers that do not run pytest themselves.

The child starts in the current directory: the pytest configuration and ``conftest.py`` there apply, and modules there can be imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.conformance.base.catalogue import all_clauses
from pytest_gittrix.conformance.base.clause import Clause, families_by_letters, of_set
from pytest_gittrix.conformance.under_test import COMMAND_VARIABLE
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.extras import required
from pytest_gittrix.os_level.remove_tree import memory_directory, scratch_directory

# Given as a module, the file is collected whatever file names the project configures for its tests.
_MODULE: Final = "pytest_gittrix.conformance.test_conformance"
_LINES: Final = ("-p", "pytest_gittrix.conformance.progress", "-o", "console_output_style=classic")
_NAMES: Final = ("-o", "python_classes=Test*", "-o", "python_functions=test_*")
_KEPT, _BROKEN, _MISUSED = 0, 1, 4


@dataclass(frozen=True)
class RunSpec:
    """Which clauses to run on which system, and how.

    Attributes:
        system: ``package.module:attribute``; None for the system that the project's configuration names, or else the reference engine.
        clauses: the clauses to run; all if empty.
        reports: files to write, each with a suffix of ``reports.files.WRITERS``.
        workers: number of xdist processes, or ``auto``; None for no xdist.
        details: whether to show a traceback for each broken clause.
        waivers: the reasons why clauses need not be kept, by code.
        crash: the seconds in which operations are killed at as many of their calls as there is time for; None for a few kills.
        race: the seconds in which two processes take turns in as many orders as there is time for; None for a few orders.
    """

    system: str | None = None
    clauses: Sequence[Clause] = ()
    reports: Sequence[str] = ()
    workers: str | None = None
    details: bool = False
    waivers: Mapping[str, str] = field(default_factory=dict)
    crash: float | None = None
    race: float | None = None


def select(families: Sequence[str], codes: Sequence[str], clause_set: str | None = None) -> list[Clause]:
    """The clauses of some families and those with some codes; all clauses if neither is given.

    Args:
        families: the letters of families.
        codes: codes of clauses.
        clause_set: leave out what this one of ``SETS`` has not.

    Raises:
        InvalidInput: there is no such family, clause or set, or none of the clauses is in the set.
    """
    if clause_set is not None:
        return of_set(select(families, codes), clause_set)
    known = all_clauses()
    for name in families:
        if name.upper() not in families_by_letters():
            raise InvalidInput(f"{name!r} is no family of clauses.", fix=f"There are: {', '.join(families_by_letters())}.")
    for code in codes:
        if code.upper() not in {clause.code for clause in known}:
            raise InvalidInput(f"{code!r} is no clause.", fix="`gittrix conform --list` lists all clauses.")
    if not families and not codes:
        return [*known]
    wanted = {*map(str.upper, families), *map(str.upper, codes)}
    return [clause for clause in known if not wanted.isdisjoint({clause.family, clause.code})]


def run_clauses(spec: RunSpec, *, quiet: bool = False) -> tuple[bool, dict[str, Any]]:
    """Run clauses.

    Args:
        spec: what to run.
        quiet: let pytest print nothing; otherwise it prints progress and the summary on standard output.

    Returns:
        Whether the system keeps everything that it claims, and the report as ``json_report.to_json`` gives it.

    Raises:
        ExtraMissing: there are to be several workers, and pytest-xdist is not installed.
        InvalidInput: pytest refused an option; the message is pytest's.
        GittrixError: pytest could not run the clauses.
    """
    if spec.workers is not None:
        required("xdist", "xdist")
    with scratch_directory("gittrix-", memory_directory()) as directory:
        report = Path(directory, "report.json")
        variables = {"TMPDIR": directory} if spec.system is None else {"TMPDIR": directory, COMMAND_VARIABLE: "1"}
        done = subprocess.run(
            _command(spec, report),
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",
            check=False,
        )
        if done.returncode == _MISUSED:
            raise InvalidInput(done.stderr.strip().removeprefix("ERROR: ") or "pytest refused its command line.")
        if done.returncode not in (_KEPT, _BROKEN) or not report.exists():
            raise GittrixError(
                f"The clauses could not be run: pytest ended with status {done.returncode}.",
                why="\n".join([*(done.stdout or "").splitlines()[-20:], *done.stderr.splitlines()[-20:]]),
            )
        sys.stderr.write(done.stderr)
        return done.returncode == _KEPT, json.loads(report.read_text(encoding="utf-8"))


def _command(spec: RunSpec, report: Path) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "--no-header",
        "-rN",
        *_LINES,
        *_NAMES,
        "-o",
        "verbosity_assertions=2",
    ]
    command += [f"--tb={'short' if spec.details else 'no'}", f"--gittrix-conformance-report={report}"]
    command += [f"--gittrix-conformance-report={file}" for file in spec.reports]
    command += [f"--gittrix-waive={name}={reason}" for name, reason in spec.waivers.items()]
    command += [f"--gittrix-{name}={given:g}" for name, given in (("crash", spec.crash), ("race", spec.race)) if given]
    if spec.system is not None:
        command.append(f"--gittrix-system={spec.system}")
    if spec.clauses and len(spec.clauses) < len(all_clauses()):
        command += ["-k", " or ".join(f"test_{clause.code.lower().replace('-', '_')}_" for clause in spec.clauses)]
    if spec.workers is not None:
        command += ["-n", spec.workers]
    return [*command, "--pyargs", _MODULE]
