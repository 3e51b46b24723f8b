"""FIL: files of all kinds and sizes reach durable as they are, and names that begin alike are told apart (rule 3)."""

from __future__ import annotations

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import at_work, lands, run
from pytest_gittrix.testing.repos.history import Executable
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

LARGE = 3 << 20
"""Bytes that some systems take for too many."""


class FileClauses(Clauses):
    """Kinds of files, sizes and names."""

    @needs(Capability.SHELL)
    def test_fil_01_an_executable_file_that_was_moved_stays_executable(self, stage: Stage) -> None:
        """Otherwise every script that an agent moves, as a refactoring does, cannot be run any more."""
        stage.durable.commit({"run.sh": Executable("#!/bin/sh\necho run\n")})
        session = stage.start()
        run(stage, session, "mkdir bin && mv run.sh bin/start.sh")

        lands(stage, session, {"run.sh": None, "bin/start.sh": Executable(b"#!/bin/sh\necho run\n")})

    @protects_work
    def test_fil_02_a_large_file_is_promoted(self, stage: Stage) -> None:
        """A large file is promoted. Otherwise a picture or a data set that an agent made is left out, and gone with the workspace."""
        session = stage.start()
        session.write("large.bin", b"x" * LARGE)
        session.write("app.py", "agent\n")

        assert session.touched_files() == ["app.py", "large.bin"]
        lands(stage, session, {"app.py": b"agent\n", "large.bin": b"x" * LARGE})

    @protects_work
    def test_fil_03_a_selected_name_selects_no_longer_one(self, stage: Stage) -> None:
        """A selected name selects no longer name that begins alike.

        Otherwise a file that nobody has reviewed is committed together with one that somebody selected.
        """
        names = ["a", "a.txt", "ab", "lib/a/b.txt", "lib/ab/c.txt"]
        session = at_work(stage, *names)

        lands(stage, session, {"a": b"agent\n", "lib/a/b.txt": b"agent\n"}, files=["a", "lib/a/b.txt"])

    def test_fil_04_a_message_with_a_body_is_kept_whole(self, stage: Stage) -> None:
        """A message with a body is kept whole. Otherwise the reasons that a person wrote down are gone, and only the first line is left."""
        message = "Add retries\n\nThe server drops one request in ten.\n\n- three times\n# not a comment\n"
        session = at_work(stage)

        made = lands(stage, session, {"app.py": b"agent\n"}, message=message)

        assert stage.judge.commit(made.sha).message.strip() == message.strip()

    @protects_work
    def test_fil_05_ignore_rules_of_the_agents_hide_no_tracked_file(self, stage: Stage) -> None:
        """Ignore rules that the agent changed hide no tracked file.

        Otherwise an edit of a file that the project has is left out, since the agent ignored its kind.
        """
        stage.durable.commit({"trace.log": "one\n"})
        session = stage.start()
        session.write(".gitignore", "*.log\napp.py\n")
        session.write("trace.log", "agent\n")
        session.write("app.py", "agent\n")

        assert session.touched_files() == [".gitignore", "app.py", "trace.log"]
        lands(stage, session, {".gitignore": b"*.log\napp.py\n", "app.py": b"agent\n", "trace.log": b"agent\n"})
