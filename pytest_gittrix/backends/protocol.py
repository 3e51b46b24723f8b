"""The protocols of a durable and of an ephemeral backend, as the engine uses them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.extensions import made
from pytest_gittrix.git.commit import BuiltCommit, Commit
from pytest_gittrix.git.refs import PackedReferences
from pytest_gittrix.git.tree import Changes, Entry, Item
from pytest_gittrix.os_level.command import Level
from pytest_gittrix.workspaces.seeds.seed import History, Seed
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace

MIRROR = "gitconfig"
"""Name of a file that exists in the directory of every mirror, and in no repository."""

Drift = Mapping[str, tuple[Entry | None, Entry | None]]
"""What durable changed: old and new entry by path."""


class LandingResult(NamedTuple):
    """The result of a landing whose branch has moved.

    Attributes:
        forwarded: roots of the work trees that were brought forward.
        stale: roots of the work trees that were not, each with the reason; the commit has landed all the same.
        notes: what is odd about the repository, for a person to mend.
    """

    forwarded: tuple[str, ...] = ()
    stale: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()


class Durable(Protocol):
    """The repository that sessions start from and promote to.

    Every error is a ``GittrixError``, except ``RefMoved``: the branch was not at the expected commit when a commit was to land.
    """

    @property
    def uri(self) -> str:
        """A stable name, such as ``local:///path#main``."""

    @property
    def path(self) -> str | None:
        """The repository's path on this machine; None if it is elsewhere."""

    @property
    def branch(self) -> str:
        """The branch that sessions start from by default."""

    @property
    def objects_dir(self) -> str | None:
        """The object directory that workspaces may share; None if there is none on this machine."""

    def head(self, branch: str) -> str:
        """The commit that a branch is at. Raises InvalidInput if there is no such branch."""

    def close(self) -> None:
        """Release descriptors and processes."""

    def references(self) -> Mapping[str, str]:
        """Every branch and tag with its id; the engine detects from them which ones moved without a promotion."""

    def stored_references(self) -> tuple[Mapping[str, str], PackedReferences]:
        """The same as it is stored: the branches and tags that are not packed, with their ids, and all packed references.

        A name may be among both; the first are right then.
        """

    def seed(self, seeds: str, commit: str, history: History) -> Seed:
        """Prepare what workspaces of a commit start from."""

    def drift(self, baseline: str, head: str, seed: Seed | None = None) -> Drift:
        """Every path that differs between two commits; the cost grows with the number of differences.

        Args:
            baseline: the older commit.
            head: the newer commit.
            seed: holds the baseline's trees, in case it was never fetched, or was pruned from the repository.
        """

    def entry(self, commit: str, path: str) -> Entry | None:
        """The file, symlink or submodule at a path in a commit; None if there is none."""

    def read_tree(self, id_: str) -> Mapping[bytes, Item]:
        """Read and parse a tree object."""

    def blob(self, id_: str) -> bytes:
        """Read a blob."""

    def commit(self, id_: str) -> Commit:
        """Read and parse a commit."""

    def contributors(self, branch: str, most: int) -> int:
        """Count the different authors of a branch, up to ``most``."""

    def protected(self, branch: str) -> bool:
        """Whether direct commits on the branch are forbidden."""

    def build(self, parent: str, changes: Changes, blobs: Mapping[str, bytes], *, message: str, seconds: int) -> BuiltCommit:
        """Build the commit that applies changes to a parent, in memory. Raises TreeClash if they do not fit the parent's tree."""

    def land(
        self,
        branch: str,
        built: BuiltCommit,
        changes: Changes,
        *,
        expected: str | None,
        note: str,
        keep: str,
        seconds: int,
        settle: Callable[[str], bool],
    ) -> LandingResult:
        """Make a built commit the branch's head and bring work trees forward, or change nothing.

        After an unexpected error (the disk failed) only ``contains`` knows whether the branch has moved.

        Args:
            branch: the branch.
            built: the commit.
            changes: the changes that the commit makes to its parent.
            expected: the commit that the branch must be at; None for a branch that must not exist.
            note: text for the reflog.
            keep: text of the ``.keep`` file that protects the commit's pack until the branch has moved.
            seconds: time of the landing, in seconds since 1970.
            settle: called with the contents of a lock that is in the way; removes the lock and what its owner left if the owner is
                known to be dead, and returns whether it did.

        Raises:
            RefMoved: the branch is not at ``expected``.
            WorktreeDirty: a work tree on the branch has uncommitted work in the way.
            DurableLocked: another program holds the branch's lock.
            WriteRejected, OSError: the disk failed; ``repair`` and ``bring_forward`` finish the landing.
        """

    def worktree_admin_dir(self, path: str) -> str | None:
        """The git directory of the linked work tree at ``path``; None if there is no such work tree."""

    def contains(self, branch: str, commit: str) -> bool:
        """Whether a commit is the branch's head or one of its ancestors, through all parents."""

    def repair(self, branch: str, built: str, pack: str | None) -> list[str]:
        """Remove the locks, ``.keep`` and temporary files that a killed landing left. A lock of another owner stays.

        Args:
            branch: the branch that the commit was to land on.
            built: id of the commit, which is also the contents of the landing's locks.
            pack: name of the commit's pack, if it is known.

        Returns:
            The paths that were removed.
        """

    def bring_forward(self, branch: str, commit: str) -> LandingResult:
        """Bring forward the work trees of a landing that was killed after the branch moved, where they are unchanged since."""


class Ephemeral(Protocol):
    """Makes the workspaces that agents work in. A subclass inherits what is not abstract here.

    Every error is a ``GittrixError``. What an adapter cannot do it refuses with ``CapabilityMissing``.
    """

    @property
    def confine(self) -> Level | None:
        """How programs in its workspaces are confined; None leaves it to the one who starts them."""
        return None

    @property
    def spares(self) -> int:
        """How many workspaces on this machine an engine makes ahead; only for the kinds of ``LocalEphemeral``."""
        return 0

    @property
    def address(self) -> str | None:
        """The address below which its workspaces are, by the ids of their sessions; None if they are directories on this machine."""
        return None

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of workspaces it makes, such as ``remote``; records hold it."""

    @property
    def history(self) -> History:
        """How much history a workspace contains."""
        return "none"

    @property
    def limits(self) -> Limits:
        """How large a session's changes may be."""
        return Limits()

    def with_kind(self, kind: str, history: History | None = None) -> Ephemeral:
        """The same adapter for another kind of workspace.

        Raises:
            InvalidInput: there is no such kind.
            CapabilityMissing: it makes only its own.
        """
        if kind == self.kind and history in (None, self.history):
            return self
        raise CapabilityMissing(
            f"{type(self).__name__} makes workspaces of the kind {self.kind!r} only, and {kind!r} was asked for.",
            why="The files of another kind would be stored elsewhere.",
            fix="Leave the kind out, or make an engine with LocalEphemeral.",
        )

    @abstractmethod
    def create(self, path: str, state_dir: str, seed: Seed, *, branch: str, durable_objects: str | None, name: str) -> Workspace:
        """Make a workspace at the seed's baseline.

        Args:
            path: its directory on this machine, which does not exist. An adapter whose files are elsewhere keeps its copy of them there.
            state_dir: a directory for what ``open`` has to know.
            seed: the baseline.
            branch: the durable branch.
            durable_objects: durable's object directory; None if it is not on this machine.
            name: the id of the session.
        """

    @abstractmethod
    def open(self, path: str, state_dir: str, seeds: str | None = None) -> Workspace:
        """Open an existing workspace; ``seeds`` is where seeds are now, if they may have moved."""


def check_durable(adapter: Durable) -> Durable:
    """Check that an object has everything that the engine uses of a ``Durable``. No member is called.

    Raises:
        InvalidInput: something is missing; the message lists it.
    """
    wanted = {name: member for name, member in vars(Durable).items() if not name.startswith("_")}

    def is_missing(name: str) -> bool:
        # What a subclass inherits from the protocol does nothing.
        of_class = getattr(type(adapter), name, None)
        return of_class is wanted[name] or (of_class is None and not hasattr(adapter, name))

    missing = sorted(filter(is_missing, wanted))
    if missing:
        raise InvalidInput(
            f"{type(adapter).__name__} is not an adapter of a durable repository: it lacks {', '.join(missing)}.",
            why="The engine starts sessions from the repository and promotes to it through these members alone.",
            fix="Implement them as pytest_gittrix.backends.Durable declares them.",
        )
    return adapter


def check_ephemeral(adapter: Ephemeral) -> Ephemeral:
    """Check that an object has everything that the engine uses of an ``Ephemeral``.

    Raises:
        InvalidInput: something is missing; the message lists it.
    """
    wanted = [name for name in vars(Ephemeral) if not name.startswith("_")]
    missing = sorted({name for name in wanted if not hasattr(adapter, name)})
    if missing:
        raise InvalidInput(
            f"{type(adapter).__name__} is not an adapter of workspaces: it lacks {', '.join(missing)}.",
            why="The engine makes and opens every workspace through it.",
            fix="Subclass pytest_gittrix.backends.Ephemeral, which implements everything except kind, create and open.",
        )
    return adapter


def registered_ephemeral(kind: str, history: History | None = None) -> Ephemeral:
    """The adapter that is registered for a kind of workspace: one of ours, or of another package by ``gittrix_workspaces``.

    Args:
        kind: the kind.
        history: how much history a workspace contains; by default as the adapter says.

    Raises:
        InvalidInput: no such kind is registered, or what is registered is no adapter.
        CapabilityMissing: the adapter cannot be loaded, or makes no workspaces with this history.
    """
    return check_ephemeral(made("workspaces", kind, kind)).with_kind(kind, history)
