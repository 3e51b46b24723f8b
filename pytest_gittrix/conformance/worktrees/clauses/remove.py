"""WREM: removing a worktree keeps the work that is unfinished in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.worktrees.base.clause import WorktreeClause, clause, works_anywhere
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

_PROMISES: Final = (
    ("modified", "modified files are not lost", "an agent's unsaved hour is gone because somebody tidied up"),
    ("staged", "staged files are not lost", "what was one commit away is gone"),
    ("untracked", "untracked files are not lost", "the new module that was not added yet is gone"),
    (
        "untracked-setting",
        "untracked files count whatever status.showUntrackedFiles says",
        "a setting that was made for speed turns the check off",
    ),
    ("ignored", "ignored files are kept, or named before they go", "the .env with the only copy of a key is gone"),
    ("assume-unchanged", "edits of assume-unchanged files count", "a local setting is lost by accident"),
    ("skip-worktree", "edits of skip-worktree files count", "an edit in a sparse checkout is lost"),
    ("nested", "a nested repository counts as work", "commits that no other repository has go with it"),
    ("nested-ignored", "a nested repository in an ignored directory counts as work", "commits that no other repository has go with it"),
    ("submodule", "unpushed commits of a submodule count as work", "the superproject points at commits that exist nowhere"),
    ("detached", "commits on a detached HEAD are kept or named", "a day of committed work hangs by an id that was never shown"),
    ("unmerged", "an unmerged branch is kept, or its tip is named", "committed work goes without anybody having asked for it"),
    ("other-branch", "another branch that is checked out in the worktree is kept", "the tool deletes by directory what it meant by name"),
    ("rebase", "what was resolved in a rebase is kept", "an hour of resolving is gone"),
    ("merge", "what was resolved in a merge is kept", "an hour of resolving is gone"),
    ("bisect", "work in the middle of a bisect is kept", "the search has to begin again, and the edit is gone"),
    ("stash", "the shared stash survives, entry by entry", "somebody else's stash is dropped"),
    ("locked", "a locked worktree is not removed", "the lock that a person set means nothing"),
    (
        "live",
        "a worktree is not removed under a process that runs in it",
        "an agent goes on writing into a directory that is gone, and all of it is lost",
    ),
)


def _of_a_form(number: int, name: str, promise: str, why: str) -> WorktreeClause:
    def judge(world: ToolWorld, _case: str) -> None:
        form = FORMS[name]
        # A lock and a process are judged on finished work, which would be removed without them.
        text = plant(world, form, name, finished=form.place)
        world.command("delete")
        judge_form(world, form, text)

    return clause(f"WREM-{number:02}", promise, why, "delete")(judge)


OF_FORMS: Final = tuple(_of_a_form(number, *promise) for number, promise in enumerate(_PROMISES, 1))
"""The clauses that differ by the form of work alone: WREM-01 to WREM-19."""

_MIXED: Final = "echo @ >> file.txt; echo @ > staged.txt; git add staged.txt; echo @ > notes.txt"


def _dirty(world: ToolWorld) -> Path:
    path = world.create()
    world.sh(_MIXED.replace("@", token("mixed")), path)
    return path


@clause("WREM-20", "a refusal changes nothing", "the refusal itself is the loss", "delete")
def refusal_changes_nothing(world: ToolWorld, _case: str) -> None:
    """A refused removal leaves files, index, branches and the list of worktrees as they were."""
    path = _dirty(world)
    refs = world.look("git for-each-ref; git worktree list --porcelain")
    world.snapshot(path)
    head = world.worktrees().get(path, "")
    world.command("delete")
    if world.gone(path, head):
        raise NoVerdict("the tool did not refuse to remove a worktree with unsaved work")
    world.unchanged(path, "the refused command changed the worktree")
    changed = refs != world.look("git for-each-ref; git worktree list --porcelain")
    world.require(not changed, "the refused command changed branches or the list of worktrees", 'git show-ref | grep -q "$(basename "$W")"')


@clause("WREM-21", "a refused removal does not exit with 0", "a script goes on as if it were done", "delete")
def refusal_exits_with_a_failure(world: ToolWorld, _case: str) -> None:
    """A removal that leaves the worktree exits with another status than 0."""
    path = _dirty(world)
    head = world.worktrees().get(path, "")
    ran = world.command("delete", said=True)
    if world.gone(path, head):
        raise NoVerdict("the tool did not refuse to remove a worktree with unsaved work")
    world.require(not ran.done, "the worktree is still there, and the command exits with 0", f'test $S -ne 0 || test ! -d "{path}"')


@clause("WREM-22", "removing touches no other worktree and no byte of the main checkout", "one agent's end is another's loss", "delete")
def others_are_left_alone(world: ToolWorld, _case: str) -> None:
    """Unsaved work in the main checkout and in another worktree stays as it is."""
    world.create("demo")
    finish_by_hand(world)
    other = world.create("other")
    world.sh(f"{_MIXED.replace('@', token('other'))}; echo other > .env", other)
    main = f'cd "{world.repo}"'
    mine = f"{_MIXED.replace('@', token('main'))}; echo main > .env; mkdir build; echo built > build/out.txt"
    world.sh(f'{mine}; {{ {_STATE_OF_MAIN}; cd "{other}"; {_STATE_OF_OTHER}; }} > "$R/before" 2>&1')
    world.command("delete")
    now = f'{{ {main}; {_STATE_OF_MAIN}; cd "{other}"; {_STATE_OF_OTHER}; }} 2>&1'
    world.check(f'{now} | diff "$R/before" -', "the main checkout or another worktree was changed")


# Files are named, so that what a tool keeps in the main checkout, such as the worktrees, is no file of the person's.
_PLANTED: Final = "file.txt other.txt .gitignore staged.txt notes.txt .env"
_STATE_OF_OTHER: Final = f"git symbolic-ref HEAD; git rev-parse HEAD; git status --porcelain -- {_PLANTED}; cksum {_PLANTED}"
_STATE_OF_MAIN: Final = f"{_STATE_OF_OTHER} build/out.txt"


def merged_is_removed(world: ToolWorld, _case: str) -> None:
    """The control of ``delete``: a clean worktree whose branch is merged is removed."""
    removes_finished_work(world, "delete")


@clause(
    "WREM-23",
    "a worktree whose branch is checked out twice goes alone: the branch and the other checkout stay",
    "the other checkout has a HEAD that leads nowhere",
    "delete",
)
def checked_out_twice(world: ToolWorld, _case: str) -> None:
    """The branch is merged, and a person has it in a second worktree, by force."""
    path, twin = world.create(), world.root / "twin"
    finish_by_hand(world)
    world.sh(f'git worktree add -q --force "{twin}" "$(git -C "{path}" symbolic-ref --short HEAD)"')
    world.sh(f"echo {token('twin')} >> other.txt", twin)
    world.command("delete")
    world.check(f'git -C "{twin}" rev-parse -q --verify "HEAD^{{commit}}"', "the HEAD of the other checkout leads nowhere")
    world.findable(token("twin"), "lost: the text of a modified file in the other checkout")


@clause(
    "WREM-24",
    "unsaved work is not lost where the main checkout was moved",
    "git cannot say what is in the worktree, and that is taken for nothing",
    "delete",
    applies=works_anywhere,
)
def a_moved_checkout(world: ToolWorld, _case: str) -> None:
    """Somebody gave the directory of the main checkout another name, so that git in the worktree does not find its repository."""
    path = _dirty(world)
    world.sh('mv "$R/app" "$R/moved"', world.root)
    moved = world.seen_from("moved")
    if world.repo in path.parents:
        moved.enter("demo", moved.repo / path.relative_to(world.repo), '$R/moved/${W#"$R/app/"}')
    moved.command("delete")
    moved.findable(token("mixed"), "lost: unsaved work, since the main checkout was moved")


@clause(
    "WREM-25",
    "unsaved work in a worktree of a bare repository is not lost",
    "the work of everybody who keeps a bare repository is gone",
    "delete",
    applies=works_anywhere,
)
def a_bare_repository(world: ToolWorld, _case: str) -> None:
    """The repository has worktrees alone. A tool that refuses to work there has no verdict."""
    world.sh('git clone -q --bare "$R/app" "$R/bare.git"')
    bare = world.seen_from("bare.git")
    _dirty(bare)
    bare.command("delete")
    bare.findable(token("mixed"), "lost: unsaved work in a worktree of a bare repository")


@clause(
    "WREM-26",
    "what git's own maintenance keeps is not pruned: dropped stashes, commits of a reflog, worktrees that are not mounted",
    "the way back from a slip is closed, which git keeps open for weeks",
    "delete",
)
def removing_keeps_what_maintenance_keeps(world: ToolWorld, _case: str) -> None:
    """The worktree that is removed is finished; other things that a tool tidies, at once or in the background, belong to others."""
    keeps_what_maintenance_keeps(world, "delete")


@clause(
    "WREM-27",
    "removing follows no link: what links in the worktree lead to stays",
    "everybody's dependencies, or a person's data, go with one agent's worktree",
    "delete",
    cases=LINKS,
)
def removing_follows_no_link(world: ToolWorld, case: str) -> None:
    """A finished worktree has links to files that others use, as tools make them to share dependencies."""
    follows_no_link(world, "delete", case)
