"""A session as plain values that are the same on every machine, for the packages that compare values with stored ones.

syrupy and inline-snapshot store dictionaries and texts by themselves, so all that they need of a session is this one.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from pytest_gittrix.engine.agents.session_parts import RanProgram, SessionObject, SessionParts, parts_of
from pytest_gittrix.engine.operations.review import changes_now, landed_changes
from pytest_gittrix.git.hunks import is_binary, unified_body
from pytest_gittrix.git.patch import FileChange, Side
from pytest_gittrix.git.tree import KINDS
from pytest_gittrix.model.tapes.placeholders import known_here
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState

Hide = Callable[[str], str]

_SHORT: Final = 12


def to_snapshot(data: Any, path: object = ()) -> Any:  # noqa: ARG001 - the second argument of a matcher of syrupy
    """A session's outcome as a dictionary of plain values; anything else is returned as it is, so that this is a ``matcher`` for syrupy.

    The dictionary has ``state``, and where there are any: ``changes`` since the baseline by path (``change``, ``kind``, ``mode``, and the
    ``diff`` of a text), ``refused`` paths that can never be promoted, ``commits`` of the agent, ``programs`` that were run by the session's
    objects of this process, ``exchanges`` with the model, and ``promotions``. It has no time, commit id or session id. The places of the
    session and of Python on this machine are placeholders in every text, such as ``{workspace}``. Reading it counts as no use of the
    session, and works once it has ended.

    Args:
        data: a session, as its agent or its user has it; or any other value.
        path: where syrupy found the value; not used.

    Raises:
        GittrixError: the record or the workspace of the session cannot be read.
    """
    if not isinstance(data, SessionObject):
        return data
    parts = parts_of(data)
    state = parts.recorder.read()
    events = parts.recorder.log.twin().read()
    places = {"workspace": state.workspace, "durable": state.durable_path, "python": sys.executable}
    hide = known_here(tuple((name, place) for name, place in places.items() if place), ()).hide
    return {name: value for name, value in _outcome(parts, state, events, hide) if value}


def _outcome(parts: SessionParts, state: SessionState, events: Sequence[Event], hide: Hide) -> Iterator[tuple[str, Any]]:
    yield "state", state.state
    if not state.ended and state.life is None:
        changes, refused = changes_now(state, parts.workspace, parts.limits)
        yield "changes", _changes(changes, hide)
        yield "refused", {_text(path): hide(reason) for path, reason in refused.items()}
    yield "commits", [hide(event.data["message"]) for event in events if event.type == "session.commit"]
    yield "programs", [*_programs(parts.ran, hide)]
    yield "exchanges", [*_exchanges(events)]
    yield "promotions", [*_promotions(state, events, hide)]


def _changes(changes: Iterable[FileChange], hide: Hide) -> dict[str, dict[str, str]]:
    return {_text(change.path): dict(_change(change.old, change.new, hide)) for change in changes}


def _text(path: str) -> str:
    """A path as text that any file can hold: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _change(old: Side | None, new: Side | None, hide: Hide) -> Iterator[tuple[str, str]]:
    yield "change", "added" if old is None else "deleted" if new is None else "changed"
    sides = [one for one in (old, new) if one is not None]
    yield "kind", " -> ".join(dict.fromkeys(KINDS[one.mode] for one in sides))
    yield "mode", " -> ".join(dict.fromkeys(f"{one.mode:06o}" for one in sides))
    before, after = old.data if old else b"", new.data if new else b""
    if is_binary(before) or is_binary(after):
        yield "bytes", " -> ".join(f"{len(one.data)} ({one.id[:_SHORT]})" for one in sides)
    elif before != after:
        yield "diff", hide(unified_body(before, after).decode("utf-8", "backslashreplace"))


def _programs(ran: Iterable[RanProgram], hide: Hide) -> Iterator[dict[str, Any]]:
    for one in ran:
        status = ("code", one.code) if one.signal is None else ("signal", one.signal)
        yield {"command": hide(shlex.join(one.argv)), status[0]: status[1]}


def _exchanges(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        if event.type == "model.exchange":
            yield ", ".join(event.data.get("calls", ())) or str(event.data.get("failure", "answered"))


def _promotions(state: SessionState, events: Sequence[Event], hide: Hide) -> Iterator[dict[str, Any]]:
    for event in events:
        data = event.data
        if event.type in ("promote.done", "promote.kept"):
            landed = landed_changes(events, data["commit"], state.durable_path)
            changes = {} if landed is None else {"changes": _changes(landed, hide)}
            yield {"outcome": event.type.removeprefix("promote."), "branch": data["branch"], "strategy": data["strategy"], **changes}
        elif event.type == "promote.conflict":
            yield {"outcome": "conflict", "paths": data["count"]}
        elif event.type == "promote.aborted":
            yield {"outcome": "aborted", "reason": hide(data["reason"])}
