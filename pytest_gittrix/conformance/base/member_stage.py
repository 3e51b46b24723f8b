"""A member of a team for clauses: real remotes, a session of the system under test on them, and a witness of what they hold.

``testing.repos.member_workspaces`` plans what the agent does, by plain git; ``testing.repos.member_witness`` says what becomes of it.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.proc import STATE, pids, stat_fields
from pytest_gittrix.testing.repos.member_witness import FinalizationWitness
from pytest_gittrix.testing.repos.member_workspaces import Member, RemoteKind, RepositoryPlan, git
from pytest_gittrix.testing.systems.driver import DrivenEngine, Stage
from pytest_gittrix.testing.systems.driver_members import DrivenMember
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, MultiRepoWorkspace, RepositorySpec

APP: Final = RepositoryPlan("app")
"""A repository in which nothing was done."""

AGENT: Final = ("sh", "-c", "exit 0")
"""An agent that does nothing."""

DAY: Final = timedelta(days=1)
TWO_DAYS: Final = timedelta(days=2)
MOMENT: Final = timedelta(microseconds=1)

_WAIT: Final = 60.0
_NUMBERS: Final = count()


class MemberStage:
    """A member's session, whose agent has done what was planned.

    Attributes:
        stage: the stage that it is on.
        session: the session, in the system under test.
        remotes: the remotes of its repositories, and the plan by which they were made.
    """

    def __init__(self, stage: Stage, session: DrivenMember, remotes: Member) -> None:
        self.stage, self.session, self.remotes = stage, session, remotes

    def work_tree(self, name: str = "app") -> Path:
        """The directory of a repository in the member's workspace."""
        return self.session.repository(name)

    def write(self, path: str, text: str, name: str = "app") -> None:
        """Write a file, as the agent does."""
        file = self.work_tree(name) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def git(self, *arguments: str, name: str = "app") -> str:
        """Run git in a repository, as the agent does."""
        return git(self.work_tree(name), *arguments, at=self.remotes.tick())

    def leave_uncommitted(self, path: str = "left.txt", text: str = "left\n", *, branch: str = "feature") -> None:
        """Check out a branch and write a file without committing it."""
        self.git("checkout", "-q", "-B", branch)
        self.write(path, text)

    def commit(self, path: str = "made.txt", *, branch: str = "feature") -> str:
        """Commit a new file on a branch; gives the commit's id."""
        self.leave_uncommitted(path, f"{path}\n", branch=branch)
        self.git("add", "-f", path)
        self.git("commit", "-q", "-m", path)
        return self.git("rev-parse", "HEAD")

    def heads(self, name: str = "app") -> dict[str, str]:
        """The branches of a remote, with their commits."""
        found = self.remotes.refs()[name]
        return {ref.removeprefix("refs/heads/"): id_ for ref, id_ in found.items() if ref.startswith("refs/heads/")}

    def published(self, branch: str, name: str = "app") -> list[str]:
        """The files on a branch of a remote; empty if the remote has no such branch."""
        if branch not in self.heads(name):
            return []
        return git(self.remotes.remote(name), "ls-tree", "-r", "--name-only", "-z", f"refs/heads/{branch}").rstrip("\0").split("\0")

    def change_remote(self, kind: RemoteKind, name: str = "app") -> None:
        """Make a remote behave as one of another kind from now on."""
        self.remotes.change_mood(next(one for one in self.remotes.plan if one.name == name), kind)

    def witness(self) -> FinalizationWitness:
        """Remember all that the workspace and the remotes hold now."""
        return FinalizationWitness.of(self.remotes)


def start_member(stage: Stage, *plan: RepositoryPlan, engine: DrivenEngine | None = None, who: str = "ada", **options: Any) -> MemberStage:
    """Start a member's session on new remotes, and do in its workspace what is planned.

    Args:
        stage: the stage; the remotes are made in its directory.
        plan: the repositories, and what the agent does in each; by default one repository in which nothing is done.
        engine: the engine that starts the session; the stage's first one by default.
        who: the member's name.
        options: as for ``MemberVerbs.open_member``.
    """
    root = stage.path / "members" / str(next(_NUMBERS))
    members = (engine or stage.gittrix).members
    sessions: list[DrivenMember] = []

    def fill(specs: Sequence[RepositorySpec]) -> MultiRepoWorkspace:
        sessions.append(members.begin(who, {spec.name: Path(spec.url).as_uri() for spec in specs}, **options))
        return _as_hydrated(sessions[0], specs, root / "mirrors")

    remotes = Member(root, plan or (APP,), fill)
    return MemberStage(stage, sessions[0], remotes)


def start_another(member: MemberStage, *, who: str = "ada", **options: Any) -> DrivenMember:
    """Start one more session on the remotes of a member."""
    addresses = {one.name: member.remotes.remote(one.name).as_uri() for one in member.remotes.plan}
    return member.stage.gittrix.members.begin(who, addresses, **options)


def _as_hydrated(session: DrivenMember, specs: Sequence[RepositorySpec], mirrors: Path) -> MultiRepoWorkspace:
    """A session's workspace as a witness takes one.

    The witness tells what the agent made from what was there by mirrors of the remotes, which are made here.
    """
    mirrors.mkdir(parents=True)
    made: list[CheckedOutRepository] = []
    for number, spec in enumerate(specs):
        work_tree, remote = session.repository(spec.name).resolve(), Path(spec.url)
        shutil.copytree(remote, mirrors / str(number), symlinks=True)  # what `git clone --mirror` makes, without its five processes
        with open(mirrors / str(number) / "config", "a", encoding="utf-8") as config:
            config.write(f'[remote "origin"]\n\turl = {remote}\n')  # by which the witness finds it
        branch = git(remote, "symbolic-ref", "--short", "HEAD")
        commit = git(remote, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}") or None
        made.append(CheckedOutRepository(spec.name, spec.url, str(work_tree), branch, commit, spec.team))
    top = os.path.commonpath([os.path.dirname(one.directory) for one in made])
    return MultiRepoWorkspace(top, str(mirrors), tuple(made))


class RunningAgent:
    """An agent that runs until it is killed, or until the test lets it exit.

    Args:
        directory: where the agent and the test exchange its process id and its exit status; it is made.

    Attributes:
        command: the agent's command line.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._pid_pipe = directory / "pid"
        self._exit_pipe = directory / "go"
        for pipe in (self._pid_pipe, self._exit_pipe):
            os.mkfifo(pipe)
        self._reader = os.open(self._pid_pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.command = ("sh", "-c", f"echo $$ > '{self._pid_pipe}'; read code < '{self._exit_pipe}'; exit $code")
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        """The agent's process id, once it runs. Raises InvalidInput if it does not run within a minute."""
        if self._pid is None:
            if not select.select([self._reader], [], [], _WAIT)[0]:
                raise InvalidInput(f"No agent said at {self._pid_pipe} that it runs.", fix="See what was started.")
            self._pid = int(os.read(self._reader, 100))
        return self._pid

    @property
    def runs(self) -> bool:
        """Whether the agent's process runs; a zombie does not."""
        if not pids():
            state = subprocess.run(["ps", "-o", "stat=", "-p", str(self.pid)], capture_output=True, text=True, check=False).stdout.strip()
            return bool(state) and not state.startswith("Z")
        try:
            return stat_fields(self.pid)[STATE] != b"Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def exit(self, code: int) -> None:
        """Make the agent exit by itself, with this status."""
        assert self.pid
        self._exit_pipe.write_text(f"{code}\n")

    def kill(self) -> None:
        """Kill the agent if it was started."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, 9)
        os.close(self._reader)
