"""Whether an agent does the same again: a suite is run twice, and the first event that differs is named for each sample.

Must not know how a comparison is shown.
"""

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
    """Run a suite twice, once after the other, and compare.

    Args:
        suite: what.
        options: how; ``out`` is a directory that the two runs, ``first`` and ``second``, are made in. What was there goes.
        factory: makes the executor.
        watch: told of each sample that was done, in either run.

    Returns:
        The comparison; its code is 0 if nothing differs.

    Raises:
        InvalidInput, CapabilityMissing, AdapterUnavailable: as ``run_suite.run``.
    """
    stores = []
    for name in ("first", "second"):
        out = Path(options.out) / name
        if RunStore(out).exists:
            shutil.rmtree(out)
        stores.append(run_suite(suite, replace(options, out=out, resume=False), factory=factory, watch=watch).store)
    return compare(*stores)
