"""Checks whether a confined agent can use the servers of the Model Context Protocol that an editor names for a conversation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from pytest_gittrix.confine.gateway.requests import TCP
from pytest_gittrix.confine.network import Network
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.errors import Advice, CapabilityMissing
from pytest_gittrix.safe_text import visible_line

_PORTS: Final = {"http": 80, "https": 443}
# Prints the first word that is no program, or no file that can be read.
_CHECK: Final = """
command -v -- "$1" >/dev/null || { printf %s "$1"; exit 1; }
shift
for file; do test -r "$file" || { printf %s "$file"; exit 1; }; done
"""


def require_usable(servers: Sequence[Any], programs: Programs) -> None:
    """Check that an agent can use each of these servers. A server that is a program will run where the agent does; none is started here.

    Args:
        servers: as the protocol's schema has them.
        programs: runs the agent.

    Raises:
        CapabilityMissing: the agent cannot read a server's program or a file among its arguments, does not reach its address, or the
            server is of a kind that is not passed on.
        GittrixError: as ``Programs.run``.
    """
    for server in servers:
        name = visible_line(server.name)
        if (command := getattr(server, "command", None)) is not None:
            _require_program(name, [command, *server.args], programs)
        elif (url := getattr(server, "url", None)) is not None:
            _require_address(name, url, programs)
        else:
            raise CapabilityMissing(
                f"The MCP server {name} cannot be passed on to the agent.",
                why="It is reached by the editor's own connection, which the agent does not have.",
                fix="Give it as a program or as an address, or leave it out.",
            )


def _require_program(name: str, argv: Sequence[str], programs: Programs) -> None:
    files = [argument for argument in argv[1:] if os.path.isabs(argument) and os.path.isfile(argument)]
    done = programs.run(["sh", "-c", _CHECK, "sh", argv[0], *files])
    if done.code != 0:
        missing = done.stdout.decode("utf-8", "replace") or argv[0]
        raise CapabilityMissing(
            f"The agent cannot start the MCP server {name}: it cannot read {visible_line(missing)}.",
            why="The agent starts its servers, and they are confined as it is.",
            fix=Advice("Name its files in readable=, or leave it out.", "Name its files with --readable, or leave it out."),
        )


def _require_address(name: str, url: str, programs: Programs) -> None:
    confinement = programs.confinement
    if confinement.level != "off" and not reaches(confinement.network, url):
        raise CapabilityMissing(
            f"The agent does not reach the MCP server {name}: {_origin(url)}.",
            why=f"Its network is {confinement.network}.",
            fix=Advice(
                "Name the address in network=, or leave the server out.", "Name the address with --network, or leave the server out."
            ),
        )


def _origin(url: str) -> str:
    """The part of an address that holds no secret: its scheme, host and port."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "its address is malformed"
    return visible_line(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")


def reaches(network: Network, url: str) -> bool:
    """Whether a confined program with that network reaches an address.

    Args:
        network: as ``check_network`` gives it.
        url: the address; one whose scheme is not ``https`` needs an entry for any protocol (``tcp://host:port``).
    """
    if isinstance(network, str):
        return network == "all"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # the address or its port is malformed
        return False
    for entry in network.addresses:
        named, _, at = entry.removeprefix(TCP).rpartition(":")
        if int(at) == port and (entry.startswith(TCP) or parts.scheme == "https") and _is_named(host, named):
            return True
    return False


def _is_named(host: str, named: str) -> bool:
    return host.endswith(named[1:]) if named.startswith("*.") else host == named
