"""What the engine asks of a durable and of an ephemeral backend. Implementations know no session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pytest_gittrix.git.commit import BuiltCommit, Commit
from pytest_gittrix.git.tree import Changes, Entry, Item
from pytest_gittrix.workspaces.seed import History, Seed
from pytest_gittrix.workspaces.workspace import Workspace, WorkspaceKind

MIRROR = "gitconfig"
"""The file that a mirror of a remote has in its directory, and no repository has."""

Drift = Mapping[str, tuple[Entry | None, Entry | None]]
"""What durable changed: old and new entry by path."""


@dataclass(frozen=True, slots=True)
class LandingResult:
    """How a landing ended, once the branch had moved.

    Attributes:
        forwarded: work trees that were brought forward.
        stale: work trees that could not be, each with the reason; the commit is in all the same.
    """

    forwarded: tuple[str, ...] = ()
    stale: Mapping[str, str] | None = None


class Durable(Protocol):
    """The human's repository. Every error is a ``GittrixError``; ``RefMoved`` says that a landing met another head."""

    @property
    def uri(self) -> str:
        """A stable name, such as ``local:///path#main``."""

    @property
    def path(self) -> str | None:
        """Where it is on this machine, if it is."""

    @property
    def branch(self) -> str:
        """The branch that sessions start from unless told otherwise."""

    @property
    def objects_dir(self) -> str | None:
        """Its object directory, if it is on this machine."""

    def head(self, branch: str) -> str:
        """The commit a branch is at."""

    def close(self) -> None:
        """Give back descriptors and processes."""

    def references(self) -> Mapping[str, str]:
        """Every branch and tag with its id, for the detector of moves without a promote."""

    def seed(self, seeds: str, commit: str, history: History) -> Seed:
        """What workspaces of a commit start from."""

    def drift(self, baseline: str, head: str, seed: Seed | None = None) -> Drift:
        """Every path that differs between two commits; ``seed`` helps out with a baseline that is gone from the repository by now."""

    def entry(self, commit: str, path: str) -> Entry | None:
        """What stands at a path in a commit."""

    def read_tree(self, id_: str) -> Mapping[bytes, Item]:
        """A tree object, parsed."""

    def blob(self, id_: str) -> bytes:
        """The bytes of a blob."""

    def commit(self, id_: str) -> Commit:
        """A commit, parsed."""

    def contributors(self, branch: str, most: int) -> int:
        """How many different people wrote the branch, counted up to ``most``."""

    def protected(self, branch: str) -> bool:
        """Whether commits may not be made on the branch directly."""

    def build(self, parent: str, changes: Changes, blobs: Mapping[str, bytes], *, message: str, seconds: int) -> BuiltCommit:
        """The commit that applies changes to a parent, in memory; nothing is written."""

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

        When it raises what no contract foresees (the disk failed), only ``contains`` knows whether the branch has moved.
        """

    def worktree_admin_dir(self, path: str) -> str | None:
        """The git directory kept for a linked work tree at ``path``, if there is one."""

    def contains(self, branch: str, commit: str) -> bool:
        """Whether a commit is the branch's head or among its ancestors."""

    def repair(self, branch: str, built: str, pack: str | None) -> list[str]:
        """Remove what a killed landing of that commit left behind (locks, shields); gives what was removed."""

    def bring_forward(self, branch: str, commit: str) -> LandingResult:
        """Finish the work trees of a landing that was killed after the branch moved."""


class Ephemeral(Protocol):
    """Where agents work."""

    @property
    def kind(self) -> WorkspaceKind:
        """The kind of workspace it makes."""

    @property
    def history(self) -> History:
        """How much of the past a workspace may see."""

    def create(self, path: str, state_dir: str, seed: Seed, *, branch: str, durable_objects: str | None, name: str) -> Workspace:
        """Make a workspace at the seed's baseline."""

    def open(self, path: str, state_dir: str) -> Workspace:
        """Find a workspace again."""
