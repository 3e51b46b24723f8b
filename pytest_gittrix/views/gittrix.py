"""GitTrix: a session is a fork of a repository that is promoted back or not; its record is ``metadata.json``, version 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.state.metadata import metadata_of

LEGAL: Final[Mapping[str, frozenset[str]]] = {
    "active": frozenset({"promoted", "discarded", "expired"}),
    "promoted": frozenset(),
    "discarded": frozenset(),
    "expired": frozenset(),
}
"""Which state may follow which."""


def state_of(state: SessionState) -> str:
    """``active``, ``promoted``, ``discarded`` or ``expired``."""
    return state.state


def record(events: Sequence[Event]) -> dict[str, Any]:
    """The documented record of a session."""
    return metadata_of(fold(events))
