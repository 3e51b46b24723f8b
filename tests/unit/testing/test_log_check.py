"""The checker of logs: silent about sound ones, and each fault that is planted has its line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from support.engine import open_site

from pytest_gittrix.engine.operations.conversation import orphan_result
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.testing.scenarios.log_check import event_problems
from pytest_gittrix.testing.scenarios.log_kit import LogKit

LONG = 60.0
LINE = {"parent": "sess_parent", "relation": "handoff", "chain": "sess_first", "root": "sess_parent"}
FORK = {**LINE, "relation": "fork", "chain": "sess_me", "at_seq": 4}

Plant = tuple[str, Mapping[str, Any]]


@pytest.fixture
def log(tmp_path: Path) -> LogKit:
    """One without events."""
    return LogKit(tmp_path, "sess_me")


def call(id: str = "c1") -> Plant:
    """A tool call."""
    return "tool_call", {"call_id": id, "name": "shell", "args": {}}


def result(id: str = "c1") -> Plant:
    """A genuine answer."""
    return "tool_result", {"call_id": id, "ok": True}


def synthetic(id: str = "c1") -> Plant:
    """The answer of an orphan."""
    return "tool_result", orphan_result(id, "shell", "interrupt")


def started(turn: str) -> Plant:
    """The start of a turn."""
    return "turn.started", {"turn": turn, "runs": "thread"}


def over(turn: str) -> Plant:
    """The end of a turn."""
    return "turn.ended", {"turn": turn, "status": "done"}


def ended(**more: str) -> Plant:
    """The end of the session."""
    return "session.ended", {"state": "discarded", **more}


def handing(child: str = "sess_child") -> Plant:
    """The start of a handoff."""
    return "handoff.intent", {"child": child}


def planted(log: LogKit, *events: Plant) -> list[str]:
    """What is found in a sound log of five events, with others after them that are stored whether they can happen or not."""
    log.append("user_message", text="hello")
    log.append("session.write", path="app.py", op="write")
    log.append("assistant_message", text="hello")
    for type_, data in events:
        log.put(type_, data, legal=False)
    return log.invariants()


@pytest.mark.parametrize(
    "events",
    [
        [],
        [call(), result(), call(), result()],
        [call(), call("c2"), result("c2"), result()],
        [call()],
        [call(), synthetic(), result()],
        [call(), synthetic(), synthetic(), result()],
        [started("t5"), call(), over("t5"), synthetic(), started("t9"), over("t9")],
        [ended(outcome="done"), ("workspace.removed", {}), ("log.recovered", {"dropped_bytes": 3})],
        [
            handing(),
            ("handoff.aborted", {"child": "sess_child", "reason": "no"}),
            handing("sess_b"),
            ended(outcome="handoff", successor="sess_b"),
        ],
        [ended(outcome="crash"), ("session.succeeded", {"child": "sess_a"}), ("succession.aborted", {"child": "sess_a", "reason": "no"})],
        [("promote.done", {"commit": "1", "ref": "r", "branch": "b", "strategy": "commit"}), ("session.ended", {"state": "promoted"})],
    ],
)
def test_a_sound_log_has_no_problems(log: LogKit, events: list[Plant]) -> None:
    assert planted(log, *events) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([result()], "event 5, tool_result: answers 'c1', which is no call"),
        ([call(), result(), result()], "event 7, tool_result: answers 'c1' a second time; event 6 did"),
        ([call(), result(), synthetic()], "event 7, tool_result: answers 'c1' a second time; event 6 did"),
        ([call(), call()], "event 6, tool_call: calls 'c1' again, which has no answer yet"),
        ([call(), call("a"), started("t7")], "event 7, turn.started: a turn begins while 'a', 'c1' has no answer"),
        ([started("t5"), started("t6")], "event 6, turn.started: turn t5 is still open"),
        ([over("t5")], "event 5, turn.ended: ends turn t5, and none is open"),
        ([started("t5"), over("t6")], "event 6, turn.ended: ends turn t6, and t5 is open"),
        ([ended(), ("user_message", {"text": "late"})], "event 6, user_message: comes after the session ended (event 5)"),
        ([ended(), ended()], "event 6, session.ended: the session had ended (event 5)"),
        ([ended(outcome="handoff")], "event 5, session.ended: was handed on without a successor"),
        ([ended(successor="sess_b")], "event 5, session.ended: names the successor sess_b, and was not handed on"),
        (
            [handing(), ended(outcome="handoff", successor="sess_b")],
            "event 6, session.ended: was handed on to sess_b, which no handoff.intent named",
        ),
        ([handing(), ended(outcome="done")], "event 6, session.ended: the handoff to sess_child is still open"),
        ([handing("sess_me"), ended(outcome="handoff", successor="sess_me")], "event 6, session.ended: it is its own successor"),
        ([handing(), handing("sess_b")], "event 6, handoff.intent: the handoff to sess_child is still open"),
        ([("handoff.aborted", {"child": "sess_b", "reason": "no"})], "event 5, handoff.aborted: no handoff to sess_b is open"),
        (
            [ended(outcome="done"), ("session.succeeded", {"child": "sess_b"})],
            "event 6, session.succeeded: only a session that crashed has a successor that it was not handed on to",
        ),
        (
            [ended(outcome="crash"), ("session.succeeded", {"child": "sess_a"}), ("session.succeeded", {"child": "sess_b"})],
            "event 7, session.succeeded: its successor is sess_a",
        ),
        (
            [ended(outcome="crash"), ("succession.aborted", {"child": "sess_b", "reason": "no"})],
            "event 6, succession.aborted: sess_b is not its successor",
        ),
        ([("session.imported", {"metadata": {}})], "event 5, session.imported: is a second birth"),
    ],
)
def test_a_planted_fault_is_found_and_nothing_else(log: LogKit, events: list[Plant], problem: str) -> None:
    assert planted(log, *events) == [problem]


@pytest.mark.parametrize("lineage", [LINE, {**LINE, "relation": "crash"}, FORK, {**FORK, "said": 2}])
def test_sound_lineages_have_no_problems(log: LogKit, lineage: Mapping[str, Any]) -> None:
    log.put("session.created", {"lineage": lineage}, legal=False)

    assert log.invariants() == []


@pytest.mark.parametrize(
    ("lineage", "problem"),
    [
        ({"parent": "sess_parent"}, "its lineage lacks relation, chain, root"),
        ({**LINE, "relation": "cousin"}, "its relation is 'cousin', none of handoff, crash, fork"),
        ({**LINE, "parent": "sess_me"}, "it is its own parent"),
        ({**LINE, "chain": "sess_me"}, "its chain is its own id, and it has a parent"),
        ({**LINE, "root": "sess_me"}, "its root is itself, and it has a parent"),
        ({**LINE, "at_seq": 3}, "it is no fork, and its lineage says after which event it was made"),
        ({**FORK, "chain": "sess_first"}, "a fork begins a line of its own"),
        ({**FORK, "at_seq": None}, "it is a fork, and its lineage does not say after which event"),
    ],
)
def test_a_planted_fault_of_a_lineage_is_found(log: LogKit, lineage: Mapping[str, Any], problem: str) -> None:
    log.put("session.created", {"lineage": lineage}, legal=False)

    assert log.invariants() == [f"event 0, session.created: {problem}"]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda log: log.truncate(-1), "bytes of an event that was cut short"),
        (lambda log: log.garbage(4), "line 4, byte "),
        (lambda log: log.duplicate(3), "Its seq is 3, and 4 comes next"),
        (lambda log: log.drop(3), "Its seq is 4, and 3 comes next"),
        (lambda log: log.unknown_type(), "event 20, session.exploded: is not in the vocabulary"),
        (lambda log: log.flip(30), "line 1, byte 0: "),
        (lambda log: log.truncate(0), "there is no event"),
        (lambda log: log.drop(0), "is no birth"),
    ],
)
def test_every_way_to_damage_a_log_is_found(log: LogKit, damage: Callable[[LogKit], None], problem: str) -> None:
    log.build(20)
    assert log.invariants() == []

    damage(log)

    assert problem in "\n".join(log.invariants())


def test_a_log_of_another_version_is_said_to_be_one(log: LogKit) -> None:
    log.build(3)
    whole = log.path.read_bytes().splitlines(keepends=True)
    body = whole[2].rpartition(b',"crc"')[0].replace(b'{"v":1', b'{"v":2')
    log.garbage(3, body + b',"crc":"%08x"}' % crc32(body))

    assert log.invariants() == ["The event is of version 2."]


def test_events_of_another_session_are_found() -> None:
    events = [Event(0, 0, "a", "session.accessed", "agent", {}), Event(2, 0, "b", "session.accessed", "nobody", {})]

    assert event_problems(events) == [
        "event 0, session.accessed: is no birth, and a session begins with one",
        "event 2, session.accessed: is of session b, and the log is of a",
        "event 2, session.accessed: has seq 2, and 1 comes next",
        "event 2, session.accessed: is not in the vocabulary: 'nobody' is not an actor of the event 'session.accessed'.",
    ]


def test_what_only_the_fold_knows_is_found_too(log: LogKit) -> None:
    intent = {"commit": "a", "parent": "p", "ref": "r", "tree": "t", "paths_digest": "d", "count": 1}

    (problem,) = planted(log, ("promote.intent", intent), ("promote.intent", intent))
    assert "which cannot happen: the promotion of a is still open" in problem


def test_what_the_engine_writes_is_sound(tmp_path: Path) -> None:
    with open_site(tmp_path, {"app.py": "v1\n"}) as site:
        first = site.start()
        first.record("tool_call", call()[1])
        assert first.start_turn(lambda context: context.record("tool_call", dict(call("c2")[1])), runs="thread").wait(LONG)
        stuck = first.start_turn(lambda _context: threading.Event().wait())
        first.interrupt()
        assert stuck.status == "interrupted"
        fork = first.fork()
        second = first.handoff()
        second.discard("crash")
        third = site.start(parent=second.id)
        third.write("app.py", "v3\n")
        third.promote()

        for session in (first, fork, second, third):
            assert LogKit.of(session).invariants() == []
