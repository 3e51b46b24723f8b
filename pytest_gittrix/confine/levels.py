"""Chooses how an agent's programs are confined: the level that is asked for, by the means that this machine has.

At ``jail`` a program sees its workspace, a private home and the tools that it runs on; durable, the store, other sessions and the
network are not there. At ``guard`` it can see that other files exist, but cannot read or change them; that needs no namespaces. At
``off`` it runs as it is, and has to be named. ``auto`` takes the strongest level that works here and says why it is not stronger; where
nothing works, it is refused.
Each means runs a program once in a process, to see whether it works. ``docs/reference/confinement.md`` lists what gets out of each level.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from pytest_gittrix.confine.command_line import BWRAP, Confinement, Means, require_gateway, require_layers
from pytest_gittrix.confine.filesystem_layout import Layers, Place
from pytest_gittrix.confine.kernel.landlock_guard import OLDEST_ABI, SIGNALS_ABI, landlock_abi
from pytest_gittrix.confine.limits import check_limits, require_limits
from pytest_gittrix.confine.network import Reachable, check_network
from pytest_gittrix.confine.runner import run
from pytest_gittrix.errors import Advice, ConfinementMissing, GittrixError
from pytest_gittrix.os_level.command import Level, check_level

INSTEAD_OF_AUTO: Final = "GITTRIX_CONFINE"
"""The variable that names the level that ``auto`` takes."""
CONTAINER: Final = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
"""What lets a container of Docker make namespaces of its own, with a proc file system in them."""

_IN_THE_WAY: Final = {
    "proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("1", "kernel.apparmor_restrict_unprivileged_userns=0", "AppArmor"),
    "proc/sys/kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=1", "the kernel's setting"),
    "proc/sys/user/max_user_namespaces": ("0", "user.max_user_namespaces=16384", "the kernel's limit"),
}
_CONTAINERS: Final = (".dockerenv", "run/.containerenv")
_LSM: Final = "sys/kernel/security/lsm"
_WAIT: Final = 30.0
_layered: Final[dict[int, str]] = {}


def confinement(level: str = "auto", network: object = "none", limits: object = None, *, layers: bool = False) -> Confinement:
    """How programs are confined at a level on this machine; what it can do is tried once a process.

    Args:
        level: ``auto`` takes the level that the variable ``GITTRIX_CONFINE`` names, or else the strongest there is; the others are taken
            as they are.
        network: which network programs have; see ``check_network``. A list takes a guard, or a jail by namespaces.
        limits: what programs may use; see ``check_limits``. None for all there is.
        layers: whether they work in a place with layers, which takes a jail by namespaces.

    Returns:
        The level, what it is done by, and why it is no jail. It is ``off`` only where that was named.

    Raises:
        InvalidInput: it is no level, no network, or there are no such limits.
        ConfinementMissing: this machine has nothing that confines programs at the level.
        CapabilityMissing: the network is a list and there is neither a guard nor a jail by namespaces, a place has layers and there is no
            such jail, or there are limits and nothing is confined. It is never silently weaker.
    """
    wanted, most = check_network(network), check_limits(limits)
    unfit = "it mounts no layers" if layers else "it has no gateway" if isinstance(wanted, Reachable) else ""
    found = replace(_as_asked(check_level(level), unfit), network=wanted, limits=most)
    if isinstance(wanted, Reachable):
        require_gateway(found)
    if layers:
        require_layers(found)
    if most is not None:
        require_limits(found.level, found.why)
    return found


def strongest() -> Confinement:
    """The strongest level that works on this machine; ``off`` where nothing does, and ``why`` says why.

    Use it to report what a machine can do, or to skip a test. Code that runs programs calls ``confinement``, which refuses.
    """
    return _found("auto", "")


def _as_asked(asked: Level, unfit: str) -> Confinement:
    """The means of a level, which ``INSTEAD_OF_AUTO`` may name. Raises ConfinementMissing if there are none."""
    named = os.environ.get(INSTEAD_OF_AUTO) if asked == "auto" else None
    level = check_level(named, INSTEAD_OF_AUTO) if named else asked
    found = _found(level, unfit)
    if level == "auto" and found.level == "off":
        raise ConfinementMissing(
            f"Nothing confines programs here: {found.why}.",
            why="An agent's program would do what this user can: read secrets, change the repository, use the network.",
            fix=cures(),
            opt_out=Advice(
                f"Name confine='off', which runs programs as they are, or set {INSTEAD_OF_AUTO}=off for all that name no level.",
                f"Name --confine off, which runs programs as they are, or set {INSTEAD_OF_AUTO}=off for all that name no level.",
            ),
        )
    return found


def _found(asked: Level, unfit: str) -> Confinement:
    """The strongest means of a level; ``unfit`` says why bubblewrap will not do, if it will not."""
    if asked == "off":
        return Confinement("off", "none", "off was asked for")
    no_jail = ""
    if asked in ("auto", "jail"):
        no_bwrap = unfit or missing("bwrap")
        if not no_bwrap:
            return Confinement("jail", "bwrap")
        no_namespaces = missing("namespaces")
        if not no_namespaces:
            return Confinement("jail", "namespaces")
        no_jail = f"no jail by bubblewrap: {no_bwrap}; none by namespaces: {no_namespaces}"
        if asked == "jail":
            raise _not_there("jail", no_jail)
    no_guard = missing("landlock")
    if not no_guard:
        open_ = "; this kernel's Landlock lets signals out" if lets_signals_out() else ""
        return Confinement("guard", "landlock", f"{no_jail or 'guard was asked for'}{open_}")
    if asked == "guard":
        raise _not_there("guard", no_guard)
    return Confinement("off", "none", f"{no_jail}; no guard by Landlock: {no_guard}")


def _not_there(level: str, why: str) -> ConfinementMissing:
    return ConfinementMissing(
        f"The confinement {level!r} is not available here: {why}.",
        why="A program would reach more than was asked for.",
        fix=cures(),
        opt_out=Advice(
            "Use confine='auto', which takes the strongest level there is and says which.",
            "Use --confine auto, which takes the strongest level there is and says which.",
        ),
    )


@cache
def missing(means: Means) -> str:
    """Why a means of confinement cannot be used here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return f"there is none on {sys.platform}"
    if means == "bwrap":
        return _tried_alone(Confinement("jail", means)) if shutil.which(BWRAP) else "it is not installed"
    if means == "namespaces":
        return _tried_alone(Confinement("jail", means))
    if means == "landlock":
        return _landlock() or _tried_alone(Confinement("guard", means))
    return ""


@cache
def lets_signals_out() -> bool:
    """Whether a guard of this kernel lets signals to other processes, and connections to abstract sockets, out."""
    try:
        return landlock_abi() < SIGNALS_ABI
    except OSError:
        return True


def missing_layers(directory: str) -> str:
    """Why no overlay can be mounted with its upper layer in a directory; empty if it can. Each file system is tried once a process."""
    device = os.stat(directory).st_dev
    if device not in _layered:
        _layered[device] = missing("namespaces") or _tried_layers(directory)
    return _layered[device]


def _tried_layers(directory: str) -> str:
    with tempfile.TemporaryDirectory(prefix="gittrix-probe-", dir=os.path.abspath(directory)) as root:
        workspace, home, lower, work = (Path(root, name) for name in ("workspace", "home", "lower", "work"))
        for path in (workspace, home, lower / "directory", work):
            path.mkdir(parents=True)
        Path(lower, "directory", "file").touch()
        place = Place(workspace, home, layers=Layers(lower, work))
        # To remove a directory of the lower layer takes a whiteout, to make it again an attribute: old kernels lack one or the other.
        return _tried(Confinement("jail", "namespaces"), place, ["/bin/sh", "-c", "rm -r directory && mkdir directory"])


def _landlock() -> str:
    try:
        abi = landlock_abi()
    except OSError as problem:
        return f"this kernel has no Landlock, or refuses it: {problem.strerror}"
    return "" if abi >= OLDEST_ABI else f"Landlock of ABI {abi} lets files outside be cut short; {OLDEST_ABI} is needed (Linux 6.2)"


def _tried_alone(confinement: Confinement) -> str:
    with tempfile.TemporaryDirectory(prefix="gittrix-probe-") as root:
        workspace, home = Path(root, "workspace"), Path(root, "home")
        workspace.mkdir()
        home.mkdir()
        return _tried(confinement, Place(workspace, home), ["true"])


def _tried(confinement: Confinement, place: Place, argv: Sequence[str]) -> str:
    try:
        ended = run(argv, place, confinement, environment={"PATH": os.defpath}, timeout=_WAIT)
    except GittrixError as problem:
        return problem.fact.removeprefix("The program could not be confined: ").removesuffix(".")
    return "" if ended.code == 0 else f"{argv[0]!r} ended with {ended.code or ended.signal} there"


def cures(platform: str = sys.platform, root: Path = Path("/")) -> str:
    """What to do on this machine so that programs can be confined, in sentences; the likeliest cure comes first.

    Args:
        platform: as ``sys.platform``.
        root: where the files of the machine are.
    """
    return " ".join(_cures(platform, root))


def _cures(platform: str, root: Path) -> Iterator[str]:
    if not platform.startswith("linux"):
        yield "Run it on Linux, such as in a virtual machine."
        return
    for name, (value, setting, who) in _IN_THE_WAY.items():
        if _read(root / name) == value:
            yield f"{who[0].upper()}{who[1:]} keeps namespaces from users: run `sudo sysctl -w {setting}`."
            if who == "AppArmor":
                yield "Or install bubblewrap with a profile for it (AppArmor's bwrap-userns-restrict)."
    if any((root / name).exists() for name in _CONTAINERS):
        yield f"Start the container with `{CONTAINER}` (Podman: `--security-opt unmask=ALL`)."
    if not {"landlock", ""} & {*_read(root / _LSM).split(",")}:
        yield "Or boot Linux 6.2 or newer with Landlock: `landlock` is not in the list after `lsm=` of the kernel's command line."
    else:
        yield "Or use Linux 6.2 or newer, whose Landlock needs no namespaces."


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
