"""What the tests of a frozen process share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest_gittrix

FROZEN = 1_893_456_000  # 2030-01-01T00:00:00Z
HOUR = 3600
TIMEOUT = 60  # seconds; only a hang takes as long

SETUP = """
import datetime, json, sys, threading, time
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.errors import ClockConflict, GittrixError, InvalidInput
from pytest_gittrix.clock.freeze import process_freeze

def refusal(attempt):
    try:
        attempt()
    except GittrixError as problem:
        return [type(problem).__name__, problem.fact, bool(problem.why), bool(problem.fix)]

clock = FrozenClock(separate_files=False)
"""


def run(script: str, tmp_path: Path, **variables: str) -> Any:
    """Run ``script`` in a fresh interpreter with warnings as errors, and return what it put into ``out``."""
    source = f"{SETUP}\nout = {{}}\n{dedent(script)}\nprint(json.dumps(out))"
    return json.loads(python(["-W", "error", "-c", source], tmp_path, **variables))


def python(arguments: list[str], tmp_path: Path, **variables: str) -> str:
    path = os.pathsep.join([str(tmp_path), str(Path(pytest_gittrix.__file__).parent.parent)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOME": str(tmp_path), "TZ": "UTC"} | variables
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
