"""A check of determinism: a suite is run twice, and for each sample the first event that differs is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.compare import Comparison, compare
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.executors import Factory, local
from pytest_gittrix.evals.runs.run import Options, Progress, run_suite


def check_determinism(
    suite: Suite, options: Options, *, factory: Factory = local, watch: Callable[[Progress], object] = lambda _progress: None
) -> Comparison:
    """Run a suite twice, one run after the other, and compare the runs.

    Args:
        suite: the suite.
        options: the options; ``out`` is the directory of the two runs ``first`` and ``second``, which replace earlier ones.
        factory: makes the executor.
        watch: called with the progress after each sample of either run.

    Returns:
        The comparison; its code is 0 if nothing differs.

    Raises:
        InvalidInput, CapabilityMissing, AdapterUnavailable: as ``run.run_suite``.
    """
    stores = []
    for name in ("first", "second"):
        out = Path(options.out) / name
        if RunStore(out).exists:
            shutil.rmtree(out)
        stores.append(run_suite(suite, replace(options, out=out, resume=False), factory=factory, watch=watch).store)
    return compare(*stores)
