"""The state of a session, folded from its events.

``fold`` is pure: the same events give the same state, whole or piece by piece. Everything else that is stored about a session
(``metadata.json``, the index, a view) is derived from what it returns. This module imports no pydantic. What other rooms need of a state
can be imported from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, cast

from pytest_gittrix.errors import GittrixError, InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.record.eventlog.events import Event, path_of
from pytest_gittrix.record.eventlog.vocabulary import CONVERSATION, OBSERVED
from pytest_gittrix.record.state import promotions
from pytest_gittrix.record.state.lifecycle import EVENTS, OUTCOMES, after, why_not
from pytest_gittrix.record.state.metadata import metadata_of, state_from_metadata
from pytest_gittrix.record.state.values import (
    ENDED,
    Intent,
    Policy,
    Result,
    SessionState,
    StateName,
    created_state,
    current_identity,
    deadline_ns,
    impossible,
    opened_state,
)

__all__ = [
    "ENDED",
    "ORIGINS",
    "RULES",
    "EventRule",
    "Intent",
    "Policy",
    "Result",
    "SessionState",
    "StateName",
    "deadline_ns",
    "fold",
    "metadata_of",
    "state_from_metadata",
]


FoldPolicy = Literal["strict", "skip"]


def fold(events: Iterable[Event], state: SessionState | None = None, *, policy: FoldPolicy = "strict") -> SessionState:
    """Add events to a state, or build one from the first event on.

    Args:
        events: of one session, in order; those ``state`` already has are passed over.
        state: of the events before them. It is not changed.
        policy: ``strict`` raises as below. ``skip`` passes over missing, illegal and unknown events and those of other sessions; only
            the first event must be there. The result is a guess at a damaged session, for a person to look at; nothing may be written
            by it.

    Raises:
        LogDamaged: an event that cannot have happened then (a write after the end, a second creation); the message names it.
        MetadataVersionUnsupported: an event this engine does not know.
        InvalidInput: there is nothing to fold, or an event is missing in between; or there is no such policy.
    """
    folded = None
    if state is not None:
        events = [*events]
        folded = _copied(state, events)
    if policy != "strict":
        return _guessed(events, folded, policy)
    for event in events:
        if folded is None:
            folded = _begin(event)
        elif event.seq > folded.seq:
            _step(folded, event)
    if folded is None:
        raise _no_events()
    return folded


# Which event is legal when, and what it changes. -------------------------------------------------------------------------------


Apply = Callable[[SessionState, Event], None]
"""Changes a state by an event. It raises before it changes anything."""


class EventRule(NamedTuple):
    """When an event is legal (``active``, ``ended``), whether it counts as use of the session, and what it changes."""

    when: frozenset[str]
    use: bool = False
    apply: Apply = lambda _state, _event: None


def _imported(event: Event) -> SessionState:
    state = state_from_metadata(event.data["metadata"], legacy=False)
    state.seq = event.seq
    return state


def _lived(state: SessionState, event: Event) -> None:
    if problem := why_not(state.life, event):
        raise impossible(state, event, problem)
    if state.life is not None:
        state.life = after(state.life, event)


def _moved(state: SessionState, event: Event) -> None:
    _lived(state, event)
    to = event.data["to"]
    state.outcome = OUTCOMES.get(to, state.outcome)
    if to == "removed":
        state.state, state.ended_ns = "expired", event.ts


def _ready(state: SessionState, event: Event) -> None:
    state.workspace_present = True
    state.workspace = path_of(event.data)


def _write(state: SessionState, event: Event) -> None:
    path, op = path_of(event.data), event.data["op"]
    state.api_touched[path] = op
    if op == "delete" or path in state.api_deleted:
        state.api_deleted = state.api_deleted | {path} if op == "delete" else state.api_deleted - {path}
    if path in state.api_untouched:
        state.api_untouched = state.api_untouched - {path}
    state.changed_since_checkpoint = True


def _touched(state: SessionState, event: Event) -> None:
    added, gone = (frozenset(map(path_of, event.data[name])) for name in ("added", "gone"))
    state.program_touched = (state.program_touched | added.difference(state.api_touched)) - gone
    state.api_untouched = (state.api_untouched - added) | gone.intersection(state.api_touched)


def _commit(state: SessionState, event: Event) -> None:
    state.commits.append(event.data["sha"])
    state.changed_since_checkpoint = False


def _extended(state: SessionState, event: Event) -> None:
    old = state.policy
    state.policy = Policy(event.data["ttl_idle_ns"], old.ttl_absolute_ns, old.until_promote, old.manual)


def _relocated(state: SessionState, event: Event) -> None:
    state.durable_ref, state.durable_path = event.data["durable_ref"], path_of(event.data, "durable_path")


def _activity(state: SessionState, event: Event) -> None:
    # A file dated into the future must not keep its session alive: nothing was observed later than the event.
    state.last_access_ns = max(state.last_access_ns, min(event.data["observed_ns"], event.ts))


def _ended(state: SessionState, event: Event) -> None:
    how = event.data["state"]
    if state.life is not None and state.life.state != "creating":
        raise impossible(state, event, f"its life ends when it is removed, and it is {state.life.state}")
    if how not in ENDED:
        raise impossible(state, event, f"{how!r} is not an end ({', '.join(sorted(ENDED))})")
    if state.intent is not None:
        raise impossible(state, event, f"the promotion of {state.intent.commit} is still open")
    # promote.done is itself the end; session.ended may still say so.
    if state.ended and not (how == state.state == "promoted"):
        raise impossible(state, event, f"the session already ended as {state.state}")
    if not state.ended:
        state.ended_ns = event.ts
    state.state = cast(StateName, how)
    state.outcome, state.handoff = event.data.get("outcome"), None
    state.successor = event.data.get("successor", state.successor)


def _archive(state: SessionState, event: Event) -> None:
    state.archive = event.data


def _identified(state: SessionState, event: Event) -> None:
    identity = {**state.identity, **current_identity(event.data["identity"])}
    state.identity = {name: value for name, value in identity.items() if value is not None}


def _step_started(state: SessionState, event: Event) -> None:
    molecule = {"molecule_id": event.data["molecule_id"]} if "molecule_id" in event.data else {}
    state.steps = (*state.steps, event.data["step"])
    state.identity = {**state.identity, "step_ref": event.data["step"], **molecule}


def _step_completed(state: SessionState, event: Event) -> None:
    step = event.data["step"]
    if step not in state.steps:
        return
    last = len(state.steps) - 1 - state.steps[::-1].index(step)
    state.steps = state.steps[:last] + state.steps[last + 1 :]
    others = {name: value for name, value in state.identity.items() if name != "step_ref"}
    state.identity = {**others, "step_ref": state.steps[-1]} if state.steps else others


def _checkpointed(state: SessionState, event: Event) -> None:
    state.checkpoint, state.changed_since_checkpoint = event.data["tree"], False


def _called(state: SessionState, event: Event) -> None:
    state.calls[event.data["call_id"]] = event.data["name"]


def _answered(state: SessionState, event: Event) -> None:
    # The answer to a call that is not open is stored and changes nothing: it is late, or comes before its call (Pixir).
    state.calls.pop(event.data["call_id"], None)


def _removed(state: SessionState, _event: Event) -> None:
    state.workspace_present = False


def _opens(field: str, key: str, problem: str) -> Apply:
    """The change by an event that begins a turn, a handoff or the like, of which one is open at a time: it fills the empty ``field``."""

    def apply(state: SessionState, event: Event) -> None:
        if (now := getattr(state, field)) is not None:
            raise impossible(state, event, problem.format(now))
        setattr(state, field, event.data[key])

    return apply


def _closes(field: str, key: str, problem: str) -> Apply:
    """The change by the event that ends it: it empties ``field``, which must have the value that the event names."""

    def apply(state: SessionState, event: Event) -> None:
        if (now := getattr(state, field)) != event.data[key]:
            raise impossible(state, event, problem.format(now))
        setattr(state, field, None)

    return apply


_ACTIVE, _ANY = frozenset({"active"}), frozenset({"active", "ended"})

ORIGINS: Mapping[str, Callable[[Event], SessionState]] = {
    "session.created": created_state,
    "session.opened": opened_state,
    "session.imported": _imported,
}

# Files that are promoted or thrown away (GitTrix), and what happens to their repository.
_SESSION: Mapping[str, EventRule] = {
    "workspace.ready": EventRule(_ACTIVE, use=True, apply=_ready),
    "session.accessed": EventRule(_ACTIVE, use=True),
    "session.write": EventRule(_ACTIVE, use=True, apply=_write),
    "session.commit": EventRule(_ACTIVE, use=True, apply=_commit),
    "session.extended": EventRule(_ACTIVE, use=True, apply=_extended),
    "session.relocated": EventRule(_ACTIVE, use=True, apply=_relocated),
    "session.activity": EventRule(_ACTIVE, apply=_activity),
    "touched.seen": EventRule(_ANY, apply=_touched),
    "promote.intent": EventRule(_ACTIVE, apply=promotions.intent),
    "promote.done": EventRule(_ACTIVE, use=True, apply=promotions.done),
    "promote.kept": EventRule(_ACTIVE, use=True, apply=promotions.kept),
    "session.rebased": EventRule(_ACTIVE, use=True, apply=promotions.rebased),
    "promote.aborted": EventRule(_ACTIVE, apply=promotions.close_intent),
    "promote.conflict": EventRule(_ACTIVE, use=True),
    "archive.written": EventRule(_ANY, apply=_archive),
    "session.ended": EventRule(_ANY, apply=_ended),
    "workspace.removed": EventRule(_ANY, apply=_removed),
    **dict.fromkeys(("worktree.updated", "worktree.stale", "eviction.postponed", "durable.moved", "log.recovered"), EventRule(_ANY)),
}

# One life of an agent after another (Gas Town).
_LINE: Mapping[str, EventRule] = {
    "session.identified": EventRule(_ACTIVE, apply=_identified),
    "step.started": EventRule(_ACTIVE, use=True, apply=_step_started),
    "step.completed": EventRule(_ACTIVE, use=True, apply=_step_completed),
    "handoff.intent": EventRule(_ACTIVE, use=True, apply=_opens("handoff", "child", "the handoff to {} is still open")),
    "handoff.aborted": EventRule(_ACTIVE, apply=_closes("handoff", "child", "the open handoff is to {}")),
    "session.succeeded": EventRule(_ANY, apply=_opens("successor", "child", "its successor is {}")),
    "succession.aborted": EventRule(_ANY, apply=_closes("successor", "child", "its successor is {}")),
}

# A conversation in turns (Pixir), which can be forked.
_TURNS: Mapping[str, EventRule] = {
    **dict.fromkeys(CONVERSATION, EventRule(_ACTIVE, use=True)),
    "tool_call": EventRule(_ACTIVE, use=True, apply=_called),
    "tool_result": EventRule(_ACTIVE, use=True, apply=_answered),
    "turn.started": EventRule(_ACTIVE, use=True, apply=_opens("turn", "turn", "turn {} is still open")),
    "turn.ended": EventRule(_ANY, apply=_closes("turn", "turn", "the open turn is {}")),
    "run.started": EventRule(_ACTIVE, use=True),
    "run.ended": EventRule(_ANY),
    "prompt.queued": EventRule(_ACTIVE, use=True),
    "hearing.began": EventRule(_ANY),
    "workspace.kept": EventRule(_ACTIVE, apply=_checkpointed),
}

# The life cycle of a member's session (BotMinter); ``lifecycle.EVENTS`` has the rest of its rules.
_LIFE: Mapping[str, EventRule] = {
    **dict.fromkeys(EVENTS, EventRule(_ACTIVE, apply=_lived)),
    "life.moved": EventRule(_ACTIVE, apply=_moved),
    # A process that is gone, and a lock that is free, may be noticed late.
    **dict.fromkeys(("agent.exited", "work.released"), EventRule(_ANY, apply=_lived)),
}

# What is observed from outside (agent-orchestrator) changes no session; ``observations`` folds it.
_OBSERVED: Mapping[str, EventRule] = dict.fromkeys(OBSERVED, EventRule(_ANY))

RULES: Mapping[str, EventRule] = {**_SESSION, **_LINE, **_TURNS, **_LIFE, **_OBSERVED}
"""What each event changes, and when it can happen: a table for each way of working."""

# The part of a state that an event's rule changes in place.
_FILLS: Mapping[str, str] = {
    "session.write": "api_touched",
    "session.commit": "commits",
    "tool_call": "calls",
    "tool_result": "calls",
}


def _no_events() -> InvalidInput:
    return InvalidInput("There is no event, so there is no session.", why="A session begins with session.created.")


def _begin(event: Event) -> SessionState:
    origin = ORIGINS.get(event.type)
    if origin is None or event.seq:
        raise LogDamaged(
            f"Session {event.stream!r} begins with {event.type!r} (event {event.seq}).",
            why=f"A session begins with one of {', '.join(ORIGINS)} as event 0.",
        )
    return origin(event)


def _step(state: SessionState, event: Event) -> None:
    if event.seq != state.seq + 1 or event.stream != state.id:
        raise InvalidInput(
            f"Event {event.seq} of {event.stream!r} does not follow event {state.seq} of {state.id!r}.",
            why="A fold over a gap would silently be wrong.",
            fix="Pass the events in between too: log.refresh() has them.",
        )
    rule = RULES.get(event.type)
    if rule is None and event.type not in ORIGINS:
        raise MetadataVersionUnsupported(
            f"Event {event.seq} of session {event.stream!r} is {event.type!r}, which this engine does not know.",
            why="What it changed would be missed.",
            fix="Use the engine that wrote it, or a newer one.",
        )
    if rule is None or ("active" if state.state == "active" else "ended") not in rule.when:
        raise impossible(state, event, f"the session is {state.state}")
    rule.apply(state, event)
    if event.type in CONVERSATION:
        state.said += 1
    state.seq = event.seq
    state.updated_ns = event.ts
    if rule.use:
        state.last_access_ns = event.ts


def _guessed(events: Iterable[Event], state: SessionState | None, policy: str) -> SessionState:
    """As ``fold`` that skips; ``state`` is changed. It relies on rules that raise before they change anything."""
    if policy != "skip":
        raise InvalidInput(f"{policy!r} is not a way to fold events.", fix="Use strict or skip.")
    problem: GittrixError | None = None
    for event in events:
        try:
            if state is None:
                state = _begin(event)
            elif event.seq > state.seq and event.stream == state.id:
                _step_over_gap(state, event)
        except GittrixError as wrong:
            problem = problem or wrong
    if state is None:
        raise problem or _no_events()
    return state


def _step_over_gap(state: SessionState, event: Event) -> None:
    before, state.seq = state.seq, event.seq - 1
    try:
        _step(state, event)
    except GittrixError:
        state.seq = before
        raise


def _copied(state: SessionState, events: Iterable[Event]) -> SessionState:
    """A copy to fold these events into. It shares what they do not change, since a session may have thousands of touched files."""
    twin = SessionState.__new__(SessionState)  # as copy.copy does, at a quarter of the time: this is done for every event
    twin.__dict__.update(state.__dict__)
    for name in {_FILLS[event.type] for event in events if event.type in _FILLS}:
        setattr(twin, name, getattr(state, name).copy())
    return twin
