"""What a launcher's settings give an agent: variables by name only, a level, and the file of its program."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support.agent_processes import on_linux

from pytest_gittrix import World
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.levels import strongest
from pytest_gittrix.engine.agents.launch import INHERITED, NETWORK_LOG, AgentSettings, network_summary, settings_for
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.lock_owner import Owner


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"confine": "strong"}, "auto, off, guard, jail"),
        ({"network": "some"}, "none, all"),
        ({"pass_env": ("",)}, "name of a variable"),
        ({"pass_env": ("A=b",)}, "name of a variable"),
    ],
)
def test_a_setting_that_is_none_is_refused_with_those_there_are(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        AgentSettings(**given)


def test_the_record_of_a_network_is_summed_up_in_few_words(tmp_path: Path) -> None:
    assert network_summary(tmp_path) is None
    decisions = [{"decision": "refused", "target": f"{number % 30}.example.org:443" + "x" * 500} for number in range(60)]
    lines = [json.dumps(one) for one in ({"decision": "passed", "target": "POST /anthropic/v1/messages"}, *decisions)]
    (tmp_path / NETWORK_LOG).write_text("\n".join([*lines, '{"decision": "ref']))

    summary = network_summary(tmp_path)

    assert summary is not None
    assert (summary["passed"], summary["refused"]) == (1, 60)
    assert [target.partition(":")[0] for target in summary["refused_targets"]] == [f"{number}.example.org" for number in range(20)]
    assert len(json.dumps(summary)) < 5000


def test_variables_are_inherited_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "GITTRIX_HOME", "SSH_AUTH_SOCK", "LC_TIME", "MODEL"):
        monkeypatch.setenv(name, "x")

    inherited = AgentSettings(pass_env=("MODEL", "NOT_SET")).inherited()

    assert {"LC_TIME", "MODEL", "PATH"} <= inherited.keys()
    assert not inherited.keys() & {"OPENAI_API_KEY", "GITHUB_TOKEN", "GITTRIX_HOME", "SSH_AUTH_SOCK", "NOT_SET"}


def test_the_page_names_each_variable_that_is_inherited() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/reference/confinement.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"an agent gets only (.*?) and these, at every level", page, re.DOTALL)

    assert set(re.findall(r"`([^`]+)`", said)) == {*INHERITED, "LC_*"}


@pytest.mark.parametrize(
    ("own", "engines", "level"), [(None, None, "auto"), (None, "guard", "guard"), ("off", "guard", "off"), ("jail", None, "jail")]
)
def test_the_launchers_level_comes_before_the_engines_and_auto_is_last(own: Any, engines: Any, level: str, tmp_path: Path) -> None:
    with World.open(tmp_path / "world", workspace=LocalEphemeral(confine=engines)) as world:
        assert settings_for(world.gittrix.ephemeral, own, "none", None, (), ()).confine == level
        with pytest.raises(InvalidInput, match="auto, off, guard, jail"):
            settings_for(world.gittrix.ephemeral, "", "none", None, (), ())


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program outside of everything that a confined agent sees, with a secret beside it."""
    directory = tmp_path / "opt" / "bin"
    directory.mkdir(parents=True)
    (directory / "secret").write_text("hunter2")
    file = directory / "agent"
    file.write_text('#!/bin/sh\ncat "${0%/*}/secret" > seen; echo done > done\n')
    file.chmod(0o755)
    return file


def start(settings: AgentSettings, command: list[str], tmp_path: Path) -> tuple[Path, list[Confinement]]:
    """Start an agent, and wait for its end; its workspace, and how it was confined."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    confined: list[Confinement] = []

    def confirm(_owner: Owner, how: Confinement) -> None:
        confined.append(how)

    agent = settings.start(
        command,
        directory=tmp_path / "agent",
        workspace=workspace,
        home=tmp_path / "home",
        environment={"PATH": os.environ["PATH"]},
        confirm=confirm,
        mark="a-mark-of-this-test",
    )
    assert agent.wait(60).state == "exited"
    return workspace, confined


@on_linux
@pytest.mark.skipif(strongest().level == "off", reason=strongest().why)
@pytest.mark.parametrize("linked", [False, True])
def test_a_confined_agents_program_is_found_and_what_is_beside_it_is_not(program: Path, tmp_path: Path, linked: bool) -> None:
    named = program
    if linked:
        named = tmp_path / "links" / "agent"
        named.parent.mkdir()
        named.symlink_to(program)

    workspace, (confined,) = start(AgentSettings(), [str(named)], tmp_path)

    assert confined.level == strongest().level
    assert ((workspace / "done").exists(), (workspace / "seen").read_text()) == (True, "")


@on_linux
@pytest.mark.skipif(strongest().level == "off", reason=strongest().why)
def test_what_is_named_is_readable(program: Path, tmp_path: Path) -> None:
    workspace, _ = start(AgentSettings(readable=(program.parent,)), [str(program)], tmp_path)

    assert (workspace / "seen").read_text() == "hunter2"


@on_linux
def test_a_program_that_is_not_there_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no program 'no-such-agent'"):
        start(AgentSettings(), ["no-such-agent"], tmp_path)

    assert not (tmp_path / "agent").exists()
