"""Crashes of anybody's code: at a named point, at the N-th call that changes a file, at all of them; and a disk that is full."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from support.crash import CRASH, NEW, OLD, needs_supervision, save_in_place

from pytest_gittrix import World, points
from pytest_gittrix.errors import Deadlock, InvalidInput, SessionNotFound
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.testing.faults.crash import Crashed, crash_at

# --- at a named point, in this process


def test_a_block_ends_where_it_passes_the_point(file: Path) -> None:
    after = False
    with crash_at("save:begun"):
        save_in_place(file)
        after = True

    assert file.read_text() == OLD
    assert not after


def test_a_crash_is_not_handled_by_code_that_handles_errors(file: Path) -> None:
    handled = []
    with crash_at("save:written"):
        try:
            save_in_place(file)
        except Exception as error:
            handled.append(error)

    assert handled == []
    assert not issubclass(Crashed, Exception)


def test_the_dead_pass_no_further_point(file: Path) -> None:
    survived = []
    with crash_at("save:begun"):
        try:
            save_in_place(file)
        finally:
            save_in_place(file)
            survived.append("the clean-up")

    assert (survived, file.read_text()) == ([], OLD)


def test_a_point_can_be_passed_some_times_before_the_crash(file: Path) -> None:
    turns = 0
    with crash_at("save:written", nth=3):
        while True:
            turns += 1
            save_in_place(file)

    assert turns == 3


def test_a_point_that_is_never_reached_fails_and_names_those_that_were(file: Path) -> None:
    with pytest.raises(Deadlock, match=r"(?s)Never reached: save:flushed.*passed: save:begun, save:written"):
        with crash_at("save:flushed"):
            save_in_place(file)


def test_an_error_in_the_block_is_not_hidden_by_the_crash_that_did_not_come() -> None:
    with pytest.raises(ZeroDivisionError):
        with crash_at("save:begun"):
            _ = 1 / 0


def test_points_are_free_again_after_a_crash(file: Path) -> None:
    with crash_at("save:begun"):
        save_in_place(file)
    save_in_place(file)

    assert file.read_text() == NEW


@pytest.mark.parametrize("nth", [0, -1])
def test_a_count_that_means_nothing_is_refused(nth: int) -> None:
    with pytest.raises(InvalidInput, match="nth"):
        CRASH.at("save:begun", lambda: None, nth=nth)
    with pytest.raises(InvalidInput, match="nth"), crash_at("save:begun", nth=nth):
        pass


# --- at a named point, in a fork


def test_a_fork_dies_at_the_point_and_tells_which_it_passed(file: Path) -> None:
    assert CRASH.at("save:written", lambda: save_in_place(file)) == ("save:begun", "save:written")
    assert file.read_text() == NEW


def test_a_fork_that_dies_cleans_nothing_up(file: Path) -> None:
    def save() -> None:
        try:
            save_in_place(file)
        finally:
            file.unlink()

    CRASH.at("save:begun", save)
    assert file.read_text() == OLD


def test_what_the_fork_started_dies_with_it(file: Path) -> None:
    def save() -> None:
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(["sleep", "600"], stdout=output)
        file.write_text(str(child.pid))
        points.reached("save:begun")

    CRASH.at("save:begun", save)
    child = int(file.read_text())
    assert not alive(child)


def alive(pid: int) -> bool:
    deadline = time.clock_gettime(time.CLOCK_MONOTONIC) + 60
    while time.clock_gettime(time.CLOCK_MONOTONIC) < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "ZX":
            return False
    return True


def test_a_fork_that_never_comes_there_is_an_error() -> None:
    with pytest.raises(Deadlock, match="Never reached: save:begun"):
        CRASH.at("save:begun", lambda: points.reached("save:other"))
    with pytest.raises(Deadlock, match="its time was up"):
        CRASH.at("save:begun", lambda: time.sleep(600), timeout=0.2)


def test_what_the_fork_raised_before_it_came_there_is_raised(file: Path) -> None:
    def save() -> None:
        raise SessionNotFound("there is none")

    with pytest.raises(SessionNotFound, match="there is none") as caught:
        CRASH.at("save:begun", save)
    assert "in save" in "".join(caught.value.__notes__)


def test_a_promotion_killed_at_any_of_its_points_is_active_or_promoted(tmp_path: Path) -> None:
    with World.open(tmp_path / "clean") as world:
        session = world.start()
        session.write("app.py", NEW)
        passed: list[str] = []
        with points.listening(passed.append):
            session.promote()

    ends = set()
    for number, point in enumerate(dict.fromkeys(passed)):
        with World.open(tmp_path / str(number)) as world:
            session = world.start()
            session.write("app.py", NEW)
            CRASH.at(point, session.promote)
            world.gittrix.recover()
            ends.add(world.gittrix.info(session.id).state)
            if world.gittrix.info(session.id).state == "active":
                session.promote()
            assert world.durable.read("app.py") == NEW.encode()
            assert len(world.durable.log()) == 2
    assert ends == {"active", "promoted"}


# --- what a fork brings back


def test_a_fork_brings_back_what_can_be_pickled() -> None:
    assert in_fork(lambda: {"a": [1, 2]}).value == {"a": [1, 2]}
    assert in_fork(lambda: lambda: None).value is None
    assert in_fork(lambda: os.kill(os.getpid(), signal.SIGTERM)).signal == signal.SIGTERM


def test_an_error_that_cannot_be_pickled_is_told_all_the_same() -> None:
    class Local(Exception):
        pass

    def fail() -> None:
        raise Local("only here")

    error = in_fork(fail).error
    assert "Local: only here" in str(error)


# --- at the N-th call


@needs_supervision
def test_a_function_is_killed_before_its_nth_call(file: Path) -> None:
    struck = CRASH.at_call(2, lambda: save_in_place(file), within=file.parent)

    assert struck.fired is not None
    assert (struck.killed, struck.fired.name, file.read_text()) == (True, "write", "")


@needs_supervision
def test_a_command_is_killed_before_the_nth_call_of_its_whole_tree(tmp_path: Path) -> None:
    CRASH.at_call(3, ["sh", "-c", "mkdir a; sh -c 'mkdir b'; mkdir c"], within=tmp_path, cwd=tmp_path)

    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@needs_supervision
@pytest.mark.parametrize(
    ("kind", "left"), [("torn:3", NEW[:3]), ("torn", NEW[:1]), ("short:3", NEW), ("ENOSPC", ""), ("sticky-EIO", ""), ("sticky EIO", "")]
)
def test_a_write_is_cut_short_or_fails(file: Path, kind: str, left: str) -> None:
    def save() -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)
        data = NEW.encode()
        while data:
            data = data[os.write(descriptor, data) :]

    CRASH.at_call(2, save, kind=kind, within=file.parent)
    assert file.read_text() == left


@needs_supervision
def test_a_strike_that_meets_nothing_is_an_error(file: Path) -> None:
    with pytest.raises(InvalidInput, match="kill met nothing at call 9: the program made 2"):
        CRASH.at_call(9, lambda: save_in_place(file), within=file.parent)
    with pytest.raises(InvalidInput, match="torn:1 met nothing"):
        CRASH.at_call(1, lambda: file.unlink(), kind="torn:1", within=file.parent)
    with pytest.raises(InvalidInput, match="env and cwd are for commands"):
        CRASH.at_call(1, lambda: None, cwd=file.parent)
