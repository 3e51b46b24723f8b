"""The end of a run with evals: the terminal's summary, the files, and the exit status.

Only the controller does this, from the reports of all workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import CapabilityMissing, GittrixError
from pytest_gittrix.evals.inputs.sample_record import RETRIED, Record, digest, spent_of, tally
from pytest_gittrix.evals.results.grades import LEVELS, UNJUDGEABLE, held_to
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.summary import Rates, rates
from pytest_gittrix.evals.runs.work_dirs import scratch_root, sweep
from pytest_gittrix.plugin.evals.github import SampleRow, append_summary, errors_of
from pytest_gittrix.plugin.evals.nodes import BY_OUTCOME, JUDGED, KEY, RUN
from pytest_gittrix.safe_text import visible_line

GITHUB: Final = "GITHUB_STEP_SUMMARY"

_SHORT: Final = 12


@dataclass(frozen=True)
class EvalRun:
    """An eval run, limited to the samples of this session's tests.

    Attributes:
        store: the store of the run.
        shown: its directory, relative to the root directory of the tests.
        records: the records of the samples, by id and epoch.
        rates: the rates of the samples.
        missing: the number of samples that have no record.
        locations: file and line of the test of each sample, by key.
        fail_under: the percentage that must pass, if one was given.
    """

    store: RunStore
    shown: str
    records: tuple[Record, ...]
    rates: Rates
    missing: int
    locations: dict[str, tuple[str, int]]
    fail_under: float | None = None

    @property
    def digest(self) -> str:
        """The digest of the results."""
        return digest(self.records)

    @property
    def counts(self) -> dict[str, int]:
        """The number of records of each outcome that occurs."""
        return {outcome: count for outcome, count in tally(self.records).items() if count}

    @property
    def taken_over(self) -> int | None:
        """The number of samples that were taken over from another run; None if no run was given to take from."""
        with suppress(GittrixError):
            if "from" in self.store.manifest().host:
                return sum(self.store.is_taken_over(record.key) for record in self.records)
        return None

    @property
    def percent(self) -> float | None:
        """The percentage that passed, of the samples that count; None without samples."""
        return None if self.rates.passed is None else self.rates.passed.value * 100

    @property
    def is_short(self) -> bool:
        """Whether fewer samples passed than must."""
        return self.fail_under is not None and (self.percent is None or self.percent < self.fail_under)

    @property
    def is_whole(self) -> bool:
        """Whether every sample has a record other than ``infra_error``."""
        return not self.missing and not self.rates.infra_errors


def runs_of(reports: Iterable[Any], root: Path, fail_under: float | None, at_least: str | None) -> list[EvalRun]:
    """The eval runs that the properties of reports name, by directory.

    Args:
        reports: pytest's reports of all phases.
        root: the directory that paths are relative to.
        fail_under: the percentage that must pass.
        at_least: the judge that a sample needs to count as passed; any by default.
    """
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for report in reports:
        properties = dict(report.user_properties)
        if RUN in properties and KEY in properties:
            path, line, _ = report.location
            found.setdefault(str(properties[RUN]), {})[str(properties[KEY])] = (str(path), (line or 0) + 1)
    return [_eval_run(shown, root, locations, fail_under, at_least) for shown, locations in sorted(found.items())]


def _eval_run(shown: str, root: Path, locations: dict[str, tuple[str, int]], fail_under: float | None, at_least: str | None) -> EvalRun:
    store = RunStore(root / shown)
    records = []
    for key in locations:
        with suppress(GittrixError):
            records.append(held_to(store.record(key), at_least))
    ordered = tuple(sorted(records, key=lambda record: (record.id, record.epoch)))
    counts_all = False
    with suppress(GittrixError):
        counts_all = store.manifest().counts_infra_errors
    found = rates(ordered, count_infra_errors=counts_all)
    return EvalRun(store, shown, ordered, found, len(locations) - len(ordered), locations, fail_under)


def properties(run: EvalRun) -> dict[str, str]:
    """The properties of a run for JUnit."""
    found = {"digest": run.digest, "directory": run.shown, "samples": str(len(run.records))}
    with suppress(GittrixError):
        manifest = run.store.manifest()
        found |= {
            "manifest": manifest.digest,
            "confine": manifest.core["setting"]["confine"],
            "seed": str(manifest.core["setting"]["seed"]),
        }
    if run.percent is not None:
        found["pass_rate"] = f"{run.percent:.1f}"
    found["counts_infra_errors"] = "true" if run.rates.counts_infra_errors else "false"
    spent = spent_of(run.records)
    if spent is not None:
        found |= {f"model_{name}": str(value) for name, value in spent.to_json().items() if value not in (None, "", [])}
    if run.rates.score is not None:
        grade = run.rates.grade
        judged = {judge: str(grade.passed.get(judge, 0)) for judge in LEVELS} | {UNJUDGEABLE: str(grade.unjudgeable)}
        found |= {"score": f"{run.rates.score.value * 100:.1f}", "tests": str(grade.tests), "tests_passed": str(grade.tests_passed)}
        found |= {f"judged.{judge}": count for judge, count in judged.items()}
    found |= {outcome: str(count) for outcome, count in tally(run.records).items()}
    return {f"gittrix_eval.{run.store.name}.{name}": value for name, value in found.items()}


def terminal_lines(run: EvalRun) -> list[tuple[str, str]]:
    """The lines of a run for the terminal, each with its colour or an empty text."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in run.counts.items())
    samples = "1 sample" if len(run.records) == 1 else f"{len(run.records)} samples"
    lines = [(f"{samples}: {counts or 'no record'}", "")]
    if run.missing:
        lines.append((f"{run.missing} more have no record: run again with --gittrix-eval-resume", "red"))
    if run.rates.infra_errors:
        worth = "as not passed" if run.rates.counts_infra_errors else "for nothing"
        lines.append((f"{run.rates.infra_errors} in {RETRIED} count {worth}: run again with --gittrix-eval-resume", "yellow"))
    if run.rates.passed is not None:
        lines.append((f"pass rate {run.rates.passed}{_threshold(run)}", "red" if run.is_short else ""))
        if run.rates.score is not None:
            lines.append((f"{run.rates.grade.tests_passed} of {run.rates.grade.tests} tests passed, score {run.rates.score}", ""))
        if run.rates.grade.mix:
            lines.append((f"judged: {run.rates.grade.mix}", ""))
        lines += [(f"pass@{k} {estimate}", "") for k, estimate in run.rates.at.items() if k > 1]
        lines += [(f"pass^{k} {estimate}", "") for k, estimate in run.rates.all.items() if k > 1]
    elif run.is_short:
        lines.append((f"pass rate unknown{_threshold(run)}", "red"))
    spent = spent_of(run.records)
    if spent is not None:
        lines.append((f"model {spent}", ""))
    with suppress(GittrixError):
        manifest = run.store.manifest()
        setting = manifest.core["setting"]
        lines.append((f"manifest {_cut(manifest.digest)}, seed {setting['seed']}, confine {setting['confine']}", ""))
    if run.taken_over is not None:
        lines.append((f"{run.taken_over} of {len(run.records)} taken over", ""))
    if run.store.is_mixed:
        lines.append(("the agent changed during the run: which samples are of which agent is unknown", "red"))
    lines.append((f"result {_cut(run.digest)} in {run.shown}", ""))
    return [(visible_line(text), colour) for text, colour in lines]


def _threshold(run: EvalRun) -> str:
    if run.fail_under is None:
        return ""
    return f", {'less than' if run.is_short else 'and no less than'} the {run.fail_under:g}% that must pass"


def write_page(run: EvalRun) -> str:
    """Write the HTML report of a run; return a line that says where it is, or why there is none."""
    from pytest_gittrix.report.eval_report import NAME, write_report

    try:
        write_report(run.store)
    except CapabilityMissing as problem:
        return f"no report: {problem.fact} {problem.fix}"
    except (GittrixError, OSError) as problem:
        return f"no report: {problem}"
    return f"report {os.path.join(run.shown, NAME)}"


def write_github_summary(run: EvalRun, file: Path) -> list[str]:
    """Add a run to the summary of the step.

    Returns:
        The lines to print: annotations, and problems.
    """
    rows = [
        SampleRow(f"{record.id} #{record.epoch}", record.outcome, record.reason, *run.locations[record.key])
        for record in sorted(run.records, key=lambda record: record.outcome == "pass")
    ]
    facts = [text for text, _ in terminal_lines(run)]
    problem = append_summary(file, f"gittrix eval: {run.shown}", facts, rows)
    return [*errors_of(rows), *([f"gittrix: {problem}"] if problem else [])]


def summarise_evals(
    session: Any, reports: Sequence[Any], terminal: Any, fail_under: float | None, at_least: str | None
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Write the reports of eval runs, decide the exit status, and return the terminal's sections: titles and lines.

    Args:
        session: pytest's session.
        reports: the reports of all phases of the tests of evals.
        terminal: pytest's terminal reporter.
        fail_under: the percentage that must pass, if one was given.
        at_least: the judge that a sample needs to count as passed; any by default.
    """
    config = session.config
    runs = [replace(run, fail_under=fail_under) for run in runs_of(reports, config.rootpath, fail_under, at_least)]
    for junit in (plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, "add_global_property")):
        for run in runs:
            for name, value in properties(run).items():
                junit.add_global_property(name, value)
    sections = []
    for run in runs:
        lines = [*terminal_lines(run), (write_page(run), "")]
        if os.environ.get(GITHUB):
            lines += [(line, "") for line in write_github_summary(run, Path(os.environ[GITHUB]))]
        sections.append((f"gittrix eval: {run.store.name}", lines))
    with suppress(GittrixError):
        sweep(scratch_root())  # remove the directories of killed workers
    let_through = _decide(session, runs, terminal)
    if let_through:
        sections[-1][1].append((let_through, "green"))
    return sections


def _decide(session: Any, runs: Sequence[EvalRun], terminal: Any) -> str:
    """Let pytest count failed tests or none where the pass rate decides; return a line if failed samples are let through."""
    if all(run.fail_under is None for run in runs):
        return ""
    if any(run.is_short for run in runs):
        session.testsfailed = max(session.testsfailed, 1)
        return ""
    failed = [*terminal.stats.get("failed", ()), *terminal.stats.get("error", ())]
    ours = all((JUDGED, BY_OUTCOME) in map(tuple, report.user_properties) for report in failed)
    stopped = session.shouldfail or session.shouldstop
    if not failed or not ours or stopped or not all(run.is_whole for run in runs):
        return ""
    session.testsfailed = 0
    return f"{len(failed)} that did not pass let through"


def _cut(value: str) -> str:
    return value.removeprefix("sha256:")[:_SHORT]
