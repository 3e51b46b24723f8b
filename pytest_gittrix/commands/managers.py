"""From a team file to what manages its sessions: the manager of members (BotMinter) and that of projects (agent-orchestrator).

It must not know HTTP, nor the command line: both use the same managers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands.team_file import ForgePart, MemberPart, Retention, Team
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.retention import RetentionPolicy

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.github import GitHubForge
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.members.members import CleanupReport, Inspection, Members
    from pytest_gittrix.orchestrator.orchestrator import Orchestrator, Project
    from pytest_gittrix.record.state.lifecycle import Life

Environ = Mapping[str, str]
_USER: Final = "x-access-token"
_ANYBODY: Final = ""


def retention_of(told: Retention) -> RetentionPolicy:
    """The policy that a team file tells of; what it leaves out is as BotMinter has it."""
    named: dict[str, Any] = {
        "loop_brain_ns": told.loop_brain,
        "interactive_success_ns": told.interactive_success,
        "interactive_failure_ns": told.interactive_failure,
        "disk_budget_bytes": told.budget,
        "scan_interval_ns": told.scan_interval,
    }
    return RetentionPolicy(**{name: value for name, value in named.items() if value is not None})


def members_of(engine: GitTrix, team: Team, environ: Environ = os.environ) -> Members:
    """The manager of a team's members, on an engine.

    Args:
        engine: whose store their sessions are in.
        team: who they are.
        environ: where the variables are that hold tokens.

    Raises:
        InvalidInput, WriteRejected: a repository cannot be one, or a variable that is to hold a token is not there.
        CapabilityMissing: a forge is named, and the client for it is not installed.
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
        forge=_issues(team.forge, environ),
        credentials=lambda url: (_USER, tokens[url]) if url in tokens else None,
    )


def orchestrator_of(engine: GitTrix, team: Team, environ: Environ = os.environ) -> Orchestrator:
    """The manager of a team's projects, on an engine. Arguments and errors as of :func:`members_of`."""
    from pytest_gittrix.orchestrator.orchestrator import Orchestrator

    return Orchestrator(engine, [_project(team, number, environ) for number in range(len(team.projects))])


def start_member(members: Members, team: Team, member: str, kind: str | None = None, **given: Any) -> Life:
    """Start a session of a member as the team file tells of that member.

    Args:
        members: the manager.
        team: the file.
        member: the name; the file need not know it.
        kind: ``loop``, ``interactive`` or ``brain``; as the file says by default.
        given: whatever else ``Members.start`` takes.

    Raises:
        GittrixError: as ``Members.start``.
    """
    told = team.members.get(member, MemberPart())
    return members.start(member, kind or told.kind, environment=told.environment, **given)


def cleanup_data(report: CleanupReport) -> dict[str, Any]:
    """What a cleanup did, with the names of BotMinter's CleanupReport (session-systems 4.1)."""
    done = not report.dry_run
    reports = [{"session_id": id_, "workspace_removed": done, "registry_removed": done} for id_ in report.removed]
    return {"reports": reports, "spared": list(report.spared), "failed": dict(report.failed), "dry_run": report.dry_run}


def inspection_data(inspection: Inspection) -> list[dict[str, Any]]:
    """How repositories are, with the names of BotMinter's GitState (session-systems 4.1)."""
    return [
        {
            "repo_name": one.name,
            "current_branch": one.branch,
            "uncommitted_files": list(one.uncommitted),
            "unpushed_branches": list(one.unpushed),
            **({} if one.problem is None else {"problem": one.problem}),
        }
        for one in inspection.repositories
    ]


def _project(team: Team, number: int, environ: Environ) -> Project:
    from pytest_gittrix.orchestrator.orchestrator import CommandAgent, Project

    told = team.projects[number]
    return Project(
        id=told.id,
        durable=told.durable,
        branch=told.branch,
        prefix=told.prefix,
        agents=tuple(CommandAgent(name=name, argv=tuple(argv)) for name, argv in told.agents.items()),
        workspace=told.workspace,
        forge=None if told.forge is None else _forge(told.forge, environ),
    )


def _forge(told: ForgePart, environ: Environ) -> GitHubForge:
    from pytest_gittrix.backends.forge.github import GITHUB, GitHubForge

    token = None if told.token_env is None else _token(told.token_env, environ)
    return GitHubForge(told.repo, base_url=told.base_url or GITHUB, token=token)


def _issues(told: ForgePart | None, environ: Environ) -> Callable[[str, str], str] | None:
    if told is None:
        return None
    forge = _forge(told, environ)
    return lambda title, body: forge.create_issue(title, body).url


def _token(variable: str, environ: Environ) -> str:
    token = environ.get(variable, "").strip()
    if not token:
        raise InvalidInput(
            f"The variable {variable}, which the team file names for a token, is not set.",
            why="Without it work could be saved nowhere, and that would only be seen when an agent is done.",
            fix=f"Set {variable}, or take token_env out of the team file.",
        )
    return token
