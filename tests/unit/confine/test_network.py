"""Which network a confined program has: none, the machine's, or what is listed. The machine's Unix sockets stay out of reach."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from support.confined import LONG, PATH, STRONGER, Confined, available
from support.gateway import KEY, model_at, serving

from pytest_gittrix.confine.command import Confinement, wrapped
from pytest_gittrix.confine.network import check_network
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.monotonic import pause, real_seconds

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


# A list --------------------------------------------------------------------------------------------------------------------------

CODING_AGENT = """
import json, os, socket, ssl, sys, urllib.error, urllib.request

found, allowed, other = {}, sys.argv[1], sys.argv[2]

def attempt(name, do):
    try:
        found[name] = do()
    except Exception as problem:
        found[name] = type(problem).__name__

def text(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, **headers), context=ssl.create_default_context(cafile="ca.pem")) as reply:
        return reply.read().decode()

attempt("model", lambda: text(os.environ["MY_URL"] + "/v1/messages", data=b"what shall I write?"))
attempt("files of the model's server", lambda: text(os.environ["MY_URL"] + "/v1/files", data=b"x"))
[os.environ.pop(name) for name in ("NO_PROXY", "no_proxy")]  # the servers of this test are on a localhost, but not on the jail's
attempt("listed address", lambda: text(f"https://localhost:{allowed}/package"))
attempt("address that is not listed", lambda: text(f"https://localhost:{other}/package"))
attempt("past the proxy", lambda: socket.create_connection(("127.0.0.1", int(allowed)), 5).close())
attempt("the port again", lambda: socket.create_server(("127.0.0.1", 3128), reuse_port=True).close())
attempt("its own server", lambda: socket.create_server(("127.0.0.1", 0)).close())
found["key"] = os.environ["MY_MODEL_KEY"]

def in_sight(pid):
    try:
        return b"a-key-that" in open(f"/proc/{pid}/environ", "rb").read()
    except OSError:
        return False

found["key in sight"] = any(map(in_sight, filter(str.isdigit, os.listdir("/proc"))))
open("answer.txt", "w").write(str(found["model"]))
print(json.dumps(found))
"""


@pytest.fixture
def jail() -> Confinement:
    return available("jail by namespaces")


def test_a_coding_agent_reaches_its_model_and_what_is_listed_and_nothing_else(
    jail: Confinement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    place = Confined.make(tmp_path, jail)
    authority.cert_pem.write_to_path(str(place.workspace / "ca.pem"))
    monkeypatch.setenv("MY_MODEL_KEY", KEY)
    with serving(authority) as model, serving(authority) as packages, serving(authority) as other:
        certificates = str(place.workspace / "ca.pem")
        endpoint = model_at(f"https://localhost:{model.port}", ca=certificates, variables=(("MY_URL", "{url}"),))
        listed = replace(jail, network=check_network([endpoint, f"localhost:{packages.port}"]))
        ended = replace(place, confinement=listed).run(
            sys.executable, "-I", "-c", CODING_AGENT, str(packages.port), str(other.port), environment={"MY_MODEL_KEY": KEY}
        )

    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "model": "hello from the model",
        "files of the model's server": "HTTPError",
        "listed address": "hello from the model",
        "address that is not listed": "URLError",
        "past the proxy": "ConnectionRefusedError",
        "the port again": "OSError",
        "its own server": None,
        "key": "the-key-is-added-outside",
        "key in sight": False,
    }
    assert (place.workspace / "answer.txt").read_text() == "hello from the model"
    assert [headers["authorization"] for _, _, headers, _ in model.heard] == [f"Bearer {KEY}"]
    assert [path for _, path, _, _ in packages.heard] == ["/package"]
    assert other.heard == []
    assert [(one["decision"], one["target"]) for one in map(json.loads, ended.network)] == [
        ("passed", "POST /mine/v1/messages"),
        ("refused", "POST /mine/v1/files"),
        ("passed", f"CONNECT localhost:{packages.port}"),
        ("refused", f"CONNECT localhost:{other.port}"),
    ]


def test_two_jails_have_a_gateway_each(jail: Confinement, tmp_path: Path) -> None:
    code = "import os, socket; socket.create_connection(('127.0.0.1', 3128)).close(); print(os.environ['HTTPS_PROXY'])"
    listed = replace(jail, network=check_network(["api.example.org:443"]))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with ThreadPoolExecutor(2) as pool:
        places = [Confined.make(tmp_path / name, listed) for name in ("one", "two")]
        ended = [*pool.map(lambda place: place.python(code), places)]

    assert [(one.code, one.stdout) for one in ended] == [(0, b"http://127.0.0.1:3128\n")] * 2


def test_a_gateway_ends_with_the_launcher_of_its_program_however_that_ends(jail: Confinement, tmp_path: Path) -> None:
    place = Confined.make(tmp_path, replace(jail, network=check_network(["api.example.org:443"])))
    log = tmp_path / "network.jsonl"
    launch = wrapped(["sleep", "1000"], place.place(), place.confinement, environment={"PATH": PATH}, network_log=log)
    launcher = subprocess.Popen(launch.argv, env=launch.environment, cwd=launch.directory)

    def with_the_log_open() -> set[int]:
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                found |= {int(process.name) for fd in (process / "fd").iterdir() if os.path.realpath(fd) == str(log)}
        return found

    def wait_for(how_many: int) -> None:
        given_up = real_seconds() + LONG
        while len(with_the_log_open()) != how_many:
            assert real_seconds() < given_up
            pause(0.01)

    try:
        wait_for(1)
        assert with_the_log_open() != {launcher.pid}
    finally:
        launcher.kill()
        launcher.wait()
    wait_for(0)
