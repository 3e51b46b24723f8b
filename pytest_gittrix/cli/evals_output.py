"""The output of ``gittrix eval``: the live table of a run, tables of runs and samples, and comparisons."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands.output import Table
from pytest_gittrix.errors import first_few
from pytest_gittrix.safe_text import visible

if TYPE_CHECKING:
    from pytest_gittrix.evals.inputs.sample_record import CheckResult, Record
    from pytest_gittrix.evals.results.compare import Comparison, SamplePair
    from pytest_gittrix.evals.results.disk_usage import DiskUsage
    from pytest_gittrix.evals.results.store import RunStore
    from pytest_gittrix.evals.results.summary import Rates
    from pytest_gittrix.evals.runs.run import Progress, Summary
    from pytest_gittrix.evals.verification.rescore import Rescoring

STYLES: Final = {
    "pass": 32,
    "fail": 31,
    "unjudgeable": 36,
    "conflict": 33,
    "refused": 33,
    "agent_error": 31,
    "timeout": 35,
    "limit": 35,
    "infra_error": 36,
}
"""ANSI style codes by outcome."""

_COLOURS: Final = {32: "green", 31: "red", 33: "yellow", 35: "magenta", 36: "cyan"}
_LATEST: Final = 8
_KILOBYTE: Final = 1000
_MOST_CHANGES: Final = 3


@contextmanager
def watching(name: str, run: Path | None = None, *, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A progress bar and a table of the latest samples, on standard error if a person is watching it.

    What the first agent that failed printed is shown at once, whoever is watching.

    Args:
        name: what is run.
        run: the directory of the run; by default no failure is shown.
        quiet: whether to show nothing.
    """
    failure = _first_failure(run)
    if quiet or sys.stderr is None or not sys.stderr.isatty():

        def report(progress: Progress) -> None:
            found = "" if quiet else failure(progress)
            if found:
                print(found, file=sys.stderr, flush=True)

        yield report
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Table as RichTable
    from rich.text import Text

    bar = Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task = bar.add_task(name, total=None)
    counts: Counter[str] = Counter()
    latest: list[tuple[str, str, str]] = []

    def drawn() -> Group:
        table = RichTable("sample", "outcome", "ms", box=None, pad_edge=False)
        for sample, outcome, took in latest[-_LATEST:]:
            table.add_row(Text(sample), Text(outcome, style=_COLOURS[STYLES[outcome]]), Text(took, justify="right"))
        tally = Text("  ").join(
            Text(f"{outcome} {counts[outcome]}", style=_COLOURS[STYLES[outcome]]) for outcome in STYLES if counts[outcome]
        )
        return Group(table, tally, bar)

    with Live(drawn(), console=Console(stderr=True), transient=True, refresh_per_second=8) as live:

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.done, total=progress.total)
            if progress.last is not None:
                counts[progress.last.outcome] += 1
                latest.append((f"{progress.last.id} #{progress.last.epoch}", progress.last.outcome, f"{progress.last.ms:.0f}"))
            found = failure(progress)
            if found:
                live.console.print(Text(found))
            live.update(drawn())

        yield show


def _first_failure(run: Path | None) -> Callable[[Progress], str]:
    """A function of the progress that returns what the first failed agent printed, once, and otherwise an empty text."""
    from pytest_gittrix.evals.results.failure_output import failure_lines
    from pytest_gittrix.evals.results.store import RunStore

    shown = False

    def failure(progress: Progress) -> str:
        nonlocal shown
        last = progress.last
        if shown or run is None or last is None or last.outcome not in ("agent_error", "infra_error"):
            return ""
        shown = True
        store = RunStore(run)
        record = store.record(last.key)
        return visible("\n".join([f"{_name(record)} ended in {record.outcome}: {record.reason}", *failure_lines(store, record)]))

    return failure


# Runs ------------------------------------------------------------------------------------------------------------------------------


def run_table(summary: Summary) -> str:
    """How a run ended."""
    core = summary.manifest.core
    lines = [
        f"{core['suite']}: {len(summary.records)} samples, manifest {_short(summary.manifest.digest)}, seed {core['setting']['seed']}, "
        f"confine {core['setting']['confine']}",
        *_outcomes(summary.counts),
        *_rate_lines(summary.rates),
        *_model_lines(summary.records),
        *(_sample_line(record) for record in summary.counted if record.outcome != "pass"),
    ]
    if summary.already:
        lines.append(f"{summary.already} of {len(summary.records)} were there")
    if summary.reused:
        lines.append(f"{summary.taken_over} of {len(summary.records)} taken over")
    lines += [f"  {id_} #{epoch}: run again, {choice.why}" for (id_, epoch), choice in summary.reused.items() if not choice.reused]
    return visible("\n".join([*lines, f"result {_short(summary.digest)} in {summary.store.path}", ""]))


def rescoring_text(found: Rescoring) -> str:
    """What judging again changed, and how the run ends now."""
    changes = [f"  {change}" for change in found.changes]
    head = f"{len(found.changes)} of {len(found.summary.records)} verdicts of {found.source.path} changed"
    return visible("\n".join([head, *changes, ""])) + run_table(found.summary)


def _sample_line(record: Record) -> str:
    """A sample that did not pass, with how many of its tests did."""
    score = f"{_tests(record)} tests, " if _tests(record) else ""
    return f"  {record.outcome:<12}{_name(record)}  {score}{record.reason}".rstrip(" ,")


def store_data(store: RunStore, at_least: str | None = None) -> dict[str, Any]:
    """A run for programs, as its samples count with a bar for judges."""
    from pytest_gittrix.evals.inputs.sample_record import digest, tally
    from pytest_gittrix.evals.results.grades import grade_of, held_to, short_of
    from pytest_gittrix.evals.results.summary import rates

    records = store.records()
    counted = [held_to(record, at_least) for record in records]
    samples = [
        {"id": one.id, "epoch": one.epoch, "key": one.key, "outcome": one.outcome, "reason": one.reason, **grade_of([one]).to_json()}
        for one in counted
    ]
    return {
        "run": str(store.path),
        "manifest": store.manifest().digest,
        "digest": digest(records),
        "outcomes": tally(counted),
        "rates": rates(counted, count_infra_errors=store.manifest().counts_infra_errors).to_json(),
        "judge_at_least": at_least,
        "short": short_of(records, at_least),
        "model": model_data(records),
        "planned": len(store.manifest().keys),
        "samples": samples,
    }


def short_notes(short: int, at_least: str | None) -> tuple[str, ...]:
    """What a bar for judges changed; nothing without one."""
    from pytest_gittrix.evals.results.grades import bar_sentence

    return () if at_least is None else (bar_sentence(short, at_least),)


def model_data(records: Iterable[Record]) -> dict[str, Any] | None:
    """What the agents used of their models, for programs; None if no model was reached through the run."""
    from pytest_gittrix.evals.inputs.sample_record import spent_of

    found = spent_of(records)
    return None if found is None else found.to_json()


def _model_lines(records: Iterable[Record]) -> list[str]:
    from pytest_gittrix.evals.inputs.sample_record import spent_of

    found = spent_of(records)
    return [] if found is None else [f"  model       {found}"]


def notes_on(store: RunStore) -> tuple[str, ...]:
    """Notes on a run: that it is not whole, that samples were taken over, or that its agent changed meanwhile."""
    planned, there = len(store.manifest().keys), len(store.keys())
    taken = store.taken_over
    return (
        *(f"model:{line.removeprefix('  model     ')}" for line in _model_lines(store.records())),
        *([] if there >= planned else [f"{there} of {planned} samples have a record."]),
        *_rescored_notes(store),
        *([f"{taken} of {there} taken over from another run."] if taken else []),
        *(["The agent changed during the run: which samples are of which agent is unknown."] if store.is_mixed else []),
    )


def _rescored_notes(store: RunStore) -> list[str]:
    """That the results of a run were judged again, and how many verdicts that changed."""
    if "rescored" not in store.manifest().core["setting"]:
        return []
    records = store.records()
    pairs = [(before["outcome"], one) for one in records if (before := store.verdict_before(one.key)) is not None]
    lines = [f"{_name(one)} was {before}, and is {one.outcome}" for before, one in pairs if before != one.outcome]
    return [f"Judged again, from {store.manifest().host.get('rescore')}: {len(lines)} of {len(records)} verdicts changed.", *lines]


def store_table(store: RunStore, at_least: str | None = None) -> Table:
    """A run for people, as its samples count with a bar for judges."""
    from pytest_gittrix.evals.results.grades import held_to
    from pytest_gittrix.evals.results.summary import rates

    counted = [held_to(record, at_least) for record in store.records()]
    rows: list[tuple[str, ...]] = [
        (record.id, str(record.epoch), record.outcome, _tests(record), str(len(record.files)), record.promoted[:7], record.reason)
        for record in counted
    ]
    foot = "".join(f"{line.strip()}\n" for line in _rate_lines(rates(counted, count_infra_errors=store.manifest().counts_infra_errors)))
    return Table(("case", "epoch", "outcome", "tests", "files", "promoted", "reason"), rows, "reason", STYLES, foot)


def _tests(record: Record) -> str:
    """How many of a sample's tests passed, such as ``3/5``; empty without tests."""
    from pytest_gittrix.evals.results.grades import grade_of

    found = grade_of([record])
    return f"{found.tests_passed}/{found.tests}" if found.tests else ""


# Samples ---------------------------------------------------------------------------------------------------------------------------


def sample_data(store: RunStore, record: Record) -> dict[str, Any]:
    """A sample for programs."""
    from dataclasses import asdict

    from pytest_gittrix.evals.results.grades import grade_of, score, verdicts_of

    return {
        **asdict(record),
        "score": float(score(record)),
        "grade": grade_of([record]).to_json(),
        "tests": [test.to_json() for test in verdicts_of(record)],
        "events": store.lines("events", record.key),
        "timing": store.lines("timing", record.key),
        "transcript": store.lines("transcripts", record.key),
        "patch": store.part("patches", record.key).decode(errors="replace"),
    }


def sample_text(store: RunStore, record: Record) -> str:
    """A sample for people."""
    from pytest_gittrix.evals.results.failure_output import failure_lines

    lines = [f"{_name(record)}: {record.outcome}", *([f"  {record.reason}"] if record.reason else [])]
    lines += [] if record.spent is None else [f"  model: {record.spent}"]
    tries = enumerate(store.earlier_tries(record.key), 1)
    lines += [f"  try {number} ended in infra_error and does not count: {why}" for number, why in tries]
    lines += ["", "events"]
    for event in store.lines("events", record.key):
        fields = ", ".join(f"{name}={str(value)[:50]}" for name, value in sorted(event["data"].items()) if name not in ("policy", "task"))
        lines.append(f"  {event['seq']:>3}  {event['actor']:<7}{event['kind']:<18}{fields[:120]}".rstrip())
    if record.checks:
        lines += ["", "checks"]
        lines += [f"  {'ok' if one.ok else 'no':<3} {one.kind} {one.detail or _judges(one)}".rstrip() for one in record.checks]
    lines += _tests_lines(record)
    if record.conflict:
        lines += ["", "conflict", *(f"  {kind:<5} {path}" for path, kind in sorted(record.conflict.items()))]
    output = failure_lines(store, record)
    if output:
        lines += ["", *output]
    before = store.verdict_before(record.key)
    if before is not None:
        lines += ["", f"The result was judged again. Before: {before['outcome']}: {before['reason']}".removesuffix(": ")]
    if store.is_taken_over(record.key):
        lines += ["", "The sample was taken over from another run."]
    patch = store.part("patches", record.key).decode(errors="surrogateescape")
    if patch:
        lines += ["", "diff", patch.rstrip("\n")]
    return visible("\n".join([*lines, "", f"again: {store.replay_command(record)}", ""]))


def _tests_lines(record: Record) -> list[str]:
    """The table of a sample's tests, those that failed first."""
    from pytest_gittrix.evals.results.grades import verdicts_of

    tests = verdicts_of(record)
    lines = [f"  {test.word:<12}{'' if test.passed is None else test.judge:<8}{test.name}" for test in tests]
    return ["", f"tests, {_tests(record) or 'none'} passed", *lines] if tests else []


def _judges(check: CheckResult) -> str:
    """How many tests of a check each judge judged, such as ``3 by subject, 1 by plain``."""
    return ", ".join(f"{count} by {judge}" for judge, count in sorted(Counter(check.judges.values()).items()))


# Comparisons -----------------------------------------------------------------------------------------------------------------------


def comparison_text(found: Comparison) -> str:
    """Two runs side by side."""
    from pytest_gittrix.evals.inputs.sample_record import OUTCOMES, tally

    digest = _short(found.a.manifest().digest)
    known = f"not known to be the same ({digest})" if found.unsure else f"same ({digest})"
    lines = [f"inputs: {'differ: ' + ', '.join(found.inputs) if found.inputs else known}      {len(found.pairs)} samples"]
    lines += [f"  {sentence}" for sentence in found.unsure]
    ours, theirs = [pair.a for pair in found.pairs if pair.a], [pair.b for pair in found.pairs if pair.b]
    first, second = tally(ours), tally(theirs)
    lines.append(f"{'':<14}{'a':>6}{'b':>6}")
    for outcome in OUTCOMES:
        if first[outcome] or second[outcome]:
            change = second[outcome] - first[outcome]
            lines.append(f"{outcome:<14}{first[outcome]:>6}{second[outcome]:>6}{f'  ({change:+d})' if change else ''}")
    lines += [f"{side}  {line.strip()}" for side, of_side in zip("ab", found.rates, strict=True) for line in _rate_lines(of_side)]
    lines += [f"{side}  {line.strip()}" for side, of_side in zip("ab", (ours, theirs), strict=True) for line in _model_lines(of_side)]
    if found.better or found.worse:
        lines.append(f"flips: {len(found.better)} better, {len(found.worse)} worse")
    lines += found.sentences
    for difference, heading in (
        ("outcome", "changed outcome"),
        ("missing", "only in one of them"),
        ("tree", "same outcome, different tree"),
        ("log", "same tree, different log"),
    ):
        pairs = [pair for pair in found.pairs if pair.difference == difference]
        if pairs:
            lines += [heading, *(f"  {pair_text(pair).rstrip()}" for pair in pairs)]
    return visible("\n".join([*lines, ""]))


def pair_text(pair: SamplePair) -> str:
    """One sample on both sides, on one line."""
    name = f"{pair.id} #{pair.epoch}"
    if pair.difference == "same":
        return f"{name}: the same, {pair.b.outcome if pair.b else ''}\n"
    if pair.difference == "tree" and pair.a is not None and pair.b is not None:
        what = f"{(pair.a.promoted or pair.a.final)[:7]} -> {(pair.b.promoted or pair.b.final)[:7]}"
    else:
        what = pair.flip
    reason = f"  {pair.b.reason}" if pair.b is not None and pair.b.reason else ""
    changes = pair.test_changes
    tests = f"  tests: {first_few((f'{one.name} {one.a} -> {one.b}' for one in changes), _MOST_CHANGES)}" if changes else ""
    return f"{name}  {what}{reason}{tests}{f'  first difference: {pair.divergence}' if pair.divergence else ''}\n"


def usage_table(runs: Sequence[DiskUsage]) -> Table:
    """What runs take."""
    rows: list[tuple[str, ...]] = [
        (
            str(run.path),
            run.began.isoformat(timespec="seconds") if run.began else "",
            str(run.samples),
            _size(run.total),
            ", ".join(f"{part} {_size(size)}" for part, size in sorted(run.parts.items(), key=lambda item: -item[1])[:3]),
        )
        for run in runs
    ]
    return Table(("run", "began", "samples", "size", "most"), rows, "run", {})


def _outcomes(counts: dict[str, int]) -> list[str]:
    return [f"  {outcome:<12}{count:>6}" for outcome, count in counts.items() if count]


def _rate_lines(found: Rates) -> list[str]:
    if found.passed is None:
        return []
    lines = [f"  pass rate   {found.passed}"]
    if found.score is not None:
        lines.append(f"  tests       {found.grade.tests_passed} of {found.grade.tests} passed, score {found.score}")
    if found.grade.mix:
        lines.append(f"  judged      {found.grade.mix}")
    lines += [f"  pass@{k:<7}{estimate}" for k, estimate in found.at.items() if k > 1]
    lines += [f"  pass^{k:<7}{estimate}" for k, estimate in found.all.items() if k > 1]
    if found.infra_errors:
        lines.append(f"  {found.infra_errors} in infra_error {'count as not passed' if found.counts_infra_errors else 'left out'}")
    return lines


def _name(record: Record) -> str:
    return f"{record.id} #{record.epoch}"


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:8]


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB"]
    while size >= _KILOBYTE and len(units) > 1:
        size, _ = size / _KILOBYTE, units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
