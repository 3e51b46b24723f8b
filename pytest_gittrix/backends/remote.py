"""A durable repository on another machine, or behind any other address that git takes.

What the human's branch holds is what the remote says now: every head is asked for, and the engine's own copy (``remote_mirror``)
only saves fetching again. A promotion lands as one push with a lease, git's compare-and-swap over the wire, so a lost race is seen
as one and a refusal changes nothing (RELIABILITY 5). Knows no session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.backends.mirror import Mirror, mirror_url
from pytest_gittrix.backends.protocol import Drift, LandingResult
from pytest_gittrix.backends.transport import PushResult, Transport, parse_push
from pytest_gittrix.errors import AdapterUnavailable, DurableLocked, GittrixError, InvalidInput, PromoteFailed
from pytest_gittrix.git.commit import BuiltCommit, Commit
from pytest_gittrix.git.refs import RefMoved, branch_ref, short_branch
from pytest_gittrix.git.tree import Changes, Entry, Item
from pytest_gittrix.workspaces.seed import History, Seed

__all__ = ["RemoteDurable"]

_FIRST_NAP, _LONGEST_NAP = 0.05, 0.5
_SHOWN: Final = 20


class RemoteDurable:
    """A git repository behind an address.

    Nothing is asked of the remote before the first call. Each call may raise ``AuthFailed`` (the remote wants other credentials)
    and ``AdapterUnavailable`` (it cannot be reached, or did not answer in time).

    Args:
        url: the address: ``https://host/owner/name.git``, ``file:///srv/app.git``, ``user@host:path``, a path.
        branch: the branch that sessions start from and promote to.
        mirror: directory of the engine's copy; made when needed, shared by engines and processes, one for each remote.
        author: name and address on promoted commits; by default those the user has configured for all repositories.
        protected: branches that commits may not be made on directly, full branch names.
        credentials: user and password (or token) for ``http`` and ``https``; those in the URL by default. Never shown.
        timeout: seconds that git may take for one exchange.
        grace: seconds to wait, when a connection was cut after a push was sent, for the remote to show what came of it.
        environment: more variables for git, such as ``SSH_AUTH_SOCK``; nothing else of the user's is seen.
        sync: write seeds and the mirror through to the disk; what the remote does with a push is its own affair.

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
        self.branch = short_branch(branch)
        self._transport = Transport.to(url, credentials=credentials, timeout=timeout, environment=environment)
        self._mirror = Mirror(os.path.realpath(mirror), self._transport, sync)
        self._author = author
        self._protected = frozenset(protected)
        self._grace = grace
        self._sync = sync

    @classmethod
    def reopen(cls, mirror: str | os.PathLike[str], branch: str = "main", **options: Any) -> RemoteDurable:
        """The repository that a mirror is of, as a session's record names it.

        Args:
            mirror: the directory.
            branch: as for the class.
            options: as for the class; credentials are not kept in a mirror and must be given again.

        Raises:
            AdapterUnavailable: the directory is no mirror.
        """
        url = mirror_url(mirror)
        if url is None:
            raise AdapterUnavailable(f"{os.fspath(mirror)} is no mirror of a remote repository.", fix="Give RemoteDurable its URL.")
        return cls(url, branch, mirror=mirror, **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.uri}>"

    @property
    def url(self) -> str:
        """The address, without credentials."""
        return self._transport.url

    @property
    def uri(self) -> str:
        """``<url>#<branch>``, without credentials."""
        return f"{self.url}#{self.branch}"

    @property
    def path(self) -> str:
        """The mirror's directory, by which sessions find their repository again. It is no repository: only this class opens it."""
        return self._mirror.path

    @property
    def objects_dir(self) -> None:
        """None: no workspace may share objects with the mirror."""
        return

    @cached_property
    def _copy(self) -> LocalDurable:
        """Reader of the mirror."""
        if not os.path.isdir(self._mirror.repository):
            self.head(self.branch)
        return _Copy(self._mirror.repository, self.branch, author=self._author, protected=self._protected, sync=self._sync, head=self.head)

    def close(self) -> None:
        """Give back descriptors and processes."""
        if "_copy" in self.__dict__:
            self._copy.close()

    # Reading -------------------------------------------------------------------------------------------------------------------

    def head(self, branch: str) -> str:
        """The commit a branch of the remote is at now. Raises InvalidInput if there is no such branch."""
        ref = branch_ref(branch)
        head = self._mirror.head(ref)
        if head is not None:
            return head
        known = [name.removeprefix("refs/heads/") for name in self.references() if name.startswith("refs/heads/")]
        raise InvalidInput(
            f"{self.url} has no branch {short_branch(branch)!r}.",
            why="A session starts from the head of a branch.",
            fix=f"Branches there: {', '.join(known[:_SHOWN]) or 'none (push a first commit)'}.",
        )

    def references(self) -> Mapping[str, str]:
        """Every branch and tag of the remote as it is now, with its id."""
        return self._mirror.list_refs()

    def seed(self, seeds: str, commit: str, history: History) -> Seed:
        """What workspaces of a commit start from."""
        return self._copy.seed(seeds, commit, history)

    def drift(self, baseline: str, head: str, seed: Seed | None = None) -> Drift:
        """Every path that differs between two commits; ``seed`` helps out with a baseline that was never fetched, or is gone."""
        return self._copy.drift(baseline, head, seed)

    def entry(self, commit: str, path: str) -> Entry | None:
        """What stands at a path in a commit."""
        return self._copy.entry(commit, path)

    def read_tree(self, id_: str) -> Mapping[bytes, Item]:
        """A tree object, parsed."""
        return self._copy.read_tree(id_)

    def blob(self, id_: str) -> bytes:
        """The bytes of a blob."""
        return self._copy.blob(id_)

    def commit(self, id_: str) -> Commit:
        """A commit, parsed."""
        return self._copy.commit(id_)

    def contributors(self, branch: str, most: int) -> int:
        """Different author addresses among the last thousand commits of a branch, counted up to ``most``."""
        return self._copy.contributors(branch, most)

    def protected(self, branch: str) -> bool:
        """Whether the branch was declared protected here. What the remote protects, it says when it is pushed to."""
        return short_branch(branch) in self._protected

    def build(self, parent: str, changes: Changes, blobs: Mapping[str, bytes], *, message: str, seconds: int) -> BuiltCommit:
        """The commit that applies changes to a parent, in memory. Raises TreeClash if they do not fit."""
        return self._copy.build(parent, changes, blobs, message=message, seconds=seconds)

    def worktree_admin_dir(self, path: str) -> str | None:  # noqa: ARG002 - part of the protocol
        """None: a remote keeps no work trees here."""
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
        """Make a built commit the head of the remote's branch, or change nothing there or in the mirror.

        Args:
            branch: the branch.
            built: the commit.
            changes: part of the protocol, as are ``note``, ``keep``, ``seconds`` and ``settle``; a remote keeps its own log and locks.
            expected: where the branch must be; None for a branch that must not exist.

        Raises:
            RefMoved: the branch is not at ``expected``.
            PromoteFailed: the remote refused (a hook, a protected branch, a read-only repository); its words are in the message.
            DurableLocked: another git holds the branch there, or was killed while it did.
            AuthFailed: it refused the credentials.
            AdapterUnavailable: the connection was cut, and the branch does not show the commit; ``contains`` asks again.
            OSError: this machine's disk refused.
        """
        ref = branch_ref(branch)
        with self._mirror.lock() as held:
            points.reached("ref:locked")
            outcome = parse_push(self._mirror.push(built, ref, expected, held), ref)
            if outcome.outcome != "landed":
                self._require_landed(outcome, ref, built, expected)
            points.reached("land:moved")
            with suppress(GittrixError, OSError):  # the next look at the branch fetches it
                self._mirror.store(built, ref, held)
        points.reached("land:forwarded")
        return LandingResult()

    def _require_landed(self, outcome: PushResult, ref: str, built: BuiltCommit, expected: str | None) -> None:
        """Ask the remote what came of a push that did not end well; returns if the commit is the branch's head all the same."""
        if outcome.outcome == "refused":
            raise self._refused(outcome)
        try:
            current = self._mirror.list_refs(ref).get(ref)
            deadline, nap = time.monotonic() + self._grace, _FIRST_NAP
            # Whoever holds the branch's lock there may be about to move it.
            while (outcome.outcome == "unknown" or outcome.locked) and current == expected and time.monotonic() < deadline:
                time.sleep(nap)
                nap = min(nap * 2, _LONGEST_NAP)
                current = self._mirror.list_refs(ref).get(ref)
        except GittrixError as error:
            raise self._unknown(outcome) if outcome.outcome == "unknown" else self._refused(outcome) from error
        if current == built.id:
            return
        if outcome.outcome == "unknown":
            raise self._unknown(outcome)
        raise RefMoved(ref, current) if current != expected else self._refused(outcome)

    def _refused(self, outcome: PushResult) -> GittrixError:
        if outcome.auth:
            return self._transport.auth_error("write", outcome.reason)
        if outcome.locked:
            return DurableLocked(
                f"{self.url} did not take the commit, because a lock is held there: {outcome.reason.partition(': File exists')[0]}.",
                stage="apply",
                why="Another push may be under way; a git that was killed there leaves such a lock, too, and it is not ours to break.",
                fix="Promote again; if it stays, have the file removed at the remote once no git runs there.",
            )
        return PromoteFailed(
            f"{self.url} refused the commit: {outcome.reason}.",
            stage="apply",
            why="The branch did not move, and nothing of the commit is left behind.",
            fix="See to what the remote says, then promote again.",
            opt_out="Or promote with strategy='branch', where only this branch is closed to you.",
        )

    def _unknown(self, outcome: PushResult) -> AdapterUnavailable:
        return AdapterUnavailable(
            f"{self.url} did not say what came of the push: {outcome.reason}.",
            why="The connection ended after the commit was sent; the branch did not show it yet.",
            fix="Promote again when the remote can be reached: what landed after all is seen as drift and never made twice.",
        )

    def contains(self, branch: str, commit: str) -> bool:
        """Whether a commit is the head of the remote's branch or among its ancestors, asked once no push from here is under way."""
        ref = branch_ref(branch)
        with self._mirror.lock():
            pass  # A push that outlived the engine that began it has ended now.
        head = self._mirror.head(ref)
        return head is not None and self._mirror.contains(head, commit)

    def repair(self, branch: str, built: str, pack: str | None) -> list[str]:  # noqa: ARG002 - part of the protocol
        """Remove what a killed landing of ``built`` left in the mirror; the remote keeps nothing of a push that did not land."""
        with self._mirror.lock():
            return self._mirror.repair(built)

    def bring_forward(self, branch: str, commit: str) -> LandingResult:  # noqa: ARG002 - part of the protocol
        """Nothing: the work trees of a remote are not here."""
        return LandingResult()


class _Copy(LocalDurable):
    """Reads the mirror; where a branch is, the remote says."""

    def __init__(
        self,
        path: str,
        branch: str,
        *,
        author: tuple[str, str] | None,
        protected: Collection[str],
        sync: bool,
        head: Callable[[str], str],
    ) -> None:
        super().__init__(path, branch, author=author, protected=protected, sync=sync)
        self._head = head

    def head(self, branch: str) -> str:
        """The commit a branch of the remote is at now."""
        return self._head(branch)
