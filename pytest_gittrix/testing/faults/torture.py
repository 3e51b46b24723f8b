"""Runs a command once for each fault at each call that changes a file, and checks what it left with another command.

The command works in a copy of a directory, which is restored before each run; the directory itself is only read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.git.environment import without_local_variables
from pytest_gittrix.os_level.process_tree import end_tree
from pytest_gittrix.os_level.remove_tree import scratch_directory
from pytest_gittrix.testing.faults.fault_sweep import CheckFailed, Progress, Report, kind_of, require_kind, sweep_and_check
from pytest_gittrix.testing.faults.faults import Fault, SupervisedRun
from pytest_gittrix.testing.faults.supervisor import StrPath, supervise, supported
from pytest_gittrix.workspaces.trash import Trash

DEFAULT_KINDS: Final = ("kill", "torn", "ENOSPC", "sticky-EIO")
"""The kinds of fault that are played by default."""

LARGEST: Final = 256 << 20
"""Bytes a directory may hold: it is copied before each run."""

_LONGEST_LINE: Final = 300


@dataclass(frozen=True)
class _Copy:
    """The copy of a directory that the command works in.

    Attributes:
        work: the copy, at the same path for each run.
        first: its state before each run.
        trash: takes what a run left.
        env: the environment of all commands.
        timeout: seconds for each of them.
    """

    work: Path
    first: Path
    trash: Trash
    env: Mapping[str, str]
    timeout: float

    def reset(self) -> None:
        """Restore the first state."""
        self.trash.discard(str(self.work))
        self.trash.empty()
        _copy(self.first, self.work)

    def shell(self, line: str, *, stdin: bytes = b"", **variables: str) -> str | None:
        """Run a line of shell; return what is wrong, or None."""
        env = {**self.env, **variables}
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["sh", "-c", line], stdin=pipe, stdout=pipe, stderr=pipe, cwd=self.work, env=env, start_new_session=True
        ) as shell:
            try:
                out, err = shell.communicate(stdin, self.timeout)
            except subprocess.TimeoutExpired:
                end_tree(shell.pid)
                return f"did not end within {self.timeout:g} s"
            except BaseException:
                end_tree(shell.pid)
                raise
        return None if shell.returncode == 0 else f"exited with {shell.returncode}{_gist(err or out)}"


def torture(
    command: Sequence[str],
    oracle: str,
    *,
    replay: Callable[[int, str], str],
    setup: str | None = None,
    within: StrPath = ".",
    kinds: Sequence[str] = DEFAULT_KINDS,
    points: Collection[int] | None = None,
    limit: int | None = None,
    timeout: float = 60.0,
    progress: Progress | None = None,
) -> Report:
    """Run a command once clean, then once for each point and kind of fault, and have an oracle look at what each run left.

    Args:
        command: the program and its arguments; a single one with a space in it is a line of shell. Starts in the copy of ``within``.
        oracle: a line of shell, run in the same directory; exit status 0 says that all is well. Its standard input is what the command
            printed. Its environment has ``GITTRIX_EXIT`` (the command's exit status, or ``killed``), ``GITTRIX_POINT`` and
            ``GITTRIX_KIND`` (both empty after the clean run).
        replay: gives a line that plays one point and kind again.
        setup: a line of shell that makes the first state, run once in the copy; None for a plain copy.
        within: the directory to copy; only calls that concern a path below its copy are counted.
        kinds, points, limit: see `fault_sweep.plan`.
        timeout: seconds for each run, and for each check.
        progress: see `fault_sweep.Progress`.

    Raises:
        InvalidInput: an argument is not allowed; the setup, the clean run or the oracle after it fails; there is nothing to strike.
        CapabilityMissing: supervision does not work here.
    """
    for kind in kinds:
        require_kind(kind)
    if timeout <= 0:
        raise InvalidInput(f"timeout is {timeout:g}; it must be more than 0 seconds.")
    if not command:
        raise InvalidInput("There is no command.", fix="Name a program, such as: sh save.sh.")
    directory = _require_fit(within)
    if reason := supported():
        raise CapabilityMissing(reason, fix="It needs Linux on x86_64 or aarch64, with seccomp user notification.")
    with scratch_directory("gittrix-torture-") as scratch:
        copy = _prepared(Path(scratch), directory, setup, timeout)
        argv = ["sh", "-c", command[0]] if len(command) == 1 and " " in command[0] else command
        current: list[Fault | None] = [None]

        def run(fault: Fault | None) -> SupervisedRun:
            current[0] = fault
            copy.reset()
            return supervise(argv, fault=fault, within=copy.work, cwd=copy.work, env=copy.env, timeout=timeout)

        def check(faulty: SupervisedRun) -> None:
            if problem := copy.shell(oracle, stdin=faulty.stdout, **_variables(faulty, current[0])):
                raise CheckFailed(f"the oracle {problem}")

        return sweep_and_check(run, check, replay=replay, kinds=kinds, points=points, limit=limit, root=copy.work, progress=progress)


def _gist(output: bytes) -> str:
    """The most useful line of an error output: git's first one, Python's last one."""
    lines = os.fsdecode(output).strip().splitlines()
    return f": {lines[-1 if lines[0].startswith('Traceback') else 0][:_LONGEST_LINE]}" if lines else ""


def _variables(faulty: SupervisedRun, fault: Fault | None) -> dict[str, str]:
    return {
        "GITTRIX_EXIT": "killed" if faulty.exit_code is None else str(faulty.exit_code),
        "GITTRIX_POINT": "" if fault is None else str(fault.at),
        "GITTRIX_KIND": "" if fault is None else kind_of(fault),
    }


def _prepared(scratch: Path, directory: Path, setup: str | None, timeout: float) -> _Copy:
    work, first = scratch / "work", scratch / "first"
    env = without_local_variables(os.environ) | {"PWD": str(work)}  # git's would lead a git command out of the copy
    copy = _Copy(work, first, Trash(str(scratch / "trash")), env, timeout)
    _copy(directory, work)
    if setup is not None and (problem := copy.shell(setup)):
        raise InvalidInput(f"The setup {problem}.", why="The first state could not be made.", fix=f"It was: {setup}")
    os.rename(work, first)
    return copy


def _require_fit(within: StrPath) -> Path:
    directory = Path(os.path.realpath(within))
    if not directory.is_dir():
        raise InvalidInput(f"{os.fspath(within)} is no directory.", fix="Name the one that the command works in.")
    if (directory / ".git").is_file():
        raise InvalidInput(
            f"{directory} is a linked work tree or a submodule.",
            why="Its repository is elsewhere, and would be changed for real: only the directory itself is copied.",
            fix="Use a clone.",
        )
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # gone meanwhile
                size += os.lstat(os.path.join(parent, name)).st_size
        if size > LARGEST:
            raise InvalidInput(
                f"{directory} holds more than {LARGEST >> 20} MiB.",
                why="It is copied before each run.",
                fix="Name a smaller one with --within, or make one with --setup in an empty directory.",
            )
    return directory


def _copy(source: Path, target: Path) -> None:
    """Copy a directory with modes, times and hard links."""
    program = shutil.which("cp") or "cp"
    done = subprocess.run([program, "-a", "--", source, target], capture_output=True, check=False)
    if done.returncode != 0:
        raise InvalidInput(f"{source} could not be copied: {os.fsdecode(done.stderr).strip()}")
