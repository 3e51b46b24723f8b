"""Which network a confined program has: none, the machine's, or what is listed. The machine's Unix sockets stay out of reach."""

from __future__ import annotations

import json
import os
import shutil
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

from pytest_gittrix.confine.command_line import Confinement, wrapped
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

def past_the_proxy():
    with socket.create_connection(("127.0.0.1", int(allowed)), 30) as line:
        line.sendall(b"GET /past HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
        return line.recv(4096).split(b"\\r\\n")[0].decode()

attempt("past the proxy", past_the_proxy)
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


BY_LEVEL = {
    "guard by landlock": {
        "past the proxy": "HTTP/1.1 403 Refused",  # whatever the address, the other end is the gateway
        "the port again": "PermissionError",
        "its own server": "PermissionError",
    },
    "jail by namespaces": {"past the proxy": "ConnectionRefusedError", "the port again": "OSError", "its own server": None},
}
BY_LIST = [*BY_LEVEL]


@pytest.mark.parametrize("name", BY_LIST)
def test_a_coding_agent_reaches_its_model_and_what_is_listed_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    confinement = available(name)
    place = Confined.make(tmp_path, confinement)
    authority.cert_pem.write_to_path(str(place.workspace / "ca.pem"))
    monkeypatch.setenv("MY_MODEL_KEY", KEY)
    with serving(authority) as model, serving(authority) as packages, serving(authority) as other:
        certificates = str(place.workspace / "ca.pem")
        endpoint = model_at(f"https://localhost:{model.port}", ca=certificates, variables=(("MY_URL", "{url}"),))
        listed = replace(confinement, network=check_network([endpoint, f"private:localhost:{packages.port}"]))
        ended = replace(place, confinement=listed).run(
            sys.executable, "-I", "-c", CODING_AGENT, str(packages.port), str(other.port), environment={"MY_MODEL_KEY": KEY}
        )

    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "model": "hello from the model",
        "files of the model's server": "HTTPError",
        "listed address": "hello from the model",
        "address that is not listed": "URLError",
        **BY_LEVEL[name],
        "key": "the-key-is-added-outside",
        "key in sight": False,
    }
    assert (place.workspace / "answer.txt").read_text() == "hello from the model"
    assert [headers["authorization"] for _, _, headers, _ in model.heard] == [f"Bearer {KEY}"]
    assert [path for _, path, _, _ in packages.heard] == ["/package"]
    assert other.heard == []
    assert [(one["decision"], one["target"]) for one in map(json.loads, ended.network)] == [
        ("passed", "POST /mine/v1/messages"),
        ("answered", "POST /mine/v1/messages"),
        ("refused", "POST /mine/v1/files"),
        ("passed", f"CONNECT localhost:{packages.port}"),
        ("refused", f"CONNECT localhost:{other.port}"),
        *([("refused", "GET /past")] if name == "guard by landlock" else []),
    ]


@pytest.mark.parametrize("name", BY_LIST)
def test_two_programs_have_a_gateway_each(name: str, tmp_path: Path) -> None:
    code = "import os, socket; socket.create_connection(('127.0.0.1', 3128)).close(); print(os.environ['HTTPS_PROXY'])"
    listed = replace(available(name), network=check_network(["api.example.org:443"]))
    for root in ("one", "two"):
        (tmp_path / root).mkdir()
    with ThreadPoolExecutor(2) as pool:
        places = [Confined.make(tmp_path / root, listed) for root in ("one", "two")]
        ended = [*pool.map(lambda place: place.python(code), places)]

    assert [(one.code, one.stdout) for one in ended] == [(0, b"http://127.0.0.1:3128\n")] * 2


@pytest.mark.parametrize("name", BY_LIST)
def test_a_gateway_ends_with_the_launcher_of_its_program_however_that_ends(name: str, tmp_path: Path) -> None:
    place = Confined.make(tmp_path, replace(available(name), network=check_network(["api.example.org:443"])))
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


# At guard a program has no network of its own, but sockets that are connected before it has them.

ATTACKS = """
import ctypes, errno, json, os, socket, struct, sys
libc, found, port = ctypes.CDLL(None, use_errno=True), {}, int(sys.argv[1])
SOCKET = 41 if os.uname().machine == "x86_64" else 198
address = ctypes.create_string_buffer(struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton("127.0.0.1")), 16)

def attempt(name, do):
    try:
        found[name] = do()
    except OSError as problem:
        found[name] = errno.errorcode[problem.errno]

def call(name, *arguments):
    if (result := getattr(libc, name)(*arguments)) < 0:
        raise OSError(ctypes.get_errno(), name)
    return result

def answer(line):
    line.settimeout(60)
    line.send(b"OPTIONS * HTTP/1.1\\r\\n\\r\\n")
    return line.recv(12).decode()

def again(first):
    line = socket.socket()
    first(line)
    call("connect", line.fileno(), address, 16)
    return answer(line)

def fast(line):
    call("sendto", line.fileno(), b"GET", 3, 0x20000000, address, 16)

attempt("connect", lambda: again(lambda line: None))
attempt("connect to nothing, and again", lambda: again(lambda line: call("connect", line.fileno(), struct.pack("=H14x", 0), 16)))
attempt("IPv6", lambda: socket.socket(socket.AF_INET6))
attempt("send and connect", lambda: fast(socket.socket()))
attempt("send a message and connect", lambda: socket.socket().sendmsg([b"GET"], [], 0x20000000, ("127.0.0.1", port)))
attempt("send to", lambda: socket.socket().sendto(b"GET", ("127.0.0.1", port)) and "sent to who is there")
attempt("a family of 64 bits", lambda: answer(socket.socket(fileno=call("syscall", SOCKET, ctypes.c_long((1 << 32) | 2), 1, 0))))
attempt("UDP", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
attempt("MPTCP", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262))
attempt("SCTP", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 6))
attempt("Unix", lambda: socket.socket(socket.AF_UNIX))
attempt("vsock", lambda: socket.socket(socket.AF_VSOCK))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("listen", lambda: socket.socket().listen())
attempt("bind", lambda: socket.socket().bind(("127.0.0.1", 0)))
attempt("accept", lambda: socket.socket().accept())
one, other = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK), socket.socket()
found["as asked"] = [one.getblocking(), other.getblocking(), os.get_inheritable(one.fileno()), call("syscall", SOCKET, 2, 1, 0) > 0]
print(json.dumps(found))
"""


def test_a_guarded_program_makes_no_connection_but_to_its_gateway(tmp_path: Path) -> None:
    place = Confined.make(tmp_path, replace(available("guard by landlock"), network=check_network(["api.example.org:443"])))
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        ended = place.python(ATTACKS, str(server.getsockname()[1]))
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()

    assert ended.code == 0, ended.stderr
    refused = "HTTP/1.1 403"
    assert json.loads(ended.stdout) == {
        "connect": refused,
        "connect to nothing, and again": refused,
        "IPv6": "EAFNOSUPPORT",
        "send and connect": "EACCES",
        "send a message and connect": "EACCES",
        "send to": "sent to who is there",
        "a family of 64 bits": refused,
        **dict.fromkeys(["UDP", "MPTCP", "SCTP", "raw", "Unix", "vsock", "netlink", "listen", "bind", "accept"], "EACCES"),
        "as asked": [False, True, False, True],
    }


def test_a_guarded_program_may_make_many_sockets_and_none(tmp_path: Path) -> None:
    place = Confined.make(tmp_path, replace(available("guard by landlock"), network=check_network(["api.example.org:443"])))
    code = "import socket, threading\nfor _ in range(300): socket.socket().close()\nprint('done')"

    assert place.python(code).stdout == b"done\n"
    assert place.shell("true & wait; exit 3").code == 3


JAVA = """
import java.net.*;

public class Reach {
    public static void main(String[] arguments) throws Exception {
        var line = new Socket("127.0.0.1", 3128);
        line.getOutputStream().write("CONNECT other.example:443 HTTP/1.1\\r\\n\\r\\n".getBytes());
        System.out.println(java.time.Year.of(2030) + " " + new String(line.getInputStream().readNBytes(12)));
    }
}
"""


@pytest.mark.parametrize("name", BY_LIST)
def test_java_works_and_reaches_the_gateway(name: str, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("there is no java")
    place = Confined.make(tmp_path, replace(available(name), network=check_network(["api.example.org:443"])))
    (place.workspace / "Reach.java").write_text(JAVA)

    assert place.output("java Reach.java") == "2030 HTTP/1.1 403\n"
