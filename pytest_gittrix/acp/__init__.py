"""Agents that speak the Agent Client Protocol, at work in a session: confined, recorded, and without a way to promote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.acp.client import acp_agent as acp_agent
    from pytest_gittrix.acp.client import run_prompt as run_prompt
    from pytest_gittrix.acp.permissions import allow as allow
    from pytest_gittrix.acp.permissions import reject as reject
    from pytest_gittrix.acp.turns import take_turn as take_turn

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.acp.client": ("acp_agent", "run_prompt"),
        "pytest_gittrix.acp.permissions": ("allow", "reject"),
        "pytest_gittrix.acp.turns": ("take_turn",),
    },
)
