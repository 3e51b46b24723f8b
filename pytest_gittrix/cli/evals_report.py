"""``gittrix eval report``, and the page that ``gittrix eval run`` writes at its end.

The page needs a template library, which is an extra: without it a run ends as usual, with a note.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gittrix.commands.output import CommandResult

if TYPE_CHECKING:
    from pytest_gittrix.evals.results.store import RunStore

EXAMPLES = ["gittrix eval report runs/a", "gittrix eval report runs/a --out page.html"]


def arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``gittrix eval report``."""
    verb.add_argument("run_directory", type=Path, metavar="RUN", help="the directory of a run")
    verb.add_argument("--out", type=Path, metavar="FILE", help="where to write it; report.html in the run's directory by default")


def run_argument(verb: argparse.ArgumentParser) -> None:
    """Declare the flag of ``gittrix eval run``."""
    verb.add_argument("--no-report", action="store_true", help="write no report.html at the end")


def report(options: argparse.Namespace) -> CommandResult:
    """Write the page of a run, and print where it is."""
    from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
    from pytest_gittrix.evals.results.store import RunStore
    from pytest_gittrix.report.eval_report import write_report

    store = RunStore.open(options.run_directory)
    if options.out is not None and "\0" in str(options.out):
        raise InvalidInput(f"{str(options.out)!r} is no path.", why="No path holds NUL.", fix="Give the path of a file.")
    try:
        page = write_report(store, options.out)
    except OSError as problem:
        where = options.out or store.path
        raise AdapterUnavailable(f"{where} cannot be written: {problem.strerror or problem}.", fix="Give another --out.") from None
    return CommandResult({"run": str(store.path), "report": str(page.absolute())}, f"{page}\n")


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
        return str(write_report(store)), ()
    except GittrixError as problem:
        return None, (f"no report: {problem.fact} {problem.fix}".rstrip(),)
    except OSError as problem:
        return None, (f"no report: {problem}",)
