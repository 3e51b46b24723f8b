"""The files that Gas Town keeps of its sessions, written and read, and the session that a process of it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.gastown.files import export as export
    from pytest_gittrix.gastown.files import read_index as read_index
    from pytest_gittrix.gastown.files import read_town_events as read_town_events
    from pytest_gittrix.gastown.runtime_id import RuntimeId as RuntimeId
    from pytest_gittrix.gastown.runtime_id import persist as persist
    from pytest_gittrix.gastown.runtime_id import resolve as resolve

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.gastown.runtime_id": (
            "RuntimeId",
            "persist",
            "resolve",
        ),
        "pytest_gittrix.gastown.files": (
            "export",
            "read_index",
            "read_town_events",
        ),
    },
)
