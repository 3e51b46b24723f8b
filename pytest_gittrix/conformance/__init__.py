"""The conformance suite: almost three hundred promises of a session system, each a test with a stable code.

Run it on a system of your own without a line of code::

    pytest --pyargs pytest_gittrix.conformance --gittrix-system=acme.testing:system
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gittrix.doors import door

if TYPE_CHECKING:
    from pytest_gittrix.conformance.clause import needs
    from pytest_gittrix.conformance.clauses import Clauses
    from pytest_gittrix.conformance.command_system import CommandSystem
    from pytest_gittrix.conformance.suite import SessionSystemSuite
    from pytest_gittrix.testing.repos.place import Place
    from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem
    from pytest_gittrix.testing.systems.protocol import BASE, EXTENDED, Capability, Engine, Promoted, SessionSystem

FAMILY_MODULES = (
    "isolation",
    "overlay",
    "promotion",
    "conflict",
    "concurrency",
    "eviction",
    "durability",
    "log",
    "turns",
    "lines",
    "lifecycle",
    "finalization",
    "retention",
    "status",
    "identity",
    "names",
    "bad_input",
    "capabilities",
)

# Clauses are inherited by test classes, so pytest would not explain their assertions by itself.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in (*FAMILY_MODULES, "desk", "expect")))


__all__ = [
    "BASE",
    "EXTENDED",
    "FAMILY_MODULES",
    "Capability",
    "Clauses",
    "CommandSystem",
    "Engine",
    "GitTrixSystem",
    "Place",
    "Promoted",
    "SessionSystem",
    "SessionSystemSuite",
    "needs",
]


__getattr__, __dir__ = door(
    __name__,
    {
        "pytest_gittrix.conformance.clause": ("needs",),
        "pytest_gittrix.conformance.clauses": ("Clauses",),
        "pytest_gittrix.conformance.command_system": ("CommandSystem",),
        "pytest_gittrix.conformance.suite": ("SessionSystemSuite",),
        "pytest_gittrix.testing.systems.gittrix_system": ("GitTrixSystem",),
        "pytest_gittrix.testing.repos.place": ("Place",),
        "pytest_gittrix.testing.systems.protocol": (
            "BASE",
            "EXTENDED",
            "Capability",
            "Engine",
            "Promoted",
            "SessionSystem",
        ),
    },
)
