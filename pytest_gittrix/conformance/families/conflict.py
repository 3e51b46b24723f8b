"""CNF: a promotion is refused if and only if durable drifted over what is promoted (rule 4, docs/explanation/rules.md)."""

from __future__ import annotations

from collections.abc import Callable

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import at_work, conflict, lands, refused
from pytest_gittrix.conformance.base.outcome import ClauseFailure, Status
from pytest_gittrix.conformance.base.ways import PlayedWay, in_three_ways
from pytest_gittrix.testing.oracle import files_in
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.repos.history import Contents, Executable, Symlink
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability


class ConflictClauses(Clauses):
    """Drift and overlap."""

    @protects_work
    def test_cnf_01_an_edit_of_the_same_file_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise the agent overwrites an edit of the human's that it never saw."""
        _is_a_conflict(stage, self.files(), "app.py", lambda person: person.commit({"app.py": "human\n"}))

    @protects_work
    def test_cnf_02_an_edit_elsewhere_is_none(self, stage: Stage) -> None:
        """An edit of another file is no conflict. Otherwise a person cannot work on a repository while an agent does."""
        session = at_work(stage)
        theirs = stage.rival.commit({"README.md": "human\n"})

        made = lands(stage, session, {"app.py": b"agent\n"})

        assert stage.judge.commit(made.sha).parents == (theirs,)

    @protects_work
    def test_cnf_20_an_edit_elsewhere_at_the_desk_is_none(self, stage: Stage) -> None:
        """An edit of another file, committed in the checkout, is no conflict.

        Otherwise a person who commits at their desk while an agent works has their commit taken back, or blocks the agent.
        """
        session = at_work(stage)
        theirs = stage.durable.commit({"README.md": "human\n"})

        made = lands(stage, session, {"app.py": b"agent\n"})

        assert stage.judge.commit(made.sha).parents == (theirs,)
        assert files_in(stage.durable.path) == stage.judge.tree(made.sha)

    def test_cnf_03_an_edit_of_what_the_human_deleted_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise a file that a person removed from the project comes back."""
        _is_a_conflict(stage, self.files(), "app.py", lambda person: person.commit({"app.py": None}))

    @needs(Capability.DELETE)
    @protects_work
    def test_cnf_04_a_deletion_of_what_the_human_edited_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise a person's edit is deleted together with the file."""

        def play(played: PlayedWay) -> None:
            session = played.stage.start()
            session.delete("app.py")
            theirs = played.person.commit({"app.py": "human\n"})

            _refused_over(played, session, theirs, "app.py")

        in_three_ways(stage, self.files(), play)

    def test_cnf_05_an_edit_of_what_the_human_renamed_away_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise the project has the file twice, under the old name and the new."""
        _is_a_conflict(stage, self.files(), "app.py", lambda person: person.rename("app.py", "main.py"))

    @protects_work
    def test_cnf_06_a_file_renamed_onto_what_the_agent_wrote_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise the file that a person moved there is lost without having been deleted."""
        _is_a_conflict(stage, self.files(), "guide.md", lambda person: person.rename("README.md", "guide.md"))

    @protects_work
    def test_cnf_07_a_directory_where_the_agent_wrote_a_file_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise one file replaces everything that a person put into the directory."""
        _is_a_conflict(stage, self.files(), "docs", lambda person: person.commit({"docs/index.md": "human\n"}))

    @protects_work
    def test_cnf_08_a_file_where_the_agent_wrote_a_directory_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise the agent's directory replaces a person's file."""
        _is_a_conflict(stage, self.files(), "docs/index.md", lambda person: person.commit({"docs": "human\n"}))

    def test_cnf_09_a_change_of_mode_alone_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise a script that a person made executable loses its executable bit, because only bytes were compared."""
        _is_a_conflict(stage, self.files(), "app.py", lambda person: person.commit({"app.py": Executable(b"one\ntwo\nthree\n")}))

    @protects_work
    def test_cnf_10_a_file_that_became_a_link_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise the link is replaced, or its target is overwritten."""
        _is_a_conflict(stage, self.files(), "app.py", lambda person: person.commit({"app.py": Symlink("lib/util.py")}))

    def test_cnf_11_a_rename_of_case_alone_is_a_conflict(self, stage: Stage) -> None:
        """A rename that only changes case is a conflict. Otherwise the project has two files that are one on a Mac or on Windows."""
        _is_a_conflict(stage, self.files(), "README.md", lambda person: person.rename("README.md", "Readme.md"))

    def test_cnf_12_the_same_edit_on_both_sides_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise a person who made the edit first never learns that the agent made it too; only the caller may ask for leniency."""
        _is_a_conflict(stage, self.files(), "app.py", lambda person: person.commit({"app.py": "agent\n"}))

    def test_cnf_13_drift_that_ends_where_it_began_is_none(self, stage: Stage) -> None:
        """Drift that ends where it began is no conflict. Otherwise an edit that a person took back blocks the agent's work for good."""

        def play(played: PlayedWay) -> None:
            session = at_work(played.stage)
            played.person.commit({"app.py": "human\n"})
            played.person.commit({"app.py": "one\ntwo\nthree\n"})

            lands(played.stage, session, {"app.py": b"agent\n"})

        in_three_ways(stage, self.files(), play)

    def test_cnf_14_drift_outside_the_selection_is_none(self, stage: Stage) -> None:
        """Drift outside the selection is no conflict. Otherwise a person cannot promote the files that do not conflict."""
        session = at_work(stage, "app.py", "README.md")
        stage.rival.commit({"README.md": "human\n"})

        lands(stage, session, {"app.py": b"agent\n"}, files=["app.py"])

    def test_cnf_21_drift_outside_the_selection_at_the_desk_is_none(self, stage: Stage) -> None:
        """Drift outside the selection, committed in the checkout, is no conflict.

        Otherwise a person who fixed one of the agent's files at their desk cannot promote the others.
        """
        session = at_work(stage, "app.py", "README.md")
        _commits_at_the_desk(stage, "README.md")

        lands(stage, session, {"app.py": b"agent\n"}, files=["app.py"])

        _the_desk_is_in_step(stage)

    def test_cnf_15_history_rewritten_over_the_selection_is_a_conflict(self, stage: Stage) -> None:
        """Rewritten history of a selected file is a conflict.

        Otherwise a change that a person removed from history returns with the agent's work; a diff from the merge base misses this.
        """
        before = stage.durable.head()
        stage.durable.commit({"app.py": "regretted\n"})
        session = stage.start()
        session.write("app.py", "regretted\nagent\n")
        stage.durable.rewind(before)
        theirs = stage.durable.commit({"README.md": "human\n"})

        conflict(session.promote, "app.py")

        assert stage.judge.head() == theirs

    def test_cnf_16_history_rewritten_elsewhere_is_none(self, stage: Stage) -> None:
        """Rewritten history of other files is no conflict.

        Otherwise an amended commit message blocks the agent's work, or the rewritten commits return with the promotion.
        """
        before = stage.durable.head()
        regretted = stage.durable.commit({"README.md": "regretted\n"})
        session = at_work(stage)
        stage.durable.rewind(before)
        stage.durable.commit({"lib/util.py": "human\n"})

        made = lands(stage, session, {"app.py": b"agent\n"})

        assert regretted not in stage.judge.history(made.sha)

    def test_cnf_17_every_conflicting_path_is_named_and_no_other(self, stage: Stage) -> None:
        """A conflict names every conflicting path and no other.

        Otherwise a person resolves one conflict only to meet the next, or looks for one that does not exist.
        """

        def play(played: PlayedWay) -> None:
            session = at_work(played.stage, "README.md", "app.py", "lib/deep/data.txt", "new.txt")
            played.person.commit({"README.md": "human\n", "lib/deep/data.txt": None})
            theirs = played.person.commit({"lib/util.py": "human\n", "new.txt": "human\n"})

            _refused_over(played, session, theirs, "README.md", "lib/deep/data.txt", "new.txt")

        in_three_ways(stage, self.files(), play)

    @protects_work
    def test_cnf_18_a_refused_promotion_moves_nothing(self, stage: Stage) -> None:
        """A refused promotion changes nothing.

        Otherwise a refusal leaves half of the work in the person's repository, or removes some from the session.
        """

        def play(played: PlayedWay) -> None:
            session = at_work(played.stage, "app.py", "other.txt")
            played.person.commit({"app.py": "human\n"})

            with played.stage.durable.unchanged():
                refused("BASELINE_CONFLICT", session.promote)

            assert session.touched_files() == ["app.py", "other.txt"]
            assert session.read("app.py") == b"agent\n"

        in_three_ways(stage, self.files(), play)

    @protects_work
    def test_cnf_19_after_a_refusal_another_selection_can_be_promoted(self, stage: Stage) -> None:
        """Otherwise one conflict costs a person all the rest of the agent's work."""
        session = at_work(stage, "app.py", "other.txt")
        stage.rival.commit({"app.py": "human\n"})
        refused("BASELINE_CONFLICT", session.promote)

        lands(stage, session, {"other.txt": b"agent\n"}, files=["other.txt"])

    @protects_work
    def test_cnf_22_after_a_refusal_at_the_desk_another_selection_can_be_promoted(self, stage: Stage) -> None:
        """After a refusal over a commit made in the checkout, another selection can be promoted, and the checkout stays in step.

        Otherwise a conflict with a person who works at their desk costs them all the rest of the agent's work, or leaves files there.
        """
        session = at_work(stage, "app.py", "other.txt")
        _commits_at_the_desk(stage, "app.py")
        refused("BASELINE_CONFLICT", session.promote)

        lands(stage, session, {"other.txt": b"agent\n"}, files=["other.txt"])

        _the_desk_is_in_step(stage)

    @protects_work
    def test_cnf_23_hundreds_of_drifted_files_hide_no_conflict(self, stage: Stage) -> None:
        """A conflict is found among hundreds of drifted files.

        Otherwise an edit of a person's is lost whenever they have changed much, which is when nobody looks at each file.
        """
        many = {f"drifted/{number:03}.txt": "human\n" for number in range(300)}
        _is_a_conflict(stage, self.files(), "zoo.txt", lambda person: person.commit({**many, "zoo.txt": "human\n"}))

    @protects_work
    def test_cnf_24_a_file_that_became_a_link_of_the_same_bytes_is_a_conflict(self, stage: Stage) -> None:
        """Otherwise the link that a person made is replaced, because only bytes were compared."""

        def play(played: PlayedWay) -> None:
            played.stage.durable.commit({"current": "lib/util.py"})
            session = at_work(played.stage, "current")
            theirs = played.person.commit({"current": Symlink("lib/util.py")})

            _refused_over(played, session, theirs, "current")

        in_three_ways(stage, self.files(), play)

    @protects_work
    def test_cnf_25_an_edit_before_the_agents_first_write_is_a_conflict(self, stage: Stage) -> None:
        """An edit after the start of a session and before the agent's first write is a conflict.

        Otherwise what a person committed while the agent was still reading is overwritten by one that never saw it.
        """

        def play(played: PlayedWay) -> None:
            session = played.stage.start()
            theirs = played.person.commit({"app.py": "human\n"})
            session.write("app.py", "agent\n")

            _refused_over(played, session, theirs, "app.py")

        in_three_ways(stage, self.files(), play)

    @protects_work
    def test_cnf_26_an_edit_between_two_writes_of_the_agents_is_a_conflict(self, stage: Stage) -> None:
        """An edit between two writes of the agent's is a conflict.

        Otherwise each write takes what durable holds by then for seen, and a person's edit is overwritten.
        """

        def play(played: PlayedWay) -> None:
            session = at_work(played.stage, "README.md")
            theirs = played.person.commit({"app.py": "human\n"})
            session.write("app.py", "agent\n")

            _refused_over(played, session, theirs, "app.py")

        in_three_ways(stage, self.files(), play)

    def test_cnf_27_an_edit_of_a_name_that_begins_alike_is_none(self, stage: Stage) -> None:
        """An edit of a name that begins alike is no conflict. Otherwise work on `lib` is blocked by whoever works on `library`."""

        def play(played: PlayedWay) -> None:
            session = at_work(played.stage, "lib/util.py", "a")
            played.person.commit({"library/util.py": "human\n", "lib/util.py.orig": "human\n", "ab": "human\n"})

            lands(played.stage, session, {"lib/util.py": b"agent\n", "a": b"agent\n"})

        in_three_ways(stage, self.files(), play)


def _commits_at_the_desk(stage: Stage, path: str) -> None:
    """Commit a file as a person does in the checkout, by ``git add`` and ``git commit``."""
    stage.durable.stage({path: "human\n"})
    stage.durable.git("commit", "-q", "-m", f"Edit {path}")


def _the_desk_is_in_step(stage: Stage) -> None:
    """Check that the index and the files of the checkout are those of the branch, and that there are no other files."""
    assert stage.durable.git("status", "--porcelain") == ""


def _is_a_conflict(stage: Stage, files: Contents, path: str, human: Callable[[DurableRepo], str]) -> None:
    """Check in three ways that the agent's edit of a file is refused over a person's commit, which stays."""

    def play(played: PlayedWay) -> None:
        session = at_work(played.stage, path)
        theirs = human(played.person)

        _refused_over(played, session, theirs, path)

    in_three_ways(stage, files, play)


def _refused_over(played: PlayedWay, session: DrivenSession, theirs: str, *paths: str) -> None:
    """Check that a promotion is refused as a conflict over some paths, and that the person's commit stays the last one.

    Raises:
        ClauseFailure: it was done; work is lost if bytes of the person's are no longer in the last commit.
    """
    __tracebackhide__ = True
    try:
        conflict(session.promote, *paths)
    except ClauseFailure as failure:
        failure.lost = failure.status is Status.BROKEN and _replaced(played.stage, theirs)
        raise

    assert played.stage.judge.head() == theirs


def _replaced(stage: Stage, theirs: str) -> bool:
    """Whether a file that a person's last commit changed, or one below it, holds other bytes now."""
    judge = stage.judge
    wanted, now = judge.tree(theirs), judge.tree(judge.head())
    before = judge.tree(judge.commit(theirs).parents[0])
    return any(now.get(path) != content for path, content in wanted.items() if before.get(path) != content)
