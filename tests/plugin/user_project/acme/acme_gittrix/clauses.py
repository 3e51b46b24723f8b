"""A family of clauses: what Acme wants of every session system, beyond what all do."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.conformance import Clauses


class AcmeClauses(Clauses):
    """Rules of Acme."""

    def test_acm_01_a_name_may_have_a_blank(self, stage: Any) -> None:
        """Otherwise half of the files of Acme cannot be written."""
        session = stage.start()
        session.write("a file", "x")
        assert session.exists("a file")
