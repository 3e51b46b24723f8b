"""One session that takes long to archive holds up no other in a sweep: it is put off and said, and then kept whole."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site, open_site, passed, shell

from pytest_gittrix import LocalEphemeral, points
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level import monotonic
from pytest_gittrix.os_level.monotonic import OutOfTime, TimeLimit
from pytest_gittrix.workspaces.walk import Limits

NOTHING = timedelta(0)


def expired(site: Site, text: str = "the work\n") -> UserSession:
    """A session with work, past its time."""
    session = site.start()
    session.write("work.txt", text)
    site.clock.advance(hours=5)
    return session


def archived_text(site: Site, session: UserSession) -> str:
    return (site.directory(session) / "archive.patch").read_text()


def test_a_session_that_takes_too_long_is_put_off_and_the_others_are_swept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile, other = expired(site), expired(site)
    real, late = monotonic.real_seconds, 0.0

    def stall(point: str) -> None:
        """The archive of the first session takes an hour."""
        nonlocal late
        late += 3600 * (point == "evict:apart" and not late)

    monkeypatch.setattr(monotonic, "real_seconds", lambda: real() + late)
    with points.listening(stall):
        assert site.engine.sweep() == [other.id]

    assert site.engine.postponed() == [hostile.id]
    assert site.engine.info(hostile.id).state == "expired"
    assert [event.data for event in site.events(hostile.id) if event.type == "eviction.postponed"] == [{"budget_ns": 30 * 10**9}]
    assert not (site.directory(hostile) / "workspace").exists()
    assert (site.directory(hostile) / "leaving" / "work.txt").read_text() == "the work\n"

    assert site.engine.sweep() == [hostile.id]
    assert "the work" in archived_text(site, hostile)
    assert site.engine.postponed() == []
    assert site.engine.sweep() == []


def test_who_takes_too_long_twice_is_kept_whole(site: Site) -> None:
    session = expired(site)
    impatient = site.another(sweep_budget=NOTHING)

    assert impatient.sweep() == []
    assert impatient.recover().postponed == [session.id]
    assert impatient.sweep() == [session.id]
    assert impatient.postponed() == []
    assert (site.directory(session) / "archive.workspace" / "work.txt").read_text() == "the work\n"
    (event,) = (event for event in site.events(session.id) if event.type == "archive.written")
    assert "for the second time" in event.data["reason"]


def test_whoever_ends_one_session_waits_for_it(site: Site) -> None:
    session, discarded = expired(site), None
    impatient = site.another(sweep_budget=NOTHING)
    assert impatient.sweep() == []

    impatient.evict(session.id)
    assert "the work" in archived_text(site, session)
    discarded = impatient.start_session("other")
    discarded.write("work.txt", "more work\n")
    discarded.discard()
    assert "more work" in archived_text(site, discarded)


def test_an_eviction_that_was_killed_is_put_off_by_a_recovery_too(site: Site) -> None:
    session = site.start()
    session.write("work.txt", "the work\n")

    def refuse(point: str) -> None:
        if point == "evict:apart":
            raise OSError("broken")

    with points.listening(refuse), pytest.raises(Exception, match="broken"):
        session.discard()
    impatient = site.another(sweep_budget=NOTHING)

    assert impatient.recover().postponed == [session.id]
    assert site.another().sweep() == [session.id]
    assert "the work" in archived_text(site, session)
    assert site.state(session.id).state == "discarded"


def test_a_session_whose_files_take_too_long_to_look_at_is_judged_last_and_by_all_of_them(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, idle, quick = site.start(), site.start(), site.start()
    site.clock.advance(hours=5)
    assert used.workspace_path is not None
    (used.workspace_path / "late.txt").write_text("just now\n")
    real, late, judged = monotonic.real_seconds, 0.0, 0

    def stall(point: str) -> None:
        """The look at the first two sessions takes an hour."""
        nonlocal late, judged
        judged += point == "sweep:past-deadline"
        late += 3600 * (point == "sweep:past-deadline" and judged <= 2)

    with monkeypatch.context() as patch, points.listening(stall):
        patch.setattr(monotonic, "real_seconds", lambda: real() + late)
        assert site.engine.sweep() == [quick.id, idle.id]

    assert judged == 5
    assert site.engine.info(used.id).state == "active"
    assert site.types(used.id)[-1] == "session.activity"
    assert site.engine.sweep() == []


@pytest.mark.parametrize("budget", [-NOTHING - timedelta(1), 30])
def test_what_is_no_time_is_refused(site: Site, budget: Any) -> None:
    with pytest.raises(InvalidInput, match="sweep_budget="):
        site.another(sweep_budget=budget)


def test_a_sweep_without_a_limit_passes_the_same_points(site: Site) -> None:
    first, second = expired(site), expired(site)
    limited = passed(lambda: site.engine.evict(first.id))

    assert limited == passed(lambda: site.another(sweep_budget=None).evict(second.id))


@pytest.mark.parametrize("kind", ["clone", "lazy", "copy", "worktree"])
def test_time_that_runs_out_at_any_step_costs_no_work(tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the first sweep is over at its first step, at its second one, and so on."""
    at, steps = 0, 1
    with open_site(tmp_path, ephemeral=LocalEphemeral(kind=kind, limits=Limits(max_file=100))) as site:
        while steps >= at:
            at += 1
            session = expired(site)
            if session.workspace_path is not None:
                shell(session, "mkdir d; echo more > d/more; head -c 200 /dev/zero > large")
                site.clock.advance(hours=5)
            steps = 0

            def check(_: TimeLimit, at: int = at) -> None:
                nonlocal steps
                steps += 1
                if steps == at:
                    raise OutOfTime

            with monkeypatch.context() as patch:
                patch.setattr(TimeLimit, "check", check)
                swept = site.engine.sweep()
            assert [*swept, *site.engine.sweep()] == [session.id]
            assert "the work" in archived_text(site, session)
            assert session.id not in site.engine.postponed()
            assert not (site.directory(session) / "leaving").exists()
    assert at > 3
