"""The demonstration that ``make demo`` runs: the examples under pytest, the same by hand with the command line, and a small eval.

The durable repository of the first two is a clone of this project with its real history; the agent is ``codemod.py``. They happen in a
temporary directory, under a clock that the demonstration moves. The eval runs ``puzzle_agent.py`` on ten puzzles, and is kept in
``runs/demo``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_gittrix import World

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
PUZZLES = PROJECT / "fixtures" / "evals" / "puzzles"
AGENT = HERE / "puzzle_agent.py"
RUN = PROJECT / "runs" / "demo"
GITTRIX = [str(Path(sys.executable).with_name("gittrix"))]


class Shell:
    """Runs commands as a person would type them, showing each with what it prints.

    Args:
        directory: where.
        environment: with what.
    """

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = environment

    def run(self, *command: str, fails: bool = False, quiet: bool = False, where: Path | None = None) -> str:
        """Run one command; gives what it printed. Ends the demonstration if it does not end as it should."""
        shown = (
            ["gittrix", *command[len(GITTRIX) :]]
            if command[: len(GITTRIX)] == tuple(GITTRIX)
            else ["python" if command[0] == sys.executable else command[0], *command[1:]]
        )
        print(f"\n$ {shlex.join(part.replace(str(HERE), 'examples') for part in shown)}", flush=True)
        done = subprocess.run(
            command,
            cwd=where or self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not quiet:
            print(done.stdout.rstrip(), flush=True)
        if (done.returncode != 0) is not fails:
            sys.exit(f"the command ended with status {done.returncode}")
        return done.stdout


def heading(text: str) -> None:
    """Say what comes."""
    print(f"\n{'=' * 100}\n{text}\n{'=' * 100}", flush=True)


def by_pytest() -> None:
    """The examples, as their author would run them."""
    heading("1. The fixtures: pytest examples (three tests on a clone of this project)")
    # The projects below import their own modules as any project's tests do.
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly", "--import-mode=prepend"]
    subprocess.run([sys.executable, "-m", "pytest", str(HERE), *options], check=True)


def by_hand() -> None:
    """The same with the command line, four hours included."""
    heading("2. The same by hand: the gittrix command")
    with tempfile.TemporaryDirectory() as scratch, World.open(Path(scratch) / "world", repository=PROJECT) as world:
        world.gittrix.close()  # From here on only the command line works on the store.
        shell = Shell(world.durable.path, dict(world.env) | {"COLUMNS": "100"})
        started = json.loads(shell.run(*GITTRIX, "session", "start", "--task", "group long numbers", "--json", quiet=True))["data"]
        session, workspace = started["id"], Path(started["workspacePath"])
        print(f"{session} in a workspace of its own, at {started['baselineSha'][:12]}")
        changed = shell.run(sys.executable, str(HERE / "codemod.py"), where=workspace, quiet=True).split()
        print(f"{len(changed)} files changed, the first: {changed[0]}")
        shell.run(*GITTRIX, "session", "list")
        shell.run(*GITTRIX, "session", "diff", session, changed[0])
        heading("   A rival commits to the same file meanwhile: promotion fails, and nothing moves")
        world.rival.commit({changed[0]: "# rewritten by somebody else\n"}, message="Rewrite it")
        shell.run(*GITTRIX, "promote", session, fails=True)
        heading("   The other files go in, as one commit; what was left out is archived")
        shell.run(
            *GITTRIX, "promote", session, "--files", ",".join(changed[1:4]), "--strategy", "commit", "--message", "Group long numbers"
        )
        shell.run("git", "log", "--oneline", "-4")
        shell.run("git", "show", "--stat", "--format=%h %an: %s", "HEAD")
        heading("   A second session stands idle for four hours, and the sweep takes it")
        second = shell.run(*GITTRIX, "session", "start", "--task", "another try").split()[0]
        world.clock.advance(hours=4, minutes=5)
        shell.run(*GITTRIX, "sweep")
        shell.run(*GITTRIX, "session", "list")
        shell.run(*GITTRIX, "session", "read", second, "README.md", fails=True)


def ten_samples() -> Path | None:
    """An agent on ten puzzles; gives the page that tells of it, None without Jinja2."""
    heading("3. An eval: ten puzzles, each in a session of its own (some answers are wrong, so that there is something to see)")
    shutil.rmtree(RUN, ignore_errors=True)
    shell = Shell(PROJECT, dict(os.environ))
    agent = f"python:{AGENT.relative_to(PROJECT)}:work"
    shell.run(
        *GITTRIX, "eval", "run", str(PUZZLES.relative_to(PROJECT)), "--agent", agent, "--out", str(RUN.relative_to(PROJECT)), "-n", "2"
    )
    heading("   One of them: somebody else changed a file that the agent had changed too")
    shell.run(*GITTRIX, "eval", "show", str(RUN.relative_to(PROJECT)), "compare-aware-times")
    page = RUN / "report.html"
    return page if page.exists() else None


def main() -> int:
    """Run all parts."""
    os.environ.setdefault("NO_COLOR", "1")
    by_pytest()
    by_hand()
    page = ten_samples()
    where = f"\nThe eval's report, to open in a browser: {page}" if page else ""
    heading(f"That was all of it. Next: README.md, docs/tutorial/first-test.md{where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
