"""ERR: what cannot be done is refused with a typed error that names it, and changes nothing (rules 7 and 11, docs/explanation/rules.md)."""

from __future__ import annotations

from typing import Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import NOT_READABLE, NOT_SELECTABLE, NOT_WRITABLE, at_work, lands, refused
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

UNKNOWN: Final = ("SESSION_NOT_FOUND", "INVALID_INPUT")
"""Error codes for an id that no session has."""


class BadInputClauses(Clauses):
    """Ids, paths and selections that name nothing."""

    def test_err_01_a_file_that_is_selected_twice_is_promoted_once(self, stage: Stage) -> None:
        """Otherwise a selection that two tools combined fails, or makes two changes of one."""
        session = at_work(stage)
        session.write("other.txt", "agent\n")

        lands(stage, session, {"app.py": b"agent\n"}, files=["app.py", "app.py"])

    @protects_work
    def test_err_02_an_id_that_is_a_path_leads_nowhere(self, stage: Stage) -> None:
        """Otherwise a caller who chooses an id can choose which of the person's files are read or removed."""
        with stage.durable.unchanged():
            for id_ in ("../durable", "..", "/", "", str(stage.durable.path)):
                stranger = stage.gittrix.get_session(id_)
                refused(UNKNOWN, stranger.read, "app.py")
                refused(UNKNOWN, stranger.evict)

    def test_err_03_a_missing_file_is_not_found_by_name(self, stage: Stage) -> None:
        """A missing file is reported by its name. Otherwise an agent takes a missing file for an empty one."""
        session = stage.start()

        error = refused("PATH_NOT_FOUND", session.read, "lib/missing.py")

        assert "lib/missing.py" in str(error)

    @protects_work
    def test_err_04_a_directory_is_no_file(self, stage: Stage) -> None:
        """A directory is not read or written as a file.

        Otherwise an agent reads a listing, or nothing, as contents; or a write replaces a directory of files by one file.
        """
        session = stage.start()

        refused(NOT_READABLE, session.read, "lib")
        refused(NOT_WRITABLE, session.write, "lib", "agent\n")

        assert session.read("lib/util.py") == b"util\n"
        assert session.touched_files() == []

    @protects_work
    def test_err_05_nothing_can_be_written_below_a_file(self, stage: Stage) -> None:
        """Otherwise the file is lost to a directory of the same name."""
        session = stage.start()

        refused(NOT_WRITABLE, session.write, "app.py/part.py", "agent\n")

        assert session.read("app.py") == b"one\ntwo\nthree\n"
        assert session.touched_files() == []

    def test_err_06_a_selection_with_an_unknown_path_is_refused_and_names_it(self, stage: Stage) -> None:
        """Otherwise a person who mistyped one of two files believes that both were promoted."""
        session = at_work(stage)

        with stage.durable.unchanged():
            error = refused(NOT_SELECTABLE, session.promote, files=["app.py", "mistyped.py"])

        assert "mistyped.py" in str(error)
        lands(stage, session, {"app.py": b"agent\n"})

    def test_err_07_a_selection_with_an_untouched_path_is_refused_and_names_it(self, stage: Stage) -> None:
        """Otherwise a person believes that a change was promoted which was never made."""
        session = at_work(stage)

        with stage.durable.unchanged():
            error = refused(NOT_SELECTABLE, session.promote, files=["app.py", "README.md"])

        assert "README.md" in str(error)
        assert session.state == "active"

    def test_err_08_an_empty_selection_is_not_everything(self, stage: Stage) -> None:
        """An empty selection does not select everything. Otherwise a person who unticked every file promotes all of them."""
        session = at_work(stage)

        with stage.durable.unchanged():
            refused(NOT_SELECTABLE, session.promote, files=[])

        assert session.state == "active"

    def test_err_09_an_untouched_session_has_nothing_to_promote(self, stage: Stage) -> None:
        """A promotion of an untouched session is refused.

        Otherwise history fills with empty commits, each of which claims that something was done.
        """
        session = stage.start()

        with stage.durable.unchanged():
            refused(NOT_SELECTABLE, session.promote)

    def test_err_10_a_promotion_to_a_branch_that_is_gone_is_refused(self, stage: Stage) -> None:
        """A promotion to a deleted branch is refused.

        Otherwise a branch that a person deleted or renamed comes back with the agent's work on it.
        """
        session = at_work(stage)
        stage.durable.git("branch", "-q", "-m", "main", "trunk")

        with stage.durable.unchanged():
            refused(("ADAPTER_UNAVAILABLE", "PROMOTE_FAILED", "BASELINE_CONFLICT", "INVALID_INPUT"), session.promote)

        assert session.read("app.py") == b"agent\n"

    @needs(Capability.DELETE)
    def test_err_11_deleting_a_file_that_is_not_there_is_no_error(self, stage: Stage) -> None:
        """Deleting a missing file is no error. Otherwise an agent that cleans up after itself has to check first."""
        session = stage.start()

        session.delete("lib/missing.py")

        assert session.touched_files() == []

    @needs(Capability.HUNKS)
    def test_err_12_a_hunk_that_is_not_there_is_refused(self, stage: Stage) -> None:
        """An unknown hunk is refused. Otherwise a person who chose from an older review promotes other lines than they read."""
        session = at_work(stage)

        with stage.durable.unchanged():
            refused(NOT_SELECTABLE, session.promote, hunks={"app.py": [7]})

        assert session.state == "active"

    @needs(Capability.STRATEGIES)
    def test_err_13_an_unknown_strategy_is_refused(self, stage: Stage) -> None:
        """Otherwise a mistyped strategy lands on the branch that it was meant to spare."""
        session = at_work(stage)

        with stage.durable.unchanged():
            refused(("INVALID_INPUT", "CAPABILITY_MISSING", "PROMOTE_FAILED"), session.promote, strategy="brunch")

        assert session.state == "active"
