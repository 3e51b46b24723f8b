"""The conformance suite: almost three hundred promises of a session system, each a test with a stable code.

Run it on a system of your own without a line of code::

    pytest --pyargs pytest_gittrix.conformance --gittrix-system=acme.testing:system
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gittrix.conformance.clause import needs
    from pytest_gittrix.conformance.clauses import Clauses
    from pytest_gittrix.conformance.command_system import CommandSystem
    from pytest_gittrix.conformance.suite import SessionSystemSuite
    from pytest_gittrix.harness.own_system import GitTrixSystem
    from pytest_gittrix.harness.place import Place
    from pytest_gittrix.harness.system import BASE, EXTENDED, Capability, Engine, Promoted, SessionSystem

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

_HOMES = {
    "BASE": "harness.system",
    "EXTENDED": "harness.system",
    "GitTrixSystem": "harness.own_system",
    "Capability": "harness.system",
    "Clauses": "conformance.clauses",
    "CommandSystem": "conformance.command_system",
    "Engine": "harness.system",
    "Place": "harness.place",
    "Promoted": "harness.system",
    "SessionSystem": "harness.system",
    "SessionSystemSuite": "conformance.suite",
    "needs": "conformance.clause",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"pytest_gittrix.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
