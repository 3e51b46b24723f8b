"""Running a program in a workspace: its environment, its temporary home directory, and its level of confinement.

The arguments lead to the workspace and to the time, and no further.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gittrix.clock.clock import Clock, FrozenClock
from pytest_gittrix.clock.propagation import CLOCK_VARIABLE
from pytest_gittrix.confine.choose import Finished, Layers, Place, confinement, run, toolchain
from pytest_gittrix.errors import Advice, CapabilityMissing
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.workspaces.workspace import Workspace


def run_in(
    workspace: Workspace,
    argv: Sequence[str],
    level: str,
    clock: Clock,
    *,
    network: object = "none",
    limits: object = None,
    environment: Mapping[str, str],
    timeout: float | None,
    stdin: bytes,
) -> Finished:
    """Run a program in a workspace, to its end.

    Args:
        workspace: its working directory.
        argv: the program and its arguments.
        level: of confinement.
        clock: the time that the program gets, unless it is the real time.
        network: which network the program has; see ``check_network``.
        limits: what the program may use; see ``check_limits``.
        environment: variables to add or replace.
        timeout: real seconds that it may run; None for ever.
        stdin: its standard input.

    Raises:
        CapabilityMissing: the workspace has no files to work on, or this machine has no such confinement, network or limits.
        InvalidInput: an argument is none that can be.
        AdapterUnavailable: it could not be confined; it was not started.
    """
    if not workspace.capabilities.shell:
        raise CapabilityMissing(
            f"No program can work in a {workspace.kind} workspace.",
            why="Its files are not all on this machine's disk.",
            fix=Advice(
                "Start the session with workspace='clone' or 'copy'.", "Start the session with --workspace clone or --workspace copy."
            ),
        )
    layers = layers_of(workspace)
    confined = confinement(level, network, limits, layers=layers is not None)
    with tempfile.TemporaryDirectory(prefix="gittrix-home-", ignore_cleanup_errors=True) as home:
        path = os.environ.get("PATH", os.defpath)
        variables = hermetic_env(Path(home), base={"PATH": path}) | _time(clock) | dict(environment)
        place = Place(Path(workspace.path), Path(home), (*toolchain(), *_clock_file(variables)), layers=layers)
        return run(argv, place, confined, environment=variables, timeout=timeout, stdin=stdin)


def layers_of(workspace: Workspace) -> Layers | None:
    """What a workspace lies above, for a jail; None for one that is a directory by itself."""
    return None if workspace.layers is None else Layers(*map(Path, workspace.layers))


def _time(clock: Clock) -> dict[str, str]:
    return clock.environment() if isinstance(clock, FrozenClock) else {}


def _clock_file(environment: Mapping[str, str]) -> tuple[Path, ...]:
    file = environment.get(CLOCK_VARIABLE, "")
    return (Path(file),) if os.path.isabs(file) else ()
