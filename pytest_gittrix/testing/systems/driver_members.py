"""Drives the sessions of members, and the status rules, of any session system; a part of ``driver``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytest_gittrix.testing.systems.handle import Handle, forwarded, forwarded_as
from pytest_gittrix.testing.systems.protocol_members import MemberVerbs


class DrivenMember(Handle):
    """A member's session of any system, with the verbs of ``MemberVerbs``.

    Attributes:
        id: its id.
    """

    life = forwarded(MemberVerbs.life)
    stop = forwarded(MemberVerbs.stop)
    conclude = forwarded(MemberVerbs.conclude)
    finalize = forwarded(MemberVerbs.finalize)
    acquire = forwarded_as(str, MemberVerbs.acquire)

    @property
    def state(self) -> str:
        """Its state."""
        return str(self.life()["state"])

    def repository(self, name: str = "app") -> Path:
        """The work tree of one of its repositories."""
        return Path(self._call("repositories")[name])


class DrivenMembers:
    """The members' sessions of an engine of any system.

    Args:
        raw: the engine.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def begin(self, member: str, repositories: Mapping[str, str], **options: Any) -> DrivenMember:
        """Start a session; options are those of ``MemberVerbs.open_member``."""
        return self.get(str(self._raw.open_member(member, repositories, **options)))

    def get(self, id_: str) -> DrivenMember:
        """A handle of a session. Whether the session exists shows when the handle is used."""
        return DrivenMember(self._raw, id_)

    def states(self) -> dict[str, str]:
        """Each session's state by id."""
        return dict(self._raw.lives())

    def keep_for(self, autonomous: timedelta, interactive: timedelta, unsuccessful: timedelta, *, budget: int | None = None) -> None:
        """Say how long workspaces are retained."""
        self._raw.keep_for(autonomous=autonomous, interactive=interactive, unsuccessful=unsuccessful, budget=budget)

    def scan(self) -> list[str]:
        """Remove the workspaces whose time of retention is over; gives the ids of their sessions, sorted."""
        return sorted(self._raw.scan())

    def cleanup(self, **selector: Any) -> list[str]:
        """Remove the selected workspaces; gives the ids of their sessions, sorted."""
        return sorted(self._raw.cleanup(**selector))


class DrivenRules:
    """The status rules of any system, with the verbs of ``StatusVerbs``.

    Args:
        raw: the engine.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def of(self, **facts: Any) -> str:
        """The status that follows from some facts; all other facts are those of ``WORKING``."""
        return str(self._raw.status_of({**WORKING, **facts}))

    def is_terminal(self, status: str, activity: str | None) -> bool:
        """Whether a session is over."""
        return bool(self._raw.is_terminal(status, activity))

    def is_restorable(self, status: str, activity: str | None) -> bool:
        """Whether it is over and can be brought back."""
        return bool(self._raw.is_restorable(status, activity))

    def is_polled(self, known: str | None, **facts: Any) -> bool:
        """Whether a session is looked at again whose last known status is ``known``; all other facts are those of ``WORKING``."""
        return bool(self._raw.is_polled({**WORKING, **facts}, known))

    def look_through(self, *looks: Mapping[str, Any]) -> Sequence[str]:
        """The status after each look."""
        return [str(status) for status in self._raw.look_through(looks)]


WORKING: Mapping[str, Any] = {
    "session": "working",
    "reason": "task_in_progress",
    "pr_state": "none",
    "ci": "none",
    "review": "none",
    "mergeable": False,
    "runtime": "alive",
    "activity": "active",
}
"""The facts of a session that works and has no pull request."""
