"""Killed, or refused by the disk, while something is recorded, attached, kept or indexed: what was announced is there, the rest goes on.

A normal run plays faults at a sample of the calls; ``PYTEST_GITTRIX_SOAK=1`` at every one. Figures are printed (``pytest -rP``).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from support.fault_sweep import (
    FAILURES,
    Durability,
    Operation,
    announcing_engine,
    check_index,
    check_store,
    log_of,
    log_writes,
    sweep_operation,
    sweep_recovery,
)
from support.scene import FIRST, SOAK, WORK, Scene, Scenes, did, one_session

from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import GittrixError, TurnBusy
from pytest_gittrix.record.store.index import SMALL, Index
from pytest_gittrix.testing.faults.supervisor import KillAt, supervise_function, supported

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))

PICTURE: Final = b"a picture"
CALL: Final = {"call_id": "1", "name": "read", "args": {}}


# One log ----------------------------------------------------------------------------------------------------------------------


def record(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        session = engine.get_session(FIRST)
        name = session.attach(PICTURE)
        print(f"attached {name}")
        session.record("user_message", {"text": "look", "resources": [name]})
        session.record("tool_call", CALL)
        session.record("tool_result", {"call_id": "1", "ok": True})
        session.record("assistant_message", {"text": "I see"})


def judge_record(scene: Scene, printed: list[str]) -> str:
    with scene.engine() as engine:
        session = engine.get_session(FIRST)
        said = session.history(["user_message", "tool_call", "tool_result", "assistant_message"])
        names = [name for event in said for name in event.data.get("resources", ())]
        for name in [*names, *(line.removeprefix("attached ") for line in printed)]:
            assert session.attached(name) == PICTURE
        name = session.attach(PICTURE)
        session.record("user_message", {"text": "again", "resources": [name]})
        assert session.attached(name) == PICTURE
        assert session.history()[-1].data == {"text": "again", "resources": [name]}
    assert scene.judge_session(FIRST) == "active"
    return f"{len(said)} of 4"


def record_again(scene: Scene) -> None:
    """What was refused is tried once more, at once and with the same objects."""
    with announcing_engine(scene) as engine:
        session = engine.get_session(FIRST)
        for number in range(4):
            text = {"text": f"{number}"}
            try:
                session.record("user_message", text)
            except GittrixError:
                session.record("user_message", text)


def judge_record_again(scene: Scene, _told: list[str]) -> str:
    said = [event.data["text"] for event in log_of(scene, FIRST) if event.type == "user_message"]
    assert [*dict.fromkeys(said)] == ["0", "1", "2", "3"]
    assert len(said) <= 5  # whether the disk kept what it could not sync, nobody knows
    assert scene.judge_session(FIRST) == "active"
    return f"{len(said)} recorded"


def checkpoint(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        print(engine.get_session(FIRST).checkpoint())


def judge_checkpoint(scene: Scene, printed: list[str]) -> str:
    kept = [event for event in log_of(scene, FIRST) if event.type == "workspace.kept"]
    assert not printed or printed == [event.data["tree"] for event in kept]
    with scene.engine() as engine:
        session = engine.get_session(FIRST)
        session.write("app.py", "later\n")
        for event in kept:
            assert did(session.fork(event.seq)) == WORK
        tree = session.checkpoint()
        session.write("app.py", WORK["app.py"] or b"")
        assert did(session.fork(next(event.seq for event in session.history() if event.data.get("tree") == tree))) == {
            **WORK,
            "app.py": b"later\n",
        }
    assert scene.judge_session(FIRST) == "active"
    return "kept" if kept else "not kept"


def lost_turn(scene: Scene) -> None:
    """A turn's process was killed, and left a call without an answer."""
    one_session(scene)
    with scene.engine(init=False) as engine:
        recorder = engine.get_session(FIRST)._recorder
        with recorder.leased():
            recorder.append("turn.started", {"turn": "t9", "runs": "process"})
            recorder.append("tool_call", CALL)


def take_turn(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        turn = engine.get_session(FIRST).start_turn(_talk, runs="thread")
        assert turn.wait(60)
        print(turn.status)


def _talk(context: TurnContext) -> None:
    context.record("user_message", {"text": "look"})
    context.session.write("app.py", WORK["app.py"] or b"")
    context.record("tool_call", {**CALL, "call_id": "2"})


def judge_turn(scene: Scene, printed: list[str]) -> str:
    ended = [event.data["status"] for event in log_of(scene, FIRST) if event.type == "turn.ended"]
    assert printed != ["done"] or ended == ["lost", "done"] or ended == ["lost"]
    with scene.engine() as engine:
        session = engine.get_session(FIRST)
        turn = session.start_turn(lambda context: context.record("assistant_message", {"text": "I see"}), runs="thread")
        assert turn.wait(60)
        assert (turn.status, turn.error) == ("done", None)
        state = engine.store.load(FIRST)
        assert (state.turn, state.calls) == (None, {})
        answers = [event.data["call_id"] for event in session.history(["tool_result"])]
        assert answers == sorted(set(answers))
    assert scene.judge_session(FIRST) == "active"
    return ", ".join(ended) or "still lost"


def take_a_step(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        session = engine.get_session(FIRST)
        session.identify(agent="Toast", rig="gastown")
        with session.step("build", molecule_id="gt-1"):
            session.record("assistant_message", {"text": "built"})


def judge_step(scene: Scene, _told: list[str]) -> str:
    log = log_of(scene, FIRST)
    identified = any(event.type == "session.identified" for event in log)
    steps = [event.type for event in log if event.type.startswith("step.")]
    assert steps == ["step.started", "step.completed"][: len(steps)]
    with scene.engine() as engine:
        assert [one.id for one in engine.query(agent="Toast", rig="gastown")] == [FIRST] * identified
        with engine.get_session(FIRST).step("test"):
            assert engine.store.load(FIRST).identity["step_ref"] == "test"
        # One that was never completed goes on after those that were taken within it.
        assert engine.store.load(FIRST).identity.get("step_ref") == ("build" if steps == ["step.started"] else None)
    assert scene.judge_session(FIRST) == "active"
    return ", ".join(["identified"] * identified + steps) or "nothing"


# The index --------------------------------------------------------------------------------------------------------------------


def many(scene: Scene) -> None:
    """So many sessions that their index is a file, which is not there yet: one lives, the others ended long ago."""
    one_session(scene)
    with scene.engine(init=False) as engine:
        engine.get_session(FIRST).identify(agent="Toast")
        add_records(engine, range(SMALL))
    assert not (scene.home / "sessions" / "index.sqlite").exists()


def add_records(engine: GitTrix, numbers: range) -> None:
    """Sessions of which only the record is left."""
    events = engine.store.log(FIRST).read()
    for number in numbers:
        id_ = f"old-{number}"
        engine.store.create(id_)
        log = engine.store.log(id_)
        for event in events:
            log.append(event.type, event.data, ts=event.ts)
        log.append("session.ended", {"state": "discarded"}, ts=events[-1].ts)
        log.append("workspace.removed", {}, ts=events[-1].ts)


def indexed(scene: Scene) -> None:
    """Many sessions with an index, and since then some came, some went and one changed."""
    many(scene)
    with scene.engine(init=False) as engine:
        assert len(engine.list_sessions()) == SMALL + 1
        add_records(engine, range(SMALL, SMALL + 5))
        for number in range(3):
            shutil.rmtree(engine.store.directory(f"old-{number}"))
        engine.get_session(FIRST).identify(rig="gastown")
    assert (scene.home / "sessions" / "index.sqlite").exists()


def look(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        engine.get_session(FIRST).record("user_message", {"text": "look"})
        print("listed", *sorted(one.id for one in engine.list_sessions()))
        print("found", *sorted(one.id for one in engine.query(agent="Toast")))
        print("live", *(one.id for one in engine.list_sessions("active")))


def rebuild(scene: Scene) -> None:
    with scene.engine(init=False) as engine:
        index = Index(engine.store)
        index.rebuild()
        print("listed", *sorted(row.id for row in index.rows()))
        index.close()


def judge_look(scene: Scene, printed: list[str]) -> str:
    with scene.engine() as engine:
        ids = engine.store.ids()
        answers = {f"listed {' '.join(sorted(ids))}", f"found {' '.join(sorted(ids))}", f"live {FIRST}"}
        assert set(printed) <= answers
        assert sorted(one.id for one in engine.list_sessions()) == sorted(ids)
        assert [one.id for one in engine.query(work_unit="nobody's")] == []
        engine.get_session(FIRST).identify(work_unit="gt-1")
        assert [one.id for one in engine.query(work_unit="gt-1")] == [FIRST]
        check_index(engine)
    return "answered" if printed else "not answered"


OPERATIONS: Final = {
    "record": Operation(one_session, record, judge_record, 4),
    "checkpoint": Operation(one_session, checkpoint, judge_checkpoint),
    "turn": Operation(lost_turn, take_turn, judge_turn),
    "step": Operation(one_session, take_a_step, judge_step),
    "first-index": Operation(many, look, judge_look, 24),
    "index": Operation(indexed, look, judge_look, 12),
    "rebuilt-index": Operation(indexed, rebuild, judge_look, 24),
}
RECOVERY_KINDS: Final = ("kill", "ENOSPC", "sticky EIO") if SOAK else ("kill",)
DURABILITIES: Final[list[Durability]] = ["fast", "full"] if SOAK else ["fast"]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kill_at_any_call_is_survived(place: Path, name: str, durability: Durability) -> None:
    assert sweep_operation(OPERATIONS[name], place, durability=durability, points=OPERATIONS[name].some(), label=name)


@pytest.mark.parametrize("name", ["record", "checkpoint", "turn", "step", "index"] if SOAK else ["record", "turn"])
def test_a_write_that_was_torn_is_survived(place: Path, name: str) -> None:
    assert sweep_operation(OPERATIONS[name], place, kinds=("torn",), points=log_writes(OPERATIONS[name], place), label=name)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", FAILURES if SOAK else FAILURES[:1] + FAILURES[-1:])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failing_disk_is_a_typed_error_and_harms_nothing(place: Path, name: str, kind: str, durability: Durability) -> None:
    assert sweep_operation(OPERATIONS[name], place, kinds=(kind,), durability=durability, points=OPERATIONS[name].some(3), label=name)


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO"])
def test_what_a_disk_refused_once_can_be_recorded_at_the_next_try(place: Path, kind: str) -> None:
    operation = Operation(one_session, record_again, judge_record_again)
    assert sweep_operation(operation, place, kinds=(kind,), durability="full", points=operation.some(), label="record again")


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "index" in name])
def test_a_kill_of_its_recovery_is_survived(place: Path, name: str) -> None:
    assert sweep_recovery(OPERATIONS[name], place, kinds=RECOVERY_KINDS, label=name)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "index" not in name])
def test_its_kill_leaves_a_recovery_at_most_a_temporary_file_to_remove(place: Path, name: str) -> None:
    assert sweep_recovery(OPERATIONS[name], place, label=name) <= 1


# Beside others ----------------------------------------------------------------------------------------------------------------

# Does what it is told, so many times, and says what came of each.
PEER: Final = """
    import sys
    from pytest_gittrix.clock import FrozenClock
    from pytest_gittrix.errors import GittrixError, TurnBusy
    from pytest_gittrix.engine.engine import GitTrix

    root, session_id, what = sys.argv[1:]
    number = 0

    def say(speaker):
        return speaker.record("user_message", {"text": f"peer {number}"}).seq

    def take_turn(session):
        while True:
            try:
                turn = session.start_turn(say, runs="thread")
            except TurnBusy:
                continue
            assert turn.wait(60)
            assert turn.error is None, turn.error
            return turn.value

    with GitTrix(f"{root}/durable", home=f"{root}/home", clock=FrozenClock(), sweep_interval=None, durability="fast") as engine:
        session = engine.get_session(session_id)
        for line in sys.stdin:
            for _ in range(int(line)):
                print(say(session) if what == "record" else take_turn(session), flush=True)
                number += 1
"""


@contextmanager
def peer(scene: Scene, what: str) -> Iterator[Callable[[int], None]]:
    """Another process that works on the first session; gives what tells it how often. It must have done all of that at the end."""
    command = [sys.executable, "-c", textwrap.dedent(PEER), str(scene.root), FIRST, what]
    asked = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None

        def ask(times: int) -> None:
            nonlocal asked
            asked += times
            assert process.stdin is not None
            process.stdin.write(f"{times}\n")
            process.stdin.flush()

        yield ask
        printed, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
    texts = {event.seq: event.data["text"] for event in log_of(scene, FIRST) if event.type == "user_message"}
    assert [texts[int(seq)] for seq in printed.split()] == [f"peer {number}" for number in range(asked)]


def say_much(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        session = engine.get_session(FIRST)
        for number in range(20):
            session.record("assistant_message", {"text": f"{number}"})


def take_turns(scene: Scene) -> None:
    with announcing_engine(scene) as engine:
        session = engine.get_session(FIRST)
        for _ in range(10):
            with suppress(TurnBusy):
                assert session.start_turn(_talk, runs="thread").wait(60)


@pytest.mark.parametrize(("what", "act"), [("record", say_much), ("turn", take_turns)])
def test_who_is_killed_beside_another_keeps_it_from_nothing(place: Path, what: str, act: Callable[[Scene], None]) -> None:
    scene = Scenes(place, Scene).next()
    one_session(scene)
    killed = 0
    with peer(scene, what) as ask:
        ask(1)
        for at in range(12, 72, 1 if SOAK else 5):
            ask(3)
            struck = supervise_function(lambda: act(scene), fault=KillAt(at), within=scene.root)
            assert struck.killed
            printed = [line.split() for line in struck.stdout.decode().splitlines()]
            ask(1)
            log = log_so_far(scene)
            assert [log[int(seq)] for _, _, seq, _ in printed] == [type_ for _, _, _, type_ in printed]
            killed += 1
    print(f"{what} beside another: killed {killed}, the other went on {killed} times")
    check_store(scene)
    assert scene.judge_session(FIRST) == "active"


def log_so_far(scene: Scene) -> list[str]:
    """The types of the events of the first session, while another process adds to them."""
    with scene.engine(init=False) as engine:
        return [event.type for event in engine.store.log(FIRST).read()]
