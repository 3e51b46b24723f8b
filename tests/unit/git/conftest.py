"""Fixtures of the tests of ``git``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkout import copied
from support.git import GitRepo


@pytest.fixture
def repo(checkout_template: GitRepo, tmp_path: Path) -> GitRepo:
    """A human's repository, checked out and clean."""
    return copied(checkout_template, tmp_path / "durable")
