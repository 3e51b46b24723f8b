"""Runs the worktree profile: every clause in every case, in parallel, with plain git's own commands as the first row."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from pytest_gittrix.conformance.worktrees.base.clause import WorktreeClause
from pytest_gittrix.conformance.worktrees.base.description import Waiver, WorktreeTool
from pytest_gittrix.conformance.worktrees.base.plain_git import PLAIN_GIT
from pytest_gittrix.conformance.worktrees.catalogue import worktree_clauses
from pytest_gittrix.conformance.worktrees.findings import CellOutcome, ClauseFinding, WorktreeReport, combined
from pytest_gittrix.conformance.worktrees.stage import CellStage
from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.os_level.monotonic import real_seconds

_LONGEST_RUN: Final = 3600.0

Progress: TypeAlias = Callable[[int, int], None]
Work: TypeAlias = tuple[WorktreeTool, WorktreeClause, str]


def run_worktree_profile(
    tool: WorktreeTool,
    clauses: Sequence[WorktreeClause] = (),
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> WorktreeReport:
    """Put a manager of worktrees to the clauses of the profile, with plain git beside it.

    The run has a process of its own without the machine's network, where the system allows that, and nothing of it is left afterwards.

    Args:
        tool: the description.
        clauses: the clauses to run; all by default.
        workers: how many cells run at a time; by default one more than there are processors.
        progress: called with the number of cells that are done, and their number in all.

    Raises:
        GittrixError: the run did not end.
    """
    chosen = tuple(clauses) or worktree_clauses()
    most = workers or (os.cpu_count() or 1) + 1

    def apart() -> WorktreeReport:
        offline = _leave_network()
        linux.adopt_orphans()
        return _run(tool, chosen, most, progress, offline=offline)

    ended = in_fork(apart, timeout=_LONGEST_RUN)
    if ended.error is not None:
        raise ended.error
    assert isinstance(ended.value, WorktreeReport), "the run's report can be pickled"
    return ended.value


def _leave_network() -> bool:
    user, group = os.geteuid(), os.getegid()
    try:
        linux.unshare(linux.NEW_USER | linux.NEW_NET)
        linux.keep_ids(user, group)
    except OSError:
        return False
    return True


def _run(tool: WorktreeTool, chosen: Sequence[WorktreeClause], workers: int, progress: Progress | None, *, offline: bool) -> WorktreeReport:
    begun = real_seconds()
    scratch = Path(tempfile.mkdtemp(prefix="gittrix-worktrees-"))
    try:
        stage = CellStage.below(scratch)
        with ThreadPoolExecutor(workers) as pool:
            claimed = [one for one in chosen if one.claimed_by(tool)]
            commands = [*dict.fromkeys(command for one in claimed for command in one.needs)]
            controls = dict(zip(commands, pool.map(partial(stage.control, tool), commands), strict=True))
            standing = [one for one in claimed if not _fails(one, controls)]
            # Plain git first: its row is measured in every run.
            rows = (PLAIN_GIT,) if tool == PLAIN_GIT else (PLAIN_GIT, tool)
            work: list[Work] = [(who, one, case) for who in rows for one in standing for case in one.cases]
            played = _played(pool, stage, work, progress)
        each = len(work) // len(rows)
        return WorktreeReport(
            tool.title,
            _first_line(tool, tool.version),
            _first_line(tool, "git --version"),
            real_seconds() - begun,
            tuple(_finding(one, tool, controls, played[-each:], played[:each]) for one in chosen),
            offline,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fails(one: WorktreeClause, controls: Mapping[str, str]) -> str:
    """Why there can be no verdict about a clause: what a command did on finished work; empty if all of them work."""
    needed = one.needs if one.controlled else ("create",) if one.code != "WNEW-08" else ()
    return next((controls[command] for command in needed if controls[command]), "")


def _played(pool: ThreadPoolExecutor, stage: CellStage, work: Sequence[Work], progress: Progress | None) -> list[CellOutcome]:
    done = 0

    def play(item: Work) -> CellOutcome:
        nonlocal done
        cell = stage.cell(*item)
        done += 1
        if progress is not None:
            progress(done, len(work))
        return cell

    return [*pool.map(play, work)]


def _finding(
    one: WorktreeClause,
    tool: WorktreeTool,
    controls: Mapping[str, str],
    ours: Sequence[CellOutcome],
    gits: Sequence[CellOutcome],
) -> ClauseFinding:
    if not one.claimed_by(tool):
        return ClauseFinding(one.code, "not claimed")
    if reason := _fails(one, controls):
        return ClauseFinding(one.code, "no verdict", reason)
    as_git = frozenset(cell.case for cell in gits if cell.code == one.code and cell.verdict == "broken")
    found = combined(one.code, [cell for cell in ours if cell.code == one.code], as_git)
    waiver = tool.waive.get(one.code)
    if found.verdict == "broken" and waiver is not None:
        return _waived(found, waiver, tool)
    return found


def _waived(found: ClauseFinding, waiver: Waiver, tool: WorktreeTool) -> ClauseFinding:
    """A finding that the tool's own help announces; the words are looked for."""
    said = " ".join(_output(tool, waiver.help).split())
    if " ".join(waiver.quote.split()) in said:
        return replace(found, verdict="documented", what=f"“{waiver.quote}” ({waiver.help})")
    return replace(found, what=f"{found.what} (waived, but `{waiver.help}` does not say “{waiver.quote}”)")


def _output(tool: WorktreeTool, line: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["sh", "-c", line], stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT, timeout=tool.timeout, check=False
        )
        return done.stdout.decode("utf-8", "replace")
    return ""


def _first_line(tool: WorktreeTool, line: str) -> str:
    return (_output(tool, line).strip().splitlines() or [""])[0] if line else ""
