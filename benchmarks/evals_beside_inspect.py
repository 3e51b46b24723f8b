"""``python -m benchmarks.evals_beside_inspect``: samples of a trivial agent: by us, by Inspect AI in its local sandbox, by a bare loop.

Both get the same files, agent and check, one sample at a time, in memory, in turns within one run. What each does for a sample is not the
same: Inspect makes a directory and a log; here a sample is a repository, a session, a review, a promotion, and records of all that.
It needs Inspect (``make tools`` has an environment with it), so it is no part of ``make bench``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.evals import FILES, FUNCTION, LOOP, PROGRAM, PROGRAM_LINE, SOLVED, bare_loop, prepared, run_turn, timed_samples
from benchmarks.measure import Measurement, Phases, interleave, memory_directory, peak_memory, scratch, summarise
from benchmarks.report import Run, environment, text, to_json

INSPECT: Final = "Inspect, local sandbox: {}"
_TURNS: Final = 5


def main(arguments: list[str] | None = None) -> int:
    """Run it; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evals_beside_inspect", description="Samples of a trivial agent, side by side."
    )
    parser.add_argument("--samples", type=int, default=1000, metavar="N", help="of each variant, in five turns (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there too")
    asked = parser.parse_args(arguments)
    try:
        import inspect_ai
    except ImportError:
        print("Inspect AI is not installed here: run `make tools`, then this with .venv-tools/bin/python.", file=sys.stderr)
        return 1
    surroundings = environment(memory_directory(), tempfile.gettempdir()) | {"inspect": inspect_ai.__version__}
    run = Run([*beside_inspect(max(asked.samples // _TURNS, 1)), *memory_beside_inspect(asked.samples)])
    if asked.json is not None:
        asked.json.write_text(to_json(run, surroundings))
    print(text(run, surroundings), end="")
    return 0


def beside_inspect(samples: int) -> list[Measurement]:
    """Milliseconds a sample of each variant.

    Args:
        samples: in each of the five turns that a variant gets.
    """
    with scratch() as root, _temporary_files_in(root):
        suite, options = prepared(root, samples)
        variants = {
            FUNCTION: partial(run_turn, suite, options, samples),
            INSPECT.format(FUNCTION): partial(_inspect, root, samples, False),
            PROGRAM: partial(run_turn, suite, replace(options, agent=PROGRAM_LINE), samples),
            INSPECT.format(PROGRAM): partial(_inspect, root, samples, True),
            LOOP: partial(bare_loop, root, samples),
        }
        return summarise("evals", interleave(variants, rounds=_TURNS, seconds=600))


def memory_beside_inspect(samples: int) -> list[Measurement]:
    """The peak memory of a runner of all samples at once, of an agent that is a function; each runner in a process of its own."""
    found = []
    jobs = ((FUNCTION, _ours_alone), (INSPECT.format(FUNCTION), _inspect_alone), (LOOP, _loop_alone))
    for name, job in jobs:
        with scratch() as root:
            memory = peak_memory(partial(job, root, samples))
        found.append(Measurement("memory of the runner", name, "peak", samples, memory, memory, 1, "MB"))
    return found


def _ours_alone(root: Path, samples: int) -> None:
    suite, options = prepared(root, samples)
    run_turn(suite, options, samples, 0)


def _loop_alone(root: Path, samples: int) -> None:
    bare_loop(root, samples, 0)


def _inspect_alone(root: Path, samples: int) -> None:
    with _temporary_files_in(root):
        _inspect(root, samples, False, 0)


def _inspect(root: Path, samples: int, program: bool, turn: int) -> Phases:
    """The same samples as one task of Inspect's, one at a time; no model is asked anything."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample

    task = Task(
        dataset=[Sample(id="one", input="Make it 2.", target=SOLVED, files=dict(FILES))],
        solver=_solver(program),
        scorer=_scorer(),
        sandbox="local",
        epochs=samples,
        name="beside",
    )
    with timed_samples(samples) as phases:
        [log] = eval(
            task, model="mockllm/model", log_dir=str(root / f"logs-{program}-{turn}"), max_samples=1, display="none", log_level="warning"
        )
    scores = [score.value for sample in log.samples or [] for score in (sample.scores or {}).values()]
    assert scores == ["C"] * samples, log.status
    return phases


def _solver(program: bool) -> Any:
    from inspect_ai.solver import Generate, TaskState, solver
    from inspect_ai.util import sandbox

    @solver
    def trivial() -> Any:
        async def solve(state: TaskState, _generate: Generate) -> TaskState:
            if program:
                await sandbox().exec(shlex.split(PROGRAM_LINE))
            else:
                await sandbox().write_file("app.py", SOLVED)
            return state

        return solve

    return trivial()


def _scorer() -> Any:
    from inspect_ai.scorer import Score, Target, accuracy, scorer
    from inspect_ai.solver import TaskState
    from inspect_ai.util import sandbox

    @scorer(metrics=[accuracy()])
    def as_wanted() -> Any:
        async def score(_state: TaskState, target: Target) -> Score:
            return Score(value="C" if await sandbox().read_file("app.py") == target.text else "I")

        return score

    return as_wanted()


@contextmanager
def _temporary_files_in(root: Path) -> Iterator[None]:
    """Inspect's sandbox is a temporary directory, which is to be in memory as ours is."""
    before = tempfile.tempdir
    tempfile.tempdir = str(root)
    try:
        yield
    finally:
        tempfile.tempdir = before


if __name__ == "__main__":
    sys.exit(main())
