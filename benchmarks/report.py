"""A run as plain tables, as verdicts on the goals, and as JSON. Must not measure anything."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import TOTAL, Measurement

SCHEMA: Final = 1
GIT, PYGIT2, BY_HAND = "(a) git commands", "(b) pygit2 floor", "(c) floor by hand"
KINDS: Final = ("clone", "lazy", "copy", "worktree", "overlay")
PHASES: Final = ("start", "write", "review", "diff", "promote", "evict", "delete")
CYCLES: Final = {"cycle": "Cycle", "moving": "Cycle on a moving baseline, durability full,"}
"""The tables of cycles, by bench."""
MOVING_GOALS: Final = {
    "clone": {10: 3.5, 1_000: 3.5, 10_000: 3, 50_000: 2.5},
    "lazy": {10: 3.5, 1_000: 8, 10_000: 30, 50_000: 80},
    "overlay": {10: 3.5, 1_000: 8, 10_000: 30, 50_000: 80},
    "clone, a spare": {10: 3.5, 1_000: 8, 10_000: 8, 50_000: 6},
}
"""How many times faster than (a) the cycle is to be where the baseline moves, by kind and size."""
EXPONENTS, EXPONENT = "exponents", "exponent"
"""The bench of exponents, and the unit of those of its measurements that are exponents and not times."""
LARGEST_EXPONENT: Final = 1.1
FLOOR_SHARE: Final = 0.32
"""What the floor made by hand takes of (a) at 10 000 and 50 000 files."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal and what was measured for it.

    Attributes:
        goal: in words.
        limit: the number to reach.
        median: what the medians give.
        best: what the best rounds give: on a busy machine, the truer number.
        at_least: whether more is better.
    """

    goal: str
    limit: float
    median: float
    best: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the medians reach it."""
        return self.median >= self.limit if self.at_least else self.median <= self.limit


class Run:
    """The measurements of one run, to be looked up."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self.measurements = list(measurements)
        self._known = {(item.bench, item.name, item.phase, item.size): item for item in self.measurements}

    def find(self, bench: str, name: str, phase: str = TOTAL, size: int | None = None) -> Measurement | None:
        """One measurement, if it was made."""
        return self._known.get((bench, name, phase, size))

    def sizes(self, bench: str) -> list[int]:
        """The sizes a bench was run at, ascending."""
        return sorted({item.size for item in self.measurements if item.bench == bench and item.size is not None})

    def verdicts(self) -> list[Verdict]:
        """The goals that this run has numbers for."""
        return [verdict for verdict in self._goals() if verdict is not None]

    def _goals(self) -> Iterator[Verdict | None]:
        for kind in KINDS:
            goal = f"cycle at 10 files, {kind}: times faster than (a)"
            yield self._ratio(goal, ("cycle", GIT, TOTAL, 10), ("cycle", kind, TOTAL, 10), 5, at_least=True)
        for kind, goals in MOVING_GOALS.items():
            for size, limit in goals.items():
                goal = f"moving baseline, {kind} at " + f"{size:,} files: times faster than (a)".replace(",", " ")
                yield self._ratio(goal, ("moving", GIT, TOTAL, size), ("moving", kind, TOTAL, size), limit, at_least=True)
        yield self._ratio("lazy: 50 000 files over 10 files", ("cycle", "lazy", TOTAL, 50_000), ("cycle", "lazy", TOTAL, 10), 2)
        for size in self.sizes("cycle"):
            goal = f"overlay at {size:,} files: ms".replace(",", " ")
            yield self._plain(f"{goal} a cycle", ("cycle", "overlay", TOTAL, size), 12)
            yield self._plain(f"{goal} a start", ("cycle", "overlay", "start", size), 3)
        for size in (10_000, 50_000):
            goal = f"clone at {size:,} files over (a)".replace(",", " ")
            yield self._ratio(goal, ("cycle", "clone", TOTAL, size), ("cycle", GIT, TOTAL, size), 1.3 * FLOOR_SHARE)
        promote, drift = ("cycle", "lazy", "promote"), ("drift", "20 files drifted", TOTAL)
        yield self._ratio("promotion of 20 files: 50 000 over 1 000", (*promote, 50_000), (*promote, 1_000), 2.5)
        yield self._ratio("drift of 20 files: 50 000 over 1 000", (*drift, 50_000), (*drift, 1_000), 2.5)
        for place, limit in (("memory", 4), ("disk", 12)):
            used, bare = (("fixture", f"{name}, {place}", TOTAL, None) for name in ("gittrix_session", "no fixture"))
            yield self._difference(f"gittrix_session, 10 files, {place}: ms a test", used, bare, limit)
        with_, without = (("startup", f"pytest --co{how}", "cpu", None) for how in (", plugin installed", " -p no:gittrix"))
        yield self._difference("unused plugin: ms of processor time", with_, without, 10)
        for kind in ("lazy", "clone"):
            yield self._plain(f"state machine, {kind}: steps/s", ("machine", f"machine steps/s, {kind}", TOTAL, None), 150, at_least=True)
        yield self._plain("state machine: fresh world, ms", ("machine", "fresh world ms", "open", None), 3)
        yield self._plain("gittrix --help: ms", ("startup", "gittrix --help", TOTAL, None), 120)
        for verb, dead in (("list", 100), ("info", 100), ("info", 10_000)):
            goal = f"session {verb}, {dead} ended sessions: times python -c pass"
            shown, bare = (("command line", name, "cpu", dead) for name in (f"session {verb}", "python -c pass"))
            yield self._ratio(goal, shown, bare, 4)
        for verb in ("start", "info", "touched", "diff"):
            large, small = (("session in use", f"session {verb}", "cpu", size) for size in (50_000, 10))
            yield self._ratio(f"session {verb}, lazy: processor time, 50 000 files over 10", large, small, 1.5)
        yield self._plain("unfinished work of 10 000 files: ms", ("unfinished", "unfinished_work()", TOTAL, 10_000), 50)
        yield self._plain("sweep of 5 000 sessions, none due: ms", ("store", "sweep, none due", TOTAL, 5_000), 20)
        for name in ("session.record", "session.record, one subscriber"):
            yield self._plain(f"{name}, without sync: events/s", ("history", name, TOTAL, 50_000), 20_000, at_least=True)
        for name in ("5 events a session", "500 events a session", "one session"):
            yield self._plain(f"index rebuilt, {name}: events/s", ("rebuild", name, TOTAL, None), 100_000, at_least=True)
        yield self._plain("eval sample of an agent that is a function: ms", ("evals", "a function", TOTAL, None), 10)
        yield self._plain(
            "page of 1 000 samples, usable in Chromium: ms", ("eval page", "the page in Chromium", "until usable", 1_000), 1_000
        )
        yield self._slowest("slowest query of 100 000 sessions: ms", "query", 100_000, 50)
        for durability in ("fast", "full"):
            engine, git = (("contention", name, durability, 4) for name in ("the engine", GIT))
            goal = f"four processes promote, durability {durability}: promotions/s over (a) under a lock"
            yield self._ratio(goal, engine, git, 0.7, at_least=True)
        found = [item for item in self.measurements if item.unit == EXPONENT]
        if found:
            most = max(found, key=lambda item: item.best)
            yield Verdict(f"largest exponent ({most.phase} by {most.name})", LARGEST_EXPONENT, most.median, most.best)

    def _pair(self, one: _Key, other: _Key) -> tuple[Measurement, Measurement] | None:
        first, second = self._known.get(one), self._known.get(other)
        return (first, second) if first is not None and second is not None else None

    def _ratio(self, goal: str, over: _Key, under: _Key, limit: float, *, at_least: bool = False) -> Verdict | None:
        pair = self._pair(over, under)
        return Verdict(goal, limit, pair[0].median / pair[1].median, pair[0].best / pair[1].best, at_least) if pair else None

    def _difference(self, goal: str, more: _Key, less: _Key, limit: float) -> Verdict | None:
        pair = self._pair(more, less)
        return Verdict(goal, limit, pair[0].median - pair[1].median, pair[0].best - pair[1].best) if pair else None

    def _plain(self, goal: str, key: _Key, limit: float, *, at_least: bool = False) -> Verdict | None:
        item = self._known.get(key)
        return Verdict(goal, limit, item.median, item.best, at_least) if item else None

    def _slowest(self, goal: str, bench: str, size: int, limit: float) -> Verdict | None:
        items = [item for item in self.measurements if (item.bench, item.size) == (bench, size)]
        return Verdict(goal, limit, max(item.median for item in items), max(item.best for item in items)) if items else None


_Key = tuple[str, str, str, int | None]


def to_json(run: Run, environment: dict[str, Any]) -> str:
    """The whole run: ``schema``, ``environment``, ``measurements`` and ``verdicts``."""
    found = {
        "schema": SCHEMA,
        "environment": environment,
        "measurements": [item.to_json() for item in run.measurements],
        "verdicts": [asdict(verdict) | {"met": verdict.met} for verdict in run.verdicts()],
    }
    return json.dumps(found, indent=1) + "\n"


def environment(memory: str | None, disk: str) -> dict[str, Any]:
    """What the numbers depend on."""
    from importlib.metadata import version

    from pytest_gittrix.git.environment import git_version

    return {
        "python": platform.python_version(),
        "git": ".".join(map(str, git_version())),
        **{name: version(name) for name in ("pytest", "pygit2", "pytest-gittrix")},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "memory": memory or "none, so everything was on the disk",
        "disk": f"{disk} ({_file_system(disk)})",
    }


def text(run: Run, environment: dict[str, Any]) -> str:
    """The run as plain tables."""
    parts = ["\n".join(f"{name}: {value}" for name, value in environment.items())]
    parts += [_cycle(run, bench, size) for bench in CYCLES for size in run.sizes(bench)]
    if run.sizes(EXPONENTS):
        parts.append(_exponents(run))
    rest = dict.fromkeys(item.bench for item in run.measurements if item.bench not in (*CYCLES, EXPONENTS))
    parts += [_plain_table(run, bench) for bench in rest]
    verdicts = run.verdicts()
    if verdicts:
        rows = [_verdict_row(verdict) for verdict in verdicts]
        parts.append("Goals\n" + table(("goal", "limit", "median", "best", ""), rows))
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be; the first to the left, the others to the right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    place: list[Callable[[str, int], str]] = [str.ljust, *[str.rjust] * (len(head) - 1)]
    shown = ["  ".join(put(cell, width) for put, cell, width in zip(place, line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([shown[0], "-" * max(map(len, shown)), *shown[1:]])


def _cycle(run: Run, bench: str, size: int) -> str:
    names = dict.fromkeys(item.name for item in run.measurements if item.bench == bench and item.size == size)
    rows = []
    for name in names:
        total = run.find(bench, name, TOTAL, size)
        assert total is not None
        ratios = [_share(total, run.find(bench, base, TOTAL, size)) for base in (GIT, PYGIT2, BY_HAND)]
        phases = [run.find(bench, name, phase, size) for phase in PHASES]
        rows.append([name, number(total.median), number(total.best), *ratios, *(number(item.median) if item else "" for item in phases)])
    head = ("ms", "total", "best", "/ (a)", "/ (b)", "/ (c)", *PHASES[:-1], "delete*")
    title = f"{CYCLES[bench]} at " + f"{size:,} files".replace(",", " ")
    return f"{title} (* later, in no total; git deletes in evict)\n{table(head, rows)}"


def _plain_table(run: Run, bench: str) -> str:
    items = [item for item in run.measurements if item.bench == bench]
    rows = [(item.name, _phase(item), _size(item), number(item.median), number(item.best), item.unit, str(item.rounds)) for item in items]
    return f"{bench.capitalize()}\n" + table(("", "phase", "size", "median", "best", "unit", "rounds"), rows)


def _exponents(run: Run) -> str:
    """Operations by dimensions; in each field the exponent, and the milliseconds at the largest size."""
    items = [item for item in run.measurements if item.bench == EXPONENTS]
    largest = {item.name: max(other.size or 0 for other in items if other.name == item.name) for item in items}
    rows = []
    for operation in dict.fromkeys(item.phase for item in items):
        fields = [operation]
        for dimension, size in largest.items():
            taken, found = run.find(EXPONENTS, dimension, operation, size), run.find(EXPONENTS, dimension, operation)
            fields.append(f"{found.best:.2f} ({number(taken.best)})" if taken and found else "")
        rows.append(fields)
    head = ("", *(f"{dimension}: {size:,}".replace(",", " ") for dimension, size in largest.items()))
    return "Exponents (and ms of processor time at the largest size, best round)\n" + table(head, rows)


def _verdict_row(verdict: Verdict) -> tuple[str, ...]:
    sign = ">=" if verdict.at_least else "<="
    end = "met" if verdict.met else "MISSED"
    return (verdict.goal, f"{sign} {verdict.limit:g}", number(verdict.median), number(verdict.best), end)


def _phase(item: Measurement) -> str:
    return "" if item.phase == TOTAL else item.phase


def _size(item: Measurement) -> str:
    return "" if item.size is None else f"{item.size:,}".replace(",", " ")


def _share(item: Measurement, base: Measurement | None) -> str:
    return f"{item.median / base.median:.3f}" if base else ""


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _file_system(path: str) -> str:
    """The type of the file system a path is on, where the system tells."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    real = os.path.realpath(path)
    above = [(fields[1], fields[2]) for fields in mounts if real == fields[1] or real.startswith(fields[1].rstrip("/") + "/")]
    return max(above, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
