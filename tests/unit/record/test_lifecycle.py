"""The life of an agent's session: which state may follow which, and what is known of it after each event."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from support.life import OPENED, WAYS, Lived, at

from pytest_gittrix.errors import InvalidInput, LogDamaged
from pytest_gittrix.record.eventlog.events import Event, path_fields
from pytest_gittrix.record.eventlog.vocabulary import LIFE
from pytest_gittrix.record.state.fold import Policy, deadline_ns, fold
from pytest_gittrix.record.state.lifecycle import LEGAL, STATES, FinalizationResult, LaunchedProcess, Pushed, require_legal
from pytest_gittrix.record.state.metadata import metadata_of, state_from_metadata
from pytest_gittrix.record.state.records import load_metadata

# The document's states, and the pairs that it and its code allow, written down a second time.
DOCUMENTED = ("creating", "active", "finalizing", "completed", "failed", "killed", "retained")
PAIRS = {
    *(("creating", "active"), ("active", "finalizing"), ("active", "completed"), ("active", "failed"), ("active", "killed")),
    *(("finalizing", "completed"), ("finalizing", "failed"), ("finalizing", "killed")),
    *(("completed", "retained"), ("failed", "retained"), ("killed", "retained"), ("retained", "finalizing")),
}


def refused(lived: Lived) -> str:
    """What the fold says of a history that cannot be, of which all but the last event can."""
    fold(lived.events[:-1])
    with pytest.raises(LogDamaged) as caught:
        fold(lived.events)
    return caught.value.fact


# Which state may follow which --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", DOCUMENTED)
@pytest.mark.parametrize("old", DOCUMENTED)
def test_of_all_pairs_exactly_the_documented_ones_can_happen(old: str, new: str) -> None:
    lived = Lived(*WAYS[old])
    assert lived.life.state == old

    lived.move(10, new)
    if (old, new) in PAIRS:
        require_legal(old, new)
        assert (lived.life.state, lived.life.since_ns) == (new, at(10))
    else:
        with pytest.raises(InvalidInput, match=f"Cannot transition from {old.capitalize()} to {new.capitalize()}"):
            require_legal(old, new)
        assert f"it cannot go from {old} to {new}" in refused(lived)


@pytest.mark.parametrize("state", STATES)
def test_only_what_is_retained_can_be_removed_and_nothing_comes_after_that(state: str) -> None:
    assert [old for old in STATES if "removed" in LEGAL[old]] == ["retained"]
    with pytest.raises(InvalidInput, match="Cannot transition from Removed"):
        require_legal("removed", state)
    lived = Lived(*WAYS["removed"]).move(10, state)
    assert "the session is expired" in refused(lived)


def test_the_table_has_the_documented_pairs_and_the_removal() -> None:
    assert {(old, new) for old, allowed in LEGAL.items() for new in allowed} == PAIRS | {("retained", "removed")}


@pytest.mark.parametrize(("old", "new"), [("active", "dreaming"), ("dreaming", "active"), ("", "")])
def test_a_state_that_there_is_not_is_refused_like_any_other(old: str, new: str) -> None:
    with pytest.raises(InvalidInput, match="Cannot transition from"):
        require_legal(old, new)


def test_a_refusal_says_where_else_a_session_can_go() -> None:
    with pytest.raises(InvalidInput) as caught:
        require_legal("retained", "active")
    error = caught.value
    assert error.fact == "Cannot transition from Retained to Active."
    assert error.fix == "From Retained it can go on to: Finalizing, Removed."
    assert error.why
    assert error.opt_out


def test_every_ending_may_come_of_a_run_that_was_finalized_again() -> None:
    for ending in ("completed", "failed", "killed"):
        lived = Lived("active", "failed", "retained", "finalizing", ending, "retained")
        assert (lived.life.state, lived.life.ended, lived.life.retained_ns) == ("retained", ending, at(6))


# What else cannot be -----------------------------------------------------------------------------------------------------------


def test_a_session_without_a_life_cannot_be_moved_or_finalized_but_can_have_processes_and_locks() -> None:
    created = {
        **{name: OPENED[name] for name in ("task", "workspace", "policy")},
        **dict.fromkeys(("durable_ref", "durable_path", "durable_branch", "baseline", "ephemeral_ref", "workspace_kind"), "r"),
        "git_backed": True,
        "format": "sha1",
    }
    born = Event(0, at(0), "s", "session.created", "human", created)
    assert fold([born]).life is None
    for type, data in LIFE_SAMPLES.items():
        happened = Event(1, at(1), "s", type, "system", data)
        if type.startswith(("life.", "finalize.")):
            with pytest.raises(LogDamaged, match="the session has no life cycle"):
                fold([born, happened])
        else:
            assert fold([born, happened]).seq == 1


LIFE_SAMPLES: dict[str, dict[str, Any]] = {
    "life.moved": {"to": "active"},
    "agent.launched": {"pid": 7},
    "agent.exited": {},
    "stop.requested": {},
    "finalize.started": {"attempt": 1},
    "finalize.repository": {"name": "app", "action": "pushed"},
    "finalize.finished": {"status": "Completed"},
    "work.locked": {"item": "#42"},
    "work.released": {"item": "#42"},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("type", [type for type in LIFE_SAMPLES if type != "life.moved"])
def test_what_can_happen_to_a_session_depends_on_its_state(type: str, state: str) -> None:
    lived = Lived(*WAYS[state])
    before = copy.deepcopy(lived.state)
    lived.tell(20, type, **LIFE_SAMPLES[type])
    possible = {
        "agent.launched": {"active", "finalizing"},
        "finalize.started": {"finalizing"},
        "finalize.repository": {"finalizing"},
        "finalize.finished": {"finalizing"},
        "agent.exited": {*STATES},
        "work.released": {*STATES},
    }.get(type, {*STATES} - {"removed"})
    if state in possible:
        assert (lived.life.state, lived.state.seq) == (state, before.seq + 1)
    else:
        refused(lived)
    assert fold(lived.events[:-1]) == before


def test_every_event_of_a_life_is_tried_here() -> None:
    assert {*LIFE_SAMPLES, "session.opened"} == LIFE.keys()


@pytest.mark.parametrize(
    ("type", "data", "message"),
    [
        ("life.moved", {"to": "completed", "result": "Perfect"}, "'Perfect' is no result (Completed, CompletedDegraded, Failed, Skipped)"),
        ("finalize.repository", {"name": "app", "action": "lost"}, "'lost' is no action"),
        ("finalize.finished", {"status": "Perfect"}, "'Perfect' is no status"),
    ],
)
def test_a_word_that_there_is_not_is_refused(type: str, data: dict[str, Any], message: str) -> None:
    assert message in refused(Lived("active", "finalizing").tell(3, type, **data))


def test_a_kind_of_session_that_there_is_not_cannot_be_opened() -> None:
    with pytest.raises(LogDamaged, match="'a1b2c3d4' was opened as 'daemon', none of loop, interactive, brain"):
        fold(Lived(kind="daemon").events)


def test_a_start_can_be_undone_and_later_only_a_removal_ends_a_session() -> None:
    undone = Lived().tell(1, "session.ended", state="discarded")
    assert (undone.state.ended, undone.life.state) == (True, "creating")
    assert "the session is discarded" in refused(undone.move(2, "active"))
    for state in STATES[1:-1]:
        lived = Lived(*WAYS[state]).tell(10, "session.ended", state="discarded")
        assert f"its life ends when it is removed, and it is {state}" in refused(lived)


# What is known -----------------------------------------------------------------------------------------------------------------


def test_an_opened_session_is_what_its_event_says() -> None:
    lived = Lived(team="blue", work_item="#42", identity={"role": "engineer", "rig": None})
    state, life = lived.state, lived.life
    assert (life.state, life.kind, life.member, life.retained_ns) == ("creating", "loop", "engineer-alice", None)
    assert (state.durable_ref, state.durable_path, state.durable_branch) == ("https://forge/app.git", None, "main")
    assert (state.baseline, state.workspace, state.workspace_kind, state.git_backed) == ("b" * 40, "/w/a1b2c3d4", "repositories", True)
    assert state.identity == {"agent": "engineer-alice", "work_unit": "#42", "role": "engineer"}
    assert not state.workspace_present


def test_a_session_without_repositories_has_no_durable() -> None:
    state = Lived(repositories=[]).state
    assert (state.durable_ref, state.durable_branch, state.baseline) == ("none:", None, "")


def test_a_path_of_a_workspace_that_is_not_utf8_comes_back() -> None:
    data = {name: value for name, value in OPENED.items() if name != "workspace"} | path_fields("/w/\udce9", "workspace")
    event = Event(0, at(0), "s", "session.opened", "system", data)
    state = fold([event])
    assert state.life is not None
    assert (state.life.workspace, state.workspace) == ("/w/\udce9", "/w/\udce9")


def test_its_record_is_one_that_can_be_read_again() -> None:
    record = metadata_of(Lived("active").state)
    assert load_metadata(json.dumps(record).encode(), expected_id="a1b2c3d4").workspace_kind == "repositories"


def test_a_session_is_active_for_other_systems_until_it_is_removed() -> None:
    for way in WAYS.values():
        state = Lived(*way).state
        assert state.ended == ("removed" in way)
    lived = Lived("active", "killed", "retained", "removed")
    removed = lived.state
    assert (removed.state, removed.ended_ns, removed.ending, lived.life.retained_ns) == ("expired", at(4), "killed", None)


@pytest.mark.parametrize(("ended", "outcome"), [("completed", "done"), ("failed", "crash"), ("killed", "killed")])
def test_how_the_agent_did_follows_from_how_its_run_ended(ended: str, outcome: str) -> None:
    assert Lived("active", ended, "retained", "removed").state.ending == outcome


def test_no_time_to_live_ends_a_session_with_a_life() -> None:
    assert deadline_ns(Lived(policy=Policy(ttl_idle_ns=1, ttl_absolute_ns=1).to_data()).state) is None
    # Nor does it for who has only its record.
    assert deadline_ns(state_from_metadata(metadata_of(Lived("active").state))) is None


def test_retention_counts_from_the_moment_it_is_retained_each_time() -> None:
    lived = Lived("active", "killed", "retained")
    assert lived.life.retained_ns == at(3)
    lived.move(4, "finalizing")
    assert lived.life.retained_ns is None
    lived.move(5, "completed").move(6, "retained")
    assert (lived.life.retained_ns, lived.life.ended_ns) == (at(6), at(5))


def test_the_agent_and_what_finalizes_after_it_are_two_processes() -> None:
    lived = Lived("active").tell(1, "agent.launched", pid=7, start_time=70)
    assert lived.life.agent == LaunchedProcess(7, 70, at(1))
    lived.move(2, "finalizing").tell(3, "agent.exited", signal=15)
    assert lived.life.agent == LaunchedProcess(7, 70, at(1), at(3), signal=15)

    lived.tell(4, "agent.launched", pid=8).tell(5, "agent.exited", code=0, reason="done")
    assert lived.life.finalizer == LaunchedProcess(8, None, at(4), at(5), code=0, reason="done")
    assert lived.life.agent == LaunchedProcess(7, 70, at(1), at(3), signal=15)
    assert lived.tell(6, "agent.exited", code=1).life.finalizer == LaunchedProcess(8, None, at(4), at(5), code=0, reason="done")


def test_an_exit_that_was_missed_is_not_taken_for_that_of_what_came_later() -> None:
    lived = Lived("active").tell(1, "agent.launched", pid=7).move(2, "finalizing").tell(3, "agent.launched", pid=8)
    life = lived.tell(4, "agent.exited", code=0).life
    assert life.agent is not None
    assert life.finalizer is not None
    assert (life.agent.exited_ns, life.finalizer.exited_ns) == (None, at(4))
    assert Lived("active").tell(2, "agent.exited").life.agent is None


def test_a_stop_is_known_since_the_first_time_and_forced_since_somebody_forced_it() -> None:
    lived = Lived("active").tell(2, "stop.requested")
    assert (lived.life.stop_ns, lived.life.forced) == (at(2), False)
    lived.tell(3, "stop.requested", force=True).tell(4, "stop.requested", force=False)
    assert (lived.life.stop_ns, lived.life.forced) == (at(2), True)


def test_work_items_are_held_until_they_are_released_or_the_session_is_gone() -> None:
    lived = Lived("active").tell(1, "work.locked", item="#1").tell(1, "work.locked", item="#2").tell(1, "work.locked", item="#1")
    assert lived.life.locks == ("#1", "#2")
    assert lived.tell(2, "work.released", item="#1").tell(2, "work.released", item="#9").life.locks == ("#2",)
    assert lived.move(3, "killed").move(4, "retained").move(5, "removed").life.locks == ()


# Finalization ------------------------------------------------------------------------------------------------------------------


def finalizing() -> Lived:
    """A session in its first attempt to save its work."""
    return Lived("active", "finalizing").tell(3, "finalize.started", attempt=1)


def test_what_an_attempt_did_adds_up_to_its_result() -> None:
    assert Lived("active", "finalizing").life.attempts == 0
    lived = finalizing()
    assert lived.life.attempts == 1
    for action, name, branch in [
        *(("committed", "app", "fix"), ("pushed", "app", "fix"), ("pushed", "team", "fix"), ("skipped", "docs", None)),
        *(("recovered", "lib", "recovery/a1b2c3d4/main"), ("pushed", "app", "fix"), ("pushed", "odd", None)),
    ]:
        lived.tell(4, "finalize.repository", name=name, action=action, **({} if branch is None else {"branch": branch}))
    assert lived.life.result is not None
    assert lived.life.result.exit_status is None
    lived.tell(5, "finalize.finished", status="CompletedDegraded", issues=["https://forge/issues/1"])
    assert lived.life.result == FinalizationResult(
        "CompletedDegraded",
        (Pushed("app", "fix"),),
        (Pushed("app", "fix"), Pushed("team", "fix")),
        (Pushed("lib", "recovery/a1b2c3d4/main"),),
        ("https://forge/issues/1",),
    )
    assert lived.life.degraded
    assert not lived.life.unsaved
    assert not finalizing().tell(5, "finalize.finished", status="Completed").life.degraded


def test_a_second_attempt_takes_back_nothing_that_the_first_one_saved() -> None:
    lived = finalizing().tell(4, "finalize.repository", name="app", action="pushed", branch="fix")
    lived.tell(5, "finalize.finished", status="Failed", reason="no network", issues=["u"]).move(6, "failed").move(7, "retained")
    assert lived.life.unsaved
    lived.move(8, "finalizing")
    assert lived.life.result == FinalizationResult(None, (), (Pushed("app", "fix"),), (), ("u",))
    lived.tell(9, "finalize.started", attempt=2).tell(10, "finalize.finished", status="Completed", issues=["u", "v"]).move(11, "completed")
    assert lived.life.result == FinalizationResult("Completed", (), (Pushed("app", "fix"),), (), ("u", "v"))
    assert (lived.life.attempts, lived.life.unsaved) == (2, False)


def test_an_ending_without_a_finalization_can_say_what_it_came_to() -> None:
    lived = Lived("active").move(2, "completed", result="Skipped")
    assert lived.life.result == FinalizationResult("Skipped")
    assert Lived("active", "completed").life.result is None


@pytest.mark.parametrize("action", ["left", "failed"])
def test_work_that_an_attempt_leaves_is_unsaved_until_another_one_saves_it(action: str) -> None:
    lived = finalizing().tell(4, "finalize.repository", name="app", action=action, files=["a"])
    lived.tell(4, "finalize.repository", name="app", action=action)
    assert (lived.life.left, lived.life.unsaved) == (("app",), True)
    lived.tell(5, "finalize.finished", status="Completed").move(6, "completed").move(7, "retained")
    assert lived.life.unsaved

    lived.move(8, "finalizing").tell(8, "finalize.started", attempt=2)
    assert (lived.life.left, lived.life.unsaved) == ((), True)
    assert lived.tell(9, "finalize.finished", status="Skipped").life.unsaved is False


def test_of_an_agent_that_failed_nothing_is_unsaved_once_an_attempt_has_saved_it() -> None:
    lived = finalizing().tell(4, "finalize.finished", status="Completed").move(5, "failed")
    assert (lived.life.ended, lived.life.unsaved) == ("failed", False)


def test_work_stays_unsaved_if_what_would_save_it_is_killed() -> None:
    lived = Lived("active", "failed", "retained", "finalizing").tell(5, "finalize.started", attempt=1)
    assert lived.move(6, "killed").move(7, "retained").life.unsaved


@pytest.mark.parametrize(
    ("way", "result", "unsaved"),
    [
        (("active", "failed"), None, True),
        (("active", "killed"), None, False),
        (("active", "completed"), None, False),
        (("active", "completed"), "Failed", True),
        (("active", "failed"), "Skipped", False),
        (("active", "finalizing", "failed"), None, True),
        (("active", "finalizing", "failed"), "Skipped", True),
    ],
)
def test_what_failed_may_hold_work_that_is_nowhere_else(way: tuple[str, ...], result: str | None, unsaved: bool) -> None:
    result_field = {} if result is None else {"result": result}
    assert Lived(*way[:-1]).move(5, way[-1], **result_field).life.unsaved is unsaved


# Piece by piece ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_life_folded_in_two_pieces_is_the_same(cut: int) -> None:
    lived = finalizing().tell(4, "agent.launched", pid=8).tell(4, "work.locked", item="#1").tell(4, "agent.exited", code=0)
    lived.tell(5, "finalize.repository", name="app", action="left").tell(5, "finalize.finished", status="Completed")
    lived.move(6, "completed").move(7, "retained").move(8, "removed")
    events = lived.events
    assert len(events) == 12
    assert fold(events[cut:], fold(events[:cut])) == fold(events)
