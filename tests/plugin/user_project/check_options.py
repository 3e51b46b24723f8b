"""What is in force when every option was given; the run says what it gave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_gittrix import DurableRepo, FrozenClock, GittrixError, UserSession
from pytest_gittrix.conformance import SessionSystem
from pytest_gittrix.conformance.families.capabilities import CapabilityClauses
from pytest_gittrix.model import ModelServer
from pytest_gittrix.plugin.worlds import Worlds

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


def ask(model: ModelServer, text: str) -> str:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    with urllib.request.urlopen(f"{model.url}/v1/chat/completions", body) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


@pytest.mark.gittrix(model="tape")
def test_model(gittrix_model: ModelServer) -> None:
    # The tape has an answer, of which one line is to be recorded anew; a script stands for the real server.
    tape = Path(__file__).with_name("tapes") / "check_options-test_model.jsonl"
    before = tape.read_text(encoding="utf-8")
    gittrix_model.script("from the server")
    said = ask(gittrix_model, "Hello")
    gittrix_model.check()
    plays = GIVEN["model"] == "once"
    assert said == ("from the tape" if plays else "from the server")
    assert (tape.read_text(encoding="utf-8") != before) is (GIVEN["model"] == "rewrite")


@pytest.mark.gittrix(model="replay")
def test_model_lenient(gittrix_model: ModelServer) -> None:
    if GIVEN["model-lenient"] == "yes":
        assert ask(gittrix_model, "Hello in other words") == "from the tape"
        return
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask(gittrix_model, "Hello in other words")
    with pytest.raises(GittrixError, match="'Hello in other words'"):
        gittrix_model.check()


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
