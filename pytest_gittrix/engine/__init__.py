"""The session engine; ``GitTrix`` is its face."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.engine.agents.agent_session import AgentSession as AgentSession
    from pytest_gittrix.engine.agents.programs import Programs as Programs
    from pytest_gittrix.engine.agents.start import start_agent as start_agent
    from pytest_gittrix.engine.engine import GitTrix as GitTrix
    from pytest_gittrix.engine.event_stream import follow as follow
    from pytest_gittrix.engine.operations.info import SessionInfo as SessionInfo

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.engine.engine": ("GitTrix",),
        "pytest_gittrix.engine.event_stream": ("follow",),
        "pytest_gittrix.engine.agents.programs": ("Programs",),
        "pytest_gittrix.engine.agents.start": ("start_agent",),
        "pytest_gittrix.engine.agents.agent_session": ("AgentSession",),
        "pytest_gittrix.engine.operations.info": ("SessionInfo",),
    },
)
