"""``gittrix eval import``, ``make-releases`` and ``make-history``: make a suite from cases that somebody else has had."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pytest_gittrix.commands.output import CommandResult

EXAMPLES = {
    "eval import": ["gittrix eval import swebench tasks.jsonl --repos ~/repos --out evals/"],
    "eval make-releases": [
        "gittrix eval make-releases attrs --pins fixtures/evals/releases/attrs.toml --out evals/attrs",
        "gittrix eval make-releases attrs --versions 23.1.0,23.2.0,24.1.0 --out evals/attrs",
    ],
    "eval make-history": [
        "gittrix eval make-history ~/src/acme --out evals/acme",
        "gittrix eval make-history . --ref main --most 500 --out evals/own",
    ],
}
FORMATS = ("swebench",)


def arguments(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare the verbs, each of which ``verb`` makes from its name, its command and what it does."""
    imported = verb("import", import_suite, "make a suite of a data set, on repositories of this machine")
    imported.add_argument("format", choices=FORMATS, metavar="FORMAT", help="of the data set: swebench, a JSON object on each line")
    imported.add_argument("file", type=Path, metavar="FILE", help="the data set")
    imported.add_argument("--repos", type=Path, required=True, metavar="DIR", help="with its repositories, as owner/name or name")
    imported.add_argument(
        "--out", type=Path, metavar="DIR", help="the directory of the suite, a new one; evals/ and the file's name by default"
    )

    released = verb("make-releases", make_releases, "make a suite of a package's releases: apply each one, while the next one drifts in")
    released.add_argument("package", metavar="PACKAGE", help="its name on the index that pip is set to")
    released.add_argument(
        "--versions", type=_versions, default=(), metavar="A,B,C", help="at least three, oldest first; all that are pinned by default"
    )
    released.add_argument("--pins", type=Path, metavar="FILE", help="versions with hashes of their wheels; a suite's releases.toml is one")
    released.add_argument("--out", type=Path, required=True, metavar="DIR", help="the directory of the suite, a new one")

    made = verb("make-history", make_history, "make a suite of a repository's commits: each task is a message, its tests are the commit's")
    made.add_argument("repository", type=Path, metavar="REPOSITORY", help="of this machine; it is only read")
    made.add_argument("--ref", default="HEAD", metavar="REF", help="the branch, or its last commit (HEAD)")
    made.add_argument("--most", type=_count, default=100, metavar="N", help="how many commits are looked at, the latest ones (100)")
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="the directory of the suite, a new one")


def import_suite(options: argparse.Namespace) -> CommandResult:
    """Make a suite; people get its directory."""
    from pytest_gittrix.evals.inputs.swebench import import_swebench

    suite = import_swebench(options.file, options.repos, options.out or Path("evals", options.file.stem))
    ids = [case.id for case in suite.cases]
    return CommandResult({"suite": str(suite.directory), "name": suite.name, "cases": ids}, f"{suite.directory}\n", (f"{len(ids)} cases",))


def make_releases(options: argparse.Namespace) -> CommandResult:
    """Make a suite; people get its directory."""
    from pytest_gittrix.errors import InvalidInput
    from pytest_gittrix.evals.inputs.releases import make_releases as make
    from pytest_gittrix.evals.inputs.wheels import Pin, Pins

    if options.pins is None:
        pins = Pins.of(options.package, [Pin(version) for version in options.versions])
    else:
        pins = Pins.read(options.pins)
        if pins.package != options.package:
            raise InvalidInput(
                f"{options.pins} pins releases of {pins.package}, not of {options.package}.", fix=f"Give {pins.package}, or other pins."
            )
        if options.versions:
            pins = pins.only(options.versions)
    found = make(pins, options.out)
    cases = {id_: {"outcome": one.outcome, "overlap": list(one.overlap)} for id_, one in found.expected.items()}
    conflicts = sum(1 for one in found.expected.values() if one.overlap)
    notes = [f"{len(cases)} cases, {conflicts} of them with a conflict"]
    if options.pins is None:
        notes.append(f"wheels were taken as they came; give --pins {found.suite.directory / 'releases.toml'} to have the same ones again")
    data = {"suite": str(found.suite.directory), "name": found.suite.name, "digest": found.digest, "cases": cases}
    return CommandResult(data, f"{found.suite.directory}\n", tuple(notes))


def make_history(options: argparse.Namespace) -> CommandResult:
    """Make a suite; people get its directory."""
    from pytest_gittrix.evals.inputs.history_suite import make_history as make

    found = make(options.repository, options.out, ref=options.ref, most=options.most)
    cases = [case.id for case in found.suite.cases]
    left_out = [*found.left_out]
    data = {"suite": str(found.suite.directory), "digest": found.digest, "commits": found.commits, "cases": cases, "left_out": left_out}
    note = f"{found.commits} commits, {len(cases)} of them are cases; see which are sound with --agent gold and --agent nop"
    dropped = f"left out, as their changes of code do not apply without those of tests: {', '.join(one[:12] for one in left_out)}"
    return CommandResult(data, f"{found.suite.directory}\n", (note, dropped) if left_out else (note,))


def _versions(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if all(found):
        return found
    raise argparse.ArgumentTypeError(f"{text!r} are no versions: write 1.0,1.1,2.0.")


def _count(text: str) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of commits: write 100.")
