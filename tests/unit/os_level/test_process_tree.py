"""Ending processes: all that descends from one, as often looked for as needed, and no process of another one's number."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_gittrix.os_level import process_tree
from pytest_gittrix.os_level.process_tree import Process, ProcessTree, end_below, end_tree, table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@contextmanager
def family() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that leads a session, and the number of its child."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True) as parent:
        try:
            assert parent.stdout is not None
            yield parent, int(parent.stdout.readline())
        finally:
            end_tree(parent.pid)


def test_the_number_of_another_process_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    with family() as (_, child):
        monkeypatch.setattr(process_tree, "signal_process", lambda which, _: sent.append(which.pid))
        end_tree(child)  # neither a leader of a group nor a child of this process
        monkeypatch.undo()
    assert sent == []


def test_all_ends_at_the_first_look_if_there_is_no_time_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "KILL_WAIT", 0)
    with family() as (parent, _):
        end_below(parent.pid)
        assert parent.wait(60) == -signal.SIGKILL


def test_one_look_is_enough_where_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[dict[int, Process]] = []
    monkeypatch.setattr(process_tree, "table", lambda: looks.append(table()) or looks[-1])  # type: ignore[func-returns-value]

    ended = ProcessTree(mark="of no process").end()

    assert (ended.asked, ended.killed, ended.left) == ((), (), ())
    assert len(looks) == 1
