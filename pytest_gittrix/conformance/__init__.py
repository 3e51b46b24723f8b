"""The conformance suite: almost three hundred promises of a session system, each a test with a stable code.

Run it on a system of your own without a line of code::

    pytest --pyargs pytest_gittrix.conformance --gittrix-system=acme.testing:system
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.conformance.base.clause import needs
    from pytest_gittrix.conformance.base.clauses import Clauses
    from pytest_gittrix.conformance.command_system import CommandSystem
    from pytest_gittrix.conformance.families.bad_input import BadInputClauses
    from pytest_gittrix.conformance.families.capabilities import CapabilityClauses
    from pytest_gittrix.conformance.families.concurrency import ConcurrencyClauses
    from pytest_gittrix.conformance.families.conflict import ConflictClauses
    from pytest_gittrix.conformance.families.durability import DurabilityClauses
    from pytest_gittrix.conformance.families.eviction import EvictionClauses
    from pytest_gittrix.conformance.families.finalization import FinalizationClauses
    from pytest_gittrix.conformance.families.identity import IdentityClauses
    from pytest_gittrix.conformance.families.isolation import IsolationClauses
    from pytest_gittrix.conformance.families.lifecycle import LifeClauses
    from pytest_gittrix.conformance.families.lineage import LineClauses
    from pytest_gittrix.conformance.families.log import LogClauses
    from pytest_gittrix.conformance.families.names import NamesClauses
    from pytest_gittrix.conformance.families.overlay import OverlayClauses
    from pytest_gittrix.conformance.families.promotion import PromotionClauses
    from pytest_gittrix.conformance.families.retention import RetentionClauses
    from pytest_gittrix.conformance.families.status import StatusClauses
    from pytest_gittrix.conformance.families.turns import TurnClauses
    from pytest_gittrix.conformance.suite import SessionSystemSuite
    from pytest_gittrix.conformance.worktrees.suite import WorktreeToolSuite
    from pytest_gittrix.testing.repos.place import Place
    from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem
    from pytest_gittrix.testing.systems.protocol import BASE, EXTENDED, Capability, Engine, SessionSystem

__all__ = [
    "BASE",
    "EXTENDED",
    "BadInputClauses",
    "Capability",
    "CapabilityClauses",
    "Clauses",
    "CommandSystem",
    "ConcurrencyClauses",
    "ConflictClauses",
    "DurabilityClauses",
    "Engine",
    "EvictionClauses",
    "FinalizationClauses",
    "GitTrixSystem",
    "IdentityClauses",
    "IsolationClauses",
    "LifeClauses",
    "LineClauses",
    "LogClauses",
    "NamesClauses",
    "OverlayClauses",
    "Place",
    "PromotionClauses",
    "RetentionClauses",
    "SessionSystem",
    "SessionSystemSuite",
    "StatusClauses",
    "TurnClauses",
    "WorktreeToolSuite",
    "needs",
]


__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.conformance.base.clause": ("needs",),
        "pytest_gittrix.conformance.base.clauses": ("Clauses",),
        "pytest_gittrix.conformance.command_system": ("CommandSystem",),
        "pytest_gittrix.conformance.families.bad_input": ("BadInputClauses",),
        "pytest_gittrix.conformance.families.capabilities": ("CapabilityClauses",),
        "pytest_gittrix.conformance.families.concurrency": ("ConcurrencyClauses",),
        "pytest_gittrix.conformance.families.conflict": ("ConflictClauses",),
        "pytest_gittrix.conformance.families.durability": ("DurabilityClauses",),
        "pytest_gittrix.conformance.families.eviction": ("EvictionClauses",),
        "pytest_gittrix.conformance.families.finalization": ("FinalizationClauses",),
        "pytest_gittrix.conformance.families.identity": ("IdentityClauses",),
        "pytest_gittrix.conformance.families.isolation": ("IsolationClauses",),
        "pytest_gittrix.conformance.families.lifecycle": ("LifeClauses",),
        "pytest_gittrix.conformance.families.lineage": ("LineClauses",),
        "pytest_gittrix.conformance.families.log": ("LogClauses",),
        "pytest_gittrix.conformance.families.names": ("NamesClauses",),
        "pytest_gittrix.conformance.families.overlay": ("OverlayClauses",),
        "pytest_gittrix.conformance.families.promotion": ("PromotionClauses",),
        "pytest_gittrix.conformance.families.retention": ("RetentionClauses",),
        "pytest_gittrix.conformance.families.status": ("StatusClauses",),
        "pytest_gittrix.conformance.families.turns": ("TurnClauses",),
        "pytest_gittrix.conformance.suite": ("SessionSystemSuite",),
        "pytest_gittrix.conformance.worktrees.suite": ("WorktreeToolSuite",),
        "pytest_gittrix.testing.systems.gittrix_system": ("GitTrixSystem",),
        "pytest_gittrix.testing.repos.place": ("Place",),
        "pytest_gittrix.testing.systems.protocol": (
            "BASE",
            "EXTENDED",
            "Capability",
            "Engine",
            "SessionSystem",
        ),
    },
)
