"""Promotions into one repository take turns, and who waits is told for whom."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cli import Cli
from support.engine import Site

from pytest_gittrix import points
from pytest_gittrix.errors import EvictionRace, InvalidInput
from pytest_gittrix.record.eventlog.events import Event

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to know a stopped process")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(tmp_path, monkeypatch, capfdbinary)


@contextmanager
def stopped(promote: Callable[[], object]) -> Iterator[int]:
    """A process that was stopped in the middle of a promotion, while it has its turn; ended if it did not go on."""

    def stop(name: str) -> None:
        if name == "promote:head-read":
            os.kill(os.getpid(), signal.SIGSTOP)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            with points.listening(stop):
                promote()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_promotion_that_waits_is_told_for_whom_and_goes_on_with_its_turn(site: Site) -> None:
    first, second = site.start("first"), site.start("second")
    first.write("app.py", "1\n")
    second.write("README.md", "2\n")
    told: list[Event] = []

    with stopped(first.promote) as pid:

        def go_on(event: Event) -> None:
            told.append(event)
            os.kill(pid, signal.SIGCONT)

        site.engine.on("promote.waiting", go_on)
        result = second.promote()

    (event,) = told
    assert (event.stream, event.seq) == (second.id, -1)
    assert f"process {pid} on" in event.data["holder"]
    assert f"which is stopped, for the promotion of session {first.id}, since 20" in event.data["holder"]
    assert site.durable.read("app.py") == b"1\n"
    assert site.durable.head() == result.sha


def test_after_its_time_a_promotion_fails_with_an_error_that_names_who_has_the_turn(site: Site) -> None:
    first = site.start("first")
    first.write("app.py", "1\n")
    impatient = site.another(queue_wait="10ms")
    second = impatient.start_session("second")
    second.write("README.md", "2\n")

    with stopped(first.promote) as pid:
        with pytest.raises(EvictionRace, match=rf"process {pid} on \S+, which is stopped, for the promotion of session {first.id}, since"):
            second.promote()

    assert site.state(second.id).state == "active"
    assert second.promote().sha


@pytest.mark.parametrize("wait", [-1, "soon", None, True])
def test_a_time_to_wait_is_a_duration(site: Site, wait: object) -> None:
    with pytest.raises(InvalidInput):
        site.another(queue_wait=wait)


def test_the_command_line_says_it_at_once_and_takes_the_time_from_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cli.start(), cli.start()
    cli.ok("session", "write", first, "app.py", stdin="1\n")
    cli.ok("session", "write", second, "README.md", stdin="2\n")

    with stopped(lambda: cli("promote", first)) as pid:
        monkeypatch.setenv("GITTRIX_QUEUE_WAIT", "2500ms")
        ran = cli("promote", second)

    assert ran.status == 1
    assert ran.err.startswith(f"gittrix: Waiting: {cli.home / 'locks'}")
    assert ran.err.count(f"process {pid} on") == 2
    monkeypatch.setenv("GITTRIX_QUEUE_WAIT", "soon")
    assert "GITTRIX_QUEUE_WAIT: " in cli.refused("promote", second)
