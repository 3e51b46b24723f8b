"""The forms that unfinished work takes in a worktree, each as the lines of shell that make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.conformance.worktrees.base.description import fill
from pytest_gittrix.conformance.worktrees.base.world import NoVerdict, PromiseBroken, ToolWorld, token


@dataclass(frozen=True)
class Form:
    """One form of unfinished work.

    Attributes:
        what: the work, as a sentence about its loss begins.
        plant: what an agent does in the worktree; ``@`` is the text of the work, ``{base}`` the base branch, ``{repo}`` the main checkout.
        before: what a person does in the main checkout before the worktree is created.
        meanwhile: what a person does in the main checkout once the work is there.
        place: the work is the directory itself: it must still be there, whatever the files.
        mention: the tool may name this path in its output instead of keeping it.
    """

    what: str
    plant: str
    before: str = ""
    meanwhile: str = ""
    place: bool = False
    mention: str = ""


_COMMIT: Final = "git add -A; git commit -qm"
_CONFLICT: Final = f'echo mine > file.txt; {_COMMIT} mine; cd "{{repo}}"; echo theirs > file.txt; {_COMMIT} theirs'

FORMS: Final[Mapping[str, Form]] = {
    "modified": Form("the text of a modified file", "echo @ >> file.txt"),
    "staged": Form("a staged file", "echo @ > new.txt; git add new.txt"),
    "untracked": Form("an untracked file", "echo @ > notes.txt"),
    "untracked-setting": Form(
        "an untracked file, where status.showUntrackedFiles is no", "git config status.showUntrackedFiles no; echo @ > notes.txt"
    ),
    "ignored": Form("an ignored file that nothing named", "echo @ > .env", mention=".env"),
    "assume-unchanged": Form("an edit of an assume-unchanged file", "git update-index --assume-unchanged file.txt; echo @ >> file.txt"),
    "skip-worktree": Form("an edit of a skip-worktree file", "git update-index --skip-worktree file.txt; echo @ >> file.txt"),
    "nested": Form(
        "the commits of a nested repository", "git init -q nested; echo @ > nested/new.txt; cd nested; git add .; git commit -qm nested"
    ),
    "nested-ignored": Form(
        "the commits of a nested repository in an ignored directory",
        "git init -q build/tool; echo @ > build/tool/new.txt; cd build/tool; git add .; git commit -qm nested",
    ),
    "submodule": Form(
        "the unpushed commits of a submodule",
        "git submodule --quiet update --init; cd lib; echo @ > new.txt; git add .; git commit -qm work; cd ..; git commit -qam bump",
        before='git init -q "$R/lib"; git -C "$R/lib" commit -q --allow-empty -m lib; git submodule --quiet add "$R/lib" lib; '
        "git commit -qam 'add lib'",
        meanwhile='git merge -q --no-edit "$(git -C "$W" rev-parse HEAD)"',
    ),
    "detached": Form("the commits of a detached HEAD", f"git checkout -q --detach; echo @ > new.txt; {_COMMIT} detached"),
    "unmerged": Form("the commits of an unmerged branch", f"echo @ > new.txt; {_COMMIT} work"),
    "other-branch": Form("the commits of another branch in the worktree", f"git checkout -q -b other; echo @ > new.txt; {_COMMIT} work"),
    "rebase": Form(
        "what was resolved in a rebase",
        f'{_CONFLICT}; cd "$W"; git rebase -q {{base}} >/dev/null 2>&1; echo @ > file.txt; git add file.txt',
    ),
    "merge": Form(
        "what was resolved in a merge",
        f'{_CONFLICT}; cd "$W"; git merge -q {{base}} >/dev/null 2>&1; echo @ > file.txt; git add file.txt',
    ),
    "bisect": Form(
        "an edit in the middle of a bisect",
        "for n in 1 2 3; do git commit -q --allow-empty -m $n; done; git bisect start HEAD HEAD~3 >/dev/null 2>&1; echo @ >> file.txt",
    ),
    "stash": Form("an entry of the shared stash", "echo @ >> file.txt; git stash push -q"),
    "locked": Form("a worktree that a person locked", 'git worktree lock --reason "keep this" .', place=True),
    "live": Form("the directory of a process that runs in it", "sleep 300 >/dev/null 2>&1 & sleep 0.01", place=True),
}
"""The forms of work that the family WREM is about, by name, in the order of its first nineteen clauses."""


def plant(world: ToolWorld, form: Form, name: str, *, finished: bool = False, committed: bool = False) -> str:
    """Create a worktree with work of a form in it.

    Args:
        world: the world.
        form: the form.
        name: the name of the form.
        finished: whether the branch has a commit that is merged, before the work is made.
        committed: whether the branch has a commit that is not merged, before the work is made.

    Returns:
        The text of the work.
    """
    text = token(name)
    if form.before:
        world.sh(form.before)
    path = world.create()
    if finished:
        finish_by_hand(world)
    if committed:
        world.sh("echo more > more.txt; git add -A; git commit -qm more", path)
    world.sh(fill(form.plant, {"base": world.base, "repo": str(world.repo)}, str).replace("@", text), path)
    if form.meanwhile:
        world.sh(form.meanwhile)
    return text


def finish_by_hand(world: ToolWorld, name: str = "demo", *, text: str = "done") -> None:
    """Commit in the worktree that was created last, and merge it into the base branch as a person does."""
    path = world.path_of(name)
    world.sh(f"echo {text} > {name}.txt; git add -A; git commit -qm 'add {name}.txt'", path)
    world.sh(f'git merge -q --no-ff --no-edit "$(git -C "{path}" rev-parse HEAD)"')


def removes_finished_work(world: ToolWorld, verb: str) -> None:
    """See that a command removes a clean worktree whose branch is merged: the control of its family.

    Raises:
        NoVerdict: it removed nothing.
    """
    path = world.create()
    finish_by_hand(world)
    head = world.worktrees().get(path, "")
    ran = world.command(verb)
    if not world.gone(path, head):
        raise NoVerdict(f"`{ran.line}` removed nothing, not even finished work (exit status {ran.status}): {ran.last_line}")


_DROPPED: Final = 'echo dropped >> other.txt; git stash push -q; git rev-parse refs/stash > "$R/before"; git stash drop -q'
_RESET: Final = 'git commit -q --allow-empty -m slip; git rev-parse HEAD >> "$R/before"; git reset -q --hard HEAD~1'
_UNMOUNTED: Final = (
    'git worktree add -q --detach "$R/disk/away"; git -C "$R/disk/away" commit -q --allow-empty -m away; '
    'git -C "$R/disk/away" rev-parse HEAD >> "$R/before"; mv "$R/disk" "$R/unmounted"'
)
# A maintenance in the background holds one of these locks until it ends.
_MAINTENANCE_ENDS: Final = (
    "sleep 0.1; G=$(git rev-parse --git-common-dir); "
    "for n in $(seq 50); do test -e $G/gc.pid || test -e $G/objects/maintenance.lock || break; sleep 0.1; done"
)


def keeps_what_maintenance_keeps(world: ToolWorld, verb: str) -> None:
    """Judge that a command removes nothing that git's own maintenance would keep.

    In the main checkout a person has dropped an entry of the stash and reset a commit away. The directory of another worktree, with a
    commit on a detached HEAD, is not mounted.
    """
    if verb != "create":
        world.create()
        finish_by_hand(world)
    world.sh(f"{_DROPPED}; {_RESET}; {_UNMOUNTED}")
    world.command(verb)
    dropped, reset, away = (f'"$(sed -n {line}p "$R/before")"' for line in (1, 2, 3))
    world.check(
        f"{_MAINTENANCE_ENDS}; git cat-file -e {dropped}", "a dropped entry of the stash is gone, which git keeps for weeks", lost=True
    )
    world.check(f"git cat-file -e {reset}", "a commit is gone that a person had reset away, which git keeps for weeks", lost=True)
    what = "the commits of a worktree whose directory is not mounted have no name any more, which git keeps for months"
    world.check(f"git rev-list --all | grep -q {away}", what, lost=True)


_LINKS: Final = {
    "to a directory of the main checkout": ("{repo}/node_modules", 'ln -s "{repo}/node_modules" node_modules'),
    "to a directory elsewhere": ("$R/shared", 'ln -s "$R/shared" node_modules'),
    "hard links of files": ("{repo}/node_modules", 'mkdir node_modules; ln "{repo}/node_modules/module.js" node_modules'),
}
LINKS: Final = tuple(_LINKS)
"""The links that a finished worktree may hold, to files that others use."""


def follows_no_link(world: ToolWorld, verb: str, case: str) -> None:
    """Judge that a command that removes a finished worktree leaves what links in it lead to, which git ignores."""
    path, text = world.create(), token("linked")
    finish_by_hand(world)
    target, link = (fill(line, {"repo": str(world.repo)}, str) for line in _LINKS[case])
    excluded = 'echo node_modules >> "$(git rev-parse --git-common-dir)/info/exclude"'
    world.sh(f'{excluded}; mkdir -p "{target}"; echo {text} > "{target}/module.js"')
    world.sh(link, path)
    world.command(verb)
    world.check(f'grep -q {text} "{target}/module.js"', "lost: files outside of the worktree, which a link in it leads to", lost=True)


def judge_form(world: ToolWorld, form: Form, text: str, name: str = "demo") -> None:
    """Judge that work of a form can still be found after the tool ran."""
    if form.place:
        world.check(f'test -d "{world.path_of(name)}"', f"removed: {form.what}")
        return
    try:
        world.findable(text, f"lost: {form.what}")
    except PromiseBroken:
        if not (form.mention and world.said(form.mention)):
            raise
