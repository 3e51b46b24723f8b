"""The verbs for sessions of the members of a team, as in BotMinter, and for statuses that follow from facts, as in agent-orchestrator.

An engine has them if, and only if, its system declares ``members`` or ``status``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol


class MemberVerbs(Protocol):
    """``members``: sessions of members of a team, from their start until their workspaces are removed.

    A session is ``creating``, ``active``, ``finalizing``; then it ends as ``completed``, ``failed`` or ``killed``; then it is ``retained``,
    perhaps finalized again, and at last ``removed`` (docs/explanation/you-know-botminter.md).
    """

    def open_member(
        self,
        member: str,
        repositories: Mapping[str, str],
        *,
        kind: str = "interactive",
        command: Sequence[str] | None = None,
        work_item: str | None = None,
    ) -> str:
        """Start a session: make its workspace, then start its agent; gives its id. The session is active then.

        Args:
            member: the member whose session it is.
            repositories: the URLs of the repositories in its workspace, by name; ``team`` is the team's own. Each is checked out at the
                head of its default branch, and the workspace has no others.
            kind: ``loop``, ``brain`` or ``interactive``. The agent of an ``interactive`` session is not supervised.
            command: the agent's command, run in the workspace; an ``interactive`` session needs none.
            work_item: an item that no other session may work on until this one's run ends.

        Raises:
            ADAPTER_UNAVAILABLE: a repository cannot be read. WORK_ITEM_HELD: another session works on the item. Neither leaves anything.
        """
        ...

    def life(self, id: str) -> Mapping[str, Any]:
        """The state and the results of a session, also of a removed one. ``SESSION_NOT_FOUND`` for an unknown id.

        Returns:
            ``state``; ``ended``: how its last run ended: ``completed``, ``failed``, ``killed`` or None; ``exit_status``: how its last
            finalization ended: ``Completed``, ``CompletedDegraded``, ``Failed``, ``Skipped`` or None; ``recovery_branches``: the names of
            the branches to which its work was saved.
        """
        ...

    def lives(self) -> Mapping[str, str]:
        """The state of every member's session by id; also of removed ones, if the system remembers them."""
        ...

    def repositories(self, id: str) -> Mapping[str, Path]:
        """The directories of the repositories in a session's workspace, by name, even if they were removed."""
        ...

    def stop(self, id: str, force: bool = False) -> None:
        """End a session's run. Its agent is asked to end and its work is saved; with ``force``, it is killed and nothing is saved.

        No error for a session that has ended.
        """
        ...

    def conclude(self, id: str) -> None:
        """Wait up to a minute for the agent to end by itself, then finish the session: save its work, retain its workspace.

        An ``interactive`` session is finished at once. No error for a session that has ended.
        """
        ...

    def finalize(self, id: str) -> None:
        """Save the work of a retained session once more. ``INVALID_INPUT``, and nothing happens, in any other state."""
        ...

    def keep_for(self, *, autonomous: timedelta, interactive: timedelta, unsuccessful: timedelta, budget: int | None = None) -> None:
        """Set how long this engine retains workspaces, from now on.

        Args:
            autonomous: for ``loop`` and ``brain`` sessions.
            interactive: for ``interactive`` sessions that completed.
            unsuccessful: for ``interactive`` sessions that did not complete.
            budget: how many bytes all retained workspaces may take together.
        """
        ...

    def scan(self) -> Iterable[str]:
        """Remove the workspaces whose time of retention is over, or that exceed the budget; gives their sessions' ids."""
        ...

    def cleanup(
        self,
        *,
        id: str | None = None,
        all: bool = False,
        member: str | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> Iterable[str]:
        """Remove the retained workspaces selected in one of four ways; gives their sessions' ids.

        A workspace selected by id is always removed; the other selections spare workspaces with work that is saved nowhere else. With
        ``dry_run``, nothing is removed. ``INVALID_INPUT`` for a session that is not retained.
        """
        ...

    def acquire(self, id: str, item: str) -> str:
        """Lock a work item for a session; gives the id of the session that has the lock now, this one or another."""
        ...


class StatusVerbs(Protocol):
    """``status``: the status of a session follows from facts observed of it (docs/explanation/you-know-agent-orchestrator.md).

    Facts are a mapping: ``session`` and ``reason`` (its progress), ``pr_state`` (``none``, ``open``, ``merged``, ``closed``), ``ci``
    (``none``, ``pending``, ``passing``, ``failing``), ``review`` (``none``, ``pending``, ``approved``, ``changes_requested``),
    ``mergeable``, ``runtime``, ``activity``. Missing facts of a pull request are ``none``, or False.
    """

    def status_of(self, facts: Mapping[str, Any]) -> str:
        """The status that follows from the facts, one of the 16 documented ones."""
        ...

    def is_terminal(self, status: str, activity: str | None) -> bool:
        """Whether a session of a status has ended, given the activity of its agent."""
        ...

    def is_restorable(self, status: str, activity: str | None) -> bool:
        """Whether a session of a status has ended and can be restored."""
        ...

    def is_polled(self, facts: Mapping[str, Any], seen: str | None) -> bool:
        """Whether a session must be observed again; ``seen`` is its status after the last observation."""
        ...

    def look_through(self, looks: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Start a session and observe it several times; gives its status after each observation.

        Args:
            looks: the observations: each with ``after`` (seconds since the start, rising) and the facts of that moment: ``runtime``,
                ``activity`` (an active agent does something at that moment), ``pr_state`` and so on. Missing facts stay as they were.
        """
        ...
