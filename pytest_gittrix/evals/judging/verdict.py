"""What a file of hidden tests found out about a result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_gittrix.confine.started_program import Finished

Judge = Literal["subject", "canary", "plain", "unjudgeable"]
"""What judged a test: the code under test in a process of its own, a changed expectation, only the test itself, or nothing that could."""


@dataclass(frozen=True)
class Verdict:
    """What a test file found out about a result.

    Attributes:
        wrong: why the result did not pass; empty if it did.
        done: how the program ended that decided it.
        judges: what judged each test that passed.
        failed: what judged each test that failed.
        collisions: the files of the result that have the name of a module of the tests' own.
    """

    wrong: str
    done: Finished
    judges: Mapping[str, Judge]
    failed: Mapping[str, Judge] = field(default_factory=dict)
    collisions: Collection[str] = ()

    @property
    def detail(self) -> str:
        """Why the result did not pass, and which files of the result have names of the tests' own modules, which were taken."""
        taken = f"the tests' own modules were taken, and not the result's {', '.join(sorted(self.collisions))}" if self.collisions else ""
        return "; ".join(one for one in (self.wrong, taken) if one)
