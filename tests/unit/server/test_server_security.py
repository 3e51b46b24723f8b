"""Who may ask the daemon: pages of other origins and rebound names may not, and nobody without its token or its key."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.agent_processes import on_linux
from support.daemon import DaemonClient, Staff, serving, wait_until

from pytest_gittrix import World
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.engine.operations.requester import make_mark
from pytest_gittrix.errors import AuthFailed, DaemonRuns, InvalidInput
from pytest_gittrix.server import connections, daemon_file, guard
from pytest_gittrix.server.run import Serving, Settings

TOKEN = "a-token-of-more-than-sixteen"


@pytest.fixture(scope="module")
def staff(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Staff]:
    with Staff.open(tmp_path_factory.mktemp("staff")) as opened:
        yield opened


@pytest.fixture(scope="module")
def daemon(staff: Staff) -> Iterator[DaemonClient]:
    with serving(staff.settings) as asked:
        yield asked


def token_file(place: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    file = place / "token"
    file.write_text(text + "\n")
    file.chmod(mode)
    return file


# Pages ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "192.168.0.1", "[2001:db8::1]", ""]
)
def test_a_name_that_is_not_this_machines_is_refused_though_it_leads_here(daemon: DaemonClient, host: str) -> None:
    for path in ("/health", "/api/sessions"):
        assert daemon.request("GET", path, headers={"Host": host}).error == (403, "FOREIGN_HOST")


@pytest.mark.parametrize("host", ["localhost", "localhost:{port}", "127.0.0.1:{port}", "127.8.9.10", "[::1]:{port}", "LOCALHOST."])
def test_every_name_of_loopback_is_taken(daemon: DaemonClient, host: str) -> None:
    assert daemon.ok("GET", "/health", headers={"Host": host.format(port=daemon.file.port)})["team"] == "team"


def test_two_host_headers_are_refused(daemon: DaemonClient) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", daemon.file.port, timeout=30)) as connection:
        connection.putrequest("GET", "/health", skip_host=True)
        connection.putheader("Host", "localhost")
        connection.putheader("Host", "evil.example")
        connection.endheaders()
        assert connection.getresponse().status in (400, 403)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1", "file://", ""])
def test_a_page_of_another_origin_is_refused(daemon: DaemonClient, origin: str) -> None:
    reply = daemon.request("POST", "/api/sessions/stop", {"mode": "autonomous"}, headers={"Origin": origin})

    assert reply.error == (403, "FOREIGN_ORIGIN")
    assert "access-control-allow-origin" not in reply.headers


def test_a_page_that_came_from_here_may_ask(daemon: DaemonClient) -> None:
    assert daemon.ok("GET", "/api/sessions", headers={"Origin": f"http://127.0.0.1:{daemon.file.port}"})["sessions"] == []


# Secrets -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(staff: Staff, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonClient]:
    file = token_file(tmp_path_factory.mktemp("token"))
    home = tmp_path_factory.mktemp("locked")
    with serving(replace(staff.settings, store=home / "sessions", token_file=file)) as asked:
        yield asked


NOBODY = {"Authorization": ""}


@pytest.mark.parametrize("with_token", [False, True])
def test_nothing_but_health_is_told_to_who_has_no_secret(daemon: DaemonClient, locked: DaemonClient, with_token: bool) -> None:
    asked = locked if with_token else daemon
    assert asked.ok("GET", "/health", headers=NOBODY)["ok"] is True
    for path in ("/api/sessions", "/openapi.json", "/api/events", "/health/", "/nothing"):
        assert asked.request("GET", path, headers=NOBODY).error == (401, "AUTH_FAILED")
    assert asked.request("POST", "/api/sessions/stop", {"mode": "autonomous"}, headers=NOBODY).error == (401, "AUTH_FAILED")
    assert asked.request("DELETE", "/api/sessions/sess_1", headers=NOBODY).error == (401, "AUTH_FAILED")
    assert asked.request("POST", "/api/command", {"argv": ["session", "list"], "cwd": "/"}, headers=NOBODY).error == (401, "AUTH_FAILED")


@pytest.mark.parametrize(
    "given", ["", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer \xe9"]
)
def test_what_is_not_the_token_is_refused(locked: DaemonClient, given: str) -> None:
    reply = locked.request("GET", "/api/sessions", headers={"Authorization": given})

    assert reply.error == (401, "AUTH_FAILED")
    assert reply.headers["www-authenticate"] == "Bearer"


def test_the_token_and_the_key_of_the_file_are_taken(locked: DaemonClient) -> None:
    for secret in (TOKEN, locked.file.key):
        assert locked.ok("GET", "/api/sessions", headers={"Authorization": f"Bearer {secret}"})["sessions"] == []


@on_linux
def test_an_agents_process_that_has_the_key_decides_nothing_all_the_same(staff: Staff, daemon: DaemonClient, tmp_path: Path) -> None:
    with World.open(tmp_path / "world", files={"app.py": "1\n"}) as world:
        durable = str(world.durable.path)
        started = daemon.command("session", "start", "task", "-d", durable, cwd=tmp_path).json["answer"]["data"]["id"]
        promote = {"argv": ["promote", started], "cwd": str(tmp_path)}
        program = f"""
import http.client, os
connection = http.client.HTTPConnection({daemon.file.host!r}, {daemon.file.port})
headers = {{"Content-Type": "application/json", "Authorization": "Bearer {daemon.file.key}"}}
connection.request("POST", "/api/command", {json.dumps(promote)!r}, headers)
body = connection.getresponse().read()
with open("answer.new", "wb") as file:
    file.write(body)
os.rename("answer.new", "answer")
"""
        start_agent(
            [sys.executable, "-c", program],
            directory=tmp_path / "agent",
            workspace=tmp_path,
            environment={"PATH": os.environ["PATH"]},
            mark=make_mark(Path(daemon.file.store), started),
        )
        wait_until((tmp_path / "answer").exists, "an answer")

        assert json.loads((tmp_path / "answer").read_bytes())["answer"]["error"]["code"] == "PERSON_REQUIRED"
        assert daemon.command("promote", started, cwd=tmp_path).json["answer"]["error"]["code"] == "PROMOTE_FAILED"  # nothing was changed


def test_the_file_with_the_key_is_for_its_owner_alone(staff: Staff, daemon: DaemonClient) -> None:
    file = staff.home / "daemon.json"

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert daemon.file.key in file.read_text()
    assert daemon.file.key not in str(daemon.ok("GET", "/health"))


def test_a_daemon_file_that_somebody_else_made_is_not_believed_and_not_replaced(staff: Staff, tmp_path: Path) -> None:
    with serving(replace(staff.settings, store=tmp_path / "sessions")) as asked:
        file, published = tmp_path / "daemon.json", asked.file
        contents = file.read_text()
        assert daemon_file.found(tmp_path) == published
        file.rename(tmp_path / "theirs.json")
        file.symlink_to(tmp_path / "theirs.json")
        assert daemon_file.found(tmp_path) is None
        file.unlink()
        file.write_text(contents)
        for mode in (0o640, 0o602):
            file.chmod(mode)
            assert daemon_file.found(tmp_path) is None
            with pytest.raises(DaemonRuns, match=f"read or written by others .mode {mode:o}"):
                daemon_file.publish(tmp_path, published)


@pytest.mark.needs_root
def test_a_file_of_another_user_is_neither_believed_nor_written_over(staff: Staff, tmp_path: Path) -> None:
    with serving(replace(staff.settings, store=tmp_path / "sessions")) as asked:
        file, published = tmp_path / "daemon.json", asked.file
        contents = file.read_text()
        file.unlink()
        file.write_text(contents)
        os.chown(file, 12345, -1)
        assert daemon_file.found(tmp_path) is None
        with pytest.raises(DaemonRuns, match="12345"):
            daemon_file.publish(tmp_path, published)
        assert file.read_text() == contents


# Starting ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_beyond_loopback_nothing_is_listened_at_without_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(AuthFailed, match="--token-file"):
        Serving(Settings(host=host, port=0, store=tmp_path / "home" / "sessions"))

    assert not (tmp_path / "home" / "daemon.json").exists()


def test_beyond_loopback_the_token_is_asked_for_and_any_name_is_taken(tmp_path: Path) -> None:
    settings = Settings(host="0.0.0.0", port=0, store=tmp_path / "home" / "sessions", token_file=token_file(tmp_path))
    with serving(settings) as asked:
        assert asked.request("GET", "/api/sessions", headers=NOBODY).error == (401, "AUTH_FAILED")
        headers = {"Authorization": f"Bearer {TOKEN}", "Host": "build.example"}
        assert asked.ok("GET", "/api/sessions", headers=headers)["sessions"] == []


@pytest.mark.parametrize(
    ("text", "mode", "said"), [("short", 0o600, "16 or more"), (TOKEN, 0o644, "by others"), ("a b" * 9, 0o600, "space")]
)
def test_a_token_that_others_know_or_guess_is_refused(tmp_path: Path, text: str, mode: int, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        guard.read_token(token_file(tmp_path, text, mode))


@pytest.mark.needs_root
def test_a_token_of_another_user_is_refused(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    os.chown(file, 12345, -1)
    with pytest.raises(InvalidInput, match=r"belongs to another user \(12345\)"):
        guard.read_token(file)


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no-such-file"):
        guard.read_token(tmp_path / "no-such-file")


# Sizes -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "most"), [("/api/sessions/start", guard.LARGE), ("/api/command", guard.LARGEST)])
def test_what_is_announced_as_too_large_is_refused_before_it_is_sent(daemon: DaemonClient, path: str, most: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", daemon.file.port, timeout=30)) as connection:
        connection.putrequest("POST", path)
        connection.putheader("Authorization", daemon.secret["Authorization"])
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(most + 1))
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_a_command_may_be_larger_than_what_anybody_may_send(daemon: DaemonClient, tmp_path: Path) -> None:
    contents = base64.b64encode(bytes(guard.LARGE)).decode()

    reply = daemon.command("session", "write", "nothing", "x", cwd=tmp_path, stdin=contents)

    assert reply.json["answer"]["error"]["code"] == "SESSION_NOT_FOUND"


def test_what_turns_out_too_large_on_its_way_is_refused(daemon: DaemonClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LARGE", 1000)

    def pieces() -> Iterator[bytes]:
        yield from [b" " * 400] * 4

    with closing(http.client.HTTPConnection("127.0.0.1", daemon.file.port, timeout=30)) as connection:
        connection.request("POST", "/api/sessions/start", pieces(), {**daemon.secret, "Content-Type": "application/json"})
        assert connection.getresponse().status == 413


@pytest.mark.parametrize("said", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HT"])
def test_a_connection_whose_request_does_not_come_is_closed(daemon: DaemonClient, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.05)
    with closing(socket.create_connection(("127.0.0.1", daemon.file.port), timeout=30)) as silent:
        silent.sendall(said)
        answered = b"".join(iter(lambda: silent.recv(4096), b""))

    assert answered.count(b"HTTP/1.1 200") == said.count(b"\r\n\r\n")


def test_a_request_whose_rest_does_not_come_is_ended(daemon: DaemonClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STALLED", 0.05)
    with closing(http.client.HTTPConnection("127.0.0.1", daemon.file.port, timeout=30)) as connection:
        connection.putrequest("POST", "/api/sessions/start")
        connection.putheader("Authorization", daemon.secret["Authorization"])
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b'{"member_name"')
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (408, "INVALID_INPUT")


def test_a_request_with_two_lengths_is_refused_and_its_connection_ends(daemon: DaemonClient) -> None:
    with closing(socket.create_connection(("127.0.0.1", daemon.file.port), timeout=30)) as smuggler:
        head = f"POST /api/sessions/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: {daemon.secret['Authorization']}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        smuggler.sendall(f"{head}0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answered = b"".join(iter(lambda: smuggler.recv(4096), b""))

    assert answered.startswith(b"HTTP/1.1 400")
    assert answered.count(b"HTTP/1.1 ") == 1


def test_a_connection_that_says_nothing_disturbs_nobody(daemon: DaemonClient) -> None:
    with closing(socket.create_connection(("127.0.0.1", daemon.file.port), timeout=30)) as silent:
        silent.sendall(b"GET /health HT")
        assert daemon.ok("GET", "/health")["ok"] is True


def test_garbage_is_answered_with_an_error_and_no_more(daemon: DaemonClient) -> None:
    with closing(socket.create_connection(("127.0.0.1", daemon.file.port), timeout=30)) as rude:
        rude.sendall(os.urandom(64).replace(b"\n", b"") + b"\r\n\r\n")
        assert rude.recv(64).startswith(b"HTTP/1.1 400")
    assert daemon.ok("GET", "/health")["ok"] is True
