"""The first hour with evals: nobody is told that a changed agent passes, and the page's own command works when it is pasted."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from examples.eval_hour import hour
from pytest_gittrix.cli.main import main


def test_each_step_says_what_counts(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    said: list[tuple[int, str]] = []

    def gittrix(command: str, **variables: str) -> str:
        output = tmp_path / f"{len(said)}.txt"
        child = os.fork()  # a process of its own, as an agent that was imported once stays as it is
        if not child:
            os.chdir(project)
            os.environ.update(variables)
            sys.stdout = sys.stderr = output.open("w")
            status = main(shlex.split(command))
            sys.stdout.flush()
            os._exit(status)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.append((ended, output.read_text()))
        return said[-1][1]

    hour(project, gittrix)

    first, changed, compared, killed, refused, resumed, _page, pasted = said
    assert (first[0], "pass             2" in first[1]) == (0, True)
    assert "fail             2" in changed[1]
    assert "0 of 2 taken over" in changed[1]
    assert "the agent read file words.py, changed since" in changed[1]
    assert (compared[0], "inputs: differ: read.file words.py" in compared[1]) == (3, True)
    assert killed == (-9, "")
    assert (refused[0], "setting.passed_values.MODEL differ" in refused[1]) == (1, True)
    assert (resumed[0], "1 of 2 were there" in resumed[1]) == (0, True)
    assert pasted == (0, "ann #0: the same, pass\n")
