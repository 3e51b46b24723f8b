"""agent-orchestrator's way of working: agents at issues, watched from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.orchestrator.orchestrator import (
        NON_RESTORABLE_STATUSES as NON_RESTORABLE_STATUSES,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        TERMINAL_ACTIVITIES as TERMINAL_ACTIVITIES,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        TERMINAL_STATUSES as TERMINAL_STATUSES,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        AgentPlugin as AgentPlugin,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        AgentSessionInfo as AgentSessionInfo,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        Cleaned as Cleaned,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        CommandAgent as CommandAgent,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        Killed as Killed,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        Orchestrator as Orchestrator,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        PRInfo as PRInfo,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        Project as Project,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        Reported as Reported,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        RuntimeHandle as RuntimeHandle,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        Session as Session,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        SpawnConfig as SpawnConfig,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        Tracker as Tracker,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        is_restorable as is_restorable,
    )
    from pytest_gittrix.orchestrator.orchestrator import (
        is_terminal_session as is_terminal_session,
    )

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.orchestrator.orchestrator": (
            "NON_RESTORABLE_STATUSES",
            "TERMINAL_ACTIVITIES",
            "TERMINAL_STATUSES",
            "AgentPlugin",
            "AgentSessionInfo",
            "Cleaned",
            "CommandAgent",
            "Killed",
            "Orchestrator",
            "PRInfo",
            "Project",
            "Reported",
            "RuntimeHandle",
            "Session",
            "SpawnConfig",
            "Tracker",
            "is_restorable",
            "is_terminal_session",
        ),
    },
)
