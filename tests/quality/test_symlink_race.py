"""An attacker swaps directories and files for links while they are used: a guarded directory never leaves its root, a naive check does.

The attacker is a real process in a tight loop. ``PYTEST_GITTRIX_SOAK_SECONDS`` (at most 10) lengthens the siege.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gittrix.errors import PathNotFound, WriteRejected
from pytest_gittrix.os_level.safe_dir import SafeDir

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attacker swaps names with Linux's renameat2")

SIEGE_SECONDS = min(10.0, float(os.environ.get("PYTEST_GITTRIX_SOAK_SECONDS", "1.5")))
MOST_TRIES = 20_000 if SIEGE_SECONDS <= 2 else 1_000_000
FEWEST_TRIES = 2_000  # however slow the machine, so that every operation has met every state of its path
CONTROL_SECONDS = 20.0

SECRET = b"this was outside"
INSIDE = b"inside"

# dir <-> dir.link by one atomic exchange, so that neither name is ever missing; file by renaming fresh links and files over it.
ATTACKER = """
    import ctypes, os, sys, time
    outside, deadline = sys.argv[1], time.monotonic() + 60
    libc = ctypes.CDLL(None, use_errno=True)
    AT_FDCWD, EXCHANGE = -100, 2

    def swap_directory():
        if libc.renameat2(AT_FDCWD, b"dir", AT_FDCWD, b"dir.link", EXCHANGE):
            raise OSError(ctypes.get_errno(), "renameat2")

    def swap_file(swaps):
        if swaps % 2:
            os.symlink(outside + "/secret", "next")
        else:
            with open("next", "wb") as file:
                file.write(b"inside")
        os.rename("next", "file")

    parent, swaps = os.getppid(), 0
    print("ready", flush=True)
    while os.getppid() == parent and time.monotonic() < deadline and not os.path.exists(outside + "/../stop"):
        for _ in range(50):
            swap_directory()
            swap_file(swaps)
            swaps += 1
    print(swaps, flush=True)
"""


@dataclass(frozen=True)
class Siege:
    """A root under attack, and the place its links lead to.

    Attributes:
        root: has ``dir`` (in turns a directory, or a link to ``outside``) and ``file`` (in turns a file, or a link to a secret).
        outside: has ``secret`` and ``inner/secret``, so that every path used inside would also work there.
        swaps: how often the attacker struck; filled in when it has stopped.
    """

    root: Path
    outside: Path
    swaps: list[int]

    def outside_now(self) -> dict[str, tuple[int, int, bytes]]:
        """Everything outside: mode, change time and contents by path."""
        everything = [self.outside, *sorted(self.outside.rglob("*"))]
        return {str(path): (path.lstat().st_mode, path.lstat().st_ctime_ns, _contents(path)) for path in everything}


def _contents(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@contextmanager
def besieged(tmp_path: Path) -> Iterator[Siege]:
    siege = Siege(tmp_path / "root", tmp_path / "outside", [])
    for place, contents in ((siege.outside, SECRET), (siege.root / "dir", INSIDE)):
        (place / "inner").mkdir(parents=True)
        (place / "secret").write_bytes(contents)
        (place / "inner" / "secret").write_bytes(contents)
    (siege.outside / "only-outside").write_bytes(SECRET)
    (siege.root / "dir" / "keep").write_bytes(INSIDE)  # a delete may not prune the directory the attacker needs
    (siege.root / "dir" / "inner" / "keep").write_bytes(INSIDE)
    (siege.root / "file").write_bytes(INSIDE)
    (siege.root / "dir.link").symlink_to(siege.outside)
    command = [sys.executable, "-c", textwrap.dedent(ATTACKER), str(siege.outside)]
    with subprocess.Popen(command, cwd=siege.root, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        try:
            if attacker.stdout.readline() != "ready\n":
                pytest.skip("no attack: this system cannot exchange two names")
            yield siege
            (tmp_path / "stop").touch()
            siege.swaps.append(int(attacker.communicate(timeout=60)[0]))
        finally:
            attacker.kill()


def keep_trying(seconds: float, most: int) -> Iterator[int]:
    deadline = time.monotonic() + seconds
    for number in range(most):
        if number >= FEWEST_TRIES and time.monotonic() > deadline:
            return
        yield number


def test_no_operation_is_ever_led_outside(tmp_path: Path) -> None:
    draw = random.Random(20300101)
    outcomes: Counter[str] = Counter()
    escapes: list[str] = []

    def read(guarded: SafeDir, path: str) -> None:
        if guarded.read(path)[0] == SECRET:
            escapes.append(f"read {path}")

    def look(guarded: SafeDir, path: str) -> None:
        status = guarded.lstat(path)
        if status is not None and status.st_ino in outside_inodes:
            escapes.append(f"lstat {path}")

    def scan(guarded: SafeDir, _path: str) -> None:
        for found in guarded.scan():
            if found.stat.st_ino in outside_inodes or found.path.endswith("only-outside"):
                escapes.append(f"scan {found.path}")

    operations: dict[str, Callable[[SafeDir, str], object]] = {
        "read": read,
        "look": look,
        "scan": scan,
        "write": lambda guarded, path: guarded.write(path, INSIDE),
        "make_link": lambda guarded, path: guarded.make_link(path, b"keep"),
        "delete": lambda guarded, path: guarded.delete(path),
        "chmod": lambda guarded, path: guarded.chmod(path, draw.random() < 0.5),
    }
    targets = ["dir/secret", "dir/inner/secret", "dir/new", "dir/new-parent/secret", "file"]

    with besieged(tmp_path) as siege:
        before = siege.outside_now()
        outside_inodes = {path.lstat().st_ino for path in siege.outside.rglob("*")}
        with SafeDir.open(siege.root) as guarded:
            for _ in keep_trying(SIEGE_SECONDS, MOST_TRIES):
                verb = draw.choice(list(operations))
                try:
                    operations[verb](guarded, draw.choice(targets))
                    outcomes[f"{verb} done"] += 1
                except WriteRejected:
                    outcomes[f"{verb} refused"] += 1
                except PathNotFound:
                    outcomes[f"{verb} absent"] += 1
        after = siege.outside_now()

    print(f"{sum(outcomes.values())} tries, {siege.swaps[0]} swaps: {dict(sorted(outcomes.items()))}")
    assert escapes == []
    assert after == before
    assert siege.swaps[0] > 0
    assert {verb for verb in operations if outcomes[f"{verb} done"]} == set(operations)


def test_the_same_attack_leads_a_check_by_name_outside(tmp_path: Path) -> None:
    escaped = tries = 0
    with besieged(tmp_path) as siege:
        for _ in keep_trying(CONTROL_SECONDS, 10_000_000):
            tries += 1
            escaped += checked_then_opened(siege.root, "dir/secret") == SECRET
            if escaped:
                break
    if not escaped:
        pytest.skip(f"the attacker never struck between check and open in {tries} tries ({siege.swaps[0]} swaps)")
    assert siege.swaps[0] > 0


def checked_then_opened(root: Path, path: str) -> bytes | None:
    """What a guarded directory must not be: the real path is checked, and then the name is opened again."""
    name = str(root / path)
    try:
        if not os.path.realpath(name).startswith(f"{root}/"):
            return None
        with open(name, "rb") as file:
            return file.read()
    except OSError:  # realpath() itself trips over a link that is one no more
        return None
