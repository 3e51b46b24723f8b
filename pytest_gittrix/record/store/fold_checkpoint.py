"""The state of a long log without reading it again line by line: a checkpoint of the fold next to the log, derived from it.

A checkpoint is a state, the position in the log that it was folded to, and the SHA-256 of every byte before that. It counts only while the
log begins with exactly those bytes, so that damage is found as it is without one. It is written by whoever folded many events, whole or not
at all, and can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final

from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.record.eventlog.events import Cursor
from pytest_gittrix.record.eventlog.log import EventLog, Prefix
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.record.state.values import Intent, Kept, Lineage, Policy, Result

FILE: Final = "fold.json"
WORTH: Final = 1000
"""The number of events from which folding them again takes longer than writing a checkpoint."""
_VERSION: Final = 7
"""To be raised whenever a rule of ``fold`` changes: states of other versions are not read."""
_VALUES: Final = {"result": Result, "intent": Intent, "kept": Kept, "lineage": Lineage, "policy": Policy}
_SETS: Final = ("api_deleted", "api_untouched", "program_touched")
_FIELDS: Final = frozenset(field.name for field in fields(SessionState))


def fold_log(log: EventLog) -> SessionState | None:
    """The state of a session, from its checkpoint and the events after it; None if the log has no event.

    Raises:
        LogDamaged, MetadataVersionUnsupported, InvalidInput, AdapterUnavailable: as ``EventLog.read`` and ``fold``.
    """
    path = os.path.join(os.path.dirname(log.path), FILE)
    known = _read(path)
    part = log.read_after(known[0]) if known is not None else None
    if known is None or part is None:
        known, part = None, log.read_after(Prefix())
    assert part is not None
    events, beginning = part
    state = known[1] if known is not None else None
    if events:
        state = fold(events, state)
    if state is not None and len(events) >= WORTH:
        with suppress(OSError):  # a full disk, or a store that only its owner may write
            _write(path, beginning(), state)
    return state


def _read(path: str) -> tuple[Prefix, SessionState] | None:
    try:
        with open(path, "rb") as file:
            seal, _, body = file.read().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != seal:
            return None
        found = json.loads(body)
        if found["version"] != _VERSION or found["state"].keys() != _FIELDS:
            return None
        return Prefix(Cursor(found["offset"], found["seq"]), found["digest"]), from_data(found["state"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: str, prefix: Prefix, state: SessionState) -> None:
    known: dict[str, Any] = {"version": _VERSION, "offset": prefix.end.offset, "seq": prefix.end.seq, "digest": prefix.digest}
    body = json.dumps({**known, "state": to_data(state)}).encode()
    write_file(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def to_data(state: SessionState) -> dict[str, Any]:
    """A state as JSON; ``from_data`` reads it."""
    values = {name: getattr(state, name) for name in _VALUES}
    parts = {name: value and value._asdict() for name, value in values.items()}
    parts["life"] = state.life and state.life.to_data()
    return {**vars(state), **parts, **{name: sorted(getattr(state, name)) for name in _SETS}}


def from_data(data: dict[str, Any]) -> SessionState:
    """Read what ``to_data`` gave. Raises KeyError or TypeError for anything else."""
    values = {name: kind(**data[name]) for name, kind in _VALUES.items() if data[name] is not None}
    values["life"] = data["life"] and Life.from_data(data["life"])
    tuples = {name: tuple(data[name]) for name in ("steps", "earlier_baselines")}
    return SessionState(**{**data, **values, **tuples, **{name: frozenset(data[name]) for name in _SETS}})
