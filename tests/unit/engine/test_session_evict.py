"""When a session ends by itself, and what its end takes away: TTL, sweep and eviction (rule 8)."""

from __future__ import annotations

import os
import shutil
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.engine import KINDS, Site, at_point, in_child, open_site, shell

from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.durations import ns_of
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import EvictionRace, InvalidInput, SessionExpired, SessionNotFound
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.records import EvictionPolicy

FOUR_HOURS = timedelta(hours=4)
MICROSECOND = timedelta(microseconds=1)


class TestTheBoundary:
    """Expired if and only if strictly past the deadline."""

    def test_itself_is_inside(self, site: Site) -> None:
        session = site.start()
        site.clock.advance(FOUR_HOURS)
        assert site.engine.sweep() == []
        assert session.read("app.py") == b"print('v1')\n"

    def test_is_crossed_a_microsecond_later(self, site: Site) -> None:
        session = site.start()
        site.clock.advance(FOUR_HOURS + MICROSECOND)
        assert site.engine.sweep() == [session.id]

    def test_is_remembered_with_what_swept_whoever_it_was(self, tmp_path: Path) -> None:
        with open_site(tmp_path, sweep_interval="5m") as site, site.engine:
            first, second = site.start(eviction="1h"), site.start(eviction="2h")
            site.clock.advance(hours=1, minutes=6)
            assert site.engine.sweep() == []
            site.clock.advance(minutes=56)
            site.clock.skew(minutes=1)
            assert site.engine.sweep() == [second.id]
            third = site.start()
            site.engine.evict(third.id)
            assert site.engine.swept() == [first.id, second.id]
            assert [(one.by, one.at_ns) for one in site.engine.services.swept] == [
                ("the timer", ns_of(CLOCK_START) + 65 * 60 * 10**9),
                ("sweep()", site.clock.now_ns()),
            ]
            fourth = site.start(eviction="1m")
            site.clock.skew(minutes=2)
            with site.another() as other:
                assert other.swept() == [fourth.id]
                assert [one.by for one in other.services.swept] == ["the start of the engine"]
            assert site.engine.swept() == [first.id, second.id]

    def test_counts_for_handles_before_any_sweep(self, site: Site) -> None:
        session = site.start()
        site.clock.advance(FOUR_HOURS + MICROSECOND)
        for act in (session.touched_files, session.promote, lambda: session.write("app.py", "x"), lambda: session.extend(FOUR_HOURS)):
            with pytest.raises(SessionExpired) as caught:
                act()
            assert caught.value.state == "expired"
        assert site.state(session.id).state == "active"

    def test_is_the_deadline_that_info_tells(self, site: Site) -> None:
        session = site.start(eviction=EvictionPolicy(ttl_idle="30m"))
        deadline = session.info().deadline
        assert deadline == CLOCK_START + timedelta(minutes=30)
        site.clock.advance_to(deadline)
        assert site.engine.sweep() == []
        site.clock.just_after(deadline)
        assert site.engine.sweep() == [session.id]

    @pytest.mark.parametrize("hours", [-12, 5, 14])
    def test_is_the_same_in_every_time_zone(self, site: Site, hours: int) -> None:
        session = site.start()
        local = (CLOCK_START + FOUR_HOURS).astimezone(timezone(timedelta(hours=hours)))
        site.clock.advance_to(local)
        assert site.engine.sweep() == []
        site.clock.just_after(local)
        assert site.engine.sweep() == [session.id]


class TestTheIdleLimit:
    @pytest.mark.parametrize(
        "use",
        [
            lambda session: session.read("app.py"),
            lambda session: session.write("app.py", "x"),
            lambda session: session.delete("app.py"),
            lambda session: session.list(),
            lambda session: session.exists("app.py"),
            lambda session: session.info(),
            lambda session: session.touched_files(),
            lambda session: session.diff(),
            lambda session: session.commit("message"),
            lambda session: session.log(),
            lambda session: session.review(),
            lambda session: session.for_agent().touched_files(),
        ],
    )
    def test_slides_with_every_use(self, site: Site, use) -> None:  # type: ignore[no-untyped-def]
        session = site.start()
        site.clock.advance(hours=3)
        use(session)
        site.clock.advance(FOUR_HOURS)
        assert site.engine.sweep() == []
        site.clock.advance(MICROSECOND)
        assert site.engine.sweep() == [session.id]

    def test_is_not_moved_by_who_polls_the_engine_for_a_day(self, site: Site) -> None:
        session = site.start()
        for _ in range(4):
            site.clock.advance(hours=1)
            site.engine.info(session.id)
            site.engine.list_sessions()
            site.engine.history(session.id)
        assert site.engine.sweep() == []
        site.clock.advance(MICROSECOND)
        assert site.engine.sweep() == [session.id]

    @pytest.mark.parametrize("look", [lambda session: session.workspace_path, lambda session: session.metadata(), repr])
    def test_does_not_slide_by_a_look(self, site: Site, look) -> None:  # type: ignore[no-untyped-def]
        session = site.start()
        site.clock.advance(hours=3)
        look(session)
        site.clock.advance(hours=1, microseconds=1)
        assert site.engine.sweep() == [session.id]

    @pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
    @pytest.mark.parametrize(
        "script", ["echo x >> app.py", "echo x > new", "rm app.py", "chmod +x app.py", "mkdir empty", "touch -d 1999-01-01 run.sh"]
    )
    def test_slides_when_files_change_behind_its_back(self, site: Site, kind: str, script: str) -> None:
        session = site.start(workspace=kind)
        site.clock.advance(hours=3)
        shell(session, script)
        site.clock.advance(hours=2)
        assert site.engine.sweep() == []
        assert site.types(session.id)[-1] == "session.activity"
        site.clock.advance(hours=2)
        assert session.read("src/deep/er.txt") == b"deeper\n"
        site.clock.advance(FOUR_HOURS + MICROSECOND)
        assert site.engine.sweep() == [session.id]

    def test_slides_when_the_agent_commits_with_its_own_git(self, site: Site) -> None:
        session = site.start()
        site.clock.advance(hours=3)
        shell(session, "git commit -q --allow-empty -m x")
        site.clock.advance(hours=2)
        assert site.engine.sweep() == []

    def test_is_not_fooled_by_files_from_the_future(self, site: Site) -> None:
        session = site.start()
        shell(session, "touch -d 2199-01-01 app.py")
        site.clock.advance(FOUR_HOURS + MICROSECOND)
        assert site.engine.sweep() == [session.id]

    def test_is_replaced_by_extend_not_added_to(self, site: Site) -> None:
        session = site.start()
        site.clock.advance(hours=1)
        session.extend(timedelta(hours=1))
        assert session.info().deadline == CLOCK_START + timedelta(hours=2)
        site.clock.advance(hours=1, microseconds=1)
        assert site.engine.sweep() == [session.id]

    @pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), 3600, "1", None])
    def test_cannot_be_extended_by_what_is_no_positive_duration(self, site: Site, ttl: object) -> None:
        session = site.start()
        with pytest.raises(InvalidInput, match=r"not positive|not a duration"):
            session.extend(ttl)  # type: ignore[arg-type]
        assert session.info().deadline == CLOCK_START + FOUR_HOURS

    def test_of_none_never_ends(self, site: Site) -> None:
        session = site.start(eviction=EvictionPolicy(ttl_idle=None))
        assert session.info().deadline is None
        site.clock.advance(days=9999)
        assert site.engine.sweep() == []


class TestTheAbsoluteLimit:
    def test_ends_a_session_however_much_it_is_used(self, site: Site) -> None:
        session = site.start(eviction=EvictionPolicy(ttl_absolute="6h"))
        for _ in range(6):
            site.clock.advance(hours=1)
            session.write("app.py", f"{site.clock.now()}\n")
        assert site.engine.sweep() == []
        site.clock.advance(MICROSECOND)
        assert site.engine.sweep() == [session.id]

    def test_is_not_moved_by_file_changes_or_extend(self, site: Site) -> None:
        session = site.start(eviction=EvictionPolicy(ttl_absolute="2h"))
        session.extend(timedelta(days=1))
        site.clock.advance(hours=2, microseconds=1)
        shell(session, "echo x > app.py")
        assert site.engine.sweep() == [session.id]

    def test_later_than_the_idle_one_does_not_matter(self, site: Site) -> None:
        session = site.start(eviction=EvictionPolicy(ttl_idle="1h", ttl_absolute="6h"))
        site.clock.advance(hours=1, microseconds=1)
        assert site.engine.sweep() == [session.id]

    def test_manual_exempts_from_both(self, site: Site) -> None:
        session = site.start(eviction=EvictionPolicy(ttl_idle="1h", ttl_absolute="2h", manual=True))
        site.clock.advance(days=30)
        assert site.engine.sweep() == []
        session.discard()
        assert site.state(session.id).state == "discarded"


class TestClockJumps:
    def test_back_keeps_every_session(self, site: Site) -> None:
        session = site.start()
        site.clock.skew(hours=-10)
        assert site.engine.sweep() == []
        session.write("app.py", "x\n")
        assert site.engine.sweep() == []
        assert session.info().deadline == CLOCK_START - timedelta(hours=6)
        site.clock.advance(FOUR_HOURS + MICROSECOND)
        assert site.engine.sweep() == [session.id]

    def test_forward_ends_what_is_past(self, site: Site) -> None:
        session = site.start()
        site.clock.skew(hours=5)
        assert site.engine.sweep() == [session.id]


class TestTheSweep:
    def test_runs_by_itself_each_time_at_its_own_instant(self, site: Site) -> None:
        evicted: list[tuple[str, datetime]] = []
        engine = site.another(sweep_interval=timedelta(minutes=5)).init()
        engine.on("session.evict", lambda event: evicted.append((event.stream, datetime.fromtimestamp(event.ts / 1e9, UTC))))
        sessions = [
            engine.start_session(f"{minutes} minutes", eviction=EvictionPolicy(ttl_idle=timedelta(minutes=minutes)))
            for minutes in (2, 5, 61, 240)
        ]
        site.clock.advance(hours=4, minutes=5)
        expected = [5, 10, 65, 245]
        assert evicted == [
            (session.id, CLOCK_START + timedelta(minutes=minutes)) for session, minutes in zip(sessions, expected, strict=True)
        ]

    def test_happens_at_init_and_stops_at_close(self, site: Site) -> None:
        session = site.start()
        site.clock.advance(hours=5)
        engine = site.another(sweep_interval=timedelta(minutes=5)).init()
        assert site.state(session.id).state == "expired"
        later = engine.start_session("later", eviction=EvictionPolicy(ttl_idle="1h"))
        engine.close()
        site.clock.advance(hours=5)
        assert site.state(later.id).state == "active"

    def test_of_one_engine_ends_sessions_of_another(self, site: Site) -> None:
        session = site.start()
        other = site.another(durable=None)
        site.clock.advance(hours=5)
        assert other.sweep() == [session.id]
        assert site.engine.sweep() == []

    def test_takes_those_past_their_ttl_and_no_others(self, site: Site) -> None:
        old = [site.start().id for _ in range(3)]
        site.clock.advance(hours=3)
        young = [site.start().id for _ in range(3)]
        site.clock.advance(hours=2)
        assert sorted(site.engine.sweep()) == sorted(old)
        assert sorted(one.id for one in site.engine.list_sessions("active")) == sorted(young)

    @pytest.mark.parametrize("damage", [b"", b"not json\n", b"\xff\xfe\n\n"])
    def test_is_not_stopped_by_a_bad_record(self, site: Site, damage: bytes) -> None:
        sessions = [site.start() for _ in range(3)]
        log = site.directory(sessions[1]) / "events.jsonl"
        log.write_bytes(damage + log.read_bytes().replace(b'"session.created"', b'"session.cremated"') if damage else b"broken\nbroken\n")
        site.clock.advance(hours=5)
        assert sorted(site.engine.sweep()) == sorted([sessions[0].id, sessions[2].id])
        assert [problem.id for problem in site.engine.problems()] == [sessions[1].id]

    def test_is_not_stopped_by_a_workspace_that_cannot_be_read(self, site: Site) -> None:
        sessions = [site.start() for _ in range(3)]
        shutil.rmtree(site.directory(sessions[0]) / "workspace")
        shutil.rmtree(site.directory(sessions[1]) / "engine")
        (site.directory(sessions[2]) / "engine/workspace.json").write_text("{")
        site.clock.advance(hours=5)
        assert sorted(site.engine.sweep()) == sorted(session.id for session in sessions)
        assert {site.state(session.id).state for session in sessions} == {"expired"}

    def test_leaves_a_session_that_is_being_worked_on(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        other = site.another()

        def sweep_late() -> None:
            site.clock.advance(hours=5)
            assert other.sweep() == []

        with at_point("promote:drift-checked", sweep_late):
            result = session.promote()
        assert site.durable.contains(result.sha)
        assert other.sweep() == []
        assert site.state(session.id).state == "promoted"

    def test_leaves_a_session_that_was_used_after_it_was_found_due(self, site: Site) -> None:
        session = site.start()
        other = site.another()

        def use() -> None:
            site.clock.skew(hours=-5)
            session.write("app.py", "x\n")

        site.clock.advance(hours=5)
        with at_point("sweep:found-due", use):
            assert other.sweep() == []
        assert session.read("app.py") == b"x\n"

    def test_meeting_a_directory_that_vanishes_goes_on(self, site: Site) -> None:
        one, two = site.start(), site.start()
        site.clock.advance(hours=5)
        gone = min(one.id, two.id)
        with at_point("sweep:found-due", lambda: shutil.rmtree(site.directory(gone))):
            assert site.engine.sweep() == [max(one.id, two.id)]

    def test_by_threads_at_once_evicts_each_session_once(self, site: Site) -> None:
        sessions = {site.start().id for _ in range(6)}
        site.clock.advance(hours=5)
        engines = [site.another() for _ in range(4)]
        together, found = threading.Barrier(4), list[list[str]]([[], [], [], []])

        def sweep(number: int) -> None:
            together.wait()
            found[number] = engines[number].sweep()

        threads = [threading.Thread(target=sweep, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(id_ for ids in found for id_ in ids) == sorted(sessions)
        assert all(site.types(id_).count("workspace.removed") == 1 for id_ in sessions)

    def test_by_processes_at_once_evicts_each_session_once(self, site: Site) -> None:
        sessions = {site.start().id for _ in range(6)}
        site.clock.advance(hours=5)
        together, results = threading.Barrier(3), list[int]()

        def run(number: int) -> None:
            engine = site.another()
            together.wait()
            results.append(in_child(lambda: (site.root / f"swept{number}").write_text("\n".join(engine.sweep()))))

        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [0, 0, 0]
        swept = [id_ for number in range(3) for id_ in (site.root / f"swept{number}").read_text().split()]
        assert sorted(swept) == sorted(sessions)
        assert all(site.types(id_).count("workspace.removed") == 1 for id_ in sessions)


class TestAnEviction:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("how", ["expired", "discarded"])
    def test_keeps_the_record_and_removes_the_rest(self, site: Site, kind: str, how: str) -> None:
        before = site.durable.fingerprint()
        session = site.start(workspace=kind)
        session.write("app.py", "x\n")
        site.engine.evict(session.id, how)
        assert sorted(os.listdir(site.directory(session))) == ["archive.git", "archive.patch", "events.jsonl", "metadata.json"]
        after = site.durable.fingerprint()
        if kind == "worktree":
            after.pop(".git/worktrees", None)
        assert after == before
        (metadata,) = site.engine.list_sessions(how)  # type: ignore[arg-type]
        assert (metadata.id, metadata.state, metadata.touched_files) == (session.id, how, ["app.py"])
        assert site.engine.info(session.id).state == how

    def test_of_an_agent_that_took_its_permissions_away_works_all_the_same(self, site: Site) -> None:
        session = site.start()
        shell(session, "mkdir locked; echo x > locked/file; chmod 0 locked/file; chmod 0500 locked")
        session.discard()
        assert not (site.directory(session) / "workspace").exists()

    @pytest.mark.parametrize("state", ["active", "gone", "", "EXPIRED"])
    def test_cannot_end_in_what_is_no_end(self, site: Site, state: str) -> None:
        session = site.start()
        with pytest.raises(InvalidInput, match=f"A session cannot end as {state!r}") as caught:
            site.engine.evict(session.id, state)
        assert caught.value.fix == "Use one of: expired, discarded, promoted."
        assert site.state(session.id).state == "active"

    @pytest.mark.parametrize("end", ["promote", "discard", "expire"])
    def test_of_an_ended_session_is_refused_and_rewrites_nothing(self, site: Site, end: str) -> None:
        session = site.start()
        session.write("app.py", "x\n")
        {"promote": session.promote, "discard": session.discard, "expire": lambda: site.engine.evict(session.id)}[end]()
        events = site.events(session.id)
        with pytest.raises(SessionExpired):
            site.engine.evict(session.id)
        with pytest.raises(SessionExpired):
            session.discard()
        assert site.events(session.id) == events

    @pytest.mark.parametrize("id_", ["sess_nowhere", "sess_012345678901"])
    def test_of_an_unknown_session_is_refused(self, site: Site, id_: str) -> None:
        site.engine.init()
        with pytest.raises(SessionNotFound, match=id_):
            site.engine.evict(id_)
        assert not (site.store / id_).exists()

    def test_whose_lock_somebody_removed_ends_all_the_same(self, site: Site) -> None:
        session = site.start()
        with at_point("evict:workspace-gone", (site.directory(session) / ".lock").unlink):
            session.discard()
        assert site.state(session.id).workspace_present is False

    @pytest.mark.parametrize("id_", ["../escape", "", "a/b", "."])
    def test_of_what_is_no_id_is_refused(self, site: Site, id_: str) -> None:
        with pytest.raises(InvalidInput):
            site.engine.evict(id_)

    def test_while_somebody_works_is_a_race(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        session = site.start()
        session.write("app.py", "x\n")
        monkeypatch.setattr("time.sleep", lambda _seconds: site.clock.now())
        with site.engine.store.lease(session.id):
            hurried = iter(range(0, 10**9, 11))
            monkeypatch.setattr("time.monotonic", lambda: float(next(hurried)))
            with pytest.raises(EvictionRace, match="held by"):
                site.engine.evict(session.id)
        assert site.state(session.id).state == "active"

    def test_tells_listeners_after_it_is_stored(self, site: Site) -> None:
        seen: list[tuple[str, str]] = []
        session = site.start()

        def listen(event: Event) -> None:
            seen.append((event.type, site.state(session.id).state))

        site.engine.on("session.evict", listen)
        session.discard()
        assert seen == [("workspace.removed", "discarded")]


class TestTwoHandles:
    def test_see_each_other_and_one_end_ends_both(self, site: Site) -> None:
        one = site.start()
        two = site.another().get_session(one.id)
        one.write("a.txt", "a\n")
        two.write("b.txt", "b\n")
        assert one.touched_files() == two.touched_files() == ["a.txt", "b.txt"]
        two.discard()
        with pytest.raises(SessionExpired):
            one.write("a.txt", "again\n")
        assert not (site.directory(one) / "workspace").exists()
        assert site.state(one.id).state == "discarded"

    def test_of_an_agent_die_with_the_session(self, site: Site) -> None:
        session: UserSession = site.start()
        agent = session.for_agent()
        session.discard()
        for act in (agent.touched_files, agent.log, agent.info, lambda: agent.write("a", "a"), lambda: agent.read("app.py")):
            with pytest.raises(SessionExpired):
                act()
        assert not (site.directory(session) / "workspace").exists()
