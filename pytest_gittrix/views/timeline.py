"""What happened in a session, in the order of time, in sentences: its own events, what its model said, and the agent's commits.

These are pure functions over events. ``gittrix session history`` has the same events with all their data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pytest_gittrix.record.eventlog.events import Event, path_of

_SHORT: Final = 12
_LONGEST: Final = 200
_NOISE: Final = frozenset(
    {"session.accessed", "workspace.ready", "promote.intent", "archive.written", "log.recovered", "status.decided", "workspace.kept"}
)
"""Events that add nothing to those around them."""


class TimelineEntry(NamedTuple):
    """One line of a timeline.

    Attributes:
        at_ns: when, in nanoseconds since 1970.
        what: a kind in a word: ``session``, ``model``, ``file``, ``commit``, ``said``, ``turn``, ``program``, ``promotion`` or
            ``other``.
        text: what happened.
        seq: the number of the event; None for a commit without an event.
    """

    at_ns: int
    what: str
    text: str
    seq: int | None = None


def timeline(events: Iterable[Event], commits: Iterable[tuple[int, str, str]] = ()) -> list[TimelineEntry]:
    """What happened in a session.

    Args:
        events: of the session.
        commits: of its agent, each with its time in nanoseconds, its id and its message. Those with an event of their own are left out.
    """
    stored = [*events]
    known = {event.data["sha"] for event in stored if event.type == "session.commit"}
    moments = [moment for event in stored for moment in _moments(event)]
    moments += [TimelineEntry(at, "commit", _commit(sha, message)) for at, sha, message in commits if sha not in known]
    return sorted(moments, key=lambda one: one.at_ns)


def _moments(event: Event) -> Iterator[TimelineEntry]:
    if event.type in _NOISE:
        return
    what, tell = _TELL.get(event.type, ("other", lambda _: event.type))
    yield TimelineEntry(event.ts, what, _line(tell(event.data)), event.seq)


def _line(text: str) -> str:
    first, _, more = text.strip().partition("\n")
    return f"{first[:_LONGEST]} ..." if more or len(first) > _LONGEST else first


def _commit(sha: str, message: str) -> str:
    return _line(f"{sha[:_SHORT]} {message}")


def _exchange(data: Mapping[str, Any]) -> str:
    calls = data.get("calls")
    said = f"failed: {data['failure']}" if "failure" in data else f"called {', '.join(calls)}" if calls else "answered"
    tokens = f", {data['input']} + {data['output']} tokens" if "input" in data else ""
    more = [f"{name} {data[name]}" for name in ("side", "fault") if name in data]
    more += ["as recorded"] if data.get("origin") == "tape" else []
    more += ["not delivered"] if data.get("delivered") is False else []
    return f"exchange {data['number']} {said}{tokens}, {data['duration_ns'] / 1e6:.0f} ms{''.join(f' ({one})' for one in more)}"


def _touched(data: Mapping[str, Any]) -> str:
    found = [(word, [path_of(one) for one in data[key]]) for word, key in (("changed", "added"), ("as before:", "gone"))]
    return "; ".join(f"{word} {', '.join(paths)}" for word, paths in found if paths)


def _other_way(data: Mapping[str, Any]) -> str:
    model = f" with {data['model']}" if "model" in data else ""
    if "parent" not in data:
        return model
    return f" as in {data['parent']} up to event {data['at_seq']}, from there on{model or ' with another model'}"


def _status(data: Mapping[str, Any]) -> str:
    if data.get("reason"):
        return str(data["reason"])
    return f"by signal {data['signal']}" if data.get("signal") is not None else f"with {data.get('code')}"


def _ended(data: Mapping[str, Any]) -> str:
    more = [str(data[name]) for name in ("outcome", "reason") if data.get(name)]
    return f"ended: {data['state']}{''.join(f', {one}' for one in more)}"


_TELL: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]]] = {
    "session.created": ("session", lambda data: f"began at {data['baseline'][:_SHORT]} of {data['durable_branch']}: {data['task']}"),
    "session.write": ("file", lambda data: f"{'deleted' if data['op'] == 'delete' else 'wrote'} {path_of(data)}"),
    "touched.seen": ("file", _touched),
    "session.activity": ("file", lambda _: "files changed in the workspace"),
    "session.commit": ("commit", lambda data: _commit(data["sha"], data["message"])),
    "session.ended": ("session", _ended),
    "session.extended": ("session", lambda _: "its time was extended"),
    "workspace.removed": ("session", lambda _: "workspace removed"),
    "model.exchange": ("model", _exchange),
    "user_message": ("said", lambda data: f"user: {data['text']}"),
    "assistant_message": ("said", lambda data: f"agent: {data['text']}"),
    "tool_call": ("said", lambda data: f"calls {data['name']}"),
    "tool_result": ("said", lambda data: "result" if data["ok"] else f"error: {data.get('error')}"),
    "run.started": ("program", lambda data: f"started{_other_way(data)}: {data['command']}"),
    "run.ended": ("program", lambda data: f"ended {_status(data)}"),
    "turn.started": ("turn", lambda data: f"turn {data['turn']} began"),
    "turn.ended": ("turn", lambda data: f"turn {data['turn']} {data['status']}"),
    "step.started": ("turn", lambda data: f"step {data['step']} began"),
    "step.completed": ("turn", lambda data: f"step {data['step']} {data.get('outcome', 'ended')}"),
    "promote.done": ("promotion", lambda data: f"promoted to {data['branch']} as {data['commit'][:_SHORT]}"),
    "promote.kept": ("promotion", lambda data: f"promoted to {data['branch']} as {data['commit'][:_SHORT]}; the session goes on"),
    "session.rebased": ("promotion", lambda data: f"rebased onto {data['commit'][:_SHORT]}"),
    "promote.conflict": ("promotion", lambda data: f"conflict with durable in {data['count']} paths"),
    "promote.aborted": ("promotion", lambda data: f"promotion aborted: {data['reason']}"),
    "durable.moved": ("promotion", lambda data: f"durable's {data['ref']} moved to {str(data['new'])[:_SHORT]}"),
}
