"""``gittrix eval``: its verbs and their options. ``evals_output`` prints the results.

The engine and ``evals`` are loaded only when a verb runs.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.cli import evals_report, evals_suites
from pytest_gittrix.commands.declaration import DRY_RUN, Group, arg, limit_of, verb
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.values import age, count, number, unmarked
from pytest_gittrix.os_level.command import LEVELS

if TYPE_CHECKING:
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.runs.options import Options

_INCOMPLETE, _INTERRUPTED = 1, 130


def _percent(text: str) -> float:
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]+)?", text) and float(text) <= 100:
        return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no percentage: write a number from 0 to 100.")


def _milliseconds(text: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,8})(ms|s|m|h)", text)
    if match is not None:
        units: dict[str, Any] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
        return int(match[1]) * int(units[match[2]])
    raise argparse.ArgumentTypeError(f"{text!r} is no time: write 500ms, 90s, 2m or 1h.")


def _shard(text: str) -> Any:
    from pytest_gittrix.errors import InvalidInput
    from pytest_gittrix.evals.runs.shards import Shard

    try:
        return Shard.parse(text)
    except InvalidInput as problem:
        raise argparse.ArgumentTypeError(f"{problem.fact} {problem.fix}") from None


_REACHED = "model:anthropic, host:port, or all for the machine's network"
_RUN = arg("run_directory", type=Path, metavar="RUN", help="the directory of a run")
_EPOCH = arg("--epoch", type=number, default=0, metavar="K", help="which repetition, from 0 (%(default)s)")
_SCRATCH = arg("--scratch", type=Path, metavar="DIR", help="where samples work; among temporary files by default")
_SUITE = (
    arg("suite", type=Path, metavar="SUITE", help="directory with a suite.toml"),
    arg("--agent", default="", metavar="CMD", help="a command; or gold, nop, acp:CMD, or python:module:function"),
    arg("--out", type=Path, metavar="DIR", help="where to keep the run; runs/ and the suite's name by default"),
    arg("--seed", type=number, metavar="N", help="the seed of everything random; 0 by default"),
    arg("--epochs", type=count, metavar="K", help="how often each case is run; once by default"),
    arg("-n", "--workers", type=count, default=1, metavar="N", help="how many samples at a time (%(default)s)"),
    arg("--filter", action="append", default=[], metavar="PATTERN", help="only cases whose id fits; repeatable"),
    arg("--timeout", type=_milliseconds, metavar="TIME", help="for each agent, such as 90s; the cases' own by default"),
    arg("--confine", choices=LEVELS, help="how programs are confined; the suite's by default"),
    limit_of("of each program; repeatable"),
    arg(
        "--tape",
        nargs="+",
        metavar=("MODE", "RUN"),
        help="record the talk of agents with their models into the run, replay that of RUN, or ask them live; write the suite first",
    ),
    arg("--prices", type=Path, metavar="FILE", help="what models cost, so that the run says what it cost"),
    arg(
        "--max-tokens", type=count, metavar="N", help="the tokens that an agent may use of its model in a sample; the cases' own by default"
    ),
    arg("--max-cost", metavar="AMOUNT", help="what its model may cost in a sample, by --prices"),
    arg("--max-exchanges", type=count, metavar="N", help="how often it may ask its model in a sample"),
    arg("--network", action="append", default=[], metavar="WHAT", help=f"what the agent reaches: {_REACHED}; repeatable"),
    arg("--readable", action="append", default=[], metavar="DIR", help="a directory or file that the agent may read; repeatable"),
    arg("--pass-env", action="append", default=[], metavar="NAME", help="a variable that is passed on to the agent; repeatable"),
    arg("--executor", default="local", metavar="NAME", help="what runs the samples: local, dask or dask:ADDRESS (%(default)s)"),
    arg("--retries", type=number, default=1, metavar="N", help="how often infra_error is tried again (%(default)s)"),
    _SCRATCH,
)


# Commands --------------------------------------------------------------------------------------------------------------------------


@verb(
    *_SUITE,
    arg("--resume", action="store_true", help="continue the existing run"),
    arg("--from", dest="reuse", type=Path, metavar="RUN", help="take over samples of a run whose inputs are the same"),
    arg("--trust-agent", action="store_true", help="take results over although parts of the agent, such as a program, cannot be known"),
    arg("--shard", type=_shard, metavar="I/N", help="only this part of the samples, such as 3/8"),
    arg("--record", action="store_true", help="write down the tree after each step, for a strict replay"),
    arg("--replay", type=Path, metavar="RUN", help="repeat the recorded run; with --agent, compare the agent with it"),
    arg("--lenient", action="store_true", help="compare only the actions of a replay with the record, not their results"),
    arg(
        "--count-infra-errors",
        action="store_true",
        help="count samples that ended in infra_error as not passed, instead of leaving them out",
    ),
    arg("--fail-under", type=_percent, metavar="PERCENT", help="exit with 1 if fewer samples pass"),
    evals_report.AT_LEAST,
    arg("--no-report", action="store_true", help="write no report.html at the end"),
    examples=(
        'gittrix eval run evals/ --agent "./agent.sh" --out runs/a',
        'gittrix eval run evals/ --agent "./agent.sh" --judge-at-least canary --fail-under 80',
        "gittrix eval run evals/ --agent gold --seed 7 --epochs 5 -n 4",
        'gittrix eval run evals/ --agent "./agent.sh" --out runs/a --resume',
        "gittrix eval run evals/ --replay runs/a --out runs/replayed",
    ),
)
def run(options: argparse.Namespace) -> CommandResult:
    """Run an agent on every case of a suite, each in a session of its own."""
    from pytest_gittrix.cli.evals_output import run_table, short_notes, watching
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.runs.executors import factory_of
    from pytest_gittrix.evals.runs.run import run_suite

    suite = Suite.load(options.suite)
    wanted = replace(
        _options(suite, options),
        resume=options.resume,
        reuse=options.reuse,
        shard=options.shard,
        record=options.record,
        replay=options.replay,
        lenient=options.lenient,
        trust_agent=options.trust_agent,
        count_infra_errors=options.count_infra_errors,
    )
    try:
        with watching(suite.name, wanted.out, quiet=options.json) as watch:
            summary = replace(run_suite(suite, wanted, factory=factory_of(options.executor), watch=watch), at_least=options.judge_at_least)
    except KeyboardInterrupt:
        done = f"What was done is in {wanted.out}; go on with --resume."
        return CommandResult({"run": str(wanted.out), "interrupted": True}, "", (f"interrupted. {done}",), _INTERRUPTED)
    left_out = summary.counts["infra_error"]
    passed = summary.rates.passed
    short = options.fail_under is not None and (passed is None or passed.value * 100 < options.fail_under)
    page, why_not = evals_report.page_of_run(summary.store, options)
    notes = [*why_not, *evals_report.notes_on_models(suite, wanted, summary)]
    if left_out:
        counted = "; they count as not passed" if options.count_infra_errors else ""
        notes.append(f"{left_out} samples ended in infra_error, which says nothing about the agent{counted}; run again with --resume.")
    broken = all(record.outcome == "agent_error" for record in summary.records)
    if broken and summary.records:
        notes.append("The agent failed in every sample, so this run says nothing about its work.")
    if summary.store.is_mixed:
        notes.append("The agent changed during the run: which samples are of which agent is unknown. Run again into a new --out.")
    notes += short_notes(summary.short, options.judge_at_least)
    if short:
        notes.append(f"fewer than {options.fail_under:g} % passed.")
    unusable = left_out or broken or summary.store.is_mixed or summary.short
    table = f"{run_table(summary)}report {page}\n" if page else run_table(summary)
    return CommandResult({**summary.to_json(), "report": page}, table, tuple(notes), _INCOMPLETE if unusable or short else 0)


@verb(
    _RUN,
    arg("id", nargs="?", metavar="ID", help="of a case; the whole run by default"),
    _EPOCH,
    evals_report.AT_LEAST,
    examples=("gittrix eval show runs/a", "gittrix eval show runs/a fix-add --epoch 2", "gittrix eval show runs/a --judge-at-least canary"),
)
def show(options: argparse.Namespace) -> CommandResult:
    """Show a run, or one sample of it: events, diff, conflict."""
    from pytest_gittrix.cli.evals_output import notes_on, sample_data, sample_text, short_notes, store_data, store_table
    from pytest_gittrix.evals.results.grades import held_to, short_of
    from pytest_gittrix.evals.results.store import RunStore

    store, bar = RunStore.open(options.run_directory), options.judge_at_least
    if options.id is None:
        short = short_of(store.records(), bar)
        notes = (*notes_on(store), *short_notes(short, bar))
        return CommandResult(store_data(store, bar), store_table(store, bar), notes, _INCOMPLETE if short else 0)
    record = store.sample(options.id, options.epoch)
    counted = held_to(record, bar)
    return CommandResult(sample_data(store, counted), sample_text(store, counted), status=_INCOMPLETE if counted != record else 0)


@verb(
    arg("a", type=Path, metavar="A", help="the directory of a run"),
    arg("b", type=Path, metavar="B", help="the directory of another"),
    arg("--html", type=Path, metavar="FILE", help="write a page of the comparison too, the worst regressions first"),
    evals_report.AT_LEAST,
    examples=("gittrix eval compare runs/a runs/b", "gittrix eval compare runs/a runs/b --html compare.html"),
)
def compare(options: argparse.Namespace) -> CommandResult:
    """Compare two runs: changed outcomes, rates, and the first events that differ."""
    from pytest_gittrix.cli.evals_output import comparison_text
    from pytest_gittrix.evals.results.compare import compare as compare_runs
    from pytest_gittrix.evals.results.store import RunStore

    found = compare_runs(RunStore.open(options.a), RunStore.open(options.b), options.judge_at_least)
    if options.html is None:
        return CommandResult(found.to_json(), comparison_text(found), status=found.code)
    page = evals_report.page_of_comparison(found, options.html)
    return CommandResult({**found.to_json(), "report": page}, f"{comparison_text(found)}report {page}\n", status=found.code)


@verb(
    _RUN,
    arg("id", metavar="ID", help="of a case"),
    _EPOCH,
    arg("--suite", type=Path, metavar="SUITE", help="the suite; by default its path at the time of the run"),
    arg("--keep", type=Path, metavar="DIR", help="put the files as they were in the end into a new directory"),
    arg("--lenient", action="store_true", help="repeat the actions, and compare only the final result"),
    examples=("gittrix eval replay runs/a fix-add", "gittrix eval replay runs/a fix-add --keep out/"),
)
def replay(options: argparse.Namespace) -> CommandResult:
    """Repeat a recorded sample, and check that the result is the same."""
    from pytest_gittrix.cli.evals_output import pair_text
    from pytest_gittrix.evals.results.store import RunStore
    from pytest_gittrix.evals.verification.rerun import keep_files, replay_sample
    from pytest_gittrix.os_level.remove_tree import scratch_directory

    store = RunStore.open(options.run_directory)
    with scratch_directory("gittrix-replay-") as scratch:
        replayed, pair = replay_sample(store, options.id, options.epoch, Path(scratch), suite=options.suite, lenient=options.lenient)
        if options.keep is not None:
            keep_files(replayed, pair.b, options.keep)
    data = {"id": pair.id, "epoch": pair.epoch, "difference": pair.difference, "outcome": pair.b.outcome if pair.b else None}
    return CommandResult(data, pair_text(pair), status=0 if pair.difference == "same" else 1)


@verb(
    _RUN,
    arg("--suite", type=Path, required=True, metavar="SUITE", help="the suite with the checks as they are now"),
    arg("--out", type=Path, metavar="DIR", help="where to keep the new verdicts; the run's name and -rescored by default"),
    arg("--filter", action="append", default=[], metavar="PATTERN", help="only cases whose id fits; repeatable"),
    arg("-n", "--workers", type=count, default=1, metavar="N", help="how many samples at a time (%(default)s)"),
    arg("--confine", choices=LEVELS, help="how programs of checks are confined; as in the run by default"),
    arg("--resume", action="store_true", help="continue judging where it was stopped"),
    evals_report.AT_LEAST,
    arg("--no-report", action="store_true", help="write no report.html at the end"),
    _SCRATCH,
    examples=("gittrix eval rescore runs/a --suite evals/", "gittrix eval rescore runs/a --suite evals/ --out runs/a-strict -n 4"),
)
def rescore(options: argparse.Namespace) -> CommandResult:
    """Judge the kept results of a run by changed checks, and list the verdicts that changed; no agent runs."""
    from pytest_gittrix.cli.evals_output import rescoring_text, short_notes, watching
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.runs.options import Options
    from pytest_gittrix.evals.verification.rescore import default_out, rescore_run

    suite, out = Suite.load(options.suite), options.out or default_out(options.run_directory)
    wanted = Options("", out, workers=options.workers, only=tuple(options.filter), confine=options.confine)
    wanted = replace(wanted, resume=options.resume, scratch=options.scratch)
    with watching(f"{suite.name}, judged again", quiet=options.json) as watch:
        found = rescore_run(options.run_directory, suite, wanted, watch=watch)
    found = replace(found, summary=replace(found.summary, at_least=options.judge_at_least))
    page, notes = evals_report.page_of_run(found.summary.store, options)
    left_out, short = found.summary.counts["infra_error"], found.summary.short
    notes += (f"{left_out} samples are in infra_error: judge again with --resume.",) if left_out else ()
    text = rescoring_text(found) + (f"report {page}\n" if page else "")
    status = _INCOMPLETE if left_out or short else 0
    return CommandResult({**found.to_json(), "report": page}, text, (*notes, *short_notes(short, options.judge_at_least)), status)


@verb(*_SUITE, examples=('gittrix eval check-determinism evals/ --agent "./agent.sh"',))
def check_determinism(options: argparse.Namespace) -> CommandResult:
    """Run a suite twice, and name the first event that differs."""
    from pytest_gittrix.cli.evals_output import comparison_text, watching
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.runs.executors import factory_of
    from pytest_gittrix.evals.verification.determinism import check_determinism as check
    from pytest_gittrix.os_level.remove_tree import scratch_directory

    suite = Suite.load(options.suite)
    with scratch_directory("gittrix-twice-") as scratch:
        wanted = _options(suite, options)
        if options.out is None:
            wanted = replace(wanted, out=Path(scratch))
        with watching(f"{suite.name}, twice", quiet=options.json) as watch:
            found = check(suite, wanted, factory=factory_of(options.executor), watch=watch)
        unknown = sum("infra_error" in (pair.a and pair.a.outcome, pair.b and pair.b.outcome) for pair in found.pairs)
        notes = [f"{unknown} samples ended in infra_error, which says nothing about the agent."] if unknown else []
        if not found.code:
            notes.append("Nothing differs in two runs. That is no proof: a third one may differ.")
        return CommandResult(
            {**found.to_json(), "unknown": unknown}, comparison_text(found), tuple(notes), status=1 if found.code or unknown else 0
        )


@verb(
    arg("runs", nargs="+", type=Path, metavar="RUN", help="the directory of a shard's run"),
    arg("--out", type=Path, required=True, metavar="DIR", help="where to keep the whole run"),
    examples=("gittrix eval merge runs/c1 runs/c2 --out runs/c",),
)
def merge(options: argparse.Namespace) -> CommandResult:
    """Put the shards of a run together."""
    from pytest_gittrix.cli.evals_output import notes_on, store_data, store_table
    from pytest_gittrix.evals.runs.shards import merge as merge_runs

    store = merge_runs(options.runs, options.out)
    return CommandResult(store_data(store), store_table(store), notes_on(store))


@verb(
    arg("directory", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="with runs in it (%(default)s)"),
    arg("--older", type=age, required=True, metavar="AGE", help="those begun longer ago, such as 7d"),
    DRY_RUN,
    _SCRATCH,
    examples=("gittrix eval prune runs/ --older 7d --dry-run",),
)
def prune(options: argparse.Namespace) -> CommandResult:
    """Remove old runs, and what killed runs left."""
    from pytest_gittrix.cli.evals_output import usage_table
    from pytest_gittrix.evals.results.disk_usage import prune as prune_runs
    from pytest_gittrix.evals.runs.work_dirs import scratch_root, sweep

    older: timedelta = options.older
    removed = prune_runs(options.directory, older=older, dry_run=options.dry_run)
    swept = () if options.dry_run else sweep(scratch_root(options.scratch)).removed
    data = {"removed": [str(run.path) for run in removed], "dry_run": options.dry_run, "swept": list(swept)}
    return CommandResult(data, usage_table(removed))


@verb(
    arg("directory", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="a run, or with runs in it (%(default)s)"),
    examples=("gittrix eval du runs/",),
)
def du(options: argparse.Namespace) -> CommandResult:
    """How much disk runs take, by what is in them."""
    from pytest_gittrix.cli.evals_output import usage_table
    from pytest_gittrix.evals.results.disk_usage import runs_below, usage

    found = [usage(store) for store in runs_below(options.directory)]
    data = [{"run": str(run.path), "samples": run.samples, "bytes": run.total, "parts": run.parts} for run in found]
    return CommandResult(data, usage_table(found))


def _options(suite: Suite, options: argparse.Namespace) -> Options:
    from pytest_gittrix.confine.limits import check_limits
    from pytest_gittrix.evals.models.plan import plan_of
    from pytest_gittrix.evals.runs.agents import agent_of, require_program
    from pytest_gittrix.evals.runs.options import Options
    from pytest_gittrix.evals.spending.model_limits import ModelLimits
    from pytest_gittrix.evals.spending.prices import Prices

    agent = unmarked(options.agent)
    if agent:
        require_program(agent_of(agent))
    prices = Prices.load(options.prices) if options.prices is not None else None
    return Options(
        agent=agent,
        out=options.out if options.out is not None else Path("runs", suite.name),
        seed=options.seed,
        epochs=options.epochs,
        workers=options.workers,
        only=tuple(options.filter),
        timeout_ms=options.timeout,
        confine=options.confine,
        limits=check_limits(options.limit),
        passed=tuple(options.pass_env),
        retries=options.retries,
        scratch=options.scratch,
        network=tuple(options.network) if options.network != ["all"] else "all",
        readable=tuple(map(Path, options.readable)),
        model=plan_of(options.tape, prices),
        prices=prices,
        model_limits=ModelLimits(options.max_tokens, options.max_cost, options.max_exchanges),
    )


EVAL = Group(
    "eval",
    "",
    {
        "run": (run, replay, rescore, check_determinism),
        "look": (show, evals_report.report, compare),
        "keep": (merge, prune, du),
        "make suites": evals_suites.VERBS,
    },
)
