"""Claude Code in a session, with a shell script in its place: confined, without the model's key, and ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.agent_processes import on_linux
from support.cli import Cli, ids
from support.confined import available

from pytest_gittrix import UserSession, World
from pytest_gittrix.confine import Place
from pytest_gittrix.errors import CapabilityMissing, WriteRejected
from pytest_gittrix.integrations import claude_program
from pytest_gittrix.integrations.claude_program import ConfinedClaude, ConfinedProgram, confined_claude, run_claude
from pytest_gittrix.os_level.monotonic import pause

pytestmark = on_linux


AGENT = """#!/bin/sh
echo "$*"; env; cat "$CLAUDE_CONFIG_DIR/.claude.json"; echo; echo made > new.py
[ "$1" = die ] && kill -9 $$
[ "$1" = stay ] || exit 3
sleep 600
"""
KEY = "sk-secret"
LEVELS = ("guard by landlock", "jail by namespaces")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "agent"
    path.write_text(AGENT)
    path.chmod(0o700)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("A_SECRET", KEY)
    monkeypatch.setenv("CLAUDE_CODE_ENTRYPOINT", "sdk-py")
    return path


@pytest.mark.parametrize("name", LEVELS)
def test_it_is_confined_and_gets_no_key(name: str, agent: Path, capfd: pytest.CaptureFixture[str]) -> None:
    level = available(name).level
    with World.open(files={"app.py": "v1\n"}) as world:
        session = world.start()
        status = run_claude(session.for_agent(), ["--flag", "two words"], program=agent, confine=level)
        shown = capfd.readouterr().out

        assert (status, session.touched_files()) == (3, ["new.py"])
    assert shown.startswith("--flag two words\n")
    assert KEY not in shown
    assert "CLAUDE_CODE_ENTRYPOINT=sdk-py\n" in shown
    assert "ANTHROPIC_API_KEY=the-key-is-added-outside\n" in shown
    assert json.loads(shown.splitlines()[-1])["hasCompletedOnboarding"], "it would ask its vendor's server, which it does not reach"


def test_a_person_runs_it_in_a_terminal_and_promotes(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    level = ("--confine", available("jail by namespaces").level, "--limit", "processes=50")
    cli = Cli(tmp_path, monkeypatch, capfdbinary)
    monkeypatch.setattr(claude_program, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    agent.rename(tmp_path / "claude")
    monkeypatch.delenv("ANTHROPIC_API_KEY")

    assert "ANTHROPIC_API_KEY" in cli.refused("agent", "claude", *level)
    assert cli.data("session", "list", "--status", "active") == [], "a program that is not started leaves no session"
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    ran = cli("agent", "claude", *level, "--", "--flag", "two words")
    [id_] = ids(cli.data("session", "list", "--status", "active"))
    assert (ran.status, ran.lines[0]) == (3, "--flag two words")
    assert [line.removeprefix("gittrix: ").strip() for line in ran.err.splitlines()] == [
        f"{id_} differs in new.py",
        f"to look at it: gittrix session diff {id_}",
        f"to promote it: gittrix promote {id_}",
        f"to go on: gittrix agent claude --session {id_}",
    ]
    killed = cli("agent", "claude", "--session", id_[:-1], "--json", *level, "--", "die")
    assert killed.status == 137
    assert json.loads(killed.lines[-1])["data"] == {"id": id_, "status": 137, "touched": ["new.py"]}
    cli.ok("promote", id_)
    assert cli.git("show", "HEAD:new.py") == "made\n"

    assert "Give `claude` or --demo" in cli.refused("agent")
    assert "Give `claude` or --demo" in cli.refused("agent", "claude", "--demo")


def test_its_configuration_is_written_once_and_never_through_a_link(agent: Path, tmp_path: Path) -> None:
    level, outside = available("jail by namespaces").level, tmp_path / "outside"
    outside.mkdir()
    with World.open(files={"app.py": "v1\n"}) as world:
        session = world.start().for_agent()
        with confined_claude(session, program=agent, confine=level) as claude:
            configuration = claude.programs.home / ".claude"
        (configuration / ".claude.json").write_text("its own")
        with confined_claude(session, program=agent, confine=level):
            assert (configuration / ".claude.json").read_text() == "its own"
        shutil.rmtree(configuration)
        configuration.symlink_to(outside)
        with pytest.raises(WriteRejected), confined_claude(session, program=agent, confine=level):
            pass

    assert [*outside.iterdir()] == []


def test_it_ends_with_its_block_and_with_its_session(agent: Path) -> None:
    level = available("jail by namespaces").level

    def at_work(claude: ConfinedClaude, session: UserSession) -> subprocess.Popen[bytes]:
        started = subprocess.Popen([claude.script, "stay"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not session.exists("new.py"):
            assert started.poll() is None
            pause(0.01)
        return started

    with World.open(files={"app.py": "v1\n"}) as world:
        one, two = world.start(), world.start()
        with confined_claude(one.for_agent(), program=agent, confine=level) as claude:
            started = at_work(claude, one)
        assert started.wait(60) != 0
        with confined_claude(two.for_agent(), program=agent, confine=level) as claude:
            started = at_work(claude, two)
            two.discard(force=True)
            assert started.wait(60) != 0


def test_a_program_that_is_not_there_or_that_nothing_confines_is_refused(agent: Path) -> None:
    with World.open(files={"app.py": "v1\n"}) as world:
        session = world.start().for_agent()
        with pytest.raises(CapabilityMissing, match="no program"):
            run_claude(session, [], program="/no/claude")
        with (
            pytest.raises(CapabilityMissing, match="would not be confined"),
            confined_claude(session, program=agent, confine="off", network="all"),
        ):
            pass


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
