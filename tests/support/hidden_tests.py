"""Hidden tests, run on a result that is one module."""

from __future__ import annotations

import os
from pathlib import Path

from support.cheats import TESTS

from pytest_gittrix.confine.filesystem_layout import Place, toolchain
from pytest_gittrix.confine.levels import confinement, strongest
from pytest_gittrix.confine.runner import run
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.evals.judging.pytest_check import judge
from pytest_gittrix.evals.judging.pytest_run import HiddenTests, PytestPlace
from pytest_gittrix.evals.judging.verdict import Judge, Verdict

LEVEL = strongest().level


def verdict_on(result: str, root: Path, level: str = LEVEL, tests: str = TESTS) -> tuple[Verdict, Judge]:
    """The verdict on a module ``app``, by default in the strongest confinement there is; and the judge that it came to."""
    count = 0
    case = root / "case"
    case.mkdir()
    (case / "test_it.py").write_text(tests)

    def place() -> PytestPlace:
        nonlocal count
        count += 1
        checkout, home = root / f"check-{count}", root / f"home-{count}"
        checkout.mkdir()
        home.mkdir()
        (checkout / "app.py").write_text(result.replace("{root}", str(root)))
        variables = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        where = Place(checkout, home, toolchain(), "/workspace")

        def run_in_place(argv: list[str], *, stdin: bytes, share: float) -> Finished:
            return run(argv, where, confinement(level), environment=variables, stdin=stdin, timeout=60 * share)

        return PytestPlace(run_in_place, home)

    verdict = judge(HiddenTests("test_it.py", tests), place)
    return verdict, "subject" if count == 1 else "canary"
