"""Killed, or refused by the disk, while a session is handed on, succeeded or forked: never two live ones, never none, nothing half.

A normal run plays faults at a sample of the calls; ``PYTEST_GITTRIX_SOAK=1`` at every one. Figures are printed (``pytest -rP``).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from support.bytes import changed, everything_below
from support.fault_sweep import (
    FAILURES,
    Durability,
    Operation,
    announcing_engine,
    log_of,
    log_writes,
    states_of,
    sweep_operation,
    sweep_recovery,
)
from support.scene import FIRST, SOAK, WORK, Scene, did, do, person

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError, SessionExpired
from pytest_gittrix.testing.faults.supervisor import supported
from pytest_gittrix.workspaces.kinds import WorkspaceKind

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))

PICTURE: Final = b"a picture"
SAID: Final = [("user_message", "look"), ("assistant_message", "I see")]


def workspace_of(scene: Scene, session: str) -> Path:
    return scene.home / "sessions" / session / "workspace"


def kept(scene: Scene) -> Path:
    """Where a scene remembers something of the state before, for its judge."""
    return scene.root / "before"


# Handing on -------------------------------------------------------------------------------------------------------------------


def worked_on(scene: Scene) -> None:
    """A session with files changed, a commit that its agent made with its own git, and an ignored file; and a copy of all that."""
    assert scene.session() == FIRST
    workspace = workspace_of(scene, FIRST)
    for command in (["add", "-A"], ["commit", "-qm", "by the agent"]):
        subprocess.run(["git", *command], cwd=workspace, env=person(scene.root / "person"), check=True)
    (workspace / "ignored.pyc").write_bytes(b"ignored")
    scene.clock.advance(seconds=1)
    shutil.copytree(workspace, kept(scene), symlinks=True)


def hand_on(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        try:
            print(engine.get_session(FIRST).handoff("go on", agent="Fig").id)
        except GittrixError as refusal:
            print(f"refused {refusal.outcome} {refusal.session}")
            raise


def judge_handoff(scene: Scene, printed: list[str]) -> str:
    states = states_of(scene)
    live = [state for state in states.values() if not state.ended]
    assert len(live) == 1, [(state.id, state.state) for state in states.values()]
    heir = live[0]
    assert (
        not printed
        or printed[0] in (heir.id, "refused None None" if heir.id == FIRST else f"refused unknown {heir.id}")
        or (heir.id == FIRST and printed[0].startswith("refused unknown"))
    )
    inherited = [event.data["path"] for event in log_of(scene, heir.id) if event.type == "session.write"]
    assert inherited == [*WORK]
    assert differing(kept(scene), workspace_of(scene, heir.id)) == set()  # the agent's commits and ignored files included
    if heir.id == FIRST:
        assert states.keys() == {FIRST}
        with scene.engine() as engine:
            child = engine.get_session(FIRST).handoff("go on", agent="Fig").id
        heir = states_of(scene)[child]
        word = "parent lives"
    else:
        word = "child lives"
    parent = states_of(scene)[FIRST]
    assert (parent.state, parent.outcome, parent.successor) == ("discarded", "handoff", heir.id)
    assert not parent.workspace_present
    assert not (scene.home / "sessions" / FIRST / "workspace").exists()
    assert (heir.task, heir.chain, heir.identity) == ("go on", FIRST, {"agent": "Fig"})
    with scene.engine() as engine:
        assert [one.id for one in engine.chain(FIRST)] == [FIRST, heir.id]
    assert scene.judge_session(heir.id) == "active"
    return word


def differing(before: Path, now: Path) -> set[str]:
    """The paths that are not as in a copy made before, which has times of its own."""
    copy, there = everything_below(before), everything_below(now)
    return changed(
        {path: (mode, 0, data) for path, (mode, _, data) in copy.items()},
        {path: (mode, 0, data) for path, (mode, _, data) in there.items()},
    )


# Going on after a crash -------------------------------------------------------------------------------------------------------


def crashed(scene: Scene) -> None:
    assert scene.session() == FIRST
    with scene.engine() as engine:
        engine.get_session(FIRST).discard("crash")
    scene.clock.advance(seconds=1)


def succeed(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        successor = engine.start_session("go on", parent=FIRST, agent="Fig")
        print(successor.id)
        do(successor)


def judge_succession(scene: Scene, printed: list[str]) -> str:
    states = states_of(scene)
    live = [state.id for state in states.values() if not state.ended]
    successor = states[FIRST].successor
    assert live == ([] if successor is None else [successor])
    assert not printed or printed == live
    with scene.engine() as engine:
        if successor is None:
            word = "none yet"
            successor = engine.start_session("go on", parent=FIRST).id
        else:
            word = "one lives"
        heir = engine.get_session(successor)
        do(heir)
        assert did(heir) == WORK
        assert states_of(scene)[successor].chain == FIRST
        with pytest.raises(SessionExpired, match="has the successor"):
            engine.start_session("go on", parent=FIRST)
        assert [one.id for one in engine.chain(FIRST) if one.state == "active" or one.id == FIRST] == [FIRST, successor]
    assert scene.judge_session(successor) == "active"
    return word


# Forking ----------------------------------------------------------------------------------------------------------------------


def talked(scene: Scene, kind: WorkspaceKind) -> None:
    """A session that talked, about something attached too, then went on; and a copy of all that is kept of it."""
    with scene.engine() as engine:
        session = engine.start_session("do it", workspace=kind)
        assert session.id == FIRST
        do(session)
        session.record("user_message", {"text": "look", "resources": [session.attach(PICTURE)]})
        session.record("assistant_message", {"text": "I see"})
        session.write("app.py", "later\n")
        session.record("user_message", {"text": "later"})
    shutil.copytree(scene.home / "sessions" / FIRST, kept(scene), symlinks=True)


def fork_of_then(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        print(fork(engine.get_session(FIRST)).id)


def fork(session: UserSession) -> UserSession:
    """A fork after what was said last before the file changed once more."""
    (answer,) = session.history(["assistant_message"])
    return session.fork(answer.seq, summary=True)


def judge_fork(scene: Scene, printed: list[str]) -> str:
    assert differing(kept(scene), scene.home / "sessions" / FIRST) <= {".lock"}
    states = states_of(scene)
    live = [state.id for state in states.values() if not state.ended and state.id != FIRST]
    assert not printed or printed == live
    assert len(live) <= 1
    for state in states.values():
        if state.ended:
            assert (state.state, state.workspace_present) == ("discarded", False)
            assert log_of(scene, state.id)[-1].data in ({"state": "discarded", "reason": "its start never finished"}, {})
    with scene.engine() as engine:
        child = live[0] if live else fork(engine.get_session(FIRST)).id
        judge_child(engine.get_session(child))
        judge_child(fork(engine.get_session(FIRST)))
    assert scene.judge_session(child) == "active"
    return "child lives" if live else "none yet" if len(states) == 1 else "never started"


def judge_child(child: UserSession) -> None:
    """It is all there: what was said, what is attached, the files."""
    assert did(child) == WORK
    said = child.history(["user_message", "assistant_message"])
    assert [(event.type, event.data["text"]) for event in said] == SAID
    assert child.attached(said[0].data["resources"][0]) == PICTURE
    (left_out,) = child.history(["branch_summary"])
    assert left_out.data["summary"] == "Left out: 1 user message."


OPERATIONS: Final = {
    "handoff": Operation(worked_on, hand_on, judge_handoff, 3),
    "succession": Operation(crashed, succeed, judge_succession, 12),
    "fork": Operation(lambda scene: talked(scene, "clone"), fork_of_then, judge_fork, 12),
    "lazy-fork": Operation(lambda scene: talked(scene, "lazy"), fork_of_then, judge_fork, 12),
}
RECOVERY_KINDS: Final = ("kill", "ENOSPC", "sticky EIO") if SOAK else ("kill",)
DURABILITIES: Final[list[Durability]] = ["fast", "full"] if SOAK else ["fast"]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kill_at_any_call_is_survived(place: Path, name: str, durability: Durability) -> None:
    assert sweep_operation(OPERATIONS[name], place, durability=durability, points=OPERATIONS[name].some(), label=name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_write_that_was_torn_is_survived(place: Path, name: str) -> None:
    assert sweep_operation(OPERATIONS[name], place, kinds=("torn",), points=log_writes(OPERATIONS[name], place), label=name)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", FAILURES if SOAK else FAILURES[:1] + FAILURES[-1:])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failing_disk_is_a_typed_error_and_harms_nothing(place: Path, name: str, kind: str, durability: Durability) -> None:
    assert sweep_operation(OPERATIONS[name], place, kinds=(kind,), durability=durability, points=OPERATIONS[name].some(3), label=name)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kill_of_its_recovery_is_survived(place: Path, name: str) -> None:
    assert sweep_recovery(OPERATIONS[name], place, kinds=RECOVERY_KINDS, label=name)
