"""The puzzles with their solutions, right and wrong, and a quick way to judge many of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from pytest_gittrix.confine import runner
from pytest_gittrix.confine.started_program import Finished

if TYPE_CHECKING:
    from pytest_gittrix.evals import Toolbox

PUZZLES = Path(__file__).resolve().parents[2] / "fixtures" / "evals" / "puzzles"
WRONG = 3
"""How many wrong solutions each puzzle has."""

_SERVER = """
import json, os, signal, sys
import pytest

for line in sys.stdin.buffer:
    job = json.loads(line)
    child = os.fork()
    if not child:
        status = 1
        try:
            os.chdir(job["directory"])
            os.environ.clear()
            os.environ.update(job["environment"])
            for number, name in enumerate((job["stdin"], os.devnull, os.devnull)):
                os.dup2(os.open(name, os.O_RDWR), number)
            sys.stdin = open(0)
            signal.alarm(60)
            exec(job["program"], {"__name__": "__main__"})
        except SystemExit as ended:
            status = ended.code
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def wrong_solutions(id_: str) -> list[Path]:
    """The patches of a puzzle that its checks must refuse, by name."""
    return sorted((PUZZLES / "cases" / id_ / "wrong").glob("*.patch"))


def wrong(number: int) -> str:
    """The spec of an agent that gives a wrong solution of each puzzle; number 0 gives another one from puzzle to puzzle."""
    return f"python:{__file__}:wrong_{number}"


def wrong_0(toolbox: Toolbox) -> None:
    """Give one of the wrong solutions."""
    _apply(toolbox, len(toolbox.case) % WRONG)


def wrong_1(toolbox: Toolbox) -> None:
    """Give the first wrong solution."""
    _apply(toolbox, 0)


def wrong_2(toolbox: Toolbox) -> None:
    """Give the second one."""
    _apply(toolbox, 1)


def wrong_3(toolbox: Toolbox) -> None:
    """Give the third one."""
    _apply(toolbox, 2)


def _apply(toolbox: Toolbox, number: int) -> None:
    patch = wrong_solutions(toolbox.case)[number]
    toolbox.note("assistant", patch.stem)
    done = toolbox.run(["git", "apply", "--whitespace=nowarn"], stdin=patch.read_bytes())
    assert done.code == 0, f"{patch} does not apply"


@contextmanager
def quick_python() -> Iterator[None]:
    """While the block runs, a Python that has loaded pytest forks for each program that a hidden test runs in.

    The programs, their arguments and their answers are the usual ones; only the start of the interpreter is saved. For runs that are not
    confined.
    """
    server = subprocess.Popen([sys.executable, "-P", "-s", "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    ask, answers = server.stdin, server.stdout

    def run(argv: Sequence[str], place: Any, confinement: Any, *, environment: Mapping[str, str], stdin: bytes, **more: Any) -> Finished:
        if list(argv[:4]) != [sys.executable, "-P", "-s", "-c"]:
            return runner.run(argv, place, confinement, environment=environment, stdin=stdin, **more)
        given = place.home / ".given"
        given.write_bytes(stdin)
        variables = {**environment, "HOME": str(place.home), "TMPDIR": str(place.home)}
        job = {"directory": str(place.workspace), "environment": variables, "stdin": str(given), "program": argv[4]}
        ask.write(json.dumps(job) + "\n")
        ask.flush()
        status = int(answers.readline())
        return Finished(status if status >= 0 else None, -status if status < 0 else None, b"", b"")

    with server, mock.patch("pytest_gittrix.evals.runs.launch.run", run):
        yield
        ask.close()
