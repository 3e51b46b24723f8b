"""What is in force when every option was given; the run says what it gave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from pytest_gittrix import DurableRepo, FrozenClock, UserSession
from pytest_gittrix.conformance import SessionSystem
from pytest_gittrix.conformance.families.capabilities import CapabilityClauses
from pytest_gittrix.plugin.fixtures import Worlds

GIVEN = json.loads(os.environ["GIVEN"])


def test_clock_start(gittrix_durable: DurableRepo, gittrix_worlds: Worlds) -> None:
    with gittrix_worlds.open() as world:
        assert world.clock.now() == datetime.fromisoformat(GIVEN["clock-start"])


def test_freeze(gittrix_clock: FrozenClock) -> None:
    monotonic = time.monotonic()
    gittrix_clock.advance(days=1)
    assert (datetime.now(UTC) == gittrix_clock.now()) is (GIVEN["freeze"] != "none")
    assert (time.monotonic() - monotonic >= 86400) is (GIVEN["freeze"] == "all")


def test_autojump(gittrix_clock: FrozenClock) -> None:
    before = gittrix_clock.now()
    time.sleep(0.01)
    assert (gittrix_clock.now() != before) is (GIVEN["freeze"] != "none" and GIVEN["autojump"] == "yes")


def test_freeze_children(gittrix_clock: FrozenClock, gittrix_env: Mapping[str, str]) -> None:
    program = [sys.executable, "-c", "import time; print(int(time.time()))"]
    shown = int(subprocess.run(program, env=gittrix_env, stdout=subprocess.PIPE, check=True).stdout)
    assert (shown == gittrix_clock.now().timestamp()) is (GIVEN["freeze"] != "none" and GIVEN["freeze-children"] == "yes")


def test_workspace(gittrix_session: UserSession) -> None:
    assert gittrix_session.info().workspace_kind == GIVEN["workspace"]


def test_git(gittrix_durable: DurableRepo) -> None:
    assert gittrix_durable.git("version").startswith("git version")


def test_git_variables(gittrix_durable: DurableRepo) -> None:
    assert ("GIT_PREFIX" in os.environ) is (GIVEN["git-variables"] == "keep")


def test_system(gittrix_system: SessionSystem) -> None:
    assert gittrix_system.name == GIVEN["system"].partition("_")[0]


class TestCapabilities(CapabilityClauses):
    """Some clauses, for a report."""


def test_that_fails(gittrix_session: UserSession) -> None:
    gittrix_session.write("app.py", "half an idea\n")
    raise AssertionError("on purpose: see what is kept")
