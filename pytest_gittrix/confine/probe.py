"""Tries by what means this machine and this user can confine programs: each means runs a program once in a process.

The answers are cached, and each means that does not work has a reason. ``choose.confinement`` decides which one is used.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from pytest_gittrix.confine.command import BWRAP, Confinement, Means
from pytest_gittrix.confine.execute import run
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.landlock_guard import OLDEST_ABI, SIGNALS_ABI, landlock_abi
from pytest_gittrix.errors import GittrixError

_WAIT = 30.0


@cache
def missing(means: Means) -> str:
    """Why a means of confinement cannot be used here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return f"there is none on {sys.platform}"
    if means == "bwrap":
        return _tried(Confinement("jail", means)) if shutil.which(BWRAP) else "it is not installed"
    if means == "namespaces":
        return _tried(Confinement("jail", means))
    if means == "landlock":
        return _landlock() or _tried(Confinement("guard", means))
    return ""


@cache
def lets_signals_out() -> bool:
    """Whether a guard of this kernel lets signals to other processes, and connections to abstract sockets, out."""
    try:
        return landlock_abi() < SIGNALS_ABI
    except OSError:
        return True


def _landlock() -> str:
    try:
        abi = landlock_abi()
    except OSError as problem:
        return f"this kernel has no Landlock, or refuses it: {problem.strerror}"
    return "" if abi >= OLDEST_ABI else f"Landlock of ABI {abi} lets files outside be cut short; {OLDEST_ABI} is needed (Linux 6.2)"


def _tried(confinement: Confinement) -> str:
    with tempfile.TemporaryDirectory(prefix="gittrix-probe-") as root:
        workspace, home = Path(root, "workspace"), Path(root, "home")
        workspace.mkdir()
        home.mkdir()
        try:
            ended = run(["true"], Place(workspace, home), confinement, environment={"PATH": os.defpath}, timeout=_WAIT)
        except GittrixError as problem:
            return problem.fact.removeprefix("The program could not be confined: ").removesuffix(".")
    return "" if ended.code == 0 else f"a program that does nothing ended with {ended.code or ended.signal} there"
