"""Memory that really runs out: where the kernel kills a program of a sample for want of it, nobody knows whose failure that is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from support.evals import suite

from pytest_gittrix.os_level.monotonic import pause

TAKES = "taken = [bytearray(b'x' * (16 << 20)) for _ in range(400)]"
"""A program that takes 6.4 GB, piece by piece."""
CHECKS = {
    "command": f'[check]\ncommand = ["python3", "-c", "{TAKES}"]\n',
    "pytest": '[check]\npytest = "test_it.py"\n',
}
MOST = 512 << 20
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextmanager
def memory_group() -> Iterator[Path]:
    """A control group of the kernel whose processes get no more than ``MOST`` bytes together. Skips where none can be made."""
    is_v1 = (_V1 / "memory.limit_in_bytes").exists()
    group = (_V1 if is_v1 else _V2) / f"gittrix-trial-{uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(MOST))
        with suppress(OSError):
            (group / ("memory.memsw.limit_in_bytes" if is_v1 else "memory.swap.max")).write_text(str(MOST if is_v1 else 0))
    except OSError as problem:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group of memory can be made here: {problem}")
    try:
        yield group
    finally:
        while group.exists():
            with suppress(OSError):
                group.rmdir()
            pause(0.01)


def run_in(group: Path, root: Path, agent: str, *more: str, check: str = "") -> dict[str, str]:
    """The record of the one sample of a run that works in a control group."""
    argv = [
        sys.executable,
        "-m",
        "pytest_gittrix.cli",
        "eval",
        "run",
        str(suite(root, more=check, extra={"test_it.py": f"def test_it():\n    {TAKES}\n"})),
        "--agent",
        agent,
    ]
    argv += ["--out", str(root / "run"), "--retries", "0", *more]
    join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    done = subprocess.run(["sh", "-c", join, "sh", *argv], cwd=root, capture_output=True, text=True)
    (record,) = (root / "run" / "samples").glob("*.json")
    found = json.loads(record.read_text())
    return {"outcome": found["outcome"], "reason": found["reason"], "status": str(done.returncode)}


def program(root: Path) -> str:
    """An agent that takes more memory than there is."""
    (root / "takes.py").write_text(TAKES)
    return f"{sys.executable} {root / 'takes.py'}"


@pytest.mark.needs_root
@pytest.mark.parametrize("level", ["jail", "guard", "off"])
def test_a_program_that_the_kernel_killed_for_want_of_memory_is_nobodys_failure(tmp_path: Path, level: str) -> None:
    with memory_group() as group:
        found = run_in(group, tmp_path, program(tmp_path), "--confine", level)

    assert found["outcome"] == "infra_error", found
    assert "out of memory" in found["reason"]
    assert found["status"] == "1"


@pytest.mark.needs_root
def test_a_part_of_an_agent_that_the_kernel_killed_leaves_open_whose_failure_it_is(tmp_path: Path) -> None:
    with memory_group() as group:
        found = run_in(
            group, tmp_path, f"sh -c '{program(tmp_path)}; exit $?'", "--confine", "jail", "--readable", str(tmp_path / "takes.py")
        )

    assert found["outcome"] == "infra_error", found


@pytest.mark.needs_root
@pytest.mark.parametrize("check", ["command", "pytest"])
def test_a_check_that_the_kernel_killed_for_want_of_memory_gives_no_verdict(tmp_path: Path, check: str) -> None:
    with memory_group() as group:
        found = run_in(group, tmp_path, "nop", "--confine", "jail", check=CHECKS[check])

    assert found["outcome"] == "infra_error", found
    assert "out of memory" in found["reason"]


@pytest.mark.needs_root
def test_an_agent_that_takes_more_than_its_own_limit_has_failed(tmp_path: Path) -> None:
    with memory_group() as group:
        found = run_in(group, tmp_path, program(tmp_path), "--confine", "jail", "--limit", "memory=100MB")

    assert found["outcome"] == "agent_error", found
    assert found["status"] == "1"
