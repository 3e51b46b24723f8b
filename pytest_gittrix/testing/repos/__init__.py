"""Repositories, remotes and forges that a test holds, and the directory they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.testing.repos.forge_server import ForgeServer as ForgeServer
    from pytest_gittrix.testing.repos.history import Executable as Executable
    from pytest_gittrix.testing.repos.history import History as History
    from pytest_gittrix.testing.repos.history import Step as Step
    from pytest_gittrix.testing.repos.history import Submodule as Submodule
    from pytest_gittrix.testing.repos.history import Symlink as Symlink
    from pytest_gittrix.testing.repos.place import Place as Place
    from pytest_gittrix.testing.repos.remote_kit import Remotes as Remotes
    from pytest_gittrix.testing.repos.remote_kit import forge_at as forge_at
    from pytest_gittrix.testing.repos.remote_kit import remotes as remotes

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.testing.repos.history": (
            "Executable",
            "History",
            "Step",
            "Submodule",
            "Symlink",
        ),
        "pytest_gittrix.testing.repos.place": ("Place",),
        "pytest_gittrix.testing.repos.remote_kit": (
            "Remotes",
            "forge_at",
            "remotes",
        ),
        "pytest_gittrix.testing.repos.forge_server": ("ForgeServer",),
    },
)
