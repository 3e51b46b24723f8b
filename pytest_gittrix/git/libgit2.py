"""The binding of libgit2, loaded when one of its names is first used.

It takes nearly as long to load as all the rest of the engine, and what only reads records and workspaces does without it. The rest of the
package takes the names from here.

Two threads may use their first name at once, and a process may be forked while a thread loads the binding: every use loads ``pygit2``
before its parts, so that no thread meets a half-made module, and a fork waits for what is being loaded, since the child would wait for a
thread that it does not have.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pygit2 import Commit as Commit
    from pygit2 import Config as Config
    from pygit2 import Diff as Diff
    from pygit2 import GitError as GitError
    from pygit2 import Odb as Odb
    from pygit2 import OdbBackendPack as OdbBackendPack
    from pygit2 import Patch as Patch
    from pygit2 import Repository as Repository
    from pygit2 import discover_repository as discover_repository
    from pygit2 import hash as hash
    from pygit2.enums import DeltaStatus as DeltaStatus
    from pygit2.enums import DiffOption as DiffOption
    from pygit2.enums import ObjectType as ObjectType
    from pygit2.enums import SortMode as SortMode

_load = door(
    __name__,
    {
        "pygit2": ("Commit", "Config", "Diff", "GitError", "Odb", "OdbBackendPack", "Patch", "Repository", "discover_repository", "hash"),
        "pygit2.enums": ("DeltaStatus", "DiffOption", "ObjectType", "SortMode"),
    },
)


def __getattr__(name: str) -> Any:
    if not name.startswith("__"):
        import_module("pygit2")
    return _load(name)


def _await_loading() -> None:
    if "pygit2" in sys.modules:
        import_module("pygit2")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_await_loading)
