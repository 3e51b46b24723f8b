"""A launched agent's process may not decide for a person, whichever way it asks, and nothing that it asks for is logged as a person's."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.agent_processes import on_linux

from pytest_gittrix import World
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.engine.operations.requester import make_mark, on_behalf_of, require_person, sessions_of_requester
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import PersonRequired
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.os_level.process_tree import MARK, marks_above

pytestmark = on_linux

GITTRIX = (sys.executable, "-m", "pytest_gittrix.cli")
DECISIONS = [
    ("promote", "{id}"),
    ("session", "rebase", "{id}"),
    ("session", "discard", "{id}"),
    ("session", "evict", "{id}"),
    ("session", "extend", "{id}", "8h"),
    ("session", "relocate", "{id}", "/"),
    ("session", "finalize", "{id}", "--allow-secret=.env"),
]
# Each starts a program in another way: as it is, without the mark in its environment, and as an orphan in a session of its own.
WAYS = {
    "as it is": "exec {command} > {out}",
    "without its mark": "exec env -u " + MARK + " {command} > {out}",
    "as an orphan": "env -u " + MARK + " setsid sh -c 'sleep 0.2; {command} > {out}.new; mv {out}.new {out}' & exit 0",
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World.open(tmp_path / "world", files={"app.py": "1\n"}) as world:
        yield world


@pytest.fixture
def session(world: World) -> UserSession:
    session = world.start(task="change")
    session.write("app.py", "2\n")
    return session


def launch(world: World, session: UserSession, command: Sequence[str], directory: Path) -> None:
    """Start a command as the launchers start an agent of a session, with the variables that an unconfined one can find out."""
    root = Path(__file__).resolve().parents[3]
    start_agent(
        command,
        directory=directory / "agent",
        workspace=directory,
        environment={"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "HOME": str(directory), "GITTRIX_HOME": str(world.gittrix.home)},
        mark=make_mark(world.gittrix.store.root, session.id),
    )


def answer(file: Path) -> str:
    """What a file holds, once something is in it."""
    deadline = real_seconds() + 60
    while not file.exists() or not (text := file.read_text()).endswith("\n"):
        assert real_seconds() < deadline, "no answer"
        pause(0.02)
    return text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision[-2] if len(decision) == 2 else decision[1])
def test_its_commands_are_refused(decision: tuple[str, ...], way: str, world: World, session: UserSession, tmp_path: Path) -> None:
    out = tmp_path / "answer"
    command = " ".join((*GITTRIX, *(word.format(id=session.id) for word in decision), "--json"))
    before, head = world.gittrix.store.log(session.id).read(), world.durable.head()

    launch(world, session, ["sh", "-c", WAYS[way].format(command=command, out=out)], tmp_path)

    error = json.loads(answer(out))["error"]
    assert error["code"] == "PERSON_REQUIRED"
    assert session.id in error["message"]
    assert world.durable.head() == head
    assert [event for event in world.gittrix.store.log(session.id).read()[len(before) :] if event.actor == "human"] == []
    assert session.touched_files() == ["app.py"]


def test_its_python_is_refused_and_what_it_may_do_is_logged_as_an_agents(world: World, session: UserSession, tmp_path: Path) -> None:
    out = tmp_path / "answer"
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import json, os
            from pytest_gittrix import GitTrix, LocalDurable
            from pytest_gittrix.errors import GittrixError
            refused = []
            with GitTrix(LocalDurable({str(world.durable.path)!r}), home={str(world.gittrix.home)!r}) as engine:
                session = engine.get_session({session.id!r})
                for decide in (session.promote, session.discard, lambda: engine.evict(session.id)):
                    try:
                        decide()
                    except GittrixError as error:
                        refused.append(error.code)
                session.write("app.py", "3\\n")
                other = engine.start_session("started by the agent").id
            with open({str(out)!r} + ".new", "w") as file:
                file.write(json.dumps([refused, other]) + "\\n")
            os.rename({str(out)!r} + ".new", {str(out)!r})
            """
        )
    )
    before = len(world.gittrix.store.log(session.id).read())

    launch(world, session, [sys.executable, str(program)], tmp_path)

    refused, other = json.loads(answer(out))
    assert refused == ["PERSON_REQUIRED"] * 3
    events = world.gittrix.store.log(session.id).read()[before:] + world.gittrix.store.log(other).read()
    assert {event.type for event in events} >= {"session.write", "session.created"}
    assert {event.actor for event in events} <= {"agent", "system"}


def test_a_person_is_not_refused_nor_the_agent_of_another_store(world: World, session: UserSession, tmp_path: Path) -> None:
    root = world.gittrix.store.root
    foreign = start_agent(
        ["sleep", "60"],
        directory=tmp_path / "agent",
        workspace=tmp_path,
        environment={"PATH": os.environ["PATH"]},
        mark=make_mark(tmp_path / "another store", session.id),
    )
    assert foreign.owner is not None
    pid = foreign.owner.pid
    try:
        assert len([*marks_above(pid)]) >= 1
        with on_behalf_of(lambda: pid):
            assert sessions_of_requester(root) == []
            require_person(root, "promote")
    finally:
        foreign.stop(grace=0)

    assert sessions_of_requester(root) == []
    session.promote()
    assert world.durable.read("app.py") == b"2\n"


def test_whoever_is_served_counts_and_not_who_serves(world: World, session: UserSession, tmp_path: Path) -> None:
    launch(world, session, ["sh", "-c", f"echo $$ > {tmp_path / 'pid'}; exec sleep 60"], tmp_path)
    pid = int(answer(tmp_path / "pid"))
    try:
        with on_behalf_of(lambda: pid):
            assert sessions_of_requester(world.gittrix.store.root) == [session.id]
            with pytest.raises(PersonRequired, match=f"The agent of session {session.id} asked to promote"):
                session.promote()
            with on_behalf_of(lambda: None):
                require_person(world.gittrix.store.root, "promote")
    finally:
        os.kill(pid, 9)


def test_a_false_mark_does_not_take_the_true_one_away(world: World, session: UserSession, tmp_path: Path) -> None:
    false = make_mark(world.gittrix.store.root, "sess_of_a_leader")
    launch(world, session, ["sh", "-c", f"{MARK}={false} sh -c 'echo $$ > {tmp_path / 'pid'}; sleep 60; true'; true"], tmp_path)
    pid = int(answer(tmp_path / "pid"))
    try:
        with on_behalf_of(lambda: pid):
            assert sessions_of_requester(world.gittrix.store.root) == ["sess_of_a_leader", session.id]
    finally:
        os.kill(pid, 9)
