"""A member at work, as clauses meet one: real remotes, a session of the system under test on them, and a witness of what is there.

``testing.repos.member_workspaces`` plans what the agent does, by plain git; ``testing.repos.member_witness`` says what becomes of it.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.repos.member_witness import Witness
from pytest_gittrix.testing.repos.member_workspaces import Member, RemoteKind, RepositoryPlan, git
from pytest_gittrix.testing.systems.driver import DrivenEngine, Stage
from pytest_gittrix.testing.systems.driver_members import DrivenMember
from pytest_gittrix.workspaces.multi_repo import Hydrated, HydratedRepository, RepositorySpec

APP: Final = RepositoryPlan("app")
"""A repository in which nothing was done."""

AGENT: Final = ("sh", "-c", "exit 0")
"""An agent that does nothing."""

DAY: Final = timedelta(days=1)
TWO_DAYS: Final = timedelta(days=2)
MOMENT: Final = timedelta(microseconds=1)

_WAIT: Final = 60.0
_NUMBERS: Final = count()


class Desk:
    """A session of a member, whose agent has done what was planned.

    Attributes:
        stage: where.
        session: the session.
        member: its remotes, and what was done.
    """

    def __init__(self, stage: Stage, session: DrivenMember, member: Member) -> None:
        self.stage, self.session, self.member = stage, session, member

    def place(self, name: str = "app") -> Path:
        """The work tree of a repository."""
        return self.session.repository(name)

    def put(self, path: str, text: str, name: str = "app") -> None:
        """Write a file, as the agent does."""
        at = self.place(name) / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def git(self, *arguments: str, name: str = "app") -> str:
        """Run git in a repository, as the agent does."""
        return git(self.place(name), *arguments, at=self.member.tick())

    def leave(self, path: str = "left.txt", text: str = "left\n", *, branch: str = "feature") -> None:
        """Leave a file on a branch, not committed."""
        self.git("checkout", "-q", "-B", branch)
        self.put(path, text)

    def keep(self, path: str = "made.txt", *, branch: str = "feature") -> str:
        """Commit a file on a branch; gives the commit."""
        self.leave(path, f"{path}\n", branch=branch)
        self.git("add", "-f", path)
        self.git("commit", "-q", "-m", path)
        return self.git("rev-parse", "HEAD")

    def heads(self, name: str = "app") -> dict[str, str]:
        """The branches of a remote, with their commits."""
        found = self.member.refs()[name]
        return {ref.removeprefix("refs/heads/"): id_ for ref, id_ in found.items() if ref.startswith("refs/heads/")}

    def published(self, branch: str, name: str = "app") -> list[str]:
        """The files of a branch of a remote; none if there is no such branch."""
        if branch not in self.heads(name):
            return []
        return git(self.member.remote(name), "ls-tree", "-r", "--name-only", "-z", f"refs/heads/{branch}").rstrip("\0").split("\0")

    def mood(self, kind: RemoteKind, name: str = "app") -> None:
        """Have a remote be of another kind from now on."""
        self.member.change_mood(next(one for one in self.member.plan if one.name == name), kind)

    def witness(self) -> Witness:
        """Remember all there is now."""
        return Witness.of(self.member)


def at_desk(stage: Stage, *plan: RepositoryPlan, engine: DrivenEngine | None = None, who: str = "ada", **options: Any) -> Desk:
    """Start a session of a member on remotes of its own, and do what is planned.

    Args:
        stage: where.
        plan: the repositories, and what is done in them; one in which nothing is by default.
        engine: that is to start it; the first one by default.
        who: whose session it is.
        options: as for ``MemberVerbs.open_member``.
    """
    root = stage.path / "desks" / str(next(_NUMBERS))
    members = (engine or stage.gittrix).members
    sessions: list[DrivenMember] = []

    def fill(specs: Sequence[RepositorySpec]) -> Hydrated:
        sessions.append(members.begin(who, {spec.name: Path(spec.url).as_uri() for spec in specs}, **options))
        return _as_witnessed(sessions[0], specs, root / "mirrors")

    member = Member(root, plan or (APP,), fill)
    return Desk(stage, sessions[0], member)


def again_at(desk: Desk, *, who: str = "ada", **options: Any) -> DrivenMember:
    """One more session on the remotes of a desk."""
    addresses = {one.name: desk.member.remote(one.name).as_uri() for one in desk.member.plan}
    return desk.stage.gittrix.members.begin(who, addresses, **options)


def _as_witnessed(session: DrivenMember, specs: Sequence[RepositorySpec], mirrors: Path) -> Hydrated:
    """A workspace as a witness takes one, with mirrors of its own to tell what the agent made from what was there."""
    mirrors.mkdir(parents=True)
    made: list[HydratedRepository] = []
    for number, spec in enumerate(specs):
        place, remote = session.repository(spec.name).resolve(), Path(spec.url)
        git(mirrors, "clone", "-q", "--mirror", str(remote), str(number))
        branch = git(remote, "symbolic-ref", "--short", "HEAD")
        commit = git(remote, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}") or None
        made.append(HydratedRepository(spec.name, spec.url, str(place), branch, commit, spec.team))
    top = os.path.commonpath([os.path.dirname(one.place) for one in made])
    return Hydrated(top, str(mirrors), tuple(made))


# Agents that run -----------------------------------------------------------------------------------------------------------------


class Awake:
    """An agent that runs until somebody ends it, or it is told to leave.

    Args:
        directory: where it meets the test; made.

    Attributes:
        command: it.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._pipe = directory / "pid"
        self._go = directory / "go"
        for pipe in (self._pipe, self._go):
            os.mkfifo(pipe)
        self._reading = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.command = ("sh", "-c", f"echo $$ > '{self._pipe}'; read code < '{self._go}'; exit $code")
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        """Its process, once it runs. Raises InvalidInput if it does not in a minute."""
        if self._pid is None:
            if not select.select([self._reading], [], [], _WAIT)[0]:
                raise InvalidInput(f"No agent said at {self._pipe} that it runs.", fix="See what was started.")
            self._pid = int(os.read(self._reading, 100))
        return self._pid

    @property
    def runs(self) -> bool:
        """Whether it runs; one that is dead and that nobody has asked after does not."""
        if not Path("/proc/self/stat").exists():
            told = subprocess.run(["ps", "-o", "stat=", "-p", str(self.pid)], capture_output=True, text=True, check=False).stdout.strip()
            return bool(told) and not told.startswith("Z")
        try:
            return not Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0].startswith("Z")
        except (FileNotFoundError, ProcessLookupError):
            return False

    def leave(self, code: int) -> None:
        """Have it end by itself, with a code."""
        assert self.pid
        self._go.write_text(f"{code}\n")

    def end(self) -> None:
        """End it, whoever started it."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, 9)
        os.close(self._reading)
