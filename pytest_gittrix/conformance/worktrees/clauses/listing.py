"""WTRU: the list tells the truth about git and the disk."""

from __future__ import annotations

import re
import shutil
from typing import Final

from pytest_gittrix.conformance.worktrees.base.clause import clause, named
from pytest_gittrix.conformance.worktrees.base.forms import keeps_what_maintenance_keeps
from pytest_gittrix.conformance.worktrees.base.world import ToolWorld

_GONE: Final = re.compile(r"gone|missing|prunable|stale|deleted|removed|not found|orphan|broken|invalid|no such", re.IGNORECASE)
_STATES: Final = {
    "detached": "git checkout -q --detach",
    "rebase": 'git commit -q --allow-empty -m x; GIT_SEQUENCE_EDITOR="sed -i 1s/pick/edit/" git rebase -q -i HEAD~1 2>/dev/null',
    "locked": "git worktree lock .",
    "removed by hand": 'cd /; rm -rf "$W"',
    "without its .git": "rm .git",
    "without its branch": 'git update-ref -d "$(git symbolic-ref HEAD)"',
}


@clause(
    "WTRU-01",
    "a worktree that was removed by hand is shown as gone, and its name can be used again",
    "a name is lost for good because somebody typed rm -rf",
    "list",
    applies=named,
)
def removed_by_hand(world: ToolWorld, _case: str) -> None:
    """The directory is gone; git and the tool have their records of it."""
    path = world.create()
    shutil.rmtree(path)
    world.lines.append('rm -rf "$W"')
    listed = world.command("list", said=True).output
    line = next((line for line in listed.splitlines() if "demo" in line), "")
    world.require(
        not line or bool(_GONE.search(line)), "the list shows a worktree that is gone as if it were there", '! grep -q demo "$R/said"'
    )
    ran = world.command("create", said=True)
    world.check('test -d "$W"', "a name cannot be used again after its directory was removed by hand")
    world.require(ran.done, "the name can be used again, and the command fails", "test $S -eq 0")


@clause(
    "WTRU-02",
    "the list exits with 0, whatever state a worktree is in",
    "one broken worktree hides all others",
    "list",
    cases=tuple(_STATES),
)
def whatever_the_state(world: ToolWorld, case: str) -> None:
    """Detached, in a rebase, locked, removed by hand, without its .git file, without its branch."""
    world.sh(_STATES[case], world.create())
    ran = world.command("list", said=True)
    world.require(ran.done, f"the list fails where a worktree is {case}", "test $S -eq 0")


@clause("WTRU-03", "the list, git and the disk name the same worktrees", "people delete by a list that is wrong", "list", applies=named)
def the_same_worktrees(world: ToolWorld, _case: str) -> None:
    """Two that are there, and one that was removed. A pool may list the directory of that one, and not its name."""
    paths = {name: world.create(name) for name in ("alpha-one", "beta-two", "gamma-three")}
    before = world.worktrees()
    if world.tool.has("delete"):
        world.command("delete", "gamma-three")
    there = world.worktrees()
    listed = world.command("list", said=True).output
    for name, path in paths.items():
        shown = name in listed or (str(path) in listed and not world.tool.pool)
        right = f'{"! " if shown else ""}grep -q {name} "$R/said"'
        expected = path in there and not world.gone(path, before.get(path, ""))
        world.require(shown == expected, f"the list is wrong about {name}", right)


@clause(
    "WTRU-04",
    "listing prunes nothing that git's own maintenance keeps: dropped stashes, commits of a reflog, worktrees that are not mounted",
    "a look at the list closes the way back from a slip",
    "list",
)
def listing_keeps_what_maintenance_keeps(world: ToolWorld, _case: str) -> None:
    """A person asks for the list, and nothing else."""
    keeps_what_maintenance_keeps(world, "list")
