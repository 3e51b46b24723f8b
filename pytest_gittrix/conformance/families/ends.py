"""END: what the end of a session leaves: its unpromoted work, and nothing else (rules 7 and 8, docs/explanation/rules.md)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import at_work, beyond_a_script, lands, refused, run
from pytest_gittrix.conformance.base.workspace_facts import REPOSITORY, workspace_of
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.proc import descending, pids, working_below
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.oracle import Judge
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

_PATIENCE: Final = 10.0
"""Real seconds after which a process that should end, or do something, is not waited for any longer."""
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

    @needs(Capability.ARCHIVE, Capability.DELETE)
    @protects_work
    def test_end_09_a_deletion_can_be_had_back(self, stage: Stage) -> None:
        """A deletion that was not promoted can be had back.

        Otherwise who repeats an agent's work from what was set aside leaves in what the agent took out.
        """
        session = at_work(stage)
        session.delete("lib/util.py")

        session.evict()

        assert session.archived() == {"app.py": b"agent\n", "lib/util.py": None}

    def test_end_10_no_process_of_an_ended_session_stays(self, stage: Stage) -> None:
        """An ended session leaves no process. Otherwise each session takes a little more of the machine until it has to be restarted."""
        if not pids():
            pytest.skip("this system shows no processes in /proc")
        at_work(stage).evict()  # what a system starts once, for all sessions, may stay
        before = _processes_of(stage)

        at_work(stage, "evicted.txt").evict()
        at_work(stage, "promoted.txt").promote()

        assert not _still_there(lambda: _processes_of(stage) - before), "processes were left"

    @needs(Capability.CLOCK, Capability.SHELL)
    def test_end_11_a_running_program_stops_no_sweep(self, stage: Stage) -> None:
        """A session in which a program runs is swept whole or left whole, and all others are swept.

        Otherwise a server that an agent forgot keeps every session for ever, or writes where nothing is looked at any more.
        """
        busy, other = stage.start(eviction=_FOUR_HOURS), stage.start(eviction=_FOUR_HOURS)
        workspace = workspace_of(busy)
        with _program_in(stage, workspace) as write:
            stage.clock.advance(5 * _HOUR)
            swept = stage.gittrix.sweep()
            write()

        assert (other.id in swept, other.state) == (True, "expired")
        if busy.id not in swept:
            assert busy.read("late/file.txt") == b"late\n"
            stage.clock.advance(5 * _HOUR)
            assert stage.gittrix.sweep() == [busy.id]
        assert busy.state == "expired"
        assert not workspace.exists()

    @needs(Capability.SHELL, Capability.SIDE_WORK)
    @protects_work
    def test_end_12_a_branch_and_a_stash_of_the_agents_can_be_had_back(self, stage: Stage) -> None:
        """What the agent left on a branch of its own, and in a stash, can be had back.

        Otherwise work that an agent put aside to try something else is gone, since none of its files shows it.
        """
        session = stage.start()
        run(
            stage,
            session,
            f"""
            {REPOSITORY}
            git add --all; git commit -q --allow-empty -m first; git checkout -q -b own
            echo branch > branch.txt; git add branch.txt; git commit -q -m own; git checkout -q -
            echo stash >> app.py; git stash -q
            """,
        )

        session.evict()

        kept = session.side_work()
        assert kept is not None, "nothing was set aside"
        with Judge(kept) as judge:
            assert [data for data in (b"branch\n", b"one\ntwo\nthree\nstash\n") if not judge.has(SHA1.hash_object("blob", data))] == []


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


def _processes_of(stage: Stage) -> set[int]:
    """The processes that this one started, or that work in the place."""
    return {pid for pid, _ in descending(os.getpid())} | {pid for pid, _ in working_below(str(stage.path.resolve()))}


def _still_there(found: Callable[[], set[int]]) -> set[int]:
    """What is found, once nothing is, or after a while: a process takes a moment to end."""
    deadline = real_seconds() + _PATIENCE
    while (left := found()) and real_seconds() < deadline:
        time.sleep(0.05)
    return left


@contextmanager
def _program_in(stage: Stage, workspace: Path) -> Iterator[Callable[[], None]]:
    """A block in which a program of the agent's runs in a workspace; gives what makes it write, and waits until it has."""
    beyond_a_script(stage, "A program ran in the workspace meanwhile.")
    script = "exec 3>>held.txt; echo ready; read -r _; echo late >&3; mkdir -p late; echo late >late/file.txt; echo done"
    command = ["sh", "-c", f"{{ {script}; }} 2>/dev/null"]
    pipe, env = subprocess.PIPE, dict(stage.env)
    with subprocess.Popen(command, cwd=workspace, env=env, text=True, stdin=pipe, stdout=pipe) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"

        def write() -> None:
            with suppress(BrokenPipeError):  # the system has ended it
                program.communicate("now\n", timeout=_PATIENCE)

        try:
            yield write
        finally:
            program.kill()
