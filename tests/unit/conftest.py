"""What the unit tests share: repositories that are costly to make and that no test changes."""

from __future__ import annotations

import pytest
from support.checkout import FILES
from support.git import GitRepo


@pytest.fixture(scope="session")
def checkout_template(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    """A human's repository with a file of each kind, to be copied."""
    return GitRepo.make(tmp_path_factory.mktemp("template") / "durable", FILES)
