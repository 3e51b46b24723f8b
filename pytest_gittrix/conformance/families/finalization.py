"""FIN: what an agent leaves behind is pushed, or stays in its workspace (docs/explanation/you-know-botminter.md)."""

from __future__ import annotations

from typing import Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.member_stage import DAY, MemberStage, start_member
from pytest_gittrix.testing.repos.member_workspaces import SECRET, Deed, RepositoryPlan, git
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

UNBRANCHED: Final[tuple[Deed, ...]] = ("reflog", "dangling", "amended", "stash")
"""Ways to commit so that no branch leads to it."""


class FinalizationClauses(Clauses, needs=(Capability.MEMBERS,)):
    """What is pushed, what is not, and what is done when it cannot be."""

    @protects_work
    def test_fin_01_files_that_were_not_committed_are_pushed(self, stage: Stage) -> None:
        """Uncommitted files are pushed. Otherwise all the work of an agent that is stopped before its last commit is lost."""
        member = start_member(stage, RepositoryPlan("app", end="dirty"))
        witness = member.witness()

        member.session.conclude()

        assert member.session.life()["exit_status"] == "Completed"
        assert {"a.txt", "new/deep/file.txt", "run.sh", "link"} <= {*member.published("unfinished")}
        assert "gone.txt" not in member.published("unfinished")
        assert witness.wrongs_at_remotes(collected=True) == []

    def test_fin_02_commits_that_were_not_pushed_are_pushed_as_they_are(self, stage: Stage) -> None:
        """Unpushed commits are pushed unchanged. Otherwise a person reads other commits than the agent made."""
        member = start_member(stage)
        made = member.commit()

        member.session.conclude()

        assert member.heads()["feature"] == made
        assert member.session.life()["exit_status"] == "Completed"

    @protects_work
    def test_fin_03_commits_that_no_branch_leads_to_are_saved(self, stage: Stage) -> None:
        """Commits that no branch reaches are saved.

        Otherwise commits made before a checkout are lost with the workspace, although the record reports success.
        """
        member = start_member(stage, RepositoryPlan("app", deeds=UNBRANCHED, end="detached"))
        witness = member.witness()

        member.session.conclude()

        assert member.session.life()["ended"] == "completed"
        assert witness.wrongs_at_remotes(collected=True) == []

    @needs(Capability.CLOCK)
    @protects_work
    def test_fin_04_nothing_is_lost_when_the_workspace_goes(self, stage: Stage) -> None:
        """Removing the workspace loses nothing. Otherwise the promise that work is saved only covers the cases that somebody thought of."""
        stage.gittrix.members.keep_for(DAY, DAY, DAY)
        plans = [
            RepositoryPlan("app", deeds=("branch", "default", "tagged"), end="dirty-detached"),
            RepositoryPlan("lib", end="dirty-default"),
        ]
        members = [start_member(stage, plan) for plan in plans]
        witnesses = [member.witness() for member in members]
        for member in members:
            member.session.conclude()

        stage.clock.advance(days=365)
        stage.gittrix.members.scan()

        for member, witness in zip(members, witnesses, strict=True):
            gone = not any(member.work_tree(one.name).exists() for one in member.remotes.plan)
            assert witness.wrongs_at_remotes(collected=gone) == []
            assert gone or all((member.work_tree(one.name) / ".git").exists() for one in member.remotes.plan)

    @protects_work
    def test_fin_05_of_the_teams_files_knowledge_and_specifications_are_saved(self, stage: Stage) -> None:
        """Of the team's files only knowledge and specifications are saved.

        Otherwise what a member learned is lost with its workspace, or its scratch files are published to the team.
        """
        member = start_member(stage, RepositoryPlan("team", extras=("knowledge",), team=True))
        member.write("scribble.txt", "not for the team\n", "team")

        member.session.conclude()

        published = {path for branch in member.heads("team") for path in member.published(branch, "team")}
        assert {"knowledge/new.md", "specs/s.md"} <= published
        assert "scribble.txt" not in published

    def test_fin_06_credentials_are_never_pushed(self, stage: Stage) -> None:
        """Otherwise a token stays in a repository, and in everybody's clone, for ever."""
        member = start_member(stage, RepositoryPlan("app", end="dirty", extras=("credentials",)))

        member.session.conclude()

        assert "new/deep/file.txt" in member.published("unfinished")
        assert _commits_with(member, SECRET.decode()) == []
        assert SECRET in (member.work_tree() / ".env").read_bytes()

    def test_fin_07_a_credential_that_was_committed_is_not_pushed(self, stage: Stage) -> None:
        """Otherwise an agent's mistake becomes a leak."""
        member = start_member(stage, RepositoryPlan("app", deeds=("secret",)))

        member.session.conclude()

        assert _commits_with(member, SECRET.decode()) == []
        assert member.work_tree().is_dir()

    def test_fin_08_what_runs_leave_stays_in_place(self, stage: Stage) -> None:
        """Runtime files are not pushed. Otherwise logs and locks of one run get in the way of everybody's next one."""
        member = start_member(stage, RepositoryPlan("app", end="dirty", extras=("runtime",)))

        member.session.conclude()

        published = {path for branch in member.heads() for path in member.published(branch)}
        assert published.isdisjoint({".ralph/state.json", "run.log", "logs/today"})
        assert (member.work_tree() / ".ralph" / "state.json").exists()

    @protects_work
    def test_fin_09_what_others_pushed_meanwhile_stays_and_the_work_is_put_on_it(self, stage: Stage) -> None:
        """Commits that others pushed meanwhile are kept and the work is put on top.

        Otherwise the last session to end overwrites the branch, and the others' commits are lost.
        """
        member = start_member(stage, RepositoryPlan("app", deeds=("diverged",)))
        theirs = member.heads()["shared"]

        member.session.conclude()

        assert (member.session.life()["ended"], member.session.life()["exit_status"]) == ("completed", "Completed")
        assert theirs in git(member.remotes.remote("app"), "rev-list", "refs/heads/shared").split()
        assert {"rival.txt", "both.txt"} <= {*member.published("shared")}

    @protects_work
    def test_fin_10_what_cannot_be_put_on_it_is_on_a_recovery_branch(self, stage: Stage) -> None:
        """Work that conflicts with the branch is pushed to a recovery branch.

        Otherwise a conflict that only a person can resolve costs the work, or is never reported.
        """
        member = start_member(stage, RepositoryPlan("app", deeds=("conflicting",)))
        theirs, mine = member.heads()["shared"], member.git("rev-parse", "shared")

        member.session.conclude()

        recovery, life = f"recovery/{member.session.id}/shared", member.session.life()
        assert member.heads()["shared"] == theirs
        assert member.heads().get(recovery) == mine
        assert (life["ended"], life["exit_status"], [*life["recovery_branches"]]) == ("completed", "CompletedDegraded", [recovery])

    @protects_work
    def test_fin_11_a_branch_that_takes_no_push_has_its_work_on_a_recovery_branch(self, stage: Stage) -> None:
        """Work for a branch that refuses pushes is pushed to a recovery branch. Otherwise work on a protected branch is lost."""
        member = start_member(stage, RepositoryPlan("app", remote="protected", deeds=("branch",)))
        witness = member.witness()

        member.session.conclude()

        assert member.session.life()["exit_status"] == "CompletedDegraded"
        assert "x2.txt" in member.published(f"recovery/{member.session.id}/feature/x")
        assert witness.wrongs_at_remotes(collected=True) == []

    @protects_work
    def test_fin_12_a_remote_that_cannot_be_reached_fails_the_session_and_costs_nothing(self, stage: Stage) -> None:
        """An unreachable remote fails the session and loses no work.

        Otherwise a night without a network loses a day's work, or the record reports success.
        """
        member = start_member(stage)
        made = member.commit()
        member.leave_uncommitted()
        member.change_remote("gone")

        member.session.conclude()

        life = member.session.life()
        assert (member.session.state, life["ended"], life["exit_status"]) == ("retained", "failed", "Failed")
        assert member.git("rev-parse", "feature") == made
        assert (member.work_tree() / "left.txt").read_text() == "left\n"

    @protects_work
    def test_fin_13_work_that_could_not_be_saved_is_saved_once_it_can(self, stage: Stage) -> None:
        """Work that could not be saved can be saved later. Otherwise a save that failed once can never succeed."""
        failed, killed = start_member(stage), start_member(stage)
        for member in (failed, killed):
            member.leave_uncommitted()
        failed.change_remote("gone")
        failed.session.conclude()
        killed.session.stop(force=True)
        failed.change_remote("plain")

        for member in (failed, killed):
            member.session.finalize()

        assert [(member.session.state, member.session.life()["ended"]) for member in (failed, killed)] == [("retained", "completed")] * 2
        assert all("left.txt" in member.published("feature") for member in (failed, killed))

    def test_fin_14_to_save_what_is_saved_does_nothing_more(self, stage: Stage) -> None:
        """Saving saved work again does nothing. Otherwise every repeated save adds commits."""
        member = start_member(stage, RepositoryPlan("app", deeds=("branch", "reflog", "conflicting"), end="dirty"))
        member.session.conclude()
        before, life = member.remotes.refs(), member.session.life()

        member.session.finalize()

        assert member.remotes.refs() == before
        assert member.session.state == "retained"
        assert [*member.session.life()["recovery_branches"]] == [*life["recovery_branches"]]

    def test_fin_15_where_there_is_nothing_to_save_nothing_is_pushed(self, stage: Stage) -> None:
        """Nothing is pushed where there is nothing to save. Otherwise every session without work leaves a branch behind."""
        member = start_member(stage, RepositoryPlan("app", extras=("ignored",)), RepositoryPlan("lib", deeds=("pushed",)))
        before = member.remotes.refs()

        member.session.conclude()

        assert member.remotes.refs() == before
        assert (member.session.life()["ended"], member.session.life()["exit_status"]) == ("completed", "Skipped")


def _commits_with(member: MemberStage, text: str) -> list[str]:
    """The commits of all remotes that add or remove a text."""
    remotes = [member.remotes.remote(one.name) for one in member.remotes.plan]
    return [commit for remote in remotes for commit in git(remote, "log", "--all", "--format=%H", f"-S{text}").split()]
