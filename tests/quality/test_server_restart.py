"""The daemon as a real process: it ends in order, it can be killed at any time, and agents outlive it and are found again."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemon import LONG, DaemonProcess, Staff, wait_until

from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.server import daemon_file


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    with Staff.open(tmp_path) as opened:
        opened.hires(ada=opened.commits("ada.txt", "ada").at("up").polite(), eve=opened.agents.script("eve").polite().at("eve").hang())
        yield opened


def refuses(daemon: DaemonProcess) -> bool:
    """Whether nobody listens there any more."""
    try:
        socket.create_connection((daemon.file.host, daemon.file.port), timeout=LONG).close()
    except ConnectionRefusedError:
        return True
    return False


def gittrix(home: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a process of its own."""
    env = {**hermetic_env(home.parent / "nobody"), "GITTRIX_HOME": str(home)}
    argv = [sys.executable, "-m", "pytest_gittrix.cli", *arguments]
    return subprocess.run(argv, env=env, capture_output=True, timeout=LONG, check=False)


def test_it_says_where_it_listens_and_leaves_nothing_when_it_ends(staff: Staff) -> None:
    with DaemonProcess(staff.home) as daemon:
        said = daemon.greeting["data"]
        assert (said["host"], said["port"], said["pid"]) == ("127.0.0.1", daemon.file.port, daemon.process.pid)
        assert (said["team"], said["store"]) == ("blue", str(staff.home / "sessions"))
        assert daemon.ok("GET", "/health")["team"] == "blue"

        assert daemon.end() == (0, "")
    assert not (staff.home / "daemon.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_under_way_is_answered_before_the_end_and_no_other_is_taken(staff: Staff, number: signal.Signals) -> None:
    with DaemonProcess(staff.home) as daemon, listening(daemon) as stream:
        id_ = staff.start(daemon, "ada", "Interactive")
        body = b'{"work_item_id": "x"}'
        with closing(http.client.HTTPConnection(daemon.file.host, daemon.file.port, timeout=LONG)) as slow:
            slow.putrequest("POST", f"/api/sessions/{id_}/locks")
            slow.putheader("Authorization", daemon.secret["Authorization"])
            slow.putheader("Content-Type", "application/json")
            slow.putheader("Content-Length", str(len(body)))
            slow.endheaders(body[:5])
            daemon.ok("GET", "/health")  # what came before was read by now
            daemon.process.send_signal(number)
            wait_until(lambda: refuses(daemon), "the end of listening")
            assert stream.read().endswith(b"\n\n")
            assert daemon.process.poll() is None
            slow.send(body[5:])
            answer = slow.getresponse()
            assert (answer.status, json.loads(answer.read())) == (200, {"ok": True, "acquired": True})
        assert daemon.ended() == (0, "")
    assert not (staff.home / "daemon.json").exists()


@contextmanager
def listening(daemon: DaemonProcess) -> Iterator[http.client.HTTPResponse]:
    """A stream of events, past its first comment."""
    with closing(http.client.HTTPConnection(daemon.file.host, daemon.file.port, timeout=LONG)) as connection:
        connection.request("GET", "/api/events", headers=daemon.secret)
        with connection.getresponse() as response:
            assert [response.readline(), response.readline()] == [b": listening\n", b"\n"]
            yield response


def alive(staff: Staff, name: str) -> bool:
    return bool(staff.agents.alive(name))


def ended_by(end: str, daemon: DaemonProcess) -> None:
    if end == "killed":
        daemon.kill()
    else:
        assert daemon.end() == (0, "")


@pytest.mark.parametrize("end", ["killed", "told to end"])
def test_agents_outlive_the_daemon_and_the_next_one_finds_and_finishes_them(staff: Staff, end: str) -> None:
    with DaemonProcess(staff.home) as first:
        worker, hanger, chat = (staff.start(first, *who) for who in (("ada",), ("eve",), ("bob", "Interactive")))
        staff.agents.wait_for("up")
        staff.agents.step("eve")
        ended_by(end, first)
    assert (staff.home / "daemon.json").exists() is (end == "killed")
    assert alive(staff, "ada")
    assert alive(staff, "eve")

    with DaemonProcess(staff.home) as second:
        assert second.file.pid != first.file.pid
        assert [second.state(id_) for id_ in (worker, hanger, chat)] == ["Active"] * 3
        staff.agents.go("up")
        wait_until(lambda: second.state(worker) == "Retained", "the end of the worker")
        assert "ada.txt" in staff.saved()
        assert [second.state(id_) for id_ in (hanger, chat)] == ["Active"] * 2
        rows = second.ok("GET", "/api/sessions/history")["sessions"]
        assert [(row["session_id"], row["finalization_status"]) for row in rows] == [(worker, "completed")]
        assert second.ok("POST", f"/api/sessions/{hanger}/stop")["current_state"] == "Retained"
        assert staff.agents.asked == ["SIGTERM"]


def test_agents_that_end_while_no_daemon_runs_are_finished_by_the_next_one(staff: Staff) -> None:
    with DaemonProcess(staff.home) as first:
        id_ = staff.start(first, "ada")
        staff.agents.wait_for("up")
        first.kill()
    staff.agents.go("up")
    assert staff.agents.gone("ada")
    assert "ada.txt" not in staff.saved()

    with DaemonProcess(staff.home) as second:
        wait_until(lambda: second.state(id_) == "Retained", "the end")
        assert "ada.txt" in staff.saved()


def test_a_finalization_that_was_killed_in_the_middle_is_done_by_the_next_daemon_and_other_agents_go_on(staff: Staff) -> None:
    pushing, go = (staff.home.parent / name for name in ("pushing", "go"))
    hook = staff.app.path / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n: > '{pushing}'\nuntil [ -e '{go}' ]; do sleep 0.05; done\n")
    hook.chmod(0o755)
    with DaemonProcess(staff.home) as first:
        worker, hanger = staff.start(first, "ada"), staff.start(first, "eve")
        staff.agents.step("eve")
        staff.agents.wait_for("up")
        staff.agents.go("up")
        wait_until(pushing.exists, "the push")
        assert first.state(worker) == "Finalizing"
        first.kill()
    go.touch()

    with DaemonProcess(staff.home) as second:
        wait_until(lambda: second.state(worker) == "Retained", "the end of the worker")
        assert second.state(hanger) == "Active"
        assert alive(staff, "eve")
        (row,) = second.ok("GET", "/api/sessions/history")["sessions"]
        assert (row["session_id"], row["finalization_status"]) == (worker, "completed")
        second.ok("POST", f"/api/sessions/{hanger}/stop", {"force": True})
    assert "ada.txt" in staff.saved()


def test_a_daemon_killed_again_and_again_loses_nothing(staff: Staff) -> None:
    ids: list[str] = []
    for _ in range(4):
        with DaemonProcess(staff.home) as daemon, ThreadPoolExecutor(4) as pool:
            started = [pool.submit(attempt, lambda: staff.start(daemon, "bob", "Interactive")) for _ in range(4)]
            ids += [first for first in (one.result(LONG) for one in started[:1]) if first is not None]
            daemon.kill()
            ids += [one for one in (other.result(LONG) for other in started[1:]) if one is not None]

    with DaemonProcess(staff.home) as last:
        listed = {one["session_id"]: one for one in last.ok("GET", "/api/sessions")["sessions"]}
        assert set(ids) <= listed.keys()
        for id_, one in listed.items():
            assert one["current_state"] == "Active"
            assert staff.workspace(id_).is_dir()
            last.ok("POST", f"/api/sessions/{id_}/stop")
        assert last.ok("POST", "/api/sessions/cleanup", {"filter": "all"})["failed"] == {}
    left = sorted(name for name in os.listdir(staff.home / "sessions") if "hydrating" in name)
    assert left == []


def attempt(work: Callable[[], Any]) -> Any:
    """What it gives; None if the daemon did not live to answer."""
    try:
        return work()
    except (OSError, http.client.HTTPException):
        return None


# One home, one daemon ------------------------------------------------------------------------------------------------------------


def test_a_second_daemon_of_a_home_is_refused_and_the_first_goes_on(staff: Staff) -> None:
    with DaemonProcess(staff.home) as first:
        with DaemonProcess(staff.home) as second:
            code, _ = second.ended()
            assert (code, second.greeting["error"]["code"]) == (1, "DAEMON_RUNS")
            assert str(first.process.pid) in second.greeting["error"]["message"]
        assert first.ok("GET", "/health")["ok"] is True
        assert daemon_file.read(staff.home) == first.file


def test_of_many_daemons_started_at_once_one_runs(staff: Staff) -> None:
    with ThreadPoolExecutor(4) as pool:
        started = [*pool.map(lambda _: DaemonProcess(staff.home), range(4))]
    try:
        running = [one for one in started if one.greeting["ok"]]
        refused = [one.greeting["error"]["code"] for one in started if one not in running]
        assert (len(running), refused) == (1, ["DAEMON_RUNS"] * 3)
        assert daemon_file.read(staff.home) == running[0].file
    finally:
        for one in started:
            one.kill()


def test_commands_work_on_the_store_once_the_daemon_is_dead(staff: Staff) -> None:
    with DaemonProcess(staff.home) as daemon:
        id_ = staff.start(daemon, "ada", "Interactive")
        daemon.kill()

    ran = gittrix(staff.home, "member", "list", "--json")

    assert (ran.returncode, ran.stderr) == (0, b"")
    assert [one["session_id"] for one in json.loads(ran.stdout)["data"]] == [id_]


def test_a_port_that_is_taken_is_said_so(staff: Staff) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        ran = gittrix(staff.home, "serve", "--port", str(taken.getsockname()[1]))

    assert ran.returncode == 1
    assert b"--port" in ran.stderr
    assert not (staff.home / "daemon.json").exists()


def test_a_team_file_that_is_wrong_is_said_before_anything_listens(staff: Staff) -> None:
    (staff.home / "team.toml").write_text("[members.ada]\nkind = 'robot'\n")

    ran = gittrix(staff.home, "serve", "--port", "0")

    assert ran.returncode == 1
    assert b"members.ada.kind" in ran.stderr
    assert b"Traceback" not in ran.stderr
