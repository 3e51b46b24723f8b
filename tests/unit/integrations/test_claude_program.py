"""The program that the Claude Agent SDK starts in place of the agent's, with a shell script as the agent's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.agent_processes import on_linux
from support.confined import available

from pytest_gittrix.confine import Place
from pytest_gittrix.integrations.claude_program import ConfinedProgram, StartedPrograms
from pytest_gittrix.testing import World

pytestmark = on_linux


@pytest.mark.parametrize("name", ["guard by landlock", "jail by namespaces"])
def test_the_program_is_confined_gets_no_key_and_is_ended(name: str, tmp_path: Path) -> None:
    level = available(name).level
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\necho "$*"; env; cat; : > up; sleep 600\n')
    agent.chmod(0o700)
    outside = {**os.environ, "ANTHROPIC_API_KEY": "sk-secret", "A_SECRET": "sk-secret", "CLAUDE_CODE_ENTRYPOINT": "sdk-py"}
    (tmp_path / "d").mkdir()
    with World.open(files={"app.py": "v1\n"}) as world, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTHROPIC_API_KEY", "sk-secret")
        session = world.start().for_agent()
        with session.programs(confine=level, network=["model:anthropic"], readable=[agent], at=None) as programs:
            program = ConfinedProgram(str(agent), programs.place, programs.confinement, programs.environment({"IS_SANDBOX": "1"}))
            script = program.write(tmp_path / "d")
            with subprocess.Popen([script, "--flag", "two words"], stdin=-1, stdout=-1, stderr=-1, env=outside) as started:
                assert started.stdin is not None
                assert started.stdout is not None
                started.stdin.write(b"prompt\n")
                started.stdin.close()
                shown = b""
                while b"prompt\n" not in shown:
                    piece = os.read(started.stdout.fileno(), 1 << 16)
                    assert piece, shown
                    shown += piece

                StartedPrograms(tmp_path / "d").kill()

                assert started.wait(60) != 0

    assert shown.startswith(b"--flag two words\n")
    assert b"sk-secret" not in shown
    assert b"CLAUDE_CODE_ENTRYPOINT=sdk-py\n" in shown
    assert b"ANTHROPIC_API_KEY=the-key-is-added-outside\n" in shown


def test_a_program_that_cannot_be_confined_is_not_started(tmp_path: Path) -> None:
    level = available("jail by namespaces")
    (tmp_path / "w").mkdir()
    (tmp_path / "h").mkdir()
    (tmp_path / "d").mkdir()
    script = ConfinedProgram("/bin/sh", Place(tmp_path / "w", tmp_path / "h"), level, {}).write(tmp_path / "d")
    (tmp_path / "w").rmdir()
    ended = subprocess.run([script, "-c", "echo ran"], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "There is no workspace" in ended.stderr
