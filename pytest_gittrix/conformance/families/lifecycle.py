"""LIF: what a member's session goes through, from its start until its workspace is gone (BotMinter; session-systems 4.2, 4.3, 4.6)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Final

from pytest_gittrix.conformance.base.clause import needs
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import refused
from pytest_gittrix.conformance.base.member_stage import AGENT, APP, Awake, Desk, again_at, at_desk
from pytest_gittrix.testing.repos.member_workspaces import RepositoryPlan, git
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.driver_members import DrivenMember
from pytest_gittrix.testing.systems.protocol import Capability

ITEM: Final = "acme/app#12"
GONE: Final = ("INVALID_INPUT", "SESSION_NOT_FOUND")
"""What is answered where a session was removed."""


class LifeClauses(Clauses):
    """Starts, ends, and what is held in between."""

    # Starting ----------------------------------------------------------------------------------------------------------------------

    @needs(Capability.MEMBERS)
    def test_lif_01_a_session_begins_with_what_the_remotes_have(self, stage: Stage) -> None:
        """Or an agent works on files that nobody has, or on those of another branch."""
        desk = at_desk(stage, APP, RepositoryPlan("org/lib", remote="trunk"), RepositoryPlan("team", team=True))

        session = again_at(desk)

        assert session.state == "active"
        for name, branch in (("app", "main"), ("org/lib", "trunk"), ("team", "main")):
            place = session.repository(name)
            assert git(place, "rev-parse", "HEAD") == desk.heads(name)[branch]
            assert git(place, "status", "--porcelain") == ""
            assert sorted(git(place, "ls-files").splitlines()) == sorted(desk.published(branch, name))

    @needs(Capability.MEMBERS)
    def test_lif_02_sessions_at_the_same_time_do_not_see_each_other(self, stage: Stage) -> None:
        """Or one agent commits the half of another's work."""
        desk = at_desk(stage)
        other = again_at(desk, who="bob")

        desk.keep("mine.txt")
        desk.put("a.txt", "mine\n")

        assert desk.place() != other.repository()
        assert not (other.repository() / "mine.txt").exists()
        assert git(other.repository(), "status", "--porcelain") == ""
        assert git(other.repository(), "branch", "--list", "feature") == ""

    @needs(Capability.MEMBERS)
    def test_lif_03_a_start_that_fails_leaves_nothing(self, stage: Stage) -> None:
        """Or the list shows a session that never was, and it keeps a work item for ever."""
        members = stage.gittrix.members
        desk = at_desk(stage, work_item=ITEM)
        desk.session.conclude()
        before = members.states()
        addresses = {"app": desk.member.remote("app").as_uri(), "lib": (stage.path / "nowhere.git").as_uri()}

        refused("ADAPTER_UNAVAILABLE", members.begin, "ada", addresses, work_item=ITEM)

        assert members.states() == before
        assert again_at(desk, work_item=ITEM).state == "active"

    @needs(Capability.MEMBERS, Capability.CLOCK)
    def test_lif_04_a_later_session_begins_with_what_the_remotes_have_then(self, stage: Stage) -> None:
        """Or every session starts from the day on which the first one did, and all of them repeat each other's work."""
        desk = at_desk(stage)
        desk.member.commit_to(desk.member.remote("app"), "main", {"later.txt": "later\n"})
        stage.clock.advance(hours=1)

        later = again_at(desk)

        assert git(later.repository(), "rev-parse", "HEAD") == desk.heads()["main"]
        assert (later.repository() / "later.txt").read_text() == "later\n"

    # Ends --------------------------------------------------------------------------------------------------------------------------

    @needs(Capability.MEMBERS)
    def test_lif_05_whatever_has_ended_is_retained(self, stage: Stage) -> None:
        """Or what ended is never cleaned up, or its work can never be saved once more."""
        done, stopped, killed, failed = (at_desk(stage) for _ in range(4))
        failed.leave()
        failed.mood("gone")

        done.session.conclude()
        stopped.session.stop()
        killed.session.stop(force=True)
        failed.session.conclude()

        ends = [(desk.session.state, desk.session.life()["ended"]) for desk in (done, stopped, killed, failed)]
        assert ends == [("retained", end) for end in ("completed", "completed", "killed", "failed")]
        assert all(desk.place().is_dir() for desk in (done, stopped, killed, failed))

    @needs(Capability.MEMBERS)
    def test_lif_06_the_code_of_an_agent_costs_no_work(self, stage: Stage) -> None:
        """Or an agent that crashes at its last step takes everything with it that it had done."""
        with awake(stage) as (desk, agent):
            desk.leave()
            agent.leave(3)

            desk.session.conclude()

            assert (desk.session.state, desk.session.life()["ended"]) == ("retained", "completed")
            assert "left.txt" in desk.published("feature")

    @needs(Capability.MEMBERS)
    def test_lif_07_a_forced_stop_kills_at_once_and_saves_nothing(self, stage: Stage) -> None:
        """Or an agent that does harm goes on doing it, or its harm is pushed."""
        with awake(stage) as (desk, agent):
            desk.leave()
            before = desk.member.refs()

            desk.session.stop(force=True)

            assert not agent.runs
            assert (desk.session.state, desk.session.life()["ended"]) == ("retained", "killed")
            assert desk.member.refs() == before
            assert (desk.place() / "left.txt").read_text() == "left\n"

    @needs(Capability.MEMBERS)
    def test_lif_08_a_stop_ends_the_agent_and_saves_its_work(self, stage: Stage) -> None:
        """Or to end the day is to lose it."""
        with awake(stage) as (desk, agent):
            desk.leave()

            desk.session.stop()

            assert not agent.runs
            assert (desk.session.state, desk.session.life()["ended"]) == ("retained", "completed")
            assert "left.txt" in desk.published("feature")

    @needs(Capability.MEMBERS)
    def test_lif_09_to_stop_what_is_over_is_no_error(self, stage: Stage) -> None:
        """Or whoever stops everything at night is stopped by the first session that had ended by itself."""
        stopped, killed = at_desk(stage), at_desk(stage)
        stopped.session.stop()
        killed.session.stop(force=True)
        before = [desk.session.life() for desk in (stopped, killed)]

        for desk in (stopped, killed):
            desk.session.stop()
            desk.session.stop(force=True)
            desk.session.conclude()

        assert [desk.session.life() for desk in (stopped, killed)] == before

    @needs(Capability.MEMBERS)
    def test_lif_10_only_what_may_follow_a_state_follows_it(self, stage: Stage) -> None:
        """Or work is saved while its agent still changes it, or removed before it is saved."""
        members = stage.gittrix.members
        desk = at_desk(stage)

        refused("INVALID_INPUT", desk.session.finalize)
        refused("INVALID_INPUT", members.cleanup, id=desk.session.id)
        assert desk.session.state == "active"

        desk.session.conclude()
        members.cleanup(id=desk.session.id)
        for act in (desk.session.finalize, lambda: members.cleanup(id=desk.session.id)):
            refused(GONE, act)
        assert members.states().get(desk.session.id) in ("removed", None)

    @needs(Capability.MEMBERS)
    def test_lif_11_a_member_begins_anew_while_an_older_session_is_kept(self, stage: Stage) -> None:
        """Or nobody works until somebody has tidied up."""
        desk = at_desk(stage)
        desk.leave()
        desk.session.stop(force=True)

        later = again_at(desk)

        assert (desk.session.state, later.state) == ("retained", "active")
        assert (desk.place() / "left.txt").exists()
        assert not (later.repository() / "left.txt").exists()

    # Work items --------------------------------------------------------------------------------------------------------------------

    @needs(Capability.MEMBERS)
    def test_lif_12_an_item_is_worked_on_by_one(self, stage: Stage) -> None:
        """Or two agents do the same work, and each undoes the other's."""
        desk = at_desk(stage, work_item=ITEM)
        other = again_at(desk, who="bob")

        refused("WORK_ITEM_HELD", again_at, desk, work_item=ITEM)

        assert other.acquire(ITEM) == desk.session.id
        assert desk.session.acquire(ITEM) == desk.session.id
        assert sorted(stage.gittrix.members.states()) == sorted([desk.session.id, other.id])

    @needs(Capability.MEMBERS)
    def test_lif_13_of_many_who_ask_for_an_item_one_gets_it(self, stage: Stage) -> None:
        """Or whoever asks at the same moment as another is told the same."""
        desk = at_desk(stage)
        sessions = [desk.session, *(again_at(desk, who=who) for who in ("bob", "eve", "kim"))]

        with ThreadPoolExecutor(len(sessions)) as threads:
            told = [*threads.map(lambda session: session.acquire(ITEM), sessions)]

        assert len({*told}) == 1
        assert told[0] in {session.id for session in sessions}

    @needs(Capability.MEMBERS)
    def test_lif_14_an_item_is_free_once_its_session_is_over(self, stage: Stage) -> None:
        """Or work that was begun once can never be begun again."""
        desk = at_desk(stage)
        ends = (DrivenMember.conclude, DrivenMember.stop, lambda session: session.stop(force=True))

        for end in ends:
            session = again_at(desk, work_item=ITEM)
            end(session)

        assert again_at(desk, work_item=ITEM).state == "active"

    # Restarts ----------------------------------------------------------------------------------------------------------------------

    @needs(Capability.MEMBERS, Capability.RESUME)
    def test_lif_15_an_item_is_held_across_a_restart(self, stage: Stage) -> None:
        """Or after every restart two agents work on everything."""
        desk = at_desk(stage, work_item=ITEM)
        stage.gittrix.close()
        stage.gittrix = stage.reopen()

        refused("WORK_ITEM_HELD", again_at, desk, work_item=ITEM)

        assert stage.gittrix.members.get(desk.session.id).acquire(ITEM) == desk.session.id

    @needs(Capability.MEMBERS, Capability.RESUME)
    def test_lif_16_an_agent_that_lives_goes_on_through_a_restart(self, stage: Stage) -> None:
        """Or every restart fails the sessions of agents that never noticed it."""
        with awake(stage) as (desk, agent):
            stage.gittrix.close()
            again = stage.reopen().members

            assert again.states() == {desk.session.id: "active"}
            assert agent.runs
            again.get(desk.session.id).stop()
            assert (again.get(desk.session.id).state, agent.runs) == ("retained", False)

    @needs(Capability.MEMBERS, Capability.RESUME)
    def test_lif_17_a_chat_goes_on_through_a_restart(self, stage: Stage) -> None:
        """Or a person loses their session because somebody restarted a server."""
        desk = at_desk(stage)
        desk.leave()
        stage.gittrix.close()

        again = stage.reopen().members

        assert again.states() == {desk.session.id: "active"}
        session = again.get(desk.session.id)
        session.conclude()
        assert (session.state, session.life()["ended"]) == ("retained", "completed")
        assert "left.txt" in desk.published("feature")

    @needs(Capability.MEMBERS)
    def test_lif_18_a_session_whose_agent_has_gone_is_concluded_once(self, stage: Stage) -> None:
        """Or two who notice the same end bring two results about."""
        desk = at_desk(stage, kind="loop", command=AGENT)
        desk.leave()

        with ThreadPoolExecutor(2) as threads:
            [*threads.map(lambda session: session.conclude(), [desk.session, desk.session])]

        assert (desk.session.state, desk.session.life()["exit_status"]) == ("retained", "Completed")
        assert int(git(desk.member.remote("app"), "rev-list", "--count", "main..feature")) == 1


@contextmanager
def awake(stage: Stage) -> Iterator[tuple[Desk, Awake]]:
    """A session whose agent runs until somebody ends it."""
    with closing(_Ended(Awake(stage.path / "agent"))) as held:
        desk = at_desk(stage, kind="loop", command=held.agent.command)
        assert held.agent.pid
        yield desk, held.agent


class _Ended:
    """An agent that is ended at last."""

    def __init__(self, agent: Awake) -> None:
        self.agent = agent

    def close(self) -> None:
        self.agent.end()
