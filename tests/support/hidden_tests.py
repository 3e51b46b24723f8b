"""Hidden tests, run on a result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from support.cheats import TESTS
from support.new_cheats import MARK

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
    verdict = verdict_on_files(lambda place: place.joinpath("app.py").write_text(result.replace("{root}", str(root))), root, level, tests)
    return verdict, "canary" if (root / "check-2").exists() else "subject"


def verdict_on_files(
    write: Callable[[Path], object], root: Path, level: str = LEVEL, tests: str = TESTS, support: Mapping[str, str] | None = None
) -> Verdict:
    """The verdict on the result that a function writes into a directory.

    Args:
        write: writes the result.
        root: an empty directory.
        level: of confinement.
        tests: the hidden tests.
        support: the files beside these.
    """
    count = 0
    case = root / "case"
    case.mkdir()
    hidden = HiddenTests("test_it.py", tests, {path: text.encode() for path, text in (support or {}).items()})
    for path, text in {**(support or {}), "test_it.py": tests}.items():
        (case / path).write_text(text)

    def place() -> PytestPlace:
        nonlocal count
        count += 1
        checkout, home = root / f"check-{count}", root / f"home-{count}"
        checkout.mkdir()
        home.mkdir()
        (home / MARK).touch()
        write(checkout)
        variables = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        where = Place(checkout, home, toolchain(), "/workspace")

        def run_in_place(argv: list[str], *, stdin: bytes, share: float) -> Finished:
            return run(argv, where, confinement(level), environment=variables, stdin=stdin, timeout=60 * share)

        return PytestPlace(run_in_place, home)

    return judge(hidden, place)
