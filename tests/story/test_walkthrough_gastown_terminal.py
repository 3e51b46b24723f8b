"""A polecat in a real tmux session, as Gas Town starts one: its name, its environment, and the hook that sees its death."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli
from support.daemon import wait_until
from support.tmux import Tmux, needs_tmux
from support.walkthrough import TOAST

from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.views.gastown_names import address_of

pytestmark = needs_tmux
RUNTIME = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"


def test_a_polecat_is_registered_by_its_terminal_and_a_pane_that_died_is_a_crash(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(id_: str) -> dict[str, Any]:
        found: dict[str, Any] = cli.data("session", "show", id_, "--as", "gastown")
        return found

    monkeypatch.setenv("CLAUDE_SESSION_ID", RUNTIME)
    with Tmux.running(tmp_path / "tmux", ["cat"], hermetic_env(tmp_path / "town"), cli.project) as tmux:
        tmux("rename-session", "gt-gastown-Toast")
        (terminal,) = tmux("list-sessions", "-F", "#{session_name}").split()
        facts = {**TOAST, "agent": address_of(terminal, {"gt-gastown": "gastown"}), "work_unit": "gt-xyz", "cwd": str(cli.project)}
        told = [word for name, value in facts.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        id_ = cli.start(*told)
        assert record(id_).items() >= {**facts, "id": RUNTIME, "agent": TOAST["agent"]}.items()
        assert [one["id"] for one in cli.data("sessions", "find", f"--agent={TOAST['agent']}")] == [RUNTIME]

        tmux("set-environment", "-t", terminal, "GT_SESSION_UUID", id_)
        tmux("set-option", "-t", terminal, "remain-on-exit", "on")
        crash = shlex.join([sys.executable, "-m", "pytest_gittrix.cli", "session", "discard", id_, "--outcome", "crash"])
        tmux("set-hook", "-t", terminal, "pane-died", f"run-shell {shlex.quote(crash)}")
        tmux("respawn-pane", "-k", "-t", terminal, 'echo "I am $GT_SESSION_UUID."; exec sleep 600')
        tmux.see(f"I am {id_}.")
        assert "outcome" not in record(id_)
        os.kill(int(tmux("display-message", "-p", "-t", terminal, "#{pane_pid}")), signal.SIGKILL)
        wait_until(lambda: record(id_).get("outcome") == "crash", "the crash")

        respawned = cli.start(*told, "--parent", id_)
        assert record(respawned).items() >= {"parent_id": id_, "chain_id": id_, "tmux_session": terminal}.items()
        assert record(id_)["child_id"] == respawned
