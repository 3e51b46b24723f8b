"""What the tests of durable repositories share."""

from __future__ import annotations

from pathlib import Path

from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.repos.history import Contents, Executable, History
from pytest_gittrix.testing.repos.templates import Templates

FILES: Contents = {"app.py": "one\n", "docs/guide.md": "guide\n", "run.sh": Executable("#!/bin/sh\n")}
POINTER = "1234567890" * 4


def make(tmp_path: Path, name: str = "durable", *, bare: bool = False, object_format: str = "sha1") -> Path:
    Templates(tmp_path / "templates").of(History.of(FILES), object_format=object_format).materialise(tmp_path / name, bare=bare)
    return tmp_path / name


def status(durable: DurableRepo) -> str:
    return durable.git("status", "--porcelain")


def kinds(durable: DurableRepo, at: str = "HEAD") -> dict[str, str]:
    rows = (line.split(None, 3) for line in durable.git("ls-tree", "-r", "--full-tree", at).splitlines())
    return {path: mode for mode, _, _, path in rows}
