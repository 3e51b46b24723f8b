"""What it costs to run a program at each level of confinement, beside a plain spawn of it. Levels that this machine lacks are left out."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.measure import Measurement, Variant, interleave, summarise, timed
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.levels import missing
from pytest_gittrix.confine.runner import run

PLAIN: Final = "plain subprocess.run"
MEANS: Final = (
    Confinement("off", "none"),
    Confinement("guard", "landlock"),
    Confinement("jail", "bwrap"),
    Confinement("jail", "namespaces"),
)


def confine(*, quick: bool = False) -> list[Measurement]:
    """``true``, run to its end, by wall clock."""
    with tempfile.TemporaryDirectory(prefix="gittrix-bench-") as root:
        workspace, home = Path(root, "workspace"), Path(root, "home")
        workspace.mkdir()
        home.mkdir()
        place, environment = Place(workspace, home), {"PATH": os.defpath}
        variants: dict[str, Variant] = {PLAIN: _plain(workspace, environment)}
        for means in MEANS:
            if not missing(means.by):
                variants[str(means)] = _confined(place, means, environment)
        return summarise("confine", interleave(variants, rounds=20 if quick else 200, seconds=5 if quick else 40, warm=2))


def _plain(workspace: Path, environment: dict[str, str]) -> Variant:
    return _timed(lambda: subprocess.run(["true"], cwd=workspace, env=environment, capture_output=True, check=True))


def _confined(place: Place, means: Confinement, variables: dict[str, str]) -> Variant:
    def job() -> None:
        if run(["true"], place, means, environment=variables).code != 0:
            raise RuntimeError(f"{means} does not work")

    return _timed(job)


def _timed(job: Callable[[], object]) -> Variant:
    return lambda _turn: timed(job)
