"""One session, read as GitTrix, Gas Town and Pixir read theirs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.engine import Site

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.fold import fold
from pytest_gittrix.views import VIEWS, botminter, gastown, orchestrator, pixir, state_in, view
from pytest_gittrix.views import gittrix as gittrix_view

FILES = {"app.py": "v1\n"}

LEGAL = {
    "gittrix": gittrix_view.LEGAL,
    "gastown": gastown.LEGAL,
    "pixir": pixir.LEGAL,
    "orchestrator": orchestrator.LEGAL,
    "botminter": botminter.LEGAL,
}


@pytest.fixture
def session(site: Site) -> UserSession:
    """A polecat's."""
    return site.start(agent="gastown/polecats/Toast", rig="gastown", role="polecat", tmux_session="gt-gastown-Toast", work_unit="gt-1")


def test_gittrix_reads_the_record_that_it_documents(session: UserSession) -> None:
    assert view(session.history(), "gittrix") == session.metadata()


def test_gas_town_reads_a_life_of_an_agent(site: Site, session: UserSession) -> None:
    site.clock.advance(minutes=5)
    child = session.handoff(agent="gastown/polecats/Fig")
    parent, heir = (view(site.events(one.id), "gastown") for one in (session, child))

    assert {name: parent[name] for name in ("id", "agent", "rig", "role", "tmux_session", "started_at", "ended_at", "outcome")} == {
        "id": session.id,
        "agent": "gastown/polecats/Toast",
        "rig": "gastown",
        "role": "polecat",
        "tmux_session": "gt-gastown-Toast",
        "started_at": "2030-01-01T00:00:00Z",
        "ended_at": "2030-01-01T00:05:00Z",
        "outcome": "handoff",
    }
    assert (parent["child_id"], heir["parent_id"], parent["chain_id"], heir["chain_id"]) == (child.id, session.id, session.id, session.id)
    assert "ended_at" not in heir
    assert "outcome" not in heir


@pytest.mark.parametrize(
    ("end", "outcome"),
    [("promote", "done"), ("done", "done"), ("crash", "crash"), ("killed", "killed"), (None, "killed"), ("expire", "killed")],
)
def test_every_end_has_an_outcome_in_gas_town(site: Site, session: UserSession, end: str | None, outcome: str) -> None:
    session.write("app.py", "v2\n")
    if end == "promote":
        session.promote()
    elif end == "expire":
        site.clock.advance(days=1)
        site.engine.sweep()
    else:
        session.discard(end)

    assert state_in(site.events(session.id), "gastown") == outcome


def test_a_promotion_after_which_a_session_goes_on_is_no_end_in_any_view(site: Site, session: UserSession) -> None:
    session.write("app.py", "v2\n")
    before = {name: state_in(session.history(), name) for name in VIEWS}
    session.promote(keep=True)
    assert {name: state_in(session.history(), name) for name in VIEWS} == before
    kept = [event for event in session.history() if event.type == "promote.kept"]
    assert gastown.town_event(kept[0], site.state(session.id)) == []


def test_pixir_reads_a_conversation_numbered_from_zero(session: UserSession) -> None:
    session.record("user_message", {"text": "hello"})
    session.write("app.py", "v2\n")
    session.record("tool_call", {"call_id": "c1", "name": "grep", "args": {}})
    events = pixir.history(session.history())

    assert [(event["seq"], event["type"]) for event in events] == [(0, "user_message"), (1, "tool_call")]
    assert {event["session_id"] for event in events} == {session.id}
    assert len({event["id"] for event in events}) == 2
    assert fold(session.history()).calls == {"c1": "grep"}
    assert view(session.history(), "pixir") == {
        "id": session.id,
        "workspace": str(session.workspace_path),
        "role": "polecat",
        "seq": 2,
        "fork_root_session_id": session.id,
        "turn_running?": False,
    }


def test_pixir_knows_a_running_turn(session: UserSession) -> None:
    session.start_turn(lambda context: context.cancelled.wait(), runs="thread")

    assert state_in(session.history(), "pixir") == "turn running"
    session.interrupt()
    assert state_in(session.history(), "pixir") == "idle"


@pytest.mark.parametrize("name", VIEWS)
def test_a_state_is_followed_only_by_one_that_may_follow(site: Site, session: UserSession, name: str) -> None:
    session.record("user_message", {"text": "hello"})
    session.start_turn(lambda context: context.session.write("app.py", "v2\n")).wait(60)
    session.promote()
    events = site.events(session.id)
    states = [state_in(events[:number], name) for number in range(1, len(events) + 1)]

    assert set(states) <= LEGAL[name].keys()
    assert [(old, new) for old, new in pairwise(states) if old != new and new not in LEGAL[name][old]] == []


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_the_same_events_is_the_same(site: Site, session: UserSession, name: str) -> None:
    session.write("app.py", "v2\n")

    assert view(site.events(session.id), name) == view(session.history(), name)


def test_a_view_that_there_is_not_is_named(session: UserSession) -> None:
    with pytest.raises(InvalidInput, match="gittrix, gastown, pixir"):
        view(session.history(), "moonbase")
