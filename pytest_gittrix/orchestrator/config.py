"""The orchestrator's configuration: projects, agents, trackers, and the configuration of a spawn.

Values and protocols only, and the rules for names that follow from them (docs/explanation/you-know-agent-orchestrator.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from pytest_gittrix.acp.driver import speaks_acp
from pytest_gittrix.backends.forge.protocol import Forge
from pytest_gittrix.confine.limits import ResourceLimits, check_limits
from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.refs import short_branch
from pytest_gittrix.orchestrator.agent_logs.reading import AgentHome, native_activity, read_database, read_log
from pytest_gittrix.orchestrator.agent_logs.rules import ActivityRule, RecordFormat
from pytest_gittrix.orchestrator.flat_files import check_id, prefix_of
from pytest_gittrix.os_level.command import Level, check_level
from pytest_gittrix.record.state.agent_activity import SqliteQuery, read_jsonl, read_sqlite
from pytest_gittrix.record.state.observations import Activity
from pytest_gittrix.workspaces.kinds import WorkspaceKind, check_kind

PromptAs = Literal["argument", "input"]

ACTIVITY_LOG: Final = ".ao/activity.jsonl"
"""The file in its workspace to which an agent writes its activity. A project should ignore ``.ao/`` in its ``.gitignore``."""
_HOME: Final = "~/"
_SLUG: Final = 60
_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class AgentPlugin(Protocol):
    """A kind of agent.

    A plugin may have ``prompt_as``: ``argument`` (the default: ``command`` puts the prompt into the command) or ``input`` (the prompt is
    written to the agent's standard input once it runs, and ``command`` is called without one).

    A plugin may have a method ``home_activity(home, workspace, now_ns)`` as well as ``activity``: what the agent does by the files in its
    home directory, an ``AgentHome``. What was observed last counts.
    """

    @property
    def name(self) -> str:
        """Its name in projects and configurations."""

    def command(self, prompt: str | None, workspace: Path) -> Sequence[str]:
        """The program and its arguments; ``prompt`` is None for an agent that is started again, or gets it later."""

    def environment(self, workspace: Path) -> Mapping[str, str]:
        """Variables beyond those that every agent gets."""

    def activity(self, workspace: Path, now_ns: int) -> Activity | None:
        """What it does, by its own files; None if they do not show it. Any exception counts as a failed probe."""


class Tracker(Protocol):
    """A project's issue tracker. Each method may raise any ``GittrixError`` if the tracker cannot be reached."""

    def exists(self, issue: str) -> bool:
        """Whether there is such an issue."""

    def branch(self, issue: str) -> str | None:
        """The branch for an issue; None to have one named after the issue."""

    def completed(self, issue: str) -> bool:
        """Whether an issue is completed."""


@dataclass(frozen=True)
class CommandAgent:
    """An agent that is a command.

    Attributes:
        name: see ``AgentPlugin``.
        argv: the program and its arguments; the prompt comes last, if it is an argument. If the program's name begins with ``acp:``, it
            speaks the Agent Client Protocol: its prompts are those of the protocol, and its activity follows from its updates.
        prompt_as: ``argument``, or ``input`` for its standard input.
        variables: variables of its environment.
        log: its JSONL log, relative to the workspace, or to its home if it begins with ``~/``; ``*`` is any text without ``/``, and the
            newest file counts. Without ``rules`` it is a log of states; see ``record.state.agent_activity.read_jsonl``. By default,
            ``.ao/activity.jsonl`` and what the coding agents of the field write in their homes; see ``agent_logs.formats``.
        database: its own SQLite database instead, at such a path.
        query: the query of the database. With ``rules`` it gives records as JSON, the newest first.
        rules: what the records of the log or of the database mean.
        time: the key of a record's time, for rules.
        unit: of such a time that is a number: ``s``, ``ms`` or ``ns``.

    Raises:
        InvalidInput: the command is empty, ``prompt_as`` is neither, only one of ``database`` and ``query`` is given, or there are rules
            and neither a log nor a database.
    """

    name: str
    argv: tuple[str, ...]
    prompt_as: PromptAs = "argument"
    variables: Mapping[str, str] = field(default_factory=dict)
    log: str = ACTIVITY_LOG
    database: str | None = None
    query: SqliteQuery | None = None
    rules: tuple[ActivityRule, ...] = ()
    time: str = "timestamp"
    unit: str = "ms"

    def __post_init__(self) -> None:
        if isinstance(self.argv, str) or not self.argv:
            raise InvalidInput(f"The agent {self.name!r} has no command: {self.argv!r}.", fix='Give a program, such as ("claude",).')
        object.__setattr__(self, "argv", tuple(self.argv))
        object.__setattr__(self, "rules", tuple(self.rules))
        if self.prompt_as not in ("argument", "input"):
            raise InvalidInput(f"{self.prompt_as!r} is no way to give a prompt.", fix="Use argument or input.")
        if (self.database is None) != (self.query is None):
            raise InvalidInput(f"The agent {self.name!r} has one of database and query.", fix="Give both, or neither.")
        if self.rules and self.database is None and self.log == ACTIVITY_LOG:
            raise InvalidInput(f"The agent {self.name!r} has rules, and no log or database that they are for.", fix="Give log or database.")
        self._format()

    def command(self, prompt: str | None, workspace: Path) -> Sequence[str]:  # noqa: ARG002  (the protocol's)
        """The command, with the prompt as its last argument if it takes it so.

        Raises:
            InvalidInput: the program would take the prompt for an option.
        """
        if prompt is None or self.prompt_as == "input" or speaks_acp(self.argv):
            return self.argv
        command = (*self.argv, prompt)
        refuse_option(command, prompt)
        return command

    def environment(self, workspace: Path) -> Mapping[str, str]:  # noqa: ARG002  (the protocol's)
        """Its variables."""
        return self.variables

    def activity(self, workspace: Path, now_ns: int) -> Activity | None:
        """Its activity by its log or its database, if that is not in its home."""
        return None if self._source.startswith(_HOME) else self._read(workspace, self._source, now_ns)

    def home_activity(self, home: AgentHome, workspace: Path, now_ns: int) -> Activity | None:
        """Its activity by its log or its database in its home; by default, by what the coding agents of the field write there."""
        if self._source.startswith(_HOME):
            return self._read(home.path, self._source.removeprefix(_HOME), now_ns)
        return native_activity(home, workspace, now_ns) if self._source == ACTIVITY_LOG else None

    @property
    def _source(self) -> str:
        return self.log if self.database is None else self.database

    def _read(self, root: Path, path: str, now_ns: int) -> Activity:
        if self.query is not None:
            file = root / path
            return read_database(file, self.query.sql, self._format(), now_ns) if self.rules else read_sqlite(file, self.query, now_ns)
        if not self.rules:
            return read_jsonl(root / path, now_ns)
        whole = os.path.isabs(path)
        return read_log(Path("/") if whole else root, path.lstrip("/"), self._format(), now_ns)

    def _format(self) -> RecordFormat:
        return RecordFormat(self.rules, self.time, self.unit)


@dataclass(frozen=True)
class Project:
    """A project: a durable repository, and the agents that work on it.

    Attributes:
        id: its name; a letter or digit, then those and ``._-``.
        durable: its repository on this machine.
        branch: the branch that its sessions start from.
        prefix: the beginning of its sessions' ids; made from its name by default (``prefix_of``).
        agents: its agent plugins; the first is used unless a spawn names another.
        workspace: the kind of workspaces.
        forge: the forge of its pull requests; without one, none are found.
        tracker: the tracker of its issues; without one, every name of an issue is accepted.

    Raises:
        InvalidInput: a name is malformed, there is no agent, or two have the same name.
    """

    id: str
    durable: str | os.PathLike[str]
    branch: str = "main"
    prefix: str | None = None
    agents: tuple[AgentPlugin, ...] = ()
    workspace: WorkspaceKind = "clone"
    forge: Forge | None = None
    tracker: Tracker | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", tuple(self.agents))
        made = prefix_of(check_text(self.id, "id"))
        object.__setattr__(self, "prefix", check_id(made if self.prefix is None else check_text(self.prefix, "prefix")))
        if check_kind(self.workspace) == "lazy":
            raise InvalidInput(
                f"The project {self.id!r} has workspaces of the kind 'lazy'.",
                why="They have no files that a process could work on.",
                fix="Use clone, copy or worktree.",
            )
        names = [agent.name for agent in self.agents]
        if not names or len(set(names)) < len(names):
            raise InvalidInput(
                f"The project {self.id!r} has the agents {', '.join(names) or 'none'}.",
                why="A spawn names one of them, or takes the first.",
                fix="Give one or more, each with a name of its own.",
            )

    @property
    def ids(self) -> str:
        """The beginning of its sessions' ids."""
        assert self.prefix is not None
        return self.prefix

    def agent(self, name: str | None) -> AgentPlugin:
        """The plugin of a name, the first one by default. Raises InvalidInput for an unknown name, with a list of the known ones."""
        for plugin in self.agents:
            if name in (None, plugin.name):
                return plugin
        known = ", ".join(plugin.name for plugin in self.agents)
        raise InvalidInput(f"The project {self.id!r} has no agent {name!r}.", why="Agents are plugins.", fix=f"Use one of: {known}.")

    def owns(self, id: str) -> bool:
        """Whether an id has the form of this project's: ``<prefix>-<n>``, ``<prefix>-orchestrator``, ``<prefix>-orchestrator-<n>``."""
        return re.fullmatch(rf"{re.escape(self.ids)}-([0-9]+|orchestrator(-[0-9]+)?)", id) is not None


@dataclass(frozen=True, slots=True)
class SpawnConfig:
    """The configuration of a spawn: agent-orchestrator's SessionSpawnConfig.

    Attributes:
        project_id: the project.
        issue_id: the issue to work on, if any.
        branch: the name of its branch at the forge; made by ``branch_for`` by default.
        prompt: the agent's first prompt.
        agent: the name of a plugin; the project's first by default.
        confine: how its agent is confined; as the orchestrator's agents by default.
        limits: what its agent may use; those of the orchestrator's agents hold, too, where these name no other.
        keep_after_promote: whether its session, with its agent, goes on after a promotion to a pull request, so that what is wrong with
            it can be mended there.
    """

    project_id: str
    issue_id: str | None = None
    branch: str | None = None
    prompt: str | None = None
    agent: str | None = None
    confine: Level | None = None
    limits: ResourceLimits | Mapping[str, int | float | str] | None = None
    keep_after_promote: bool = True

    def check(self) -> SpawnConfig:
        """Return the same, if each value is allowed. Raises InvalidInput if not."""
        if self.confine is not None:
            check_level(self.confine)
        check_limits(self.limits)
        check_text(self.project_id, "project_id")
        for name in ("issue_id", "branch", "prompt", "agent"):
            value = getattr(self, name)
            if value is not None:
                _check_line(value, name)
        if self.branch is not None:
            short_branch(self.branch)
        return self


def projects_by_id(projects: Iterable[Project]) -> dict[str, Project]:
    """Projects by their ids. Raises InvalidInput if two share an id, or the prefix of their sessions' ids."""
    found: dict[str, Project] = {}
    for project in projects:
        for other in found.values():
            if project.id == other.id or project.ids == other.ids:
                raise InvalidInput(
                    f"The projects {other.id!r} and {project.id!r} share the id or the prefix {project.ids!r}.",
                    why="The ids of their sessions would be the same.",
                    fix="Give one of them another prefix.",
                )
        found[project.id] = project
    return found


def issue_of(project: Project, config: SpawnConfig) -> str | None:
    """The branch that the project's tracker gives the issue of a spawn, or None.

    An issue that the tracker does not have is accepted, as the original does. Any error of the tracker is raised here, before anything is
    made.

    Raises:
        InvalidInput: the tracker's branch is malformed.
    """
    if project.tracker is None or config.issue_id is None or not project.tracker.exists(config.issue_id):
        return None
    branch = project.tracker.branch(config.issue_id)
    return None if branch is None else short_branch(_check_line(branch, "the tracker's branch"))


def branch_for(config: SpawnConfig, tracked: str | None, id: str) -> str:
    """The branch of a session: the configured one, the tracker's, one named after its issue, or one named after its id.

    Args:
        config: the configuration of the spawn.
        tracked: the tracker's branch.
        id: the session's id.
    """
    named = config.branch or tracked
    if named is not None:
        return short_branch(named)
    slug = "" if config.issue_id is None else slug_of(config.issue_id)
    return f"feat/{slug}" if slug else f"session/{id}"


def slug_of(issue: str) -> str:
    """An issue as part of a branch's name, 60 characters at most: unchanged if it can be, else its letters and digits; it may be empty."""
    if len(issue) <= _SLUG and _SAFE.fullmatch(issue) and not re.search(r"\.\.|\.$|\.lock$", issue):
        return issue
    return re.sub(r"[^a-z0-9]+", "-", issue.lower()).strip("-")[:_SLUG].strip("-")


def refuse_option(command: Sequence[str], prompt: str | None) -> None:
    """Refuse a prompt that the program of a command would take for an option.

    Args:
        command: the program and its arguments.
        prompt: the prompt, which may be one of them; behind a ``--`` it is none.

    Raises:
        InvalidInput: the prompt begins with a hyphen, where options may be.
    """
    options = [*command][: [*command, "--"].index("--")]
    if prompt is None or not prompt.startswith("-") or prompt not in options:
        return
    raise InvalidInput(
        f"The prompt begins with a hyphen: {prompt[:60]!r}.",
        why=f"{command[0]} would take it for an option, and options decide what an agent may do.",
        fix="Begin it with a word, or end the agent's command with --, if the program knows that as the end of its options.",
        opt_out='An agent with prompt_as="input" reads any prompt.',
    )


def prompt_as(agent: AgentPlugin) -> PromptAs:
    """The way an agent gets its first prompt; see ``AgentPlugin``."""
    return "input" if getattr(agent, "prompt_as", "argument") == "input" else "argument"


def _check_line(value: object, name: str) -> str:
    text = check_text(value, name)
    if "\0" in text:
        raise InvalidInput(f"{name} has a null byte: {text[:200]!r}.", why="No program can be given one.", fix="Leave it out.")
    return text
