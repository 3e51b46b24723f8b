"""Scripted agents, turns, logs and lineages: a session in any state that a test wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.testing.scenarios.agent_kit import AgentKit as AgentKit
    from pytest_gittrix.testing.scenarios.agent_kit import AgentScript as AgentScript
    from pytest_gittrix.testing.scenarios.agent_kit import Script as Script
    from pytest_gittrix.testing.scenarios.golden_log import golden as golden
    from pytest_gittrix.testing.scenarios.lineage_kit import ChainKit as ChainKit
    from pytest_gittrix.testing.scenarios.lineage_kit import Link as Link
    from pytest_gittrix.testing.scenarios.lineage_kit import check_line as check_line
    from pytest_gittrix.testing.scenarios.lineage_kit import line_problems as line_problems
    from pytest_gittrix.testing.scenarios.log_check import event_problems as event_problems
    from pytest_gittrix.testing.scenarios.log_check import log_problems as log_problems
    from pytest_gittrix.testing.scenarios.log_kit import LogKit as LogKit
    from pytest_gittrix.testing.scenarios.log_kit import open_log as open_log
    from pytest_gittrix.testing.scenarios.matrices import life_pairs as life_pairs
    from pytest_gittrix.testing.scenarios.matrices import status_axes as status_axes
    from pytest_gittrix.testing.scenarios.matrices import status_ends as status_ends
    from pytest_gittrix.testing.scenarios.session_in import SessionIn as SessionIn
    from pytest_gittrix.testing.scenarios.session_in import SessionsIn as SessionsIn
    from pytest_gittrix.testing.scenarios.timeline import Timeline as Timeline
    from pytest_gittrix.testing.scenarios.turn_kit import TurnCut as TurnCut
    from pytest_gittrix.testing.scenarios.turn_kit import TurnKit as TurnKit

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.testing.scenarios.agent_kit": (
            "AgentKit",
            "AgentScript",
            "Script",
        ),
        "pytest_gittrix.testing.scenarios.lineage_kit": (
            "ChainKit",
            "Link",
            "check_line",
            "line_problems",
        ),
        "pytest_gittrix.testing.scenarios.golden_log": ("golden",),
        "pytest_gittrix.testing.scenarios.log_check": (
            "event_problems",
            "log_problems",
        ),
        "pytest_gittrix.testing.scenarios.log_kit": (
            "LogKit",
            "open_log",
        ),
        "pytest_gittrix.testing.scenarios.matrices": (
            "life_pairs",
            "status_axes",
            "status_ends",
        ),
        "pytest_gittrix.testing.scenarios.session_in": (
            "SessionIn",
            "SessionsIn",
        ),
        "pytest_gittrix.testing.scenarios.timeline": ("Timeline",),
        "pytest_gittrix.testing.scenarios.turn_kit": (
            "TurnCut",
            "TurnKit",
        ),
    },
)
