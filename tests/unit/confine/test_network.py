"""Which network a confined program has: none, or the machine's when that is asked for. The machine's Unix sockets stay out of reach."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.confined import STRONGER, Confined, available

from pytest_gittrix.confine.command import Confinement, check_network
from pytest_gittrix.errors import InvalidInput

CONNECT = """
import socket, sys
family, address = sys.argv[1:]
here = ("127.0.0.1", int(address)) if family == "AF_INET" else address
socket.socket(getattr(socket, family)).connect(here)
"""


def reaches(confinement: Confinement, root: Path, family: str, address: str) -> bool:
    ended = Confined.make(root, confinement).run(sys.executable, "-I", "-c", CONNECT, family, address)
    assert ended.code in (0, 1), ended.stderr
    return ended.code == 0


@pytest.mark.parametrize("name", STRONGER)
@pytest.mark.parametrize("network", ["none", "all"])
def test_the_machines_network_is_there_only_when_it_is_asked_for(name: str, network: str, tmp_path: Path) -> None:
    confinement = replace(available(name), network=check_network(network))
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        assert reaches(confinement, tmp_path, "AF_INET", str(server.getsockname()[1])) == (network == "all")


@pytest.mark.parametrize("name", STRONGER)
def test_a_unix_socket_of_the_machine_is_not_part_of_it(name: str, tmp_path: Path) -> None:
    confinement = replace(available(name), network="all")
    path = str(tmp_path / "s")
    (tmp_path / "place").mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(path)
        server.listen()

        assert not reaches(confinement, tmp_path / "place", "AF_UNIX", path)


def test_it_is_told_with_the_level() -> None:
    assert str(Confinement("jail", "bwrap", network="all")) == "jail(bwrap, network all)"
    assert str(Confinement("jail", "bwrap")) == "jail(bwrap)"
    with pytest.raises(InvalidInput, match="none, all"):
        check_network("some")
