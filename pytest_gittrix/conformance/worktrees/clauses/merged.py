"""WMRG: cleaning removes what is finished, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.worktrees.base.clause import clause, named
from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool
from pytest_gittrix.conformance.worktrees.base.forms import (
    FORMS,
    LINKS,
    finish_by_hand,
    follows_no_link,
    judge_form,
    keeps_what_maintenance_keeps,
    plant,
    removes_finished_work,
)
from pytest_gittrix.conformance.worktrees.base.world import NoVerdict, ToolWorld, token

_KEEPING: Final = re.compile(r"keep|kept|skip|not |n't|unmerged|refus|active|ahead|retain|dirty|warn", re.IGNORECASE)
_HEX: Final = re.compile(r"\b[0-9a-f]{7,64}\b")


def _removes(tool: WorktreeTool) -> bool:
    """Whether cleaning removes directories that the caller named; a pool keeps them for others."""
    return named(tool) and not tool.pool


def _commit(world: ToolWorld, what: str) -> str:
    """Commit work in the worktree, and give its text."""
    text = token(what)
    world.sh(f"echo {text} > {what}.txt; git add -A; git commit -qm '{what}'", world.path_of())
    return text


@clause("WMRG-01", "clean and merged work is removed", "the other clauses would judge a command that does nothing", "clean")
def merged_is_cleaned(world: ToolWorld, _case: str) -> None:
    """A clean worktree whose branch is merged into the base is removed: the control of the family."""
    removes_finished_work(world, "clean")


@clause("WMRG-02", "commits after the merge count as unfinished", "the second half of the work goes with the first", "clean")
def commits_after_a_merge(world: ToolWorld, _case: str) -> None:
    """A branch that went on after it was merged is not finished."""
    world.create()
    finish_by_hand(world)
    text = _commit(world, "later")
    world.command("clean")
    world.findable(text, "a commit that was made after the merge is gone")


@clause("WMRG-03", "commits after a squash merge count as unfinished", "the second half of the work goes with the first", "clean")
def commits_after_a_squash(world: ToolWorld, _case: str) -> None:
    """A branch that went on after it was squashed into the base is not finished."""
    path = world.create()
    _commit(world, "first")
    world.sh(f'git merge -q --squash "$(git -C "{path}" rev-parse HEAD)" >/dev/null; git commit -qm squashed')
    text = _commit(world, "later")
    world.command("clean")
    world.findable(text, "a commit that was made after the squash merge is gone")


@clause(
    "WMRG-04",
    "a tag of the branch's name is not the branch",
    "a release called v2 makes the branch v2 look merged",
    "clean",
    applies=named,
)
def a_tag_is_not_the_branch(world: ToolWorld, _case: str) -> None:
    """An unmerged branch is kept where a tag of its name points into the base branch."""
    world.sh("echo more > more.txt; git add .; git commit -qm more")
    path = world.create("v2")
    text = token("tagged")
    world.sh(f"echo {text} > new.txt; git add new.txt; git commit -qm work", path)
    world.sh(f'git tag "$(git -C "$W" symbolic-ref --short HEAD)" {world.base}~1')
    world.command("clean")
    world.findable(text, "an unmerged branch is gone, because a tag of its name is merged")


@clause(
    "WMRG-05",
    "a fresh worktree without a commit is not finished work",
    "cleaning takes the worktree from under an agent that is about to start",
    "clean",
)
def fresh_is_not_finished(world: ToolWorld, _case: str) -> None:
    """A worktree that was just created stays."""
    path = world.create()
    head = world.worktrees().get(path, "")
    world.command("clean")
    world.require(not world.gone(path, head), "a worktree that was just created is gone", 'test -d "$W"')


@clause(
    "WMRG-06",
    "a branch whose remote branch was deleted unmerged is not finished",
    "closing a pull request throws the work away",
    "clean",
    remote=True,
)
def a_closed_request_is_not_finished(world: ToolWorld, _case: str) -> None:
    """The remote branch is gone, and its commits are in no other branch."""
    path = world.create()
    text = _commit(world, "closed")
    world.sh('git push -q -u origin HEAD; git push -q origin --delete "$(git symbolic-ref --short HEAD)"; git fetch -q -p', path)
    world.command("clean")
    world.findable(text, "the commits of a branch whose remote branch was deleted unmerged are gone")


@clause("WMRG-07", "work that was reverted is not 'no difference'", "history that somebody wants back is gone", "clean")
def reverted_is_not_merged(world: ToolWorld, _case: str) -> None:
    """A branch whose last commit reverts the one before differs from the base in nothing but its history."""
    path = world.create()
    text = _commit(world, "reverted")
    world.sh("git revert --no-edit HEAD >/dev/null", path)
    world.command("clean")
    world.findable(text, "work that was reverted on its unmerged branch is gone")


@clause("WMRG-08", "a renamed base branch does not make all merged", "a change of the branch's name throws all work away", "clean")
def a_renamed_base(world: ToolWorld, _case: str) -> None:
    """The base branch is called trunk now; a branch that is not merged into it stays."""
    world.create()
    text = _commit(world, "work")
    world.sh(f"git branch -m {world.base} trunk")
    world.command("clean")
    world.findable(text, "the commits of an unmerged branch are gone, since the base branch was renamed")


@clause(
    "WMRG-09",
    "merged into whatever is checked out is not merged into the base",
    "a branch goes because somebody tried it out",
    "clean",
)
def merged_elsewhere(world: ToolWorld, _case: str) -> None:
    """The main checkout is on another branch, which has the work; the base has not."""
    path = world.create()
    _commit(world, "tried")
    branch = world.branch_of(path)
    world.sh(f'git checkout -q -b trial; git merge -q --no-edit "$(git -C "{path}" rev-parse HEAD)"')
    world.command("clean")
    world.check(
        f'git show-ref -q --verify "refs/heads/{branch}"', "a branch is gone that is merged into the branch checked out, not into the base"
    )


@clause(
    "WMRG-10",
    "a local merge is distinguished from one on the remote",
    "the only copy of merged work is on a machine that somebody is about to wipe",
    "clean",
    remote=True,
)
def merged_here_alone(world: ToolWorld, _case: str) -> None:
    """What the command does or says differs between a merge that was pushed and one that was not."""
    seen = []
    for name in ("first", "second"):
        path = world.create(name)
        world.sh(f"echo {name} > {name}.txt; git add -A; git commit -qm {name}", path)
        world.sh(f'git merge -q --no-ff --no-edit "$(git -C "{path}" rev-parse HEAD)"' + ("; git push -q" if name == "first" else ""))
        ran = world.command("clean", name)
        output = _HEX.sub("*", ran.output.replace(str(path), "*")).replace(name, "*")
        seen.append((ran.status, path.is_dir(), output))
    world.require(
        seen[0] != seen[1],
        "a merge that was not pushed is cleaned without a word",
        f'test "$(git rev-parse {world.base})" = "$(git rev-parse origin/{world.base})"',
    )


@clause(
    "WMRG-11",
    "cleaning keeps unfinished work on a merged branch, in every form",
    "the branch is finished, and what was not committed goes with it",
    "clean",
    cases=tuple(name for name in FORMS if name != "unmerged"),
)
def every_form_on_a_merged_branch(world: ToolWorld, case: str) -> None:
    """The forms of WREM-01 to WREM-19, on a branch that is merged."""
    text = plant(world, FORMS[case], case, finished=True)
    world.command("clean")
    judge_form(world, FORMS[case], text)


@clause(
    "WMRG-12",
    "one worktree that cannot be removed neither stops nor hides the others",
    "the first refusal ends the cleaning, or goes unreported",
    "clean",
    applies=_removes,
)
def one_refusal_of_three(world: ToolWorld, _case: str) -> None:
    """Of three merged worktrees one has an unsaved edit: the others go, and exit status or output tell of the one."""
    names = ("alpha", "beta", "gamma")
    for name in names:
        world.create(name)
        finish_by_hand(world, name)
    world.sh(f"echo {token('unsaved')} >> file.txt", world.path_of("beta"))
    ran = world.command("clean", said=True)
    world.findable(token("unsaved"), "the text of a modified file is gone")
    for name in ("alpha", "gamma"):
        world.check(f'test ! -d "{world.path_of(name)}"', f"the worktree {name} is still there, since beta could not be removed")
    shown = not ran.done or "beta" in ran.output or not world.path_of("beta").is_dir()
    tells = f'test $S -ne 0 || grep -q beta "$R/said" || test ! -d "{world.path_of("beta")}"'
    world.require(shown, "one worktree was not removed, and neither exit status nor output tells", tells)


@clause("WMRG-13", "a dry run names exactly what the run removes", "people trust the preview", "clean", "dry_run", applies=_removes)
def a_dry_run(world: ToolWorld, _case: str) -> None:
    """Each worktree that goes is named, nothing goes in the dry run, and one that stays is not announced as going."""
    names = ("done-one", "done-two", "live-three")
    for name in names:
        world.create(name)
        if name != "live-three":
            finish_by_hand(world, name)
    world.sh("echo more > more.txt; git add more.txt; git commit -qm more", world.path_of("live-three"))
    announced = world.command("dry_run", said=True)
    for name in names:
        world.check(f'test -d "{world.path_of(name)}"', f"the dry run removed {name}")
    world.command("clean")
    for name in names:
        lines = [line for line in announced.output.splitlines() if name in line]
        stays = world.path_of(name).is_dir()
        # One line may say that it is looked at, and another that it is kept.
        going = bool(lines) and not (stays and any(map(_KEEPING.search, lines)))
        what = f"the dry run announced {name}, which stays" if stays else f"{name} was removed, and the dry run did not name it"
        world.require(going != stays, what, f'{"! " if stays else ""}grep -q {name} "$R/said"')


@clause(
    "WMRG-14",
    "commits after a squash merge count, also where the remote branch was deleted with it",
    "the second half of the work goes with the first, since the host tidied up",
    "clean",
    remote=True,
)
def commits_after_a_merged_request(world: ToolWorld, _case: str) -> None:
    """A pull request was merged as one commit, its branch was deleted on the remote, and the work went on in the worktree."""
    path = world.create()
    _commit(world, "first")
    world.sh("git push -q -u origin HEAD", path)
    world.sh(f'git merge -q --squash "$(git -C "{path}" rev-parse HEAD)" >/dev/null; git commit -qm squashed; git push -q')
    world.sh('git push -q origin --delete "$(git symbolic-ref --short HEAD)"; git fetch -q -p', path)
    text = _commit(world, "later")
    world.command("clean")
    world.findable(text, "a commit is gone that was made after a squash merge, whose branch was deleted on the remote")


_LONG_AGO: Final = "2020-01-01T00:00:00Z"
_TOUCHED_LONG_AGO: Final = "touch -h -t 202001010000"


def _old(world: ToolWorld) -> Path:
    """Create a worktree whose work is finished, and which was not used for years."""
    path = world.create()
    dates = f"export GIT_AUTHOR_DATE={_LONG_AGO} GIT_COMMITTER_DATE={_LONG_AGO}"
    world.sh(f"{dates}; echo done > done.txt; git add -A; git commit -qm 'add done.txt'", path)
    world.sh(f'git merge -q --no-ff --no-edit "$(git -C "{path}" rev-parse HEAD)"')
    world.sh(f'find "$PWD" "$(git rev-parse --absolute-git-dir)" -exec {_TOUCHED_LONG_AGO} {{}} +', path)
    return path


def old_is_removed(world: ToolWorld, _case: str) -> None:
    """The control of ``expire``: a finished worktree is removed that was not used for years."""
    path = _old(world)
    head = world.worktrees().get(path, "")
    ran = world.command("expire")
    if not world.gone(path, head):
        raise NoVerdict(f"`{ran.line}` removed nothing, not even finished work of years ago (exit status {ran.status}): {ran.last_line}")


@clause(
    "WMRG-15",
    "a worktree in which files are written is not old",
    "cleaning by age takes the directory from under a program that runs for days",
    "expire",
)
def written_is_not_old(world: ToolWorld, _case: str) -> None:
    """A program has just written to an ignored file; branch, directories and all other files are of years ago."""
    path = _old(world)
    world.sh(f"mkdir build; echo running > build/log.txt; {_TOUCHED_LONG_AGO} . build", path)
    world.command("expire")
    world.check(f'test -f "{path}/build/log.txt"', "a worktree is gone in which a file was written a moment ago")


@clause(
    "WMRG-16",
    "cleaning prunes nothing that git's own maintenance keeps: dropped stashes, commits of a reflog, worktrees that are not mounted",
    "the way back from a slip is closed, which git keeps open for weeks",
    "clean",
)
def cleaning_keeps_what_maintenance_keeps(world: ToolWorld, _case: str) -> None:
    """A finished worktree is cleaned; other things that a tool tidies, at once or in the background, belong to others."""
    keeps_what_maintenance_keeps(world, "clean")


@clause(
    "WMRG-17",
    "cleaning follows no link: what links in a worktree lead to stays",
    "everybody's dependencies, or a person's data, go with one agent's worktree",
    "clean",
    cases=LINKS,
)
def cleaning_follows_no_link(world: ToolWorld, case: str) -> None:
    """A finished worktree has links to files that others use, as tools make them to share dependencies."""
    follows_no_link(world, "clean", case)
