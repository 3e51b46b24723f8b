"""WFIN: finishing brings the work to the base branch, and loses nothing of the person's."""

from __future__ import annotations

from typing import Final

from pytest_gittrix.conformance.base.shell_lines import RanLine
from pytest_gittrix.conformance.worktrees.base.clause import clause
from pytest_gittrix.conformance.worktrees.base.forms import FORMS, judge_form, plant
from pytest_gittrix.conformance.worktrees.base.world import NoVerdict, ToolWorld, token


def _committed(world: ToolWorld, line: str = "echo @ > new.txt", what: str = "feature") -> str:
    """Create a worktree with one commit, and give the text of the work."""
    text = token(what)
    world.sh(f"{line.replace('@', text)}; git add -A; git commit -qm work", world.create())
    return text


def _landed(world: ToolWorld, text: str) -> bool:
    return text in world.look(f"git grep -h {text} {world.base}")


def _is_landed(world: ToolWorld, text: str) -> str:
    return f"git grep -q {text} {world.base}"


def _hindered(ran: RanLine, what: str) -> None:
    """Say that there is no verdict where the tool refused without the hindrance that the clause is about."""
    if not ran.done:
        raise NoVerdict(f"{what}: {ran.last_line}")


@clause("WFIN-01", "what was committed is on the base after exit 0", "work counts as merged and is not", "finish", controls=("create",))
def lands(world: ToolWorld, _case: str) -> None:
    """One commit, nothing in the way."""
    text = _committed(world)
    ran = world.command("finish")
    _hindered(ran, f"`{ran.line}` ended with {ran.status} on clean committed work")
    world.check(_is_landed(world, text), "the commit is not on the base branch, and the command exits with 0")


@clause(
    "WFIN-02",
    "what was not committed is refused or taken, never dropped",
    "the last edits before the merge are gone",
    "finish",
    cases=tuple(FORMS),
)
def what_was_not_committed(world: ToolWorld, case: str) -> None:
    """The forms of WREM-01 to WREM-19, on a branch with a commit."""
    form = FORMS[case]
    text = plant(world, form, case, committed=True)
    world.command("finish")
    judge_form(world, form, text)


@clause("WFIN-03", "a modified file of the main checkout is kept, also at a path of the work", "a person's edit is overwritten", "finish")
def the_same_path(world: ToolWorld, _case: str) -> None:
    """The person has changed the file that the agent changed."""
    _committed(world, "echo @ >> file.txt")
    text = token("mine")
    world.sh(f"echo {text} >> file.txt")
    world.command("finish")
    world.findable(text, "the text of a file that a person had modified in the main checkout is gone")


@clause("WFIN-04", "other unsaved work in the main checkout is kept", "a person's edit is gone with somebody else's merge", "finish")
def other_unsaved_work(world: ToolWorld, _case: str) -> None:
    """A modified and an untracked file that the work does not touch."""
    _committed(world)
    modified, untracked = token("mine-modified"), token("mine-untracked")
    world.sh(f"echo {modified} >> other.txt; echo {untracked} > mine.txt")
    world.command("finish")
    world.findable(modified, "the text of a modified file in the main checkout is gone")
    world.findable(untracked, "an untracked file in the main checkout is gone")


@clause(
    "WFIN-05", "staged work in the main checkout is not swept in", "half of a person's commit is on the base, under another name", "finish"
)
def staged_work(world: ToolWorld, _case: str) -> None:
    """What a person staged is in no commit afterwards, and not lost."""
    _committed(world)
    text = token("staged")
    world.sh(f"echo {text} > staged.txt; git add staged.txt")
    world.command("finish")
    world.check(f"! {_is_landed(world, text)}", "what a person had staged was committed to the base branch")
    world.findable(text, "what a person had staged is gone")


def _in_the_way(world: ToolWorld, path: str) -> None:
    _committed(world, f"echo @ > {path}; git add -f {path}")
    text = token("in-the-way")
    world.sh(f"echo {text} > {path}")
    world.command("finish")
    world.findable(text, f"the person's {path} was overwritten")


@clause("WFIN-06", "an untracked file in the way is kept", "a person's file is overwritten by a file of its name", "finish")
def an_untracked_file_in_the_way(world: ToolWorld, _case: str) -> None:
    """The work adds a file where the person has an untracked one."""
    _in_the_way(world, "new.txt")


@clause("WFIN-07", "an ignored file in the way is kept", "a person's .env is overwritten by an agent's", "finish")
def an_ignored_file_in_the_way(world: ToolWorld, _case: str) -> None:
    """The work adds a file where the person has an ignored one."""
    _in_the_way(world, ".env")


@clause("WFIN-08", "the main checkout stays on its branch", "the person's next commit goes to another branch than they think", "finish")
def the_branch_of_the_checkout(world: ToolWorld, _case: str) -> None:
    """The person works on a branch of their own in the main checkout."""
    _committed(world)
    world.sh("git checkout -q -b person")
    world.command("finish")
    world.check('test "$(git symbolic-ref -q --short HEAD)" = person', "the main checkout is no longer on the person's branch")


@clause(
    "WFIN-09", "commits on the main checkout's detached HEAD keep a name", "a person's commits hang by an id that was not noted", "finish"
)
def a_detached_checkout(world: ToolWorld, _case: str) -> None:
    """The person has committed on a detached HEAD."""
    _committed(world)
    text = token("detached-main")
    world.sh(f"git checkout -q --detach; echo {text} > mine.txt; git add mine.txt; git commit -qm mine")
    world.command("finish")
    world.findable(text, "commits that a person made on a detached HEAD are in no branch")


@clause(
    "WFIN-10",
    "a second checkout of the base is refused, or moved with it",
    "the next commit in the other checkout takes the work back",
    "finish",
)
def a_second_checkout(world: ToolWorld, _case: str) -> None:
    """The base is checked out in another worktree, and the main checkout is on a branch of its own."""
    world.sh(f'git checkout -q -b person; git worktree add -q "$R/second" {world.base}')
    _committed(world)
    world.command("finish")
    world.check('test -z "$(git -C "$R/second" status --porcelain)"', "the other checkout of the base branch is behind its own branch")


def _conflict(world: ToolWorld) -> str:
    text = _committed(world, "echo @ > file.txt", "conflicting")
    world.sh("echo theirs > file.txt; git commit -qam theirs")
    return text


@clause("WFIN-11", "a conflict leaves the main checkout as it was", "a person finds conflict markers in files they did not touch", "finish")
def a_conflict_and_the_checkout(world: ToolWorld, _case: str) -> None:
    """Both sides changed the same line."""
    text = _conflict(world)
    world.snapshot(world.repo)
    ran = world.command("finish")
    world.findable(text, "the conflicting work is gone")
    if ran.done and _landed(world, text):
        return
    world.unchanged(world.repo, "the main checkout is not as it was before the conflict")


@clause("WFIN-12", "a conflict leaves the worktree as it was", "the agent goes on in the middle of a rebase", "finish")
def a_conflict_and_the_worktree(world: ToolWorld, _case: str) -> None:
    """Both sides changed the same line."""
    text = _conflict(world)
    world.snapshot(world.path_of())
    if world.command("finish").done:
        world.findable(text, "the conflicting work is gone")
        return
    world.unchanged(world.path_of(), "the worktree is not as it was before the conflict")


@clause("WFIN-13", "after a conflict is resolved, finishing works", "the work can be brought home by hand alone", "finish")
def after_a_conflict(world: ToolWorld, _case: str) -> None:
    """The agent merges the base and resolves; whatever the first try left in progress is given up."""
    text = _conflict(world)
    world.command("finish")
    world.sh("git merge --abort 2>/dev/null; git rebase --abort 2>/dev/null; true")
    resolve = f"git merge -q {world.base} >/dev/null; echo {text} > file.txt; git add file.txt; git commit -qm resolved"
    world.sh(f"git rebase --abort 2>/dev/null; git merge --abort 2>/dev/null; {resolve}", world.path_of())
    world.command("finish")
    world.check(_is_landed(world, text), "the resolved work cannot be finished")


@clause("WFIN-14", "a base that moved meanwhile keeps both", "the later merge takes the earlier back", "finish")
def a_moved_base(world: ToolWorld, _case: str) -> None:
    """The base has a new commit that the work does not touch."""
    text, other = _committed(world), token("meanwhile")
    world.sh(f"echo {other} > theirs.txt; git add theirs.txt; git commit -qm theirs")
    ran = world.command("finish")
    world.check(_is_landed(world, other), "a commit that was on the base branch is not there any more")
    if ran.done:
        world.check(_is_landed(world, text), "the work is not on the base branch, and the command exits with 0")


@clause(
    "WFIN-15", "a local base that is ahead of the remote can be finished on", "finishing is impossible before a push", "finish", remote=True
)
def ahead_of_the_remote(world: ToolWorld, _case: str) -> None:
    """The base has a commit that was not pushed."""
    text, other = _committed(world), token("unpushed")
    world.sh(f"echo {other} > theirs.txt; git add theirs.txt; git commit -qm theirs")
    world.command("finish")
    world.check(
        f"{_is_landed(world, text)} && {_is_landed(world, other)}", "the work is not on the base branch, which is ahead of the remote"
    )


@clause("WFIN-16", "a remote that is ahead is not overwritten", "a colleague's commits are gone from the server", "finish", remote=True)
def behind_the_remote(world: ToolWorld, _case: str) -> None:
    """A colleague has pushed to the base meanwhile."""
    _committed(world)
    other = token("colleague")
    pushed = f"echo {other} > theirs.txt; git add theirs.txt; git commit -qm theirs; git push -q"
    world.sh(f'git clone -q "$R/origin.git" "$R/colleague"; cd "$R/colleague"; {pushed}')
    world.command("finish")
    world.check(f'git -C "$R/origin.git" grep -q {other} {world.base}', "a colleague's commit is no longer on the remote's base branch")


_HOOKS: Final = "pre-commit pre-merge-commit commit-msg prepare-commit-msg"


@clause("WFIN-17", "a failing hook changes nothing", "the main checkout is left in the middle of a merge", "finish")
def a_failing_hook(world: ToolWorld, _case: str) -> None:
    """The repository's hooks refuse every commit, and the base has moved, so that a merge commit is needed."""
    text = _committed(world)
    world.sh("echo theirs > theirs.txt; git add theirs.txt; git commit -qm theirs")
    hooks = f'for hook in {_HOOKS}; do printf \'#!/bin/sh\\nexit 1\\n\' > "$R/hooks/$hook"; chmod +x "$R/hooks/$hook"; done'
    world.sh(f'mkdir "$R/hooks"; {hooks}; git config core.hooksPath "$R/hooks"')
    world.snapshot(world.repo)
    if world.command("finish").done and _landed(world, text):
        return
    world.unchanged(world.repo, "the main checkout is not as it was before the hook failed")
    world.findable(text, "the work is gone")


@clause("WFIN-18", "a merge in progress in the main checkout is not disturbed", "what a person was resolving is gone", "finish")
def a_merge_in_progress(world: ToolWorld, _case: str) -> None:
    """The person is resolving a conflict in the main checkout."""
    _committed(world)
    text = token("resolving")
    world.sh(f"git checkout -q -b side; echo side > file.txt; git commit -qam side; git checkout -q {world.base}; echo ours > file.txt")
    world.sh(f"git commit -qam ours; git merge -q side >/dev/null; echo {text} > file.txt")
    world.command("finish")
    world.findable(text, "what a person had resolved is gone")
    world.check("git rev-parse -q --verify MERGE_HEAD >/dev/null", "the merge that a person was in the middle of is over")


@clause("WFIN-19", "the stash stays", "a person's stash is popped into somebody else's work", "finish")
def the_stash(world: ToolWorld, _case: str) -> None:
    """The person has stashed an edit, and has another one unsaved."""
    _committed(world)
    world.sh(f"echo {token('stashed')} >> other.txt; git stash push -q; echo {token('unsaved')} >> file.txt")
    before = world.look("git stash list --format=%H").strip()
    world.command("finish")
    world.check(f'test "$(git stash list --format=%H)" = {before}', "the stash is not as it was")
    world.findable(token("unsaved"), "the text of a modified file in the main checkout is gone")


@clause("WFIN-20", "a failure after landing says so", "the work is landed twice", "finish")
def a_failure_after_landing(world: ToolWorld, _case: str) -> None:
    """The worktree is locked, so that it cannot be removed after the merge."""
    text = _committed(world)
    world.sh("git worktree lock .", world.path_of())
    head = world.look(f"git rev-parse --short=7 {world.base}").strip()
    ran = world.command("finish", said=True)
    if ran.done or not _landed(world, text):
        return
    tip = world.look(f"git rev-parse --short=7 {world.base}").strip()
    announced = any(
        word in ran.output.lower() for word in ("merged", "landed", "fast-forward", "was finished", f"is on {world.tool.base}".lower(), tip)
    )
    what = "the work is on the base branch, and the command fails without saying so"
    world.require(head == tip or announced, what, f"! {_is_landed(world, text)} || test $S -eq 0")


@clause(
    "WFIN-21",
    "a sparse main checkout stays sparse, and work outside of it lands",
    "a person's disk fills with what they left out, or the work is left out with it",
    "finish",
)
def a_sparse_checkout(world: ToolWorld, _case: str) -> None:
    """The main checkout has one of two directories, and the work is in the other one."""
    world.sh("mkdir near far; echo near > near/file.txt; echo far > far/file.txt; git add .; git commit -qm directories")
    world.sh("git sparse-checkout set near")
    text = _committed(world, "git sparse-checkout disable; echo @ > far/new.txt")
    if world.command("finish").done:
        world.check(
            _is_landed(world, text), "the work outside of the sparse checkout is not on the base branch, and the command exits with 0"
        )
    world.check("test -d near && test ! -e far", "the main checkout is not sparse any more")
    # A tool may keep its worktrees inside, where nothing ignores them.
    world.check('test -z "$(git status --porcelain -uno)"', "the sparse main checkout differs from its branch")


@clause(
    "WFIN-22",
    "the stash stays, also where the main checkout is clean",
    "a person's older stash is popped into their checkout, and the entry is gone",
    "finish",
)
def the_stash_of_a_clean_checkout(world: ToolWorld, _case: str) -> None:
    """The person has stashed an edit, and nothing unsaved: a tool that stashes and pops finds nothing of its own to pop."""
    _committed(world)
    world.sh(f"echo {token('stashed')} >> other.txt; git stash push -q")
    before = world.look("git stash list --format=%H").strip()
    world.command("finish")
    world.check(f'test "$(git stash list --format=%H)" = {before}', "the stash is not as it was")
