"""The remote of one repository during a finalization: where it is now, what is fetched from it, what is pushed to it; all within a time.

A push says where the branch must be (a lease), so that nobody's commit is ever replaced. It must not know what is worth pushing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from pytest_gittrix.backends.transport import FETCH_COMMAND, GIT_SETTINGS, PUSH_COMMAND, GitResult, PushResult, Transport, parse_push
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.workspaces.alternates import ScratchRepository

_FETCHED: Final = "refs/fetched/"
_MANY: Final = 100
_LOOK: Final = ("ls-remote", "-q", "--symref", "--")
_SETTINGS: Final = f"""\
{GIT_SETTINGS}[core]
	alternateRefsCommand = :
[safe]
	directory = *
"""


class OutOfTime(Exception):
    """The time of the finalization is up. What was not saved by then stays in the workspace."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """An end of the time that there is.

    Attributes:
        ends: the instant, as ``monotonic`` tells it, in seconds.
        monotonic: the clock.
    """

    ends: float
    monotonic: Callable[[], float]

    def left(self) -> float:
        """The seconds that are left. Raises OutOfTime if there are none."""
        seconds = self.ends - self.monotonic()
        if seconds <= 0:
            raise OutOfTime
        return seconds


def write_settings(path: str) -> None:
    """Write the configuration that every git of a finalization reads instead of a person's."""
    write_file(path, _SETTINGS.encode())


@dataclass
class Remote:
    """One remote, as seen from one repository of the engine's.

    Attributes:
        transport: how it is reached.
        scratch: where its objects go.
        settings: path of the configuration (``write_settings``).
        deadline: by when all has to be done.
        holding: a descriptor that every git holds: the lock of the finalization, so that a push which outlives its engine keeps it.
        heads: commit of each branch by name, at the last ``look``.
        tags: what the tags were at then.
        default: the branch that its HEAD is on; None if it did not say.
    """

    transport: Transport
    scratch: ScratchRepository
    settings: str
    deadline: Deadline
    holding: int
    heads: dict[str, str] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    default: str | None = None

    def look(self) -> None:
        """Ask where everything is now, and fetch what is not here yet.

        Raises:
            AuthFailed: it wants other credentials.
            AdapterUnavailable: it cannot be read.
            OutOfTime: there is no time left.
        """
        answer = self._run([*_LOOK, self.transport.url, "HEAD", "refs/heads/*", "refs/tags/*"])
        heads: dict[str, str] = {}
        tags: set[str] = set()
        for line in answer.stdout.splitlines():
            value, _, name = line.partition("\t")
            if name == "HEAD" and value.startswith("ref: refs/heads/"):
                self.default = value.removeprefix("ref: refs/heads/")
            elif name.startswith("refs/heads/"):
                heads[name.removeprefix("refs/heads/")] = value
            elif name.startswith("refs/tags/"):
                tags.add(value)
        self.heads, self.tags = heads, frozenset(tags)
        self._fetch()

    def _fetch(self) -> None:
        here = self.scratch.object_kinds({*self.heads.values(), *self.tags})
        missing = sorted(name for name, id_ in self.heads.items() if id_ not in here)
        self.tags &= here.keys()
        if not missing:
            return
        named = [f"+refs/heads/{name}:{_FETCHED}{name}" for name in missing]
        self._run([*FETCH_COMMAND, "--", self.transport.url, *(named if len(named) <= _MANY else [f"+refs/heads/*:{_FETCHED}*"])])
        here = self.scratch.object_kinds(self.heads.values())
        # One that was replaced between the two calls is not here; nothing can be said of it until the next look.
        self.heads = {name: id_ for name, id_ in self.heads.items() if id_ in here}

    def known(self) -> list[str]:
        """Commits (and tags) that are on the remote, with all that they lead to."""
        return sorted({*self.heads.values(), *self.tags})

    def push(self, commit: str, branch: str) -> PushResult:
        """Offer a commit as the new head of a branch, which must be where it was at the last look.

        Raises:
            OutOfTime: there is no time left.
        """
        ref = f"refs/heads/{branch}"
        lease = f"--force-with-lease={ref}:{self.heads.get(branch, '')}"
        ended = parse_push(self._answer([*PUSH_COMMAND, lease, "--", self.transport.url, f"{commit}:{ref}"]), ref)
        if ended.outcome == "landed":
            self.heads[branch] = commit
        return ended

    def _run(self, arguments: list[str]) -> GitResult:
        answer = self._answer(arguments)
        if answer.status != 0:
            raise self.transport.read_error(answer)
        return answer

    def _answer(self, arguments: list[str]) -> GitResult:
        limited = replace(self.transport, timeout=min(self.transport.timeout, self.deadline.left()))
        return limited.run(
            arguments, settings=self.settings, variables={"GIT_DIR": os.fspath(self.scratch.path)}, inherit_fds=(self.holding,)
        )
