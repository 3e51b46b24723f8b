"""The demonstration that ``make demo`` runs: three tests, the same story by hand, a verdict on a broken system, and a small eval.

The durable repository of tests and story is a clone of this project with its real history; the agent is ``codemod.py``. The story happens
in a temporary directory, under a clock that the demonstration moves. The eval runs ``puzzle_agent.py`` on thirty puzzles, and is kept in
``runs/demo``. Run it from the root of the project: ``python -m examples.demo``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fixtures.broken_systems.judging import clauses, complaint
from fixtures.broken_systems.zoo import ZOO
from pytest_gittrix import World

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
TESTS = "examples/test_codemod_agent.py"
PUZZLES = "fixtures/evals/puzzles"
AGENT = "python:examples/puzzle_agent.py:work"
RUN = "runs/demo"
GITTRIX = str(Path(sys.executable).with_name("gittrix"))
NAMES = {GITTRIX: "gittrix", sys.executable: "python"}
"""What a person types for a program that is named by its path here."""


def heading(text: str) -> None:
    """Say what comes."""
    print(f"\n== {text}", flush=True)


def run(directory: Path, environment: dict[str, str], *command: str, lines: int = 8, fails: bool = False, quiet: bool = False) -> str:
    """Run a command as a person would type it, and show it with the first lines of what it prints.

    Args:
        directory: where it runs.
        environment: of the command.
        command: program and arguments.
        lines: how many lines of its output are shown at most.
        fails: whether it should fail.
        quiet: whether its output is not shown.

    Returns:
        All that it printed. The demonstration ends if the command does not end as it should.
    """
    print(f"$ {shlex.join(NAMES.get(part, part).replace(str(HERE), 'examples') for part in command)}", flush=True)
    done = subprocess.run(command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    as_expected = (done.returncode != 0) is fails
    if not quiet or not as_expected:
        shown = done.stdout.splitlines()
        more = as_expected and len(shown) > lines
        print("\n".join([*shown[:lines], "..."] if more else shown), flush=True)
    if not as_expected:
        sys.exit(f"The command ended with status {done.returncode}.")
    return done.stdout


def three_tests() -> None:
    """The examples, as their author would run them."""
    heading("Three tests of an agent, on a clone of this project")
    # The examples import their own modules as any project's tests do.
    options = "--no-header --import-mode=prepend -p no:cacheprovider -p no:randomly"
    run(PROJECT, dict(os.environ) | {"PYTEST_ADDOPTS": options}, sys.executable, "-m", "pytest", TESTS, "-q")


def story() -> None:
    """A session by hand: agent, diff, rival, conflict, promotion, four hours, sweep."""
    heading("The same story by hand: an agent works in a session")
    with tempfile.TemporaryDirectory() as scratch, World.open(Path(scratch) / "world", repository=PROJECT) as world:
        world.gittrix.close()  # From here on only the command line works on the store.
        project, environment = world.durable.path, dict(world.env) | {"COLUMNS": "100"}
        session, workspace = run(project, environment, GITTRIX, "session", "start", "--task", "group long numbers").split()
        changed = run(Path(workspace), environment, sys.executable, str(HERE / "codemod.py"), "pytest_gittrix", quiet=True).split()
        print(f"{changed[0]}\n... ({len(changed)} files)")
        diff = run(project, environment, GITTRIX, "session", "diff", session, changed[0], quiet=True).splitlines()
        edits = [line for line in diff if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))]
        print("\n".join(["...", *edits[:4], "..."]))

        heading("A rival commits to the same file meanwhile: the promotion is refused, and nothing moves")
        world.rival.commit({changed[0]: "# rewritten by somebody else\n"}, message="Rewrite it")
        run(project, environment, GITTRIX, "promote", session, fails=True)
        print("# With --json, programs get the code BASELINE_CONFLICT.")

        heading("Other files go in, as one commit")
        chosen = ["--files", ",".join(changed[1:3]), "--strategy", "commit", "--message", "Group long numbers"]
        run(project, environment, GITTRIX, "promote", session, *chosen)
        run(project, environment, "git", "log", "--oneline", "-1")

        heading("Another session is idle for more than four hours: the sweep evicts it")
        run(project, environment, GITTRIX, "session", "start", "--task", "another try", lines=0)
        world.clock.advance(hours=4, minutes=5)
        run(project, environment, GITTRIX, "sweep")
        run(project, environment, GITTRIX, "session", "list", "--status", "expired")


def what_happened(complaint: str) -> str:
    """A complaint as a sentence: what the system raised, or what the clause saw."""
    first = complaint.splitlines()[0]
    return f"The system raised {first}" if first.partition(": ")[0].isidentifier() else first


def verdict() -> None:
    """A session system that is broken on purpose, and what five clauses of the conformance suite say of it."""
    broken = ZOO["every commit conflicts"]
    heading(f"A verdict on a broken session system, {broken.name!r}")
    for code in ("ISO-01", "PRM-01", "CNF-01", "CNF-02", "CNF-14"):
        found = complaint(broken.system(), code)
        promise = clauses()[code][0].promise
        print(f"{code} broken  {promise}. {what_happened(found)}" if found else f"{code} kept    {promise}.")


def thirty_samples() -> str:
    """An eval of an agent on thirty puzzles; gives the path of its report."""
    heading("An eval: thirty puzzles, each in a session of its own (the agent knows ten of them, and some answers are wrong)")
    shutil.rmtree(PROJECT / RUN, ignore_errors=True)
    run(PROJECT, dict(os.environ), GITTRIX, "eval", "run", PUZZLES, "--agent", AGENT, "--out", RUN, "-n", "2", lines=5)
    return str(PROJECT / RUN / "report.html")


def why_not(project: Path) -> str | None:
    """Why the demonstration cannot run on a directory; None if it can."""
    command = ["git", "-C", str(project), "rev-parse", "--is-shallow-repository"]
    said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout.strip()
    if said == "true":
        return (
            "This clone is shallow, and the demonstration plays on its whole history. Run `git fetch --unshallow`, then `make demo` again."
        )
    return None if said == "false" else "This is no git clone, and the demonstration plays on the project's history. Run it in a clone."


def main() -> int:
    """Run all parts."""
    os.environ.setdefault("NO_COLOR", "1")
    reason = why_not(PROJECT)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    three_tests()
    story()
    verdict()
    report = thirty_samples()
    print(f"\nNext: README.md and docs/test-your-agent.md. The eval's report, to open in a browser:\n{report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
