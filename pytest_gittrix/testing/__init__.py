"""What a test holds: worlds, models, faults, schedules and scripted agents, without pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.model.server import ModelServer as ModelServer
    from pytest_gittrix.testing.oracle import Judge as Judge
    from pytest_gittrix.testing.profiles import profile as profile
    from pytest_gittrix.testing.session_model import Model as Model
    from pytest_gittrix.testing.session_snapshot import to_snapshot as to_snapshot

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.model.server": ("ModelServer",),
        "pytest_gittrix.testing.oracle": ("Judge",),
        "pytest_gittrix.testing.profiles": ("profile",),
        "pytest_gittrix.testing.session_model": ("Model",),
        "pytest_gittrix.testing.session_snapshot": ("to_snapshot",),
    },
)
