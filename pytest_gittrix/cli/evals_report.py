"""``gittrix eval report``, and the pages of ``gittrix eval run`` and ``gittrix eval compare --html``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gittrix.commands.declaration import arg, verb
from pytest_gittrix.commands.output import CommandResult

if TYPE_CHECKING:
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.results.compare import Comparison
    from pytest_gittrix.evals.results.store import RunStore
    from pytest_gittrix.evals.runs.options import Options
    from pytest_gittrix.evals.runs.run import Summary


AT_LEAST = arg(
    "--judge-at-least", choices=("subject", "canary", "plain"), help="a sample with a test that a lesser judge has judged counts as failed"
)


@verb(
    arg("run_directory", type=Path, metavar="RUN", help="the directory of a run"),
    arg("--out", type=Path, metavar="FILE", help="where to write it; report.html in the run's directory by default"),
    AT_LEAST,
    examples=("gittrix eval report runs/a", "gittrix eval report runs/a --out page.html"),
)
def report(options: argparse.Namespace) -> CommandResult:
    """Write the page of a run, to look at in a browser."""
    from pytest_gittrix.evals.results.store import RunStore
    from pytest_gittrix.report.eval_report import write_report

    store = RunStore.open(options.run_directory)
    page = _written(lambda: write_report(store, options.out, at_least=options.judge_at_least), options.out or store.path, "--out")
    return CommandResult({"run": str(store.path), "report": str(page.absolute())}, f"{page}\n")


def page_of_comparison(found: Comparison, to: Path) -> str:
    """Write the page of a comparison, and return where it is."""
    from pytest_gittrix.report.compare_report import write_comparison

    return str(_written(lambda: write_comparison(found, to), to, "--html").absolute())


def _written(write: Callable[[], Path], to: Path, option: str) -> Path:
    """What ``write`` returns; a file that cannot be written is refused."""
    from pytest_gittrix.errors import AdapterUnavailable, InvalidInput

    if "\0" in str(to):
        raise InvalidInput(f"{str(to)!r} is no path.", why="No path holds NUL.", fix="Give the path of a file.")
    try:
        return write()
    except OSError as problem:
        raise AdapterUnavailable(f"{to} cannot be written: {problem.strerror or problem}.", fix=f"Give another {option}.") from None


def page_of_run(store: RunStore, options: argparse.Namespace) -> tuple[str | None, tuple[str, ...]]:
    """Write the page of a run that has just ended.

    Args:
        store: the run.
        options: of ``gittrix eval run``.

    Returns:
        Where the page is, None if there is none; and notes on why there is none.
    """
    if options.no_report:
        return None, ()
    from pytest_gittrix.errors import GittrixError
    from pytest_gittrix.report.eval_report import write_report

    try:
        return str(write_report(store, at_least=options.judge_at_least)), ()
    except GittrixError as problem:
        return None, (f"no report: {problem.fact} {problem.fix}".rstrip(),)
    except OSError as problem:
        return None, (f"no report: {problem}",)


def notes_on_models(suite: Suite, wanted: Options, summary: Summary) -> list[str]:
    """What a person is to know of the models of a run: limits that are not kept, and inputs that are not those of the tapes."""
    from pytest_gittrix.evals.models.setting import changed_since, unkept
    from pytest_gittrix.evals.results.store import RunStore

    replayed = None if wanted.model is None else wanted.model.run
    changed = "" if replayed is None else changed_since(RunStore.open(replayed).manifest(), summary.manifest)
    return [note for note in (unkept(summary.manifest, suite.cases), changed) if note]
