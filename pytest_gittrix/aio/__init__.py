"""The engine, its sessions and their programs for asyncio: nothing blocks the event loop, and a cancelled task leaves nothing running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.aio.engine import AsyncGitTrix as AsyncGitTrix
    from pytest_gittrix.aio.engine import AsyncUserSession as AsyncUserSession
    from pytest_gittrix.aio.sessions import AsyncAgentSession as AsyncAgentSession
    from pytest_gittrix.aio.sessions import AsyncPrograms as AsyncPrograms
    from pytest_gittrix.aio.threads import in_thread as in_thread

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.aio.engine": ("AsyncGitTrix", "AsyncUserSession"),
        "pytest_gittrix.aio.sessions": ("AsyncAgentSession", "AsyncPrograms"),
        "pytest_gittrix.aio.threads": ("in_thread",),
    },
)
