"""Edges where an engine of this kind loses work or says what is not so: each test was a failure once."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix import EvictionPolicy, GittrixError, World, points
from pytest_gittrix.clock.clock import Clock
from pytest_gittrix.engine import sweep
from pytest_gittrix.engine.sweep import restart_idle_time
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, SessionExpired
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.testing.repos.member_workspaces import git


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World.open(tmp_path / "world", files={"a": "base\n", "b": "base\n"}) as opened:
        yield opened


def kept(world: World, id_: str, name: str) -> Path:
    return world.gittrix.store.directory(id_) / name


class TestWorkThatWasNotPromoted:
    def test_is_archived_when_it_was_written_while_the_promotion_was_made(self, world: World) -> None:
        session = world.start()
        session.write("a", "agent\n")
        space = session.workspace_path
        assert space is not None
        world.race.before("promote:swapped", lambda: (space / "late.txt").write_text("just in time\n"))
        session.promote()
        assert "just in time" in kept(world, session.id, "archive.patch").read_text()

    def test_is_kept_whole_where_it_cannot_be_a_change_of_the_baseline(self, tmp_path: Path) -> None:
        with World.open(tmp_path / "world", files={"a": "base\n"}) as world:
            session = world.start()
            space = session.workspace_path
            assert space is not None
            (space / "git~1").write_text("strange\n")
            session.write("a", "agent\n")
            session.discard()
            assert (kept(world, session.id, "archive.workspace") / "git~1").read_text() == "strange\n"
            assert "agent" in kept(world, session.id, "archive.patch").read_text()

    def test_outlives_a_rewrite_and_prune_of_durable(self, world: World) -> None:
        first = world.durable.head()
        world.durable.commit({"b": "second\n"})
        session = world.start()
        session.write("a", "agent\n")
        session.discard()
        world.durable.rewind(first)
        world.durable.git("reflog", "expire", "--expire=now", "--all")
        world.durable.git("gc", "-q", "--prune=now")
        archive = kept(world, session.id, "archive.git")
        judged = subprocess.run(
            ["git", "-C", str(archive), "fsck", "--strict"], env=dict(world.env), capture_output=True, text=True, check=True
        )
        assert "missing" not in judged.stdout
        assert world.durable.git("ls-remote", str(archive)).split()[1] == f"refs/gittrix/archive/{session.id}"


class TestAPromotion:
    def test_goes_onto_a_rewritten_history_whose_old_commits_are_gone(self, world: World) -> None:
        first = world.durable.head()
        world.durable.commit({"b": "second\n"})
        session = world.start()
        session.write("a", "agent\n")
        world.durable.rewind(first)
        world.durable.git("reflog", "expire", "--expire=now", "--all")
        world.durable.git("gc", "-q", "--prune=now")
        session.promote()
        assert world.durable.read("a") == b"agent\n"
        assert world.durable.read("b") == b"base\n"

    @pytest.mark.parametrize("beyond", [{"files": ["b"]}, {"hunks": {"b": [1]}}])
    def test_of_a_review_takes_nothing_that_was_not_reviewed(self, world: World, beyond: dict[str, object]) -> None:
        session = world.start()
        session.write_and_commit({"a": "agent\n", "b": "agent\n"}, "both")
        review = session.review(["a"])
        with world.durable.unchanged(), pytest.raises(InvalidInput, match="'b' is not in the review"):
            session.promote(review, **beyond)  # type: ignore[arg-type]

    def test_leaves_no_descriptor_behind(self, world: World) -> None:
        def promote_some(count: int) -> int:
            for number in range(count):
                session = world.gittrix.start_session("t")
                session.write("a", f"{number}-{count}\n")
                session.promote()
            gc.collect()
            return len(os.listdir("/proc/self/fd"))

        before = promote_some(20)
        assert promote_some(60) - before < 20


class TestTheStore:
    def test_gives_the_same_log_for_the_same_seed_byte_for_byte(self, tmp_path: Path) -> None:
        logs = []
        for _ in range(2):
            with World.open(tmp_path / "world", files={"a": "base\n"}, seed=7, keep=False) as world:
                session = world.start("same")
                session.write("a", "agent\n")
                session.promote()
                logs.append(kept(world, session.id, "events.jsonl").read_bytes())
        assert logs[0] == logs[1]

    def test_keeps_the_seed_of_a_session_that_is_just_starting(self, world: World) -> None:
        engine = world.gittrix
        other = type(engine)(world.durable.path, home=engine.home, clock=world.clock, durability="fast", sweep_interval=None)

        def age_and_recover() -> None:
            for seed in (engine.store.root / ".seeds").glob("*"):
                os.utime(seed, (0, 0))
            other.recover()

        with type(engine)(world.durable.path, home=engine.home, clock=world.clock, durability="fast") as fresh:
            world.race.before("start:seeded", age_and_recover)
            session = fresh.start_session("t")
            assert other.get_session(session.id).read("a") == b"base\n"

    def test_has_no_lock_again_because_an_old_handle_was_used(self, world: World) -> None:
        session = world.start()
        session.discard()
        with pytest.raises(SessionExpired):
            session.read("a")
        assert not kept(world, session.id, ".lock").exists()


class TestTime:
    def test_set_back_does_not_make_a_session_immortal(self, world: World) -> None:
        world.clock.skew(days=3650)
        session = world.start()
        world.clock.skew(days=-3650)
        world.clock.advance(hours=4)
        assert session.info().state == "active"
        world.clock.advance(hours=4, minutes=6)
        assert world.gittrix.info(session.id).state == "expired"

    def test_set_back_is_noted_once_by_the_sweep_and_idle_time_counts_from_there(self, world: World) -> None:
        session = world.start()
        world.clock.skew(hours=-10)
        assert (world.gittrix.sweep(), world.gittrix.sweep()) == ([], [])
        events = world.gittrix.store.log(session.id).read()
        assert [(event.type, event.data) for event in events[2:]] == [("session.accessed", {"op": "clock set back"})]
        assert session.metadata()["state"] == "active"
        world.clock.skew(hours=4, microseconds=1)
        assert world.gittrix.sweep() == [session.id]

    def test_set_back_is_not_noted_for_what_was_used_since_or_has_ended(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pytest_gittrix.engine.sweep.resolution_ns", lambda _clock: 10**9)
        used, ended = world.start(), world.start()
        ended.discard()
        logs = [world.gittrix.store.log(id_) for id_ in (used.id, ended.id)]
        before = [log.path.read_bytes() for log in logs]
        engine = world.gittrix
        restart_idle_time(engine.services.recorder(used.id))
        world.clock.skew(hours=-10)
        restart_idle_time(engine.services.recorder(ended.id))
        assert [log.path.read_bytes() for log in logs] == before

    @pytest.mark.parametrize("hours", [5, -5])
    def test_that_passed_or_was_set_back_has_the_sweep_wait_for_nobody(self, world: World, hours: int) -> None:
        session = world.start()
        tries: list[str] = []
        with world.gittrix.store.lease(session.id), points.listening(tries.append):
            world.clock.skew(hours=hours)
            assert world.gittrix.sweep() == []
        assert tries.count("lease:busy") == 1

    def test_does_not_evict_what_is_manual_but_a_person_can(self, tmp_path: Path) -> None:
        policy = EvictionPolicy(manual=True, until_promote=False)
        with World.open(tmp_path / "world", files={"a": "base\n"}, eviction=policy) as world:
            session = world.start()
            session.write("a", "agent\n")
            session.promote()
            space = session.workspace_path
            assert space is not None
            world.clock.advance(timedelta(days=30), timers="once")
            assert space.exists()
            world.gittrix.evict(session.id)
            assert not space.exists()
            assert world.gittrix.info(session.id).state == "promoted"


def test_one_odd_record_stops_neither_lists_nor_sweeps_nor_starts(world: World) -> None:
    world.start().write(os.fsdecode(b"caf\xe9"), "x\n")
    odd = world.start()
    kept(world, odd.id, "engine/workspace.json").write_text('{"kind": "clone", "stamp": "soon"}')
    assert len(world.gittrix.list_sessions()) == 2
    assert [*world.gittrix.iter_sessions("active")] == world.gittrix.list_sessions()
    world.clock.advance(hours=5)
    assert {metadata.state for metadata in world.gittrix.list_sessions()} == {"expired"}
    assert world.start().read("a") == b"base\n"


def test_an_agent_reaches_nothing_through_the_listeners_of_its_engine(world: World) -> None:
    session = world.start()
    heard: list[str] = []
    world.gittrix.on("*", lambda event: heard.append(f"{session.id}:{event.type}"))
    agent = session.for_agent()
    agent.write("a", "agent\n")
    assert heard == [f"{session.id}:session.write"]
    seen: dict[int, object] = {}
    pending: list[object] = [agent]
    while pending:
        thing = pending.pop()
        if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ == "module":
            continue
        seen[id(thing)] = thing
        pending.extend(value for value in gc.get_referents(thing) if value is not vars(thing.__class__) and value is not globals())
        if hasattr(thing, "__globals__"):
            pending = [value for value in pending if value is not thing.__globals__]
    assert not any(thing is session or thing is world.gittrix for thing in seen.values())


def test_a_store_is_not_stopped_by_an_error_that_nobody_foresaw(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = world.start(), world.start()
    del first, second
    problems: list[str] = []
    world.gittrix.on("engine.error", lambda event: problems.append(event.data["code"]))
    original = sweep.is_past
    calls: list[int] = []

    def once_broken(state: SessionState, clock: Clock) -> bool:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        return original(state, clock)

    monkeypatch.setattr(sweep, "is_past", once_broken)
    world.clock.advance(hours=4, minutes=6)
    assert problems
    assert {metadata.state for metadata in world.gittrix.list_sessions()} <= {"expired", "active"}
    assert sum(metadata.state == "expired" for metadata in world.gittrix.list_sessions()) >= 1


def test_errors_of_the_engine_are_typed(world: World) -> None:
    with pytest.raises(GittrixError):
        world.start().read("nowhere")


class TestWhatIsNotAllowed:
    @pytest.mark.parametrize("hunks", ["a:1", ["a:1"], {"a": "1"}, {1: [1]}, 7])
    def test_hunks_that_name_none_are_refused_with_an_example(self, world: World, hunks: Any) -> None:
        session = world.start()
        session.write("a", "agent\n")
        with pytest.raises(InvalidInput, match=r"does not name hunks of paths.*\n.*\n.*hunks=\{\"app.py\": \[1, 3\]\}"):
            session.promote(hunks=hunks)
        assert session.promote(hunks={"a": [1]}).sha == world.durable.head()

    def test_a_message_with_a_nul_is_refused_by_its_place(self, world: World) -> None:
        session = world.start()
        session.write("a", "agent\n")
        for do in (session.commit, lambda message: session.promote(message=message)):
            with pytest.raises(InvalidInput, match="message has a NUL at 3"):
                do("fix\0ed")
        assert session.promote(message="fixed").sha == world.durable.head()

    @pytest.mark.parametrize("message", ["\x1b[2Jfixed", "fixed\rmore", "two\nlines\x07", "\n\nfixed\x9b2J", "fixed\r\n\r\nwhy"])
    def test_no_control_character_reaches_the_subject_of_a_commit(self, world: World, message: str) -> None:
        session = world.start()
        session.write("a", "agent\n")
        for do in (session.commit, lambda message: session.promote(message=message)):
            with pytest.raises(InvalidInput, match="The subject of message has the control character"):
                do(message)
        assert session.promote(message="fixed\n\n\twhat a terminal \x1b[1mshowed").sha == world.durable.head()

    def test_those_of_a_task_are_written_out_in_the_commits_that_are_named_after_it(self, world: World) -> None:
        promoted, archived = (world.gittrix.start_session("fix \x1b[2J\rit\r\nall\x00") for _ in range(2))
        for session in (promoted, archived):
            session.write("a", "agent\n")
        archive = archived.archive()
        promoted.promote()

        assert archive is not None
        for path, commit, says in (
            (world.durable.path, "main", "gittrix: "),
            (archive.repository, archive.ref, "gittrix: set aside from "),
        ):
            subject = git(path, "log", "-1", "--format=%s", commit)
            assert subject == says + "fix \\x1b[2J\\rit all\\x00"

    def test_an_empty_branch_is_no_branch_and_not_the_default(self, world: World) -> None:
        with pytest.raises(InvalidInput, match="'' is not a branch name"):
            world.gittrix.start_session("fix", durable_branch="")

    def test_a_durable_repository_that_was_moved_is_unavailable(self, world: World) -> None:
        world.durable.path.rename(world.path / "elsewhere")
        with pytest.raises(AdapterUnavailable, match="is not there any more"):
            world.gittrix.start_session("fix")
        (world.path / "elsewhere").rename(world.durable.path)
        assert world.gittrix.start_session("fix").list()
