"""Large diffs, beside git's: a thousand touched files, and one file rewritten from the first line to the last."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.measure import Measurement, Variant, interleave, scratch, summarise, timed
from benchmarks.sample import Sample
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.testing.world import World

TOUCHED: Final = 1_000
LINES: Final = 8_000


def diffs(*, quick: bool = False) -> list[Measurement]:
    """The engine's diff, what a review adds, and ``git diff`` in the same workspace."""
    found: list[Measurement] = []
    touched = TOUCHED // 5 if quick else TOUCHED
    rounds = 3 if quick else 7
    with scratch() as root:
        sample = Sample.make(root / "sample.git", touched)
        edits = sample.writes(1, touched)
        found += _compare("diff", touched, dict(sample.files), edits, root / "files", rounds)
        old, new = _numbers(1), _numbers(2)
        for how, edited in (("rewritten", new), ("half rewritten", _half(old, new))):
            bench = f"diff of a {how} {LINES}-line file"
            found += _compare(bench, LINES, {"table.txt": old}, {"table.txt": edited}, root / how, rounds)
    return found


def _compare(bench: str, size: int, files: dict[str, bytes], edits: dict[str, bytes], root: Path, rounds: int) -> list[Measurement]:
    with World.open(root, files=files, bare=True) as world:
        session = world.start()
        assert session.workspace_path is not None
        for path, data in edits.items():
            (session.workspace_path / path).write_bytes(data)
        _check(session, edits)
        env = hermetic_env(root / "home")
        command = [git_binary(), "-C", str(session.workspace_path), "diff", "--no-renames", "HEAD"]
        variants: dict[str, Variant] = {
            "session.diff()": lambda _turn: timed(session.diff),
            "session.review() and its hunks": lambda _turn: timed(lambda: session.review().hunks),
            "git diff": lambda _turn: timed(lambda: subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)),
        }
        return summarise(bench, interleave(variants, rounds=rounds, seconds=15), size=size)


def _check(session: UserSession, edits: dict[str, bytes]) -> None:
    if session.touched_files() != sorted(edits):
        raise AssertionError("the workspace does not hold the edits")


def _numbers(seed: int) -> bytes:
    draw = random.Random(seed)
    return b"".join(b"%016x %016x\n" % (draw.getrandbits(64), draw.getrandbits(64)) for _ in range(LINES))


def _half(old: bytes, new: bytes) -> bytes:
    pairs = zip(old.splitlines(keepends=True), new.splitlines(keepends=True), strict=True)
    return b"".join(one if number % 2 else other for number, (one, other) in enumerate(pairs))
