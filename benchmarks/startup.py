"""What the package costs those who do not use it: an installed plugin, a command's help, an import. And what it costs to show sessions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.measure import TOTAL, Measurement, Phases, Variant, interleave, scratch, summarise
from benchmarks.sample import Sample
from benchmarks.sessions import fill, id_of
from pytest_gittrix.testing.world import World

WITH: Final = "pytest --co, plugin installed"
WITHOUT: Final = "pytest --co -p no:gittrix"
HELP: Final = "gittrix --help"
PASS: Final = "python -c pass"
CPU: Final = "cpu"
DEAD: Final = (100, 10_000)
"""Sessions that have ended, in the stores that commands are run on."""
IN_USE: Final = (10, 50_000)
"""Files of the repositories whose sessions go on."""
_COLLECT: Final = ("-m", "pytest", "--co", "-q", "-p", "no:cacheprovider")


def startup(*, quick: bool = False) -> list[Measurement]:
    """Child processes, by wall clock and by the processor time the system charged them."""
    with scratch() as root:
        env = environment(root)
        directory = root / "empty"
        directory.mkdir()
        jobs: dict[str, Sequence[str]] = {
            WITH: [sys.executable, *_COLLECT],
            WITHOUT: [sys.executable, *_COLLECT, "-p", "no:gittrix"],
            HELP: [*gittrix(), "--help"],
            PASS: [sys.executable, "-c", "pass"],
            "import pytest_gittrix": [sys.executable, "-c", "import pytest_gittrix"],
        }
        variants: dict[str, Variant] = {name: child(arguments, directory, env) for name, arguments in jobs.items()}
        turns = interleave(variants, rounds=7 if quick else 41, seconds=8 if quick else 50, warm=2)
    return summarise("startup", turns)


def command_line(*, quick: bool = False) -> list[Measurement]:
    """Commands on stores of sessions that have ended, beside an interpreter that does nothing and beside git."""
    found = []
    for dead in DEAD:
        with scratch() as root, World.open(root / "world", files={"app.py": "print()\n"}) as world:
            fill(root / "gittrix" / "sessions", dead, events=3)
            env = environment(root) | {"GITTRIX_HOME": str(root / "gittrix")}
            jobs = {
                PASS: [sys.executable, "-c", "pass"],
                "git log -1": ["git", "log", "-1"],
                "session info": [*gittrix(), "session", "info", id_of(dead // 2)],
                "session list": [*gittrix(), "session", "list"],
            }
            variants: dict[str, Variant] = {name: child(arguments, world.durable.path, env) for name, arguments in jobs.items()}
            turns = interleave(variants, rounds=7 if quick else 21, seconds=8 if quick else 40, warm=2)
        found += summarise("command line", turns, size=dead)
    return found


def in_use(*, quick: bool = False) -> list[Measurement]:
    """Commands on a ``lazy`` session that goes on, each a process that knows nothing of it, beside an interpreter that does nothing."""
    found = []
    for size in IN_USE:
        with scratch() as root:
            sample = Sample.make(root / "sample.git", size)
            env = environment(root) | {"GITTRIX_HOME": str(root / "gittrix")}
            start = [*gittrix(), "session", "start", "--durable", str(sample.directory), "--workspace", "lazy", "--task", "Look"]
            id_ = json.loads(subprocess.run([*start, "--json"], env=env, check=True, capture_output=True).stdout)["data"]["id"]
            for path, data in sample.writes(0).items():
                subprocess.run([*gittrix(), "session", "write", id_, path], env=env, check=True, input=data, capture_output=True)
            shown = {f"session {verb}": [*gittrix(), "session", verb, id_] for verb in ("info", "touched", "diff")}
            jobs = {PASS: [sys.executable, "-c", "pass"], "session start": start, **shown}
            variants: dict[str, Variant] = {name: child(arguments, root, env) for name, arguments in jobs.items()}
            turns = interleave(variants, rounds=5 if quick else 15, seconds=8 if quick else 40, warm=2)
        found += summarise("session in use", turns, size=size)
    return found


def environment(root: Path) -> dict[str, str]:
    """Users have bytecode on disk, also the bytecode that pytest makes of plugins. It goes where it is thrown away."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return env | {"PYTHONPYCACHEPREFIX": str(root / "bytecode")}


def gittrix() -> list[str]:
    """The command, as a user starts it."""
    script = Path(sys.executable).with_name("gittrix")
    return [str(script)] if script.exists() else [sys.executable, "-m", "pytest_gittrix.cli"]


def child(arguments: Sequence[str], directory: Path, env: Mapping[str, str]) -> Variant:
    """A child process, by wall clock and by the processor time the system charged it. Statuses 0 and 5 are as they should be."""

    def run(_turn: int) -> Phases:
        before = time.perf_counter_ns()
        process = subprocess.Popen(arguments, cwd=directory, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = (time.perf_counter_ns() - before) / 1e6
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 5):  # 5: pytest found no tests, as meant
            raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}")
        return {TOTAL: wall, CPU: (usage.ru_utime + usage.ru_stime) * 1000}

    return run
