"""``gittrix eval make-releases``: make a suite from the releases of a package."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pytest_gittrix.commands.output import CommandResult

EXAMPLES = [
    "gittrix eval make-releases attrs --pins fixtures/evals/releases/attrs.toml --out evals/attrs",
    "gittrix eval make-releases attrs --versions 23.1.0,23.2.0,24.1.0 --out evals/attrs",
]


def arguments(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare the verb, which ``verb`` makes from its name, its command and what it does."""
    made = verb("make-releases", make_releases, "make a suite of a package's releases: apply each one, while the next one drifts in")
    made.add_argument("package", metavar="PACKAGE", help="its name on the index that pip is set to")
    made.add_argument(
        "--versions", type=_versions, default=(), metavar="A,B,C", help="at least three, oldest first; all that are pinned by default"
    )
    made.add_argument("--pins", type=Path, metavar="FILE", help="versions with hashes of their wheels; a suite's releases.toml is one")
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="the directory of the suite, a new one")


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


def _versions(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if all(found):
        return found
    raise argparse.ArgumentTypeError(f"{text!r} are no versions: write 1.0,1.1,2.0.")
