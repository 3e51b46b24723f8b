"""What happens, heard by other programs as it happens, over a Unix socket."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Site

from pytest_gittrix.engine.event_stream import EventStream, follow
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput

LISTENER = """
import json, sys
from pytest_gittrix.engine.event_stream import follow
lines = follow(sys.argv[1], types=sys.argv[2:] or None)
print("listening", flush=True)
for line in lines:
    print(json.dumps(line), flush=True)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A socket's path, short enough for the system."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "live"


def test_another_process_hears_what_happens_in_order(site: Site, session: UserSession, place: Path) -> None:
    stream = site.engine.stream(place)
    with subprocess.Popen([sys.executable, "-c", LISTENER, str(place)], stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        with stream:
            assert listener.stdout.readline() == "listening\n"
            session.emit("text_delta", {"chunk": "hé"})
            stored = session.record("user_message", {"text": "go"})
            session.write("app.py", "v2\n")
        heard = [json.loads(line) for line in listener.stdout]

    assert listener.returncode == 0
    assert [(one["session"], one["type"], one["seq"]) for one in heard] == [
        (session.id, "text_delta", None),
        (session.id, "user_message", stored.seq),
        (session.id, "session.write", stored.seq + 1),
    ]
    assert heard[0]["data"] == {"chunk": "hé"}
    assert heard[1]["ts"] == "2030-01-01T00:00:00.000Z"


def test_a_listener_hears_only_what_it_asked_for(site: Site, session: UserSession, place: Path) -> None:
    other = site.start()
    with site.engine.stream(place):
        one, messages = follow(place, session=session.id), follow(place, types=["user_message"])
        for speaker in (session, other):
            speaker.record("user_message", {"text": speaker.id})
            speaker.record("assistant_message", {"text": "yes"})

    assert [(line["session"], line["type"]) for line in one] == [(session.id, "user_message"), (session.id, "assistant_message")]
    assert [line["data"]["text"] for line in messages] == [session.id, other.id]


def test_one_that_does_not_keep_up_is_told_and_holds_up_nobody(site: Site, session: UserSession, place: Path) -> None:
    with EventStream(lambda listener: site.engine.on("*", listener), place, backlog=5):
        slow, quick = follow(place), follow(place, types=["user_message"])
        for _ in range(2000):
            session.emit("text_delta", {"chunk": "x" * 1000})
        session.record("user_message", {"text": "after"})
        assert next(quick)["data"] == {"text": "after"}

    with pytest.raises(InvalidInput, match="More than 5 events behind"):
        list(slow)


def test_one_that_goes_away_is_forgotten(site: Site, session: UserSession, place: Path) -> None:
    with site.engine.stream(place):
        gone, stays = follow(place), follow(place)
        gone.close()  # type: ignore[attr-defined]
        for number in range(3):
            session.record("user_message", {"text": str(number)})

    assert [line["data"]["text"] for line in stays] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "said", [b"\n", b"[]\n", b'{"what": 1}\n', b'{"types": "user_message"}\n', b'{"types": ["nonsense"]}\n', b"\xff\n"]
)
def test_what_cannot_be_understood_is_answered(site: Site, place: Path, said: bytes) -> None:
    with site.engine.stream(place), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(place))
        connection.sendall(said)
        with connection.makefile("rb") as file:
            answer = json.loads(file.readline())

    assert answer["error"] == "INVALID_INPUT"


def test_a_socket_that_nobody_listens_on_is_replaced_and_a_live_one_is_not(site: Site, place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
    with site.engine.stream(place):
        with pytest.raises(AdapterUnavailable, match="cannot be made"):
            site.engine.stream(place)
        assert place.stat().st_mode & 0o777 == 0o600
    assert not place.exists()
    with pytest.raises(AdapterUnavailable, match="No engine listens at"):
        follow(place)


def test_a_file_of_somebody_elses_is_left_alone(site: Site, place: Path) -> None:
    place.write_text("mine")
    with pytest.raises(AdapterUnavailable):
        site.engine.stream(place)
    assert place.read_text() == "mine"


def test_a_path_too_long_for_a_socket_is_refused_by_name(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="too long for a socket"):
        site.engine.stream(tmp_path / ("x" * 120))
