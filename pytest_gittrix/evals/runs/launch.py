"""Programs of a sample: where they run, what they see, and the environment they get. How they are confined is ``confine``'s.

Must not know what a sample is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.confine.choose import Confinement, Finished, Place, run, toolchain
from pytest_gittrix.evals.results.manifest import PINNED
from pytest_gittrix.evals.runs.work_dirs import MARK
from pytest_gittrix.git.environment import hermetic_env

__all__ = ["Finished", "Launcher", "program_environment", "succeeded"]

WORKSPACE: Final = "/workspace"
"""Where a jail shows every workspace, so that paths in outputs are the same in each sample."""

_SYSTEM: Final = (Path("/usr"), Path("/bin"), Path("/sbin"))
_LONGEST: Final = 20 * 86_400.0
"""Seconds; what the kernel waits at most is a little more."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Launcher:
    """Runs programs in one directory.

    Attributes:
        directory: where, and what they may change.
        home: their home directory.
        confinement: how they are confined.
        readable: what else they may read, besides this Python.
    """

    directory: Path
    home: Path
    confinement: Confinement
    readable: tuple[Path, ...] = ()

    def __call__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: bytes = b"",
        timeout: float | None = None,
        most_output: int = 10 << 20,
    ) -> Finished:
        """Run a program to its end; see ``confine.execute.run``, which also says what is raised."""
        if timeout is not None:
            timeout = min(timeout, _LONGEST)
        shown = (*toolchain(), *self.readable)
        place = Place(self.directory, self.home, shown, WORKSPACE)
        told = self._told(environment, shown)
        return run(argv, place, self.confinement, environment=told, stdin=stdin, timeout=timeout, most_output=most_output)

    def _told(self, environment: Mapping[str, str], shown: Sequence[Path]) -> dict[str, str]:
        """The variables without what is another in each sample, or the machine's own affair, where a level needs none of that."""
        told = dict(environment)
        # A relative place would be one in the workspace, where an agent could put a program for a check to find.
        places = [Path(place) for place in told.get("PATH", "").split(os.pathsep) if os.path.isabs(place)]
        if self.confinement.level != "off":
            told.pop(MARK, None)  # what is confined ends with this process, so nobody has to find it later
        if self.confinement.level == "jail":
            told["GIT_CEILING_DIRECTORIES"] = "/"
            places = [place for place in places if any(place.is_relative_to(one) for one in (*_SYSTEM, *shown))]
        return {**told, "PATH": os.pathsep.join(map(str, places))}


def succeeded(done: Finished) -> bool:
    """Whether a program ended by itself, with 0."""
    return done.code == 0 and not done.timed_out


def program_environment(
    home: Path, clock: FrozenClock, *, path: str | None, passed: Mapping[str, str], told: Mapping[str, str], mark: str
) -> dict[str, str]:
    """The environment of a program: hermetic, pinned, with the clock.

    Args:
        home: the program's home; the clock's file is put there, where every level of confinement shows it.
        clock: the sample's.
        path: where programs are looked for; the system's usual places by default.
        passed: variables from outside that were asked for.
        told: what the program is to know of its sample.
        mark: what the sample's programs are known by.
    """
    home.mkdir(parents=True, exist_ok=True)
    clock.attach_file(home / ".clock")
    base = hermetic_env(home, base={"PATH": path or _PATH, **passed})
    seconds = str(clock.now_ns() // 10**9)
    return {**base, **clock.environment(), **PINNED, "SOURCE_DATE_EPOCH": seconds, MARK: mark, **told}
