"""The kinds of workspace, and what each can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from pytest_gittrix.errors import InvalidInput

WorkspaceKind = Literal["clone", "lazy", "copy", "worktree", "overlay"]
KINDS: Final[tuple[WorkspaceKind, ...]] = get_args(WorkspaceKind)
WITH_OWN_GIT: Final[tuple[WorkspaceKind, ...]] = ("clone", "overlay")
"""The kinds with a repository of their own."""
INCOMPLETE: Final[tuple[WorkspaceKind, ...]] = ("lazy", "overlay")
"""The kinds that do not have every file of the baseline in their directory."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of workspace can do, and what it does not guarantee.

    Attributes:
        git: it is a git repository that the agent can use.
        shell: programs can run in it and find every file.
        isolated: nothing that the agent does in it reaches durable.
        warning: why it is not isolated; empty if it is.
    """

    git: bool
    shell: bool
    isolated: bool
    warning: str = ""


CAPABILITIES: Final[Mapping[WorkspaceKind, Capabilities]] = {
    "clone": Capabilities(git=True, shell=True, isolated=True),
    "lazy": Capabilities(git=False, shell=False, isolated=True),
    "copy": Capabilities(git=False, shell=True, isolated=True),
    "worktree": Capabilities(
        git=True,
        shell=True,
        isolated=False,
        warning="shares references, configuration, hooks and stash with durable; unsafe for untrusted agents",
    ),
    "overlay": Capabilities(git=True, shell=True, isolated=True),
}


def check_kind(kind: object) -> WorkspaceKind:
    """Validate a workspace kind.

    Raises:
        InvalidInput: it is not a kind of workspace; the message lists the kinds.
    """
    if kind in KINDS:
        return kind
    raise InvalidInput(
        f"workspace={kind!r} is not a kind of workspace.", why="It decides what the agent finds.", fix=f"Use one of: {', '.join(KINDS)}."
    )
