"""The managers of a team file's sessions: of its members (BotMinter) and of its projects (agent-orchestrator).

The daemon and the command line use the same managers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands.team_file import AgentPart, ForgePart, MemberPart, ProjectPart, Retention, RulePart, Team
from pytest_gittrix.errors import Advice, InvalidInput
from pytest_gittrix.record.state.retention import RetentionPolicy

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.github import GitHubForge
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.members.members import CleanupReport, Inspection, Members
    from pytest_gittrix.orchestrator.config import CommandAgent, Project
    from pytest_gittrix.orchestrator.orchestrator import Orchestrator
    from pytest_gittrix.record.state.lifecycle import Life

Environ = Mapping[str, str]
_USER: Final = "x-access-token"
_ANYBODY: Final = ""


def retention_of(part: Retention) -> RetentionPolicy:
    """The retention policy of a team file; BotMinter's values where the file gives none."""
    named: dict[str, Any] = {
        "loop_brain_ns": part.loop_brain,
        "interactive_success_ns": part.interactive_success,
        "interactive_failure_ns": part.interactive_failure,
        "disk_budget_bytes": part.budget,
        "scan_interval_ns": part.scan_interval,
    }
    return RetentionPolicy(**{name: value for name, value in named.items() if value is not None})


def members_of(engine: GitTrix, team: Team, environ: Environ = os.environ) -> Members:
    """The manager of a team's members, on an engine.

    Args:
        engine: the engine whose store has their sessions.
        team: the team file's contents.
        environ: the environment with the variables that hold tokens.

    Raises:
        InvalidInput, WriteRejected: a repository cannot be used, or a variable that is to hold a token is not set.
        CapabilityMissing: a forge is named, and its client is not installed.
    """
    from pytest_gittrix.members.members import Members
    from pytest_gittrix.workspaces.multi_repo import RepositorySpec, check_specs

    specs = [RepositorySpec(one.name, one.url, one.branch, one.team) for one in team.repositories]
    check_specs(specs)
    commands = {name: one.command for name, one in team.members.items() if one.command is not None}
    if team.command is not None:
        commands[_ANYBODY] = team.command
    tokens = {one.url: _token(one.token_env, environ) for one in team.repositories if one.token_env is not None}
    return Members(
        engine,
        specs,
        team=team.team,
        commands=commands,
        retention=retention_of(team.retention),
        forge=None if team.forge is None else _forge(team.forge, environ),
        credentials=lambda url: (_USER, tokens[url]) if url in tokens else None,
        allow_secrets=team.allow_secrets,
        **_agent_settings(team),
    )


def orchestrator_of(engine: GitTrix, team: Team, environ: Environ = os.environ) -> Orchestrator:
    """The manager of a team's projects, on an engine. Arguments and errors as of :func:`members_of`."""
    from pytest_gittrix.orchestrator.orchestrator import Orchestrator

    return Orchestrator(engine, [_project(part, environ) for part in team.projects], **_agent_settings(team))


def start_member(members: Members, team: Team, member: str, kind: str | None = None, **given: Any) -> Life:
    """Start a session of a member, with the kind and the environment that the team file gives the member.

    Args:
        members: the manager.
        team: the team file's contents.
        member: the name; the file need not have it.
        kind: ``loop``, ``interactive`` or ``brain``; the file's by default.
        given: further arguments of ``Members.start``.

    Raises:
        InvalidInput: the file has an interactive program for the member, for which there is no terminal.
        GittrixError: as ``Members.start``.
    """
    part = team.members.get(member, MemberPart())
    if kind is None and part.kind == "interactive" and part.command is not None and given.get("command") is None:
        raise InvalidInput(
            f"The program of {member} is interactive, and this command has no terminal for it.",
            why="Its session would run nothing.",
            fix=Advice(
                f'Run `gittrix member chat {member}`, or give kind="interactive" for a workspace in which a person works.',
                f"Talk to it: `gittrix member chat {member}`. Or give `--kind interactive` for a workspace in which you work yourself.",
            ),
        )
    return members.start(member, kind or part.kind, environment=part.environment, **given)


def cleanup_data(report: CleanupReport) -> dict[str, Any]:
    """A cleanup's report, with the names of BotMinter's CleanupReport (docs/explanation/you-know-botminter.md)."""
    done = not report.dry_run
    reports = [{"session_id": id_, "workspace_removed": done, "registry_removed": done} for id_ in report.removed]
    others = {"spared": list(report.spared), "failed": dict(report.failed), "archived": dict(report.archived), "dry_run": report.dry_run}
    return {"reports": reports, **others}


def inspection_data(inspection: Inspection) -> list[dict[str, Any]]:
    """The state of a workspace's repositories, with the names of BotMinter's GitState (docs/explanation/you-know-botminter.md)."""
    return [
        {
            "repo_name": one.name,
            "current_branch": one.branch,
            "uncommitted_files": list(one.uncommitted),
            "unpushed_branches": list(one.unpushed),
            "pushed_files": list(one.pushed),
            **({} if one.problem is None else {"problem": one.problem}),
        }
        for one in inspection.repositories
    ]


def _agent_settings(team: Team) -> dict[str, Any]:
    return {name: getattr(team, name) for name in ("confine", "network", "limits", "pass_env", "readable")}


def _project(part: ProjectPart, environ: Environ) -> Project:
    from pytest_gittrix.orchestrator.config import Project

    return Project(
        id=part.id,
        durable=part.durable,
        branch=part.branch,
        prefix=part.prefix,
        agents=tuple(_agent(name, agent) for name, agent in part.agents.items()),
        workspace=part.workspace,
        forge=None if part.forge is None else _forge(part.forge, environ),
    )


def _agent(name: str, part: AgentPart) -> CommandAgent:
    from pytest_gittrix.orchestrator.agent_logs.rules import ActivityRule
    from pytest_gittrix.orchestrator.config import ACTIVITY_LOG, CommandAgent
    from pytest_gittrix.record.state.agent_activity import SqliteQuery

    def rule(one: RulePart) -> ActivityRule:
        when = {key: tuple(value) if isinstance(value, list) else value for key, value in one.when.items()}
        return ActivityRule(when, one.state, one.calls, one.answers)

    return CommandAgent(
        name=name,
        argv=tuple(part.command),
        prompt_as=part.prompt_as,
        variables=part.environment,
        log=part.log or ACTIVITY_LOG,
        database=part.database,
        query=None if part.query is None else SqliteQuery(part.query, part.unit),
        rules=tuple(rule(one) for one in part.rules),
        time=part.time,
        unit=part.unit,
    )


def _forge(part: ForgePart, environ: Environ) -> GitHubForge:
    from pytest_gittrix.backends.forge.github import GITHUB, GitHubForge

    token = None if part.token_env is None else _token(part.token_env, environ)
    return GitHubForge(part.repo, base_url=part.base_url or GITHUB, token=token)


def _token(variable: str, environ: Environ) -> str:
    token = environ.get(variable, "").strip()
    if not token:
        raise InvalidInput(
            f"The variable {variable}, which the team file names for a token, is not set.",
            why="Without it an agent's work could not be saved, and the error would only appear when the agent is done.",
            fix=f"Set {variable}, or remove token_env from the team file.",
        )
    return token
