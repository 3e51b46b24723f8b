"""Checks finalizations: whether every commit and every file that an agent left still exists, by plain git on copies.

It reads a workspace before, and the workspace and the remotes afterwards, and nothing through the code that it checks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pytest_gittrix.git.environment import run_git
from pytest_gittrix.testing.repos.member_workspaces import SECRET, Member, RepositoryPlan, git
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository

_MESSAGES: Final = "%H%x00%an%x00%ae%x00%at%x00%B%x01"

Everything = dict[str, tuple[int, bytes]]


def everything_below(root: str | os.PathLike[str]) -> Everything:
    """Return mode and bytes of everything below a directory, by path; of a link, its target."""
    found: Everything = {}
    for parent, directories, names in os.walk(os.fsencode(root)):
        for name in (*directories, *names):
            at = os.path.join(parent, name)
            mode = os.lstat(at).st_mode
            data = b""
            if stat.S_ISLNK(mode):
                data = os.readlink(at)
            elif stat.S_ISREG(mode):
                data = Path(os.fsdecode(at)).read_bytes()
            found[os.fsdecode(os.path.relpath(at, os.fsencode(root)))] = (mode, data)
    return found


@dataclass(frozen=True)
class _Observed:
    """What one repository held: its own commits with what a replay keeps of them, and the files that are to be committed."""

    commits: Mapping[str, str | None]
    files: frozenset[tuple[str, str]]


@dataclass
class FinalizationWitness:
    """The state before a finalization. Created by ``Witness.of``.

    Attributes:
        member: the member with the workspace.
        observed: what each repository held, by name.
        unknown_repositories: whether there are repositories that the session does not know.
        workspace: everything below the workspace.
        refs: the references of the remotes.
    """

    member: Member
    workspace: Everything = field(repr=False)
    refs: Mapping[str, Mapping[str, str]]
    observed: dict[str, _Observed] = field(default_factory=dict)
    unknown_repositories: bool = False

    @classmethod
    def of(cls, member: Member) -> FinalizationWitness:
        """Read a workspace, in copies; the remotes must be in place, or moved aside."""
        witness = cls(member, everything_below(member.workspace.path), member.refs())
        for number, (plan, made) in enumerate(zip(member.plan, member.workspace.repositories, strict=True)):
            witness.observed[plan.name] = _observe(member, plan, made, member.root / "copies" / str(number))
            witness.unknown_repositories |= bool({"nested", "worktree"} & set(plan.extras))
        shutil.rmtree(member.root / "copies")
        return witness

    def losses(self, *, collected: bool) -> list[str]:
        """List what is wrong now, a sentence each; empty if nothing is.

        Args:
            collected: whether the workspace is to be removed, so that everything that is not on a remote is lost.
        """
        found: list[str] = []
        if everything_below(self.member.workspace.path) != self.workspace:
            found.append("the workspace is not as it was")
        if (self.member.root / "trace").exists():
            found.append("a program of the agent's ran")
        if collected and self.unknown_repositories:
            found.append("an unknown repository would be lost")
        return found + self.wrongs_at_remotes(collected=collected)

    def wrongs_at_remotes(self, *, collected: bool) -> list[str]:
        """List what is wrong at the remotes alone, a sentence each; see ``losses``."""
        found: list[str] = []
        for plan in self.member.plan:
            bare = next(
                path for path in (self.member.remote(plan.name), self.member.remote(plan.name).with_suffix(".aside")) if path.exists()
            )
            found += [f"{plan.name}: {what}" for what in self._at_remote(plan, bare, collected)]
        return found

    def _at_remote(self, plan: RepositoryPlan, bare: Path, collected: bool) -> Iterable[str]:
        ids = git(bare, "rev-list", "--all").split()
        if SECRET in run_git(["cat-file", "--batch"], cwd=bare, stdin=_objects(bare)):
            yield "a credential is on the remote"
        for ref, old in self.refs[plan.name].items():
            now = git(bare, "for-each-ref", "--format=%(objectname)", ref)
            if not now or old not in git(bare, "rev-list", now).split():
                yield f"{ref} lost what others had pushed"
        if not collected:
            return
        prints = set(_prints(bare, ids).values())
        for id_, print_ in self.observed[plan.name].commits.items():
            if id_ not in ids and (print_ is None or print_ not in prints):
                yield f"commit {id_} is lost: {print_}"
        raw = git(bare, "log", "--all", "--raw", "--no-abbrev", "--no-renames", "-m", "--root", "-z", "--format=") if ids else ""
        parts = raw.split("\0")
        there = {(parts[at + 1], part.split(" ")[3]) for at, part in enumerate(parts) if part.lstrip("\n").startswith(":")}
        for path, blob in self.observed[plan.name].files - there:
            yield f"file {path!r} ({blob}) is lost"


def _objects(bare: Path) -> bytes:
    return b"".join(line[:40] + b"\n" for line in run_git(["rev-list", "--all", "--objects"], cwd=bare).splitlines())


def _prints(directory: Path, ids: Iterable[str]) -> dict[str, str | None]:
    """Return author, message and change of each commit; None for a commit without a change of its own, such as a merge."""
    listed = "".join(f"{id_}\n" for id_ in ids).encode()
    if not listed:
        return {}
    shown = git(directory, "log", "--no-walk=unsorted", "--stdin", f"--format={_MESSAGES}", stdin=listed)
    patches = git(directory, "log", "--no-walk=unsorted", "--stdin", "-p", "--root", stdin=listed)
    changed = {line[41:81]: line[:40] for line in git(directory, "patch-id", "--stable", stdin=os.fsencode(patches)).splitlines()}
    found: dict[str, str | None] = {}
    for block in shown.split("\x01"):
        id_, _, details = block.strip("\n").partition("\0")
        if id_:
            found[id_] = f"{changed[id_]} {details}" if id_ in changed else None
    return found


def _observe(member: Member, plan: RepositoryPlan, made: CheckedOutRepository, copy: Path) -> _Observed:
    shutil.copytree(member.work_tree(made), copy, symlinks=True)
    (copy / ".git" / "config").write_text("[core]\n\tbare = false\n")
    shutil.rmtree(copy / ".git" / "hooks", ignore_errors=True)
    shutil.rmtree(copy / ".git" / "worktrees", ignore_errors=True)
    listing = ("cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)")
    clone = next(
        path.parent for path in Path(member.workspace.clones).glob("*/config") if str(member.remote(plan.name)) in path.read_text()
    )
    own = set(git(copy, *listing).splitlines()) - set(git(clone, *listing).splitlines())
    commits = [line.removeprefix("commit ") for line in sorted(own) if line.startswith("commit ")]
    return _Observed(_prints(copy, commits), frozenset(_committable(copy, plan, made)))


def _committable(copy: Path, plan: RepositoryPlan, made: CheckedOutRepository) -> Iterable[tuple[str, str]]:
    """List the files that BotMinter wants committed (docs/explanation/you-know-botminter.md), by git's own status."""
    branch = git(copy, "branch", "--show-current")
    parts = git(copy, "status", "--porcelain", "-z", "-uall", "--no-renames").split("\0")
    for path in (part[3:] for part in parts if part):
        at, name = copy / path, path.rpartition("/")[2]
        if not os.path.lexists(at) or (at.is_dir() and not at.is_symlink()):
            continue
        secret = name in (".env", "token.txt", "id_ed25519") or name.startswith(".env.") or "/gh/" in path
        runtime = path.startswith((".ralph/", "logs/")) or name.endswith(".log")
        committed = path.startswith(("specs/", "knowledge/", "members/")) if plan.team else branch != made.branch
        if committed and not secret and not runtime:
            data = os.fsencode(at.readlink()) if at.is_symlink() else at.read_bytes()
            yield path, hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
