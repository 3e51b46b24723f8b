"""The clauses themselves, a family a module."""

from __future__ import annotations

import pytest

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
    "lineage",
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
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in FAMILY_MODULES))
