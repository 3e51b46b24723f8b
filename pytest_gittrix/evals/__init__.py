"""Reproducible eval runs: suites of cases on real repositories, run by agents in sessions, kept so that they resume and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.evals.inputs.releases import expected_of as expected_of
    from pytest_gittrix.evals.inputs.releases import surprises as surprises
    from pytest_gittrix.evals.inputs.suite import Suite as Suite
    from pytest_gittrix.evals.results.store import RunStore as RunStore
    from pytest_gittrix.evals.runs.options import Options as Options
    from pytest_gittrix.evals.runs.run import run_suite as run_suite
    from pytest_gittrix.evals.runs.toolbox import Toolbox as Toolbox
    from pytest_gittrix.evals.verification.rescore import Rescoring as Rescoring
    from pytest_gittrix.evals.verification.rescore import rescore_run as rescore_run
    from pytest_gittrix.evals.verification.validate import Validation as Validation
    from pytest_gittrix.evals.verification.validate import validate_suite as validate_suite

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.evals.runs.toolbox": ("Toolbox",),
        "pytest_gittrix.evals.runs.options": ("Options",),
        "pytest_gittrix.evals.runs.run": ("run_suite",),
        "pytest_gittrix.evals.results.store": ("RunStore",),
        "pytest_gittrix.evals.verification.rescore": ("Rescoring", "rescore_run"),
        "pytest_gittrix.evals.verification.validate": ("Validation", "validate_suite"),
        "pytest_gittrix.evals.inputs.suite": ("Suite",),
        "pytest_gittrix.evals.inputs.releases": (
            "expected_of",
            "surprises",
        ),
    },
)
