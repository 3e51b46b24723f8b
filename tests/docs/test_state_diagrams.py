"""The state diagrams of the pages are those of the tables that the engine checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gittrix.views import botminter, gastown, gittrix, orchestrator, pixir
from pytest_gittrix.views.diagrams import block

EXPLANATION = Path(__file__).resolve().parents[2] / "docs/explanation"
DRAWN = [
    ("you-know-botminter.md", botminter.LEGAL, "Creating"),
    ("you-know-agent-orchestrator.md", orchestrator.LEGAL, "spawning"),
    ("you-know-gas-town.md", gastown.LEGAL, "spawn"),
    ("you-know-pixir.md", pixir.LEGAL, "idle"),
    ("promotion.md", gittrix.LEGAL, "active"),
]


@pytest.mark.parametrize(("page", "legal", "start"), DRAWN, ids=[page for page, *_ in DRAWN])
def test_a_page_shows_the_diagram_of_its_table(page: str, legal: Mapping[str, frozenset[str]], start: str) -> None:
    assert block(legal, start=start) in (EXPLANATION / page).read_text(encoding="utf-8")
