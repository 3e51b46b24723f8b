"""Fixtures of the tests of ``members``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.finalize import AgentWorkspace

from pytest_gittrix.testing.repos.member_workspaces import RepositoryPlan


@pytest.fixture
def workspace(tmp_path: Path) -> AgentWorkspace:
    return AgentWorkspace(tmp_path / "workspace", RepositoryPlan("app"))
