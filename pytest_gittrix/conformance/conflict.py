"""CNF: a promotion is refused if and only if durable drifted over what is promoted (DESIGN rule 4)."""

from __future__ import annotations

from pytest_gittrix.conformance.clauses import Clauses
from pytest_gittrix.conformance.expect import refused
from pytest_gittrix.harness.driver import Stage


class ConflictClauses(Clauses):
    """Drift and overlap."""

    def test_cnf_01_an_edit_of_the_same_file_is_a_conflict(self, stage: Stage) -> None:
        """Or the human's edit is overwritten by one that never saw it."""
        session = stage.start()
        session.write("app.py", "agent\n")
        theirs = stage.rival.commit({"app.py": "human\n"})

        error = refused("BASELINE_CONFLICT", session.promote)

        assert [*error.conflicting_files] == ["app.py"]
        assert stage.judge.head() == theirs

    def test_cnf_02_an_edit_elsewhere_is_none(self, stage: Stage) -> None:
        """Or nobody can work on a repository while an agent does."""
        session = stage.start()
        session.write("app.py", "agent\n")
        theirs = stage.rival.commit({"README.md": "human\n"})

        made = session.promote()

        assert stage.judge.commit(made.sha).parents == (theirs,)
        assert stage.judge.tree(made.sha)["README.md"] == b"human\n"
