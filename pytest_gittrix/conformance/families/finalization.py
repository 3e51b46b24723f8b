"""FIN: what an agent leaves behind is saved, or stays where it is (BotMinter; session-systems 4.3, 4.6)."""

from __future__ import annotations

from typing import Final

from pytest_gittrix.conformance.base.clause import needs
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.member_stage import DAY, Desk, at_desk
from pytest_gittrix.testing.repos.member_workspaces import SECRET, Deed, RepositoryPlan, git
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

UNBRANCHED: Final[tuple[Deed, ...]] = ("reflog", "dangling", "amended", "stash")
"""Ways to commit so that no branch leads to it."""


class FinalizationClauses(Clauses):
    """What is pushed, what is not, and what is done when it cannot be."""

    # Saved -------------------------------------------------------------------------------------------------------------------------

    @needs(Capability.MEMBERS)
    def test_fin_01_files_that_were_not_committed_are_pushed(self, stage: Stage) -> None:
        """Or an agent that is stopped before its last commit has done nothing."""
        desk = at_desk(stage, RepositoryPlan("app", end="dirty"))
        witness = desk.witness()

        desk.session.conclude()

        assert desk.session.life()["exit_status"] == "Completed"
        assert {"a.txt", "new/deep/file.txt", "run.sh", "link"} <= {*desk.published("unfinished")}
        assert "gone.txt" not in desk.published("unfinished")
        assert witness.wrongs_at_remotes(collected=True) == []

    @needs(Capability.MEMBERS)
    def test_fin_02_commits_that_were_not_pushed_are_pushed_as_they_are(self, stage: Stage) -> None:
        """Or the commits that a person reads are not those that the agent made."""
        desk = at_desk(stage)
        made = desk.keep()

        desk.session.conclude()

        assert desk.heads()["feature"] == made
        assert desk.session.life()["exit_status"] == "Completed"

    @needs(Capability.MEMBERS)
    def test_fin_03_commits_that_no_branch_leads_to_are_saved(self, stage: Stage) -> None:
        """Or what was committed before a checkout is lost with the workspace, and the record says that all is well."""
        desk = at_desk(stage, RepositoryPlan("app", deeds=UNBRANCHED, end="detached"))
        witness = desk.witness()

        desk.session.conclude()

        assert desk.session.life()["ended"] == "completed"
        assert witness.wrongs_at_remotes(collected=True) == []

    @needs(Capability.MEMBERS, Capability.CLOCK)
    def test_fin_04_nothing_is_lost_when_the_workspace_goes(self, stage: Stage) -> None:
        """Or the promise that work is saved holds for the work that somebody thought of."""
        stage.gittrix.members.keep_for(DAY, DAY, DAY)
        kept = RepositoryPlan("lib", end="dirty-default")
        desks = [at_desk(stage, RepositoryPlan("app", deeds=("branch", "default", "tagged"), end="dirty-detached")), at_desk(stage, kept)]
        witnesses = [desk.witness() for desk in desks]
        for desk in desks:
            desk.session.conclude()

        stage.clock.advance(days=365)
        stage.gittrix.members.scan()

        for desk, witness in zip(desks, witnesses, strict=True):
            gone = not any(desk.place(one.name).exists() for one in desk.member.plan)
            assert witness.wrongs_at_remotes(collected=gone) == []
            assert gone or all((desk.place(one.name) / ".git").exists() for one in desk.member.plan)

    @needs(Capability.MEMBERS)
    def test_fin_05_of_the_teams_files_knowledge_and_specifications_are_saved(self, stage: Stage) -> None:
        """Or what a member learned goes with its workspace, or its scribbles become everybody's."""
        desk = at_desk(stage, RepositoryPlan("team", extras=("knowledge",), team=True))
        desk.put("scribble.txt", "not for the team\n", "team")

        desk.session.conclude()

        published = {path for branch in desk.heads("team") for path in desk.published(branch, "team")}
        assert {"knowledge/new.md", "specs/s.md"} <= published
        assert "scribble.txt" not in published

    # Not pushed --------------------------------------------------------------------------------------------------------------------

    @needs(Capability.MEMBERS)
    def test_fin_06_credentials_are_never_pushed(self, stage: Stage) -> None:
        """Or a token is in a repository for ever, and in everybody's clone."""
        desk = at_desk(stage, RepositoryPlan("app", end="dirty", extras=("credentials",)))

        desk.session.conclude()

        assert "new/deep/file.txt" in desk.published("unfinished")
        assert _holding(desk, SECRET.decode()) == []
        assert SECRET in (desk.place() / ".env").read_bytes()

    @needs(Capability.MEMBERS)
    def test_fin_07_a_credential_that_was_committed_is_not_pushed(self, stage: Stage) -> None:
        """Or the mistake of an agent becomes a leak."""
        desk = at_desk(stage, RepositoryPlan("app", deeds=("secret",)))

        desk.session.conclude()

        assert _holding(desk, SECRET.decode()) == []
        assert desk.place().is_dir()

    @needs(Capability.MEMBERS)
    def test_fin_08_what_runs_leave_stays_in_place(self, stage: Stage) -> None:
        """Or logs and locks of one run are in the way of everybody's next one."""
        desk = at_desk(stage, RepositoryPlan("app", end="dirty", extras=("runtime",)))

        desk.session.conclude()

        published = {path for branch in desk.heads() for path in desk.published(branch)}
        assert published.isdisjoint({".ralph/state.json", "run.log", "logs/today"})
        assert (desk.place() / ".ralph" / "state.json").exists()

    # In the way --------------------------------------------------------------------------------------------------------------------

    @needs(Capability.MEMBERS)
    def test_fin_09_what_others_pushed_meanwhile_stays_and_the_work_is_put_on_it(self, stage: Stage) -> None:
        """Or whoever ends last takes the branch, and the others' commits are gone."""
        desk = at_desk(stage, RepositoryPlan("app", deeds=("diverged",)))
        theirs = desk.heads()["shared"]

        desk.session.conclude()

        assert (desk.session.life()["ended"], desk.session.life()["exit_status"]) == ("completed", "Completed")
        assert theirs in git(desk.member.remote("app"), "rev-list", "refs/heads/shared").split()
        assert {"rival.txt", "both.txt"} <= {*desk.published("shared")}

    @needs(Capability.MEMBERS)
    def test_fin_10_what_cannot_be_put_on_it_is_on_a_recovery_branch(self, stage: Stage) -> None:
        """Or a conflict that only a person can solve costs the work, or is never heard of."""
        desk = at_desk(stage, RepositoryPlan("app", deeds=("conflicting",)))
        theirs, mine = desk.heads()["shared"], desk.git("rev-parse", "shared")

        desk.session.conclude()

        recovery, life = f"recovery/{desk.session.id}/shared", desk.session.life()
        assert desk.heads()["shared"] == theirs
        assert desk.heads().get(recovery) == mine
        assert (life["ended"], life["exit_status"], [*life["recovery_branches"]]) == ("completed", "CompletedDegraded", [recovery])

    @needs(Capability.MEMBERS)
    def test_fin_11_a_branch_that_takes_no_push_has_its_work_on_a_recovery_branch(self, stage: Stage) -> None:
        """Or a protected branch is where work ends."""
        desk = at_desk(stage, RepositoryPlan("app", remote="protected", deeds=("branch",)))
        witness = desk.witness()

        desk.session.conclude()

        assert desk.session.life()["exit_status"] == "CompletedDegraded"
        assert "x2.txt" in desk.published(f"recovery/{desk.session.id}/feature/x")
        assert witness.wrongs_at_remotes(collected=True) == []

    @needs(Capability.MEMBERS)
    def test_fin_12_a_remote_that_cannot_be_reached_fails_the_session_and_costs_nothing(self, stage: Stage) -> None:
        """Or a night without a network ends in the loss of a day, or in a record that says that all is well."""
        desk = at_desk(stage)
        made = desk.keep()
        desk.leave()
        desk.mood("gone")

        desk.session.conclude()

        assert (desk.session.state, desk.session.life()["ended"], desk.session.life()["exit_status"]) == ("retained", "failed", "Failed")
        assert desk.git("rev-parse", "feature") == made
        assert (desk.place() / "left.txt").read_text() == "left\n"

    # Once more ---------------------------------------------------------------------------------------------------------------------

    @needs(Capability.MEMBERS)
    def test_fin_13_work_that_could_not_be_saved_is_saved_once_it_can(self, stage: Stage) -> None:
        """Or what failed once has failed for ever."""
        failed, killed = at_desk(stage), at_desk(stage)
        for desk in (failed, killed):
            desk.leave()
        failed.mood("gone")
        failed.session.conclude()
        killed.session.stop(force=True)
        failed.mood("plain")

        for desk in (failed, killed):
            desk.session.finalize()

        assert [(desk.session.state, desk.session.life()["ended"]) for desk in (failed, killed)] == [("retained", "completed")] * 2
        assert all("left.txt" in desk.published("feature") for desk in (failed, killed))

    @needs(Capability.MEMBERS)
    def test_fin_14_to_save_what_is_saved_does_nothing_more(self, stage: Stage) -> None:
        """Or every look at old work makes more commits of it."""
        desk = at_desk(stage, RepositoryPlan("app", deeds=("branch", "reflog", "conflicting"), end="dirty"))
        desk.session.conclude()
        before, life = desk.member.refs(), desk.session.life()

        desk.session.finalize()

        assert desk.member.refs() == before
        assert desk.session.state == "retained"
        assert [*desk.session.life()["recovery_branches"]] == [*life["recovery_branches"]]

    @needs(Capability.MEMBERS)
    def test_fin_15_where_there_is_nothing_to_save_nothing_is_pushed(self, stage: Stage) -> None:
        """Or every session that did nothing leaves a branch behind."""
        desk = at_desk(stage, RepositoryPlan("app", extras=("ignored",)), RepositoryPlan("lib", deeds=("pushed",)))
        before = desk.member.refs()

        desk.session.conclude()

        assert desk.member.refs() == before
        assert (desk.session.life()["ended"], desk.session.life()["exit_status"]) == ("completed", "Skipped")


def _holding(desk: Desk, text: str) -> list[str]:
    """The commits of all remotes that add or take away a text."""
    return [
        line for one in desk.member.plan for line in git(desk.member.remote(one.name), "log", "--all", "--format=%H", f"-S{text}").split()
    ]
