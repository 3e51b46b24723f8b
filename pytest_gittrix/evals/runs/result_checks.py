"""The checks of a case on a result: each in a checkout of its own, confined as the run is, within the case's time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.evals.failures.reasons import CHECK, one_line
from pytest_gittrix.evals.inputs.sample_record import CheckResult, Outcome
from pytest_gittrix.evals.inputs.suite import Case
from pytest_gittrix.evals.judging.checks import CheckContext, CheckPlace, ResultToCheck, run_check
from pytest_gittrix.evals.runs.launch import ProgramLauncher
from pytest_gittrix.os_level.monotonic import real_seconds

_LEAST: Final = 0.1
"""The least seconds that a program of a check is given."""


class ResultChecks:
    """Checks results of one case.

    Args:
        case: the case.
        directory: the directory of the sample, where the checks work.
        confinement: the confinement of programs.
        environment: the environment of a program of a check, given its home directory.
    """

    def __init__(self, case: Case, directory: Path, confinement: Confinement, environment: Callable[[Path], Mapping[str, str]]) -> None:
        self._case = case
        self._directory = directory
        self._confinement = confinement
        self._environment = environment
        self._until = 0.0

    def run(self, result: ResultToCheck) -> Iterator[tuple[CheckResult, Finished | None]]:
        """Run each check, in order; gives what it found, and how its program ended if it has one. Raises as ``run_check`` does."""
        scratch = Path(tempfile.mkdtemp(prefix=CHECK, dir=self._directory))
        context = CheckContext(lambda: self._place(result.path), scratch)
        for check in self._case.checks:
            self._until = real_seconds() + self._case.timeout_ms / 1000
            found, done = run_check(check, result, context)
            yield replace(found, detail=one_line(found.detail, self._directory)), done

    def verdict(self, found: Sequence[CheckResult]) -> tuple[Outcome, str]:
        """The outcome of a sample with these results of its checks, and the reason where it has not passed."""
        wrong = [check for check in found if not check.ok]
        # A check whose tests none can judge says nothing about the result; one that fails says enough.
        unknown = all({*check.failed.values()} == {"unjudgeable"} for check in wrong)
        outcome: Outcome = "pass" if not wrong else "unjudgeable" if unknown else "fail"
        return outcome, one_line("; ".join(f"{check.kind}: {check.detail}" for check in wrong), self._directory)

    def _place(self, checkout: Path) -> CheckPlace:
        """A copy of the result: no check sees what code of the result did in another."""
        # With an unpredictable name: an agent that is not confined could have put files there.
        place = Path(tempfile.mkdtemp(prefix=CHECK, dir=self._directory))
        path, home = place / "checkout", place / "home"
        shutil.copytree(checkout, path, symlinks=True)
        home.mkdir()
        # The case is not readable: the checked code is the agent's, and would find the solution there.
        launch = ProgramLauncher(path, home, self._confinement)

        def run(argv: Sequence[str], *, stdin: bytes = b"", share: float = 1.0, **more: str) -> Finished:
            environment = {**self._environment(home), **more}
            left = max((self._until - real_seconds()) * share, _LEAST)
            return launch(argv, environment=environment, timeout=left, most_output=self._case.output, stdin=stdin)

        return CheckPlace(path, home, run, lambda program: launch.finds(program, self._environment(home)))


def event_of(found: CheckResult) -> dict[str, Any]:
    """The data of the event that a check was done: what it found, without the output of programs."""
    judged = {name: dict(table) for name, table in (("judges", found.judges), ("failed", found.failed)) if table}
    return {"kind": found.kind, "ok": found.ok, "detail": found.detail, **judged}
