"""LIF: what a member's session goes through, from its start until its workspace is removed (docs/explanation/you-know-botminter.md)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import refused
from pytest_gittrix.conformance.base.member_stage import AGENT, APP, MemberStage, RunningAgent, start_another, start_member
from pytest_gittrix.testing.repos.member_workspaces import RepositoryPlan, git
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.driver_members import DrivenMember
from pytest_gittrix.testing.systems.protocol import Capability

ITEM: Final = "acme/app#12"
GONE: Final = ("INVALID_INPUT", "SESSION_NOT_FOUND")
"""Error codes that a verb on a removed session may have."""


class LifeClauses(Clauses, needs=(Capability.MEMBERS,)):
    """Starting, ending, and the work items that are held in between."""

    def test_lif_01_a_session_begins_with_what_the_remotes_have(self, stage: Stage) -> None:
        """A session starts from the state of the remotes.

        Otherwise an agent works on files that exist nowhere else, or on those of another branch.
        """
        member = start_member(stage, APP, RepositoryPlan("org/lib", remote="trunk"), RepositoryPlan("team", team=True))

        session = start_another(member)

        assert session.state == "active"
        for name, branch in (("app", "main"), ("org/lib", "trunk"), ("team", "main")):
            work_tree = session.repository(name)
            assert git(work_tree, "rev-parse", "HEAD") == member.heads(name)[branch]
            assert git(work_tree, "status", "--porcelain") == ""
            assert sorted(git(work_tree, "ls-files").splitlines()) == sorted(member.published(branch, name))

    @protects_work
    def test_lif_02_sessions_at_the_same_time_do_not_see_each_other(self, stage: Stage) -> None:
        """Concurrent sessions do not see each other. Otherwise one agent commits half of another's work."""
        member = start_member(stage)
        other = start_another(member, who="bob")

        member.commit("mine.txt")
        member.write("a.txt", "mine\n")

        assert member.work_tree() != other.repository()
        assert not (other.repository() / "mine.txt").exists()
        assert git(other.repository(), "status", "--porcelain") == ""
        assert git(other.repository(), "branch", "--list", "feature") == ""

    def test_lif_03_a_start_that_fails_leaves_nothing(self, stage: Stage) -> None:
        """A failed start leaves nothing behind.

        Otherwise the list shows a session that never started, and it keeps a work item for ever.
        """
        members = stage.gittrix.members
        member = start_member(stage, work_item=ITEM)
        member.session.conclude()
        before = members.states()
        addresses = {"app": member.remotes.remote("app").as_uri(), "lib": (stage.path / "nowhere.git").as_uri()}

        refused("ADAPTER_UNAVAILABLE", members.begin, "ada", addresses, work_item=ITEM)

        assert members.states() == before
        assert start_another(member, work_item=ITEM).state == "active"

    @needs(Capability.CLOCK)
    def test_lif_04_a_later_session_begins_with_what_the_remotes_have_then(self, stage: Stage) -> None:
        """A later session starts from the current state of the remotes.

        Otherwise every session starts from the day of the first one, and all of them repeat each other's work.
        """
        member = start_member(stage)
        member.remotes.commit_to(member.remotes.remote("app"), "main", {"later.txt": "later\n"})
        stage.clock.advance(hours=1)

        later = start_another(member)

        assert git(later.repository(), "rev-parse", "HEAD") == member.heads()["main"]
        assert (later.repository() / "later.txt").read_text() == "later\n"

    def test_lif_05_whatever_has_ended_is_retained(self, stage: Stage) -> None:
        """Every ended session is retained. Otherwise an ended session is never cleaned up, or its work can never be saved again."""
        done, stopped, killed, failed = (start_member(stage) for _ in range(4))
        failed.leave_uncommitted()
        failed.change_remote("gone")

        done.session.conclude()
        stopped.session.stop()
        killed.session.stop(force=True)
        failed.session.conclude()

        ends = [(member.session.state, member.session.life()["ended"]) for member in (done, stopped, killed, failed)]
        assert ends == [("retained", end) for end in ("completed", "completed", "killed", "failed")]
        assert all(member.work_tree().is_dir() for member in (done, stopped, killed, failed))

    @protects_work
    def test_lif_06_the_code_of_an_agent_costs_no_work(self, stage: Stage) -> None:
        """Work is saved whatever the agent's exit code. Otherwise an agent that crashes at its last step loses everything it had done."""
        with running_agent(stage) as (member, agent):
            member.leave_uncommitted()
            agent.exit(3)

            member.session.conclude()

            assert (member.session.state, member.session.life()["ended"]) == ("retained", "completed")
            assert "left.txt" in member.published("feature")

    def test_lif_07_a_forced_stop_kills_at_once_and_saves_nothing(self, stage: Stage) -> None:
        """Otherwise a harmful agent goes on, or its harmful work is pushed."""
        with running_agent(stage) as (member, agent):
            member.leave_uncommitted()
            before = member.remotes.refs()

            member.session.stop(force=True)

            assert not agent.runs
            assert (member.session.state, member.session.life()["ended"]) == ("retained", "killed")
            assert member.remotes.refs() == before
            assert (member.work_tree() / "left.txt").read_text() == "left\n"

    @protects_work
    def test_lif_08_a_stop_ends_the_agent_and_saves_its_work(self, stage: Stage) -> None:
        """Otherwise stopping the agents in the evening loses their work."""
        with running_agent(stage) as (member, agent):
            member.leave_uncommitted()

            member.session.stop()

            assert not agent.runs
            assert (member.session.state, member.session.life()["ended"]) == ("retained", "completed")
            assert "left.txt" in member.published("feature")

    def test_lif_09_to_stop_what_is_over_is_no_error(self, stage: Stage) -> None:
        """Stopping an ended session is no error.

        Otherwise a script that stops all sessions at night fails at the first one that had already ended.
        """
        stopped, killed = start_member(stage), start_member(stage)
        stopped.session.stop()
        killed.session.stop(force=True)
        before = [member.session.life() for member in (stopped, killed)]

        for member in (stopped, killed):
            member.session.stop()
            member.session.stop(force=True)
            member.session.conclude()

        assert [member.session.life() for member in (stopped, killed)] == before

    @protects_work
    def test_lif_10_only_what_may_follow_a_state_follows_it(self, stage: Stage) -> None:
        """A state can only be followed by its allowed successors.

        Otherwise work is saved while its agent still changes it, or removed before it is saved.
        """
        members = stage.gittrix.members
        member = start_member(stage)

        refused("INVALID_INPUT", member.session.finalize)
        refused("INVALID_INPUT", members.cleanup, id=member.session.id)
        assert member.session.state == "active"

        member.session.conclude()
        members.cleanup(id=member.session.id)
        for act in (member.session.finalize, lambda: members.cleanup(id=member.session.id)):
            refused(GONE, act)
        assert members.states().get(member.session.id) in ("removed", None)

    def test_lif_11_a_member_begins_anew_while_an_older_session_is_kept(self, stage: Stage) -> None:
        """A member can start while an older session is retained. Otherwise all work waits until somebody has cleaned up."""
        member = start_member(stage)
        member.leave_uncommitted()
        member.session.stop(force=True)

        later = start_another(member)

        assert (member.session.state, later.state) == ("retained", "active")
        assert (member.work_tree() / "left.txt").exists()
        assert not (later.repository() / "left.txt").exists()

    def test_lif_12_an_item_is_worked_on_by_one(self, stage: Stage) -> None:
        """A work item belongs to one session at a time. Otherwise two agents do the same work, and each undoes the other's."""
        member = start_member(stage, work_item=ITEM)
        other = start_another(member, who="bob")

        refused("WORK_ITEM_HELD", start_another, member, work_item=ITEM)

        assert other.acquire(ITEM) == member.session.id
        assert member.session.acquire(ITEM) == member.session.id
        assert sorted(stage.gittrix.members.states()) == sorted([member.session.id, other.id])

    def test_lif_13_of_many_who_ask_for_an_item_one_gets_it(self, stage: Stage) -> None:
        """Of concurrent claims of a work item one succeeds. Otherwise two agents that claim an item at the same moment both get it."""
        member = start_member(stage)
        sessions = [member.session, *(start_another(member, who=who) for who in ("bob", "eve", "kim"))]

        with ThreadPoolExecutor(len(sessions)) as threads:
            holders = [*threads.map(lambda session: session.acquire(ITEM), sessions)]

        assert len({*holders}) == 1
        assert holders[0] in {session.id for session in sessions}

    def test_lif_14_an_item_is_free_once_its_session_is_over(self, stage: Stage) -> None:
        """A work item is free once its session has ended. Otherwise work that was begun once can never be begun again."""
        member = start_member(stage)
        ends = (DrivenMember.conclude, DrivenMember.stop, lambda session: session.stop(force=True))

        for end in ends:
            session = start_another(member, work_item=ITEM)
            end(session)

        assert start_another(member, work_item=ITEM).state == "active"

    @needs(Capability.RESUME)
    def test_lif_15_an_item_is_held_across_a_restart(self, stage: Stage) -> None:
        """A work item stays claimed across a restart. Otherwise two agents work on every item after a restart."""
        member = start_member(stage, work_item=ITEM)
        stage.gittrix.close()
        stage.gittrix = stage.reopen()

        refused("WORK_ITEM_HELD", start_another, member, work_item=ITEM)

        assert stage.gittrix.members.get(member.session.id).acquire(ITEM) == member.session.id

    @needs(Capability.RESUME)
    def test_lif_16_an_agent_that_lives_goes_on_through_a_restart(self, stage: Stage) -> None:
        """A running agent goes on through a restart. Otherwise every restart fails the sessions of agents that never noticed it."""
        with running_agent(stage) as (member, agent):
            stage.gittrix.close()
            reopened = stage.reopen().members

            assert reopened.states() == {member.session.id: "active"}
            assert agent.runs
            reopened.get(member.session.id).stop()
            assert (reopened.get(member.session.id).state, agent.runs) == ("retained", False)

    @needs(Capability.RESUME)
    @protects_work
    def test_lif_17_a_chat_goes_on_through_a_restart(self, stage: Stage) -> None:
        """Otherwise a person loses their session because somebody restarted a server."""
        member = start_member(stage)
        member.leave_uncommitted()
        stage.gittrix.close()

        reopened = stage.reopen().members

        assert reopened.states() == {member.session.id: "active"}
        session = reopened.get(member.session.id)
        session.conclude()
        assert (session.state, session.life()["ended"]) == ("retained", "completed")
        assert "left.txt" in member.published("feature")

    def test_lif_18_a_session_whose_agent_has_gone_is_concluded_once(self, stage: Stage) -> None:
        """A session whose agent has exited is concluded once. Otherwise two callers that notice the same exit save the work twice."""
        member = start_member(stage, kind="loop", command=AGENT)
        member.leave_uncommitted()

        with ThreadPoolExecutor(2) as threads:
            [*threads.map(lambda session: session.conclude(), [member.session, member.session])]

        assert (member.session.state, member.session.life()["exit_status"]) == ("retained", "Completed")
        assert int(git(member.remotes.remote("app"), "rev-list", "--count", "main..feature")) == 1


@contextmanager
def running_agent(stage: Stage) -> Iterator[tuple[MemberStage, RunningAgent]]:
    """A member's session whose agent runs until it is stopped, at the latest at the end of the block."""
    agent = RunningAgent(stage.path / "agent")
    try:
        member = start_member(stage, kind="loop", command=agent.command)
        assert agent.pid
        yield member, agent
    finally:
        agent.kill()
