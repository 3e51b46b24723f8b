"""The daemon tells what happens in sessions as server-sent events: whoever wrote it, in order, without a gap, and again when asked."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemon import DaemonClient, Staff, serving

from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.server import events

LONG = 60.0


class Stream:
    """One that listens."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response

    def blocks(self) -> Iterator[dict[str, str]]:
        """What comes, as fields by name; a comment is under an empty name."""
        block: dict[str, str] = {}
        while line := self._response.readline().decode():
            if line == "\n":
                yield block
                block = {}
                continue
            name, _, value = line.rstrip("\n").partition(": ")
            block[name] = value
        assert block == {}, "the stream ended within an event"

    def next(self, count: int = 1) -> list[dict[str, Any]]:
        """The next events, which must have the ids that they tell."""
        found: list[dict[str, Any]] = []
        for block in self.blocks():
            if "data" in block:
                one = json.loads(block["data"])
                assert block.get("id") == f"{one.get('session')}:{one.get('seq')}"
                found.append(one)
            if len(found) == count:
                break
        return found


@contextmanager
def listening(daemon: DaemonClient, query: str = "", **headers: str) -> Iterator[Stream]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.file.port, timeout=LONG)
    connection.request("GET", f"/api/events{query}", headers={**daemon.secret, **headers})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.getheader("content-type", "").startswith("text/event-stream")
    stream = Stream(connection, response)
    assert next(stream.blocks()) == {"": "listening"}
    try:
        yield stream
    finally:
        response.close()
        connection.close()


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    with Staff.open(tmp_path) as opened:
        opened.hires()
        yield opened


def stored(daemon: DaemonClient, id_: str) -> list[tuple[int, str]]:
    """The events of a session's log."""
    lines = (Path(daemon.file.store) / id_ / "events.jsonl").read_text().splitlines()
    return [(one["seq"], one["type"]) for one in map(json.loads, lines)]


def numbered(found: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(one["seq"], one["type"]) for one in found]


def test_what_the_daemon_does_is_told_as_it_is_stored_from_the_first_event_on(staff: Staff, daemon: DaemonClient) -> None:
    with listening(daemon) as stream:
        id_ = staff.start(daemon, "ada", "Interactive")
        found = stream.next(len(stored(daemon, id_)))

    assert numbered(found) == stored(daemon, id_)
    assert {one["session"] for one in found} == {id_}
    assert found[0].keys() == {"session", "seq", "ts", "type", "actor", "data"}


def test_what_another_engine_writes_is_told_too(staff: Staff, daemon: DaemonClient) -> None:
    with GitTrix(str(staff.app.path), store=staff.home / "sessions", sweep_interval=None) as other:
        session = other.start_session("say hello")
        before = len(stored(daemon, session.id))
        with listening(daemon) as stream:
            for text in ("one", "two"):
                session.record("user_message", {"text": text})
            found = stream.next(2)

    assert [one["data"]["text"] for one in found] == ["one", "two"]
    assert [one["seq"] for one in found] == [before, before + 1]


def test_one_that_listens_gets_what_it_asked_for_and_nothing_else(staff: Staff, daemon: DaemonClient) -> None:
    first, second = (staff.start(daemon, "ada", "Interactive") for _ in range(2))

    with listening(daemon, f"?session={second}&types=work.locked,work.released") as stream:
        for id_ in (first, second):
            daemon.ok("POST", f"/api/sessions/{id_}/locks", {"work_item_id": f"item of {id_}"})
            daemon.ok("DELETE", f"/api/sessions/{id_}/locks/item%20of%20{id_}")
        found = stream.next(2)

    assert [(one["session"], one["type"]) for one in found] == [(second, "work.locked"), (second, "work.released")]


def test_a_session_is_told_again_from_an_event_on_without_a_gap_or_a_repetition(staff: Staff, daemon: DaemonClient) -> None:
    id_ = staff.start(daemon, "ada", "Interactive")
    past = stored(daemon, id_)

    for asked, headers in ((f"?session={id_}&since=0", {}), ("", {"Last-Event-ID": f"{id_}:0"})):
        with listening(daemon, asked, **headers) as stream:
            got = stream.next(len(past) - 1)
            daemon.ok("POST", f"/api/sessions/{id_}/locks", {"work_item_id": "x"})
            got += stream.next(1)
            daemon.ok("DELETE", f"/api/sessions/{id_}/locks/x")
            got += stream.next(1)
        assert numbered(got) == stored(daemon, id_)[1:]
        past = stored(daemon, id_)


def test_one_that_comes_back_after_the_daemon_was_restarted_misses_nothing(staff: Staff) -> None:
    with serving(staff.settings) as daemon, listening(daemon) as stream:
        id_ = staff.start(daemon, "ada", "Interactive")
        last = stream.next(2)[-1]
        daemon.ok("POST", f"/api/sessions/{id_}/locks", {"work_item_id": "x"})
    with serving(staff.settings) as daemon:
        whole = stored(daemon, id_)
        with listening(daemon, **{"Last-Event-ID": f"{id_}:{last['seq']}"}) as stream:
            rest = stream.next(len(whole) - 2)

    assert numbered(rest) == whole[2:]


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("?since=3", {}, 400),
        ("?session={id}&since=x", {}, 400),
        ("?session={id}&since=-1", {}, 400),
        ("?types=no.such", {}, 400),
        ("?types=,", {}, 400),
        ("", {"Last-Event-ID": "nonsense"}, 400),
        ("?session=unknown&since=1", {}, 404),
        ("", {"Last-Event-ID": "unknown:3"}, 404),
    ],
)
def test_what_nobody_can_listen_to_is_refused(staff: Staff, daemon: DaemonClient, query: str, headers: dict[str, str], status: int) -> None:
    id_ = staff.start(daemon, "ada", "Interactive")

    reply = daemon.request("GET", f"/api/events{query.format(id=id_)}", headers=headers)

    assert reply.status == status
    assert reply.json["ok"] is False


def test_a_stream_in_which_nothing_happens_shows_that_it_lives(daemon: DaemonClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT", 0.01)

    with listening(daemon) as stream:
        blocks = stream.blocks()
        assert [next(blocks), next(blocks)] == [{"": "still here"}] * 2


@pytest.mark.parametrize("limit", ["MAX_EVENTS", "MAX_BYTES"])
def test_one_that_does_not_keep_up_is_told_so_and_let_go(
    staff: Staff, daemon: DaemonClient, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(events, limit, 0)

    with listening(daemon) as stream:
        staff.start(daemon, "ada", "Interactive")
        (last,) = (block for block in stream.blocks() if "data" in block)

    assert last["event"] == "error"
    assert json.loads(last["data"])["code"] == "TOO_SLOW"


def test_all_that_listen_share_one_limit_and_the_slowest_is_let_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 1000)
    backlog = events.Backlog()

    async def listen() -> tuple[list[bytes], list[bytes]]:
        slow, quick = events.Listener(None, None, backlog), events.Listener(None, None, backlog)
        for listener, count in ((slow, 9), (quick, 1)):
            for _ in range(count):
                listener.send(b"x" * 100)
        assert (slow.ended, backlog.size) == (False, 1000)
        quick.send(b"y" * 100)
        assert (slow.ended, quick.ended, backlog.size) == (True, False, 200)
        quick.end()
        return [line async for line in slow.lines()], [line async for line in quick.lines()]

    slow, quick = asyncio.run(listen())
    assert quick == [b": listening\n\n", b"x" * 100, b"y" * 100]
    assert len(slow) == 2
    assert slow[1].startswith(b"event: error\n")
    assert b'"TOO_SLOW"' in slow[1]
    assert backlog.size == 0


@pytest.mark.parametrize(("limit", "most"), [("MAX_EVENTS", 2), ("MAX_BYTES", 250)])
def test_one_that_is_too_slow_gets_first_what_waits_so_that_it_can_go_on_from_there(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(events, limit, most)
    backlog = events.Backlog()

    async def listen() -> list[bytes]:
        listener = events.Listener(None, None, backlog)
        for number in range(4):
            listener.send(b"%d" % number * 100)
        return [line async for line in listener.lines()]

    lines = asyncio.run(listen())
    assert lines[1:3] == [b"0" * 100, b"1" * 100]
    assert b'"TOO_SLOW"' in lines[3]
    assert (len(lines), backlog.size) == (4, 0)


def test_what_waits_for_one_that_has_left_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 1000)
    backlog = events.Backlog()

    async def listen() -> list[bool]:
        gone, there = events.Listener(None, None, backlog), events.Listener(None, None, backlog)
        gone.send(b"x" * 900)
        gone.leave()
        there.send(b"x" * 900)
        return [gone.ended, there.ended]

    assert asyncio.run(listen()) == [True, False]


def test_the_end_of_the_daemon_is_the_end_of_every_stream(staff: Staff) -> None:
    with serving(staff.settings) as daemon:
        streams = [listening(daemon) for _ in range(3)]
        opened = [stream.__enter__() for stream in streams]
    for stream in opened:
        assert list(stream.blocks()) == []
    for one in streams:
        one.__exit__(None, None, None)


def test_one_that_leaves_does_not_wait_for_a_look_that_is_under_way(staff: Staff) -> None:
    with GitTrix(None, store=staff.home / "sessions", sweep_interval=None) as engine:
        feed = events.Feed(engine)

        async def leave() -> bool:
            listener = feed.listener(None, None)
            feed.subscribe(listener)
            with feed._lock:  # as a look does that takes long
                feed.forget(listener)
            return listener.ended

        assert asyncio.run(leave()) is True
        feed.close()
