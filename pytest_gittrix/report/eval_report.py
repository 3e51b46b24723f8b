"""The report of an eval run: one self-contained HTML page with the outcome of every sample.

All text from a suite, an agent or a repository is escaped, by the template or where colours are added. The page works from a file, without
a network. Without JavaScript it still shows everything, unsorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.evals.inputs.sample_record import OUTCOMES, Record, digest
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.summary import Rates, rates
from pytest_gittrix.extras import needs
from pytest_gittrix.os_level.files import PUBLIC, write_file
from pytest_gittrix.report.plots import Share, histogram, shares
from pytest_gittrix.report.side_by_side import FileDiff, file_diffs
from pytest_gittrix.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment

NAME: Final = "report.html"
"""The file name of the page in the run's directory."""

OUTCOME_TEXTS: Final[Mapping[str, str]] = {
    "pass": "passed",
    "fail": "failed a check",
    "conflict": "met a conflict",
    "refused": "refused at review",
    "agent_error": "ended in an error of the agent",
    "timeout": "ran out of time",
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
    "check.done": ("kind", "detail"),
}
_MOST_LINES: Final = 600
_MOST_STEPS: Final = 200
_MOST_TEXT: Final = 4_000
_MOST_SHARES: Final = 40
_FAILING_FIRST: Final = {outcome: number for number, outcome in enumerate((*(one for one in OUTCOMES if one != "pass"), "pass"))}


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One entry of a timeline, a transcript or an output: its kind, its title, its details, and whether it is an error."""

    kind: str
    title: str
    detail: str = ""
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
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
    """

    record: Record
    task: str
    seconds: float | None
    phases: tuple[tuple[str, float], ...]
    events: tuple[TimelineEntry, ...]
    transcript: tuple[TimelineEntry, ...]
    output: tuple[TimelineEntry, ...]
    files: tuple[FileDiff, ...]
    again: str


def write_report(store: RunStore, to: Path | None = None) -> Path:
    """Write the page of a run.

    Args:
        store: the run.
        to: the file; ``report.html`` in the run's directory by default.

    Returns:
        The file.

    Raises:
        ExtraMissing: the template library is not installed (``pytest-gittrix[evals]``).
        InvalidInput: a record of the run is damaged.
        OSError: the file cannot be written.
    """
    page = page_of(store)
    file = to if to is not None else store.path / NAME
    write_file(str(file), page.encode("utf-8", "replace"), mode=PUBLIC)
    return file


def page_of(store: RunStore) -> str:
    """The HTML of a run's page. Raises as ``write_report``."""
    template = _environment().get_template("report.html")
    records = sorted(store.records(), key=lambda one: (_FAILING_FIRST[one.outcome], one.id, one.epoch))
    samples = [_sample(store, record) for record in records]
    manifest = store.manifest()
    counts: dict[str, int] = {outcome: sum(one.outcome == outcome for one in records) for outcome in OUTCOMES}
    found = rates(records)
    count = sum(store.is_taken_over(one.key) for one in records)
    taken_over = f"{count} of {len(records)}" if count or "from" in manifest.host else None
    return template.render(
        run=store.path.name,
        suite=manifest.core["suite"],
        digest=manifest.digest,
        result=digest(records),
        facts=_facts(manifest.core, manifest.host, taken_over),
        is_mixed=store.is_mixed,
        verdict=verdict(counts),
        counts={outcome: count for outcome, count in counts.items() if count},
        outcome_texts=OUTCOME_TEXTS,
        planned=len(manifest.core["samples"]) * manifest.core["epochs"],
        samples=samples,
        rates=found,
        times=histogram(_times(samples), label="How long the agents took"),
        cases=_cases(records) if manifest.core["epochs"] > 1 else "",
        css=_file("report.css") + _colours(),
        script=_file("report.js"),
    )


def verdict(counts: Mapping[str, int]) -> tuple[str, str]:
    """The outcome of a run: ``7 of 10 samples passed.``, and ``2 failed a check, 1 met a conflict.`` or an empty text."""
    every = sum(counts.values())
    if not every:
        return "No sample has been run.", ""
    others = [f"{count} {OUTCOME_TEXTS[outcome]}" for outcome, count in counts.items() if count and outcome != "pass"]
    passed = f"{counts['pass']} of {every} samples passed."
    return passed, f"{', '.join(others)}." if others else ""


# A sample -----------------------------------------------------------------------------------------------------


def _sample(store: RunStore, record: Record) -> Sample:
    timing = store.lines("timing", record.key)
    phases = tuple((str(line["phase"]), float(line["ms"])) for line in timing if "phase" in line and "ms" in line)
    agent = next((ms / 1000 for phase, ms in phases if phase == "agent"), None)
    output = [step for line in timing if "stdout" in line or "traceback" in line for step in _printed(line)]
    events = store.lines("events", record.key)
    return Sample(
        record,
        next((_clipped(str(line["data"]["task"])) for line in events if line.get("kind") == "session.created"), ""),
        agent,
        phases,
        tuple(_event(line) for line in events),
        tuple(_action(line) for line in store.lines("transcripts", record.key)[:_MOST_STEPS]),
        tuple(output),
        tuple(file_diffs(store.part("patches", record.key), most_lines=_MOST_LINES)),
        store.replay_command(record),
    )


def _event(line: Mapping[str, Any]) -> TimelineEntry:
    data, kind = line.get("data", {}), str(line.get("kind", ""))
    title = _EVENT_TITLES.get(kind)
    names = [name for name in _EVENT_FIELDS.get(kind, data) if data.get(name) not in (None, "", [], {})]
    detail = "  ".join(f"{name.replace('_', ' ')} {_short(data[name])}" for name in names)
    wrong = kind.endswith((".conflict", ".aborted", ".failed")) or data.get("ok") is False
    return TimelineEntry(str(line.get("actor", "")), title or kind, detail, wrong)


def _action(line: Mapping[str, Any]) -> TimelineEntry:
    kind = str(line.get("do", ""))
    what = " ".join(map(str, line["argv"])) if "argv" in line else str(line.get("path") or line.get("text") or "")
    exit_code = line.get("exit")
    printed = "".join(str(line.get(stream) or "") for stream in ("stdout", "stderr"))
    shown = printed or line.get("data") or (line.get("fed") or {}).get("data") or ""
    result = f"exit {exit_code}" if exit_code is not None else ""
    return TimelineEntry(kind, f"{what}  {result}".strip(), _clipped(str(shown)), exit_code not in (None, 0))


def _printed(line: Mapping[str, Any]) -> list[TimelineEntry]:
    name = f"check {line['check']}" if "check" in line else "agent"
    if "traceback" in line:
        return [TimelineEntry(name, "traceback", _clipped(str(line["traceback"])), True)]
    wrong = line.get("exit") not in (0, None) or bool(line.get("timed_out"))
    return [TimelineEntry(name, stream, _clipped(str(line[stream])), wrong) for stream in ("stdout", "stderr") if line.get(stream)]


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    is_id = len(text) in (40, 64) and all(digit in "0123456789abcdef" for digit in text)
    return text[:10] if is_id else text if len(text) <= 80 else f"{text[:79]}…"


def _clipped(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n… {len(text) - _MOST_TEXT} more characters"


# The run ------------------------------------------------------------------------------------------------------


def _facts(core: Mapping[str, Any], host: Mapping[str, Any], taken_over: str | None) -> list[tuple[str, str]]:
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
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _times(samples: Sequence[Sample]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for outcome in OUTCOMES:
        times = [one.seconds for one in samples if one.record.outcome == outcome and one.seconds is not None]
        if times:
            found[f"o-{outcome}"] = times
    return found


def _cases(records: Sequence[Record]) -> str:
    cases = {record.id: rates([one for one in records if one.id == record.id]) for record in sorted(records, key=lambda one: one.id)}
    worst = sorted(cases.items(), key=lambda case: (case[1].passed.value if case[1].passed else 0.0, case[0]))[:_MOST_SHARES]
    return shares([share for name, found in worst if (share := _share(name, found))], label="How often each case passed")


def _share(name: str, found: Rates) -> Share | None:
    if found.passed is None:
        return None
    good = round(found.passed.value * found.samples)
    return Share(name, found.passed.value, found.passed.low, found.passed.high, f"{good} of {found.samples}")


# The page ----------------------------------------------------------------------------------------------------------------------


@cache
def _environment() -> Environment:
    with needs("evals"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    loader = PackageLoader("pytest_gittrix.report", "page")
    return Environment(loader=loader, finalize=_finalized, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _finalized(value: object) -> object:
    """What the template prints of a value: no character of a text reorders or hides what is around it."""
    return visible(value) if type(value) is str else value


def _file(name: str) -> str:
    return (Path(__file__).parent / "page" / name).read_text(encoding="utf-8")


def _colours() -> str:
    """The colours of code, for light pages and dark ones."""
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="xcode").get_style_defs("td.code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".dark td.code")
    return "\n".join(line for line in f"{light}\n{dark}".splitlines() if "td.code ." in line)
