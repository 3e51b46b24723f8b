"""What a session that nobody started began with, for tests that write its events themselves."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.record.state.fold import Policy

NOW = 1_893_456_000_000_000_000
"""2030-01-01T00:00:00Z, in nanoseconds since 1970 UTC."""

CREATED: dict[str, Any] = {
    "task": "fix the bug",
    "durable_ref": "local:///repo#main",
    "durable_path": "/repo",
    "durable_branch": "main",
    "baseline": "b" * 40,
    "ephemeral_ref": "local:///store/s/workspace",
    "workspace": "/store/s/workspace",
    "workspace_kind": "clone",
    "git_backed": True,
    "policy": Policy().to_data(),
    "format": "sha1",
}
"""The data of its ``session.created``."""
