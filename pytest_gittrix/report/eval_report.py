"""The report of an eval run: one self-contained HTML page with the outcome of every sample.

All text from a suite, an agent or a repository is escaped, by the templates or where colours are added. The page works from a file, without
a network. Without JavaScript it shows the numbers and plots, and says which command prints the samples.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.evals.inputs.sample_record import OUTCOMES, Record, digest, spent_of
from pytest_gittrix.evals.results.grades import Grade, VerdictOnTest, bar_sentence, grade_of, held_to, score, short_of, verdicts_of
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.summary import rates
from pytest_gittrix.evals.spending.spent import Spent
from pytest_gittrix.report.page import PageRow, part, render, write_page
from pytest_gittrix.report.plots import histogram
from pytest_gittrix.report.side_by_side import FileDiff, file_diffs
from pytest_gittrix.safe_text import visible

NAME: Final = "report.html"
"""The file name of the page in the run's directory."""

OUTCOME_TEXTS: Final[Mapping[str, str]] = {
    "pass": "passed",
    "fail": "failed a check",
    "unjudgeable": "have tests that none can judge",
    "conflict": "met a conflict",
    "refused": "refused at review",
    "agent_error": "ended in an error of the agent",
    "timeout": "ran out of time",
    "limit": "reached a limit of their model",
    "infra_error": "could not be run",
}
"""The phrase for each outcome in the summary."""

_EVENT_TITLES: Final[Mapping[str, str]] = {
    "session.created": "The session started",
    "workspace.ready": "The workspace was ready",
    "agent.done": "The agent ended",
    "durable.drifted": "Somebody else committed to durable",
    "review.done": "The work was reviewed",
    "promote.intent": "The promotion began",
    "promote.conflict": "The promotion met a conflict",
    "promote.done": "The work was promoted",
    "promote.kept": "The work was promoted, and the session went on",
    "promote.aborted": "The promotion was given up",
    "workspace.removed": "The workspace was removed",
    "worktree.updated": "Durable's checkout was brought forward",
    "session.ended": "The session ended",
    "check.done": "A check was done",
    "sample.done": "The sample was over",
}
_EVENT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "session.created": ("baseline", "durable_branch", "workspace_kind", "history"),
    "workspace.ready": (),
    "workspace.removed": (),
    "promote.intent": ("count", "branch"),
    "promote.done": ("commit", "branch"),
    "promote.kept": ("commit", "branch"),
    "check.done": ("kind", "detail"),
}
_COLUMNS: Final[Sequence[tuple[str, str, str]]] = (
    ("id", "Case", "text"),
    ("epoch", "Epoch", "number"),
    ("outcome", "Outcome", "text"),
    ("reason", "Why", "text"),
    ("tests", "Tests", "number"),
    ("files", "Files", "number"),
    ("lines", "Lines", "number"),
    ("time", "Agent", "number"),
)
_MOST_LINES: Final = 600
_MOST_STEPS: Final = 200
_MOST_TEXT: Final = 4_000
_MOST_SHARES: Final = 20
_FAILING_FIRST: Final = {outcome: number for number, outcome in enumerate((*(one for one in OUTCOMES if one != "pass"), "pass"))}


@dataclass(frozen=True, slots=True)
class PageEntry:
    """One entry of a timeline, a transcript or an output: its kind, its title, its details, and whether it is an error."""

    kind: str
    title: str
    detail: str = ""
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """How often a case passed.

    Attributes:
        name: the id of the case.
        value: the share of its samples that passed.
        low: lower end of the confidence interval.
        high: upper end.
        text: the share in words.
    """

    name: str
    value: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class SampleView:
    """The part of the page on one sample.

    Attributes:
        record: the sample's record.
        task: the agent's task; empty if the session never started.
        seconds: the real time that the agent took; None if it was not recorded.
        phases: each phase with its milliseconds, in order.
        events: the timeline.
        transcript: the agent's actions.
        output: the output of the agent and the checks.
        files: the changes, side by side.
        again: the command line that repeats the sample, from any directory.
        earlier_tries: why each try before the one that counts ended in ``infra_error``.
        tests: the verdicts on its tests, those that failed first.
        grade: how many of them passed, by their judge.
        before: the outcome and the reason before its result was judged again; None if it was not.
    """

    record: Record
    task: str
    seconds: float | None
    phases: tuple[tuple[str, float], ...]
    events: tuple[PageEntry, ...]
    transcript: tuple[PageEntry, ...]
    output: tuple[PageEntry, ...]
    files: tuple[FileDiff, ...]
    again: str
    earlier_tries: tuple[str, ...]
    tests: tuple[VerdictOnTest, ...]
    grade: Grade
    before: Mapping[str, Any] | None

    @property
    def added(self) -> int:
        """The number of added lines."""
        return sum(file.added for file in self.files)

    @property
    def removed(self) -> int:
        """The number of removed lines."""
        return sum(file.removed for file in self.files)


def write_report(store: RunStore, to: Path | None = None, *, at_least: str | None = None) -> Path:
    """Write the page of a run.

    Args:
        store: the run.
        to: the file; ``report.html`` in the run's directory by default.
        at_least: the judge that a sample needs to count as passed, see ``grades.held_to``; any judge by default.

    Returns:
        The file.

    Raises:
        InvalidInput: a record of the run is damaged.
        OSError: the file cannot be written.
    """
    return write_page(to if to is not None else store.path / NAME, page_of(store, at_least))


def page_of(store: RunStore, at_least: str | None = None) -> str:
    """The HTML of a run's page. Raises as ``write_report``."""
    kept = store.records()
    short = short_of(kept, at_least)
    records = sorted((held_to(one, at_least) for one in kept), key=lambda one: (_FAILING_FIRST[one.outcome], one.id, one.epoch))
    samples = [sample_of(store, record) for record in records]
    manifest = store.manifest()
    counts: dict[str, int] = {outcome: sum(one.outcome == outcome for one in records) for outcome in OUTCOMES}
    count = sum(store.is_taken_over(one.key) for one in records)
    taken_over = f"{count} of {len(records)}" if count or "from" in manifest.host else None
    has_tests = any(sample.tests for sample in samples)
    by_case = _by_case(records, count_infra_errors=manifest.counts_infra_errors) if manifest.core["epochs"] > 1 else []
    return render(
        "report.html",
        [_row(sample, has_tests) for sample in samples],
        what="samples",
        find="id, reason or file",
        without_script=f"gittrix eval show {shlex.quote(str(store.path))}",
        columns=[column for column in _COLUMNS if has_tests or column[0] != "tests"],
        run=store.path.name,
        suite=manifest.core["suite"],
        digest=manifest.digest,
        result=digest(kept),
        bar=bar_sentence(short, at_least) if at_least else "",
        short=short,
        facts=_facts(manifest.core, manifest.host, taken_over, spent_of(kept)),
        taken_over=taken_over,
        is_mixed=store.is_mixed,
        verdict=verdict(counts),
        counts={outcome: count for outcome, count in counts.items() if count},
        outcome_texts=OUTCOME_TEXTS,
        planned=len(manifest.core["samples"]) * manifest.core["epochs"],
        rates=rates(records, count_infra_errors=manifest.counts_infra_errors),
        times=histogram(_times(samples), label="How long the agents took"),
        cases=by_case[:_MOST_SHARES],
        case_count=len(by_case),
    )


def verdict(counts: Mapping[str, int]) -> tuple[str, str]:
    """The outcome of a run: ``7 of 10 samples passed.``, and ``2 failed a check, 1 met a conflict.`` or an empty text."""
    every = sum(counts.values())
    if not every:
        return "No sample has been run.", ""
    others = [f"{count} {OUTCOME_TEXTS[outcome]}" for outcome, count in counts.items() if count and outcome != "pass"]
    passed = f"{counts['pass']} of {every} samples passed."
    return passed, f"{', '.join(others)}." if others else ""


def sample_of(store: RunStore, record: Record) -> SampleView:
    """The part of the page on one sample. Raises InvalidInput if a file of the sample is damaged."""
    timing = store.lines("timing", record.key)
    phases = tuple((str(line["phase"]), float(line["ms"])) for line in timing if "phase" in line and "ms" in line)
    agent = next((ms / 1000 for phase, ms in phases if phase == "agent"), None)
    events = store.lines("events", record.key)
    return SampleView(
        record,
        next((_clipped(str(line["data"]["task"])) for line in events if line.get("kind") == "session.created"), ""),
        agent,
        phases,
        tuple(_event(line) for line in events),
        tuple(_action(line) for line in store.lines("transcripts", record.key)[:_MOST_STEPS]),
        tuple(printed(timing)),
        tuple(file_diffs(store.part("patches", record.key), most_lines=_MOST_LINES)),
        store.replay_command(record),
        tuple(map(visible, store.earlier_tries(record.key))),
        tuple(verdicts_of(record)),
        grade_of([record]),
        store.verdict_before(record.key),
    )


def _row(sample: SampleView, has_tests: bool) -> PageRow:
    """The row of a sample; with the column of its tests if some sample of the run has any."""
    one = sample.record
    seconds = -1.0 if sample.seconds is None else sample.seconds
    tests = (float(score(one)),) if has_tests else ()
    changed = sample.added + sample.removed
    return PageRow(
        key=one.key,
        group=one.outcome,
        find=visible(f"{one.id} {one.reason} {' '.join(one.files)}").lower(),
        values=(one.id, one.epoch, one.outcome, visible(one.reason), *tests, len(one.files), changed, seconds),
        cells=part("cells", sample, has_tests),
        details=part("details", sample),
    )


def _event(line: Mapping[str, Any]) -> PageEntry:
    data, kind = line.get("data", {}), str(line.get("kind", ""))
    title = _EVENT_TITLES.get(kind)
    names = [name for name in _EVENT_FIELDS.get(kind, data) if data.get(name) not in (None, "", [], {})]
    detail = "  ".join(f"{name.replace('_', ' ')} {_short(data[name])}" for name in names)
    wrong = kind.endswith((".conflict", ".aborted", ".failed")) or data.get("ok") is False
    return PageEntry(str(line.get("actor", "")), title or kind, detail, wrong)


def _action(line: Mapping[str, Any]) -> PageEntry:
    kind = str(line.get("do", ""))
    what = " ".join(map(str, line["argv"])) if "argv" in line else str(line.get("path") or line.get("text") or "")
    exit_code = line.get("exit")
    printed = "".join(str(line.get(stream) or "") for stream in ("stdout", "stderr"))
    shown = printed or line.get("data") or (line.get("fed") or {}).get("data") or ""
    result = f"exit {exit_code}" if exit_code is not None else ""
    return PageEntry(kind, f"{what}  {result}".strip(), _clipped(str(shown)), exit_code not in (None, 0))


def printed(timing: Sequence[Mapping[str, Any]]) -> list[PageEntry]:
    """What the agent and the checks printed, by the lines of a sample's timing."""
    return [entry for line in timing if "stdout" in line or "traceback" in line or "said" in line for entry in _printed(line)]


def _printed(line: Mapping[str, Any]) -> list[PageEntry]:
    name = f"check {line['check']}" if "check" in line else "agent"
    if "said" in line:
        return [PageEntry("model", str(line["model"]), _clipped(str(line["said"])), True)]
    if "traceback" in line:
        return [PageEntry(name, "traceback", _clipped(str(line["traceback"])), True)]
    wrong = line.get("exit") not in (0, None) or bool(line.get("timed_out"))
    return [PageEntry(name, stream, _clipped(str(line[stream])), wrong) for stream in ("stdout", "stderr") if line.get(stream)]


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    is_id = len(text) in (40, 64) and all(digit in "0123456789abcdef" for digit in text)
    return text[:10] if is_id else text if len(text) <= 80 else f"{text[:79]}…"


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n… {len(text) - _MOST_TEXT} more characters"


def _facts(core: Mapping[str, Any], host: Mapping[str, Any], taken_over: str | None, spent: Spent | None) -> list[tuple[str, str]]:
    setting = core["setting"]
    agent = setting.get("agent", {})
    command = agent.get("command") or agent.get("argv") or agent.get("name") or agent.get("kind", "")
    facts = {
        "agent": " ".join(map(str, command)) if isinstance(command, list) else str(command),
        "seed": setting.get("seed"),
        "epochs": core["epochs"],
        "confinement": setting.get("confine"),
        "clock": (setting.get("clock") or {}).get("epoch"),
        "git": (setting.get("system") or {}).get("git"),
        "python": (setting.get("system") or {}).get("python"),
        "workers": host.get("workers"),
        "taken over": taken_over,
        "judged again": host.get("rescore"),
        "model": spent,
        "tapes": core.get("tape", "").removeprefix("sha256:")[:12] or None,
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _times(samples: Sequence[SampleView]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for outcome in OUTCOMES:
        times = [one.seconds for one in samples if one.record.outcome == outcome and one.seconds is not None]
        if times:
            found[f"o-{outcome}"] = times
    return found


def _by_case(records: Sequence[Record], *, count_infra_errors: bool) -> list[Share]:
    """How often each case passed; those that passed least often first."""
    by_id: dict[str, list[Record]] = {}
    for record in records:
        by_id.setdefault(record.id, []).append(record)
    found = []
    for name, of_case in by_id.items():
        of_its_own = rates(of_case, count_infra_errors=count_infra_errors)
        passed = of_its_own.passed
        if passed is not None:
            text = f"{round(passed.value * of_its_own.samples)} of {of_its_own.samples}"
            found.append(Share(name, passed.value, passed.low, passed.high, text))
    return sorted(found, key=lambda one: (one.value, one.name))
