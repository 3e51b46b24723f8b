"""Fixtures of the tests of ``workspaces``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.git import GitRepo, make_workspace

from pytest_gittrix.workspaces.workspace import Workspace


@pytest.fixture
def workspace(durable: GitRepo, tmp_path: Path) -> Workspace:
    """A clone of it."""
    return make_workspace(durable, tmp_path)
