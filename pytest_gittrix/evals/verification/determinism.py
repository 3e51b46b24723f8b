"""A check of determinism: a suite is run twice, and for each sample the first event that differs is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.compare import Comparison, compare
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.executors import Factory, local
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.run import Progress, run_suite
from pytest_gittrix.evals.runs.work_dirs import scratch_root
from pytest_gittrix.os_level.monotonic import pause
from pytest_gittrix.os_level.remove_tree import remove_tree

_SECOND_NS: Final = 1_000_000_000


def check_determinism(
    suite: Suite, options: Options, *, factory: Factory = local, watch: Callable[[Progress], object] = lambda _progress: None
) -> Comparison:
    """Run a suite twice, one run after the other, and compare the runs.

    The second run has what a result must not depend on otherwise: another directory, the reverse order, another seed of Python's hashes,
    other process ids, another second of the wall clock, and unconfined programs another host name if root
    runs them. That nothing differs is no proof: a third run may differ.

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
    root = scratch_root(options.scratch)
    stores: list[RunStore] = []
    for name in ("first", "second"):
        out = Path(options.out) / name
        if RunStore(out).exists:
            shutil.rmtree(out)
        place = root / "varied" if stores else root
        varied = replace(options, out=out, resume=False, scratch=place, vary=bool(stores))
        stores.append(run_suite(suite, varied, factory=factory, watch=watch).store)
        if len(stores) == 1:
            pause(1 - SystemClock().now_ns() % _SECOND_NS / _SECOND_NS)
    remove_tree(root / "varied")
    first, second = stores
    return compare(first, second)
