"""Sessions in a state that a test asks for, and stories of sessions that are seen from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from pytest_gittrix.errors import GittrixError, InvalidInput, LogDamaged, SessionNotRestorable
from pytest_gittrix.members.members import Members
from pytest_gittrix.orchestrator.config import CommandAgent, Project
from pytest_gittrix.orchestrator.orchestrator import Orchestrator
from pytest_gittrix.record.state.lifecycle import STATES, TERMINAL
from pytest_gittrix.record.state.observations import ACTIVITIES, RUNTIME_STATES, SESSION_STATES
from pytest_gittrix.record.state.retention import RetentionPolicy, expired
from pytest_gittrix.testing.scenarios.log_check import log_problems
from pytest_gittrix.testing.scenarios.matrices import PULL_REQUESTS, life_pairs, status_axes, status_ends
from pytest_gittrix.testing.scenarios.session_in import GITTRIX_STATES, SessionsIn
from pytest_gittrix.testing.scenarios.timeline import Timeline
from pytest_gittrix.testing.world import World
from pytest_gittrix.views import orchestrator
from pytest_gittrix.views.orchestrator_status import STATUSES

Run = Callable[..., pytest.RunResult]
HOUR = 3_600_000_000_000


@pytest.fixture
def world() -> Iterator[World]:
    with World.open() as world:
        yield world


# States ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_every_state_of_a_life_is_reached_at_the_age_that_was_asked_for(world: World, state: str) -> None:
    made = world.session_in(state, age="25h", member="bob", kind="brain")

    life = made.life
    assert life is not None
    assert (made.state, life.member, life.kind) == (state, "bob", "brain")
    assert world.clock.now_ns() - life.since_ns == 25 * HOUR
    assert made.path.is_dir() is (state != "removed")
    assert log_problems(made.log.store.log(made.id)) == []
    assert world.gittrix.view(made.id, "botminter")["current_state"] == state.capitalize()


@pytest.mark.parametrize("outcome", sorted(TERMINAL))
def test_what_is_retained_ended_as_was_asked_for(world: World, outcome: str) -> None:
    made = world.session_in("retained", outcome=outcome, age="25h")

    life = made.life
    assert life is not None
    assert (life.ended, life.retained_ns) == (outcome, world.clock.now_ns() - 25 * HOUR)
    assert life.unsaved is (outcome == "failed")
    assert expired([life], RetentionPolicy(), world.clock.now_ns()) == ([] if outcome == "failed" else [made.id])


def test_the_workspace_holds_a_real_repository_with_what_the_agent_left(world: World) -> None:
    made = world.session_in("killed", files={"deep/notes.txt": "mine\n"})
    root = made.path / "projects" / "app"

    assert (root / "deep" / "notes.txt").read_text() == "mine\n"
    assert (root / "app.py").read_bytes() == world.durable.read("app.py")
    assert (root / ".git" / "HEAD").read_text() == "ref: refs/heads/work\n"


def test_what_completed_is_where_its_record_says(world: World) -> None:
    made = world.session_in("completed", files={"notes.txt": "mine\n"})

    life = made.life
    assert life is not None
    assert life.result is not None
    assert [(one.repository, one.branch) for one in life.result.pushed_branches] == [("app", "work")]
    assert world.durable.git("show", "work:notes.txt") == "mine"


def test_a_session_of_every_state_is_in_the_same_list(world: World) -> None:
    made = {world.session_in(state, of=system).id: state for system, state in _every_state()}
    made |= {world.session_in(status=status).id: status for status in STATUSES}

    assert {record.id for record in world.gittrix.list_sessions()} == set(made)
    assert world.gittrix.problems() == []
    for id_ in made:
        assert {name: world.gittrix.view(id_, name) for name in ("gittrix", "gastown", "botminter", "orchestrator")}


def _every_state() -> list[tuple[str, str]]:
    return [*(("botminter", state) for state in STATES), *(("gittrix", state) for state in GITTRIX_STATES)]


def test_what_was_made_is_managed_as_what_was_started(world: World) -> None:
    old = world.session_in("retained", outcome="completed", age="25h")
    failed = world.session_in("retained", outcome="failed", age="25h")
    killed = world.session_in("retained", outcome="killed", age="25h", files={"mine.txt": "mine\n"})
    members = Members(world.gittrix)

    assert list(members.scan().removed) == [old.id]
    assert members.finalize(failed.id).unsaved is False
    assert world.durable.git("show", "work:unsaved.txt") == "This is nowhere else."
    assert [life.state for life in (old.life, failed.life, killed.life) if life is not None] == ["removed", "retained", "retained"]
    assert not old.path.exists()


# GitTrix -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", GITTRIX_STATES)
def test_every_state_of_gittrix_is_really_come_to(world: World, state: str) -> None:
    made = world.session_in(state, of="gittrix", age="10m", agent="rig/toast")

    assert made.state == state
    assert made.life is None
    assert made.path.is_dir() is (state == "active")
    assert world.clock.now_ns() - made.events[-1].ts == HOUR // 6
    assert [record.id for record in world.gittrix.query(agent="rig/toast")] == [made.id]
    assert ("promoted.txt" in world.durable.tree()) is (state == "promoted")


def test_an_active_session_is_as_idle_as_it_is_old(world: World) -> None:
    old, young = (world.session_in("active", of="gittrix", age=age).id for age in ("5h", "3h"))

    assert world.gittrix.sweep() == [old]
    assert world.gittrix.get_session(young).id == young


def test_making_one_disturbs_no_other(world: World) -> None:
    session = world.start()
    session.write("app.py", "agent\n")
    before = session.history()

    for system, state in _every_state():
        world.session_in(state, of=system, age="30d")

    assert session.history() == before
    assert session.touched_files() == ["app.py"]


# agent-orchestrator ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_is_there_at_the_age_that_was_asked_for(world: World, status: str) -> None:
    made = world.session_in(status=status, age="10m", project="web", issue="7")
    record = orchestrator.record(made.events)

    assert (made.status, record["status"], record["projectId"], record["issueId"]) == (status, status, "web", "7")
    assert world.clock.now_ns() - made.events[-1].ts == HOUR // 6
    assert made.path.is_dir()
    assert log_problems(made.log.store.log(made.id)) == []


def test_what_was_made_is_led_as_what_was_spawned(world: World) -> None:
    made = {status: world.session_in(status=status).id for status in ("ci_failed", "killed", "merged")}
    agent = CommandAgent("agent", ("sh", "-c", "exit 0"))
    orchestrator = Orchestrator(world.gittrix, [Project("app", world.durable.path, agents=(agent,))])

    assert {session.id: session.status for session in orchestrator.list()} == {id_: status for status, id_ in made.items()}
    with pytest.raises(SessionNotRestorable):
        orchestrator.restore(made["merged"])
    if sys.platform.startswith("linux"):
        assert orchestrator.restore(made["killed"]).status == "working"
        orchestrator.kill(made["killed"])


def test_ids_are_numbered_by_project(world: World) -> None:
    made = [world.session_in(status="working", project=project).id for project in ("web", "api", "web")]

    assert made == ["web-1", "api-1", "web-2"]


def test_what_was_asked_for_goes_on(world: World) -> None:
    made = world.session_in(status="ci_failed", files={"app.py": "agent\n"})
    session = world.gittrix.get_session(made.id)
    session.promote()

    assert world.durable.read("app.py") == b"agent\n"


# What is refused -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"state": "retired"}, "creating, active, finalizing.*promoted"),
        ({"state": "retained", "of": "gittrix"}, "active, promoted, discarded, expired"),
        ({"state": "retained", "of": "pixir"}, "botminter, gittrix"),
        ({"status": "asleep"}, "spawning, working, pr_open"),
        ({"state": "retained", "outcome": "handoff"}, "completed, failed, killed"),
        ({"state": "active", "outcome": "failed"}, "no end yet"),
        ({"state": "failed", "outcome": "killed"}, "that end"),
        ({"state": "promoted", "outcome": "completed"}, "ends as its state says"),
        ({"state": "active", "kind": "batch"}, "loop, interactive, brain"),
        ({"state": "active", "rig": "r"}, "a life knows a member"),
        ({"state": "active", "age": "-1h"}, "not a duration"),
        ({"state": "active", "age": timedelta(hours=-1)}, "not negative"),
        ({"state": "active", "status": "working"}, "Give a state, or status="),
        ({}, "Give a state, or status="),
    ],
)
def test_what_there_is_not_is_refused_and_nothing_is_made(world: World, arguments: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=f"(?s){said}"):
        world.session_in(**arguments)

    assert world.gittrix.store.ids() == []


def test_what_cannot_happen_is_refused_unless_it_is_asked_for(world: World) -> None:
    back = [("life.moved", {"to": "creating"})]
    with pytest.raises(LogDamaged, match="from retained to creating"):
        world.session_in("retained", events=back)

    made = world.session_in("retained", events=back, legal=False)

    assert made.events[-1].ts == world.clock.now_ns()
    assert log_problems(made.log.store.log(made.id)) != []
    with pytest.raises(GittrixError):
        _ = made.state


def test_what_can_happen_besides_happens_now(world: World) -> None:
    made = world.session_in("active", age="2h", events=[("stop.requested", {}), ("life.moved", {"to": "finalizing"})])

    assert made.state == "finalizing"
    assert made.events[-1].ts == world.clock.now_ns()


def test_a_session_that_cannot_fail_is_not_said_to(world: World) -> None:
    with pytest.raises(InvalidInput, match="was to end as failed"):
        SessionsIn(world.gittrix, world.clock)("failed", files={})


# Stories -----------------------------------------------------------------------------------------------------------------------


def test_an_agent_that_falls_silent_is_stuck_after_ten_minutes(world: World) -> None:
    began = world.clock.now()
    played = world.timeline().at("0", runtime="alive", activity="active").at("6m", activity="idle").at("10m").play()

    assert played.statuses == ["working", "stuck"]
    assert played.reasons == [("working", "task_in_progress"), ("stuck", "probe_failure")]
    assert played.told == ["session.working", "session.stuck"]
    assert (played.status_at("9m59s"), played.status_at(timedelta(minutes=10))) == ("working", "stuck")
    assert world.clock.now() - began == timedelta(minutes=10)
    assert [record.id for record in world.gittrix.list_sessions()] == ["app-1"]
    played.no_flapping()


def test_a_pull_request_goes_from_red_to_merged() -> None:
    story = Timeline(every=None).at("0", runtime="alive", activity="active").at("5m", pr="open", ci="failing", activity="active")
    story.at("9m", ci="passing", review="pending").at("20m", review="approved", mergeable=True).at("1h", pr="merged")

    assert story.play().statuses == ["working", "ci_failed", "review_pending", "mergeable", "merged"]


def test_a_probe_that_fails_is_tried_three_times_and_then_the_session_is_stuck() -> None:
    story = Timeline(dialect="head").at("0", runtime="alive", activity="active").at("1m", runtime="probe_failed").at("5m")
    played = story.play()

    assert played.statuses == ["working", "detecting", "stuck"]
    assert [look.attempts for look in played.looks if look.status == "detecting"] == [1, 2, 3]


def test_flapping_is_found_and_shown() -> None:
    story = Timeline(every=None).at("0", runtime="alive", activity="active").at("1m", activity="waiting_input").at("2m", activity="active")
    played = story.play()

    assert played.statuses == ["working", "needs_input", "working"]
    with pytest.raises(AssertionError, match=r"(?s)needs_input for 1m only.*the agent asks"):
        played.no_flapping()
    played.no_flapping(within="1m")


def test_an_agent_reports_and_is_believed_for_five_minutes() -> None:
    story = Timeline(every=None).at("0", runtime="alive", activity="active").at("1m", report="needs_input").at("8m", activity="active")
    refused = Timeline(every=None).at("0", runtime="alive", activity="active").at("1m", report="merged").play()

    assert story.play().statuses == ["working", "needs_input", "working"]
    assert refused.statuses == ["working"]
    assert [event.data["accepted"] for event in refused.events if event.type == "report.submitted"] == [False]


@pytest.mark.parametrize("when", ["soon", "-1m", timedelta(seconds=-1)])
def test_a_story_is_told_at_times_there_are(when: str | timedelta) -> None:
    with pytest.raises(InvalidInput):
        Timeline().at(when, runtime="alive")


def test_a_story_is_told_in_order_of_what_can_be_seen() -> None:
    with pytest.raises(InvalidInput, match="before"):
        Timeline().at("2m").at("1m")
    with pytest.raises(InvalidInput, match="alive, exited"):
        Timeline().at("0", runtime="asleep")
    with pytest.raises(InvalidInput, match="document, head"):
        Timeline(dialect="latest")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="empty"):
        Timeline().play()
    with pytest.raises(InvalidInput, match="interval"):
        Timeline(every="0s")
    with pytest.raises(InvalidInput, match="not observed"):
        Timeline().at("5m", runtime="alive").play().status_at("1m")


# Matrices ------------------------------------------------------------------------------------------------------------------------


def test_there_are_49_pairs_of_documented_states() -> None:
    pairs = life_pairs()
    legal = {str(pair) for pair in life_pairs(legal=True)}

    assert len({str(pair) for pair in pairs}) == 49
    assert len(legal) + len(life_pairs(legal=False)) == 49
    assert {"active-finalizing", "killed-retained", "retained-finalizing"} <= legal
    assert not {"creating-failed", "retained-active", "completed-failed"} & legal


def test_there_is_every_combination_of_axes_once() -> None:
    combinations = status_axes()
    seen = {(one.session, one.pr, one.runtime, one.activity) for one in combinations}

    assert len({str(one) for one in combinations}) == len(combinations)
    assert len(seen) == len(SESSION_STATES) * len(PULL_REQUESTS) * len(RUNTIME_STATES) * (len(ACTIVITIES) + 1)
    assert all(one.observations.pr.reason == one.pr for one in combinations if one.pr not in ("none", "merged", "closed"))


def test_every_status_is_asked_about_its_end_with_every_activity() -> None:
    assert len(set(status_ends())) == len(STATUSES) * (len(ACTIVITIES) + 1)


# As fixtures ---------------------------------------------------------------------------------------------------------------------


def test_the_fixtures_show_the_tests_own_world(run: Run) -> None:
    source = """
        def test_it(gittrix_session_in, gittrix_timeline, gittrix, gittrix_clock):
            made = gittrix_session_in("retained", outcome="failed", age="25h")
            assert [found.id for found in gittrix.list_sessions()] == [made.id]
            began = gittrix_clock.now()
            story = gittrix_timeline(every="1m").at("0", runtime="alive", activity="active").at("3m", activity="waiting_input")
            assert story.play().statuses == ["working", "needs_input"]
            assert (gittrix_clock.now() - began).total_seconds() == 180
            assert len(gittrix.list_sessions()) == 2
    """
    run(source).assert_outcomes(passed=1)
