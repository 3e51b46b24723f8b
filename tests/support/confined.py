"""Programs at every level of confinement that this machine has: a place for them, and how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.escapes import CONFINEMENTS

from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Place, toolchain
from pytest_gittrix.confine.levels import missing
from pytest_gittrix.confine.runner import run
from pytest_gittrix.confine.started_program import Finished

LONG = 60.0
"""Real seconds after which something that was to end counts as stuck."""
PATH = os.environ.get("PATH", os.defpath)
STRONGER = [name for name in CONFINEMENTS if name != "off"]
JAILS = [name for name in CONFINEMENTS if name.startswith("jail")]


def available(name: str) -> Confinement:
    """A confinement by its name; skips the test where this machine does not have it."""
    confinement = CONFINEMENTS[name]
    if why := missing(confinement.by):
        pytest.skip(f"{name}: {why}")
    return confinement


@dataclass(frozen=True)
class Confined:
    """A place to work in, and a confinement.

    Attributes:
        root: a directory with the workspace, ``w``, and a home, ``h``.
        confinement: of programs that are run.
    """

    root: Path
    confinement: Confinement

    @classmethod
    def make(cls, root: Path, confinement: Confinement) -> Confined:
        """A fresh place below a directory."""
        (root / "w").mkdir()
        (root / "h").mkdir()
        return cls(root, confinement)

    @property
    def workspace(self) -> Path:
        """Where programs work."""
        return self.root / "w"

    def place(self, **other: Any) -> Place:
        """The place, but for what is said."""
        given: dict[str, Any] = {"workspace": self.workspace, "home": self.root / "h", "readable": toolchain()}
        return Place(**given | other)

    def run(self, *argv: str, place: Place | None = None, environment: Mapping[str, str] | None = None, **options: Any) -> Finished:
        """Run a program there."""
        variables = {"PATH": PATH, **(environment or {})}
        return run(argv, place or self.place(), self.confinement, environment=variables, **{"timeout": LONG} | options)

    def shell(self, script: str, **options: Any) -> Finished:
        """Run a shell script there."""
        return self.run("sh", "-c", script, **options)

    def python(self, code: str, *arguments: str, **options: Any) -> Finished:
        """Run Python there."""
        return self.run(sys.executable, "-I", "-S", "-c", code, *arguments, **options)

    def output(self, script: str, **options: Any) -> str:
        """What a shell script writes; it has to end well."""
        ended = self.shell(script, **options)
        assert ended.code == 0, ended
        return ended.stdout.decode()
