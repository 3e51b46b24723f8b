"""LCK: several processes work on the same sessions and the same repository, and nothing is lost or done twice.

One process is held at a call that changes a file while another one runs, so each clause sees the same few interleavings every time (rule 2,
docs/explanation/rules.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.contests import BUSY, RaceOutcome, contests
from pytest_gittrix.conformance.base.expect import at_work, lands, refused
from pytest_gittrix.conformance.families.durability import kill_during, promote, spread
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.faults.supervisor import supported
from pytest_gittrix.testing.schedules.blackbox import Ended, OrderSearch, ProcessInterleaving, calls_of, intrude
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

POINTS: Final = 4
"""At how many of its calls a process is held while the other one runs."""

MOMENTS: Final = 8
"""At how many of its calls a promotion is held while a person commits: more, since only a few calls of it matter."""

POINTS_OF_AN_UPDATE: Final = 16
"""The same where one update can be lost between two of its calls."""

Prepare = Callable[[Stage], tuple[DrivenSession, ...]]
"""Prepares a stage for the two processes; gives the sessions that they work on."""

Actor = Callable[[Stage, tuple[str, ...]], object]
"""What a process does on a stage, with the sessions that have these ids."""


class ConcurrencyClauses(Clauses):
    """Two processes at a time."""

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_01_a_commit_elsewhere_during_a_promotion_is_kept(self, stage: Stage) -> None:
        """A commit to other files during a promotion is kept.

        Otherwise a person's commit disappears because an agent's work landed in the same second.
        """
        for race in self.races(stage, _one_session, _promote, _person_commits("README.md"), MOMENTS):
            _went_well(race.intruder)
            _lands_at_last(race.action, race.sessions[0])

            assert race.intruder.value in race.history()
            assert (race.head()["README.md"], race.head()["app.py"]) == (b"human\n", b"agent\n")

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_02_a_commit_over_a_promotion_is_never_written_over(self, stage: Stage) -> None:
        """A conflicting commit during a promotion is never overwritten.

        Otherwise the conflict check holds only for the moment before the landing, and a person's edit is lost.
        """
        for race in self.races(stage, _one_session_and_a_person_elsewhere, _promote, _person_commits("app.py"), MOMENTS):
            _went_well(race.intruder)
            conflict = _may_be_refused(race.action, "BASELINE_CONFLICT")

            assert race.intruder.value in race.history()
            assert race.head()["app.py"] == b"human\n"
            assert conflict or race.action.value in race.history()

    @needs(Capability.PROCESSES)
    def test_lck_03_a_session_is_promoted_once(self, stage: Stage) -> None:
        """A session is promoted at most once. Otherwise a person and a script that promote the same session commit its work twice."""
        for race in self.races(stage, _one_session, _promote, _promote):
            _may_be_refused(race.action, "SESSION_EXPIRED")
            _may_be_refused(race.intruder, "SESSION_EXPIRED")

            assert len(race.history()) == 2
            assert race.sessions[0].state == "promoted"

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_04_promotions_of_different_files_all_land(self, stage: Stage) -> None:
        """Otherwise agents that work on different files must queue, or lose their work."""
        for race in self.races(stage, _two_sessions("app.py", "README.md"), _promote, _promote_second):
            for ended, session in zip((race.action, race.intruder), race.sessions, strict=True):
                _lands_at_last(ended, session)

            assert len(race.history()) == 3
            assert (race.head()["app.py"], race.head()["README.md"]) == (_work_of(0), _work_of(1))

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_05_of_promotions_of_the_same_file_one_lands(self, stage: Stage) -> None:
        """Of concurrent promotions of the same file only one lands.

        Otherwise the second agent overwrites the work of the first without having seen it.
        """
        for race in self.races(stage, _two_sessions("app.py", "app.py"), _promote, _promote_second, POINTS_OF_AN_UPDATE):
            landed = [number for number, one in enumerate((race.action, race.intruder)) if not _may_be_refused(one, "BASELINE_CONFLICT")]
            assert len(landed) == 1, "both report that their work landed" if landed else "neither of them landed"
            [winner] = landed
            assert len(race.history()) == 2
            assert race.head()["app.py"] == _work_of(winner)

            assert race.sessions[winner].state == "promoted"
            refused("BASELINE_CONFLICT", race.sessions[1 - winner].promote)

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_06_a_session_is_promoted_or_evicted_but_not_both(self, stage: Stage) -> None:
        """Otherwise the record says that work was discarded although it is in the repository, or the reverse."""
        for race in self.races(stage, _one_session, _promote, _evict):
            _may_be_refused(race.action, "SESSION_EXPIRED")
            _may_be_refused(race.intruder, "SESSION_EXPIRED")

            if race.sessions[0].state == "promoted":
                assert race.head()["app.py"] == b"agent\n"
            else:
                assert race.sessions[0].state == "expired"
                assert len(race.history()) == 1

    @needs(Capability.PROCESSES)
    def test_lck_07_a_write_beside_an_eviction_brings_nothing_back(self, stage: Stage) -> None:
        """A write during an eviction does not recreate the workspace.

        Otherwise an ended session has a workspace again, which is never removed.
        """
        for action, intruder in ((_evict, _write), (_write, _evict)):
            for race in self.races(stage, _one_session, action, intruder, share=0.5):
                _may_be_refused(race.action, "SESSION_EXPIRED")
                _may_be_refused(race.intruder, "SESSION_EXPIRED")
                session = race.sessions[0]
                if session.state == "active":  # the eviction was refused as busy
                    session.evict()

                assert session.state == "expired"
                assert race.workspaces[0] is None or not race.workspaces[0].exists()

    @needs(Capability.PROCESSES, Capability.CLOCK)
    @protects_work
    def test_lck_08_a_sweep_leaves_a_promotion_alone(self, stage: Stage) -> None:
        """A sweep does not evict a session that is being promoted.

        Otherwise work is discarded at the very moment when a person promotes it.
        """
        for race in self.races(stage, _one_due_of_two, _promote_second, _sweep):
            due, working = race.sessions
            _went_well(race.action)
            _went_well(race.intruder)

            assert race.head()["app.py"] == b"agent\n"
            assert (due.state, working.state) == ("expired", "promoted")

    @needs(Capability.PROCESSES, Capability.CLOCK)
    def test_lck_09_sweeps_do_not_disturb_one_another(self, stage: Stage) -> None:
        """Concurrent sweeps do not disturb one another.

        Otherwise a timer in every process of a server ends in errors, and some sessions are never evicted.
        """
        for race in self.races(stage, _one_due_of_two, _sweep, _sweep):
            due, working = race.sessions
            _went_well(race.action)
            _went_well(race.intruder)

            assert (due.state, working.state) == ("expired", "active")

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_10_housekeeping_of_git_does_not_disturb_a_promotion(self, stage: Stage) -> None:
        """Git maintenance does not disturb a promotion. Otherwise work is lost because git ran gc, which it does by itself."""
        for race in self.races(stage, _one_session, _promote, _tidies):
            _went_well(race.intruder)
            session = race.sessions[0]
            if session.state == "active":  # git itself can fail to write an object when gc has just removed its empty directory
                session.promote()

            assert session.state == "promoted"
            assert race.head()["app.py"] == b"agent\n"
            race.stage.durable.git("fsck", "--strict", "--no-dangling", "--no-progress")

    @needs(Capability.PROCESSES, Capability.CRASH)
    def test_lck_11_a_killed_process_is_in_nobodys_way(self, stage: Stage) -> None:
        """A killed process blocks no other.

        Otherwise one crash stops all other agents until a person finds the lock file and deletes it.
        """
        for killed in kill_during(stage, promote, self.files()):
            session = killed.engine.start_session("The next one")
            session.write("README.md", "agent\n")

            lands(killed.stage, session, {"README.md": b"agent\n"})

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_12_writes_to_one_session_are_all_there(self, stage: Stage) -> None:
        """Concurrent writes to one session are all kept.

        Otherwise an agent that writes through an editor and a server at once loses some of its writes.
        """
        for race in self.races(stage, _one_session, _write, _write_another):
            for ended, path in ((race.action, "late.txt"), (race.intruder, "another.txt")):
                if _may_be_refused(ended):
                    race.sessions[0].write(path, "late\n")

            assert race.sessions[0].touched_files() == ["another.txt", "app.py", "late.txt"]

    @needs(Capability.PROCESSES)
    def test_lck_13_sessions_that_start_at_once_are_two(self, stage: Stage) -> None:
        """Sessions that start at the same time are distinct. Otherwise two agents share one workspace."""
        for race in self.races(stage, _one_session, _start, _start):
            _went_well(race.action)
            _went_well(race.intruder)

            states = race.stage.gittrix.states()
            assert states == dict.fromkeys((race.sessions[0].id, race.action.value, race.intruder.value), "active")
            assert len(states) == 3

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_14_a_commit_at_the_desk_during_a_promotion_is_kept(self, stage: Stage) -> None:
        """A commit in the checkout during a promotion is kept, the promotion lands on top of it, and the checkout is in step with both.

        Otherwise the commit of a person at their desk takes the agent's work back without saying so, or is taken back by it.
        """
        for race in self.races(stage, _one_session, _promote, _person_commits_at_the_desk):
            if race.intruder.code is not None:  # git found a lock, and said so
                _person_commits_at_the_desk(race.stage)
            _lands_at_last(race.action, race.sessions[0])

            assert (race.head()["README.md"], race.head()["app.py"]) == (b"human\n", b"agent\n")
            assert len(race.history()) == 3
            assert race.stage.durable.git("status", "--porcelain") == ""

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_15_of_contended_promotions_of_a_file_one_lands(self, stage: Stage) -> None:
        """Of two promotions of one file at the same instant one lands, over and over.

        Otherwise an agent's work is overwritten once in a hundred times, at an instant that no search of a few orders meets.
        """
        for contest in contests(stage, ("A", "B"), ("promote", "promote")):
            landed = [one for one in contest.answers if not contest.refused(one, "BASELINE_CONFLICT")]

            assert len(landed) == 1 or (not landed and contest.all_busy), f"{len(landed)} report that their work landed"
            assert contest.commits() == [one.value for one in landed]
            for one in landed:
                assert stage.judge.tree(stage.judge.head())["app.py"] == contest.work[one.process]

    @needs(Capability.PROCESSES)
    @protects_work
    def test_lck_16_of_a_contended_promotion_and_eviction_one_happens(self, stage: Stage) -> None:
        """A session that is promoted and evicted at the same instant is promoted or evicted, over and over.

        Otherwise the record says now and then that work is gone which is in the repository, or the reverse, and nobody can repeat it.
        """
        for contest in contests(stage, ("A", "A"), ("promote", "evict")):
            promotion, _ = contest.answers
            landed = [] if contest.refused(promotion, "SESSION_EXPIRED") else [promotion.value]
            contest.refused(contest.answers[1], "SESSION_EXPIRED")

            assert contest.commits() == landed
            assert contest.sessions["A"].state == ("promoted" if landed else "active" if contest.all_busy else "expired")

    def races(
        self, stage: Stage, prepare: Prepare, action: Actor, intruder: Actor, points: int = POINTS, share: float = 1.0
    ) -> Iterator[RaceOutcome]:
        """Run one process while another is held, at calls spread over its run, each time on a fresh stage.

        With a budget for races, the two are run in every order with one or two switches, for as long as that lasts.

        Args:
            stage: the action is first run alone on this stage, to learn its calls.
            prepare: prepares a stage.
            action: the process that is held at a call.
            intruder: runs meanwhile, until it ends or waits for the action.
            points: at how many of its calls the action is held.
            share: the part of the stage's budget that is used.
        """
        if (why := supported()) is not None:
            pytest.skip(why)
        if stage.budget.race:
            yield from self._orders(stage, prepare, (action, intruder), stage.budget.race * share)
            return
        alone = [session.id for session in prepare(stage)]
        calls = calls_of(lambda: action(stage, (*alone,)), within=stage.path)
        if not calls:
            pytest.skip("no call of it that it could be held at was seen")
        for at in spread(range(1, calls + 1), points):
            with self._prepared(stage, prepare) as race:
                came = intrude(
                    partial(action, race.stage, race.ids), partial(intruder, race.stage, race.ids), at=at, within=race.stage.path
                )
                yield race.ended(came.order)

    def _orders(self, stage: Stage, prepare: Prepare, actors: tuple[Actor, Actor], seconds: float) -> Iterator[RaceOutcome]:
        search = OrderSearch(
            partial(self._prepared, stage, prepare),
            lambda race: [partial(actor, race.stage, race.ids) for actor in actors],
            bound=2,
            seconds=seconds,
            within=lambda race: race.stage.path,
        )
        for race, order in search.orders():
            stage.journal.covered = f"two processes took turns: {search.explored()}"
            yield race.ended(order)

    @contextmanager
    def _prepared(self, stage: Stage, prepare: Prepare) -> Iterator[_Race]:
        with stage.another(files=self.files()) as here:
            sessions = prepare(here)
            yield _Race(here, sessions, tuple(session.workspace_path for session in sessions))


@dataclass(frozen=True)
class _Race:
    """A stage on which two processes are about to work."""

    stage: Stage
    sessions: tuple[DrivenSession, ...]
    workspaces: tuple[Path | None, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(session.id for session in self.sessions)

    def ended(self, order: ProcessInterleaving) -> RaceOutcome:
        """What came of it; the journal tells the order."""
        self.stage.journal.scene = f"Two processes, A and B, took turns:\n{order}"
        assert order.finding is None, order.finding
        action, intruder = order.ended
        return RaceOutcome(self.stage, self.sessions, self.workspaces, action, intruder)


def _went_well(ended: Ended) -> None:
    assert ended.code is None, f"{ended.code}: {ended.text}"


def _may_be_refused(ended: Ended, *codes: str) -> bool:
    """Check that a process succeeded, or was refused with one of the codes or as busy; gives whether it was refused."""
    assert ended.code in {None, *codes, *BUSY}, f"{ended.code}: {ended.text}"
    return ended.code is not None


def _lands_at_last(ended: Ended, session: DrivenSession) -> None:
    """Check that a promotion was made, or was refused as busy and succeeds now."""
    if _may_be_refused(ended):
        session.promote()
    assert session.state == "promoted"


def _one_session(stage: Stage) -> tuple[DrivenSession, ...]:
    session = at_work(stage)
    return (session,)


def _one_session_and_a_person_elsewhere(stage: Stage) -> tuple[DrivenSession, ...]:
    # No checkout is in the way of a promotion then, and none guards the person's commit.
    stage.durable.git("checkout", "-q", "-b", "elsewhere")
    return _one_session(stage)


def _two_sessions(first: str, second: str) -> Prepare:
    def prepare(stage: Stage) -> tuple[DrivenSession, ...]:
        sessions = stage.start(), stage.start()
        for number, (session, path) in enumerate(zip(sessions, (first, second), strict=True)):
            session.write(path, _work_of(number))
        return sessions

    return prepare


def _work_of(number: int) -> bytes:
    """What a session writes: the bytes tell whose work it is."""
    return b"agent %d\n" % number


def _one_due_of_two(stage: Stage) -> tuple[DrivenSession, ...]:
    due = stage.start(eviction=EvictionPolicy(ttl_idle="1h"))
    working = stage.start(eviction=EvictionPolicy(ttl_idle="4h"))
    working.write("app.py", "agent\n")
    stage.clock.advance(hours=2)
    return due, working


def _promote(stage: Stage, ids: tuple[str, ...]) -> str:
    return stage.reopen().get_session(ids[0]).promote().sha


def _promote_second(stage: Stage, ids: tuple[str, ...]) -> str:
    return stage.reopen().get_session(ids[1]).promote().sha


def _person_commits(path: str) -> Actor:
    return lambda stage, _: stage.rival.commit({path: "human\n"})


def _person_commits_at_the_desk(stage: Stage, _: tuple[str, ...] = ()) -> None:
    stage.durable.stage({"README.md": "human\n"})
    stage.durable.git("commit", "-q", "-m", "Edit README.md")


def _tidies(stage: Stage, _: tuple[str, ...]) -> None:
    # What is not reachable yet is left alone: git itself says that pruning while other programs run is not safe.
    stage.rival.git("gc", "--quiet", "--no-prune")
    stage.rival.git("pack-refs", "--all")


def _evict(stage: Stage, ids: tuple[str, ...]) -> None:
    stage.reopen().get_session(ids[0]).evict()


def _write(stage: Stage, ids: tuple[str, ...]) -> None:
    stage.reopen().get_session(ids[0]).write("late.txt", "late\n")


def _write_another(stage: Stage, ids: tuple[str, ...]) -> None:
    stage.reopen().get_session(ids[0]).write("another.txt", "late\n")


def _sweep(stage: Stage, _: tuple[str, ...]) -> list[str]:
    return stage.reopen().sweep()


def _start(stage: Stage, _: tuple[str, ...]) -> str:
    return stage.reopen().start_session("One of two").id
