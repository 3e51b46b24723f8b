"""The end of a run with evals: what is counted, shown, written and decided. Only the controller does this, from the reports of all workers.

Must not know how samples are run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import CapabilityMissing, GittrixError
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record, digest, tally
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.summary import Rates, rates
from pytest_gittrix.evals.runs.work_dirs import scratch_root, sweep
from pytest_gittrix.plugin.evals.github import SampleRow, append_summary, errors_of
from pytest_gittrix.plugin.evals.nodes import BY_OUTCOME, JUDGED, KEY, RUN

GITHUB: Final = "GITHUB_STEP_SUMMARY"

_SHORT: Final = 12


@dataclass(frozen=True)
class EvalRun:
    """A run, as far as the tests of this session had to do with it.

    Attributes:
        store: the run.
        shown: its directory, from the root directory of the tests.
        records: of the samples of these tests, by id and epoch.
        rates: of them.
        missing: samples of these tests that have no record.
        places: file and line of the test of each sample, by key.
        fail_under: percentage that must pass, if one was given.
    """

    store: RunStore
    shown: str
    records: tuple[Record, ...]
    rates: Rates
    missing: int
    places: dict[str, tuple[str, int]]
    fail_under: float | None = None

    @property
    def digest(self) -> str:
        """Of the results."""
        return digest(self.records)

    @property
    def counts(self) -> dict[str, int]:
        """Records by outcome, those that are there."""
        return {outcome: count for outcome, count in tally(self.records).items() if count}

    @property
    def percent(self) -> float | None:
        """Percentage that passed, of the samples that say something about the agent."""
        return None if self.rates.passed is None else self.rates.passed.value * 100

    @property
    def is_short(self) -> bool:
        """Whether fewer passed than must."""
        return self.fail_under is not None and (self.percent is None or self.percent < self.fail_under)

    @property
    def is_whole(self) -> bool:
        """Whether every sample says something about the agent."""
        return not self.missing and not self.rates.left_out


def runs_of(reports: Iterable[Any], root: Path, fail_under: float | None) -> list[EvalRun]:
    """The runs that reports lead to, by their directories.

    Args:
        reports: pytest's, of all phases.
        root: what paths count from.
        fail_under: percentage that must pass.
    """
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for report in reports:
        properties = dict(report.user_properties)
        if RUN in properties and KEY in properties:
            path, line, _ = report.location
            found.setdefault(str(properties[RUN]), {})[str(properties[KEY])] = (str(path), (line or 0) + 1)
    return [_ended(shown, root, places, fail_under) for shown, places in sorted(found.items())]


def _ended(shown: str, root: Path, places: dict[str, tuple[str, int]], fail_under: float | None) -> EvalRun:
    store = RunStore(root / shown)
    records = []
    for key in places:
        with suppress(GittrixError):
            records.append(store.record(key))
    ordered = tuple(sorted(records, key=lambda record: (record.id, record.epoch)))
    return EvalRun(store, shown, ordered, rates(ordered), len(places) - len(ordered), places, fail_under)


def properties(run: EvalRun) -> dict[str, str]:
    """What JUnit has of a run as a whole."""
    told = {"digest": run.digest, "directory": run.shown, "samples": str(len(run.records))}
    with suppress(GittrixError):
        manifest = run.store.manifest()
        told |= {"manifest": manifest.digest, "confine": manifest.core["setting"]["confine"], "seed": str(manifest.core["setting"]["seed"])}
    if run.percent is not None:
        told["pass_rate"] = f"{run.percent:.1f}"
    told |= {outcome: str(count) for outcome, count in tally(run.records).items()}
    return {f"gittrix_eval.{run.store.name}.{name}": value for name, value in told.items()}


def terminal_lines(run: EvalRun) -> list[tuple[str, str]]:
    """What the terminal shows of a run, with the colour each line may have."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in run.counts.items())
    samples = "1 sample" if len(run.records) == 1 else f"{len(run.records)} samples"
    told = [(f"{samples}: {counts or 'no record'}", "")]
    if run.missing:
        told.append((f"{run.missing} more have no record: run again with --gittrix-eval-resume", "red"))
    if run.rates.left_out:
        told.append((f"{run.rates.left_out} in {RETRIED} count for nothing: run again with --gittrix-eval-resume", "yellow"))
    if run.rates.passed is not None:
        told.append((f"pass rate {run.rates.passed}{_gate(run)}", "red" if run.is_short else ""))
        told += [(f"pass@{k} {estimate}", "") for k, estimate in run.rates.at.items() if k > 1]
        told += [(f"pass^{k} {estimate}", "") for k, estimate in run.rates.all.items() if k > 1]
    elif run.is_short:
        told.append((f"pass rate unknown{_gate(run)}", "red"))
    with suppress(GittrixError):
        manifest = run.store.manifest()
        setting = manifest.core["setting"]
        told.append((f"manifest {_cut(manifest.digest)}, seed {setting['seed']}, confine {setting['confine']}", ""))
    told.append((f"result {_cut(run.digest)} in {run.shown}", ""))
    return told


def _gate(run: EvalRun) -> str:
    if run.fail_under is None:
        return ""
    return f", {'less than' if run.is_short else 'and no less than'} the {run.fail_under:g}% that must pass"


def write_page(run: EvalRun) -> str:
    """Write the page of a run, and say where it is or why there is none."""
    from pytest_gittrix.report.eval_report import NAME, write_report

    try:
        write_report(run.store)
    except CapabilityMissing as problem:
        return f"no report: {problem.fact} {problem.fix}"
    except (GittrixError, OSError) as problem:
        return f"no report: {problem}"
    return f"report {os.path.join(run.shown, NAME)}"


def write_github_summary(run: EvalRun, file: Path) -> list[str]:
    """Add to the summary of the step.

    Returns:
        Lines to print: annotations, and what went wrong.
    """
    rows = [
        SampleRow(f"{record.id} #{record.epoch}", record.outcome, record.reason, *run.places[record.key])
        for record in sorted(run.records, key=lambda record: record.outcome == "pass")
    ]
    facts = [text for text, _ in terminal_lines(run)]
    problem = append_summary(file, f"gittrix eval: {run.shown}", facts, rows)
    return [*errors_of(rows), *([f"gittrix: {problem}"] if problem else [])]


def summarise_evals(
    session: Any, reports: Sequence[Any], terminal: Any, fail_under: float | None
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Write what is to be written, decide the exit status, and give what the terminal shows: titles and lines.

    Args:
        session: pytest's.
        reports: of all phases, of tests of evals.
        terminal: the reporter.
        fail_under: percentage that must pass, if one was given.
    """
    config = session.config
    runs = [replace(run, fail_under=fail_under) for run in runs_of(reports, config.rootpath, fail_under)]
    for junit in (plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, "add_global_property")):
        for run in runs:
            for name, value in properties(run).items():
                junit.add_global_property(name, value)
    sections = []
    for run in runs:
        told = [*terminal_lines(run), (write_page(run), "")]
        if os.environ.get(GITHUB):
            told += [(line, "") for line in write_github_summary(run, Path(os.environ[GITHUB]))]
        sections.append((f"gittrix eval: {run.store.name}", told))
    with suppress(GittrixError):
        sweep(scratch_root())  # a worker that was killed has left its directory
    let_through = _decide(session, runs, terminal)
    if let_through:
        sections[-1][1].append((let_through, "green"))
    return sections


def _decide(session: Any, runs: Sequence[EvalRun], terminal: Any) -> str:
    """The exit status, where the pass rate has a say in it."""
    if all(run.fail_under is None for run in runs):
        return ""
    if any(run.is_short for run in runs):
        if session.exitstatus == 0:
            session.exitstatus = 1
        return ""
    failed = [*terminal.stats.get("failed", ()), *terminal.stats.get("error", ())]
    ours = all((JUDGED, BY_OUTCOME) in map(tuple, report.user_properties) for report in failed)
    stopped = session.shouldfail or session.shouldstop
    if not failed or not ours or stopped or session.exitstatus != 1 or not all(run.is_whole for run in runs):
        return ""
    session.exitstatus = 0
    return f"{len(failed)} that did not pass let through"


def _cut(value: str) -> str:
    return value.removeprefix("sha256:")[:_SHORT]
