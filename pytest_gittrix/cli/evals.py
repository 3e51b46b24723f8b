"""``gittrix eval``: its verbs and their options. ``evals_output`` prints the results.

The engine and ``evals`` are loaded only when a verb runs.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.cli import evals_report, evals_suites
from pytest_gittrix.commands.engine_context import limit_option
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.values import age, unmarked

if TYPE_CHECKING:
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.runs.options import Options

EXAMPLES = {
    "eval run": [
        'gittrix eval run evals/ --agent "./agent.sh" --out runs/a',
        "gittrix eval run evals/ --agent gold --seed 7 --epochs 5 -n 4",
        'gittrix eval run evals/ --agent "./agent.sh" --out runs/a --resume',
        "gittrix eval run evals/ --replay runs/a --out runs/replayed",
    ],
    "eval show": ["gittrix eval show runs/a", "gittrix eval show runs/a fix-add --epoch 2"],
    "eval compare": ["gittrix eval compare runs/a runs/b", "gittrix eval compare runs/a runs/b --html compare.html"],
    "eval replay": ["gittrix eval replay runs/a fix-add", "gittrix eval replay runs/a fix-add --keep out/"],
    "eval check-determinism": ['gittrix eval check-determinism evals/ --agent "./agent.sh"'],
    "eval merge": ["gittrix eval merge runs/c1 runs/c2 --out runs/c"],
    "eval prune": ["gittrix eval prune runs/ --older 7d --dry-run"],
    "eval du": ["gittrix eval du runs/"],
    "eval report": evals_report.EXAMPLES,
    **evals_suites.EXAMPLES,
}
LEVELS = ("auto", "off", "guard", "jail")

_INCOMPLETE, _INTERRUPTED = 1, 130


def arguments(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare the verbs.

    Args:
        verb: makes a verb from its name, its command and what it does.
    """
    running = verb("run", run, "run an agent on every case of a suite, each in a session of its own")
    _suite_arguments(running)
    _run_arguments(running)
    showing = verb("show", show, "show a run, or one sample of it: events, diff, conflict")
    _run_directory(showing)
    showing.add_argument("id", nargs="?", metavar="ID", help="of a case; the whole run by default")
    _epoch(showing)
    evals_report.arguments(verb("report", evals_report.report, "write the page of a run, to look at in a browser"))
    compared = verb("compare", compare, "compare two runs: changed outcomes, rates, and the first events that differ")
    compared.add_argument("a", type=Path, metavar="A", help="the directory of a run")
    compared.add_argument("b", type=Path, metavar="B", help="the directory of another")
    evals_report.comparison_argument(compared)
    replayed = verb("replay", replay, "repeat a recorded sample, and check that the result is the same")
    _run_directory(replayed)
    replayed.add_argument("id", metavar="ID", help="of a case")
    _epoch(replayed)
    replayed.add_argument("--suite", type=Path, metavar="SUITE", help="the suite; by default its path at the time of the run")
    replayed.add_argument("--keep", type=Path, metavar="DIR", help="put the files as they were in the end into a new directory")
    replayed.add_argument("--lenient", action="store_true", help="repeat the actions, and compare only the final result")
    twice = verb("check-determinism", check_determinism, "run a suite twice, and name the first event that differs")
    _suite_arguments(twice)
    merged = verb("merge", merge, "put the shards of a run together")
    merged.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the directory of a shard's run")
    merged.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to keep the whole run")
    pruned = verb("prune", prune, "remove old runs, and what killed runs left")
    pruned.add_argument("directory", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="with runs in it (%(default)s)")
    pruned.add_argument("--older", type=age, required=True, metavar="AGE", help="those begun longer ago, such as 7d")
    pruned.add_argument("--dry-run", action="store_true", help="remove nothing, only report")
    _scratch(pruned)
    used = verb("du", du, "how much disk runs take, by what is in them")
    used.add_argument(
        "directory", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="a run, or with runs in it (%(default)s)"
    )

    evals_suites.arguments(verb)


def _suite_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("suite", type=Path, metavar="SUITE", help="directory with a suite.toml")
    verb.add_argument("--agent", default="", metavar="CMD", help="a command; or gold, nop, acp:CMD, or python:module:function")
    verb.add_argument("--out", type=Path, metavar="DIR", help="where to keep the run; runs/ and the suite's name by default")
    verb.add_argument("--seed", type=_whole, metavar="N", help="the seed of everything random; 0 by default")
    verb.add_argument("--epochs", type=_count, metavar="K", help="how often each case is run; once by default")
    verb.add_argument("-n", "--workers", type=_count, default=1, metavar="N", help="how many samples at a time (%(default)s)")
    verb.add_argument("--filter", action="append", default=[], metavar="PATTERN", help="only cases whose id fits; repeatable")
    verb.add_argument("--timeout", type=_milliseconds, metavar="TIME", help="for each agent, such as 90s; the cases' own by default")
    verb.add_argument("--confine", choices=LEVELS, help="how programs are confined; the suite's by default")
    limit_option(verb, "of each program; repeatable")
    verb.add_argument(
        "--pass-env", action="append", default=[], metavar="NAME", help="a variable that is passed on to the agent; repeatable"
    )
    verb.add_argument(
        "--executor", default="local", metavar="NAME", help="what runs the samples: local, dask or dask:ADDRESS (%(default)s)"
    )
    verb.add_argument("--retries", type=_whole, default=1, metavar="N", help="how often infra_error is tried again (%(default)s)")
    _scratch(verb)


def _run_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--resume", action="store_true", help="continue the existing run")
    verb.add_argument("--from", dest="reuse", type=Path, metavar="RUN", help="take over samples of a run whose inputs are the same")
    verb.add_argument(
        "--trust-agent", action="store_true", help="take results over although parts of the agent, such as a program, cannot be known"
    )
    verb.add_argument("--shard", type=_shard, metavar="I/N", help="only this part of the samples, such as 3/8")
    verb.add_argument("--record", action="store_true", help="write down the tree after each step, for a strict replay")
    verb.add_argument("--replay", type=Path, metavar="RUN", help="repeat the recorded run; with --agent, compare the agent with it")
    verb.add_argument("--lenient", action="store_true", help="compare only the actions of a replay with the record, not their results")
    verb.add_argument("--fail-under", type=_percent, metavar="PERCENT", help="exit with 1 if fewer samples pass")
    evals_report.run_argument(verb)


def _run_directory(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run_directory", type=Path, metavar="RUN", help="the directory of a run")


def _epoch(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--epoch", type=_whole, default=0, metavar="K", help="which repetition, from 0 (%(default)s)")


def _scratch(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--scratch", type=Path, metavar="DIR", help="where samples work; among temporary files by default")


# Commands --------------------------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> CommandResult:
    """Run a suite."""
    from pytest_gittrix.cli.evals_output import run_table, watching
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.results.summary import rates
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
    )
    try:
        with watching(suite.name, wanted.out, quiet=options.json) as watch:
            summary = run_suite(suite, wanted, factory=factory_of(options.executor), watch=watch)
    except KeyboardInterrupt:
        done = f"What was done is in {wanted.out}; go on with --resume."
        return CommandResult({"run": str(wanted.out), "interrupted": True}, "", (f"interrupted. {done}",), _INTERRUPTED)
    left_out = summary.counts["infra_error"]
    passed = rates(summary.records).passed
    short = options.fail_under is not None and (passed is None or passed.value * 100 < options.fail_under)
    page, why_not = evals_report.page_of_run(summary.store, options)
    notes = [*why_not]
    if left_out:
        notes.append(f"{left_out} samples ended in infra_error, which says nothing about the agent; run again with --resume.")
    broken = all(record.outcome == "agent_error" for record in summary.records)
    if broken and summary.records:
        notes.append("The agent failed in every sample, so this run says nothing about its work.")
    if summary.store.is_mixed:
        notes.append("The agent changed while the run went on: nobody knows which samples are of which agent. Run again into a new --out.")
    if short:
        notes.append(f"fewer than {options.fail_under:g} % passed.")
    unusable = left_out or broken or summary.store.is_mixed
    table = f"{run_table(summary)}report {page}\n" if page else run_table(summary)
    return CommandResult({**summary.to_json(), "report": page}, table, tuple(notes), _INCOMPLETE if unusable or short else 0)


def show(options: argparse.Namespace) -> CommandResult:
    """Show a run or a sample."""
    from pytest_gittrix.cli.evals_output import notes_on, sample_data, sample_text, store_data, store_table
    from pytest_gittrix.evals.results.store import RunStore

    store = RunStore.open(options.run_directory)
    if options.id is None:
        return CommandResult(store_data(store), store_table(store), notes_on(store))
    record = store.sample(options.id, options.epoch)
    return CommandResult(sample_data(store, record), sample_text(store, record))


def compare(options: argparse.Namespace) -> CommandResult:
    """Compare two runs."""
    from pytest_gittrix.cli.evals_output import comparison_text
    from pytest_gittrix.evals.results.compare import compare as compare_runs
    from pytest_gittrix.evals.results.store import RunStore

    found = compare_runs(RunStore.open(options.a), RunStore.open(options.b))
    if options.html is None:
        return CommandResult(found.to_json(), comparison_text(found), status=found.code)
    page = evals_report.page_of_comparison(found, options.html)
    return CommandResult({**found.to_json(), "report": page}, f"{comparison_text(found)}report {page}\n", status=found.code)


def replay(options: argparse.Namespace) -> CommandResult:
    """Replay a sample."""
    from pytest_gittrix.cli.evals_output import pair_text
    from pytest_gittrix.evals.results.store import RunStore
    from pytest_gittrix.evals.runs.rerun import keep_files, replay_sample
    from pytest_gittrix.os_level.remove_tree import scratch_directory

    store = RunStore.open(options.run_directory)
    with scratch_directory("gittrix-replay-") as scratch:
        replayed, pair = replay_sample(store, options.id, options.epoch, Path(scratch), suite=options.suite, lenient=options.lenient)
        if options.keep is not None:
            keep_files(replayed, pair.b, options.keep)
    data = {"id": pair.id, "epoch": pair.epoch, "difference": pair.difference, "outcome": pair.b.outcome if pair.b else None}
    return CommandResult(data, pair_text(pair), status=0 if pair.difference == "same" else 1)


def check_determinism(options: argparse.Namespace) -> CommandResult:
    """Run a suite twice."""
    from pytest_gittrix.cli.evals_output import comparison_text, watching
    from pytest_gittrix.evals.inputs.suite import Suite
    from pytest_gittrix.evals.runs.determinism import check_determinism as check
    from pytest_gittrix.evals.runs.executors import factory_of
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


def merge(options: argparse.Namespace) -> CommandResult:
    """Merge shards."""
    from pytest_gittrix.cli.evals_output import notes_on, store_data, store_table
    from pytest_gittrix.evals.runs.shards import merge as merge_runs

    store = merge_runs(options.runs, options.out)
    return CommandResult(store_data(store), store_table(store), notes_on(store))


def prune(options: argparse.Namespace) -> CommandResult:
    """Remove old runs."""
    from pytest_gittrix.cli.evals_output import usage_table
    from pytest_gittrix.evals.results.disk_usage import prune as prune_runs
    from pytest_gittrix.evals.runs.work_dirs import scratch_root, sweep

    older: timedelta = options.older
    removed = prune_runs(options.directory, older=older, dry_run=options.dry_run)
    swept = () if options.dry_run else sweep(scratch_root(options.scratch)).removed
    data = {"removed": [str(run.path) for run in removed], "dry_run": options.dry_run, "swept": list(swept)}
    return CommandResult(data, usage_table(removed))


def du(options: argparse.Namespace) -> CommandResult:
    """Show how much disk runs take."""
    from pytest_gittrix.cli.evals_output import usage_table
    from pytest_gittrix.evals.results.disk_usage import runs_below, usage

    found = [usage(store) for store in runs_below(options.directory)]
    data = [{"run": str(run.path), "samples": run.samples, "bytes": run.total, "parts": run.parts} for run in found]
    return CommandResult(data, usage_table(found))


def _options(suite: Suite, options: argparse.Namespace) -> Options:
    from pytest_gittrix.confine.limits import check_limits
    from pytest_gittrix.evals.runs.agents import agent_of, require_program
    from pytest_gittrix.evals.runs.options import Options

    agent = unmarked(options.agent)
    if agent:
        require_program(agent_of(agent))
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
    )


# Values ----------------------------------------------------------------------------------------------------------------------------


def _whole(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0.")


def _count(text: str) -> int:
    if re.fullmatch(r"[1-9][0-9]{0,5}", text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1.")


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
