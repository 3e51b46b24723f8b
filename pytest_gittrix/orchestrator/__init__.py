"""agent-orchestrator's way of working: agents at issues, watched from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.orchestrator.config import AgentPlugin as AgentPlugin
    from pytest_gittrix.orchestrator.config import CommandAgent as CommandAgent
    from pytest_gittrix.orchestrator.config import Project as Project
    from pytest_gittrix.orchestrator.config import SpawnConfig as SpawnConfig
    from pytest_gittrix.orchestrator.orchestrator import Orchestrator as Orchestrator
    from pytest_gittrix.orchestrator.session import Killed as Killed
    from pytest_gittrix.orchestrator.session import Session as Session
    from pytest_gittrix.orchestrator.session import is_restorable as is_restorable
    from pytest_gittrix.orchestrator.session import is_terminal_session as is_terminal_session
    from pytest_gittrix.views.orchestrator_status import NON_RESTORABLE_STATUSES as NON_RESTORABLE_STATUSES
    from pytest_gittrix.views.orchestrator_status import TERMINAL_ACTIVITIES as TERMINAL_ACTIVITIES
    from pytest_gittrix.views.orchestrator_status import TERMINAL_STATUSES as TERMINAL_STATUSES

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.orchestrator.config": (
            "AgentPlugin",
            "CommandAgent",
            "Project",
            "SpawnConfig",
        ),
        "pytest_gittrix.orchestrator.orchestrator": ("Orchestrator",),
        "pytest_gittrix.orchestrator.session": (
            "Killed",
            "Session",
            "is_restorable",
            "is_terminal_session",
        ),
        "pytest_gittrix.views.orchestrator_status": (
            "NON_RESTORABLE_STATUSES",
            "TERMINAL_ACTIVITIES",
            "TERMINAL_STATUSES",
        ),
    },
)
