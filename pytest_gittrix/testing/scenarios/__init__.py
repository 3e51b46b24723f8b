"""Scripted agents, turns, logs and lineages: a session in any state that a test wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.testing.scenarios.agent_kit import AgentKit as AgentKit
    from pytest_gittrix.testing.scenarios.golden_log import golden as golden
    from pytest_gittrix.testing.scenarios.lineage_kit import ChainKit as ChainKit
    from pytest_gittrix.testing.scenarios.lineage_kit import Link as Link
    from pytest_gittrix.testing.scenarios.lineage_kit import check_line as check_line
    from pytest_gittrix.testing.scenarios.log_check import event_problems as event_problems
    from pytest_gittrix.testing.scenarios.log_kit import LogKit as LogKit
    from pytest_gittrix.testing.scenarios.log_kit import open_log as open_log
    from pytest_gittrix.testing.scenarios.matrices import life_pairs as life_pairs
    from pytest_gittrix.testing.scenarios.matrices import status_axes as status_axes
    from pytest_gittrix.testing.scenarios.matrices import status_ends as status_ends
    from pytest_gittrix.testing.scenarios.timeline import Timeline as Timeline
    from pytest_gittrix.testing.scenarios.turn_kit import TurnKit as TurnKit

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.testing.scenarios.agent_kit": ("AgentKit",),
        "pytest_gittrix.testing.scenarios.lineage_kit": (
            "ChainKit",
            "Link",
            "check_line",
        ),
        "pytest_gittrix.testing.scenarios.golden_log": ("golden",),
        "pytest_gittrix.testing.scenarios.log_check": ("event_problems",),
        "pytest_gittrix.testing.scenarios.log_kit": (
            "LogKit",
            "open_log",
        ),
        "pytest_gittrix.testing.scenarios.matrices": (
            "life_pairs",
            "status_axes",
            "status_ends",
        ),
        "pytest_gittrix.testing.scenarios.timeline": ("Timeline",),
        "pytest_gittrix.testing.scenarios.turn_kit": ("TurnKit",),
    },
)
