"""A team file is read whole or not at all; what is wrong in it is said with the file, the key, and what is allowed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_gittrix.commands.managers import members_of, orchestrator_of, retention_of
from pytest_gittrix.commands.team_file import Team, read_team
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import InvalidInput, WriteRejected

HOUR = 3600 * 10**9
WHOLE = """
team = "blue"
command = ["claude", "-p"]

[[repositories]]
name = "app"
url = "https://example.org/app.git"
branch = "trunk"
token_env = "APP_TOKEN"

[[repositories]]
name = "crew"
url = "/srv/crew.git"
team = true

[members.ada]
command = ["codex", "--full-auto"]
kind = "brain"
environment = { LANG = "C" }

[members."bob the builder"]

[retention]
loop_brain = "48h"
interactive_success = "0s"
interactive_failure = "2d"
budget = "10GB"
scan_interval = "30s"

[forge]
repo = "acme/app"
token_env = "FORGE_TOKEN"

[[projects]]
id = "parser"
durable = "code/parser"
prefix = "par"
[projects.agents]
claude = ["claude"]
codex = ["codex"]
"""


def read(home: Path, text: str) -> Team:
    (home / "team.toml").write_text(text, encoding="utf-8")
    return read_team(home)


def test_a_team_file_is_read_with_all_its_parts(tmp_path: Path) -> None:
    team = read(tmp_path, WHOLE)

    assert (team.team, team.command) == ("blue", ["claude", "-p"])
    assert [(one.name, one.branch, one.team) for one in team.repositories] == [("app", "trunk", False), ("crew", None, True)]
    assert (team.members["ada"].kind, team.members["ada"].environment) == ("brain", {"LANG": "C"})
    assert (team.members["bob the builder"].kind, team.members["bob the builder"].command) == ("loop", None)
    policy = retention_of(team.retention)
    assert (policy.loop_brain_ns, policy.interactive_success_ns, policy.interactive_failure_ns) == (48 * HOUR, 0, 48 * HOUR)
    assert (policy.disk_budget_bytes, policy.scan_interval_ns) == (10 * 10**9, 30 * 10**9)
    assert team.projects[0].durable == str(tmp_path / "code/parser")
    assert [*team.projects[0].agents] == ["claude", "codex"]


def test_the_files_of_the_page_are_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/run-the-daemon.md").read_text(encoding="utf-8")
    team = read(tmp_path, "\n".join(re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)))
    agents = team.projects[0].agents

    assert (agents["claude"].command, agents["claude"].rules) == (["claude"], [])
    assert (agents["ours"].log, agents["ours"].time, agents["ours"].unit) == ("~/.ours/runs/*.jsonl", "at", "s")
    assert [rule.state for rule in agents["ours"].rules] == ["waiting_input", "active", "active", "blocked", "ready"]
    assert (agents["ours"].rules[1].calls, agents["ours"].rules[2].answers) == ("id", "id")


def test_without_a_file_there_is_a_team_of_nobody_as_botminter_keeps_it(tmp_path: Path) -> None:
    team = read_team(tmp_path)

    assert (team.team, team.repositories, team.projects) == ("team", [], [])
    assert retention_of(team.retention).loop_brain_ns == 24 * HOUR


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"blue\.toml"):
        read_team(tmp_path, tmp_path / "blue.toml")


def test_a_file_that_cannot_be_examined_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "team.toml").symlink_to("team.toml")
    (tmp_path / "file").write_bytes(b"")

    for home in (tmp_path / "loop", tmp_path / "file", tmp_path / ("a" * 300)):
        with pytest.raises(InvalidInput, match=r"team\.toml cannot be read: "):
            read_team(home)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("team = 3", "team: .*string.*3"),
        ("team = ''", "team: "),
        (
            "colour = 'blue'",
            "colour: no such key; there are: allow_secrets, command, confine, forge, limits, members, network, "
            "pass_env, projects, readable, repositories, retention, team",
        ),
        ("[[repositories]]\nname = 'app'", r"repositories\[0\]\.url: must be given"),
        ("[[repositories]]\nname = 'app'\nurl = '/a'\nbranhc = 'x'", r"repositories\[0\]\.branhc: no such key; there are: branch, name"),
        ("[[repositories]]\nname='a'\nurl='/a'\n[[repositories]]\nname='a'\nurl='/b'", r"repositories\[1\]\.name is 'a' a second time"),
        ("[members.ada]\nkind = 'robot'", r"members\.ada\.kind: .*'loop', 'interactive' or 'brain'.*'robot'"),
        ("[members.ada]\ncommand = []", r"members\.ada\.command: "),
        ("[members.ada]\ncommand = 'claude'", r"members\.ada\.command: .*list.*'claude'"),
        ("[members.ada]\nkin = 'loop'", r"members\.ada\.kin: no such key; there are: command, environment, hears, kind"),
        ("[members.ada]\nenvironment = { 'A=B' = 'c' }", r"members\.ada\.environment"),
        ("[retention]\nloop_brain = '2 weeks'", r"retention\.loop_brain: '2 weeks' is not an age.*48h"),
        ("[retention]\nloop_brain = 48", r"retention\.loop_brain: 48 is not an age"),
        ("[retention]\nbudget = '10 gigabytes'", r"retention\.budget: .*10GB"),
        ("[retention]\nbudget = '-1GB'", r"retention\.budget: "),
        ("[forge]\nkind = 'gitlab'\nrepo = 'a/b'", r"forge\.kind: .*'github'"),
        ("[[projects]]\nid = 'p'\ndurable = '/p'\nagents = {}", r"projects\[0\]\.agents: "),
        ('team = "a\\u0000b"', "team: "),
        ("team = 'a'\nteam = 'b'\ncommand = ['x']", "not TOML: .*line 2"),
        ("[[[", "not TOML: .*line 1"),
        ("limits = {memory = 'much'}", "limits: memory='much' is no limit"),
        ("limits = {cores = 2}", "limits: cores=2 is no limit"),
    ],
)
def test_what_is_wrong_is_said_with_the_file_the_key_and_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        read(tmp_path, text)

    assert str(tmp_path / "team.toml") in str(refused.value)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(tmp_path, "team = 3\n[retention]\nbudget = 'much'")

    assert "team: " in str(refused.value)
    assert "retention.budget: " in str(refused.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "team.toml").write_bytes(b"team = '\xff'")

    with pytest.raises(InvalidInput, match="UTF-8"):
        read_team(tmp_path)


def test_the_managers_of_a_team_are_made_of_its_file(tmp_path: Path) -> None:
    tokens = {"APP_TOKEN": "one", "FORGE_TOKEN": "two"}
    team = read(tmp_path, WHOLE)

    with GitTrix(None, store=tmp_path / "sessions", sweep_interval=None) as engine:
        assert members_of(engine, team, tokens).list() == []
        assert orchestrator_of(engine, team, tokens).list("parser") == []


@pytest.mark.parametrize("missing", ["APP_TOKEN", "FORGE_TOKEN"])
def test_a_token_that_is_not_there_is_missed_before_an_agent_is_started(tmp_path: Path, missing: str) -> None:
    tokens = {"APP_TOKEN": "one", "FORGE_TOKEN": "two"} | {missing: " "}
    team = read(tmp_path, WHOLE)

    with GitTrix(None, store=tmp_path / "sessions", sweep_interval=None) as engine, pytest.raises(InvalidInput, match=missing):
        members_of(engine, team, tokens)


def test_a_home_of_nobody_is_said_with_the_file_and_the_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"team\.toml: projects\[0\]\.durable: '~no-such-user/x'"):
        read(tmp_path, '[[projects]]\nid = "p"\ndurable = "~no-such-user/x"\nagents = { a = ["true"] }\n')


@pytest.mark.parametrize(
    "repository",
    [
        'name = "../x"\nurl = "/srv/x"',
        'name = "x"\nurl = "ext::sh -c id"',
        'name = "x"\nurl = "-u"',
        'name = "x"\nurl = "/x"\nbranch = "-b"',
    ],
)
def test_a_repository_that_can_be_none_is_refused_before_an_agent_is_started(tmp_path: Path, repository: str) -> None:
    with GitTrix(None, store=tmp_path / "sessions", sweep_interval=None) as engine, pytest.raises((InvalidInput, WriteRejected)):
        members_of(engine, read(tmp_path, f"[[repositories]]\n{repository}\n"))


def test_what_agents_may_read_is_named_from_the_files_directory(tmp_path: Path) -> None:
    team = read(tmp_path, 'readable = ["tools", "/opt/agent"]\nnetwork = "all"\npass_env = ["MODEL_KEY"]\nconfine = "jail"\n')

    assert team.readable == [str(tmp_path / "tools"), "/opt/agent"]
    assert (team.network, team.pass_env, team.confine) == ("all", ["MODEL_KEY"], "jail")
    with pytest.raises(InvalidInput, match=r"readable\[0\]: '~no-such-user/x'"):
        read(tmp_path, 'readable = ["~no-such-user/x"]\n')
