"""Our engine as a session system, for the conformance suite and for users who compare systems."""

from __future__ import annotations

import os
import sys
from itertools import count

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.gittrix_engine import GitTrixEngine, ShellEngine
from pytest_gittrix.testing.systems.gittrix_members import WholeEngine
from pytest_gittrix.testing.systems.protocol import Capability
from pytest_gittrix.workspaces.kinds import WorkspaceKind

__all__ = ["GitTrixEngine", "GitTrixSystem", "ShellEngine", "WholeEngine"]

_SAME_FOR_ALL = "it does not depend on the kind of workspace: ask the system of clones"


class GitTrixSystem:
    """The reference engine, in this process.

    Args:
        workspace: the kind of its workspaces. A ``lazy`` one has no directory for the agent's programs.

    Attributes:
        name: with the kind of workspace.
        capabilities: every capability, except those that the kind of workspace lacks, and those that do not depend on the kind, which only
            ``clone`` declares.
        reasons: why each capability that is missing is left out.
    """

    def __init__(self, workspace: WorkspaceKind = "clone") -> None:
        self.name = f"gittrix ({workspace})"
        whole = workspace == "clone" and sys.platform.startswith("linux")
        because = _SAME_FOR_ALL if workspace != "clone" else "agents as processes need Linux"
        self.reasons = {} if whole else dict.fromkeys((Capability.MEMBERS, Capability.STATUS), because)
        if workspace in ("lazy", "overlay"):
            self.reasons |= dict.fromkeys((Capability.SHELL, Capability.SIDE_WORK), "its workspaces are no directories")
        if workspace == "copy":
            self.reasons[Capability.SIDE_WORK] = "its workspaces have no repository"
        self.capabilities = frozenset(Capability) - self.reasons.keys()
        self._workspace: WorkspaceKind = workspace
        self._numbers = count()

    def __repr__(self) -> str:
        return f"GitTrixSystem({self._workspace!r})"

    def open(self, place: Place) -> GitTrixEngine:
        """Open one more engine on a place. Each engine draws other ids, in forked processes too."""
        engine = GitTrix(
            LocalDurable(place.durable.path, place.durable.branch, sync=False),
            LocalEphemeral(kind=self._workspace),
            store=place.home / "sessions",
            home=place.home,
            clock=place.clock,
            sweep_interval=None,
            durability="fast",
            strategy="commit",
            ids=seeded_ids(next(self._numbers) << 32 | os.getpid()),
        )
        kind: type[GitTrixEngine] = WholeEngine if Capability.MEMBERS in self.capabilities else ShellEngine
        opened = (kind if Capability.SHELL in self.capabilities else GitTrixEngine)(engine.init())
        if Capability.SIDE_WORK not in self.capabilities:
            opened.side_work = None  # type: ignore[attr-defined]  # a verb that is None is not there
        return opened
