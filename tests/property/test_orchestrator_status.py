"""Sessions nobody thought of: whatever was seen, in whatever order, there is one status, and it does not go back and forth."""

from __future__ import annotations

import tempfile
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from support.orchestrator import MINUTE, NOW, Watched, at

from pytest_gittrix.orchestrator.flat_files import parse, raw_status, read, render, session_of, update, values_of
from pytest_gittrix.record.state.agent_reports import REPORTS
from pytest_gittrix.record.state.observations import (
    ACTIVITIES,
    CI_STATES,
    PR_STATES,
    REVIEW_STATES,
    RUNTIME_STATES,
    SESSION_REASONS,
    SESSION_STATES,
    Activity,
    ObservedPullRequest,
    observations_of,
)
from pytest_gittrix.views.orchestrator import notifications, record
from pytest_gittrix.views.orchestrator_status import (
    HEAD_LEGAL,
    HEAD_STATUSES,
    LEGAL,
    STATUSES,
    TERMINAL_STATUSES,
    Dialect,
    can_restore,
    ended,
    status,
)

ages = st.floats(-0.08, 20, allow_nan=False).map(lambda minutes: round(minutes, 2))
activities = st.builds(
    lambda state, age, source: Activity(state, source, None if age is None else at(-age)),
    st.sampled_from((*ACTIVITIES, "unknown")),
    st.none() | ages,
    st.sampled_from(("native", "terminal")),
) | st.just(Activity(source="native", failed=True))
prs = st.builds(
    ObservedPullRequest,
    st.sampled_from(PR_STATES),
    number=st.sampled_from((None, 1, 2)),
    ci=st.sampled_from(CI_STATES),
    review=st.sampled_from(REVIEW_STATES),
    mergeable=st.booleans(),
)
runtimes = st.sampled_from(RUNTIME_STATES)
starts = st.sampled_from([state for state in SESSION_STATES if state not in ("done", "terminated", "detecting")])
gaps = st.lists(st.sampled_from((0.1, 0.5, 1, 4.9, 5, 6)), min_size=5, max_size=25)

things: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(st.just("runtime.observed"), st.fixed_dictionaries({"state": runtimes})),
    st.tuples(st.just("activity.observed"), st.fixed_dictionaries({"state": st.sampled_from(ACTIVITIES), "source": st.just("native")})),
    st.tuples(
        st.just("pr.observed"),
        st.fixed_dictionaries(
            {"state": st.sampled_from(PR_STATES)},
            optional={
                "number": st.integers(1, 2),
                "ci": st.sampled_from(CI_STATES),
                "review": st.sampled_from(REVIEW_STATES),
                "mergeable": st.booleans(),
            },
        ),
    ),
    st.tuples(st.just("report.submitted"), st.fixed_dictionaries({"report": st.sampled_from(list(REPORTS)), "accepted": st.booleans()})),
    st.tuples(
        st.just("status.decided"),
        st.fixed_dictionaries(
            {"session": st.sampled_from(SESSION_STATES), "reason": st.sampled_from(SESSION_REASONS)},
            optional={"attempts": st.integers(1, 3), "evidence": st.text("ab", max_size=2)},
        ),
    ),
    st.tuples(st.just("session.ended"), st.fixed_dictionaries({"state": st.sampled_from(("discarded", "expired", "promoted"))})),
    st.tuples(st.just("session.restored"), st.just({})),
)


@given(starts, runtimes, activities, prs, st.none() | st.sampled_from(list(REPORTS)), gaps)
def test_the_same_evidence_never_makes_a_status_come_back(
    start: str, runtime: str, activity: Activity, pr: ObservedPullRequest, report: str | None, gaps: list[float]
) -> None:
    session = Watched()
    if start != "not_started":
        session.decided(0, start, "task_in_progress")
    if report is not None:
        session.tell(0, "report.submitted", report=report, accepted=True)
    now, shown = 0.0, []
    for gap in gaps:
        now += gap
        session.look(now, runtime, activity, pr)
        shown.append(session.observations.session.state)
    visited = [state for state, _ in groupby(shown)]

    assert len(visited) == len(set(visited))
    assert not session.decisions[-1].changed or now < 25 or session.observations.memory is not None


@given(st.lists(st.tuples(st.sampled_from((0.1, 0.5, 1, 2)), runtimes, activities), min_size=1, max_size=40))
def test_disagreement_never_lasts_longer_than_its_bounds(looks: list[tuple[float, str, Activity]]) -> None:
    session = Watched()
    session.decided(0, "working", "task_in_progress")
    now = 0.0
    for gap, runtime, activity in looks:
        now += gap
        session.look(now, runtime, activity)
        memory = session.observations.memory
        assert (memory is not None) == (session.observations.session.state == "detecting")
        if memory is not None:
            assert memory.attempts <= 3
            assert at(now) - memory.since_ns <= 5 * MINUTE


@given(st.lists(things, max_size=30), st.booleans(), st.sampled_from(("document", "head")))
def test_whatever_happens_a_status_is_followed_by_one_that_may_follow(
    happened: list[tuple[str, dict[str, Any]]], of_project: bool, dialect: Dialect
) -> None:
    legal, known = (LEGAL, STATUSES) if dialect == "document" else (HEAD_LEGAL, HEAD_STATUSES)
    session = Watched(project="app" if of_project else None)
    for minute, (type, data) in enumerate(happened, 1):
        # A restoring is an act: it happens to what is over, and can be brought back.
        if type != "session.restored" or can_restore(session.observations, dialect=dialect):
            session.tell(minute, type, **data)
    statuses = [status(observations_of(session.events[:size]), dialect=dialect) for size in range(1, len(session.events) + 1)]

    assert set(statuses) <= set(known)
    assert [(old, new) for old, new in pairwise(statuses) if new != old and new not in legal[old]] == []
    assert {one["type"] for one in notifications(session.events, dialect=dialect)} <= {
        *("session.working", "pr.created", "ci.failing", "review.pending", "review.changes_requested", "review.approved"),
        *("merge.ready", "merge.completed", "session.needs_input", "session.stuck", "session.errored", "session.killed", "pr.closed"),
    }


@given(st.lists(things.filter(lambda thing: thing[0] != "session.restored"), max_size=30), runtimes, activities, prs)
def test_no_look_undoes_an_end(
    happened: list[tuple[str, dict[str, Any]]], runtime: str, activity: Activity, pr: ObservedPullRequest
) -> None:
    session = Watched()
    for minute, (type, data) in enumerate(happened, 1):
        session.tell(minute, type, **data)
    before = session.status("head")
    session.look(len(happened) + 1, runtime, activity, pr)

    if before in TERMINAL_STATUSES:
        assert session.status("head") == before
        assert ended(session.observations)


keys = st.text(min_size=1, max_size=8).filter(
    lambda key: key == key.strip() and not key.startswith("#") and not set(key) & set("=\r\n") and key.isprintable()
)
lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=12)


@given(st.dictionaries(keys, lines))
def test_what_is_written_to_a_file_is_read_from_it(values: dict[str, str]) -> None:
    kept = {key: value.strip() for key, value in values.items() if value.strip()}

    assert parse(render(values)) == kept
    assert render(parse(render(values))) == render(values)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_file(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "app-1")
        path.write_bytes(raw)
        values = read(path)
        assert (values is None) == (not raw.decode("utf-8", "surrogateescape").strip())
        if values is not None:
            imported = session_of("app-1", values, modified_ns=NOW)
            assert imported["status"] == raw_status(values.get("status")) in STATUSES
            assert update(path, {"note": "x"}) == {**values, "note": "x"} == read(path)


@given(st.lists(things, max_size=20))
def test_the_file_of_a_session_tells_what_its_record_tells(happened: list[tuple[str, dict[str, Any]]]) -> None:
    session = Watched(issue="#1", branch="session/app-1")
    for minute, (type, data) in enumerate(happened, 1):
        if type != "session.ended":
            session.tell(minute, type, **data)
    row = record(session.events)
    # Not kept: what the agent does just now, and a pull request of which no address is known.
    row |= {"activity": None, "pr": None}

    assert session_of("app-1", parse(render(values_of(session.events))), modified_ns=0) == row
