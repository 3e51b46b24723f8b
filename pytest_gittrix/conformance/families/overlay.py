"""OVL: an agent reads the baseline with its changes over it; touched is the exact difference (rules 3 and 7, docs/explanation/rules.md)."""

from __future__ import annotations

from typing import Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import at_work, refused, run
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

BASELINE: Final = ["README.md", "app.py", "lib/deep/data.txt", "lib/util.py"]


class OverlayClauses(Clauses):
    """Reads, listings and touched files."""

    def test_ovl_01_a_file_reads_as_the_baseline_until_it_is_written(self, stage: Stage) -> None:
        """A file reads as in the baseline until it is written. Otherwise the agent starts from content that no commit ever held."""
        session = stage.start()

        assert session.files() == BASELINE
        assert session.read("lib/deep/data.txt") == b"data\n"
        assert session.touched_files() == []

    @protects_work
    def test_ovl_02_the_last_write_is_what_is_read(self, stage: Stage) -> None:
        """A read returns the last write. Otherwise an agent loses an edit, or finds the end of a longer version behind a shorter one."""
        session = stage.start()

        session.write("app.py", "much longer than it was before\n" * 100)
        session.write("app.py", "short\n")
        session.write("new/file.txt", "new\n")

        assert session.read("app.py") == b"short\n"
        assert session.read("new/file.txt") == b"new\n"
        assert session.touched_files() == ["app.py", "new/file.txt"]

    def test_ovl_03_reads_stay_at_the_baseline_when_durable_moves_on(self, stage: Stage) -> None:
        """Otherwise the agent sees a mixture of old and new files."""
        session = at_work(stage)

        stage.durable.commit({"README.md": "human\n", "lib/util.py": None, "later.txt": "human\n"})

        assert session.files() == BASELINE
        assert session.read("README.md") == b"hello\n"
        assert session.read("lib/util.py") == b"util\n"
        assert session.touched_files() == ["app.py"]

    def test_ovl_04_what_is_listed_can_be_read_and_nothing_else(self, stage: Stage) -> None:
        """A listing names exactly the files that can be read.

        Otherwise an agent opens files that do not exist, and misses files that do.
        """
        session = at_work(stage, "app.py", "lib/new.txt")

        listed = session.files()

        assert listed == sorted([*BASELINE, "lib/new.txt"])
        assert all(session.read(path) for path in listed)
        refused("PATH_NOT_FOUND", session.read, "lib/old.txt")

    @needs(Capability.DELETE)
    def test_ovl_05_a_deleted_file_reads_as_absent(self, stage: Stage) -> None:
        """Otherwise a file that an agent deleted comes back from the baseline at the next read."""
        session = stage.start()

        session.delete("app.py")

        refused("PATH_NOT_FOUND", session.read, "app.py")
        assert not session.exists("app.py")
        assert session.touched_files() == ["app.py"]

    @needs(Capability.DELETE)
    @protects_work
    def test_ovl_06_a_deleted_file_that_is_written_again_is_back(self, stage: Stage) -> None:
        """A deleted file that is written again exists again.

        Otherwise a rewritten file stays hidden behind its own deletion, and the promotion deletes it.
        """
        session = stage.start()
        session.delete("app.py")

        session.write("app.py", "agent\n")

        assert session.read("app.py") == b"agent\n"
        assert session.exists("app.py")

    @needs(Capability.DELETE)
    def test_ovl_07_a_file_that_was_made_and_deleted_again_is_not_touched(self, stage: Stage) -> None:
        """A file that was created and deleted again is not touched.

        Otherwise a person has to review and promote a file that does not exist.
        """
        session = at_work(stage, "app.py", "scratch/note.txt")

        session.delete("scratch/note.txt")

        assert session.touched_files() == ["app.py"]
        assert session.files() == BASELINE

    def test_ovl_08_a_file_that_is_as_it_was_is_not_touched(self, stage: Stage) -> None:
        """A file that is back at its baseline content is not touched.

        Otherwise an edit that an agent took back still causes conflicts and clutters the review.
        """
        session = stage.start()

        session.write("README.md", "hello\n")
        session.write("app.py", "agent\n")
        session.write("app.py", "one\ntwo\nthree\n")

        assert session.touched_files() == []

    @protects_work
    def test_ovl_09_an_ignored_file_that_is_written_by_name_is_touched(self, stage: Stage) -> None:
        """Otherwise a file that an agent made on purpose, such as a lock file or a fixture, is silently left behind."""
        stage.durable.commit({".gitignore": "*.log\nbuild/\n"})
        session = stage.start()

        session.write("expected.log", "agent\n")
        session.write("build/made.txt", "agent\n")

        assert session.touched_files() == ["build/made.txt", "expected.log"]
        assert session.read("expected.log") == b"agent\n"

    @needs(Capability.SHELL)
    def test_ovl_10_programs_and_the_session_see_the_same_files(self, stage: Stage) -> None:
        """Otherwise an agent that edits with its own tools and reads through the session works on two different projects."""
        session = stage.start()
        session.write("app.py", "through the session\n")

        printed = run(stage, session, "cat app.py; echo by a program > new.txt; rm README.md")

        assert printed == "through the session\n"
        assert session.read("new.txt") == b"by a program\n"
        refused("PATH_NOT_FOUND", session.read, "README.md")
        assert session.touched_files() == ["README.md", "app.py", "new.txt"]

    @needs(Capability.SHELL)
    @protects_work
    def test_ovl_11_what_the_agent_committed_is_touched_still(self, stage: Stage) -> None:
        """Files that the agent committed are still touched. Otherwise the promotion loses work because the agent committed it with git."""
        session = stage.start()

        run(stage, session, "git init -q; echo agent > app.py; rm README.md; echo new > new.txt; git add --all; git commit -qm work")

        assert session.touched_files() == ["README.md", "app.py", "new.txt"]

    @needs(Capability.SHELL)
    def test_ovl_12_no_index_or_ignore_rule_of_the_agent_hides_a_change(self, stage: Stage) -> None:
        """Otherwise the agent can hide a change, by mistake or on purpose, from the person who promotes."""
        session = stage.start()
        run(
            stage,
            session,
            "git init -q; git add --all; git update-index --assume-unchanged app.py; git update-index --skip-worktree README.md",
        )

        run(
            stage,
            session,
            """
            info=$(git rev-parse --git-path info); mkdir -p "$info"; echo '*' | tee "$info/exclude" > .gitignore
            echo agent > app.py; echo agent > README.md; echo agent > new.txt
            git rm -q --cached lib/util.py
            """,
        )

        assert session.touched_files() == [".gitignore", "README.md", "app.py", "new.txt"]
