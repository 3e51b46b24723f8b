"""The conversation of a session: the events that its users may store and announce, and answers for calls that never got one.

The rules are Pixir's (docs/explanation/you-know-pixir.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.errors import InvalidInput, did_you_mean
from pytest_gittrix.record.eventlog.events import Event, check
from pytest_gittrix.record.eventlog.vocabulary import CONVERSATION, LIVE, VOCABULARY
from pytest_gittrix.record.state.fold import SessionState, metadata_of

ANNOUNCED: Final = frozenset({"text_delta", "reasoning_delta", "status", "plan", "context_pressure"})
"""The live events that a user of a session may announce (Pixir's ephemeral types)."""

# The fields by which calls and their results are matched.
_NAMES: Final = frozenset({"call_id", "name"})


def check_recordable(type: str, data: Mapping[str, Any]) -> str:
    """Validate an event that a user stores. Raises InvalidInput, which lists the types; the engine records its own operations itself."""
    if type in CONVERSATION:
        check(type, data)
        for name in _NAMES.intersection(data):
            if not isinstance(data[name], str):
                raise InvalidInput(f"The {name} of a {type!r} is {data[name]!r}, not text.", why="Calls and results are matched by it.")
        return type
    if type in ANNOUNCED:
        raise InvalidInput(
            f"The event {type!r} is announced, not stored.", why="It shows progress, and has no meaning later.", fix="Use emit()."
        )
    raise InvalidInput(
        f"{type!r} is not an event that a user can store.",
        why="The engine itself records what happens to files, promotions and ends of sessions.",
        fix=f"Use one of: {', '.join(CONVERSATION)}.",
    )


def check_announceable(type: str) -> str:
    """Validate an event that is announced without being stored. Raises InvalidInput, which lists the types."""
    if type in ANNOUNCED or type in CONVERSATION:
        return type
    raise InvalidInput(f"{type!r} cannot be announced.", fix=f"Use one of: {', '.join(sorted(ANNOUNCED))}; or store it with record().")


def check_types(types: Iterable[str] | None) -> frozenset[str] | None:
    """Validate a filter of events. Raises InvalidInput for a name that no event has."""
    if types is None:
        return None
    wanted = frozenset([types] if isinstance(types, str) else types)
    unknown = sorted(wanted - VOCABULARY.keys() - LIVE.keys())
    if unknown:
        raise InvalidInput(
            f"There is no event {unknown[0]!r}.",
            fix=f"{did_you_mean(unknown[0], [*VOCABULARY, *LIVE])}Known events: {', '.join([*VOCABULARY, *LIVE])}.",
        )
    return wanted


def orphan_result(call_id: str, tool: str, reason: str) -> dict[str, Any]:
    """The answer that a call without one is given, so that the history can be shown to a model again (Pixir)."""
    details = {"call_id": call_id, "tool": tool, "reason": reason}
    error = {"kind": "orphan_tool_call", "message": "The call was never answered.", "details": details}
    return {"call_id": call_id, "ok": False, "error": error}


def close_orphans(recorder: Recorder, state: SessionState, reason: str) -> SessionState:
    """Answer each open tool call, in the order of their ids. The caller holds the lease.

    Args:
        recorder: the session's record.
        state: its state, read under the lease.
        reason: ``before_start_turn``, ``interrupt`` or ``interrupt_no_turn``, as Pixir names them.
    """
    for call_id, tool in sorted(state.calls.items()):
        state = recorder.append("tool_result", orphan_result(call_id, tool, reason))
    return state


def events_of(recorder: Recorder) -> list[Event]:
    """All events of a session, ended ones too; a session of a TypeScript store is read as if it had its log already.

    Raises:
        SessionNotFound: there is no such session.
        LogDamaged, MetadataVersionUnsupported: it cannot be read.
    """
    state = recorder.read()
    if not state.legacy:
        return recorder.log.twin().read()
    return [Event(0, state.updated_ns, state.id, "session.imported", "system", {"metadata": metadata_of(state)})]


def of_types(events: Iterable[Event], types: frozenset[str] | None) -> list[Event]:
    """The events of some types; all, if None."""
    return [event for event in events if types is None or event.type in types]


def normalised(data: Mapping[str, Any]) -> dict[str, Any]:
    """Data with keys that are text on every level, as JSON has them.

    Raises:
        InvalidInput: it is no mapping, a key is neither text nor a number, two keys come to the same text, or it is nested too deep.
    """
    if not isinstance(data, Mapping):
        raise InvalidInput(f"The data of an event are {type(data).__name__}, not a mapping.")
    try:
        return {key: _plain(value) for key, value in _keys(data)}
    except RecursionError:
        raise InvalidInput("The data of an event are nested too deep.", why="They could not be read back.", fix="Flatten them.") from None


def _keys(data: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise InvalidInput(f"{key!r} cannot be a key of an event's data.", fix="Use text.")
        if str(key) in found:
            raise InvalidInput(f"Two keys of an event's data are the same text, {str(key)!r}.", why="One of the two values would be lost.")
        found[str(key)] = value
    return [*found.items()]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in _keys(value)}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
