"""``gittrix eval import``, ``make-releases`` and ``make-history``: make a suite from cases that somebody else has had."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_gittrix.commands.declaration import arg, verb
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.values import count

FORMATS = ("swebench",)


def _versions(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if all(found):
        return found
    raise argparse.ArgumentTypeError(f"{text!r} are no versions: write 1.0,1.1,2.0.")


_OUT = arg("--out", type=Path, required=True, metavar="DIR", help="the directory of the suite, a new one")


@verb(
    arg("format", choices=FORMATS, metavar="FORMAT", help="of the data set: swebench, a JSON object on each line"),
    arg("file", type=Path, metavar="FILE", help="the data set"),
    arg("--repos", type=Path, required=True, metavar="DIR", help="with its repositories, as owner/name or name"),
    arg("--out", type=Path, metavar="DIR", help="the directory of the suite, a new one; evals/ and the file's name by default"),
    name="import",
    examples=("gittrix eval import swebench tasks.jsonl --repos ~/repos --out evals/",),
)
def import_suite(options: argparse.Namespace) -> CommandResult:
    """Make a suite of a data set, on repositories of this machine."""
    from pytest_gittrix.evals.inputs.swebench import import_swebench

    suite = import_swebench(options.file, options.repos, options.out or Path("evals", options.file.stem))
    ids = [case.id for case in suite.cases]
    return CommandResult({"suite": str(suite.directory), "name": suite.name, "cases": ids}, f"{suite.directory}\n", (f"{len(ids)} cases",))


@verb(
    arg("package", metavar="PACKAGE", help="its name on the index that pip is set to"),
    arg("--versions", type=_versions, default=(), metavar="A,B,C", help="at least three, oldest first; all that are pinned by default"),
    arg("--pins", type=Path, metavar="FILE", help="versions with hashes of their wheels; a suite's releases.toml is one"),
    _OUT,
    examples=(
        "gittrix eval make-releases attrs --pins fixtures/evals/releases/attrs.toml --out evals/attrs",
        "gittrix eval make-releases attrs --versions 23.1.0,23.2.0,24.1.0 --out evals/attrs",
    ),
)
def make_releases(options: argparse.Namespace) -> CommandResult:
    """Make a suite of a package's releases: apply each one, while the next one drifts in."""
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


@verb(
    arg("repository", type=Path, metavar="REPOSITORY", help="of this machine; it is only read"),
    arg("--ref", default="HEAD", metavar="REF", help="the branch, or its last commit (HEAD)"),
    arg("--most", type=count, default=100, metavar="N", help="how many commits are looked at, the latest ones (100)"),
    _OUT,
    examples=("gittrix eval make-history ~/src/acme --out evals/acme", "gittrix eval make-history . --ref main --most 500 --out evals/own"),
)
def make_history(options: argparse.Namespace) -> CommandResult:
    """Make a suite of a repository's commits: each task is a message, its tests are the commit's."""
    from pytest_gittrix.evals.inputs.history_suite import make_history as make

    found = make(options.repository, options.out, ref=options.ref, most=options.most)
    cases = [case.id for case in found.suite.cases]
    left_out = [*found.left_out]
    data = {"suite": str(found.suite.directory), "digest": found.digest, "commits": found.commits, "cases": cases, "left_out": left_out}
    note = f"{found.commits} commits, {len(cases)} of them are cases; see which are sound with --agent gold and --agent nop"
    dropped = f"left out, as their changes of code do not apply without those of tests: {', '.join(one[:12] for one in left_out)}"
    return CommandResult(data, f"{found.suite.directory}\n", (note, dropped) if left_out else (note,))


VERBS = (import_suite, make_releases, make_history)
