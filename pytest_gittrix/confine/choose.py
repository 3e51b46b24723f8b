"""Chooses how an agent's programs are confined: the level that is asked for, by the means that this machine has.

At ``jail`` a program sees its workspace, a private home and the tools that it runs on; durable, the store, other sessions and the
network are not there. At ``guard`` it can see that other files exist, but cannot read or change them; that needs no namespaces. At
``off`` it runs as it is. ``auto`` takes the strongest level that works here and says why it is not stronger.
``docs/reference/confinement.md`` lists what gets out of each level.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_gittrix.confine.command import Confinement, Launch, require_gateway, wrapped
from pytest_gittrix.confine.execute import Finished, run
from pytest_gittrix.confine.filesystem_layout import Place, toolchain
from pytest_gittrix.confine.network import Reachable, check_network
from pytest_gittrix.confine.probe import lets_signals_out, missing
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.os_level.confinement_levels import LEVELS, Level, check_level

__all__ = ["LEVELS", "Confinement", "Finished", "Launch", "Level", "Place", "check_level", "confinement", "run", "toolchain", "wrapped"]


def confinement(level: str = "auto", network: object = "none") -> Confinement:
    """How programs are confined at a level on this machine; what it can do is tried once a process.

    Args:
        level: ``auto`` takes the strongest level there is; the others are taken as they are.
        network: which network programs have; see ``check_network``. A list takes a guard, or a jail by namespaces.

    Returns:
        The level, what it is done by, and why it is no jail.

    Raises:
        InvalidInput: it is no level, or no network.
        CapabilityMissing: ``jail`` or ``guard`` was asked for and this machine has none, or the network is a list and there is
            neither a guard nor a jail by namespaces. It is never silently weaker.
    """
    wanted = check_network(network)
    found = replace(_confinement(check_level(level), gateway=isinstance(wanted, Reachable)), network=wanted)
    if isinstance(wanted, Reachable):
        require_gateway(found)
    return found


def _confinement(asked: Level, *, gateway: bool) -> Confinement:
    if asked == "off":
        return Confinement("off", "none", "off was asked for")
    no_jail = ""
    if asked in ("auto", "jail"):
        no_bwrap = "it has no gateway" if gateway else missing("bwrap")
        if not no_bwrap:
            return Confinement("jail", "bwrap")
        no_namespaces = missing("namespaces")
        if not no_namespaces:
            return Confinement("jail", "namespaces")
        no_jail = f"no jail by bubblewrap: {no_bwrap}; none by namespaces: {no_namespaces}"
        if asked == "jail":
            raise _missing("jail", no_jail, "Install bubblewrap, or allow this user namespaces (in a container: run it with them).")
    no_guard = missing("landlock")
    if not no_guard:
        open_ = "; this kernel's Landlock lets signals out" if lets_signals_out() else ""
        return Confinement("guard", "landlock", f"{no_jail or 'guard was asked for'}{open_}")
    if asked == "guard":
        raise _missing("guard", no_guard, "Use a kernel with Landlock (Linux 6.2), switched on.")
    return Confinement("off", "none", f"{no_jail}; no guard by Landlock: {no_guard}")


def _missing(level: str, why: str, fix: str) -> CapabilityMissing:
    return CapabilityMissing(
        f"confine={level!r} is not available here: {why}.",
        why="A program would reach more than was asked for.",
        fix=fix,
        opt_out="Use confine='auto', which takes the strongest level there is and says which.",
    )
