"""Starting programs of a sample: where they run, what they can read, and their environment. ``confine`` runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.filesystem_layout import Place, toolchain
from pytest_gittrix.confine.runner import run, start
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.evals.agents.programs import in_sight
from pytest_gittrix.evals.failures.machine import require_sandbox
from pytest_gittrix.evals.models.sample_model import SampleModel
from pytest_gittrix.evals.results.manifest import PINNED
from pytest_gittrix.evals.runs.work_dirs import MARK
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.os_level.monotonic import OutOfTime
from pytest_gittrix.os_level.proc import oom_kills

WORKSPACE: Final = "/workspace"
"""The path of every workspace in a jail, so that paths in outputs are the same in each sample."""

_SYSTEM: Final = (Path("/usr"), Path("/bin"), Path("/sbin"))
_RENAMED_HOST: Final = ("unshare", "--uts", "sh", "-c", 'echo varied > /proc/sys/kernel/hostname && exec "$@"', "sh")
_LONGEST: Final = 20 * 86_400.0
"""The longest timeout in seconds; the kernel's limit is a little higher."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class ProgramLauncher:
    """Runs programs in one directory.

    Attributes:
        directory: the directory that programs run in and may change.
        home: their home directory.
        confinement: how they are confined.
        readable: what else they may read, in addition to this Python.
        vary: whether unconfined programs see another host name, if this user may change it for them alone.
        model: what ends programs when they pass a limit of their model; None if there is no such model.
        network: what the gateways of programs that have ended decided, a line of JSON each; filled in by calls.
    """

    directory: Path
    home: Path
    confinement: Confinement
    readable: tuple[Path, ...] = ()
    vary: bool = False
    model: SampleModel | None = None
    network: list[str] = field(default_factory=list)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: bytes = b"",
        timeout: float | None = None,
        most_output: int = 10 << 20,
    ) -> Finished:
        """Run a program to its end; arguments and errors are those of ``confine.levels.run``.

        Raises:
            AdapterUnavailable: its sandbox died, or the machine ran out of memory; how it would have ended is unknown.
            OutOfTime: it was ended for what it asked of its model.
        """
        if timeout is not None:
            timeout = min(timeout, _LONGEST)
        variables = self._variables(environment, self._shown)
        argv = in_sight(argv, environment.get("PATH", ""), self.readable) if self.confinement.level != "off" else argv
        if self.vary and self.confinement.level == "off" and _can_rename_host():
            argv = [*_RENAMED_HOST, *argv]
        kills = oom_kills()
        admit: Callable[[Running], object] = self.model.admit if self.model is not None else lambda _: None
        done = run(
            argv, self._place, self.confinement, environment=variables, stdin=stdin, timeout=timeout, most_output=most_output, admit=admit
        )
        self.network.extend(done.network)
        require_sandbox(done, self.confinement.level, kills)
        if self.model is not None and self.model.ended_agent:
            raise OutOfTime
        return done

    def finds(self, program: str, environment: Mapping[str, str]) -> bool:
        """Whether programs find a program on the ``PATH`` that they get."""
        path = self._variables(environment, self._shown).get("PATH", os.defpath)
        return "/" in program or shutil.which(program, path=path) is not None

    def start(self, argv: Sequence[str], *, environment: Mapping[str, str], cwd: str = ".", **options: Any) -> Running:
        """Start a program that stays; arguments and errors are those of ``confine.start``."""
        variables = self._variables(environment, self._shown)
        argv = in_sight(argv, environment.get("PATH", ""), self.readable) if self.confinement.level != "off" else argv
        inside = os.path.relpath(cwd, self.workspace) if os.path.isabs(cwd) else cwd
        admit: Callable[[Running], object] = self.model.admit if self.model is not None else lambda _: None
        return start(argv, self._place, self.confinement, environment=variables, cwd=inside, **{"admit": admit, **options})

    @property
    def workspace(self) -> str:
        """The directory as programs see it."""
        return WORKSPACE if self.confinement.level == "jail" else os.path.realpath(self.directory)

    @property
    def _shown(self) -> tuple[Path, ...]:
        return (*toolchain(), *self.readable)

    @property
    def _place(self) -> Place:
        return Place(self.directory, self.home, self._shown, WORKSPACE)

    def _variables(self, environment: Mapping[str, str], shown: Sequence[Path]) -> dict[str, str]:
        """The variables without those that differ between samples or machines, as far as the level of confinement allows."""
        variables = dict(environment)
        # A relative directory would be one in the workspace, where an agent could put a program that a check then runs.
        paths = [Path(path) for path in variables.get("PATH", "").split(os.pathsep) if os.path.isabs(path)]
        if self.confinement.level != "off":
            paths += [path / "bin" for path in self.readable if (path / "bin").is_dir()]
            variables.pop(MARK, None)  # a confined program ends with this process, so the sweep need not find it
        if self.confinement.level == "jail":
            variables["GIT_CEILING_DIRECTORIES"] = "/"
            paths = [path for path in paths if any(path.is_relative_to(one) for one in (*_SYSTEM, *shown))]
        return {**variables, "PATH": os.pathsep.join(map(str, paths))}


@cache
def _can_rename_host() -> bool:
    """Whether programs can have a host name of their own: root may give it to them."""
    try:
        return subprocess.run([*_RENAMED_HOST, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def succeeded(done: Finished) -> bool:
    """Whether a program ended by itself with status 0."""
    return done.code == 0 and not done.timed_out


def program_environment(
    home: Path, clock: FrozenClock, *, path: str | None, passed: Mapping[str, str], sample: Mapping[str, str], mark: str
) -> dict[str, str]:
    """Make the environment of a program: hermetic, pinned, with the sample's clock.

    Args:
        home: the program's home directory; the clock's file is put there, where a program of every level can read it.
        clock: the clock of the sample.
        path: the search path of programs; the system's usual directories by default.
        passed: the variables that are passed from outside.
        sample: variables that describe the sample.
        mark: the value that marks the sample's programs.
    """
    home.mkdir(parents=True, exist_ok=True)
    clock.attach_file(home / ".clock")
    base = hermetic_env(home, base={"PATH": path or _PATH, **passed})
    seconds = str(clock.now_ns() // 10**9)
    return {**base, **clock.environment(), **PINNED, "SOURCE_DATE_EPOCH": seconds, MARK: mark, **sample}
