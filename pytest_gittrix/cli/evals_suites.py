"""``gittrix eval import``, ``make-releases``, ``make-history``, ``validate``: suites of real cases, and whether they are sound."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.commands.declaration import arg, limit_of, verb
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.values import count
from pytest_gittrix.os_level.command import LEVELS
from pytest_gittrix.safe_text import visible

if TYPE_CHECKING:
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.runs.options import Options
    from pytest_gittrix.evals.verification.validate import CaseValidation, Validation
    from pytest_gittrix.formats.junit import JUnitCase

FORMATS = ("swebench",)
_INVALID = 1


def _versions(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if all(found):
        return found
    raise argparse.ArgumentTypeError(f"{text!r} are no versions: write 1.0,1.1,2.0.")


_OF_VALIDATION = (
    arg("--gold-runs", type=count, default=3, metavar="N", help="how often each solution is run (%(default)s)"),
    arg("-n", "--workers", type=count, default=1, metavar="N", help="how many samples at a time (%(default)s)"),
    arg("--confine", choices=LEVELS, help="how programs are confined; the suite's by default"),
)
_OF_A_NEW_SUITE = (
    *_OF_VALIDATION,
    arg("--no-validate", action="store_true", help="only make the suite, and run nothing"),
    arg("--accept-invalid", action="store_true", help="end with 0 although some cases are not valid, while at least one is"),
)

_OUT = arg("--out", type=Path, required=True, metavar="DIR", help="the directory of the suite, a new one")


@verb(
    arg("format", choices=FORMATS, metavar="FORMAT", help="of the data set: swebench, a JSON object on each line"),
    arg("file", type=Path, metavar="FILE", help="the data set"),
    arg("--repos", type=Path, required=True, metavar="DIR", help="with its repositories, as owner/name or name"),
    arg("--out", type=Path, metavar="DIR", help="the directory of the suite, a new one; evals/ and the file's name by default"),
    *_OF_A_NEW_SUITE,
    name="import",
    examples=("gittrix eval import swebench tasks.jsonl --repos ~/repos --out evals/",),
)
def import_suite(options: argparse.Namespace) -> CommandResult:
    """Make a suite of a data set, on repositories of this machine, and validate it."""
    from pytest_gittrix.evals.inputs.swebench import import_swebench

    suite = import_swebench(options.file, options.repos, options.out or Path("evals", options.file.stem))
    ids = [case.id for case in suite.cases]
    data = {"suite": str(suite.directory), "name": suite.name, "cases": ids}
    return _with_validation(data, (f"{len(ids)} cases",), suite, options)


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
    *_OF_A_NEW_SUITE,
    examples=("gittrix eval make-history ~/src/acme --out evals/acme", "gittrix eval make-history . --ref main --most 500 --out evals/own"),
)
def make_history(options: argparse.Namespace) -> CommandResult:
    """Make a suite of a repository's commits, and validate it: each task is a message, its tests are the commit's."""
    from pytest_gittrix.evals.inputs.history_suite import make_history as make

    found = make(options.repository, options.out, ref=options.ref, most=options.most)
    cases = [case.id for case in found.suite.cases]
    left_out = [*found.left_out]
    data = {
        "suite": str(found.suite.directory),
        "digest": found.digest,
        "commits": found.commits,
        "cases": cases,
        "left_out": left_out,
    }
    note = f"{found.commits} commits, {len(cases)} of them are cases"
    dropped = f"left out, as their changes of code do not apply without those of tests: {', '.join(one[:12] for one in left_out)}"
    notes = (note, dropped) if left_out else (note,)
    return _with_validation(data, notes, found.suite, options)


@verb(
    arg("suite", type=Path, metavar="SUITE", help="directory with a suite.toml"),
    *_OF_VALIDATION,
    arg("--filter", action="append", default=[], metavar="PATTERN", help="only cases whose id fits; repeatable"),
    limit_of("of each program; repeatable"),
    arg("--out", type=Path, metavar="DIR", help="keep the runs gold, nop and wrong there; by default they are removed"),
    arg("--junit", type=Path, metavar="FILE", help="write a JUnit report with a test for each case"),
    arg("--scratch", type=Path, metavar="DIR", help="where samples work; among temporary files by default"),
    examples=("gittrix eval validate evals/", "gittrix eval validate evals/ --gold-runs 5 -n 4 --junit validation.xml"),
)
def validate(options: argparse.Namespace) -> CommandResult:
    """Check that each case can be solved, each time, and that nothing and wrong solutions do not pass."""
    from pytest_gittrix.confine.limits import check_limits
    from pytest_gittrix.errors import InvalidInput
    from pytest_gittrix.evals.inputs.suite import Suite

    suite = Suite.load(options.suite)
    if options.filter:
        chosen = tuple(case for case in suite.cases if _fits(case.id, options.filter))
        if not chosen:
            raise InvalidInput(f"No case fits {', '.join(options.filter)}.", fix="Give ids, or patterns such as 'fix-*'.")
        suite = replace(suite, cases=chosen)
    found = _validated(suite, options, limits=check_limits(options.limit), scratch=options.scratch, keep=options.out)
    if options.junit is not None:
        _write_junit(found, options.junit)
    status = 0 if found.valid == len(found.cases) else _INVALID
    return CommandResult(found.to_json(), _validation_text(found), status=status)


def _with_validation(data: dict[str, Any], notes: tuple[str, ...], suite: Suite, options: argparse.Namespace) -> CommandResult:
    """The result of a command that has made a suite, which is validated unless ``--no-validate`` is given, and stays as it is."""
    from pytest_gittrix.errors import GittrixError

    found, note, status = None, "", 0
    if options.no_validate:
        note = "not validated: `gittrix eval validate` says which cases are sound"
    else:
        try:
            found = _validated(suite, options)
        except GittrixError as problem:
            note, status = f"not validated: {problem.fact} {problem.fix}".rstrip(), _INVALID
    if found is not None and found.valid < len(found.cases):
        accepted = options.accept_invalid and found.valid
        status = 0 if accepted else _INVALID
        if not found.valid:
            note = "the suite is made, but none of its cases says anything about an agent here"
        elif not accepted:
            note = "the suite is made; `--filter` of `gittrix eval run` leaves cases out, and --accept-invalid ends with 0 all the same"
    validation, text = (None, "") if found is None else (found.to_json(), _validation_text(found))
    return CommandResult({**data, "validation": validation}, f"{suite.directory}\n{text}", (*notes, *filter(None, [note])), status)


def _validation_text(found: Validation) -> str:
    """A validation for people: a line for each case, what is wrong with it, and a sentence."""
    lines = [line for case in found.cases for line in _case_lines(case)]
    return visible("\n".join([*lines, found.sentence, ""]))


def _case_lines(case: CaseValidation) -> list[str]:
    grade = case.grade
    facts = [f"{grade.tests} tests: {grade.mix}"] if grade.tests else []
    facts += [f"{len(case.trivial_tests)} pass without any work"] if case.trivial_tests else []
    facts += [f"{case.red} of {len(case.wrong)} wrong solutions refused"] if case.wrong else []
    lines = [f"{'valid' if case.is_valid else 'invalid':<9}{case.id}  {'; '.join(facts)}".rstrip()]
    lines += [f"           {problem.kind}: {problem.text}" for problem in case.problems]
    lines += _named("flaky tests", case.flaky_tests) + _named("tests that none can judge", case.unjudgeable_tests)
    return lines


def _named(title: str, tests: Sequence[str]) -> list[str]:
    return [f"           {title}: {', '.join(tests)}"] if tests else []


def _validated(suite: Suite, options: argparse.Namespace, *, keep: Path | None = None, **more: Any) -> Validation:
    from pytest_gittrix.cli.evals_output import watching
    from pytest_gittrix.evals.runs.options import Options
    from pytest_gittrix.evals.verification.validate import validate_suite
    from pytest_gittrix.os_level.remove_tree import scratch_directory

    with scratch_directory("gittrix-validate-") as scratch:
        wanted: Options = Options(agent="", out=keep or Path(scratch), workers=options.workers, confine=options.confine, **more)
        with watching(f"{suite.name}, validated", quiet=options.json) as watch:
            return validate_suite(suite, wanted, gold_runs=options.gold_runs, watch=watch)


def _fits(id_: str, patterns: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(id_, pattern) for pattern in patterns)


def _write_junit(found: Validation, to: Path) -> None:
    from pytest_gittrix.errors import AdapterUnavailable
    from pytest_gittrix.formats.junit import JUnitSuite, junit_xml

    properties = {"valid": str(found.valid), "cases": str(len(found.cases)), "summary": found.sentence}
    text = junit_xml([JUnitSuite(found.suite.name, [_junit_case(found.suite.name, case) for case in found.cases], properties)])
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise AdapterUnavailable(f"{to} cannot be written: {problem.strerror or problem}.", fix="Give another --junit.") from None


def _junit_case(group: str, case: CaseValidation) -> JUnitCase:
    from pytest_gittrix.formats.junit import JUnitCase

    facts = {
        "tests": str(case.grade.tests),
        "judged": case.grade.mix,
        "gold": f"{case.green} of {len(case.gold)}",
        "trivial_tests": ", ".join(case.trivial_tests),
        "flaky_tests": ", ".join(case.flaky_tests),
        "unjudgeable_tests": ", ".join(case.unjudgeable_tests),
    }
    properties = {name: value for name, value in facts.items() if value}
    if case.is_valid:
        return JUnitCase(group, case.id, properties=properties)
    unknown = all(problem.kind == "unknown" for problem in case.problems)
    text = "\n".join(f"{problem.kind}: {problem.text}" for problem in case.problems)
    first = case.problems[0]
    return JUnitCase(group, case.id, "error" if unknown else "failure", first.text, text, first.kind, properties=properties)


VERBS = (import_suite, make_releases, make_history, validate)
