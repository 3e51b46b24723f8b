"""A run of an agent is repeated up to an exchange, and goes another way from there on: with the files and the answers of then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import coding_agent

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.answers.script import call, say, stop
from pytest_gittrix.model.tapes.player import TapeMismatch
from pytest_gittrix.testing.world import World

AGENT = Path(coding_agent.__file__)


@pytest.fixture
def world() -> Iterator[World]:
    with World.open(files={"app.py": "v1\n"}) as world:
        world.model.keep_content = True
        world.model.script(call("bash", command="echo one >> app.py"), call("bash", command="echo two > new.py; ls"), stop())
        yield world


def worked(world: World, session: UserSession) -> int:
    """Let the agent, a program, work in a session; gives its exit status."""
    environment = {**os.environ, **world.model.env(session.id)}
    return subprocess.run(
        [sys.executable, AGENT], cwd=session.workspace_path, env=environment, capture_output=True, timeout=120, check=False
    ).returncode


@pytest.fixture
def parent(world: World) -> UserSession:
    """A session in which the agent asked three times."""
    session = world.start()
    assert worked(world, session) == 0
    world.model.check()
    return session


def exchanges(session: UserSession) -> list[int]:
    return [event.seq for event in session.history(["model.exchange"])]


def test_a_fork_at_each_exchange_has_the_files_of_its_moment(world: World, parent: UserSession) -> None:
    forks = [parent.fork(seq) for seq in exchanges(parent)]

    assert [one.touched_files() for one in forks] == [[], ["app.py"], ["app.py", "new.py"]]
    assert [one.read("app.py") for one in forks] == [b"v1\n", b"v1\none\n", b"v1\none\n"]


def test_a_fork_after_an_exchange_whose_files_were_not_saved_is_refused(world: World) -> None:
    session = world.start()
    world.model.keep_content = False
    assert worked(world, session) == 0
    session.checkpoint()

    with pytest.raises(InvalidInput, match=r"The files as they were after event . were not saved"):
        session.fork(exchanges(session)[1])


def test_two_models_go_on_from_one_state(world: World, parent: UserSession) -> None:
    seen = []
    for name in ("first", "second"):
        world.model.script(call("bash", command=f"cat app.py; echo {name} > way"), say("Done."))
        child = world.model.fork(parent, exchanges(parent)[1])
        assert worked(world, child) == 0
        world.model.check()
        seen.append({path: child.read(path) for path in child.touched_files()})
        assert [event.data.get("origin") for event in child.history(["model.exchange"])] == ["tape", None, None]

    assert seen == [{"app.py": b"v1\none\n", "way": b"first\n"}, {"app.py": b"v1\none\n", "way": b"second\n"}]
    assert parent.touched_files() == ["app.py", "new.py"]


def test_a_fork_is_forked_again(world: World, parent: UserSession) -> None:
    world.model.script(call("bash", command="echo other > way"), say("Done."))
    child = world.model.fork(parent, exchanges(parent)[1])
    worked(world, child)
    world.model.check()
    world.model.script(say("Nothing more."))
    grandchild = world.model.fork(child)

    assert worked(world, grandchild) == 0
    world.model.check()
    assert grandchild.touched_files() == ["app.py", "way"]
    assert grandchild.info().fork_root == parent.id


def test_at_the_first_exchange_all_is_answered_anew(world: World, parent: UserSession) -> None:
    world.model.script(say("Nothing."))
    child = world.model.fork(parent, exchanges(parent)[0])

    assert worked(world, child) == 0
    world.model.check()
    assert child.touched_files() == []


def test_a_tape_answers_what_follows(world: World, parent: UserSession, tmp_path: Path) -> None:
    world.model.script(call("bash", command="echo one >> app.py"), call("bash", command="echo taped > way"), say("Taped."))
    world.model.tape(tmp_path / "other.jsonl", "rewrite")
    assert worked(world, world.start()) == 0
    world.model.check()
    child = world.model.fork(parent, exchanges(parent)[1], model=str(tmp_path / "other.jsonl"))

    assert worked(world, child) == 0
    world.model.check()
    assert child.read("way") == b"taped\n"


def test_an_agent_that_does_something_else_before_the_exchange_is_told(world: World, parent: UserSession) -> None:
    child = world.model.fork(parent, exchanges(parent)[1])
    child.write("app.py", "v1, changed\n")
    with pytest.raises(TapeMismatch, match=r"differ from those at exchange 2 of session .*: app\.py"):
        assert worked(world, child) != 0
        world.model.check()


def test_an_agent_that_ends_before_the_exchange_is_told(world: World, parent: UserSession) -> None:
    world.model.fork(parent, exchanges(parent)[2])

    with pytest.raises(TapeMismatch, match="0 of 2 exchanges before it were asked for"):
        world.model.check()


def test_what_no_run_can_be_forked_at_is_refused(world: World, parent: UserSession) -> None:
    listed = ", ".join(map(str, exchanges(parent)))
    with pytest.raises(InvalidInput, match=r"Event 0 of session .* is no exchange") as refused:
        world.model.fork(parent, 0)
    assert refused.value.fix == f"Its exchanges are the events {listed}."
    with pytest.raises(InvalidInput, match="has no exchange with a model"):
        world.model.fork(world.start())

    world.model.keep_content = False
    world.model.script(say("Nothing."))
    session = world.start()
    worked(world, session)
    with pytest.raises(InvalidInput, match=r"The contents of exchange . of session .* were not kept"):
        world.model.fork(session)


def test_a_session_that_is_over_is_forked_where_its_run_began_at_the_baseline(world: World, parent: UserSession) -> None:
    at = exchanges(parent)[1]
    parent.promote()
    world.model.script(call("bash", command="echo late > way"), say("Done."))
    child = world.model.fork(parent, at)

    assert worked(world, child) == 0
    world.model.check()
    assert child.touched_files() == ["app.py", "way"]
