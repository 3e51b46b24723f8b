"""A system whose workspaces are work trees of durable breaks the clause that says so, and no other clause says it once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.broken_systems.judging import complaint
from fixtures.broken_systems.plain import PlainEngine, PlainSystem
from fixtures.broken_systems.plain_git import PlainGit


class WorkTreeGit(PlainGit):
    """Makes workspaces as most managers of worktrees do."""

    def copy_into(self, workspace: Path, commit: str, branch: str) -> None:
        """Make a linked work tree of durable."""
        self.run("worktree", "add", "-q", "--detach", str(workspace), commit)


class WorkTreeEngine(PlainEngine):
    """The plain engine, with work trees of durable."""

    git_type = WorkTreeGit


class LeavesModes(WorkTreeEngine):
    """Gives the next session the mode of a file that it has seen anywhere."""

    def workspace(self, id: str) -> Path:
        """The workspace, with the modes of the last one that was asked for."""
        made = super().workspace(id)
        readme = made / "README.md"
        if readme.is_file():
            mark = self.home / "mode"
            if readme.stat().st_mode & 0o111:
                mark.touch()
            elif mark.exists():
                readme.chmod(0o755)
        return made


SYSTEM = PlainSystem("work trees", WorkTreeEngine)


def test_the_clause_about_it_is_broken() -> None:
    assert complaint(SYSTEM, "ISO-07") is not None


@pytest.mark.parametrize("code", ["ISO-15", "ISO-16", "ISO-17", "ISO-21", "ISO-22"])
def test_no_other_clause_says_it_again(code: str) -> None:
    assert complaint(SYSTEM, code) is None


def test_what_is_left_in_such_a_workspace_is_still_told() -> None:
    assert complaint(PlainSystem("leaves modes", LeavesModes), "ISO-16") is not None
