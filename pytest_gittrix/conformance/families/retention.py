"""RET: how long workspaces of ended sessions are kept, and what is never collected (docs/explanation/you-know-botminter.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import refused
from pytest_gittrix.conformance.base.member_stage import AGENT, DAY, MOMENT, TWO_DAYS, MemberStage, start_another, start_member
from pytest_gittrix.testing.repos.member_workspaces import RepositoryPlan
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.driver_members import DrivenMember
from pytest_gittrix.testing.systems.protocol import Capability

NOTHING: Final = timedelta(0)
YEAR: Final = timedelta(days=365)
LARGE: Final = 3_000_000


class RetentionClauses(Clauses, needs=(Capability.MEMBERS,)):
    """Scans and cleanups."""

    @needs(Capability.CLOCK)
    def test_ret_01_a_workspace_is_kept_for_its_time_and_no_longer(self, stage: Stage) -> None:
        """A workspace is kept for its retention time and no longer.

        Otherwise it is removed before somebody could inspect it, or the disk fills up.
        """
        members = stage.gittrix.members
        members.keep_for(TWO_DAYS, YEAR, YEAR)
        session = start_member(stage, kind="loop", command=AGENT).session
        session.conclude()

        stage.clock.advance(TWO_DAYS - MOMENT)
        assert members.scan() == []
        assert session.state == "retained"
        stage.clock.advance(2 * MOMENT)
        assert members.scan() == [session.id]

        assert session.state == "removed"
        assert not session.repository().exists()
        assert members.scan() == []

    @needs(Capability.CLOCK)
    @protects_work
    def test_ret_02_what_ran_by_itself_is_kept_alike_however_it_ended(self, stage: Stage) -> None:
        """Loops and brains are retained equally long however they ended.

        Otherwise the workspace that shows why a session failed is the first to be removed.
        """
        members = stage.gittrix.members
        members.keep_for(TWO_DAYS, NOTHING, NOTHING)
        done = [start_member(stage, kind=kind, command=AGENT).session for kind in ("loop", "brain")]
        killed = start_member(stage, kind="loop", command=AGENT).session
        for session in done:
            session.conclude()
        killed.stop(force=True)

        stage.clock.advance(DAY)
        assert members.scan() == []
        stage.clock.advance(TWO_DAYS)
        assert members.scan() == sorted(session.id for session in (*done, killed))

    @needs(Capability.CLOCK)
    def test_ret_03_a_chat_that_went_well_goes_at_once_and_another_is_kept(self, stage: Stage) -> None:
        """A successful chat is removed at once and a killed one is kept.

        Otherwise the disk fills with chats, or a killed chat is removed before anybody can inspect it.
        """
        members = stage.gittrix.members
        members.keep_for(YEAR, NOTHING, TWO_DAYS)
        done, killed = start_member(stage).session, start_member(stage).session
        done.conclude()
        killed.stop(force=True)

        assert members.scan() == [done.id]
        stage.clock.advance(TWO_DAYS - MOMENT)
        assert members.scan() == []
        stage.clock.advance(2 * MOMENT)
        assert members.scan() == [killed.id]

    @needs(Capability.CLOCK)
    @protects_work
    def test_ret_04_the_time_begins_when_a_session_is_retained(self, stage: Stage) -> None:
        """The retention time begins when a session is retained. Otherwise the workspace of a long session is removed the moment it ends."""
        members = stage.gittrix.members
        members.keep_for(DAY, DAY, DAY)
        session = start_member(stage).session

        stage.clock.advance(YEAR)
        session.conclude()
        stage.clock.advance(DAY - MOMENT)
        assert members.scan() == []
        session.finalize()
        stage.clock.advance(DAY - MOMENT)

        assert members.scan() == []
        stage.clock.advance(2 * MOMENT)
        assert members.scan() == [session.id]

    @needs(Capability.CLOCK)
    @protects_work
    def test_ret_05_only_what_is_retained_is_collected(self, stage: Stage) -> None:
        """Only retained sessions are collected. Otherwise the workspace of a running agent is removed."""
        members = stage.gittrix.members
        members.keep_for(NOTHING, NOTHING, NOTHING, budget=0)
        session = start_member(stage).session
        stage.clock.advance(YEAR)

        assert members.scan() == []
        assert members.cleanup(all=True) == []
        assert members.cleanup(member="ada") == []
        assert members.cleanup(older_than=DAY) == []

        assert session.state == "active"
        assert session.repository().is_dir()

    @needs(Capability.CLOCK)
    @protects_work
    def test_ret_06_over_the_budget_the_oldest_go_first(self, stage: Stage) -> None:
        """Over the budget the oldest sessions are removed first.

        Otherwise one large session displaces all the others, or the newest, which somebody still needs, is removed.
        """
        members = stage.gittrix.members
        sessions = [_large(stage, start_another(member)) for member in [start_member(stage)] for _ in range(3)]

        members.keep_for(YEAR, YEAR, YEAR, budget=3 * LARGE + LARGE // 2)
        assert members.scan() == []
        members.keep_for(YEAR, YEAR, YEAR, budget=2 * LARGE + LARGE // 2)
        assert members.scan() == [sessions[0].id]
        members.keep_for(YEAR, YEAR, YEAR, budget=LARGE + LARGE // 2)
        assert members.scan() == [sessions[1].id]

        assert [session.state for session in sessions] == ["removed", "removed", "retained"]

    @needs(Capability.CLOCK)
    @protects_work
    def test_ret_07_work_that_could_not_be_saved_is_never_collected(self, stage: Stage) -> None:
        """Otherwise a remote that is unreachable for two days costs the work."""
        member = start_member(stage)
        member.leave_uncommitted()
        member.change_remote("gone")
        member.session.conclude()

        self.survives(stage, member)

    @needs(Capability.CLOCK)
    @protects_work
    def test_ret_08_work_of_a_session_that_was_killed_is_never_collected(self, stage: Stage) -> None:
        """The work of a killed session is never collected.

        Otherwise the work of an agent that was stopped in a hurry is silently removed a day later.
        """
        files, commits = start_member(stage), start_member(stage, RepositoryPlan("app", deeds=("reflog",)))
        files.leave_uncommitted()
        for member in (files, commits):
            member.session.stop(force=True)

        for member in (files, commits):
            self.survives(stage, member)

    @needs(Capability.CLOCK)
    @protects_work
    def test_ret_09_files_that_may_not_be_pushed_are_never_collected(self, stage: Stage) -> None:
        """Otherwise work that was deliberately left on the default branch is removed with the workspace."""
        member = start_member(stage, RepositoryPlan("app", end="dirty-default"))
        member.session.conclude()

        self.survives(stage, member)

    def survives(self, stage: Stage, member: MemberStage) -> None:
        """Check that neither a scan nor a cleanup in bulk removes a member's workspace."""
        members = stage.gittrix.members
        members.keep_for(NOTHING, NOTHING, NOTHING, budget=0)
        stage.clock.advance(YEAR)
        gone = {*members.scan(), *members.cleanup(all=True), *members.cleanup(member="ada"), *members.cleanup(older_than=DAY)}

        assert member.session.id not in gone
        assert member.session.state == "retained"
        assert member.work_tree().is_dir()

    def test_ret_10_who_names_a_session_means_it(self, stage: Stage) -> None:
        """A cleanup of a named session removes it even with unsaved work. Otherwise an unneeded workspace can never be removed."""
        member, other = start_member(stage), start_member(stage)
        for one in (member, other):
            one.leave_uncommitted()
            one.session.stop(force=True)

        assert stage.gittrix.members.cleanup(id=member.session.id) == [member.session.id]

        assert (member.session.state, other.session.state) == ("removed", "retained")
        assert (member.work_tree().exists(), other.work_tree().exists()) == (False, True)

    @protects_work
    def test_ret_11_what_is_removed_is_what_was_selected(self, stage: Stage) -> None:
        """A cleanup removes the selected sessions only. Otherwise cleaning up after one member cleans up after all."""
        members = stage.gittrix.members
        member = start_member(stage, who="ada")
        hers, his = member.session, start_another(member, who="bob")
        for session in (hers, his):
            session.conclude()

        assert members.cleanup(member="bob") == [his.id]
        assert members.cleanup(member="kim") == []
        assert hers.state == "retained"
        assert members.cleanup(all=True) == [hers.id]

    @needs(Capability.CLOCK)
    def test_ret_12_older_than_counts_from_the_start_and_means_older(self, stage: Stage) -> None:
        """Older than counts from the start of a session and is strict.

        Otherwise a session of exactly the given age is removed, or an older one stays.
        """
        members = stage.gittrix.members
        session = start_member(stage).session
        stage.clock.advance(DAY)
        session.conclude()

        assert members.cleanup(older_than=DAY) == []
        stage.clock.advance(MOMENT)
        assert members.cleanup(older_than=DAY) == [session.id]

    @protects_work
    def test_ret_13_a_dry_run_tells_and_changes_nothing(self, stage: Stage) -> None:
        """A dry run reports and changes nothing. Otherwise somebody who only asks what would be removed has removed it."""
        members = stage.gittrix.members
        session = start_member(stage).session
        session.conclude()

        for selector in ({"all": True}, {"id": session.id}):
            assert members.cleanup(dry_run=True, **selector) == [session.id]
            assert session.state == "retained"
            assert session.repository().is_dir()

    def test_ret_14_what_is_known_of_a_session_outlives_its_workspace(self, stage: Stage) -> None:
        """The record of a session outlives its workspace. Otherwise last week's work cannot be found."""
        member = start_member(stage, RepositoryPlan("app", deeds=("conflicting",)))
        member.session.conclude()
        before = member.session.life()

        stage.gittrix.members.cleanup(id=member.session.id)

        assert member.session.life() == {**before, "state": "removed"}
        refused("INVALID_INPUT", member.session.finalize)

    @needs(Capability.CLOCK, Capability.RESUME)
    @protects_work
    def test_ret_15_time_goes_on_while_nobody_is_there(self, stage: Stage) -> None:
        """Retention times pass while no engine runs. Otherwise every restart gives each workspace its full time again."""
        stage.gittrix.members.keep_for(DAY, DAY, DAY)
        session = start_member(stage).session
        session.conclude()
        stage.gittrix.close()
        stage.clock.advance(2 * DAY)

        reopened = stage.reopen().members
        reopened.keep_for(DAY, DAY, DAY)

        assert reopened.scan() == [session.id]


def _large(stage: Stage, session: DrivenMember) -> DrivenMember:
    """A retained session whose workspace is large, and which holds no work; the clock goes on by an hour."""
    at = session.repository() / "build" / "large.bin"
    at.parent.mkdir()
    at.write_bytes(b"\0" * LARGE)
    session.conclude()
    stage.clock.advance(hours=1)
    return session
