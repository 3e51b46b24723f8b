"""Plain git as a manager of worktrees: what it loses in the case that a tool breaks is not the tool's fault."""

from __future__ import annotations

from typing import Final

from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool

_FINISHED: Final = "git for-each-ref --merged {base} --format='%(refname:short) %(worktreepath)' refs/heads"
_EACH: Final = f'{_FINISHED} | while read -r branch path; do [ "$branch" = {{base}} ] || [ -z "$path" ] ||'

PLAIN_GIT: Final = WorktreeTool(
    name="git",
    version="git --version",
    create="git worktree add -q -b {name} ../app-{name} {base}",
    delete="git worktree remove {path} && git branch -d {name}",
    clean=f'{_EACH} {{ git worktree remove "$path" && git branch -d "$branch"; }}; done',
    dry_run=f'{_EACH} echo "$branch"; done',
    finish="git merge --no-edit {name}",
    sync="git rebase {base}",
    list="git worktree list",
)
"""Git's own commands, as its documentation tells people to use them."""
