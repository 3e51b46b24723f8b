"""Where cells run: each in a world of its own, and each script that shows a finding once in a directory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.base.script_end import FOUND
from pytest_gittrix.conformance.worktrees.base.clause import Judge, WorktreeClause
from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool
from pytest_gittrix.conformance.worktrees.base.world import NoVerdict, PromiseBroken, ToolWorld, make_template, opened_world
from pytest_gittrix.conformance.worktrees.clauses import finish, merged, remove
from pytest_gittrix.conformance.worktrees.findings import CellOutcome
from pytest_gittrix.os_level.remove_tree import scratch_directory
from pytest_gittrix.safe_text import printable
from pytest_gittrix.testing.systems.driver import NO_SEARCH, SearchBudget


def _runs(command: str) -> Judge:
    def judge(world: ToolWorld, _case: str) -> None:
        world.create()
        ran = world.command(command)
        if not ran.done:
            raise NoVerdict(f"`{ran.line}` ended with {ran.status} where nothing was in the way: {ran.last_line}")

    return judge


def _creates(world: ToolWorld, _case: str) -> None:
    world.create()


CONTROLS: Final[Mapping[str, Judge]] = {
    "create": _creates,
    "delete": remove.merged_is_removed,
    "clean": merged.merged_is_cleaned.judge,
    "dry_run": _runs("dry_run"),
    "expire": merged.old_is_removed,
    "finish": finish.lands.judge,
    "sync": _runs("sync"),
    "list": _runs("list"),
}
"""For each command what shows that it does something: without that, what it keeps says nothing."""


@dataclass(frozen=True)
class CellStage:
    """Where the worlds of a run are made.

    Attributes:
        template: the world that the others are copies of.
        scratch: the directory that they are made in.
        replays: whether the script of each finding is run once more.
        search: for how long a cell searches for a crash or a race, beyond the moments that it always tries.
    """

    template: Path
    scratch: Path
    replays: bool = True
    search: SearchBudget = NO_SEARCH

    @classmethod
    def below(cls, scratch: Path, *, replays: bool = True) -> CellStage:
        """Make the template, and so the stage, in a directory that is there."""
        make_template(scratch / "template")
        return cls(scratch / "template", scratch, replays)

    def cell(self, tool: WorktreeTool, one: WorktreeClause, case: str = "") -> CellOutcome:
        """Put a tool to one case of a clause; what is broken is shown once more by its script.

        What its script does not show again is no verdict: one of the two is wrong about the tool.
        """
        cell = self._judged(tool, one, case)
        if not (self.replays and cell.script):
            return cell
        if self.reproduces(cell.script, tool):
            return replace(cell, reproduced=True)
        what = f"{cell.what}; but the script, run once more, did not show it"
        return CellOutcome(cell.code, cell.case, "no verdict", what, cell.script)

    def _judged(self, tool: WorktreeTool, one: WorktreeClause, case: str) -> CellOutcome:
        try:
            with opened_world(tool, self.template, self.scratch, remote=one.remote) as world:
                world.search = self.search
                try:
                    one.judge(world, case)
                except PromiseBroken as broken:
                    # No script kills a program, or lets in another one, at a certain call.
                    script = "" if one.family == "WSRV" else world.script(f"{tool.title}, {one.code}: {broken}")
                    return CellOutcome(one.code, case, "broken", printable(str(broken)), script, lost=broken.lost)
        except NoVerdict as reason:
            return CellOutcome(one.code, case, "no verdict", printable(str(reason)))
        return CellOutcome(one.code, case, "kept", printable(world.note))

    def control(self, tool: WorktreeTool, command: str) -> str:
        """Why a command of a tool says nothing: what it did, or did not, on finished work; empty if it worked."""
        try:
            with opened_world(tool, self.template, self.scratch) as world:
                CONTROLS[command](world, "")
        except (NoVerdict, PromiseBroken) as reason:
            return printable(str(reason))
        return ""

    def output(self, tool: WorktreeTool, line: str, *, must_succeed: bool = False) -> str:
        """What a line prints in a world of the tool, for people; empty without a line or a world, or if it failed and must not."""
        with suppress(NoVerdict):
            if line:
                with opened_world(tool, self.template, self.scratch) as world:
                    ran = world.typed(line, world.repo)
                    return printable(ran.output) if ran.done or not must_succeed else ""
        return ""

    def reproduces(self, script: str, tool: WorktreeTool) -> bool:
        """Whether a script comes to its end when it is run once, in a directory of its own, and that says what is lost or wrong."""
        with scratch_directory("w", self.scratch) as place:
            return bool(FOUND.search(ToolWorld(tool, Path(place)).replay(script)))
