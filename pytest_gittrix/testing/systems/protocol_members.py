"""The verbs of systems that keep members' sessions (BotMinter), and of those that tell a status by what is seen (agent-orchestrator).

An engine has them if, and only if, its system declares ``members`` or ``status``. It must not know an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol


class MemberVerbs(Protocol):
    """``members``: sessions of members of a team, from their start until their workspaces are gone (session-systems 4).

    A session is ``creating``, ``active``, ``finalizing``; then it ended as ``completed``, ``failed`` or ``killed``; then it is
    ``retained``, perhaps finalized again, and at last ``removed``.
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
        """Start a session: make its workspace, then start its agent; gives its id. It is active then.

        Args:
            member: whose it is.
            repositories: the addresses of the repositories of its workspace, by name; ``team`` is the team's. Each is there at the head of
                its default branch, and nothing that it is not told is.
            kind: ``loop``, ``brain`` or ``interactive``. With one that a person talks to, nobody watches over its agent.
            command: what its agent runs, in the workspace; an ``interactive`` one needs none.
            work_item: what it alone works on, until its run ends.

        Raises:
            ADAPTER_UNAVAILABLE: a repository cannot be read. WORK_ITEM_HELD: another session works on the item. Nothing is left of either.
        """
        ...

    def life(self, id: str) -> Mapping[str, Any]:
        """How a session is. ``SESSION_NOT_FOUND`` if there is none; of one that was removed, what there was to know is still known.

        Returns:
            ``state``; ``ended``: how its run ended last, ``completed``, ``failed``, ``killed`` or None; ``exit_status``: how its last
            finalization did, ``Completed``, ``CompletedDegraded``, ``Failed``, ``Skipped`` or None; ``recovery_branches``: the names of
            those that work is on.
        """
        ...

    def lives(self) -> Mapping[str, str]:
        """Each member's session's state, by id; also of those that were removed, if the system remembers them."""
        ...

    def repositories(self, id: str) -> Mapping[str, Path]:
        """Where the repositories of a session's workspace are, by name, there or not any more."""
        ...

    def stop(self, id: str, force: bool = False) -> None:
        """End a session's run. Its agent is asked to end and its work is saved; with force, it is killed and nothing is saved.

        A session that is over is no error.
        """
        ...

    def conclude(self, id: str) -> None:
        """Wait for the agent to end by itself, a minute at most, and bring the session to its end: its work saved, its workspace retained.

        A session that somebody talks to is over now. One that is over already is no error.
        """
        ...

    def finalize(self, id: str) -> None:
        """Save the work of a retained session once more. ``INVALID_INPUT`` in any other state; nothing happens then."""
        ...

    def keep_for(self, *, autonomous: timedelta, interactive: timedelta, unsuccessful: timedelta, budget: int | None = None) -> None:
        """Say how long workspaces are retained, from now on, for this engine.

        Args:
            autonomous: those of ``loop`` and ``brain``.
            interactive: those of ``interactive`` that completed.
            unsuccessful: those of ``interactive`` that did not.
            budget: bytes that all retained workspaces may take together.
        """
        ...

    def scan(self) -> Iterable[str]:
        """Remove the workspaces that were retained for their time, or that are over the budget; gives their sessions' ids."""
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
        """Remove retained workspaces that somebody selects, in one of four ways; gives their sessions' ids.

        By id it means it; in bulk, what holds work that is nowhere else is spared. With ``dry_run``, it only tells. ``INVALID_INPUT`` for
        a session that is not retained.
        """
        ...

    def acquire(self, id: str, item: str) -> str:
        """Have a session work on an item alone; gives the id of the session that does now, this one or another."""
        ...


class StatusVerbs(Protocol):
    """``status``: what a session is follows from what is seen of it (session-systems 5.1 and 5.2).

    Facts are a mapping: ``session`` and ``reason`` (how far it is), ``pr_state`` (``none``, ``open``, ``merged``, ``closed``), ``ci``
    (``none``, ``pending``, ``passing``, ``failing``), ``review`` (``none``, ``pending``, ``approved``, ``changes_requested``),
    ``mergeable``, ``runtime``, ``activity``. What is not told of a pull request is ``none``, or False.
    """

    def status_of(self, facts: Mapping[str, Any]) -> str:
        """One of the 16 documented statuses, for any facts."""
        ...

    def is_terminal(self, status: str, activity: str | None) -> bool:
        """Whether a session of that status, whose agent does that, is over."""
        ...

    def is_restorable(self, status: str, activity: str | None) -> bool:
        """Whether it is over and can be brought back."""
        ...

    def is_polled(self, facts: Mapping[str, Any], seen: str | None) -> bool:
        """Whether a session is to be looked at again; ``seen`` is the status that it had at the last look."""
        ...

    def look_through(self, looks: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Look at a session that is being started, once for each of some looks; gives its status after each.

        Args:
            looks: each with ``after`` (seconds since the start, rising) and what is to be seen then: ``runtime``, ``activity`` (an agent
                that is active does something at that moment), ``pr_state`` and so on. What is not told stays as it was.
        """
        ...
