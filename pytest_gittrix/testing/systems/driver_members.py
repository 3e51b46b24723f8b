"""Members' sessions of any system as they are driven, a handle each; a part of ``driver``. It must not know which system it drives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any


class DrivenMember:
    """A member's session of any system; its verbs are those of ``system_members.MemberVerbs``.

    Attributes:
        id: its id.
    """

    def __init__(self, raw: Any, id_: str) -> None:
        self.id = id_
        self._raw = raw

    def __repr__(self) -> str:
        return f"<DrivenMember {self.id}>"

    def life(self) -> Mapping[str, Any]:
        """How it is."""
        told: Mapping[str, Any] = self._raw.life(self.id)
        return told

    @property
    def state(self) -> str:
        """Its state."""
        return str(self.life()["state"])

    def repository(self, name: str = "app") -> Path:
        """The work tree of one of its repositories."""
        return Path(self._raw.repositories(self.id)[name])

    def stop(self, *, force: bool = False) -> None:
        """End its run."""
        self._raw.stop(self.id, force=force)

    def conclude(self) -> None:
        """Bring it to its end, once its agent is gone."""
        self._raw.conclude(self.id)

    def finalize(self) -> None:
        """Save its work once more."""
        self._raw.finalize(self.id)

    def acquire(self, item: str) -> str:
        """Have it alone work on an item; gives the id of the session that does."""
        return str(self._raw.acquire(self.id, item))


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
        """A handle on a session; that it exists is found out by using it."""
        return DrivenMember(self._raw, id_)

    def states(self) -> dict[str, str]:
        """Each session's state by id."""
        return dict(self._raw.lives())

    def keep_for(self, autonomous: timedelta, interactive: timedelta, unsuccessful: timedelta, *, budget: int | None = None) -> None:
        """Say how long workspaces are retained."""
        self._raw.keep_for(autonomous=autonomous, interactive=interactive, unsuccessful=unsuccessful, budget=budget)

    def scan(self) -> list[str]:
        """Remove what was retained for its time; gives the ids, sorted."""
        return sorted(self._raw.scan())

    def cleanup(self, **selector: Any) -> list[str]:
        """Remove what is selected; gives the ids, sorted."""
        return sorted(self._raw.cleanup(**selector))


class DrivenRules:
    """The status rules of any system; its verbs are those of ``system_members.StatusVerbs``.

    Args:
        raw: the engine.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def of(self, **facts: Any) -> str:
        """The status of some facts; what is not told is of a session that works, without a pull request."""
        return str(self._raw.status_of({**WORKING, **facts}))

    def is_terminal(self, status: str, activity: str | None) -> bool:
        """Whether a session is over."""
        return bool(self._raw.is_terminal(status, activity))

    def is_restorable(self, status: str, activity: str | None) -> bool:
        """Whether it is over and can be brought back."""
        return bool(self._raw.is_restorable(status, activity))

    def is_polled(self, seen: str | None, **facts: Any) -> bool:
        """Whether it is looked at again; what is not told is as in ``of``."""
        return bool(self._raw.is_polled({**WORKING, **facts}, seen))

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
"""What is seen of a session that works."""
