"""END: what the end of a session leaves: its unpromoted work, and nothing else (rules 7 and 8, docs/explanation/rules.md)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import at_work, lands, refused
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

_HOUR: Final = timedelta(hours=1)
_FOUR_HOURS: Final = EvictionPolicy(ttl_idle=4 * _HOUR)


class EndClauses(Clauses):
    """Ends, and what is left afterwards."""

    @needs(Capability.ARCHIVE)
    @protects_work
    def test_end_01_the_work_of_an_evicted_session_can_be_had_back(self, stage: Stage) -> None:
        """Otherwise a day's work is gone because nobody came back in time."""
        _can_be_had_back(stage, lambda session: session.evict())

    @needs(Capability.ARCHIVE, Capability.DISCARD)
    @protects_work
    def test_end_02_the_work_of_a_discarded_session_can_be_had_back(self, stage: Stage) -> None:
        """Otherwise one slip of the hand costs all of an agent's work."""
        _can_be_had_back(stage, lambda session: session.discard())

    @needs(Capability.ARCHIVE, Capability.CLOCK)
    @protects_work
    def test_end_03_the_work_of_a_swept_session_can_be_had_back(self, stage: Stage) -> None:
        """Otherwise a timer deletes work that nobody has seen."""

        def sweep(session: DrivenSession) -> None:
            stage.clock.advance(5 * _HOUR)
            assert stage.gittrix.sweep() == [session.id]

        _can_be_had_back(stage, sweep, _FOUR_HOURS)

    @needs(Capability.ARCHIVE)
    @protects_work
    def test_end_04_what_was_not_selected_can_be_had_back(self, stage: Stage) -> None:
        """Work that a promotion did not select can be had back, and what it took is not in the archive.

        Otherwise who promotes the good half of the work loses the other, or finds the half twice.
        """
        session = at_work(stage, "app.py", "new/other.txt")

        lands(stage, session, {"app.py": b"agent\n"}, files=["app.py"])
        if session.state == "active":
            session.evict()

        assert session.archived() == {"new/other.txt": b"agent\n"}

    def test_end_05_a_session_that_stays_is_promoted_at_most_once(self, stage: Stage) -> None:
        """A session that keeps its workspace after a promotion is promoted at most once.

        Otherwise the same work is committed twice, or work that nobody has seen follows the work that was reviewed.
        """
        session = stage.start(eviction=EvictionPolicy(until_promote=False))
        session.write("app.py", "agent\n")
        lands(stage, session, {"app.py": b"agent\n"})

        with stage.durable.unchanged():
            refused("SESSION_EXPIRED", session.promote)

        assert session.state == "promoted"

    @needs(Capability.CLOCK, Capability.EXTEND, Capability.ABSOLUTE)
    def test_end_06_an_extension_leaves_the_absolute_time_as_it_is(self, stage: Stage) -> None:
        """Otherwise an agent that may ask for more time keeps its session for ever, which the limit is there to prevent."""
        session = stage.start(eviction=EvictionPolicy(ttl_idle=4 * _HOUR, ttl_absolute=6 * _HOUR))

        stage.clock.advance(3 * _HOUR)
        session.extend(10 * _HOUR)
        stage.clock.advance(3 * _HOUR)
        assert stage.gittrix.sweep() == []
        stage.clock.advance(seconds=1)

        assert stage.gittrix.sweep() == [session.id]

    @needs(Capability.CLOCK)
    def test_end_07_a_session_past_its_time_is_refused_before_a_sweep_came(self, stage: Stage) -> None:
        """A session past its time refuses every operation, also before a sweep came.

        Otherwise it depends on a timer whether late work gets into the repository, and nobody can tell why it did.
        """
        session = stage.start(eviction=_FOUR_HOURS)
        session.write("app.py", "agent\n")
        stage.clock.advance(4 * _HOUR + timedelta(seconds=1))

        with stage.durable.unchanged():
            refused("SESSION_EXPIRED", session.promote)
            refused("SESSION_EXPIRED", session.write, "app.py", "late\n")
            refused("SESSION_EXPIRED", session.read, "app.py")

        assert session.state != "promoted"

    @needs(Capability.DISCARD)
    def test_end_08_nothing_of_an_ended_session_stays_in_durable(self, stage: Stage) -> None:
        """An ended session leaves no reference, no work tree and no lock in durable.

        Otherwise they grow by each session until git is slow, and keep what was rejected in the repository for good.
        """
        before = _left_in(stage)

        at_work(stage, "evicted.txt").evict()
        at_work(stage, "promoted.txt").promote()
        at_work(stage, "discarded.txt").discard()

        assert _left_in(stage) == before


def _can_be_had_back(stage: Stage, end: Callable[[DrivenSession], object], eviction: EvictionPolicy | None = None) -> None:
    """Check that the archive of a session that ended has its edits and its new files."""
    session = stage.start(eviction=eviction)
    session.write("app.py", "agent\n")
    session.write("new/file.txt", "new\n")

    end(session)

    assert session.archived() == {"app.py": b"agent\n", "new/file.txt": b"new\n"}


def _left_in(stage: Stage) -> list[str]:
    """The names of the references of durable, of its work trees, and of the locks in it."""
    git_dir = stage.durable.path / ".git"
    names = stage.durable.git("for-each-ref", "--format=%(refname)").splitlines()
    trees = [line for line in stage.durable.git("worktree", "list", "--porcelain").splitlines() if line.startswith("worktree ")]
    return [*names, *trees, *sorted(path.name for path in git_dir.rglob("*.lock"))]
