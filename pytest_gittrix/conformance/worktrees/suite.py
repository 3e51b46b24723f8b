"""The worktree profile as a class of tests: a manager of worktrees is run once, and each clause is a test."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest

from pytest_gittrix.conformance.worktrees.base.description import WorktreeTool, read_tool
from pytest_gittrix.conformance.worktrees.catalogue import select_worktree_clauses, worktree_clauses
from pytest_gittrix.conformance.worktrees.findings import WorktreeReport
from pytest_gittrix.conformance.worktrees.profile import run_worktree_profile
from pytest_gittrix.conformance.worktrees.text import finding_text
from pytest_gittrix.testing.systems.driver import NO_SEARCH, SearchBudget

_CODES = tuple(one.code for one in worktree_clauses())


class WorktreeToolSuite:
    """Every clause of the worktree profile, for a class of tests in a test module.

    Subclass it with a name that begins with ``Test``, and say which tool it is::

        class TestOurTool(WorktreeToolSuite):
            tool = "tool.toml"

    The profile runs once for the class, in parallel by itself; with pytest-xdist use ``--dist loadscope``. Clauses that the tool does not
    claim, and those without a verdict, are skipped with the reason.
    """

    tool: ClassVar[str | os.PathLike[str] | WorktreeTool]
    """The description: a TOML file, or the model itself."""
    clauses: ClassVar[tuple[str, ...]] = ()
    """The codes or families to run; all by default."""
    search: ClassVar[SearchBudget] = NO_SEARCH
    """For how long all cases together search for crashes and races, beyond the moments that they always try."""

    @pytest.fixture(scope="class")
    def worktree_report(self) -> WorktreeReport:
        """The report of the run; a test of the project's own may ask for it, too."""
        tool = self.tool if isinstance(self.tool, WorktreeTool) else read_tool(self.tool)
        return run_worktree_profile(tool, select_worktree_clauses(self.clauses), search=self.search)

    @pytest.mark.parametrize("code", _CODES)
    def test_clause(self, worktree_report: WorktreeReport, code: str) -> None:
        """The clause is kept, or plain git breaks it too, or the tool's help says so."""
        found = next((one for one in worktree_report.findings if one.clause == code), None)
        if found is None:
            pytest.skip("not one of the clauses of this class")
        if found.verdict in ("not claimed", "no verdict"):
            pytest.skip(f"{found.verdict}: {found.what}" if found.what else found.verdict)
        if found.verdict == "broken":
            pytest.fail(finding_text(found), pytrace=False)
