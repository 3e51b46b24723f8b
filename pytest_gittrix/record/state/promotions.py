"""What promotions and rebases change in a session's state: each function applies one event to it.

A function raises LogDamaged, before it changes anything, for an event that cannot have happened then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_gittrix.record.eventlog.events import Event, path_of
from pytest_gittrix.record.state.values import Intent, Kept, Result, SessionState, impossible


def intent(state: SessionState, event: Event) -> None:
    """A promotion is about to move a branch."""
    if state.intent is not None:
        raise impossible(state, event, f"the promotion of {state.intent.commit} is still open")
    known = {name: event.data[name] for name in ("commit", "parent", "ref", "tree", "paths_digest", "count")}
    state.intent = Intent(**known, data=event.data, seq=event.seq, ts=event.ts)


def close_intent(state: SessionState, event: Event) -> None:
    """The open promotion is over."""
    if state.intent is not None and state.intent.commit != event.data["commit"]:
        raise impossible(state, event, f"the open promotion is of {state.intent.commit}")
    state.intent = None


def done(state: SessionState, event: Event) -> None:
    """The session is promoted."""
    data = event.data
    close_intent(state, event)
    state.state, state.ended_ns = "promoted", event.ts
    state.strategy = data["strategy"]
    state.result = Result(data["commit"], data["branch"], data.get("pr_url"), data.get("patch"))


def kept(state: SessionState, event: Event) -> None:
    """The session goes on from the commit of its promotion."""
    data, last = event.data, state.kept
    if data["before"] != state.baseline:
        raise impossible(state, event, f"its baseline is {state.baseline}, not {data['before']}")
    close_intent(state, event)
    is_same = last is not None and last.branch == data["branch"] and data["strategy"] == "commit"
    state.kept = Kept(
        data["commit"],
        data["branch"],
        data.get("pr_url", last.pr_url if last is not None and is_same else None),
        data.get("merged", []),
        data.get("promoted"),
        state.durable_branch if last is None else last.origin,
        last.strategy if last is not None and is_same else data["strategy"],
        [] if last is None else last.rebased,
    )
    _go_on_from(state, data)
    state.durable_branch = data["branch"]
    state.durable_ref = f"{state.durable_ref.partition('#')[0]}#{state.durable_branch}"
    if data["strategy"] != "commit":
        state.strategy = "commit"  # what comes next goes onto the same branch


def rebased(state: SessionState, event: Event) -> None:
    """The session goes on from durable's head."""
    data = event.data
    if data["before"] != state.baseline:
        raise impossible(state, event, f"its baseline is {state.baseline}, not {data['before']}")
    if state.intent is not None:
        raise impossible(state, event, f"the promotion of {state.intent.commit} is still open")
    commit, branch = data["commit"], state.durable_branch or ""
    last = state.kept or Kept(commit, branch, origin=branch)
    is_known = commit in (state.baseline, *state.earlier_baselines, *last.rebased)
    rebased = [*last.rebased] if is_known else [*last.rebased, commit]
    state.kept = last._replace(merged=data.get("merged", []), promoted=[], rebased=rebased)
    _go_on_from(state, data)


def _go_on_from(state: SessionState, data: Mapping[str, Any]) -> None:
    """Give a session that goes on its next baseline."""
    if data["commit"] != state.baseline:
        state.earlier_baselines = (*state.earlier_baselines, state.baseline)
    state.baseline = data["commit"]
    in_durable = {path_of(one) for one in data.get("in_durable", ())}
    state.api_deleted = state.api_deleted - in_durable
    state.initial_files = {path: name for path, name in state.initial_files.items() if path not in in_durable}
    state.changed_since_checkpoint = True
