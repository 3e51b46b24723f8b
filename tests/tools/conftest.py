"""What these tests share: a process without a network, a project on real git, and a session on it.

They need frameworks that are extras, and heavy; so they have a virtual environment of their own (``make tools``). Where no framework is
installed nothing is collected here; where one is missing, its tests are skipped and say why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.git import git

from pytest_gittrix import GitTrix, UserSession
from pytest_gittrix.backends import LocalDurable
from pytest_gittrix.extras import missing

FRAMEWORKS = ("mcp", "inspect", "pydantic-ai", "deepagents", "openai-agents", "claude", "harbor")
HERE = any(not missing(extra) for extra in FRAMEWORKS)
FILES = {"app.py": "def add(a, b):\n    return a - b\n", "README.md": "# A project\n"}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # litellm fetches prices when it is imported
    "MSWEA_SILENT_STARTUP": "1",
    "INSPECT_DISPLAY": "none",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


def stay_offline(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse every way out of this machine: what needs a network would otherwise pass where there is one."""
    if event == "socket.getaddrinfo" and arguments[0] not in (None, *LOOPBACK):
        raise OSError(f"these tests have no network; something asked for the address of {arguments[0]!r}")
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in LOOPBACK:
        raise OSError(f"these tests have no network; something connects to {arguments[1]!r}")


if HERE:
    os.environ.update(OFFLINE)  # before any framework is imported
    sys.addaudithook(stay_offline)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave all of it out where no framework is installed: that is the main suite's environment."""
    return None if HERE else True


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of two files and one commit, on branch ``main``."""
    path = tmp_path / "project"
    path.mkdir()
    git("init", "-q", "--initial-branch=main", cwd=path)
    git("config", "user.name", "Ada", cwd=path)
    git("config", "user.email", "ada@example.org", cwd=path)
    for name, contents in FILES.items():
        (path / name).write_text(contents)
    git("add", "--all", cwd=path)
    git("commit", "-q", "--message=first", cwd=path)
    return path


@pytest.fixture
def engine(project: Path, tmp_path: Path) -> Iterator[GitTrix]:
    """An engine on the project."""
    with GitTrix(LocalDurable(project), store=tmp_path / "store", sweep_interval=None) as engine:
        yield engine


@pytest.fixture
def session(engine: GitTrix) -> UserSession:
    """A session on the project."""
    return engine.start_session("mend the sum")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
