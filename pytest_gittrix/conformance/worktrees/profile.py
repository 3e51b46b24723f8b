"""Runs the worktree profile: every clause in every case, in parallel, and plain git in each case that the tool breaks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias, TypeVar

from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.conformance.reports.model import NOT_YET
from pytest_gittrix.conformance.worktrees.base.clause import WorktreeClause
from pytest_gittrix.conformance.worktrees.base.description import Waiver, WorktreeTool
from pytest_gittrix.conformance.worktrees.base.plain_git import PLAIN_GIT
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses
from pytest_gittrix.conformance.worktrees.findings import CellOutcome, ClauseFinding, WorktreeReport, combined
from pytest_gittrix.conformance.worktrees.stage import CellStage
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.remove_tree import memory_directory, scratch_directory
from pytest_gittrix.testing.systems.driver import NO_SEARCH, SearchBudget

LONGEST_RUN: Final = 3600.0
"""Seconds after which a run is ended, not counting those that it searches for."""

T = TypeVar("T")
Progress: TypeAlias = Callable[[ClauseFinding, int], None]
"""Called with each finding once it is known, and with the number of clauses."""
Work: TypeAlias = tuple[WorktreeClause, str]
Played: TypeAlias = tuple[CellOutcome, bool]
"""What a tool did in a case, and whether plain git breaks the clause there, too."""


def run_worktree_profile(
    tool: WorktreeTool,
    clauses: Sequence[WorktreeClause] = (),
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    search: SearchBudget = NO_SEARCH,
) -> WorktreeReport:
    """Put a manager of worktrees to the clauses of the profile, and run plain git in each case that the tool breaks.

    The run has a process of its own without the machine's network, where the system allows that, and nothing of it is left afterwards.

    Args:
        tool: the description.
        clauses: the clauses to run; all by default.
        workers: how many cells run at a time; by default one more than there are processors.
        progress: called with each clause's finding once it is known, and with the number of clauses; in the process of the run.
        search: for how long all cases together search for crashes and races, beyond the moments that they always try. In cases that the
            tool breaks, plain git has the same seconds.

    Raises:
        GittrixError: the run did not end.
    """
    chosen = tuple(clauses) or worktree_clauses()
    most = workers or (os.cpu_count() or 1) + 1
    longest = LONGEST_RUN + 2 * (search.crash + search.race)
    return apart(lambda stage, offline: _run(tool, chosen, most, progress, stage, search, offline=offline), longest)


def apart(job: Callable[[CellStage, bool], T], longest: float) -> T:
    """Do a job with a stage for worlds, in a process of its own without the machine's network. Nothing of it is left afterwards.

    Args:
        job: is given the stage, and whether the network is kept away, which not every system allows.
        longest: seconds after which the process is ended.

    Raises:
        GittrixError: it did not end.
    """
    # This process removes it, since the other one may be killed.
    with scratch_directory("gittrix-worktrees-", memory_directory()) as scratch:

        def done() -> tuple[T]:
            offline = _leave_network()
            linux.adopt_orphans()
            return (job(CellStage.below(Path(scratch)), offline),)

        ended = in_fork(done, timeout=longest)
    if ended.error is not None:
        raise ended.error
    if not isinstance(ended.value, tuple):
        raise GittrixError(
            f"The run took more than {longest:g} seconds." if ended.timed_out else f"The run was killed by signal {ended.signal}.",
            why="There is no report of a part of a run.",
            fix="Run a part of the clauses, with --family or --clause, or lower the tool's timeout.",
        )
    result: T = ended.value[0]
    return result


def _leave_network() -> bool:
    user, group = os.geteuid(), os.getegid()
    try:
        linux.unshare(linux.NEW_USER | linux.NEW_NET)
        linux.keep_ids(user, group)
    except OSError:
        return False
    return True


def _run(
    tool: WorktreeTool,
    chosen: Sequence[WorktreeClause],
    workers: int,
    progress: Progress | None,
    stage: CellStage,
    search: SearchBudget,
    *,
    offline: bool,
) -> WorktreeReport:
    begun = real_seconds()
    with ThreadPoolExecutor(workers) as pool:
        claimed = [one for one in chosen if one.claimed_by(tool)]
        commands = [*dict.fromkeys(command for one in claimed for command in one.controls)]
        controls = dict(zip(commands, pool.map(partial(stage.control, tool), commands), strict=True))
        standing = [one for one in claimed if not _fails(one, controls)]
        work = [(one, case) for one in standing for case in one.cases]
        # The longest come first, so that no processor waits for another one at the end.
        work.sort(key=lambda item: not item[0].searches)
        findings: dict[str, ClauseFinding] = {}
        lock = Lock()

        def decided(one: WorktreeClause, played: Sequence[Played] = ()) -> None:
            found = _finding(stage, one, tool, controls, played)
            with lock:
                findings[one.code] = found
                if progress is not None:
                    progress(found, len(chosen))

        for one in chosen:
            if one not in standing:
                decided(one)
        _play(pool, replace(stage, search=share(search, work)), tool, work, decided)
    return WorktreeReport(
        tool.title,
        _first_line(stage.output(tool, tool.version, must_succeed=True)),
        _first_line(stage.output(PLAIN_GIT, PLAIN_GIT.version)),
        real_seconds() - begun,
        tuple(findings[one.code] for one in chosen),
        offline,
        f"{SystemClock().now():%Y-%m-%d}",
    )


def share(search: SearchBudget, work: Sequence[Work]) -> SearchBudget:
    """The seconds of one cell, if all cells that search share alike."""
    cells = Counter(one.searches for one, _ in work)
    return SearchBudget(search.crash / max(cells["crash"], 1), search.race / max(cells["race"], 1))


def _fails(one: WorktreeClause, controls: Mapping[str, str]) -> str:
    """Why there can be no verdict about a clause: what a command did on finished work; empty if all of them work."""
    return next((controls[command] for command in one.controls if controls[command]), "")


def _play(
    pool: ThreadPoolExecutor,
    stage: CellStage,
    tool: WorktreeTool,
    work: Sequence[Work],
    decided: Callable[[WorktreeClause, Sequence[Played]], None],
) -> None:
    """Play all cells, and hand over those of a clause, in the order of its cases, when the last of them was played."""
    done: dict[str, dict[str, Played]] = {}
    lock = Lock()

    def play(item: Work) -> None:
        one, case = item
        cell = stage.cell(tool, one, case)
        as_git = cell.verdict == "broken" and (tool == PLAIN_GIT or stage.cell(PLAIN_GIT, one, case).excuses(cell))
        with lock:
            cells = done.setdefault(one.code, {})
            cells[case] = cell, as_git
            was_last = len(cells) == len(one.cases)
        if was_last:
            decided(one, [cells[name] for name in one.cases])

    for _ in pool.map(play, work):
        pass


def _finding(
    stage: CellStage,
    one: WorktreeClause,
    tool: WorktreeTool,
    controls: Mapping[str, str],
    played: Sequence[Played],
) -> ClauseFinding:
    if not one.claimed_by(tool):
        return ClauseFinding(one.code, "not claimed")
    if reason := _fails(one, controls):
        return ClauseFinding(one.code, "no verdict", reason)
    as_git = frozenset(cell.case for cell, same in played if same)
    found = combined(one.code, [cell for cell, _ in played], as_git)
    waiver = tool.waive.get(one.code)
    if waiver is not None and waiver.not_yet:
        return _not_yet(found, waiver.not_yet)
    if found.verdict == "broken" and waiver is not None:
        return _waived(found, waiver, stage.output(tool, waiver.help))
    return found


def _not_yet(found: ClauseFinding, reason: str) -> ClauseFinding:
    """A finding that is known; a promise that is kept by now fails the run until its waiver is gone."""
    if found.verdict == "broken":
        return replace(found, verdict="waived", what=f"{NOT_YET}: {reason}", cases=())
    if found.verdict == "kept":
        return replace(found, verdict="broken", what=f"it is kept now: remove its waiver ({NOT_YET}: {reason})")
    return found


def _waived(found: ClauseFinding, waiver: Waiver, text: str) -> ClauseFinding:
    """A finding that the tool's own help announces; the words of the waiver are looked for in its text."""
    if " ".join(waiver.quote.split()) in " ".join(text.split()):
        return replace(found, verdict="documented", what=f"“{waiver.quote}” ({waiver.help})")
    return replace(found, what=f"{found.what} (waived, but `{waiver.help}` does not say “{waiver.quote}”)")


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
