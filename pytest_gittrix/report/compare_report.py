"""The page of a comparison: the cases of two runs, the worst regressions first, with the results of each sample side by side.

It says the same numbers as the text of ``gittrix eval compare``: both are made from one ``Comparison``.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.evals.inputs.sample_record import OUTCOMES, RETRIED, Record, tally
from pytest_gittrix.evals.results.compare import CasePair, Comparison, SamplePair
from pytest_gittrix.evals.results.run_repository import ObjectStore
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.git.patch import FileChange, Side, patch_bytes
from pytest_gittrix.git.tree import SUBMODULE, Entry
from pytest_gittrix.report.eval_report import PageEntry, printed
from pytest_gittrix.report.page import PageRow, part, render, write_page
from pytest_gittrix.report.side_by_side import FileDiff, file_diffs
from pytest_gittrix.safe_text import visible

GROUPS: Final[Mapping[str, str]] = {
    "worse": "pass less often",
    "better": "pass more often",
    "outcomes": "pass as often, with other outcomes",
    "results": "have the same outcomes by another tree or log",
    "same": "are the same",
    "missing": "have no sample that counts in one of the runs",
}
"""The groups of cases, with the phrase for each."""

_COLUMNS: Final = (
    ("id", "Case", "text"),
    ("share", "a", "number"),
    ("share", "b", "number"),
    ("change", "b − a", "number"),
    ("reason", "What changed", "text"),
)


@dataclass(frozen=True, slots=True)
class ShownPair:
    """What the page shows of one sample in both runs.

    Attributes:
        pair: the sample.
        outputs: what the agent and the checks printed in the first and in the second run, where they failed.
        files: from the result in the first run to the result in the second, side by side.
    """

    pair: SamplePair
    outputs: tuple[tuple[PageEntry, ...], tuple[PageEntry, ...]]
    files: tuple[FileDiff, ...]


def write_comparison(found: Comparison, to: Path) -> Path:
    """Write the page of a comparison.

    Args:
        found: the comparison.
        to: the file.

    Returns:
        The file.

    Raises:
        InvalidInput: a file of a run is damaged.
        OSError: the file cannot be written.
    """
    return write_page(to, comparison_page(found))


def comparison_page(found: Comparison) -> str:
    """The HTML of the page of a comparison. Raises as ``write_comparison``."""
    groups = [(case, group_of(case)) for case in found.cases]
    counts = Counter(group for _, group in groups)
    ours, theirs = (tally(record for pair in found.pairs if (record := side(pair))) for side in (_first, _second))
    paths = [shlex.quote(str(run.path)) for run in (found.a, found.b)]
    return render(
        "compare.html",
        [_row(found, case, group) for case, group in groups],
        what="cases",
        find="id, outcome or reason",
        without_script=f"gittrix eval compare {' '.join(paths)}",
        columns=_COLUMNS,
        a=found.a.path.name,
        b=found.b.path.name,
        inputs=found.inputs,
        unsure=found.unsure,
        verdict=found.verdict,
        sentences=[sentence for sentence in found.sentences if sentence != found.verdict],
        counts={group: counts[group] for group in GROUPS if counts[group]},
        phrases=GROUPS,
        rates=_rates(found),
        outcomes=[(outcome, ours[outcome], theirs[outcome]) for outcome in OUTCOMES if ours[outcome] or theirs[outcome]],
    )


def group_of(case: CasePair) -> str:
    """The group of a case, one of ``GROUPS``."""
    if case.change is None:
        return "missing"
    if case.change:
        return "worse" if case.change < 0 else "better"
    differences = {pair.difference for pair in case.pairs}
    if differences & {"outcome", "missing"}:
        return "outcomes"
    return "same" if differences == {"same"} else "results"


def _rates(found: Comparison) -> list[tuple[str, str, str]]:
    """The name of each rate, and the rate in both runs."""
    ours, theirs = found.rates
    rows = [("pass rate", str(ours.passed or "unknown"), str(theirs.passed or "unknown"))]
    if ours.score or theirs.score:
        rows.append(("score", str(ours.score or "unknown"), str(theirs.score or "unknown")))
        rows.append(("judged", ours.grade.mix or "none", theirs.grade.mix or "none"))
    for name, first, second in (("pass@", ours.at, theirs.at), ("pass^", ours.all, theirs.all)):
        rows += [(f"{name}{k}", str(first[k]), str(second[k])) for k in first if k > 1 and k in second]
    if any(found.spent):
        first_spent, second_spent = (str(spent or "not known") for spent in found.spent)
        rows.append(("model", first_spent, second_spent))
    return rows


def _row(found: Comparison, case: CasePair, group: str) -> PageRow:
    records = [record for pair in case.pairs for record in (pair.a, pair.b) if record]
    flips = list(dict.fromkeys(pair.flip for pair in case.pairs if pair.difference in ("outcome", "missing")))
    words = ", ".join(flips) or GROUPS[group].removeprefix("have ").removeprefix("are ")
    shares = [_share_of(case, side, count_all=found.counts_infra_errors) for side in (_first, _second)]
    change = "" if case.change is None else f"{float(case.change) * 100:+.0f}" if case.change else "0"
    return PageRow(
        key=records[0].key,
        group=group,
        find=visible(" ".join([case.id, words, *(record.reason for record in records)])).lower(),
        values=(case.id, _sortable(case.a), _sortable(case.b), _sortable(case.change), words),
        cells=part("case_cells", case.id, shares, change, words),
        details=part("case_details", [_shown(found, pair) for pair in case.pairs], (found.a.path.name, found.b.path.name)),
    )


def _share_of(case: CasePair, side: Callable[[SamplePair], Record | None], *, count_all: bool) -> str:
    records = [record for pair in case.pairs if (record := side(pair)) is not None]
    counting = [record for record in records if count_all or record.outcome != RETRIED]
    passes = sum(record.outcome == "pass" for record in counting)
    left_out = f", {len(records) - len(counting)} left out" if len(counting) < len(records) else ""
    return (f"{passes} of {len(counting)}" if counting else "none") + left_out


def _sortable(share: Fraction | None) -> float:
    return 2.0 if share is None else float(share)


def _shown(found: Comparison, pair: SamplePair) -> ShownPair:
    if pair.difference == "same" or pair.a is None or pair.b is None:
        return ShownPair(pair, ((), ()), ())
    outputs = (_failure(found.a, pair.a), _failure(found.b, pair.b))
    return ShownPair(pair, outputs, tuple(_between(found, pair.a, pair.b)))


def _failure(run: RunStore, record: Record) -> tuple[PageEntry, ...]:
    if record.outcome in ("pass", "conflict"):
        return ()
    return tuple(printed(run.lines("timing", record.key)))


def _between(found: Comparison, one: Record, other: Record) -> list[FileDiff]:
    """The differences between both results; where the agent's work was not reviewed, the result is what it started from."""
    trees = [record.final or record.base for record in (one, other)]
    if not all(trees) or trees[0] == trees[1]:
        return []
    try:
        return file_diffs(patch_bytes(_changes(found.a.objects, trees[0], found.b.objects, trees[1])))
    except GittrixError:
        return []  # the objects of a run can be pruned; its records still compare


def _changes(ours: ObjectStore, first: str, theirs: ObjectStore, second: str) -> Iterator[FileChange]:
    old, new = ours.tree(first), theirs.tree(second)
    for path in {*old, *new}:
        if old.get(path) != new.get(path):
            yield FileChange(path, _side_at(ours, old.get(path)), _side_at(theirs, new.get(path)))


def _side_at(objects: ObjectStore, entry: Entry | None) -> Side | None:
    if entry is None:
        return None
    data = f"Subproject commit {entry.id}\n".encode() if entry.mode == SUBMODULE else objects.read(entry.id)[1]
    return Side(entry.mode, data, entry.id)


def _first(pair: SamplePair) -> Record | None:
    return pair.a


def _second(pair: SamplePair) -> Record | None:
    return pair.b
