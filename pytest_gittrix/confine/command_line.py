"""Makes the command line that runs a program confined: the program itself, the launcher, or bubblewrap (bwrap(1)), with their arguments.

It starts nothing. Variables that the dynamic loader obeys are never given to the program that confines, because it would load the
agent's library outside of the confinement.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from pytest_gittrix.confine import launcher
from pytest_gittrix.confine.filesystem_layout import Layout, Place, layout
from pytest_gittrix.confine.kernel.namespace_jail import HOST_NAME
from pytest_gittrix.confine.limits import ResourceLimits, check_limits, require_limits
from pytest_gittrix.confine.network import Network, Reachable
from pytest_gittrix.confine.started_program import with_terminal
from pytest_gittrix.errors import Advice, CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.command import Level, check_command, check_level

Means = Literal["bwrap", "namespaces", "landlock", "none"]

BWRAP: Final = "bwrap"

_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""What every Python ignores, and restores for programs that it starts."""

_KEPT_BACK: Final = ("LD_", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "LC_CTYPE")


@dataclass(frozen=True, slots=True)
class Confinement:
    """How a program is confined.

    Attributes:
        level: ``off``, ``guard`` or ``jail``.
        by: what does it.
        why: why it is not stronger; empty for a jail.
        network: ``none``, ``all`` for the machine's network, or a list of what it reaches; at ``off`` it always has the machine's.
        limits: what the program may use; None for all there is.
    """

    level: Literal["off", "guard", "jail"]
    by: Means
    why: str = ""
    network: Network = "none"
    limits: ResourceLimits | None = None

    def __str__(self) -> str:
        if self.by == "none":
            return self.level
        network = [] if self.network == "none" else [f"network {self.network}"]
        limits = [] if self.limits is None else [f"limits {self.limits}"]
        return f"{self.level}({', '.join([self.by, *network, *limits])})"


def level_of(recorded: str | None) -> Level | None:
    """The level of a recorded confinement such as ``jail(bwrap)``; None if nothing was recorded."""
    return None if recorded is None else check_level(recorded.partition("(")[0])


def limits_of(recorded: str | None) -> ResourceLimits | None:
    """The limits of a recorded confinement such as ``jail(bwrap, limits memory=2GB)``; None if it has none."""
    _, found, limits = (recorded or "").rpartition(", limits ")
    return check_limits(limits.rstrip(")").split()) if found else None


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a confined program.

    Attributes:
        argv: what to execute.
        environment: all variables of that.
        preexec: to be called in the new process before; None where nothing is, and so far nothing ever is.
        directory: its working directory.
    """

    argv: list[str]
    environment: dict[str, str]
    preexec: Callable[[], None] | None = None
    directory: Path = Path("/")


@dataclass(frozen=True, slots=True)
class LaunchTask:
    """A program for a launcher.

    Attributes:
        spec: how it is confined: ``by`` what, ``cwd``, and what a guard allows or what a jail's root has.
        command: the program and its arguments.
        environment: all its variables.
    """

    spec: dict[str, Any]
    command: list[str]
    environment: dict[str, str]


def wrapped(
    argv: Sequence[str],
    place: Place,
    confinement: Confinement,
    *,
    environment: Mapping[str, str],
    cwd: str = ".",
    network_log: Path | None = None,
    limit_file: Path | None = None,
    terminal: bool = False,
) -> Launch:
    """How to start a program that stays, such as an agent that is given to ``start_agent``.

    It hears the signals that its launcher gets, except by bubblewrap, which passes on none.

    Args:
        argv: the program and its arguments.
        place: where it works; its home has to be given.
        confinement: how.
        environment: all its variables; home and temporary directory are set.
        cwd: where it starts, in the workspace.
        network_log: the file that gets a line of JSON for each decision of the gateway, for a network that is a list; None for none.
        limit_file: the file that is made with the name of a limit in it, if the program is ended because it passed that; None for none.
        terminal: whether its standard input is a terminal that is to be its controlling one; at ``off`` its starter does that.

    Raises:
        InvalidInput: the command is none, the place has no home, something of it is not there, or a model's key is not set.
        CapabilityMissing: the network is a list, and the confinement is neither a guard nor a jail by namespaces; or there are limits,
            and it is none.
    """
    if place.home is None:
        raise InvalidInput("The place has no home directory.", why="One made here would never be removed.", fix="Give one in Place(home=).")
    laid = layout(place, place.home, jailed=confinement.level == "jail")
    return launch(
        argv, laid, confinement, environment=environment, cwd=cwd, network_log=network_log, limit_file=limit_file, terminal=terminal
    )


def launch(
    argv: Sequence[str],
    laid: Layout,
    confinement: Confinement,
    *,
    environment: Mapping[str, str],
    cwd: str = ".",
    bwrap_pipes: tuple[int, int] | None = None,
    network_log: Path | None = None,
    limit_file: Path | None = None,
    terminal: bool = False,
) -> Launch:
    """As ``wrapped``, in a place that is laid out already.

    Args:
        argv: the program and its arguments.
        laid: the place.
        confinement: how.
        environment: all its variables.
        cwd: where it starts, in the workspace.
        bwrap_pipes: inherited descriptors for bubblewrap to report its status on, and to read its filter from. With None a launcher
            puts it behind that filter.
        network_log, limit_file, terminal: as in ``wrapped``.

    Raises:
        InvalidInput: the command is none, the directory is no place in the workspace, or a model's key is not set.
        CapabilityMissing: the network is a list, and the confinement is neither a guard nor a jail by namespaces; the place has layers,
            and it is no jail by namespaces; or there are limits, and it is none.
    """
    wanted = task(argv, laid, confinement, environment=environment, cwd=cwd, network_log=network_log, limit_file=limit_file)
    if confinement.level == "off":
        outside = Path(laid.workspace, os.path.relpath(wanted.spec["cwd"], laid.shown[0]))
        return replace(hearing(wanted.command, wanted.environment), directory=outside)
    kept_back, rest = _kept_back(wanted.environment)
    spec = wanted.spec if os.geteuid() else {**wanted.spec, "set_ids": laid.workspace}
    if confinement.by == "bwrap":
        jail = [*_bwrap(laid, spec, kept_back), "--", *(with_terminal(argv) if terminal else argv)]
        if bwrap_pipes is None:
            return _launcher(spec, jail, rest)
        return hearing([jail[0], "--json-status-fd", str(bwrap_pipes[0]), "--seccomp", str(bwrap_pipes[1]), *jail[1:]], rest)
    return _launcher({**spec, "kept_back": kept_back, "terminal": terminal}, argv, rest)


def hearing(argv: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """How to start a program that hears the signals that this process ignores, as one under ``nohup`` does: it would inherit that."""
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
    if ignored <= {*_RESTORED}:
        return Launch([*argv], {**environment})
    kept_back, rest = _kept_back(environment)
    return _launcher({"by": "none", "kept_back": kept_back}, argv, rest)


def _kept_back(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that whoever confines a program must not have itself, and the others."""
    kept_back = {name: value for name, value in environment.items() if name.startswith(_KEPT_BACK)}
    return kept_back, {name: value for name, value in environment.items() if name not in kept_back}


def task(
    argv: Sequence[str],
    laid: Layout,
    confinement: Confinement,
    *,
    environment: Mapping[str, str],
    cwd: str = ".",
    network_log: Path | None = None,
    limit_file: Path | None = None,
) -> LaunchTask:
    """What a launcher has to know about a program.

    Raises:
        InvalidInput: the command is none, the directory is no place in the workspace, or a model's key is not set.
        CapabilityMissing: the network is a list, and the confinement is neither a guard nor a jail by namespaces; or there are limits,
            and it is none.
    """
    directory = laid.directory(cwd)
    variables = laid.environment(environment) | {"PWD": directory}
    gateway: dict[str, Any] = {}
    if isinstance(confinement.network, Reachable):
        require_gateway(confinement)
        gateway = {"gateway": confinement.network.rules(), "network_log": None if network_log is None else str(network_log)}
        variables |= confinement.network.variables() | confinement.network.keys()
    if confinement.level == "guard":
        variables.setdefault("GIT_CONFIG_NOSYSTEM", "1")  # git ends at a configuration of the system that it must not read
    if laid.layers is not None:
        require_layers(confinement)
    check_command(argv, variables)
    spec: dict[str, Any] = {"by": confinement.by, "cwd": directory, "network": "none" if gateway else confinement.network, **gateway}
    if confinement.limits is not None:
        require_limits(confinement.level, confinement.why)
        file = None if limit_file is None else str(limit_file)
        spec |= {"limits": confinement.limits.given(), "writable": laid.writable, "limit_file": file}
    if confinement.by == "landlock":
        spec["allowed"] = laid.allowed
    if confinement.by == "namespaces":
        spec["mounts"] = [[one.kind, one.target, one.source] for one in laid.mounts]
    return LaunchTask(spec, [*argv], variables)


def require_gateway(confinement: Confinement) -> None:
    """See that a confinement can keep to a network that is a list. Raises CapabilityMissing if it cannot."""
    if confinement.by not in ("namespaces", "landlock"):
        raise CapabilityMissing(
            f"The network {str(confinement.network)!r} needs a guard or a jail by namespaces, not {confinement.level} by {confinement.by}.",
            why=f"Nothing else keeps a program to what is listed. {confinement.why}".strip(),
            fix=Advice(
                "Use confine='auto' on a machine that has Landlock (Linux 6.2), or allows this user namespaces.",
                "Use --confine auto on a machine that has Landlock (Linux 6.2), or allows this user namespaces.",
            ),
            opt_out=Advice(
                "Use network='none', or network='all' for the machine's.",
                'Write network = "none" in the team file, or network = "all" for the machine\'s.',
            ),
        )


def require_layers(confinement: Confinement) -> None:
    """See that a confinement can show a workspace that lies above another directory. Raises CapabilityMissing if it cannot."""
    if confinement.by != "namespaces":
        raise CapabilityMissing(
            f"Programs in an overlay workspace need a jail by namespaces, not {confinement.level} by {confinement.by}.",
            why=f"Outside of one, its directory has only what changed. {confinement.why}".strip(),
            fix=Advice(
                "Use confine='jail' (Linux), on a machine that allows this user namespaces.",
                "Use --confine jail (Linux), on a machine that allows this user namespaces.",
            ),
            opt_out=Advice("Start the session with workspace='clone'.", "Start the session with --workspace clone."),
        )


def _launcher(spec: dict[str, Any], argv: Sequence[str], environment: dict[str, str]) -> Launch:
    root = Path(launcher.__file__).absolute().parents[1]
    arguments = [str(root), launcher.spec_text(spec)]
    return Launch([sys.executable, "-I", "-S", "-c", launcher.COMMAND, *arguments, *argv], environment)


def _bwrap(laid: Layout, spec: Mapping[str, Any], kept_back: Mapping[str, str]) -> list[str]:
    words = {"ro": "--ro-bind", "rw": "--bind"}
    found = [os.path.abspath(shutil.which(BWRAP) or BWRAP), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    found += ["--hostname", HOST_NAME, *(["--share-net"] if spec["network"] == "all" else [])]
    for one in laid.mounts:
        match one.kind:
            case "link":
                found += ["--symlink", one.source, one.target]
            case "proc":
                found += ["--proc", one.target]
            case "dev":
                size = ["--size", str(spec["limits"]["memory"])] if "memory" in spec.get("limits", {}) else []
                found += ["--dev", one.target, *size, "--tmpfs", f"{one.target}/shm", "--remount-ro", one.target]
            case kind:
                found += [words[kind], one.source, one.target]
    # Much below /proc belongs to root, and some of that asks for no capability: where core dumps go, for one.
    found += ["--remount-ro", "/proc"] if os.geteuid() == 0 else []
    found += ["--remount-ro", "/", "--chdir", spec["cwd"]]
    for name, value in kept_back.items():
        found += ["--setenv", name, value]
    return found
