"""NAM: a name is taken exactly as it is given, or refused; none leads out of the workspace (rules 3 and 6, docs/explanation/rules.md)."""

from __future__ import annotations

import os
from typing import Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import NOT_READABLE, NOT_WRITABLE, allowed_to_refuse, at_work, lands, refused, run
from pytest_gittrix.testing.oracle import files_in, invariant_checkout
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

AWKWARD: Final = (
    " leading and trailing ",
    "-rf",
    "--all",
    'quo"te',
    "it's",
    "tab\there",
    "line\nbreak",
    "$(echo x)",
    "a,b",
    "*.txt",
    ":(top)app.py",
    "#comment",
    "!not",
    "100%",
    "new => old",
)
"""Names that a shell, a pathspec, a list or a line-based format would read as something else."""


class NamesClauses(Clauses):
    """Names of files."""

    @protects_work
    def test_nam_01_a_path_that_climbs_out_is_not_written(self, stage: Stage) -> None:
        """A path that climbs out of the workspace is not written. Otherwise an agent can write to any of the person's files."""
        self._refuses_to_write(stage, "../escaped.txt", "../../escaped.txt", "lib/../../escaped.txt", "../durable/app.py", "..")

    @protects_work
    def test_nam_02_an_absolute_path_is_not_written(self, stage: Stage) -> None:
        """Otherwise an agent can write to any of the person's files by its full path."""
        self._refuses_to_write(stage, str(stage.path / "escaped.txt"), str(stage.durable.path / "app.py"))

    def test_nam_03_a_git_directory_is_not_written(self, stage: Stage) -> None:
        """Otherwise an agent's hook runs wherever the commit is checked out, also on file systems that ignore case."""
        self._refuses_to_write(stage, ".git/hooks/pre-commit", ".git", "lib/.git/config", ".GIT/config", ".Git/hooks/pre-commit")

    @protects_work
    def test_nam_04_an_empty_path_or_one_with_a_nul_is_not_written(self, stage: Stage) -> None:
        """An empty path or one with a NUL is not written. Otherwise the name is cut short, and another file is written."""
        self._refuses_to_write(stage, "", "app.py\0.txt", ".", "lib/")

    def test_nam_05_a_path_that_leads_out_is_not_read(self, stage: Stage) -> None:
        """A path that leads out of the workspace is not read.

        Otherwise an agent reads the person's keys, or the commit that it should produce itself.
        """
        secret = stage.path / "secret.txt"
        secret.write_text("secret\n")
        session = stage.start()

        for path in ("../secret.txt", "../../../../secret.txt", "../durable/app.py", str(secret), "lib/../../secret.txt"):
            refused(NOT_READABLE, session.read, path)

    @needs(Capability.DELETE)
    @protects_work
    def test_nam_06_a_path_that_leads_out_is_not_deleted(self, stage: Stage) -> None:
        """A path that leads out of the workspace is not deleted. Otherwise cleaning up in a workspace removes the person's files."""
        session = stage.start()

        with stage.durable.unchanged():
            for path in ("../durable/app.py", str(stage.durable.path / "app.py"), "lib/../../durable/app.py", ".git"):
                refused(NOT_READABLE, session.delete, path)

    def test_nam_07_names_that_look_like_something_else_are_names(self, stage: Stage) -> None:
        """Names that look like options or quotes are plain names.

        Otherwise a file name is quoted, split, expanded or taken for an option on its way into history.
        """
        session = stage.start()
        for name in AWKWARD:
            session.write(name, "agent\n")

        assert session.touched_files() == sorted(AWKWARD)
        lands(stage, session, dict.fromkeys(AWKWARD, b"agent\n"))

    def test_nam_08_a_selection_names_files_and_not_patterns(self, stage: Stage) -> None:
        """A selection holds file names and not patterns.

        Otherwise a person who selects one file also promotes others that its name happens to match.
        """
        session = stage.start()
        for name in ("*", "[ab].txt", "a.txt", "b.txt", "a.txt.bak", "c/d.txt"):
            session.write(name, "agent\n")

        lands(stage, session, {"*": b"agent\n", "[ab].txt": b"agent\n"}, files=["*", "[ab].txt"])

    @protects_work
    def test_nam_18_a_name_that_is_a_pattern_is_not_matched_against_unsaved_work(self, stage: Stage) -> None:
        """A name that git reads as a pattern does not reach a person's unsaved work.

        Otherwise promoting such a file commits, overwrites or is blocked by every unsaved file that its name happens to match.
        """
        session = stage.start()
        names = [":(glob)**", ":(top)README.md", "*.env", "[r]eadme.md"]
        for name in names:
            session.write(name, "agent\n")
        stage.durable.dirty({"README.md": "unsaved\n", "secret.env": "unsaved\n", "lib/util.py": "unsaved\n"})
        files, staged = files_in(stage.durable.path), stage.judge.index()

        work = dict.fromkeys(names, b"agent\n")
        lands(stage, session, work)

        invariant_checkout(stage.judge, files=files.apply(work), staged=staged.apply(work))

    def test_nam_09_a_selected_name_is_not_a_beginning(self, stage: Stage) -> None:
        """A selected name is not a prefix. Otherwise an unselected file is promoted, because its name begins with a selected name."""
        session = stage.start()
        for name in ("app", "app.py", "app.py.orig", "apples/one.txt"):
            session.write(name, "agent\n")

        lands(stage, session, {"app": b"agent\n"}, files=["app"])

    def test_nam_10_names_beyond_ascii_keep_their_very_characters(self, stage: Stage) -> None:
        """Names beyond ASCII keep their exact characters. Otherwise a file comes back under a name that looks the same but is not."""
        names = ["caf\u00e9.txt", "nai\u0308ve.txt", "\u65e5\u672c\u8a9e/\u8aad.md", "\U0001f680.txt"]
        session = stage.start()
        for name in names:
            session.write(name, "agent\n")

        assert session.touched_files() == sorted(names)
        assert all(session.read(name) == b"agent\n" for name in names)
        lands(stage, session, dict.fromkeys(names, b"agent\n"))

    @protects_work
    def test_nam_11_names_that_are_not_utf_8_survive_in_durable(self, stage: Stage) -> None:
        """Names that are not UTF-8 survive in durable. Otherwise a promotion renames or drops unrelated files of an older project."""
        name = os.fsdecode(b"caf\xe9.txt")
        stage.durable.commit({name: b"old\n"})
        session = stage.start()

        assert session.read(name) == b"old\n"
        assert name in session.files()
        session.write("app.py", "agent\n")
        lands(stage, session, {"app.py": b"agent\n"})

    @needs(Capability.SHELL)
    def test_nam_12_names_that_are_not_utf_8_are_promoted_as_their_bytes(self, stage: Stage) -> None:
        """Names that are not UTF-8 are promoted byte for byte.

        Otherwise a file that one of the agent's programs made blocks the promotion, or arrives under another name.
        """
        session = stage.start()
        run(stage, session, r"""echo agent > "$(printf 'caf\351.txt')" """)

        name = os.fsdecode(b"caf\xe9.txt")
        assert session.touched_files() == [name]
        lands(stage, session, {name: b"agent\n"})

    def test_nam_13_long_names_and_deep_paths_are_names(self, stage: Stage) -> None:
        """Long names and deep paths are supported. Otherwise generated code with names as long as file systems allow cannot be promoted."""
        long, deep = "n" * 250, "/".join(["deep"] * 50) + "/file.txt"
        session = stage.start()
        session.write(long, "agent\n")
        session.write(deep, "agent\n")

        lands(stage, session, {long: b"agent\n", deep: b"agent\n"})

    def test_nam_14_files_that_git_reads_are_files(self, stage: Stage) -> None:
        """Files that git itself reads can be changed and promoted.

        Otherwise an agent cannot change what a repository ignores, or a branch name is mistaken for a file.
        """
        names = [".gitattributes", ".github/workflows/ci.yml", ".gitignore", "HEAD", "lib/.gitkeep", "main", "refs/heads/main"]
        session = stage.start()
        for name in names:
            session.write(name, "# agent\n")

        assert session.touched_files() == names
        lands(stage, session, dict.fromkeys(names, b"# agent\n"))

    def test_nam_19_files_that_git_reads_are_files_of_a_bare_repository(self, stage: Stage) -> None:
        """The same holds for a bare repository.

        Otherwise a file named as a part of the repository is written into the repository itself, which is the current directory.
        """
        with Stage.open(stage.system, files=self.files(), bare=True) as bare:
            names = ["HEAD", "config", "index", "refs/heads/main"]
            session = bare.start()
            for name in names:
                session.write(name, "# agent\n")

            lands(bare, session, dict.fromkeys(names, b"# agent\n"))

    def test_nam_15_another_spelling_is_no_second_file(self, stage: Stage) -> None:
        """Another spelling of a path is no second file. Otherwise selection and conflict check use one spelling, and the commit another."""
        session = stage.start()
        for path in ("./app.py", "lib//util.py", "lib/./util.py"):
            allowed_to_refuse(NOT_WRITABLE, session.write, path, "agent\n")

        assert set(session.files()) == {"README.md", "app.py", "lib/deep/data.txt", "lib/util.py"}
        assert set(session.touched_files()) <= {"app.py", "lib/util.py"}

    @protects_work
    def test_nam_16_a_name_of_another_case_is_another_file(self, stage: Stage) -> None:
        """A name in another case is another file.

        Otherwise an agent overwrites another file than it meant; a system may refuse, as no checkout on a Mac can hold both.
        """
        session = at_work(stage)
        allowed_to_refuse(NOT_WRITABLE, session.write, "ReadMe.md", "agent\n")

        allowed_to_refuse(("PROMOTE_FAILED", "PATH_COLLISION"), session.promote)

        assert stage.judge.tree(stage.judge.head())["README.md"] == b"hello\n"

    @needs(Capability.DELETE)
    @protects_work
    def test_nam_17_a_rename_of_case_alone_is_promoted(self, stage: Stage) -> None:
        """A rename that only changes case is promoted.

        Otherwise a misspelt name can never be corrected, or the file is lost with its old name.
        """
        session = stage.start()
        session.delete("README.md")
        session.write("ReadMe.md", "hello\n")

        lands(stage, session, {"README.md": None, "ReadMe.md": b"hello\n"})

    def _refuses_to_write(self, stage: Stage, *paths: str) -> None:
        session = stage.start()
        with stage.durable.unchanged():
            for path in paths:
                refused(NOT_WRITABLE, session.write, path, "escaped\n")
        assert [*stage.path.rglob("escaped.txt")] == []
        assert session.files() == sorted(self.files())
        assert session.touched_files() == []
