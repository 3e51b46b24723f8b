"""The conformance suite: more than three hundred promises of a session system, each a test with a stable code.

Run it on a system of your own without a line of code::

    pytest --pyargs pytest_gittrix.conformance --gittrix-system=acme.testing:system
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.conformance.base.catalogue import family
    from pytest_gittrix.conformance.base.clause import needs
    from pytest_gittrix.conformance.base.clauses import Clauses
    from pytest_gittrix.conformance.command_system import CommandSystem
    from pytest_gittrix.conformance.families.conflict import ConflictClauses
    from pytest_gittrix.conformance.suite import SessionSystemSuite
    from pytest_gittrix.conformance.worktrees.suite import WorktreeToolSuite
    from pytest_gittrix.testing.systems.protocol import BASE, EXTENDED, Capability, Engine, SessionSystem

__all__ = [
    "BASE",
    "EXTENDED",
    "Capability",
    "Clauses",
    "CommandSystem",
    "ConflictClauses",
    "Engine",
    "SessionSystem",
    "SessionSystemSuite",
    "WorktreeToolSuite",
    "family",
    "needs",
]


__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.conformance.base.catalogue": ("family",),
        "pytest_gittrix.conformance.base.clause": ("needs",),
        "pytest_gittrix.conformance.base.clauses": ("Clauses",),
        "pytest_gittrix.conformance.command_system": ("CommandSystem",),
        "pytest_gittrix.conformance.families.conflict": ("ConflictClauses",),
        "pytest_gittrix.conformance.suite": ("SessionSystemSuite",),
        "pytest_gittrix.conformance.worktrees.suite": ("WorktreeToolSuite",),
        "pytest_gittrix.testing.systems.protocol": (
            "BASE",
            "EXTENDED",
            "Capability",
            "Engine",
            "SessionSystem",
        ),
    },
)
