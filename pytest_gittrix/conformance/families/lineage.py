"""LIN: sessions that follow another by a handoff, after a crash or by a fork, and queries for them.

Sources: docs/explanation/you-know-gas-town.md and docs/explanation/you-know-pixir.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import at_work, lands, refused
from pytest_gittrix.conformance.families.durability import WORK, kill_during
from pytest_gittrix.conformance.families.log import say, texts
from pytest_gittrix.testing.systems.driver import DrivenEngine, DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability

ENDED: Final = ("SESSION_EXPIRED", "INVALID_INPUT")
"""Error codes where a session can have no successor; the second one if it has not ended."""

OTHER: Final = "never-started"


class LineClauses(Clauses):
    """Handoffs, successors, queries and forks."""

    @needs(Capability.LINES)
    def test_lin_01_a_session_that_is_handed_on_has_ended(self, stage: Stage) -> None:
        """A session that was handed on has ended. Otherwise two agents work on, each as if the work were its own."""
        parent = stage.start()

        child = parent.handoff()

        assert parent.state != "active"
        assert (child.state, parent.lineage()["outcome"], child.lineage()["outcome"]) == ("active", "handoff", None)
        refused("SESSION_EXPIRED", parent.write, "app.py", "late\n")
        refused("SESSION_EXPIRED", parent.promote)

    @needs(Capability.LINES)
    def test_lin_02_a_handoff_links_the_two_both_ways(self, stage: Stage) -> None:
        """A handoff links the two sessions in both directions.

        Otherwise a person cannot find the predecessor of a session, or its successor.
        """
        sessions = line_of(stage, 3)

        assert [session.lineage()["parent"] for session in sessions] == [None, sessions[0].id, sessions[1].id]
        assert [session.lineage()["child"] for session in sessions] == [sessions[1].id, sessions[2].id, None]

    @needs(Capability.LINES)
    def test_lin_03_a_line_has_the_name_of_its_first_session(self, stage: Stage) -> None:
        """A lineage is named after its first session.

        Otherwise the history of one piece of work falls into as many parts as there were agents.
        """
        sessions = line_of(stage, 3)
        sessions[-1].finish("crash")
        sessions.append(sessions[-1].succeed())

        assert {session.lineage()["chain"] for session in sessions} == {sessions[0].id}
        assert {session.lineage()["root"] for session in sessions} == {sessions[0].id}

    @needs(Capability.LINES)
    @protects_work
    def test_lin_04_the_workspace_goes_along_whole(self, stage: Stage) -> None:
        """A handoff takes over the whole workspace.

        Otherwise the next agent starts with half of the work, and believes that the other half was never done.
        """
        parent = stage.start()
        parent.write(".gitignore", "*.log\n")
        parent.write("notes.log", "ignored\n")
        parent.write("app.py", "agent\n")
        parent.write("new/deep.txt", b"\x00\xff")
        files = {path: parent.read(path) for path in parent.files()}
        touched = {path: parent.read(path) for path in parent.touched_files()}

        child = parent.handoff()

        assert {path: child.read(path) for path in child.files()} == files
        assert child.touched_files() == sorted(touched)
        lands(stage, child, touched)

    @needs(Capability.LINES)
    @protects_work
    def test_lin_05_the_baseline_goes_along(self, stage: Stage) -> None:
        """A handoff keeps the baseline.

        Otherwise the next session overwrites commits that a person made meanwhile and that it never saw.
        """
        parent = at_work(stage)
        theirs = committed_elsewhere(stage, "app.py")

        child = parent.handoff()

        assert child.touched_files() == ["app.py"]
        refused("BASELINE_CONFLICT", child.promote)
        assert stage.judge.head(stage.durable.branch) == theirs

    @needs(Capability.LINES)
    def test_lin_06_a_session_is_handed_on_once(self, stage: Stage) -> None:
        """A session is handed on at most once. Otherwise a lineage has two ends, and both are promoted."""
        parent, evicted = stage.start(), stage.start()
        child = parent.handoff()
        evicted.evict()

        refused("SESSION_EXPIRED", parent.handoff)
        refused("SESSION_EXPIRED", evicted.handoff)

        assert parent.lineage()["child"] == child.id
        assert sorted(stage.gittrix.states()) == sorted([parent.id, child.id, evicted.id])

    @needs(Capability.LINES)
    def test_lin_07_who_works_on_what_goes_along_unless_told_anew(self, stage: Stage) -> None:
        """A handoff keeps agent and work item unless new ones are given.

        Otherwise the work of a whole lineage is recorded under its first agent, or under none.
        """
        parent = stage.start(agent="rig/toast", rig="rig", work_unit="gt-1")

        child = parent.handoff(agent="rig/fig")

        assert stage.gittrix.query(rig="rig", work_unit="gt-1", agent="rig/fig") == [child.id]
        assert stage.gittrix.query(rig="rig", work_unit="gt-1", agent="rig/toast") == [parent.id]

    @needs(Capability.LINES, Capability.RESUME)
    def test_lin_08_lines_outlive_the_engine(self, stage: Stage) -> None:
        """Lineages survive the engine. Otherwise a restart loses the links of a history whose sessions are all still there."""
        sessions = line_of(stage, 3)
        before = [session.lineage() for session in sessions]
        stage.gittrix.close()

        engine = stage.reopen()

        assert [engine.get_session(session.id).lineage() for session in sessions] == before
        assert sorted(engine.chain(sessions[0].id)) == sorted(session.id for session in sessions)

    @needs(Capability.LINES, Capability.RESUME, Capability.CRASH)
    @protects_work
    def test_lin_09_a_killed_handoff_was_made_or_never_began(self, stage: Stage) -> None:
        """A killed handoff is complete or never began. Otherwise the work is in no active session, or in two."""
        for killed in kill_during(stage, hand_on, self.files()):
            parent = killed.session
            child = parent.lineage()["child"]
            live = killed.engine.get_session(child or parent.id)

            assert [id_ for id_, state in killed.engine.states().items() if state == "active"] == [live.id]
            assert parent.lineage()["outcome"] == ("handoff" if child else None)
            assert sorted(killed.engine.chain(parent.id)) == sorted({parent.id, live.id})
            assert live.touched_files() == sorted(WORK)
            lands(killed.stage, live, WORK)

    @needs(Capability.LINES)
    def test_lin_10_a_session_that_crashed_has_one_successor(self, stage: Stage) -> None:
        """A crashed session has one successor. Otherwise every process that notices a dead agent starts another in its place."""
        parent = stage.start()
        parent.finish("crash")

        child = parent.succeed(agent="rig/fig")

        refused("SESSION_EXPIRED", parent.succeed)
        assert (parent.lineage()["outcome"], parent.lineage()["child"]) == ("crash", child.id)
        assert (child.lineage()["parent"], child.state) == (parent.id, "active")
        assert sorted(stage.gittrix.states()) == sorted([parent.id, child.id])

    @needs(Capability.LINES)
    def test_lin_11_only_a_session_that_crashed_has_a_successor(self, stage: Stage) -> None:
        """Only a crashed session can have a successor. Otherwise a machine restarts work that was finished, or that a person stopped."""
        done, stopped, active = stage.start(), stage.start(), stage.start()
        done.finish("done")
        stopped.finish("killed")

        for session in (done, stopped, active):
            refused(ENDED, session.succeed)

        assert [session.lineage()["outcome"] for session in (done, stopped, active)] == ["done", "killed", None]
        assert [session.lineage()["child"] for session in (done, stopped, active)] == [None] * 3
        assert len(stage.gittrix.states()) == 3

    @needs(Capability.LINES, Capability.CLOCK)
    def test_lin_12_a_line_is_told_oldest_first(self, stage: Stage) -> None:
        """A lineage is listed oldest first. Otherwise a reader takes the end of the history for its beginning."""
        sessions = line_of(stage, 4, timedelta(minutes=1))
        stage.start()

        assert stage.gittrix.chain(sessions[0].id) == [session.id for session in sessions]

    @needs(Capability.LINES, Capability.CLOCK)
    def test_lin_13_what_is_asked_for_comes_newest_first(self, stage: Stage) -> None:
        """Query results come newest first. Otherwise an agent that asks for the latest work is given the earliest."""
        sessions = apart(stage, 3)

        assert stage.gittrix.query(agent="rig/toast") == [session.id for session in sessions[::-1]]

    @needs(Capability.LINES, Capability.CLOCK)
    def test_lin_14_since_is_inclusive_and_until_is_not(self, stage: Stage) -> None:
        """Since is inclusive and until is exclusive. Otherwise a session that falls exactly on the hour is in two reports, or in none."""
        began = stage.clock.now()
        first, second, third = (session.id for session in apart(stage, 3))
        minute = timedelta(minutes=1)

        assert {*stage.gittrix.query(since=began + minute)} == {second, third}
        assert {*stage.gittrix.query(until=began + minute)} == {first}
        assert {*stage.gittrix.query(since=began + minute, until=began + 2 * minute)} == {second}

    @needs(Capability.LINES, Capability.CLOCK)
    def test_lin_15_a_limit_is_of_the_newest_and_none_is_no_limit(self, stage: Stage) -> None:
        """A limit keeps the newest and no limit returns everything. Otherwise a list that seems complete lacks the most recent sessions."""
        newest = [session.id for session in apart(stage, 3)][::-1]

        assert stage.gittrix.query(limit=2) == newest[:2]
        assert stage.gittrix.query(limit=0) == newest
        assert stage.gittrix.query(limit=9) == newest

    @needs(Capability.LINES)
    def test_lin_16_everything_that_is_asked_for_must_hold(self, stage: Stage) -> None:
        """A query returns only sessions that meet all its conditions. Otherwise a query for one agent's crashes returns everyone's."""
        wanted = stage.start(agent="rig/toast", rig="rig")
        others = [stage.start(agent="rig/toast", rig="other"), stage.start(agent="rig/fig", rig="rig"), stage.start()]
        for session in (wanted, *others[1:]):
            session.finish("crash")

        assert stage.gittrix.query(agent="rig/toast", rig="rig", outcome="crash") == [wanted.id]
        assert stage.gittrix.query(agent="rig/toast", rig="rig", outcome="done") == []
        assert stage.gittrix.query(chain=wanted.id, outcome="crash") == [wanted.id]
        assert sorted(stage.gittrix.query(agent="rig/toast")) == sorted([wanted.id, others[0].id])

    @needs(Capability.LINES)
    def test_lin_17_of_what_there_is_not_there_is_nothing(self, stage: Stage) -> None:
        """A query for unknown sessions returns nothing. Otherwise a program that asks for work that was never begun ends in an error."""
        stage.start(agent="rig/toast")

        assert stage.gittrix.chain(OTHER) == []
        assert stage.gittrix.query(chain=OTHER) == []
        assert stage.gittrix.query(agent=OTHER) == []

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.FORKS)
    def test_lin_18_a_fork_begins_with_what_was_said_until_then(self, stage: Stage) -> None:
        """A fork begins with the events up to the fork point.

        Otherwise an agent that is to try another way already knows how the first one ended, or has forgotten its task.
        """
        parent = stage.start()
        first, _ = say(parent, "first"), say(parent, "second")

        assert texts(parent.fork(first)) == ["first"]
        assert texts(parent.fork(first - 1)) == []
        assert texts(parent.fork()) == ["first", "second"]

    @needs(Capability.HISTORY, Capability.FORKS)
    def test_lin_19_a_fork_has_the_files_of_that_moment(self, stage: Stage) -> None:
        """A fork has the files of the fork point.

        Otherwise the agent's history mentions files that do not exist, and leaves out files that do.
        """
        parent = stage.start()
        parent.write("app.py", "then\n")
        then = say(parent, "first")
        parent.write("app.py", "now\n")
        parent.write("new.txt", "now\n")

        before, after = parent.fork(then), parent.fork()

        assert (before.read("app.py"), before.touched_files()) == (b"then\n", ["app.py"])
        assert (after.read("app.py"), after.touched_files()) == (b"now\n", ["app.py", "new.txt"])
        assert lands(stage, before, {"app.py": b"then\n"})

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.FORKS)
    def test_lin_20_a_fork_changes_nothing_of_its_parent(self, stage: Stage) -> None:
        """A fork changes nothing in its parent. Otherwise trying an alternative disturbs the original."""
        parent = at_work(stage)
        number = say(parent, "first")
        before = parent.events()

        parent.fork(number)
        parent.fork()

        assert parent.events() == before
        assert (parent.state, parent.touched_files()) == ("active", ["app.py"])

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.FORKS)
    def test_lin_21_a_forks_events_have_numbers_of_their_own(self, stage: Stage) -> None:
        """A fork's events have numbers of their own.

        Otherwise two events of a session have the same number, or there is a gap where the parent's later events were.
        """
        parent = stage.start()
        say(parent, "first")
        parent.write("app.py", "agent\n")
        say(parent, "second")

        child = parent.fork()
        seq = say(child, "third")

        assert [event["seq"] for event in child.events()] == [*range(seq + 1)]
        assert texts(child) == ["first", "second", "third"]

    @needs(Capability.FORKS, Capability.LINES)
    def test_lin_22_forks_know_their_parent_and_their_root(self, stage: Stage) -> None:
        """Forks record their parent and their root.

        Otherwise a person cannot tell which of ten attempts came from which, or that all of them share one origin.
        """
        first = stage.start()
        second = first.fork()
        third = second.fork()
        lineages = [one.lineage() for one in (first, second, third)]

        assert [lineage["parent"] for lineage in lineages] == [None, first.id, second.id]
        assert [lineage["root"] for lineage in lineages] == [first.id] * 3
        assert [lineage["chain"] for lineage in lineages] == [first.id, second.id, third.id]
        assert [lineage["child"] for lineage in lineages] == [None] * 3

    @needs(Capability.EVENTS, Capability.FORKS)
    def test_lin_23_a_fork_at_no_event_is_refused(self, stage: Stage) -> None:
        """A fork at an event that does not exist is refused.

        Otherwise a wrong number makes a session with too much history or none, without a warning.
        """
        parent = stage.start()
        number = len(parent.events())

        for wrong in (-1, number, number + 100):
            refused("INVALID_INPUT", parent.fork, wrong)

        assert stage.gittrix.states() == {parent.id: "active"}

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.FORKS)
    @protects_work
    def test_lin_24_what_one_does_later_does_not_reach_the_other(self, stage: Stage) -> None:
        """Later changes of parent and fork do not affect each other.

        Otherwise two attempts at one task are mixed, and neither can be judged.
        """
        parent = at_work(stage)
        say(parent, "first")
        child = parent.fork()

        parent.write("app.py", "parent\n")
        child.write("new.txt", "child\n")
        say(child, "to the child")
        say(parent, "to the parent")

        assert (parent.read("app.py"), parent.touched_files()) == (b"parent\n", ["app.py"])
        assert (child.read("app.py"), child.touched_files()) == (b"agent\n", ["app.py", "new.txt"])
        assert (texts(parent), texts(child)) == (["first", "to the parent"], ["first", "to the child"])
        parent.evict()
        assert child.read("app.py") == b"agent\n"

    @needs(Capability.FORKS)
    @protects_work
    def test_lin_25_a_fork_stands_on_the_baseline_of_its_parent(self, stage: Stage) -> None:
        """A fork has the baseline of its parent.

        Otherwise the fork overwrites commits that a person made meanwhile and that it never saw.
        """
        parent = at_work(stage)
        theirs = committed_elsewhere(stage, "app.py")

        child = parent.fork()

        assert child.touched_files() == ["app.py"]
        refused("BASELINE_CONFLICT", child.promote)
        assert stage.judge.head(stage.durable.branch) == theirs


def line_of(stage: Stage, number: int, every: timedelta = timedelta(0)) -> list[DrivenSession]:
    """Sessions of which each was handed on to the next, oldest first; ``every`` is the time between two of them."""
    sessions = [stage.start()]
    for _ in range(number - 1):
        if every:
            stage.clock.advance(every)
        sessions.append(sessions[-1].handoff())
    return sessions


def apart(stage: Stage, number: int) -> list[DrivenSession]:
    """Sessions of one agent, a minute apart, oldest first."""
    sessions: list[DrivenSession] = []
    for _ in range(number):
        if sessions:
            stage.clock.advance(minutes=1)
        sessions.append(stage.start(agent="rig/toast"))
    return sessions


def committed_elsewhere(stage: Stage, path: str) -> str:
    """Commit a change of a file as a person would, with no checkout of the branch in the way; gives the commit's id."""
    stage.durable.git("checkout", "-q", "-b", "elsewhere")
    return stage.rival.commit({path: "human\n"})


def hand_on(_: DrivenEngine, session: DrivenSession) -> Any:
    """The operation that is killed."""
    return session.handoff()
