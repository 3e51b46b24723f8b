"""WNEW: creating makes the worktree that was asked for, and touches nothing else."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.worktrees.base.clause import clause, named, works_anywhere
from pytest_gittrix.conformance.worktrees.base.forms import keeps_what_maintenance_keeps
from pytest_gittrix.conformance.worktrees.base.world import NoVerdict, ToolWorld, token

REFUSED_NAMES: Final = ("a..b", "a~b", "a:b", "x.lock", "a@{b", "two words", "")
"""Names that git gives no branch."""
ODD_NAMES: Final = ("feat/one", "grün", "-x", "..", "../out", "/absolute")
"""Names that lead out of a directory, or mean something else to some program."""
RUNNING_NAMES: Final = ("$(touch pwned)", "a;touch pwned", "a`touch pwned`", "a|touch pwned", "a&&touch${IFS}pwned")
"""Names that a shell would run."""

_THERE_ALREADY: Final = "already|exist|re-?us"
_LISTING: Final = "git for-each-ref; git worktree list --porcelain; ls -A .. ."


@clause(
    "WNEW-01",
    "a name that git refuses is refused, and not with exit 0",
    "the agent works on a branch of another name than everybody thinks",
    cases=REFUSED_NAMES,
    applies=named,
)
def refused_names(world: ToolWorld, case: str) -> None:
    """A name that no branch can have is refused, or the name that was made of it is printed."""
    before = world.worktrees()
    ran = world.command("create", case, said=True)
    path = world.found_new(before)
    if not ran.done:
        return
    made = path is not None and world.branch_of(path) and world.branch_of(path) in ran.output
    seen = "there is no worktree" if path is None else "the output does not name the branch that was made of it"
    branch = 'B="$(git -C "$W" symbolic-ref -q --short HEAD)"'
    names = f'{{ W="$(fresh)" && [ -n "$W" ] && {branch} && grep -qF -- "$B" "$R/said"; }}'
    world.require(bool(made), f"for the name {case!r} the command exits with 0, and {seen}", f"test $S -ne 0 || {names}")


@clause(
    "WNEW-02",
    "a refused name leaves no branch, directory or record",
    "the next try meets the remains of the first",
    cases=REFUSED_NAMES,
    applies=named,
)
def refused_names_leave_nothing(world: ToolWorld, case: str) -> None:
    """Branches, worktrees and directories are as before."""
    world.create("first")  # what a tool makes for its first worktree is no remains
    world.sh(f'{{ {_LISTING}; }} > "$R/before"')
    if world.command("create", case).done:
        raise NoVerdict(f"the name {case!r} is not refused")
    world.check(f'{{ {_LISTING}; }} | diff "$R/before" -', f"the refused name {case!r} left a branch, a directory or a record")


@clause(
    "WNEW-03",
    "odd names stay in the tool's place, or are refused",
    "a worktree is made in the middle of somebody's files",
    cases=ODD_NAMES,
    applies=named,
)
def odd_names(world: ToolWorld, case: str) -> None:
    """Slashes, unicode, a leading dash, `..` and an absolute path."""
    place = Path(os.path.commonpath([world.create("first").parent, world.create("second").parent]))
    before = world.worktrees()
    ran = world.command("create", str(world.root / "outside") if case == "/absolute" else case, said=True)
    path = world.found_new(before)
    if path is None:
        what = f"for the name {case!r} the command exits with 0, and there is no worktree"
        world.require(not ran.done, what, 'test $S -ne 0 || test -n "$(fresh)"')
        return
    world.require(place in path.resolve().parents, f"the worktree of {case!r} is outside of the place of the others", f'test ! -d "{path}"')


@clause("WNEW-04", "no name runs as a command", "whoever names a branch runs programs on the machine", cases=RUNNING_NAMES, applies=named)
def names_that_run(world: ToolWorld, case: str) -> None:
    """Names with the signs of a shell."""
    world.command("create", case)
    world.check('test -z "$(find "$R" -name pwned -not -path "*/.git/*")"', "the name of the worktree ran as a command")


@clause("WNEW-05", "an existing branch keeps its commits", "a name that was used before throws the old work away", applies=named)
def an_existing_branch(world: ToolWorld, _case: str) -> None:
    """A branch of that name has a commit that no other one has."""
    text = token("existing-branch")
    branch, _ = world.probe()
    world.sh(f"git checkout -q -b '{branch}'; echo {text} > old.txt; git add old.txt; git commit -qm old; git checkout -q {world.base}")
    world.command("create")
    world.findable(text, "the commits of a branch that was there before are gone")


@clause("WNEW-06", "an existing directory keeps its files", "files of a person are gone who had that directory", applies=named)
def an_existing_directory(world: ToolWorld, _case: str) -> None:
    """The directory where the worktree would be has a file in it."""
    text = token("existing-directory")
    _, place = world.probe()
    world.sh(f'mkdir -p "{place}"; echo {text} > "{place}/mine.txt"')
    world.command("create")
    world.findable(text, "a file is gone that was in the directory before")


@clause("WNEW-07", "unsaved and staged work in the main checkout stays there", "a person's edit turns up in an agent's branch")
def the_checkout_stays(world: ToolWorld, _case: str) -> None:
    """A modified, a staged and an untracked file."""
    text = token("mine")
    world.sh(f"echo {text} >> file.txt; echo {text} > staged.txt; git add staged.txt; echo {text} > notes.txt")
    before = world.look("git diff HEAD; git stash list; cat notes.txt; git symbolic-ref HEAD")
    world.create()
    same = world.look("git diff HEAD; git stash list; cat notes.txt; git symbolic-ref HEAD") == before
    world.require(same, "the main checkout is not as it was", f'test "$(cat file.txt staged.txt notes.txt | grep -c {text})" = 3')


@clause("WNEW-08", "exit 0 means that there is a worktree, on that branch", "an agent starts in a directory that is not there", controls=())
def there_is_a_worktree(world: ToolWorld, _case: str) -> None:
    """Git lists a new worktree, its directory is there, and a branch with the name is checked out in it."""
    before = world.worktrees()
    ran = world.command("create")
    if not ran.done:
        raise NoVerdict(f"`{ran.line}` ended with {ran.status}: {ran.last_line}")
    path = world.found_new(before)
    world.require(path is not None, "the command exits with 0, and there is no worktree", "git worktree list | grep -q demo")
    assert path is not None
    branch = world.branch_of(path)
    fits = bool(branch) and (world.tool.unnamed or "demo" in branch)
    world.require(
        fits, f"the worktree is on {branch or 'a detached HEAD'}, not on a branch of the name", "git worktree list | grep -q demo"
    )


def _says_so(output: str, name: str) -> bool:
    """Whether a command says of a worktree, by its name, that it was there before. Some tools fold the lines that they print."""
    lines = output.splitlines()
    said = (at for at, line in enumerate(lines) if re.search(_THERE_ALREADY, line, re.IGNORECASE))
    return any(name in line for at in said for line in lines[max(at - 2, 0) : at + 3])


@clause(
    "WNEW-09",
    "of two creations of one name at once, one makes the worktree and the other says so",
    "two agents work in one directory",
    applies=named,
)
def two_at_once(world: ToolWorld, _case: str) -> None:
    """One after the other, then both at once: two that exit with 0 have two worktrees, or one says that it found the worktree there."""
    before = {*world.worktrees()}
    line, where = world.prepared("create")
    first, second = world.typed(line, where), world.typed(line, where, said=True)
    fresh = [path for path in world.worktrees() if path not in before]
    what = "two creations of one name exit with 0, there is one worktree, and neither says so"
    show = f'grep -iEC2 "{_THERE_ALREADY}" "$R/said" | grep -q'
    said = _says_so(second.output, "demo")
    world.require(not (first.done and second.done) or len(fresh) > 1 or said, what, f"test $S -ne 0 || {show} demo")
    line, where = world.prepared("create", "twice")
    before = {*world.worktrees()}
    both = world.typed(f'{{ {line}; }} & one=$!; {line}; two=$?; wait $one; echo "both: $? $two"', where, said=True)
    fresh = [path for path in world.worktrees() if path not in before]
    announced = "both: 0 0" not in both.output or _says_so(both.output, "twice")
    world.require(announced or len(fresh) > 1, f"{what}, when they run at once", f'! grep -q "both: 0 0" "$R/said" || {show} twice')


@clause(
    "WNEW-10",
    "a directory that is used again shows nothing of its last tenant",
    "an agent reads, or commits, the secrets of the one before",
    "delete",
)
def the_last_tenant(world: ToolWorld, _case: str) -> None:
    """The first tenant leaves an ignored file and a finished branch; the second one gets a directory."""
    text = token("tenant")
    path = world.create("demo" if world.tool.pool else "first")
    name = "demo" if world.tool.pool else "first"
    world.sh(f"echo {text} > .env; echo done > done.txt; git add done.txt; git commit -qm done", path)
    world.sh(f'git merge -q --no-edit "$(git -C "{path}" rev-parse HEAD)"')
    if not world.command("delete", name).done:
        raise NoVerdict("the first tenant's worktree is not removed, because there is an ignored file in it")
    fresh = world.create("second")
    world.check(f'! grep -rqs {text} "{fresh}"', "a file of the last tenant is in the new worktree")


@clause(
    "WNEW-11",
    "a sync that fails does not exit with 0, and leaves nothing in progress",
    "the agent goes on in the middle of a rebase",
    "sync",
)
def a_sync_that_fails(world: ToolWorld, _case: str) -> None:
    """Both sides changed the same line."""
    path = world.create()
    world.sh(f"echo {token('synced')} > file.txt; git commit -qam mine", path)
    world.sh("echo theirs > file.txt; git commit -qam theirs")
    ran = world.command("sync", said=True)
    world.findable(token("synced"), "the commit is gone")
    world.check(
        f'cd "{path}"; ! git status | grep -qi "in progress\\|unmerged\\|still merging"',
        "the worktree is in the middle of a rebase or merge",
    )
    world.require(not ran.done, "the sync met a conflict and exits with 0", "test $S -ne 0")


@clause(
    "WNEW-12",
    "names that differ by case alone get a worktree each, or the second is refused",
    "two agents work in one directory",
    applies=named,
)
def names_by_case(world: ToolWorld, _case: str) -> None:
    """There is demo, with an untracked file in it, and Demo is asked for."""
    world.sh(f"echo {token('case')} > notes.txt", world.create())
    before = world.worktrees()
    ran = world.command("create", "Demo", said=True)
    announced = not ran.done or world.found_new(before) is not None or _says_so(ran.output, "demo")
    world.require(announced, "the name Demo is taken with exit 0, and there is only the worktree of demo", "test $S -ne 0")
    world.findable(token("case"), "an untracked file in demo is gone, since Demo was made")


@clause("WNEW-13", "the failure of a hook of the repository is reported", "the agent starts in a worktree that is half prepared")
def a_failing_hook(world: ToolWorld, _case: str) -> None:
    """The hook that runs after each checkout fails: the command does so too, or shows what the hook said."""
    text = r'#!/bin/sh\ntouch "$R/ran"\necho the hook fails\nexit 1\n'
    hook = '"$R/hooks/post-checkout"'
    world.sh(f'mkdir "$R/hooks"; printf \'{text}\' > {hook}; chmod +x {hook}; git config core.hooksPath "$R/hooks"')
    ran = world.command("create", said=True)
    if not (world.root / "ran").exists():
        raise NoVerdict(f"`{ran.line}` runs no hook of the repository after a checkout")
    announced = not ran.done or "the hook fails" in ran.output
    what = "a hook of the repository failed, and the command exits with 0 and does not show what it said"
    world.require(announced, what, 'test $S -ne 0 || grep -q "the hook fails" "$R/said"')


_IN_FORCE: Final = "git config --get-regexp '^(core|user|extensions|commit|merge|remote)[.]'"


@clause(
    "WNEW-14",
    "creating a worktree changes no setting of the main checkout",
    "hooks or a name that are meant for one agent are in force for everybody",
)
def settings_stay(world: ToolWorld, _case: str) -> None:
    """The main checkout has settings of its own (``extensions.worktreeConfig``), and the repository has some for all."""
    world.sh("git config extensions.worktreeConfig true; git config --worktree user.email me@here; git config commit.gpgSign false")
    world.sh(f'{_IN_FORCE} > "$R/before"')
    world.create()
    world.check(f'{_IN_FORCE} | diff "$R/before" -', "settings that are in force in the main checkout were changed")


@clause(
    "WNEW-15",
    "two repositories of one name have worktrees of their own",
    "one project's worktree is made, or removed, in place of another's",
    applies=lambda tool: named(tool) and not tool.pool and works_anywhere(tool),
)
def two_repositories_of_one_name(world: ToolWorld, _case: str) -> None:
    """A second clone, in a directory of the same name elsewhere, has a worktree of the same name with an untracked file in it."""
    text = token("second-repository")
    world.sh('mkdir "$R/second"; cp -R "$R/app" "$R/second/app"')
    other = world.seen_from("second/app")
    other.sh(f"echo {text} > notes.txt", other.create())
    before = world.worktrees()
    ran = world.command("create", said=True)
    path = world.found_new(before)
    world.require(not ran.done or path is not None, "a repository of the same name has the worktree; exit status 0", "test $S -ne 0")
    if path is not None and world.tool.has("delete"):
        world.enter("demo", path)
        world.command("delete")
    world.findable(text, "an untracked file is gone from a worktree of another repository of the same name")


@clause(
    "WNEW-16",
    "in a submodule, the worktree is one of the submodule, and outside of all git directories",
    "the agent works on the wrong project, or in a hidden place",
    applies=works_anywhere,
)
def in_a_submodule(world: ToolWorld, _case: str) -> None:
    """The command runs in the work tree of a submodule, whose git directory is inside that of the superproject."""
    world.sh('git init -q "$R/super"; cd "$R/super"; git submodule --quiet add "$R/app" part; git commit -qm part')
    whole, part = world.seen_from("super"), world.seen_from("super/part")
    before = part.worktrees()
    ran = part.command("create", said=True)
    path = part.found_new(before)
    listed = 'git -C "$R/super" worktree list'
    part.require(not whole.worktrees(), "the worktree is one of the superproject", f'test "$({listed} | wc -l)" = 1')
    part.require(not ran.done or path is not None, "the command exits with 0, and the submodule has no worktree", "test $S -ne 0")
    inside = path is not None and path.is_relative_to(world.root) and ".git" in path.relative_to(world.root).parts
    part.require(not inside, "the worktree is inside of a git directory", "! git worktree list | sed 1d | grep -q /.git/")


_STILL_THERE: Final = 'test "/proc/$(cat "$R/pid")/cwd" -ef "$W"'
"""Whether the process whose number is in a file runs in the worktree. It no longer does where it was ended, or its directory replaced."""


@clause(
    "WNEW-17",
    "a directory is not given to a new tenant while a process of the last one runs in it",
    "two agents write in one directory",
    "delete",
    applies=lambda tool: tool.pool,
)
def a_process_of_the_last_tenant(world: ToolWorld, _case: str) -> None:
    """The work of the first tenant is finished, and a program that it started goes on."""
    path = world.create("first")
    world.sh("echo done > done.txt; git add done.txt; git commit -qm done", path)
    world.sh(f'git merge -q --no-edit "$(git -C "{path}" rev-parse HEAD)"')
    world.sh('sleep 300 >/dev/null 2>&1 & echo $! > "$R/pid"', path)
    if not world.look(f"{_STILL_THERE} && echo yes"):
        raise NoVerdict("this system does not show the working directory of a process")
    world.command("delete", "first")
    before = world.worktrees()
    world.command("create", "second")
    shared = world.found_new(before) == path and bool(world.look(f"{_STILL_THERE} && echo yes"))
    what = "the second tenant got the directory in which a process of the first one runs"
    world.require(not shared, what, f'! {{ git -C "$W" symbolic-ref HEAD | grep second && {_STILL_THERE}; }}')


@clause(
    "WNEW-18",
    "what was done before a second creation of the same name is kept",
    "the commits of the first run count as where the work began, and go with it",
    "delete",
    applies=lambda tool: named(tool) and not tool.pool,
)
def done_before_a_second_creation(world: ToolWorld, _case: str) -> None:
    """An agent has committed, the worktree is asked for again by its name, and is removed. Another one, asked for once, is the measure."""
    for name in ("first", "demo"):
        world.sh(f"echo {token(name)} > new.txt; git add new.txt; git commit -qm {name}", world.create(name))
    world.command("delete", "first")
    if not world.is_findable(token("first")):
        raise NoVerdict("a removal loses commits that are not merged, also without a second creation: see WREM-12")
    world.command("create", "demo")
    world.command("delete", "demo")
    world.findable(token("demo"), "lost: the commits that were made before the worktree was asked for again")


_PERSON: Final = {
    "on a branch": "git checkout -q -b person; git commit -q --allow-empty -m mine",
    "on a detached HEAD": "git checkout -q --detach; git commit -q --allow-empty -m mine",
}
_OF_THE_PERSON: Final = "git symbolic-ref -q HEAD; git rev-parse HEAD; git stash list --format=%H"


@clause(
    "WNEW-19",
    "creating leaves HEAD, branch and stash of the main checkout",
    "the person's next commit goes to another branch than they think",
    cases=tuple(_PERSON),
)
def where_the_person_is(world: ToolWorld, case: str) -> None:
    """The person works in the main checkout, not on the base branch, has committed everything, and has an older stash."""
    world.sh(f'echo mine >> other.txt; git stash push -q; {_PERSON[case]}; {{ {_OF_THE_PERSON}; }} > "$R/before"')
    world.create()
    world.check(f'{{ {_OF_THE_PERSON}; }} | diff "$R/before" -', "HEAD, branch or stash of the main checkout is not as it was")


@clause(
    "WNEW-20",
    "creating prunes nothing that git's own maintenance keeps: dropped stashes, commits of a reflog, worktrees that are not mounted",
    "the way back from a slip is closed, which git keeps open for weeks",
)
def creating_keeps_what_maintenance_keeps(world: ToolWorld, _case: str) -> None:
    """A worktree is created, and nothing else is asked for."""
    keeps_what_maintenance_keeps(world, "create")


@clause(
    "WNEW-21",
    "a sync leaves stashes of others, and HEAD and branch of the main checkout",
    "a person's stash is popped into an agent's worktree, and the entry is gone",
    "sync",
    cases=("clean", "with an unsaved edit"),
)
def stashes_of_others(world: ToolWorld, case: str) -> None:
    """The person has a stash; the base has a new commit; in the worktree there is a commit, and in one case an edit that is not saved."""
    path = world.create()
    world.sh("echo mine >> other.txt; git stash push -q")
    world.sh("echo done > done.txt; git add done.txt; git commit -qm done", path)
    if case != "clean":
        world.sh(f"echo {token('unsynced')} >> file.txt", path)
    world.sh(f'echo new > new.txt; git add new.txt; git commit -qm new; {{ {_OF_THE_PERSON}; }} > "$R/before"')
    world.command("sync")
    world.check(f'{{ {_OF_THE_PERSON}; }} | diff "$R/before" -', "stash, HEAD or branch of the main checkout is not as it was")
    if case != "clean":
        world.findable(token("unsynced"), "lost: the text of a modified file in the worktree that was synced")


_SAYS_BEHIND: Final = "behind|out.of.date|stale|not? fetch|local (branch|base)|differs from|newer"


@clause(
    "WNEW-22",
    "a command that asks the remote begins the worktree at the remote's head, or says that it does not",
    "the agent works on code that was replaced long ago",
    remote=True,
)
def begins_at_the_head(world: ToolWorld, _case: str) -> None:
    """A colleague has pushed to the base branch meanwhile. A tool that asks no remote keeps it."""
    pushed = "echo theirs > theirs.txt; git add theirs.txt; git commit -qm theirs; git push -q"
    world.sh(f'git clone -q "$R/origin.git" "$R/colleague"; cd "$R/colleague"; {pushed}')
    before, known = world.worktrees(), f"refs/remotes/origin/{world.tool.base}"
    ran = world.command("create", said=True)
    path = world.found_new(before)
    if path is None:
        raise NoVerdict(f"`{ran.line}` ended with {ran.status} and made no worktree: {ran.last_line}")
    if world.look(f"git rev-parse '{known}'") != world.look(f"git rev-parse {world.base}", world.origin):
        world.note = "it asks no remote"
        return
    world.enter("demo", path)
    begins = f"git merge-base --is-ancestor '{known}' HEAD"
    announced = not world.look(f"{begins} || echo behind", path) or bool(re.search(_SAYS_BEHIND, ran.output, re.IGNORECASE))
    what = "the worktree begins behind the remote's head, and the command does not say so"
    world.require(announced, what, f'cd "$W"; {begins} || grep -qiE "{_SAYS_BEHIND}" "$R/said"')


@clause(
    "WNEW-23",
    "a sync prunes nothing that git's own maintenance keeps: dropped stashes, commits of a reflog, worktrees that are not mounted",
    "the way back from a slip is closed, which git keeps open for weeks",
    "sync",
)
def syncing_keeps_what_maintenance_keeps(world: ToolWorld, _case: str) -> None:
    """A worktree is brought up to date, and nothing else is asked for."""
    keeps_what_maintenance_keeps(world, "sync")
