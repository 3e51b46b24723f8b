"""A kill at every named point of a start, a promotion and an eviction, and what the next engine makes of it (rule 9)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.clock import hurry
from support.engine import KINDS, LINES, Site, at_point, edited, in_child, kill_at, passed

from pytest_gittrix.engine.lineage.recovery import RecoveryReport
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import DurableLocked, SessionExpired, SessionNotFound, WorktreeDirty

START = ("start:head-read", "start:created", "start:seeded", "start:ready")
BEFORE_SWAP = (
    "promote:selected",
    "promote:head-read",
    "promote:drift-checked",
    "promote:intent-logged",
    "ref:locked",
    "land:packed",
)
AFTER_SWAP = (
    "land:moved",
    "worktree:files-written",
    "land:forwarded",
    "promote:swapped",
    "promote:recorded",
    "evict:apart",
    "evict:workspace-gone",
)
EVICT = ("evict:ended", "evict:apart", "evict:archived", "evict:workspace-gone")


def assert_nothing_half_done(site: Site) -> None:
    """Durable is whole, clean and free of locks; every session is promoted with its commit in, or active with its files, or gone."""
    assert site.durable.git("fsck", "--strict", "--no-dangling") == ""
    assert site.durable.status() == []
    assert site.durable.leftovers() == []
    for id_ in site.engine.store.ids():
        state = site.state(id_)
        assert state.intent is None
        if state.state == "promoted":
            assert state.result is not None
            assert site.durable.contains(state.result.sha, state.result.branch)
        if not state.ended:
            assert state.workspace is not None
            assert os.path.isdir(state.workspace)


def started(site: Site) -> UserSession:
    session = site.start()
    session.write("src/util.py", edited(3))
    session.write("new/file.txt", "new\n")
    session.delete("README.md")
    return session


class TestAStartThatIsKilled:
    def test_these_are_its_points(self, site: Site) -> None:
        assert tuple(passed(site.start)) == START

    @pytest.mark.parametrize("point", START)
    @pytest.mark.parametrize("kind", KINDS)
    def test_leaves_a_whole_session_or_none(self, site: Site, point: str, kind: str) -> None:
        kill_at(point, lambda: site.start(workspace=kind))
        engine = site.another().init()
        active = engine.list_sessions("active")
        assert len(active) == (1 if point == "start:ready" else 0)
        for metadata in active:
            assert engine.get_session(metadata.id).read("src/util.py") == LINES.encode()
        left = [name for name in os.listdir(site.store) if not name.startswith(".") and (site.store / name / "workspace").exists()]
        assert left == [metadata.id for metadata in active]
        assert len(site.durable.git("worktree", "list", "--porcelain").split("\n\n")) == 1 + (kind == "worktree" and bool(active))
        assert_nothing_half_done(site)

    def test_that_got_nowhere_is_reported_as_removed_and_is_not_found_any_more(self, site: Site) -> None:
        kill_at("start:created", site.start)
        (id_,) = site.engine.store.ids()
        assert site.another().recover().removed == [id_]
        with pytest.raises(SessionExpired) as caught:
            site.engine.get_session(id_)
        assert caught.value.state == "discarded"

    def test_before_its_first_event_leaves_a_directory_that_recovery_removes(self, site: Site) -> None:
        site.store.mkdir()
        (site.store / "sess_orphan").mkdir(parents=True)
        (site.store / "sess_orphan" / "events.jsonl").touch()
        assert site.engine.recover().removed == ["sess_orphan"]
        assert not (site.store / "sess_orphan").exists()
        with pytest.raises(SessionNotFound):
            site.engine.get_session("sess_orphan")

    @pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
    def test_removes_what_killed_writers_left_beside_a_log_and_nothing_else(self, site: Site, ended: bool) -> None:
        session = site.start()
        session.attach(b"a picture")
        if ended:
            session.discard()
        directory = site.directory(session)
        before = sorted(path.name for path in directory.rglob("*"))
        (directory / "tmp_notes").write_text("somebody's")
        for left in (".metadata.json.12-140073341107072.tmp", "tmp_0123456789abcdef", "resources/tmp_0123456789abcdef"):
            (directory / left).write_text("half")
        site.engine.recover()
        assert sorted(path.name for path in directory.rglob("*")) == sorted([*before, "tmp_notes"])

    def test_of_a_start_that_takes_its_directory_away_meanwhile_is_no_problem(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        (site.store / "sess_failing").mkdir(parents=True)
        is_directory = Path.is_dir

        def gone_right_after(path: Path) -> bool:
            found = is_directory(path)
            if path.name == "sess_failing" and found:
                path.rmdir()
            return found

        monkeypatch.setattr(Path, "is_dir", gone_right_after)
        assert site.engine.recover() == RecoveryReport()

    def test_of_a_session_whose_failed_start_is_gone_before_its_turn_is_no_problem(self, site: Site) -> None:
        (site.store / "sess_here").mkdir(parents=True)
        assert site.engine.services.recovery().run(["sess_gone"]).problems == []

    def test_leaves_every_directory_alone_that_holds_what_is_not_its_own(self, site: Site) -> None:
        for name in ("notes", "repository"):
            (site.store / name).mkdir(parents=True)
        (site.store / "notes" / "thesis.tex").write_text("years of work")
        (site.store / "repository" / ".git").mkdir()
        assert site.engine.init().recover().removed == []
        assert sorted(name for name in os.listdir(site.store) if not name.startswith(".")) == ["notes", "repository"]

    def test_and_raises_instead_of_dying_leaves_nothing_at_all(self, site: Site) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), at_point("start:created", interrupt):
            site.start()
        assert site.engine.store.ids() == []
        assert site.engine.list_sessions() == []


class TestAPromotionThatIsKilled:
    def test_these_are_its_points(self, site: Site) -> None:
        assert tuple(passed(started(site).promote)) == BEFORE_SWAP + AFTER_SWAP

    @pytest.mark.parametrize("point", BEFORE_SWAP)
    def test_before_the_swap_leaves_the_session_active_and_durable_as_it_was(self, site: Site, point: str) -> None:
        session, head = started(site), site.durable.head()
        kill_at(point, session.promote)
        assert site.durable.head() == head
        report = site.another().init().recover()
        assert report.problems == []
        assert site.state(session.id).state == "active"
        assert_nothing_half_done(site)
        assert session.touched_files() == ["README.md", "new/file.txt", "src/util.py"]
        result = session.promote()
        assert site.durable.parents(result.sha) == [head]
        assert sorted(site.durable.changed(result.sha)) == ["README.md", "new/file.txt", "src/util.py"]
        assert_nothing_half_done(site)

    @pytest.mark.parametrize("point", AFTER_SWAP)
    def test_after_the_swap_leaves_the_session_promoted_and_the_checkout_forward(self, site: Site, point: str) -> None:
        session, head = started(site), site.durable.head()
        kill_at(point, session.promote)
        landed = site.durable.head()
        assert site.durable.parents(landed) == [head]
        site.another().init()
        state = site.state(session.id)
        assert state.state == "promoted"
        assert state.result is not None
        assert state.result.sha == landed
        assert not state.workspace_present
        assert not (site.directory(session) / "workspace").exists()
        assert site.durable.head() == landed
        assert (site.durable.path / "src/util.py").read_text() == edited(3)
        assert not (site.durable.path / "README.md").exists()
        assert_nothing_half_done(site)

    @pytest.mark.parametrize("point", BEFORE_SWAP + AFTER_SWAP)
    def test_does_not_stop_the_next_promotion_though_nobody_recovers(self, site: Site, point: str) -> None:
        session, other = started(site), site.start("another task")
        other.write("app.py", "print('v2')\n")
        kill_at(point, session.promote)
        met = site.durable.head()
        result = other.promote()
        assert site.durable.parents(result.sha) == [met]
        assert site.durable.changed(result.sha).keys() == {"app.py"}
        site.another().init()
        assert_nothing_half_done(site)

    @pytest.mark.parametrize("point", BEFORE_SWAP)
    def test_does_not_stop_its_own_session_though_nobody_recovers(self, site: Site, point: str) -> None:
        session = started(site)
        kill_at(point, session.promote)
        assert site.durable.contains(session.promote().sha)
        assert_nothing_half_done(site)

    @pytest.mark.parametrize("point", AFTER_SWAP)
    def test_after_the_swap_is_not_made_twice_though_nobody_recovers(self, site: Site, point: str) -> None:
        session = started(site)
        kill_at(point, session.promote)
        landed = site.durable.head()
        with pytest.raises(SessionExpired) as caught:
            session.promote()
        assert caught.value.state == "promoted"
        assert site.durable.head() == landed

    @pytest.mark.parametrize("point", ["promote:intent-logged", "ref:locked", "land:moved", "promote:recorded"])
    def test_does_not_stop_the_sweep_though_nobody_recovers(self, site: Site, point: str) -> None:
        session = started(site)
        kill_at(point, session.promote)
        site.clock.advance(hours=5)
        site.engine.sweep()
        state = site.state(session.id)
        assert (state.state, state.workspace_present) == ("expired" if point in BEFORE_SWAP else "promoted", False)

    @pytest.mark.parametrize("point", ["promote:intent-logged", "ref:locked"])
    def test_can_be_discarded_though_nobody_recovers(self, site: Site, point: str) -> None:
        session = started(site)
        kill_at(point, session.promote)
        session.discard()
        assert site.state(session.id).state == "discarded"

    @pytest.mark.parametrize("point", BEFORE_SWAP + AFTER_SWAP)
    def test_is_mended_once(self, site: Site, point: str) -> None:
        session = started(site)
        kill_at(point, session.promote)
        site.another().init()
        log = site.events(session.id)
        report = site.another().init().recover()
        assert (report.rolled_forward, report.rolled_back, report.removed, report.problems) == ([], [], [], [])
        assert site.events(session.id) == log

    @pytest.mark.parametrize("point", ["recover:leased", "recover:repaired"])
    @pytest.mark.parametrize("promote_point", ["land:packed", "land:moved", "worktree:files-written"])
    def test_is_mended_though_the_recovery_is_killed_too(self, site: Site, promote_point: str, point: str) -> None:
        session = started(site)
        kill_at(promote_point, session.promote)
        kill_at(point, site.another().recover)
        site.another().init()
        assert site.state(session.id).state == ("active" if promote_point == "land:packed" else "promoted")
        assert_nothing_half_done(site)

    @pytest.mark.parametrize("point", ["land:moved", "promote:swapped"])
    def test_is_found_although_others_committed_on_top(self, site: Site, point: str) -> None:
        session = site.start()
        session.write("app.py", "print('v2')\n")
        kill_at(point, session.promote)
        landed = site.durable.head()
        (site.durable.git_dir / "index.lock").unlink(missing_ok=True)
        site.durable.commit({"other.txt": "o\n"})
        assert site.another().recover().rolled_forward == [session.id]
        assert site.state(session.id).result.sha == landed  # type: ignore[union-attr]

    @pytest.mark.parametrize("point", ["promote:intent-logged", "land:packed", "land:moved"])
    def test_onto_a_branch_of_its_own_is_mended_too(self, site: Site, point: str) -> None:
        session, head = started(site), site.durable.head()
        kill_at(point, lambda: session.promote(strategy="branch"))
        site.another().init()
        landed = point == "land:moved"
        assert site.state(session.id).state == ("promoted" if landed else "active")
        assert site.durable.branches() == (["gittrix/fix-the-bug", "main"] if landed else ["main"])
        assert [event.data["strategy"] for event in site.events(session.id) if event.type == "promote.done"] == ["branch"] * landed
        assert site.durable.head() == head
        assert_nothing_half_done(site)

    def test_leaves_the_rest_of_a_partial_selection_to_the_archive(self, site: Site) -> None:
        session = started(site)
        kill_at("promote:recorded", lambda: session.promote(files=["src/util.py"]))
        site.another().init()
        assert site.state(session.id).state == "promoted"
        patch = (site.directory(session) / "archive.patch").read_text()
        assert "new/file.txt" in patch
        assert "README.md" in patch


class TestLocks:
    """What a dead process left is broken; what another program holds, or might, is not."""

    @pytest.fixture
    def session(self, site: Site) -> UserSession:
        session = site.start()
        session.write("app.py", "print('v2')\n")
        return session

    def test_of_a_live_promotion_are_not_broken(self, site: Site, session: UserSession) -> None:
        lock = site.durable.git_dir / "index.lock"
        intent = {"commit": "1" * 40, "parent": "2" * 40, "ref": "refs/heads/main", "tree": "3" * 40, "paths_digest": "", "count": 1}
        other = site.start("in flight")
        lock.write_text("1" * 40 + "\n")
        before = site.durable.fingerprint()
        with other._recorder.leased():  # as a promotion does for as long as it lives
            other._recorder.append("promote.intent", intent)
            with pytest.raises(WorktreeDirty, match=r"index\.lock"):
                session.promote()
        assert site.durable.fingerprint() == before

    @pytest.mark.parametrize("contents", ["", "pid 1\n", "1" * 40 + "\n"])
    def test_on_the_index_of_another_program_refuse_the_promotion(
        self, site: Site, session: UserSession, contents: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = site.durable.git_dir / "index.lock"
        lock.write_text(contents)
        before = site.durable.fingerprint()
        hurry(monkeypatch)
        with pytest.raises(WorktreeDirty, match=r"index\.lock") as caught:
            session.promote()
        assert caught.value.stage == "staging"
        assert site.durable.fingerprint() == before
        lock.unlink()
        monkeypatch.undo()
        assert site.durable.contains(session.promote().sha)

    @pytest.mark.parametrize("contents", ["", "1" * 40 + "\n"])
    def test_on_the_branch_of_another_program_refuse_the_promotion(
        self, site: Site, session: UserSession, contents: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = site.durable.git_dir / "refs/heads/main.lock"
        lock.write_text(contents)
        before = site.durable.fingerprint()
        hurry(monkeypatch)
        with pytest.raises(DurableLocked, match=r"main\.lock"):
            session.promote()
        assert site.durable.fingerprint() == before
        lock.unlink()
        monkeypatch.undo()
        assert site.durable.contains(session.promote().sha)

    @pytest.mark.parametrize("name", ["index.lock", "refs/heads/main.lock"])
    def test_of_a_dead_promotion_are_broken_by_the_next_one(self, site: Site, session: UserSession, name: str) -> None:
        other = site.start("killed")
        other.write("README.md", "killed\n")
        kill_at("ref:locked", other.promote)
        assert (site.durable.git_dir / name).exists()
        assert site.durable.contains(session.promote().sha)
        assert not (site.durable.git_dir / name).exists()

    def test_of_another_program_survive_a_recovery(self, site: Site, session: UserSession) -> None:
        kill_at("promote:intent-logged", session.promote)
        lock = site.durable.git_dir / "index.lock"
        lock.write_text("somebody's\n")
        site.another().init()
        assert lock.read_text() == "somebody's\n"

    def test_of_the_session_left_by_a_dead_process_stop_nobody(self, site: Site, session: UserSession) -> None:
        def hold() -> None:
            site.another().store.lease(session.id).acquire()
            os._exit(7)

        assert in_child(hold) == 7
        assert (site.directory(session) / ".lock").exists()
        assert session.read("app.py") == b"print('v2')\n"


class TestAnEvictionThatIsKilled:
    def test_these_are_its_points(self, site: Site) -> None:
        session = started(site)
        assert tuple(passed(session.discard)) == EVICT

    @pytest.mark.parametrize("point", EVICT)
    def test_goes_on_where_it_stopped(self, site: Site, point: str) -> None:
        session = started(site)
        kill_at(point, session.discard)
        site.another().init()
        state = site.state(session.id)
        assert (state.state, state.workspace_present) == ("discarded", False)
        assert not (site.directory(session) / "workspace").exists()
        assert not (site.directory(session) / "leaving").exists()
        assert "new/file.txt" in (site.directory(session) / "archive.patch").read_text()
        assert_nothing_half_done(site)

    @pytest.mark.parametrize("point", ["sweep:found-due", "sweep:past-deadline", *EVICT])
    def test_by_the_sweep_is_finished_by_the_next(self, site: Site, point: str) -> None:
        session = started(site)
        site.clock.advance(hours=5)
        kill_at(point, site.engine.sweep)
        site.another().init()
        state = site.state(session.id)
        assert (state.state, state.workspace_present) == ("expired", False)
        assert not (site.directory(session) / "workspace").exists()
        assert (site.directory(session) / "archive.patch").exists()

    @pytest.mark.parametrize("point", EVICT)
    def test_takes_the_admin_directory_of_a_worktree_along(self, site: Site, point: str) -> None:
        session = site.start(workspace="worktree")
        session.write("app.py", "mine\n")
        kill_at(point, session.discard)
        site.another().init()
        assert "worktree" in site.durable.git("worktree", "list", "--porcelain")
        assert not (site.durable.git_dir / "worktrees" / session.id).exists()


class TestRecovery:
    def test_of_a_store_at_rest_does_nothing(self, site: Site) -> None:
        session = started(site)
        log = site.events(session.id)
        report = site.another().recover()
        assert (report.rolled_forward, report.rolled_back, report.removed, report.problems) == ([], [], [], [])
        assert site.events(session.id) == log

    def test_leaves_what_somebody_works_on(self, site: Site) -> None:
        session = started(site)
        other = site.another()

        def recover() -> None:
            assert other.recover().rolled_back == []

        with at_point("ref:locked", recover):
            result = session.promote()
        assert site.durable.contains(result.sha)
        assert site.state(session.id).state == "promoted"

    def test_names_a_record_it_cannot_read_and_mends_the_others(self, site: Site) -> None:
        session, broken = started(site), site.start("broken")
        kill_at("land:moved", session.promote)
        log = site.directory(broken) / "events.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"broken"', b'"brokem"'))
        report = site.another().recover()
        assert report.rolled_forward == [session.id]
        assert [problem.id for problem in report.problems] == [broken.id]

    def test_names_a_session_whose_durable_repository_is_gone(self, site: Site) -> None:
        session = started(site)
        kill_at("promote:intent-logged", session.promote)
        moved = site.root / "moved"
        shutil.move(site.durable.path, moved)
        engine = site.another(durable=_elsewhere(site))
        report = engine.recover()
        assert [problem.id for problem in report.problems] == [session.id]
        shutil.move(moved, site.durable.path)
        assert site.another().recover().rolled_back == [session.id]

    def test_does_not_bring_a_vanished_workspace_back_as_deletions(self, site: Site) -> None:
        session, head = started(site), site.durable.head()
        shutil.rmtree(site.directory(session) / "workspace")
        site.another().init()
        with pytest.raises(Exception, match="workspace"):
            session.promote()
        assert site.durable.head() == head

    @pytest.mark.parametrize("torn", [b'{"v":1,"seq":', b"\0\0\0", b"{}"])
    def test_mends_a_torn_last_line(self, site: Site, torn: bytes) -> None:
        session = started(site)
        with open(site.directory(session) / "events.jsonl", "ab") as log:
            log.write(torn)
        again = site.another().init().get_session(session.id)
        again.write("app.py", "after\n")
        events = site.events(session.id)
        assert [event.seq for event in events] == list(range(len(events)))
        assert "log.recovered" in [event.type for event in events]


def _elsewhere(site: Site):  # type: ignore[no-untyped-def]
    from support.engine import DurableGit

    from pytest_gittrix.backends.local import LocalDurable

    return LocalDurable(DurableGit.make(site.root / "elsewhere").path)
