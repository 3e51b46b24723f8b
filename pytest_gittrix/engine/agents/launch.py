"""How a launcher starts its agents: which variables they get, and how they are confined (docs/explanation/isolation.md).

Every launcher of agents that stay (``Members``, ``Orchestrator``, the command line and the daemon) has these settings, and confines its
agents by default as strongly as the machine can.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.backends.protocol import Ephemeral
from pytest_gittrix.confine.command_line import Confinement, wrapped
from pytest_gittrix.confine.filesystem_layout import Layers, Place, toolchain
from pytest_gittrix.confine.gateway.usage import GatewayExchange, exchanges_in
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.confine.limits import ResourceLimits, check_limits
from pytest_gittrix.confine.network import Network, check_network, for_session
from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.agents.start import find_program, start_agent
from pytest_gittrix.engine.agents.supervisor import LIMIT
from pytest_gittrix.engine.operations.in_use import ProgramLock
from pytest_gittrix.engine.operations.recorder import convert_os_errors
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.command import check_level
from pytest_gittrix.os_level.lock_owner import Owner

INHERITED: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"),
        *("LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR"),
    }
)
"""The variables of the launcher's process that every agent gets, with those that begin with ``LC_``. Nothing else is passed on unnamed:
tokens, the socket of an ssh agent, and the place of the store are for people."""

NETWORK_LOG: Final = "network.jsonl"
"""The file in an agent's directory with the decisions about its network."""

_MOST_REFUSED: Final = 20
_LONGEST_TARGET: Final = 200

Confirm = Callable[[Owner, Confinement], object]


@dataclass(frozen=True)
class AgentSettings:
    """What the agents of a launcher get and may reach.

    Attributes:
        confine: ``auto`` (as strongly as this machine and user can), ``jail``, ``guard``, or ``off`` for not at all.
        network: ``none``, ``all`` for the machine's, or a list of what confined agents reach (``check_network``).
        limits: what a confined agent may use; None for all there is.
        pass_env: names of variables of the launcher's process that agents get in addition to ``INHERITED``.
        readable: files and directories that confined agents may read and execute in addition to the tools of the system.

    Raises:
        InvalidInput: a value is not allowed.
    """

    confine: str = "auto"
    network: Network = "none"
    pass_env: tuple[str, ...] = ()
    readable: tuple[Path, ...] = ()
    limits: ResourceLimits | None = None

    def __post_init__(self) -> None:
        check_level(self.confine)
        check_network(self.network)
        for name in self.pass_env:
            if not isinstance(name, str) or not name or "=" in name or "\0" in name:
                raise InvalidInput(f"{name!r} is not the name of a variable.", fix='Give names, such as pass_env=["ANTHROPIC_API_KEY"].')

    def inherited(self) -> dict[str, str]:
        """The variables of this process that agents get."""
        named = {*INHERITED, *self.pass_env}
        return {name: value for name, value in os.environ.items() if name in named or name.startswith("LC_")}

    def at(self, confine: str | None, limits: ResourceLimits | None) -> AgentSettings:
        """The same settings, at another level and with other limits where they are named. Raises InvalidInput if it is no level."""
        found = self if confine is None else replace(self, confine=confine)
        return found if limits is None else replace(found, limits=limits.or_else(self.limits))

    def of_session(self, id_: str) -> AgentSettings:
        """The settings for an agent of one session: a model that tells sessions apart gets to know whose agent asks."""
        return replace(self, network=check_network(for_session(self.network, id_)))

    def require(self) -> None:
        """Check that this machine can confine agents so, before anything is made for one.

        Raises:
            CapabilityMissing: it cannot.
        """
        confinement(self.confine, self.network, self.limits)

    def start(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        workspace: Path,
        home: Path,
        environment: Mapping[str, str],
        confirm: Confirm,
        mark: str,
        readable: Iterable[Path] = (),
        layers: Layers | None = None,
        driver: Sequence[str] = (),
        session: Path | None = None,
        terminal: int | None = None,
    ) -> AgentProcess:
        """Start an agent.

        Args:
            command: the program and its arguments.
            directory: for its files; made here.
            workspace: its working directory, which it may change.
            home: the home directory of a confined agent, made here if it is missing. Another agent has the one that its variables name.
            environment: all its variables.
            confirm: called with its process, and how that is confined, before it does anything.
            mark: identifies its processes; one of ``make_mark``.
            readable: more that a confined agent may read.
            layers: what the workspace lies above, if it is an overlay.
            driver: a program of this package, with its arguments, that starts the agent itself: it gets the agent's command line, confined
                as it is to be, behind its own. It is not confined.
            session: the directory of a session that is in use as long as there is something of the agent.
            terminal: the descriptor of a terminal that it gets as its standard streams, and as its controlling terminal.

        Raises:
            InvalidInput: there is no such program or workspace, or a model's key is not set.
            CapabilityMissing: this machine cannot confine it so. It is never silently less confined.
            AdapterUnavailable: the system refused. Whatever is raised, no process and no file of it is left.
        """
        confined = confinement(self.confine, self.network, self.limits, layers=layers is not None)
        variables = dict(environment)
        argv = [*command]
        if confined.level != "off" or driver:
            program = find_program(command[0], str(workspace), variables.get("PATH", os.defpath))
        if confined.level != "off":
            with convert_os_errors():
                home.mkdir(parents=True, exist_ok=True)
            seen = (*toolchain(), *_program_files(program, workspace), *self.readable, *readable)
            place = Place(workspace, home, seen, layers=layers)
            log, limit = directory / NETWORK_LOG, directory / LIMIT
            launch = wrapped(argv, place, confined, environment=variables, network_log=log, limit_file=limit, terminal=terminal is not None)
            argv, variables = launch.argv, launch.environment
        with ExitStack() as held:
            attendance = None if session is None else held.enter_context(ProgramLock(session))
            agent = start_agent(
                [*driver, *argv],
                directory=directory,
                workspace=workspace,
                environment=variables,
                confirm=lambda owner: confirm(owner, confined),
                mark=mark,
                attendance=None if attendance is None else attendance.descriptor,
                terminal=terminal,
                leads=confined.level == "off",
            )
            if attendance is not None:
                attendance.hand_over()
            return agent


def settings_for(
    ephemeral: Ephemeral, confine: str | None, network: object, limits: object, pass_env: Iterable[str], readable: Iterable[Path | str]
) -> AgentSettings:
    """The settings of a launcher, from its arguments.

    Args:
        ephemeral: what makes the engine's workspaces; its ``confine`` may name the default level.
        confine: the launcher's level; None for that of ``ephemeral``, or ``auto`` if that names none.
        network, pass_env, readable: as in ``AgentSettings``; relative paths are from the working directory.
        limits: see ``check_limits``.

    Raises:
        InvalidInput: a value is not allowed.
    """
    level = confine if confine is not None else ephemeral.confine or "auto"
    names = [pass_env] if isinstance(pass_env, str) else pass_env
    paths = [readable] if isinstance(readable, (str, Path)) else readable
    seen = tuple(Path(path).expanduser().absolute() for path in paths)
    return AgentSettings(level, check_network(network), tuple(names), seen, check_limits(limits))


def network_summary(directory: Path) -> dict[str, Any] | None:
    """What a gateway decided about the network of an agent: how often it passed and refused something, and what was refused.

    Args:
        directory: that of the agent's files.

    Returns:
        ``passed`` and ``refused``, and in ``refused_targets`` the first different ones, 20 at most; for an agent that asked a model,
        ``model`` with ``exchanges``, the tokens ``input``, ``output`` and ``cached``, and in ``uncounted`` of how many exchanges these are
        unknown. None for an agent without a gateway.
    """
    try:
        lines = (directory / NETWORK_LOG).read_bytes().splitlines()
    except OSError:
        return None
    counts = {"passed": 0, "refused": 0}
    targets: dict[str, None] = {}
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue  # a full disk cut it off
        if said["decision"] in counts:
            counts[said["decision"]] += 1
        if said["decision"] == "refused":
            targets[said["target"][:_LONGEST_TARGET]] = None
    asked = exchanges_in(lines)
    return {**counts, "refused_targets": [*targets][:_MOST_REFUSED], **({"model": _tokens(asked)} if asked else {})}


def _tokens(exchanges: Sequence[GatewayExchange]) -> dict[str, int]:
    known = [one.tokens for one in exchanges if one.tokens is not None]
    sums = {name: sum(tokens[at] for tokens in known) for at, name in enumerate(("input", "output", "cached"))}
    return {"exchanges": len(exchanges), **sums, "uncounted": len(exchanges) - len(known)}


def _program_files(program: str, workspace: Path) -> list[Path]:
    """A program's own file, under its name, if it is not in the workspace. What else belongs to it has to be named in ``readable``."""
    path = Path(os.path.abspath(program))
    return [] if path.is_relative_to(workspace) else [path]
