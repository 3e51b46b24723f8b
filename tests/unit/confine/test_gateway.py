"""The gateway of a jail passes on what is listed, and nothing that looks like it."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from support.gateway import KEY, OpenGateway, Server, model_at, open_gateway, serving

from pytest_gittrix.confine import Confinement, Place, confinement, run
from pytest_gittrix.confine.gateway.requests import server_name
from pytest_gittrix.confine.network import ModelEndpoint, Reachable, check_network
from pytest_gittrix.errors import CapabilityMissing, InvalidInput


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificates(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Server]:
    with serving(authority) as server:
        yield server


@pytest.fixture
def endpoint(tmp_path: Path, server: Server, certificates: Path) -> Iterator[OpenGateway]:
    """A gateway with the endpoint ``mine`` of the server."""
    with open_gateway(tmp_path, [model_at(f"https://localhost:{server.port}/base/", ca=str(certificates))]) as gateway:
        yield gateway


@pytest.fixture
def proxy(tmp_path: Path, server: Server) -> Iterator[OpenGateway]:
    """A gateway that is a proxy to the server, by its name."""
    with open_gateway(tmp_path, [f"private:LocalHost:{server.port}"]) as gateway:
        yield gateway


# Model endpoints -----------------------------------------------------------------------------------------------------------------


def test_a_listed_request_is_passed_on_with_the_key_that_only_the_gateway_has(endpoint: OpenGateway, server: Server) -> None:
    answer = endpoint.post("/mine/v1/messages?beta=true", "x-api-key: its own", "Authorization: Bearer its own", "X-Mine: 1", body=b"hi")

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"9\r\nthe model\r\n0\r\n\r\n")
    ((method, path, headers, body),) = server.heard
    assert (method, path, body) == ("POST", "/base/v1/messages?beta=true", b"hi")
    assert (headers["authorization"], headers["x-mine"], headers["host"]) == (f"Bearer {KEY}", "1", f"localhost:{server.port}")
    assert "x-api-key" not in headers
    assert endpoint.decisions() == [(one, "POST /mine/v1/messages?beta=true") for one in ("passed", "answered")]


def test_a_body_in_chunks_is_passed_on_to_its_end(endpoint: OpenGateway, server: Server) -> None:
    head = b"POST /mine/v1/messages HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    answer = endpoint.send(head + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert server.heard[0][3] == b"abcde"


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/mine/v1/files"),
        ("GET", "/mine/v1/messages"),
        ("POST", "/mine/v1/messages/"),
        ("POST", "/mine/v1/messages/../files"),
        ("POST", "/mine/v1/%66iles"),
        ("POST", "/mine//v1/messages"),
        ("POST", "//mine/v1/messages"),
        ("POST", "/mine\\v1\\messages"),
        ("POST", "/other/v1/messages"),
        ("POST", "/v1/messages"),
        ("POST", "http://localhost/mine/v1/messages"),
        ("OPTIONS", "*"),
        ("CONNECT", "localhost:443"),
    ],
)
def test_a_request_that_is_not_listed_is_refused_and_the_answer_says_what_is(
    method: str, target: str, endpoint: OpenGateway, server: Server
) -> None:
    answer = endpoint.post(target, method=method).decode()

    assert answer.startswith("HTTP/1.1 403 ")
    assert re.search(r"there are: /mine\.|passes on: POST /v1/messages\.|may reach: none\.", answer)
    assert server.heard == []
    assert endpoint.decisions() == [("refused", f"{method} {target}")]


@pytest.mark.parametrize(
    ("target", "passed"),
    [
        ("/mine/v1beta/models/any:generateContent", True),
        ("/mine/v1beta/models/", True),
        ("/mine/v1beta/models", False),
        ("/mine/v1beta/files", False),
        ("/mine/v1beta/models/../files", False),
        ("/mine/v1beta/models/%2e%2e/files", False),
        ("/mine/v1beta/models//x", False),
    ],
)
def test_a_request_that_ends_with_a_star_lists_what_begins_so(
    tmp_path: Path, server: Server, certificates: Path, target: str, passed: bool
) -> None:
    model = model_at(f"https://localhost:{server.port}", "POST /v1beta/models/*", ca=str(certificates))
    with open_gateway(tmp_path, [model]) as gateway:
        answer = gateway.post(target)

    assert answer.startswith(b"HTTP/1.1 200 " if passed else b"HTTP/1.1 403 ")
    assert len(server.heard) == passed


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 2\r\nContent-Length: 2",
        "Content-Length: 2\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Content-Length: +2",
        "Content-Length: 99999999999999999999",
        "Content-Length : 2",
        "X: a\r\n folded",
        "X: a\nY: b",
        "X: \x00",
        "X: \xe9",
    ],
)
def test_a_request_that_two_servers_could_read_differently_is_refused(headers: str, endpoint: OpenGateway, server: Server) -> None:
    answer = endpoint.send(f"POST /mine/v1/messages HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n{{}}".encode("latin-1"))

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert server.heard == []


def test_a_connection_past_the_proxy_is_closed_at_once_and_recorded(proxy: OpenGateway) -> None:
    context = ssl.create_default_context()
    with socket.create_connection(("127.0.0.1", proxy.port), 30) as line, pytest.raises(OSError, match=r"EOF|reset"):
        context.wrap_socket(line, server_hostname="localhost")

    assert proxy.decisions() == [("refused", "a connection past the proxy")]


def test_a_connection_carries_one_request(endpoint: OpenGateway, server: Server) -> None:
    one = b"POST /mine/v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
    endpoint.send(one + one.replace(b"messages", b"files") + one)

    assert [path for _, path, _, _ in server.heard] == ["/base/v1/messages"]


def test_a_server_whose_certificate_is_not_trusted_gets_neither_request_nor_key(tmp_path: Path, server: Server) -> None:
    stranger = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    with open_gateway(tmp_path, [model_at(f"https://localhost:{server.port}", ca=str(stranger))]) as gateway:
        answer = gateway.post("/mine/v1/messages")

    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"CERTIFICATE_VERIFY_FAILED" in answer
    assert server.heard == []


# The proxy -----------------------------------------------------------------------------------------------------------------------


def all_of(client: socket.socket) -> bytes:
    """What comes until the other side ends the connection."""
    return b"".join(iter(lambda: client.recv(65536), b""))


def secured(client: socket.socket, certificates: Path, name: str | None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(certificates))
    context.check_hostname = False
    return context.wrap_socket(client, server_hostname=name)


def test_tls_to_a_listed_address_goes_through(proxy: OpenGateway, server: Server, certificates: Path) -> None:
    for written in ("localhost", "LOCALHOST", "localhost."):
        with proxy.tunnel(f"{written}:{server.port}") as client, secured(client, certificates, "localhost") as secure:
            secure.sendall(b"GET /file HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert all_of(secure).endswith(b"0\r\n\r\n")

    assert [path for _, path, _, _ in server.heard] == ["/file"] * 3
    assert [decision for decision, _ in proxy.decisions()] == ["passed"] * 3


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "[::1]",
        "localhost.evil.example",
        "evil.localhost",
        "xlocalhost",
        "169.254.169.254",
    ],
)
def test_a_name_that_is_not_listed_is_refused_and_the_answer_says_what_is(host: str, proxy: OpenGateway, server: Server) -> None:
    target = f"{host}:{server.port}"
    answer = proxy.send(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())

    assert re.match(rb"HTTP/1.1 40[03] ", answer)
    assert host.startswith("[") or f"may reach: private:localhost:{server.port}." in answer.decode()
    assert proxy.decisions() == [("refused", f"CONNECT {target}")]


@pytest.mark.parametrize("target", ["localhost:22", "localhost", "localhost:", ":443", "user@localhost:443", "localhost:443/x", "a\x00b:1"])
def test_another_port_or_what_is_no_address_is_refused(target: str, proxy: OpenGateway) -> None:
    assert re.match(rb"HTTP/1.1 40[03] ", proxy.send(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode()))


@pytest.mark.parametrize("named", ["other.example", None])
def test_tls_for_another_host_ends_in_the_tunnel(named: str | None, proxy: OpenGateway, server: Server, certificates: Path) -> None:
    with proxy.tunnel(f"localhost:{server.port}") as client, pytest.raises(OSError, match=r"EOF|reset|closed"):
        secured(client, certificates, named)

    assert proxy.decisions() == [("refused", f"CONNECT localhost:{server.port}")]


def test_what_is_no_tls_ends_in_the_tunnel(proxy: OpenGateway, server: Server) -> None:
    with proxy.tunnel(f"localhost:{server.port}") as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(4096) == b""

    assert server.heard == []


@pytest.mark.parametrize(("named", "passes"), [("localhost", True), ("other.example", False)])
def test_a_hello_in_small_records_is_put_together_first(named: str, passes: bool, proxy: OpenGateway, server: Server) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=named)
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    message = outgoing.read()[5:]
    records = [b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in (message[at : at + 7] for at in range(0, len(message), 7))]
    with proxy.tunnel(f"localhost:{server.port}") as client:
        client.sendall(b"".join(records))
        assert bool(client.recv(4096)) == passes


def test_the_name_in_a_hello_is_read_and_nothing_else_is_taken_for_one() -> None:
    assert server_name(b"") == ""
    assert server_name(bytes(30)) == ""
    assert server_name(b"\x01\x00\x00\x29" + b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02ab" + b"\x01\x00") is None


def resolve_as(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def resolved(_host: str, port: int, *_: object, **__: object) -> list[object]:
        return [(socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.mark.parametrize(
    ("entry", "addresses"),
    [
        ("api.example:443", ["127.0.0.1"]),
        ("api.example:443", ["169.254.169.254"]),
        ("api.example:443", ["93.184.215.14", "127.0.0.1"]),
        ("api.example:443", ["::ffff:127.0.0.1"]),
        ("api.example:443", ["::1"]),
        ("api.example:443", ["0.0.0.0"]),
        ("api.example:443", ["10.0.0.1"]),
        ("api.example:443", ["100.64.0.1"]),
        ("api.example:443", ["93.184.215.14", "fd00::1"]),
        ("private:api.example:443", ["169.254.169.254"]),
        ("private:api.example:443", ["0.0.0.0"]),
        ("*.example:443", ["10.0.0.1"]),
        ("*.example:443", ["192.168.1.1"]),
    ],
)
def test_a_name_that_leads_to_this_machine_or_elsewhere_near_is_refused(
    entry: str, addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_gateway(tmp_path, [entry]) as gateway:
        client = socket.create_connection(("127.0.0.1", gateway.port))
        resolve_as(monkeypatch, *addresses)
        with client:
            client.sendall(b"CONNECT api.example:443 HTTP/1.1\r\n\r\n")
            answer = all_of(client)

    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"api.example leads to " in answer
    never = any(one in answer for one in (b"169.254.169.254", b"0.0.0.0"))
    assert (b"can list private:" in answer) is not never


@pytest.mark.parametrize("entry", ["private:api.example:{port}", "private:tcp://api.example:{port}"])
def test_a_name_on_a_private_network_is_listed_as_such(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server, open_gateway(tmp_path, [entry.format(port=server.port)]) as gateway:
        client = socket.create_connection(("127.0.0.1", gateway.port))
        resolve_as(monkeypatch, "127.0.0.1")
        with client:
            client.sendall(f"CONNECT api.example:{server.port} HTTP/1.1\r\n\r\n".encode())
            assert client.recv(4096) == b"HTTP/1.1 200 Connected\r\n\r\n"


ADDRESS = """
import fcntl, socket, struct
from pytest_gittrix.confine.gateway.requests import is_own

def interface(call, name, address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        family = struct.pack("=H2x4s8x", socket.AF_INET, socket.inet_aton(address))
        fcntl.ioctl(control, call, struct.pack("16s16s", name, family))

SIOCSIFADDR, SIOCSIFFLAGS, UP = 0x8916, 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", UP))
before = is_own("198.51.100.7")
interface(SIOCSIFADDR, b"lo:1", "198.51.100.7")
print(before, is_own("198.51.100.7"), is_own("198.51.100.8"), is_own("127.0.0.1"), is_own("2001:db8::1"))
"""


def test_every_address_of_this_machines_interfaces_is_its_own() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user can have no network namespace")
    done = subprocess.run([unshare, "-rn", sys.executable, "-c", ADDRESS], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "False True False True False\n", done.stderr


@pytest.mark.parametrize(
    ("host", "matches"), [("a.example", True), ("b.a.example", True), ("example", False), ("aexample", False), (".example", False)]
)
def test_a_pattern_matches_what_is_below_a_name(host: str, matches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_gateway(tmp_path, ["*.example:443"]) as gateway:
        client = socket.create_connection(("127.0.0.1", gateway.port))
        resolve_as(monkeypatch, "127.0.0.1")
        with client:
            client.sendall(f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())
            assert (b"leads to" in all_of(client)) == matches


def test_another_protocol_than_tls_is_listed_as_such(tmp_path: Path) -> None:
    with serving() as server, open_gateway(tmp_path, [f"private:tcp://localhost:{server.port}"]) as gateway:
        with gateway.tunnel(f"localhost:{server.port}") as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


# What can be listed --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        *("some", "", "host", "host:0", "host:70000", "*:443", "h*st:443", "private:*.host:443"),
        *("https://host:443", "model:other", "-a:1", "a b:1", 7, None),
    ],
)
def test_what_is_no_network_is_refused_with_what_there_is(entry: object) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"none, all, model:anthropic, model:openai, model:gemini, host:port, \*\.host:port, tcp://host:port, "
        "private:host:port",
    ):
        check_network([entry])


@pytest.mark.parametrize("entry", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "tcp://127.0.0.1:8080", "127.1:8080"])
def test_a_server_of_this_machine_is_refused_with_the_line_that_works(entry: str) -> None:
    with pytest.raises(InvalidInput, match="is a server of this machine") as refused:
        check_network([entry])

    line = re.search(r"ModelEndpoint\(.*?\)\)", str(refused.value))
    assert line
    assert check_network([eval(line[0], {"ModelEndpoint": ModelEndpoint})])
    assert str(check_network(["private:localhost:8080"])) == "private:localhost:8080"


def test_entries_make_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example/openai/v1/")
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    listed = check_network(["model:anthropic", "model:openai", "API.Example.org:443"])

    assert isinstance(listed, Reachable)
    assert str(listed) == "model:anthropic model:openai api.example.org:443"
    assert [one.url for one in listed.models] == ["https://api.anthropic.com", "https://models.example/openai"]
    monkeypatch.setenv("SSL_CERT_FILE", "/company/ca.pem")
    assert [one["ca"] for one in listed.rules()["models"]] == ["/company/ca.pem"] * 2
    assert check_network([]) == "none"
    assert check_network("model:anthropic") == check_network(["model:anthropic"])
    with pytest.raises(InvalidInput, match="one name"):
        check_network(["model:anthropic", "model:anthropic"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "My Model"},
        {"url": "http://model.example"},
        {"url": "ftp://model.example"},
        {"url": "https://user:word@model.example"},
        {"requests": ("v1/messages",)},
        {"requests": ("POST /v1/../x",)},
        {"requests": ("POST /v1/*/x",)},
        {"header": "no key"},
        {"header": "x: {key}\r\ny: z"},
    ],
)
def test_an_endpoint_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        ModelEndpoint(**{"name": "mine", "url": "https://model.example", "requests": (), **wrong})  # type: ignore[arg-type]


def test_a_key_that_is_not_set_or_no_word_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = check_network(model_at("https://model.example"))
    assert isinstance(listed, Reachable)
    monkeypatch.delenv("MY_MODEL_KEY", raising=False)
    with pytest.raises(InvalidInput, match="MY_MODEL_KEY is not set"):
        listed.keys()
    monkeypatch.setenv("MY_MODEL_KEY", "two words")
    with pytest.raises(InvalidInput, match="more than one word"):
        listed.keys()


def test_without_a_confinement_nothing_keeps_to_a_list() -> None:
    with pytest.raises(CapabilityMissing, match="needs a guard or a jail by namespaces, not off by none"):
        confinement("off", ["api.example.org:443"])


def test_a_confinement_that_was_put_together_by_hand_is_not_weaker(tmp_path: Path) -> None:
    listed = Confinement("jail", "bwrap", network=check_network("api.example.org:443"))
    with pytest.raises(CapabilityMissing, match="needs a guard or a jail by namespaces, not jail by bwrap"):
        run(["true"], Place(tmp_path), listed, environment={})
