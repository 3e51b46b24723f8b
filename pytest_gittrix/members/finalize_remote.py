"""The remote of one repository during a finalization: its present refs, the fetches from it and the pushes to it, within a deadline.

A push names the commit that the branch must be at (``--force-with-lease``), so that it never replaces another commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from pytest_gittrix.backends.transport import FETCH_COMMAND, GIT_SETTINGS, PUSH_COMMAND, GitResult, PushResult, Transport, parse_push
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.monotonic import OutOfTime
from pytest_gittrix.workspaces.repositories.scratch_repository import ScratchRepository

_FETCHED: Final = "refs/fetched/"
_MANY: Final = 100
_LIST: Final = ("ls-remote", "-q", "--symref", "--")
_SETTINGS: Final = f"""\
{GIT_SETTINGS}[core]
	alternateRefsCommand = :
[safe]
	directory = *
"""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of the time for a finalization.

    Attributes:
        ends: the instant, in seconds of ``monotonic``.
        monotonic: the clock.
    """

    ends: float
    monotonic: Callable[[], float]

    def left(self) -> float:
        """The seconds that are left. Raises OutOfTime if none are."""
        seconds = self.ends - self.monotonic()
        if seconds <= 0:
            raise OutOfTime
        return seconds


def write_settings(path: str) -> None:
    """Write the configuration that every git of a finalization reads instead of a person's."""
    write_file(path, _SETTINGS.encode())


@dataclass
class Remote:
    """One remote, as one repository of the engine's fetches from it and pushes to it.

    Attributes:
        transport: its address and how to reach it.
        scratch: the engine's repository.
        settings: path of the configuration (``write_settings``).
        deadline: the end of the time for it.
        holding: a descriptor that every git process inherits: the finalization's lock, so that a push which outlives its engine holds it.
        heads: the commit of each branch by name, at the last ``refresh``.
        tags: the ids of the tags at that time.
        default: the branch that its HEAD is on; None if the remote did not say.
    """

    transport: Transport
    scratch: ScratchRepository
    settings: str
    deadline: Deadline
    holding: int
    heads: dict[str, str] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    default: str | None = None

    def refresh(self) -> None:
        """List the remote's refs, and fetch the objects that are missing.

        Raises:
            AuthFailed: the remote wants other credentials.
            AdapterUnavailable: it cannot be read.
            OutOfTime: no time is left.
        """
        answer = self._run([*_LIST, self.transport.url, "HEAD", "refs/heads/*", "refs/tags/*"])
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
        # A commit that was replaced between the two calls is missing; nothing is known of its branch until the next refresh.
        self.heads = {name: id_ for name, id_ in self.heads.items() if id_ in here}

    def known(self) -> list[str]:
        """The commits and tags that the remote's refs are at; the remote has them with all their ancestors."""
        return sorted({*self.heads.values(), *self.tags})

    def push(self, commit: str, branch: str) -> PushResult:
        """Push a commit as the new head of a branch, which must be where it was at the last refresh.

        Raises:
            OutOfTime: no time is left.
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
