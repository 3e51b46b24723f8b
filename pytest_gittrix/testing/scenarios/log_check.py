"""The problems of a session's log: an oracle for logs that any program wrote.

It is stricter than a reader. The engine stores whatever is recorded in a session, also an answer without a call; the oracle checks whether
the history could be given to a model again, and whether it is the history of one session from its birth to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_gittrix.errors import GittrixError
from pytest_gittrix.record.eventlog.events import Event, check
from pytest_gittrix.record.eventlog.log import EventLog
from pytest_gittrix.record.state.fold import ORIGINS, RULES, fold

RELATIONS: Final = ("handoff", "crash", "fork")
"""How a session can have come from another one."""
_OF_FORKS: Final = ("at_seq", "said")


def log_problems(log: EventLog) -> list[str]:
    """The problems of a log, one text each, in the order of its lines; none for a sound log.

    Damaged lines and a torn end come first, then the problems of the intact events.
    """
    try:
        found = log.salvage()
    except GittrixError as problem:
        return [problem.fact]
    problems = [f"line {damage.line}, byte {damage.offset}: {damage.reason}" for damage in found.damaged]
    if found.torn:
        problems.append(f"line {found.end.seq + 1}, byte {found.end.offset}: {found.torn} bytes of an event that was cut short.")
    return problems + event_problems(found.events)


def event_problems(events: Sequence[Event]) -> list[str]:
    """The problems of the history of one session, one text each; none for a sound history.

    Args:
        events: all of them, in order.
    """
    if not events:
        return ["there is no event: a session begins with session.created or session.imported"]
    history = _History(events[0].stream)
    for index, event in enumerate(events):
        history.add(event, index)
    return history.problems or _refused(events)


def _refused(events: Sequence[Event]) -> list[str]:
    """The problem that the engine's own fold finds: it checks what is not checked here, such as promotions."""
    try:
        fold(events)
    except GittrixError as problem:
        return [problem.fact]
    return []


@dataclass
class _History:
    """A session's history as far as it was checked.

    Attributes:
        id: the session.
        problems: the problems so far.
        next: the seq of the next event.
        ended: the event that ended the session; None while it is live.
        calls: for each tool call by id, its last answer; None for an open call.
        turn: the open turn.
        heir: the session that an open handoff goes to.
        successor: the session that goes on with its work.
    """

    id: str
    problems: list[str] = field(default_factory=list)
    next: int = 0
    ended: Event | None = None
    calls: dict[str, Event | None] = field(default_factory=dict)
    turn: str | None = None
    heir: str | None = None
    successor: str | None = None

    def add(self, event: Event, index: int) -> None:
        """Add the problems of the next event."""
        if event.stream != self.id:
            self._wrong(event, f"is of session {event.stream}, and the log is of {self.id}")
        if event.seq != self.next:
            self._wrong(event, f"has seq {event.seq}, and {self.next} comes next")
        self.next = event.seq + 1
        if (event.type in ORIGINS) != (index == 0):
            self._wrong(event, "is a second birth" if index else "is no birth, and a session begins with one")
        try:
            check(event.type, event.data, event.actor)
        except GittrixError as problem:
            self._wrong(event, f"is not in the vocabulary: {problem.fact}")
            return
        rule = RULES.get(event.type)
        if self.ended is not None and rule is not None and "ended" not in rule.when:
            self._wrong(event, f"comes after the session ended (event {self.ended.seq})")
        check_type = _CHECKS.get(event.type)
        if check_type is not None:
            check_type(self, event, event.data)

    def _wrong(self, event: Event, what: str) -> None:
        self.problems.append(f"event {event.seq}, {event.type}: {what}")

    def _born(self, event: Event, data: Mapping[str, Any]) -> None:
        lineage = data.get("lineage")
        if lineage is None:
            return
        missing = [name for name in ("parent", "relation", "chain", "root") if not isinstance(lineage.get(name), str)]
        if missing:
            self._wrong(event, f"its lineage lacks {', '.join(missing)}")
            return
        relation = lineage["relation"]
        if relation not in RELATIONS:
            self._wrong(event, f"its relation is {relation!r}, none of {', '.join(RELATIONS)}")
        if lineage["parent"] == self.id:
            self._wrong(event, "it is its own parent")
        if (lineage["chain"] == self.id) != (relation == "fork"):
            self._wrong(event, "a fork begins a line of its own" if relation == "fork" else "its chain is its own id, and it has a parent")
        if relation == "fork" and not isinstance(lineage.get("at_seq"), int):
            self._wrong(event, "it is a fork, and its lineage does not say after which event")
        if relation != "fork" and any(name in lineage for name in _OF_FORKS):
            self._wrong(event, "it is no fork, and its lineage says after which event it was made")
        if lineage["root"] == self.id:
            self._wrong(event, "its root is itself, and it has a parent")

    def _called(self, event: Event, data: Mapping[str, Any]) -> None:
        call = data["call_id"]
        if call in self.calls and self.calls[call] is None:
            self._wrong(event, f"calls {call!r} again, which has no answer yet")
        self.calls[call] = None

    def _answered(self, event: Event, data: Mapping[str, Any]) -> None:
        call = data["call_id"]
        before = self.calls.get(call)
        if call not in self.calls:
            self._wrong(event, f"answers {call!r}, which is no call")
        elif before is not None and not is_synthetic(before):
            self._wrong(event, f"answers {call!r} a second time; event {before.seq} did")
        self.calls[call] = event

    def _turn_started(self, event: Event, data: Mapping[str, Any]) -> None:
        if self.turn is not None:
            self._wrong(event, f"turn {self.turn} is still open")
        unanswered = sorted(call for call, answer in self.calls.items() if answer is None)
        if unanswered:
            self._wrong(event, f"a turn begins while {', '.join(map(repr, unanswered))} has no answer")
        self.turn = data["turn"]

    def _turn_ended(self, event: Event, data: Mapping[str, Any]) -> None:
        if self.turn != data["turn"]:
            self._wrong(event, f"ends turn {data['turn']}, and {self.turn or 'none'} is open")
        self.turn = None

    def _handing_off(self, event: Event, data: Mapping[str, Any]) -> None:
        if self.heir is not None:
            self._wrong(event, f"the handoff to {self.heir} is still open")
        self.heir = data["child"]

    def _not_handed_off(self, event: Event, data: Mapping[str, Any]) -> None:
        if self.heir != data["child"]:
            self._wrong(event, f"no handoff to {data['child']} is open")
        self.heir = None

    def _promoted(self, event: Event, _data: Mapping[str, Any]) -> None:
        self.ended = self.ended or event

    def _ended(self, event: Event, data: Mapping[str, Any]) -> None:
        outcome, child = data.get("outcome"), data.get("successor")
        if self.ended is not None and not (self.ended.type == "promote.done" and data["state"] == "promoted"):
            self._wrong(event, f"the session had ended (event {self.ended.seq})")
        if (outcome == "handoff") != (child is not None):
            self._wrong(
                event, "was handed on without a successor" if child is None else f"names the successor {child}, and was not handed on"
            )
        elif child is not None and child != self.heir:
            self._wrong(event, f"was handed on to {child}, which no handoff.intent named")
        elif child is None and self.heir is not None:
            self._wrong(event, f"the handoff to {self.heir} is still open")
        if child is not None and child == self.id:
            self._wrong(event, "it is its own successor")
        self.successor = child
        self.ended = event

    def _succeeded(self, event: Event, data: Mapping[str, Any]) -> None:
        if self.ended is None or self.ended.data.get("outcome") != "crash":
            self._wrong(event, "only a session that crashed has a successor that it was not handed on to")
        if self.successor is not None:
            self._wrong(event, f"its successor is {self.successor}")
        self.successor = data["child"]

    def _not_succeeded(self, event: Event, data: Mapping[str, Any]) -> None:
        if self.successor != data["child"]:
            self._wrong(event, f"{data['child']} is not its successor")
        self.successor = None


def is_synthetic(answer: Event) -> bool:
    """Whether a ``tool_result`` replaces one that never came, so that a genuine one may still follow."""
    error = answer.data.get("error")
    return isinstance(error, Mapping) and error.get("kind") == "orphan_tool_call"


_CHECKS: Final[Mapping[str, Callable[[_History, Event, Mapping[str, Any]], None]]] = {
    "session.created": _History._born,
    "tool_call": _History._called,
    "tool_result": _History._answered,
    "turn.started": _History._turn_started,
    "turn.ended": _History._turn_ended,
    "handoff.intent": _History._handing_off,
    "handoff.aborted": _History._not_handed_off,
    "promote.done": _History._promoted,
    "session.ended": _History._ended,
    "session.succeeded": _History._succeeded,
    "succession.aborted": _History._not_succeeded,
}
