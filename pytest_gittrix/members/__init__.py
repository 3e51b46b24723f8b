"""BotMinter's way of working: members of a team, workspaces of several repositories, finalization and retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.members.members import (
        Members as Members,
    )
    from pytest_gittrix.record.state.retention import RetentionPolicy as RetentionPolicy
    from pytest_gittrix.record.state.retention import expired as expired
    from pytest_gittrix.workspaces.multi_repo import RepositorySpec as RepositorySpec

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.members.members": ("Members",),
        "pytest_gittrix.workspaces.multi_repo": ("RepositorySpec",),
        "pytest_gittrix.record.state.retention": (
            "RetentionPolicy",
            "expired",
        ),
    },
)
