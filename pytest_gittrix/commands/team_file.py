"""The team file: which repositories a team works on, what its members run, and how long their workspaces are kept.

It is TOML, read once. An error names the file, the key and the allowed values; nothing is guessed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pytest_gittrix.confine.limits import check_limits, size_bytes
from pytest_gittrix.confine.network import check_network
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.formats.toml_file import PlainText, TomlTable, checked_by, load_toml
from pytest_gittrix.os_level.command import Level
from pytest_gittrix.record.state.retention import age_ns

FILE: Final = "team.toml"
"""Its name in the engine's home."""


Age = Annotated[int, BeforeValidator(checked_by(age_ns))]
"""A duration as ``48h``, held in nanoseconds."""
Size = Annotated[int, BeforeValidator(size_bytes)]
"""A size as ``10GB``, held in bytes."""
Text = Annotated[PlainText, Field(min_length=1)]
Command = Annotated[list[PlainText], Field(min_length=1)]
"""A program and its arguments; no shell reads them."""
Hears = Literal["members", "forge", "inbox"]
Activities = Literal["active", "ready", "idle", "waiting_input", "blocked", "exited"]
Environment = dict[Annotated[str, Field(pattern=r"^[^=\x00]+$")], PlainText]


class RepositoryPart(TomlTable):
    """A repository that every workspace gets.

    Attributes:
        name: ``app`` or ``org/app``. url: where it is. branch: what is checked out; the remote's default by default.
        team: whether it is the team's own repository. token_env: the variable with the token for an ``http`` address.
    """

    name: Text
    url: Text
    branch: Text | None = None
    team: bool = False
    token_env: Text | None = None


class MemberPart(TomlTable):
    """What a member runs: a command, the kind of its sessions unless said otherwise, and variables for it; and what a brain hears of."""

    command: Command | None = None
    kind: Literal["loop", "interactive", "brain"] = "loop"
    environment: Environment = Field(default_factory=dict)
    hears: list[Hears] = Field(default_factory=lambda: [*get_args(Hears)])


class Retention(TomlTable):
    """How long workspaces of ended sessions are kept, and how much they may take; see ``record.retention.RetentionPolicy``."""

    loop_brain: Age | None = None
    interactive_success: Age | None = None
    interactive_failure: Age | None = None
    budget: Size | None = None
    scan_interval: Age | None = None


class ForgePart(TomlTable):
    """A repository at a forge: ``owner/name``, where its API is, and the variable that holds the token."""

    kind: Literal["github"] = "github"
    repo: Text
    base_url: Text | None = None
    token_env: Text | None = None


class RulePart(TomlTable):
    """What a record of an agent's log means; see ``orchestrator.agent_logs.rules.ActivityRule``."""

    when: Annotated[dict[Text, str | int | bool | list[str | int | bool]], Field(min_length=1)]
    state: Activities
    calls: Text | None = None
    answers: Text | None = None


class AgentPart(TomlTable):
    """An agent of a project: its command alone, or a table.

    Attributes:
        command: the program and its arguments. environment: variables for it. prompt_as: how it gets its first prompt.
        log, database, query, rules, time, unit: where its activity is; see ``orchestrator.config.CommandAgent``. query is SQL.
    """

    command: Command
    environment: Environment = Field(default_factory=dict)
    prompt_as: Literal["argument", "input"] = "argument"
    log: Text | None = None
    database: Text | None = None
    query: Text | None = None
    rules: list[RulePart] = Field(default_factory=list)
    time: Text = "timestamp"
    unit: Literal["s", "ms", "ns"] = "ms"

    @model_validator(mode="before")
    @classmethod
    def _command_alone(cls, given: Any) -> Any:
        return {"command": given} if isinstance(given, list) else given


class ProjectPart(TomlTable):
    """A project of agent-orchestrator's kind.

    Attributes:
        id: its id. durable: the repository, a path; from the team file's directory if it is relative. branch: of it.
        prefix: what ids of its sessions begin with; made from the id by default.
        agents: each agent by its name; the first is the one that runs unless another is named.
        workspace: the kind of its workspaces. forge: where its pull requests are.
    """

    id: Text
    durable: Text
    branch: Text = "main"
    prefix: Text | None = None
    agents: Annotated[dict[Text, AgentPart], Field(min_length=1)]
    workspace: Literal["clone", "lazy", "copy", "worktree", "overlay"] = "clone"
    forge: ForgePart | None = None


class Team(TomlTable):
    """A team file's contents; each part may be left out.

    Attributes:
        team: its name. repositories, members, retention, forge, projects: see their classes.
        command: the command of members without one.
        allow_secrets: files that finalizations push although they seem to hold credentials: paths in their repository, or fingerprints.
        confine, network, limits, pass_env, readable: what agents may reach and use; see ``engine.agents.launch.AgentSettings``. Paths that
            are relative are from the team file's directory.
    """

    team: Text = "team"
    command: Command | None = None
    confine: Level | None = None
    network: Annotated[str | list[str], AfterValidator(checked_by(check_network, keep=True))] = "none"
    limits: Annotated[dict[str, int | float | str], AfterValidator(checked_by(check_limits, keep=True))] = Field(default_factory=dict)
    pass_env: list[Annotated[str, Field(pattern=r"^[^=\x00]+$")]] = Field(default_factory=list)
    readable: list[Text] = Field(default_factory=list)
    allow_secrets: list[Text] = Field(default_factory=list)
    repositories: list[RepositoryPart] = Field(default_factory=list)
    members: dict[Text, MemberPart] = Field(default_factory=dict)
    retention: Retention = Field(default_factory=Retention)
    forge: ForgePart | None = None
    projects: list[ProjectPart] = Field(default_factory=list)


def read_team(home: Path, file: str | os.PathLike[str] | None = None) -> Team:
    """Read the team of an engine.

    Args:
        home: the engine's home, whose ``team.toml`` is read; without that file, the team has no repositories.
        file: the file to read instead, which must exist.

    Raises:
        InvalidInput: the file cannot be read, is no TOML, or has a value that is not allowed; the message names file, key and valid values.
    """
    path = Path(file).absolute() if file is not None else home / FILE
    if file is None and _is_missing(path):
        return Team()
    team = load_toml(path, Team, fix="Name a TOML file in UTF-8 with --team, or leave it out for no repositories.")
    _require_unique(path, "repositories", "name", [one.name for one in team.repositories])
    _require_unique(path, "projects", "id", [one.id for one in team.projects])
    projects = [
        one.model_copy(update={"durable": _whole_path(path, f"projects[{number}].durable", one.durable)})
        for number, one in enumerate(team.projects)
    ]
    readable = [_whole_path(path, f"readable[{number}]", one) for number, one in enumerate(team.readable)]
    return team.model_copy(update={"projects": projects, "readable": readable})


def _whole_path(file: Path, key: str, written: str) -> str:
    try:
        return os.path.normpath(file.parent / Path(written).expanduser())
    except RuntimeError:
        raise InvalidInput(
            f"{file}: {key}: {written!r} begins with the home of an unknown user.",
            fix="Write the whole path, or one from the team file's directory.",
        ) from None


def _is_missing(path: Path) -> bool:
    """Whether there is no such file. One that cannot be examined may exist, and its settings must not be ignored."""
    try:
        path.stat()
    except OSError as problem:
        return isinstance(problem, FileNotFoundError)
    return False


def _require_unique(path: Path, where: str, key: str, names: list[str]) -> None:
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InvalidInput(f"{path}: {where}[{number}].{key} is {name!r} a second time.", fix="Give each a different name.")
