"""Runs one program so that it reaches no more than it may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.confine.command_line import Confinement as Confinement
    from pytest_gittrix.confine.command_line import wrapped as wrapped
    from pytest_gittrix.confine.filesystem_layout import Layers as Layers
    from pytest_gittrix.confine.filesystem_layout import Place as Place
    from pytest_gittrix.confine.filesystem_layout import toolchain as toolchain
    from pytest_gittrix.confine.levels import confinement as confinement
    from pytest_gittrix.confine.levels import strongest as strongest
    from pytest_gittrix.confine.limits import ResourceLimits as ResourceLimits
    from pytest_gittrix.confine.network import MODELS as MODELS
    from pytest_gittrix.confine.network import ModelEndpoint as ModelEndpoint
    from pytest_gittrix.confine.program_streams import Output as Output
    from pytest_gittrix.confine.runner import run as run
    from pytest_gittrix.confine.runner import start as start
    from pytest_gittrix.confine.running_program import Running as Running
    from pytest_gittrix.confine.started_program import Finished as Finished

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.confine.levels": ("confinement", "strongest"),
        "pytest_gittrix.confine.runner": (
            "run",
            "start",
        ),
        "pytest_gittrix.confine.started_program": ("Finished",),
        "pytest_gittrix.confine.running_program": ("Running",),
        "pytest_gittrix.confine.program_streams": ("Output",),
        "pytest_gittrix.confine.filesystem_layout": (
            "Layers",
            "Place",
            "toolchain",
        ),
        "pytest_gittrix.confine.command_line": (
            "Confinement",
            "wrapped",
        ),
        "pytest_gittrix.confine.limits": ("ResourceLimits",),
        "pytest_gittrix.confine.network": (
            "MODELS",
            "ModelEndpoint",
        ),
    },
)
