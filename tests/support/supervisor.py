"""What the tests of the supervisor share."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gittrix.testing.faults.supervisor import (
    SupervisedRun,
)

OLD, NEW = b"old content", b"NEW CONTENT, LONGER"


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def write_file(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def names(run: SupervisedRun) -> list[str]:
    return [call.name for call in run.calls]


def git(disk: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(disk),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }


def processes_mentioning(word: str) -> list[str]:
    """The numbers of the processes with a word in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found
