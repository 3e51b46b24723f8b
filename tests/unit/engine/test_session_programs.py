"""The programs of a session: a home that they share and that stays, where they start, and what they are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_gittrix import World
from pytest_gittrix.errors import CapabilityMissing, InvalidInput, SessionExpired


@pytest.fixture
def world() -> Iterator[World]:
    with World.open(files={"app.py": "v1\n", "lib/util.py": "x = 1\n"}) as world:
        yield world


def test_the_home_of_a_session_is_there_again_when_it_is_resumed(world: World) -> None:
    session = world.start()
    with session.for_agent().programs(confine="off") as programs:
        programs.run(["sh", "-c", "echo mine > $HOME/note"], timeout=60)

    with world.gittrix.get_session(session.id).for_agent().programs(confine="off") as again:
        assert again.run(["sh", "-c", "cat $HOME/note"], timeout=60).stdout == b"mine\n"
        assert again.home == programs.home
    with session.for_agent().programs(confine="off", keep_home=False) as passing:
        assert passing.run(["sh", "-c", "ls $HOME"], timeout=60).stdout == b""
    assert not passing.home.exists()
    assert session.touched_files() == []

    session.discard()
    world.gittrix.sweep()
    assert not programs.home.exists()


def test_a_run_is_a_program_that_is_waited_for(world: World) -> None:
    agent = world.start().for_agent()

    ended = agent.run(["sh", "-c", "pwd; echo bad >&2; echo more"], confine="off", cwd="lib", merged=True, most_output=1000, timeout=60)

    assert ended.stdout.decode() == f"{agent.workspace_path}/lib\nbad\nmore\n"
    assert agent.run(["echo", "word"], confine="off", most_output=2, timeout=60).truncated
    for timeout in (0, -1):
        with pytest.raises(InvalidInput, match="no time"):
            agent.run(["true"], confine="off", timeout=timeout)
    for wrong in ([], "true", [""]):
        with pytest.raises(InvalidInput, match="no command"):
            agent.run(wrong, confine="off", cwd="lib")


def test_a_program_that_stays_works_in_the_workspace(world: World) -> None:
    agent = world.start().for_agent()
    with agent.programs(confine="auto") as programs, programs.start(["sh"], cwd="lib") as shell:
        shell.write(b"echo y > new.py; echo done\n")
        assert shell.stdout.read(60) == b"done\n"

    assert agent.touched_files() == ["lib/new.py"]


def test_a_program_that_stays_ends_with_its_programs(world: World) -> None:
    with world.start().for_agent().programs(confine="off") as programs:
        shell = programs.start(["sh", "-c", "while :; do sleep 0.02; done"])
        assert shell.poll() is None

    ended = shell.poll()
    assert ended is not None
    assert (ended.timed_out, ended.ended) == (True, None)


def test_programs_that_are_kept_for_a_session_run_no_more_once_it_has_ended(world: World) -> None:
    session = world.start()
    with session.for_agent().programs(confine="off") as programs:
        session.discard()

        for run in (programs.run, programs.start):
            with pytest.raises(SessionExpired):
                run(["true"])
    assert not {".use", ".lock"} & {*os.listdir(world.gittrix.store.directory(session.id))}


def test_a_session_that_has_ended_runs_no_programs(world: World) -> None:
    session = world.start()
    session.discard()

    with pytest.raises(SessionExpired):
        session.for_agent().programs(confine="off")


def test_a_lazy_workspace_runs_no_programs() -> None:
    with World.open(files={"app.py": "v1\n"}, workspace="lazy") as world, pytest.raises(CapabilityMissing, match="lazy"):
        world.start().for_agent().programs(confine="off")
