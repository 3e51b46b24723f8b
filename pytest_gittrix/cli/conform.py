"""``gittrix conform``: run the clauses of the conformance suite, or list them."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.commands.declaration import arg, verb
from pytest_gittrix.commands.output import CommandResult, Table
from pytest_gittrix.commands.values import seconds

if TYPE_CHECKING:
    from pytest_gittrix.conformance.base.clause import Clause
    from pytest_gittrix.conformance.reports.model import ClauseOutcome
    from pytest_gittrix.conformance.worktrees.base.clause import WorktreeClause
    from pytest_gittrix.conformance.worktrees.findings import ClauseFinding

BROKEN = 1
_NOT_OF_AGENTS = ("system", "worktree", "clauses", "waive", "crash", "race", "workers")
"""The options that have no effect with ``--agent``."""


def workers(text: str) -> str:
    """Read a number of processes, or ``auto``."""
    if text == "auto" or re.fullmatch(r"[1-9][0-9]{0,3}", text):
        return text
    raise ArgumentTypeError(f"{text!r} is no number of processes: write one from 1, or auto.")


@verb(
    arg(
        "system",
        nargs="?",
        metavar="SYSTEM",
        help="package.module:attribute; by default the one that pytest is configured for here, or else gittrix itself",
    ),
    arg("--family", action="append", default=[], metavar="CNF", help="only the clauses of a family; repeatable"),
    arg("--clause", action="append", default=[], metavar="CNF-03", help="only this clause, with details; repeatable"),
    arg(
        "--report",
        action="append",
        default=[],
        metavar="FILE",
        help="write a report: .json, .html, .txt, .xml (JUnit), .sarif, .svg (a badge) or .jsonl (each operation); repeatable",
    ),
    arg("--clauses", metavar="2026.1", help="only the clauses of a set, which is the same in every later version"),
    arg("--against", metavar="FILE", help="an earlier .json report: only what is new since then fails the run"),
    arg("--waive", action="append", default=[], metavar="CNF-03=REASON", help="a clause that need not be kept, and the reason; repeatable"),
    arg("--crash", type=seconds, metavar="SECONDS", help="kill operations at as many of their calls as there is time for"),
    arg("--race", type=seconds, metavar="SECONDS", help="let two processes take turns in as many orders as there is time for"),
    arg("-n", "--workers", type=workers, metavar="N", help="in N processes, or auto; needs pytest-xdist"),
    arg("--list", action="store_true", help="list the clauses, and run none"),
    arg("--worktree-init", metavar="TOOL", help="print a first description of a worktree manager, made from its --help"),
    arg("--ask", action="store_true", help="with --worktree-init: ask five questions; an empty answer takes the default"),
    arg("--worktree", metavar="FILE", help="put a manager of git worktrees to the worktree profile: its description"),
    arg("--agent", metavar="FILE", help="put a coding agent to the profile of coding agents: its description"),
    arg("--fast", action="store_true", help="with --worktree: only the families that lose the most work, removing and cleaning"),
    examples=(
        "gittrix conform acme.testing:system",
        "gittrix conform acme.testing:system --report conformance.html",
        "gittrix conform acme.testing:system --against report.json",
        "gittrix conform acme.testing:system --clause CNF-03",
        "gittrix conform acme.testing:system --crash 60 --race 120",
        "gittrix conform --list --family CNF",
        "gittrix conform --worktree tool.toml",
        "gittrix conform --worktree tool.toml --fast",
        "gittrix conform --worktree tool.toml --family WSRV --race 600",
        "gittrix conform --agent agent.toml",
    ),
)
def conform(options: Namespace) -> CommandResult:
    """Check a session system against clauses, or list them; a wrong value of an argument is misuse."""
    from pytest_gittrix.errors import InvalidInput

    try:
        return _conform(options)
    except InvalidInput as problem:
        options.misuse(str(problem))
        raise


def _conform(options: Namespace) -> CommandResult:
    """Run what the options ask for.

    Raises:
        InvalidInput: there is no such family, clause or system, no such kind of report, the baseline is no report, a waiver is of
            no clause or has no reason, or a flag has no effect with the others.
        GittrixError: the run did not finish.
    """
    _check_flags(options)
    if options.worktree_init is not None:
        text = _first_description(options.worktree_init, ask=options.ask)
        return CommandResult({"description": text}, text)
    if options.worktree is not None:
        return _worktree(options)
    if options.agent is not None:
        return _agent(options)
    from pytest_gittrix.conformance.base.waivers import check_waivers_of_clauses
    from pytest_gittrix.conformance.reports.baseline import read_baseline
    from pytest_gittrix.conformance.runner import RunSpec, run_clauses, select

    clauses = select(options.family, options.clause, options.clauses)
    if options.list:
        return CommandResult([_data(clause) for clause in clauses], _table(clauses))
    pairs = (one.partition("=") for one in options.waive)
    waivers = check_waivers_of_clauses({name: reason for name, _, reason in pairs}, "the command line")
    spec = RunSpec(
        options.system,
        clauses,
        options.report,
        options.workers,
        details=bool(options.clause),
        waivers=waivers,
        crash=options.crash,
        race=options.race,
    )
    baseline = read_baseline(options.against) if options.against else None
    kept, report = run_clauses(spec, quiet=options.json)
    if baseline is None:
        return CommandResult(report, status=0 if kept else BROKEN)
    return _compared(baseline, report)


def _check_flags(options: Namespace) -> None:
    """Refuse flags that have no effect with the others that were given."""
    from pytest_gittrix.errors import InvalidInput

    if options.ask and options.worktree_init is None:
        raise InvalidInput(
            "--ask does nothing without --worktree-init.",
            why="The questions are about the first description of a worktree manager.",
            fix="Add --worktree-init TOOL, or leave --ask out.",
        )
    if options.fast and options.worktree is None:
        raise InvalidInput(
            "--fast does nothing without --worktree.",
            why="It chooses families of the worktree profile.",
            fix="Add --worktree FILE, or choose clauses with --family.",
        )
    if options.worktree is not None and options.waive:
        raise InvalidInput(
            "--waive does nothing with --worktree.",
            why="It is for the clauses of session systems; the worktree profile has clauses of its own.",
            fix="Leave --waive out. Waivers of the worktree profile stand in the description, in the table [worktree.waive].",
        )

    unused = [f"--{name}" for name in _NOT_OF_AGENTS if options.agent is not None and getattr(options, name)]
    if unused:
        raise InvalidInput(
            f"{unused[0]} does nothing with --agent.",
            why="The profile of coding agents has no waivers, sets or searches, and its runs follow one another.",
            fix=f"Leave {unused[0]} out. Choose clauses with --family or --clause.",
        )


def _first_description(tool: str, *, ask: bool) -> str:
    """The description of a manager of worktrees. A person at the terminal is asked if the help says too little."""
    from pytest_gittrix.conformance.worktrees.first_description import first_description
    from pytest_gittrix.errors import InvalidInput

    try:
        return first_description(tool, _answer if ask else None)
    except InvalidInput:
        if not sys.stdin.isatty():
            raise
        return first_description(tool, _answer)


def _answer(question: str) -> str:
    """The line that a person types. The question goes to the errors, since the output is the file."""
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()


def _worktree(options: Namespace) -> CommandResult:
    """Put a manager of worktrees to the clauses of the worktree profile."""
    from pytest_gittrix.conformance.base.clause import first_set
    from pytest_gittrix.conformance.reports.baseline import read_baseline
    from pytest_gittrix.conformance.reports.files import write_files
    from pytest_gittrix.conformance.reports.json_report import to_json
    from pytest_gittrix.conformance.worktrees.base.description import read_tool
    from pytest_gittrix.conformance.worktrees.catalogue import FAST, select_worktree_clauses
    from pytest_gittrix.conformance.worktrees.findings import system_report
    from pytest_gittrix.conformance.worktrees.profile import run_worktree_profile
    from pytest_gittrix.conformance.worktrees.text import report_text
    from pytest_gittrix.testing.systems.driver import SearchBudget

    words = [*options.family, *options.clause, *(FAST if options.fast else ()), *filter(None, [options.clauses])]
    clauses = select_worktree_clauses(words)
    if options.list:
        rows: list[tuple[str, ...]] = [(one.code, first_set(one.code), one.promise, ", ".join(one.needs)) for one in clauses]
        listed = [
            {"code": one.code, "promise": one.promise, "why": one.why, "needs": [*one.needs], "since": first_set(one.code)}
            for one in clauses
        ]
        return CommandResult(listed, Table(("clause", "since", "promise", "needs"), rows, elastic="promise", styles={}))
    _check_reports(options.report)
    baseline = read_baseline(options.against) if options.against else None
    number = None if options.workers in (None, "auto") else int(options.workers)
    search = SearchBudget(options.crash or 0.0, options.race or 0.0)
    report = run_worktree_profile(
        read_tool(options.worktree), clauses, workers=number, search=search, progress=None if options.json else _line_by_line(clauses)
    )
    system = system_report(report, options.worktree)
    notes = tuple(write_files([system], map(Path, options.report)))
    data = to_json([system]) | {
        "version": report.version,
        "git": report.git,
        "seconds": round(report.seconds, 1),
        "offline": report.offline,
    }
    if not report.judged:
        notes = (*notes, "No clause could be judged, so this run says nothing about the tool. See that its commands run by hand.")
    if baseline is None or not report.judged:
        failed = report.broken or not report.judged or system.defect
        return CommandResult(data, report_text(report, options.worktree), notes, status=BROKEN if failed else 0)
    return _compared(baseline, data)


def _check_reports(files: Sequence[str]) -> None:
    """Refuse files of no kind of report."""
    from pytest_gittrix.conformance.reports.files import WRITERS
    from pytest_gittrix.errors import InvalidInput

    for file in files:
        if Path(file).suffix not in WRITERS:
            raise InvalidInput(f"{file} is no kind of report.", fix=f"Its name ends with one of {', '.join(WRITERS)}.")


def _agent(options: Namespace) -> CommandResult:
    """Put a coding agent to the clauses of its profile."""
    from pytest_gittrix.conformance.base.outcome import Status
    from pytest_gittrix.conformance.coding_agents.clauses import select_agent_clauses
    from pytest_gittrix.conformance.coding_agents.description import read_agent
    from pytest_gittrix.conformance.coding_agents.profile import run_agent_profile
    from pytest_gittrix.conformance.progress import ClauseLines
    from pytest_gittrix.conformance.reports.baseline import read_baseline
    from pytest_gittrix.conformance.reports.files import write_files
    from pytest_gittrix.conformance.reports.json_report import to_json
    from pytest_gittrix.conformance.reports.text_report import to_text

    clauses = select_agent_clauses([*options.family, *options.clause])
    if options.list:
        rows: list[tuple[str, ...]] = [(one.code, one.promise) for one in clauses]
        listed = [{"code": one.code, "promise": one.promise, "why": one.why} for one in clauses]
        return CommandResult(listed, Table(("clause", "promise"), rows, elastic="promise", styles={}))
    _check_reports(options.report)
    baseline = read_baseline(options.against) if options.against else None
    lines = None if options.json or sys.stderr is None else ClauseLines(sys.stderr, terminal=sys.stderr.isatty())

    def ended(one: ClauseOutcome) -> None:
        if lines is not None:
            lines.ended(one.clause.code, one.status, one.clause.promise, len(clauses))

    system = run_agent_profile(read_agent(options.agent), clauses, description=options.agent, progress=ended)
    notes = tuple(write_files([system], map(Path, options.report)))
    data = to_json([system])
    unjudged = system.of(Status.NO_VERDICT)
    for reason in dict.fromkeys(one.reason for one in unjudged):
        codes = ", ".join(one.clause.code for one in unjudged if one.reason == reason)
        notes = (*notes, f"no verdict on {codes}: {reason}")
    judged = len(unjudged) < len(clauses)
    if not judged:
        notes = (*notes, "No clause could be judged, so this run says nothing about the agent. See that its command runs by hand.")
    if baseline is None or not judged:
        failed = system.of(Status.BROKEN) or not judged
        return CommandResult(data, to_text([system]), notes, status=BROKEN if failed else 0)
    return _compared(baseline, data)


def _line_by_line(clauses: Sequence[WorktreeClause]) -> Callable[[ClauseFinding, int], None] | None:
    """What writes a line for each finding on standard error; None where there is none."""
    from pytest_gittrix.conformance.base.outcome import Status
    from pytest_gittrix.conformance.progress import ClauseLines

    if sys.stderr is None:
        return None
    lines = ClauseLines(sys.stderr, terminal=sys.stderr.isatty())
    promises = {one.code: one.promise for one in clauses}
    return lambda found, total: lines.ended(found.clause, Status(found.verdict), promises[found.clause], total)


def _compared(baseline: Mapping[str, Any], report: dict[str, Any]) -> CommandResult:
    """What is new since an earlier report; that alone fails the run."""
    from pytest_gittrix.conformance.reports.baseline import compare

    compared = compare(baseline, report)
    text = "".join(f"{line}\n" for line in compared.lines())
    failed = bool(compared.new) or any(system["defect"] for system in report["systems"])
    return CommandResult(report | {"baseline": asdict(compared)}, text, status=BROKEN if failed else 0)


def _data(clause: Clause) -> dict[str, Any]:
    return {"code": clause.code, "promise": clause.promise, "why": clause.why, "needs": sorted(clause.needs), "since": clause.since}


def _table(clauses: list[Clause]) -> Table:
    rows: list[tuple[str, ...]] = [(clause.code, clause.since, clause.promise, ", ".join(sorted(clause.needs))) for clause in clauses]
    return Table(("clause", "since", "promise", "needs"), rows, elastic="promise", styles={})
