"""What the walks through the documents share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Site, open_site
from support.walkthrough import FILES


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A repository with the files of the walks, and an engine."""
    with open_site(tmp_path, FILES) as site:
        yield site
