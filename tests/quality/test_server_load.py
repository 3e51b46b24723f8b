"""Two hundred clients at once: every request is answered, nothing that is said is lost or said twice, and an item is got by one.

A few rounds normally; with ``PYTEST_GITTRIX_SOAK=1`` for a minute.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from support.daemon import LONG, DaemonProcess, Staff

from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.os_level.monotonic import real_seconds

CLIENTS: Final = 200
SESSIONS: Final = 20
SOAK: Final = 60.0 if os.environ.get("PYTEST_GITTRIX_SOAK") == "1" else 0.0


class Client:
    """One of many, on a connection that it keeps."""

    def __init__(self, daemon: DaemonProcess, number: int, chat: str, talk: str) -> None:
        self.number, self.chat, self.talk = number, chat, talk
        self.said = 0
        self.got: dict[str, str] = {}
        self._connection = http.client.HTTPConnection(daemon.file.host, daemon.file.port, timeout=LONG)
        self._key = {**daemon.secret, "Content-Type": "application/json"}

    def request(self, method: str, path: str, body: object = None) -> Any:
        self._connection.request(method, path, None if body is None else json.dumps(body), self._key)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    def round(self, number: int) -> None:
        """Say one more thing, ask for an item that all ask for, and look."""
        text = json.dumps({"text": f"{self.number}:{number}"}).encode()
        argv = ["session", "record", self.talk, "user_message", "--json"]
        answer = self.request("POST", "/api/command", {"argv": argv, "cwd": "/", "stdin_base64": base64.b64encode(text).decode()})
        assert answer["status"] == 0, answer
        self.said += 1
        item = f"round-{number}"
        locked = self.request("POST", f"/api/sessions/{self.chat}/locks", {"work_item_id": item})
        self.got[item] = self.chat if locked["acquired"] else locked["holder"]
        assert self.request("GET", "/health")["ok"] is True

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    with Staff.open(tmp_path) as opened:
        opened.hires()
        yield opened


def test_two_hundred_clients_at_once_lose_nothing(staff: Staff) -> None:
    with GitTrix(str(staff.app.path), store=staff.home / "sessions", sweep_interval=None) as engine:
        talks = [engine.start_session(f"talk {number}").id for number in range(SESSIONS)]
    with DaemonProcess(staff.home) as daemon, ThreadPoolExecutor(CLIENTS) as pool:
        chats = [staff.start(daemon, f"member-{number}", "Interactive") for number in range(4)]
        clients = [Client(daemon, number, chats[number % len(chats)], talks[number % SESSIONS]) for number in range(CLIENTS)]
        together = threading.Barrier(CLIENTS)
        until = real_seconds() + SOAK

        def work(client: Client) -> int:
            with closing(client):
                together.wait(LONG)
                rounds = 0
                while rounds < 1 or real_seconds() < until:
                    client.round(rounds)
                    rounds += 1
                return rounds

        rounds = [*pool.map(work, clients)]
        assert daemon.end() == (0, "")

    assert sum(rounds) == sum(client.said for client in clients) >= CLIENTS
    for talk in talks:
        lines = (staff.home / "sessions" / talk / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        assert [event["seq"] for event in events] == [*range(len(events))]
        said = Counter(event["data"]["text"] for event in events if event["type"] == "user_message")
        expected = {f"{client.number}:{number}" for client in clients if client.talk == talk for number in range(client.said)}
        assert said == Counter(expected)
    for item in {item for client in clients for item in client.got}:
        assert len({client.got[item] for client in clients if item in client.got}) == 1, item


def test_hundreds_of_streams_tell_everybody_everything(staff: Staff) -> None:
    with DaemonProcess(staff.home) as daemon, ThreadPoolExecutor(CLIENTS) as pool:
        ready = threading.Barrier(CLIENTS + 1)

        def listen(_number: int) -> list[str]:
            with closing(http.client.HTTPConnection(daemon.file.host, daemon.file.port, timeout=LONG)) as connection:
                connection.request("GET", "/api/events?types=work.locked", headers=daemon.secret)
                with connection.getresponse() as response:
                    assert response.readline() == b": listening\n"
                    ready.wait(LONG)
                    lines = iter(response.readline, b"")
                    return [json.loads(line[6:])["data"]["item"] for line in lines if line.startswith(b"data: ")]

        heard = [pool.submit(listen, number) for number in range(CLIENTS)]
        id_ = staff.start(daemon, "ada", "Interactive")
        ready.wait(LONG)
        for number in range(5):
            daemon.ok("POST", f"/api/sessions/{id_}/locks", {"work_item_id": f"item-{number}"})
        assert daemon.end() == (0, "")
        expected = [f"item-{number}" for number in range(5)]
        assert [one.result(LONG) for one in heard] == [expected] * CLIENTS
