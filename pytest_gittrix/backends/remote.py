"""A durable repository on another machine, or behind any other address that git takes.

The remote is asked for the head of a branch every time; the engine's ``mirror`` only saves fetching objects again. A promotion lands as
one push with a lease, which is git's compare-and-swap over a network: a lost race is recognised, and a rejected push changes nothing
(docs/explanation/promotion.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cached_property

from pytest_gittrix import points
from pytest_gittrix.backends.local import RepositoryReader
from pytest_gittrix.backends.mirror import RemoteMirror
from pytest_gittrix.backends.protocol import LandingResult
from pytest_gittrix.backends.transport import PushResult, Transport, parse_push
from pytest_gittrix.errors import AdapterUnavailable, Advice, DurableLocked, GittrixError, PromoteFailed
from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.refs import PackedReferences, RefMoved, branch_ref, short_branch
from pytest_gittrix.git.repository import Repository, no_branch_error
from pytest_gittrix.git.tree import Changes

__all__ = ["RemoteDurable"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5


class RemoteDurable(RepositoryReader):
    """A git repository behind an address.

    The remote is not contacted before the first call. Each call may raise ``AuthFailed`` (the remote requires other credentials) and
    ``AdapterUnavailable`` (it cannot be reached, or did not answer in time).

    Args:
        url: the address: ``https://host/owner/name.git``, ``github://owner/name``, ``file:///srv/app.git``, ``user@host:path``, a path.
        branch: the branch that sessions start from and promote to.
        mirror: directory of the mirror; made when needed, shared by engines and processes, one for each remote.
        author: name and address on promoted commits; by default those the user has configured for all repositories.
        protected: full names of branches that commits may not be made on directly.
        credentials: user and password (or token) for ``http`` and ``https``; by default those in the URL. Never shown.
        timeout: seconds that one git program may take.
        grace: seconds to wait for the branch to show the commit, if the connection was cut after a push was sent.
        environment: more variables for git, such as ``SSH_AUTH_SOCK``; git sees nothing else of the user's.
        sync: write seeds and the mirror through to the disk; the remote decides for itself what it writes through.

    Raises:
        InvalidInput: the URL, the branch or the credentials cannot be used.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        branch: str = "main",
        *,
        mirror: str | os.PathLike[str],
        author: tuple[str, str] | None = None,
        protected: Collection[str] = (),
        credentials: tuple[str, str] | None = None,
        timeout: float = 120.0,
        grace: float = 3.0,
        environment: Mapping[str, str] | None = None,
        sync: bool = True,
    ) -> None:
        super().__init__(short_branch(branch), author, protected, sync=sync)
        self._named = os.fspath(url)
        self._transport = Transport.to(url, credentials=credentials, timeout=timeout, environment=environment)
        self._mirror = RemoteMirror(os.path.realpath(mirror), self._transport, sync)
        self._grace = grace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.uri}>"

    @property
    def url(self) -> str:
        """The address, without credentials."""
        return self._transport.url

    @property
    def uri(self) -> str:
        """``<url>#<branch>``, without credentials; ``github://owner/repo#<branch>`` if it was named so."""
        return f"{self._named if self._named.startswith('github://') else self.url}#{self.branch}"

    @property
    def path(self) -> str:
        """The mirror's directory, by which sessions find their repository again. Only this class can open it."""
        return self._mirror.path

    @property
    def objects_dir(self) -> None:
        """None, because workspaces may not share objects with the mirror."""
        return

    @cached_property
    def repository(self) -> Repository:  # type: ignore[override]
        """The mirror's repository, for reading objects."""
        if not os.path.isdir(self._mirror.repository):
            self.head(self.branch)
        return Repository.open(self._mirror.repository)

    def close(self) -> None:
        if "repository" in self.__dict__:
            self.repository.close()

    # Reading -------------------------------------------------------------------------------------------------------------------

    def head(self, branch: str) -> str:
        """Ask the remote for the head of a branch. Raises InvalidInput if there is no such branch."""
        ref = branch_ref(branch)
        head = self._mirror.head(ref)
        if head is None:
            raise no_branch_error(self.url, ref, self.references(), if_none="push a first commit")
        return head

    def references(self) -> Mapping[str, str]:
        return self._mirror.list_refs()

    def stored_references(self) -> tuple[Mapping[str, str], PackedReferences]:
        """The same; a remote does not say which of them are packed."""
        return self.references(), PackedReferences()

    def worktree_admin_dir(self, path: str) -> str | None:  # noqa: ARG002 - part of the protocol
        """None, because a remote has no work trees on this machine."""
        return None

    # Landing -------------------------------------------------------------------------------------------------------------------

    def land(
        self,
        branch: str,
        built: BuiltCommit,
        changes: Changes,  # noqa: ARG002 - part of the protocol
        *,
        expected: str | None,
        note: str,  # noqa: ARG002
        keep: str,  # noqa: ARG002
        seconds: int,  # noqa: ARG002
        settle: Callable[[str], bool],  # noqa: ARG002
    ) -> LandingResult:
        """Make a built commit the head of the remote's branch, or change nothing in the remote and in the mirror.

        Args:
            branch: the branch.
            built: the commit.
            changes: unused, as are ``note``, ``keep``, ``seconds`` and ``settle``; a remote keeps its own log and locks.
            expected: the commit that the branch must be at; None for a branch that must not exist.

        Raises:
            RefMoved: the branch is not at ``expected``.
            PromoteFailed: the remote rejected the commit (a hook, a protected branch, a read-only repository); the error quotes it.
            DurableLocked: another git holds the branch's lock there, or was killed while it did.
            AuthFailed: the remote refused the credentials.
            AdapterUnavailable: the connection was cut, and the branch does not show the commit; ``contains`` asks again.
            OSError: this machine's disk refused.
        """
        ref = branch_ref(branch)
        with self._mirror.lock() as lock_fd:
            points.reached("ref:locked")
            push = parse_push(self._mirror.push(built, ref, expected, lock_fd), ref)
            if push.outcome != "landed":
                self._require_landed(push, ref, built, expected)
            points.reached("land:moved")
            with suppress(GittrixError, OSError):  # the next read of the branch fetches the commit
                self._mirror.store(built, ref, lock_fd)
        points.reached("land:forwarded")
        return LandingResult()

    def _require_landed(self, push: PushResult, ref: str, built: BuiltCommit, expected: str | None) -> None:
        """After a push that failed, ask the remote whether the commit is the branch's head; raise if it is not."""
        if push.outcome == "refused":
            raise self._push_error(push)
        try:
            current = self._mirror.list_refs(ref).get(ref)
            deadline, pause = time.monotonic() + self._grace, _FIRST_PAUSE
            # The owner of the branch's lock there may be about to move it.
            while (push.outcome == "unknown" or push.locked) and current == expected and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                current = self._mirror.list_refs(ref).get(ref)
        except GittrixError as error:
            raise self._unknown_error(push) if push.outcome == "unknown" else self._push_error(push) from error
        if current == built.id:
            return
        if push.outcome == "unknown":
            raise self._unknown_error(push)
        raise RefMoved(ref, current) if current != expected else self._push_error(push)

    def _push_error(self, push: PushResult) -> GittrixError:
        if push.auth:
            return self._transport.auth_error("write", push.reason)
        if push.locked:
            return DurableLocked(
                f"{self.url} did not take the commit, because a lock is held there: {push.reason.partition(': File exists')[0]}.",
                stage="apply",
                why="Another push may be under way; a git that was killed there leaves such a lock, too.",
                fix="Promote again; if it stays, have the file removed at the remote once no git runs there.",
            )
        return PromoteFailed(
            f"{self.url} refused the commit: {push.reason}.",
            stage="apply",
            why="The branch did not move, and nothing of the commit is left behind.",
            fix="Fix what the remote reported, then promote again.",
            opt_out=Advice(
                "Or promote with strategy='branch', where only this branch is closed to you.",
                "Or promote with --strategy branch, where only this branch is closed to you.",
            ),
        )

    def _unknown_error(self, push: PushResult) -> AdapterUnavailable:
        return AdapterUnavailable(
            f"{self.url} did not report the result of the push: {push.reason}.",
            why="The connection ended after the commit was sent; the branch did not show it yet.",
            fix="Promote again when the remote can be reached: a commit that did land is seen as drift, and never made twice.",
        )

    def contains(self, branch: str, commit: str) -> bool:
        """Whether a commit is the head of the remote's branch or one of its ancestors. Waits for a running push from here to end."""
        ref = branch_ref(branch)
        with self._mirror.lock():
            pass  # A push that outlived its engine holds the lock, so none is running any more.
        head = self._mirror.head(ref)
        return head is not None and self._mirror.contains(head, commit)

    def repair(self, branch: str, built: str, pack: str | None) -> list[str]:  # noqa: ARG002 - the branch is part of the protocol
        """Remove the remains of a killed landing from the mirror; the remote discards a push that did not land."""
        with self._mirror.lock():
            return self._mirror.repair(built, pack)

    def bring_forward(self, branch: str, commit: str) -> LandingResult:  # noqa: ARG002 - part of the protocol
        """Do nothing, because a remote has no work trees on this machine."""
        return LandingResult()
