"""A first hour with evals: an agent is written, changed, killed and compared, and each command says what counts and what does not.

python examples/eval_hour.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CASE = """\
task = "Make greeting.txt say hello to {who}."

[durable]
files = "repo"

[check]
command = ["grep", "-qx", "Hello, {who}!", "greeting.txt"]
"""
AGENT = """\
import os, signal, words

def work(toolbox):
    if toolbox.case == "world" and os.environ.get("STRIKE"):
        os.kill(os.getpid(), signal.SIGKILL)
    toolbox.write("greeting.txt", words.hello(toolbox.task.split()[-1].strip(".")))
"""
RUN = "eval run evals --agent python:agent.py:work --pass-env MODEL --no-report"

Said = Callable[..., str]


def begin(project: Path) -> None:
    """Write a suite of two cases, and an agent that imports a helper."""
    for id_, who in (("ann", "Ann"), ("world", "World")):
        (project / "evals" / "cases" / id_ / "repo").mkdir(parents=True)
        (project / "evals" / "cases" / id_ / "case.toml").write_text(CASE.format(who=who))
        (project / "evals" / "cases" / id_ / "repo" / "greeting.txt").write_text("?\n")
    (project / "evals" / "suite.toml").write_text("schema = 1\n")
    (project / "agent.py").write_text(AGENT)
    (project / "words.py").write_text('def hello(who): return f"Hello, {who}!\\n"\n')


def hour(project: Path, gittrix: Said) -> None:
    """Do what a newcomer does, in the order in which it occurs to one.

    Args:
        project: an empty directory.
        gittrix: runs a command of gittrix in it, with further variables of the environment, and returns what the command said.
    """
    begin(project)
    gittrix(f"{RUN} --out runs/a", MODEL="small")
    (project / "words.py").write_text('def hello(who): return f"Bye, {who}!\\n"\n')
    gittrix(f"{RUN} --out runs/b --from runs/a", MODEL="small")
    gittrix("eval compare runs/a runs/b")
    gittrix(f"{RUN} --out runs/c", MODEL="small", STRIKE="1")
    gittrix(f"{RUN} --out runs/c --resume", MODEL="large")
    gittrix(f"{RUN} --out runs/c --resume", MODEL="small")
    gittrix("eval report runs/a")
    # The page names a command for each sample; it is pasted unchanged.
    page = (project / "runs" / "a" / "report.html").read_text()
    for command in sorted(set(re.findall(r"gittrix (eval (?:replay|show) [\w./-]+ [\w.-]+(?: --epoch \d+)?)", page)))[:1]:
        gittrix(command)


def typed(project: Path) -> Said:
    """Run commands as a person types them, and print what they say."""

    def run(command: str, **variables: str) -> str:
        print("$", *(f"{name}={value}" for name, value in variables.items()), "gittrix", command, flush=True)
        argv = [sys.executable, "-m", "pytest_gittrix.cli", *shlex.split(command)]
        done = subprocess.run(
            argv, cwd=project, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        print(f"{done.stdout}[status {done.returncode}]\n", flush=True)
        return done.stdout

    return run


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        hour(Path(directory), typed(Path(directory)))
