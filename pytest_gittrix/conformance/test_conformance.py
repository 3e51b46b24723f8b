"""Every clause, for ``pytest --pyargs pytest_gittrix.conformance``."""

from __future__ import annotations

from pytest_gittrix.conformance.conflict import ConflictClauses


class TestConflict(ConflictClauses):
    """CNF."""
