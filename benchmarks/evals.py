"""What a sample of an eval run costs by itself: one of an agent that does next to nothing, beside the same session without a run.

The agent is a function that writes one file, so that all of the time is ours; a program of its own adds what starting it costs.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import TOTAL, Measurement, Phases, Stopwatch, interleave, scratch, summarise
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.run import run_suite
from pytest_gittrix.testing.world import World

FUNCTION, PROGRAM, JAILED, BARE = "a function", "a program, unconfined", "a program, confined", "the session alone"
LOOP: Final = "a program in a bare loop: clone, run, test"

CPU: Final = "cpu"

FILES: Final = {"app.py": "VERSION = 1\n", "README.md": "# App\n", "tests/test_app.py": "def test():\n    pass\n"}
SOLVED: Final = "VERSION = 2\n"
PROGRAM_LINE: Final = "sh -c 'echo VERSION = 2 > app.py'"
"""An agent that is a program, and does the same."""
SUITE: Final = {
    "suite.toml": "schema = 1\n",
    "agent.py": f'def work(toolbox):\n    (toolbox.path / "app.py").write_text({SOLVED!r})\n',
    "cases/one/case.toml": 'task = "Make it 2."\n\n[durable]\nfiles = "repo"\n\n[check]\nfunction = "check.py:check"\n',
    "cases/one/check.py": f'def check(result):\n    assert result.read("app.py") == {SOLVED.encode()!r}\n',
    **{f"cases/one/repo/{name}": data for name, data in FILES.items()},
}


def evals(*, quick: bool = False) -> list[Measurement]:
    """Milliseconds a sample, in memory: 300 samples of each variant, 30 a turn."""
    samples, rounds = (5, 3) if quick else (30, 10)
    with scratch() as root:
        suite, options = prepared(root, samples)
        variants: dict[str, Callable[[int], Phases]] = {
            BARE: partial(_session, root, samples),
            LOOP: partial(bare_loop, root, samples),
            FUNCTION: partial(run_turn, suite, options, samples),
            PROGRAM: partial(run_turn, suite, _with(options, PROGRAM_LINE, "off"), samples),
            JAILED: partial(run_turn, suite, _with(options, PROGRAM_LINE, "auto"), samples),
        }
        return summarise("evals", interleave(variants, rounds=rounds, seconds=120))


def prepared(root: Path, samples: int) -> tuple[Suite, Options]:
    """The suite of one case, and how it is run with the agent that is a function."""
    for name, data in SUITE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(data, encoding="utf-8")
    agent = f"python:{root / 'agent.py'}:work"
    return Suite.load(root), Options(agent=agent, out=root / "run", epochs=samples, scratch=root / "scratch", confine="off")


def _with(options: Options, agent: str, confine: str) -> Options:
    return replace(options, agent=agent, confine=confine)


def run_turn(suite: Suite, options: Options, samples: int, _turn: int) -> Phases:
    """One run, made anew."""
    shutil.rmtree(options.out, ignore_errors=True)
    with timed_samples(samples) as phases:
        summary = run_suite(suite, options)
    assert summary.counts["pass"] == samples, summary.counts
    return phases


def _session(root: Path, samples: int, _turn: int) -> Phases:
    """World, session, agent, review, promotion, and all of it removed."""
    with timed_samples(samples) as phases:
        for _ in range(samples):
            with World.open(root / "world", files=FILES, sweep_interval=None, separate_files=False, keep=False) as world:
                session = world.start("Make it 2.")
                assert session.workspace_path is not None
                (session.workspace_path / "app.py").write_text(SOLVED)
                session.promote(session.review())
    return phases


def bare_loop(root: Path, samples: int, _turn: int) -> Phases:
    """What a script of one's own would do: clone, run the program in the clone, look at the result, remove it. Nothing is kept."""
    origin = root / "origin"
    if not origin.exists():
        for name, data in FILES.items():
            (origin / name).parent.mkdir(parents=True, exist_ok=True)
            (origin / name).write_text(data, encoding="utf-8")
        for command in (["init", "-q"], ["add", "--all"], ["-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "one"]):
            subprocess.run(["git", *command], cwd=origin, check=True)
    with timed_samples(samples) as phases:
        for _ in range(samples):
            subprocess.run(["git", "clone", "-q", origin, root / "clone"], check=True)
            subprocess.run(shlex.split(PROGRAM_LINE), cwd=root / "clone", check=True)
            assert (root / "clone" / "app.py").read_text() == SOLVED
            shutil.rmtree(root / "clone")
    return phases


@contextmanager
def timed_samples(samples: int) -> Iterator[dict[str, float]]:
    """Milliseconds a sample, by the clock and of this process's own processor time."""
    phases: dict[str, float] = {}
    watch, used = Stopwatch(), time.process_time()
    yield phases
    watch.lap(TOTAL)
    phases |= {CPU: (time.process_time() - used) * 1000 / samples, TOTAL: watch.phases[TOTAL] / samples}
