"""A workspace for the tests of finalization, with one repository that the test works in as the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_gittrix.members.finalize import finalize
from pytest_gittrix.members.finalize_record import Finalized
from pytest_gittrix.record.state.lifecycle import Pushed
from pytest_gittrix.testing.repos.member_witness import Everything, everything_below
from pytest_gittrix.testing.repos.member_workspaces import Member, RemoteKind, RepositoryPlan, git


class AgentWorkspace:
    """A workspace that a test changes as the agent would; the agent works in its first repository.

    Attributes:
        member: the plan.
        root, bare: that repository and its remote.
        base: the commit it started from.
    """

    def __init__(self, place: Path, *plan: RepositoryPlan) -> None:
        self.member = Member(place, plan)
        self.root = self.member.work_tree(self.member.workspace.repositories[0])
        self.bare = self.member.remote(plan[0].name)
        self.base = str(self.member.workspace.repositories[0].commit)

    def git(self, *arguments: str) -> str:
        """Run the agent's git, each time a little later."""
        return git(self.root, *arguments, at=self.member.tick())

    def put(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file."""
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
        at.chmod(mode)

    def commit(self, path: str, text: str | None = None) -> str:
        """Commit a file, by default one that has its path in it; return the commit."""
        self.put(path, f"{path}\n" if text is None else text)
        self.git("add", "-f", path)
        self.git("commit", "-q", "-m", path)
        return self.git("rev-parse", "HEAD")

    def rival(self, branch: str, files: Mapping[str, str]) -> str:
        """Push to a branch as another person; return the commit."""
        self.member.commit_to(self.bare, branch, files)
        return git(self.bare, "rev-parse", f"refs/heads/{branch}")

    def overtake(self, branch: str, *, times: int) -> None:
        """Have another person win the race of the next pushes to a branch, each time with a commit of one file more."""
        git(self.bare, "branch", "faster", branch)
        ids = [self.rival("faster", {f"faster-{number}.txt": "x\n"}) for number in range(times)]
        git(self.bare, "update-ref", "-d", "refs/heads/faster")
        queue = self.bare / "queue"
        queue.write_text("".join(f"{id_}\n" for id_ in ids))
        unset = "unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES"
        take = f'next=$(head -n 1 queue)\n[ -z "$next" ] && exit 0\nsed -i 1d queue\ngit update-ref refs/heads/{branch} $next'
        self.hook("pre-receive", f"{unset}\ncase $(cat) in *refs/heads/{branch}) ;; *) exit 0;; esac\n{take}")

    def hook(self, name: str, script: str) -> None:
        """Put a hook into the remote."""
        at = self.bare / "hooks" / name
        at.parent.mkdir(exist_ok=True)
        at.write_text(f"#!/bin/sh\n{script}\n")
        at.chmod(0o755)

    def mood(self, kind: RemoteKind) -> None:
        """Change the kind of the remote."""
        self.member.change_mood(self.member.plan[0], kind)

    def lend(self) -> None:
        """Move the agent's packs to the shared clone, which has the objects of others."""
        clone = next(path.parent for path in Path(self.member.workspace.clones).glob("*/config"))
        for pack in (self.root / ".git" / "objects" / "pack").iterdir():
            pack.rename(clone / "objects" / "pack" / pack.name)

    def remote_refs(self) -> dict[str, str]:
        """The branches and tags of the remote."""
        return self.member.refs()[self.member.plan[0].name]

    def at_remote(self, branch: str, path: str) -> str:
        """A file of a branch of the remote."""
        return git(self.bare, "show", f"refs/heads/{branch}:{path}") + "\n"

    def everything(self) -> Everything:
        """All that is below the workspace."""
        return everything_below(self.member.workspace.path)

    def pushed(self, *branches: str) -> Iterable[Pushed]:
        """Branches of the repository, as a record names them."""
        return [Pushed(self.member.plan[0].name, branch) for branch in branches]

    def finalize(self, *, id_: str = "s1", **options: Any) -> Finalized:
        """Finalize the workspace."""
        return finalize(self.member.workspace, id_, **options)


def kinds(actions: Iterable[Any]) -> list[tuple[str, str | None]]:
    """What was done, and to which branch."""
    return [(one.action, one.branch) for one in actions]
