"""Runs lines of shell, each in an environment of its own, and the script of a finding once more, to see whether it shows it."""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.conformance.base import script_end
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.os_level.process_tree import ProcessTree, end_tree
from pytest_gittrix.os_level.remove_tree import scratch_directory
from pytest_gittrix.testing.repos.journal import CommandRun, Journal

MARK: Final = "GITTRIX_WORLD"
"""The variable by which the processes that a line started are known."""

_LONGEST_SCRIPT: Final = 120.0
_MOST_OF_A_LINE: Final = 300


@dataclass(frozen=True)
class RanLine:
    """A line of shell that has ended.

    Attributes:
        line: the line.
        status: its exit status; None if it was ended because its time was up.
        output: what it printed, on both streams.
    """

    line: str
    status: int | None
    output: str

    @property
    def last_line(self) -> str:
        """The last line of the output, where programs say why they failed."""
        return next(iter(self.output.rstrip().splitlines()[-1:]), "no output")[:_MOST_OF_A_LINE]

    @property
    def done(self) -> bool:
        """Whether it exited with 0."""
        return self.status == 0


def run_line(line: str, where: Path, environment: Mapping[str, str], *, stdin: str = "", limit: float = 60.0, most: int = -1) -> RanLine:
    """Run a line of shell.

    Args:
        line: the line, or a whole script.
        where: the directory that it starts in.
        environment: its whole environment.
        stdin: its standard input.
        limit: the seconds after which it is ended.
        most: how many bytes of its output are read; all by default.
    """
    # Not a pipe: a process that the line leaves behind would hold its end open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        process = subprocess.Popen(
            ["sh", "-c", line],
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=where,
            env=dict(environment),
            start_new_session=True,
        )
        status: int | None
        try:
            status = _waited(process, limit)
        except BaseException:
            _end(process)
            raise
        if status is None:
            _end(process)
        output.seek(0)
        return RanLine(line, status, output.read(most).decode("utf-8", "backslashreplace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    end_tree(process.pid)
    process.wait()


def _waited(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit status of a process; None if it does not end in time. ``Popen.wait`` with a limit would sleep between looks."""
    with suppress(AttributeError, OSError):
        ends = os.pidfd_open(process.pid)
        try:
            if not select.select([ends], [], [], limit)[0]:
                return None
        finally:
            os.close(ends)
        return process.wait()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(limit)
    return None


def run_script(script: str, place: Path, environment: Mapping[str, str], *, limit: float = 60.0) -> RanLine:
    """Run a script that makes a directory of its own. Every process that it started is ended.

    Args:
        script: the script; its ``mktemp`` makes the directory below ``place``.
        place: a directory that is there.
        environment: its whole environment, with a value of ``MARK``.
        limit: the seconds after which it is ended.
    """
    try:
        return run_line(script, place, {**environment, "TMPDIR": str(place)}, limit=limit)
    finally:
        ProcessTree(mark=environment[MARK], variable=MARK).end()


def shows_again(script: str, journal: Journal) -> bool | None:
    """Run the script of a failure once, and see whether it could prepare everything, and its end says that the system did it again.

    Args:
        script: the script, as ``transcript.shell_script`` makes it.
        journal: what it is a script of.

    Returns:
        Whether it did; None if it did not end in time, and where no script can tell: it has no such end.
    """
    if not script_end.SAYS.search(script):
        return None
    runs = [step for step in journal.steps if isinstance(step, CommandRun)]
    with scratch_directory("gittrix-script-") as directory:
        place = Path(directory).resolve()
        secret = {name: value for run in runs for name, value in run.variables.items() if name in run.secret}
        environment = {**hermetic_env(place), **secret, MARK: secrets.token_hex(8)}
        ran = run_script(script, place, environment, limit=_LONGEST_SCRIPT)
    if ran.status is None:
        return None
    return ran.done and bool(script_end.FOUND.search(ran.output))
