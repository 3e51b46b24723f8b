"""Our own command line keeps the clauses that our engine keeps, each verb a process of its own.

Every change runs one clause of a family. PYTEST_GITTRIX_SOAK=1 runs them all, which takes minutes.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import pytest

from pytest_gittrix.conformance.base.catalogue import families
from pytest_gittrix.conformance.base.clause import clause_of
from pytest_gittrix.conformance.base.outcome import LOST, SCRIPT, SHOWN, ClauseFailure, properties_of
from pytest_gittrix.conformance.base.shell_lines import shows_again
from pytest_gittrix.conformance.command_system import CommandSystem
from pytest_gittrix.testing.systems.driver import Stage

CLAUSES: Final = {
    clause.code: (family, name)
    for family in families()
    for name, test in vars(family).items()
    if callable(test) and (clause := clause_of(test))
}
SAMPLE: Final = ("ISO-03", "OVL-03", "PRM-18", "CNF-01", "EVC-09", "DUR-02", "IDS-07", "NAM-09", "ERR-08", "CAP-02")


@pytest.mark.parametrize("code", CLAUSES if os.environ.get("PYTEST_GITTRIX_SOAK") == "1" else SAMPLE)
def test_our_command_line_keeps_its_promises(code: str) -> None:
    put_to(CommandSystem.own(), code)


def test_a_command_line_that_drops_the_selection_is_found_out() -> None:
    program = "import sys; from pytest_gittrix.cli.main import main; sys.exit(main([a for a in sys.argv[1:] if a[:8] != '--files=']))"

    with pytest.raises(AssertionError):
        put_to(CommandSystem([sys.executable, "-P", "-c", program]), "NAM-09")


OVERLOOKS_DRIFT: Final = """\
import sys
from pytest_gittrix.backends.local import RepositoryReader
from pytest_gittrix.cli.main import main
RepositoryReader.drift = lambda self, baseline, head, seed=None: {}
sys.exit(main(sys.argv[1:]))
"""


def test_a_script_of_a_command_line_that_overlooks_conflicts_says_what_is_lost() -> None:
    system = CommandSystem([sys.executable, "-P", "-c", OVERLOOKS_DRIFT], home_variable="HOME")
    family, name = CLAUSES["CNF-25"]
    suite = family()
    with Stage.open(system, files=suite.files()) as stage:
        with pytest.raises(ClauseFailure) as failure:
            getattr(suite, name)(stage)
        said = dict(properties_of(failure.value, stage.journal, protects_work=True, shows=shows_again))

    assert (said[LOST], said[SHOWN]) == ("yes", "yes")
    assert "then echo 'LOST: expected BASELINE_CONFLICT, but it was done" in said[SCRIPT]


def put_to(system: CommandSystem, code: str) -> None:
    """Put a clause to a system, as the suite does."""
    family, name = CLAUSES[code]
    clauses = family()
    with Stage.open(system, files=clauses.files()) as stage:
        getattr(clauses, name)(stage)
