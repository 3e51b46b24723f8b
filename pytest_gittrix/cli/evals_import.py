"""``gittrix eval import``: make a suite from a data set of another project."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pytest_gittrix.commands.output import CommandResult

EXAMPLES = ["gittrix eval import swebench tasks.jsonl --repos ~/repos --out evals/"]
FORMATS = ("swebench",)


def arguments(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare the verb, which ``verb`` makes from its name, its command and what it does."""
    imported = verb("import", import_suite, "make a suite of a data set, on repositories of this machine")
    imported.add_argument("format", choices=FORMATS, metavar="FORMAT", help="of the data set: swebench, a JSON object on each line")
    imported.add_argument("file", type=Path, metavar="FILE", help="the data set")
    imported.add_argument("--repos", type=Path, required=True, metavar="DIR", help="with its repositories, as owner/name or name")
    imported.add_argument(
        "--out", type=Path, metavar="DIR", help="the directory of the suite, a new one; evals/ and the file's name by default"
    )


def import_suite(options: argparse.Namespace) -> CommandResult:
    """Make a suite; people get its directory."""
    from pytest_gittrix.evals.inputs.swebench import import_swebench

    suite = import_swebench(options.file, options.repos, options.out or Path("evals", options.file.stem))
    ids = [case.id for case in suite.cases]
    return CommandResult({"suite": str(suite.directory), "name": suite.name, "cases": ids}, f"{suite.directory}\n", (f"{len(ids)} cases",))
