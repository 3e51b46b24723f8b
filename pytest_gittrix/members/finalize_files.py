"""Which files of a workspace are committed when its session ends, which stay where they are, and which may never leave it.

BotMinter's table (docs/explanation/you-know-botminter.md); the first rule that fits decides:

1. never: credentials, by their names (``workspaces.secrets.is_credential_file``). This rule comes before all others. A
   person can let a file through.
2. runtime: state of the programs that ran, left in place. Any path below a directory ``.ralph``; and, unless a commit has it, any path
   below ``logs``, ``locks`` or ``diagnostics`` at the root, and what is no source below such a directory elsewhere; ``*.log`` with its
   rotations, ``*.pid``, and ``*.lock`` that is no package manager's. Sockets and pipes are in no commit anyway.
3. commit: an uncommitted file of a project, on any branch but the default one (a detached HEAD is no default branch).
4. commit: a file of the team's repository below ``specs/``, ``knowledge/`` or ``members/<member>/knowledge/``, on any branch.
5. push: a committed file, on a branch that is ahead.
6. left: all others, such as a project's uncommitted files on its default branch. They are nowhere else, so the workspace is retained.

These are pure functions over names. What is in a file decides, too: one that gained a secret is left instead of committed.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from pytest_gittrix.workspaces.secrets import is_credential_file

Disposition = Literal["never", "runtime", "commit", "push", "left"]
"""The rule that a file falls under; see the module."""

_RUNTIME_ROOTS: Final = ("logs/", "locks/", "diagnostics/")
_RUNTIME_NAMES: Final = re.compile(r".+\.pid|.*\.log(\.[0-9]+|\.gz)*", re.DOTALL)
_OUTPUT: Final = re.compile(r"(.*/)?(logs|locks|diagnostics)/(.*/)?([^./]+|[^/]+\.(out|err|txt|gz|[0-9]+))", re.DOTALL)
_PACKAGE_LOCKS: Final = re.compile(
    r"berksfile|brewfile|buf|bun|cargo|chart|composer|conan|conda|conda-lock|deno|devbox|flake|gemfile|hatch|mise|mix|module\.bazel|npm"
    r"|paket|pdm|pipfile|pixi|pnpm|podfile|poetry|pubspec|puppetfile|rebar|renv|shard|skaffold|spago|stack\.yaml|symfony|uv|vendir|yarn"
    r"|.*(dependenc|require|package|plugin|toolchain|environment).*"
)
"""Names before ``.lock`` of files that package managers write, in lower case: they belong into a commit."""
_TEAM: Final = re.compile(r"(specs|knowledge|members/[^/]+/knowledge)/.*", re.DOTALL)


def is_runtime(path: str, *, tracked: bool) -> bool:
    """Whether a path is one of rule 2; ``tracked`` says whether the commit that is checked out has it."""
    directories, _, name = path.rpartition("/")
    if ".ralph" in directories.split("/"):
        return True
    if tracked:
        return False
    if name.endswith(".lock"):
        return not _PACKAGE_LOCKS.fullmatch(name.removesuffix(".lock").casefold()) or path.startswith(_RUNTIME_ROOTS)
    return path.startswith(_RUNTIME_ROOTS) or bool(_RUNTIME_NAMES.fullmatch(name) or _OUTPUT.fullmatch(path))


def classify(
    path: str,
    *,
    team: bool,
    branch: str | None,
    default: str | None,
    tracked: bool = True,
    uncommitted: bool = True,
    ahead: bool = False,
    let_through: bool = False,
) -> Disposition:
    """The rule that a file falls under.

    Args:
        path: in its repository, ``/``-separated.
        team: whether that is the team's repository.
        branch: the branch that is checked out; None for a detached HEAD.
        default: the remote's default branch, as the remote says.
        tracked: whether the commit that is checked out has the path.
        uncommitted: whether the file differs from that commit (was added, changed, or deleted).
        ahead: whether the branch has commits that the remote has not.
        let_through: whether a person says that the file holds no credentials, whatever its name.
    """
    if is_credential_file(path) and not let_through:
        return "never"
    if is_runtime(path, tracked=tracked):
        return "runtime"
    if not uncommitted:
        return "push" if ahead else "left"
    if team:
        return "commit" if _TEAM.fullmatch(path) else "left"
    return "left" if branch is not None and branch == default else "commit"
