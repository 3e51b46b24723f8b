"""TRN: an agent has one turn at a time, which can be ended at any moment without harm to its session.

Source: docs/explanation/you-know-pixir.md.

A turn that is to be interrupted first records that it works, and holds a lock for as long as it lives; then it waits for a file. So each
clause knows where the turn is, and whether it could still act, without sleeping for a fixed time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.conformance.base.clause import needs, protects_work, without_search
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import allowed_to_refuse, refused
from pytest_gittrix.os_level.file_lock import locked_file, try_lock
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Capability, TurnContext

LONG: Final = 60.0
"""Real seconds to wait for something that must happen."""

ANSWERED: Final = "assistant_message"
CALL: Final = "tool_call"
RESULT: Final = "tool_result"

_CHILD: Final = """\
trap '' TERM INT HUP
echo $$ > child.pid
mv child.pid child
n=0
while [ ! -e go ] && [ $n -lt 3000 ]; do sleep 0.02; n=$((n + 1)); done
: > child-acted
"""


class TurnClauses(Clauses):
    """Turns, interrupts, and calls that nobody answered."""

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_01_a_turn_works_in_its_session(self, stage: Stage) -> None:
        """Otherwise what the agent does in its turn is missing from its history, or is in another session's."""
        session, other = stage.start(), stage.start()
        before = other.events()

        finished(session, lambda context: answer(context, context.session_id))

        assert [event["data"]["text"] for event in of_type(session, ANSWERED)] == [session.id]
        assert [event["seq"] for event in session.events()] == [*range(len(session.events()))]
        assert other.events() == before

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_02_a_turn_runs_beside_the_program(self, stage: Stage) -> None:
        """A turn runs concurrently with the program.

        Otherwise a server stands still while one of its agents thinks.
        """
        session = stage.start()
        turn = session.start_turn(waiting(stage))
        at_work(session)

        assert (turn.status, session.turn_running, turn.wait(0)) == ("running", True, False)
        assert session.read("app.py") == b"one\ntwo\nthree\n"

        (stage.path / "go").touch()
        assert turn.wait(LONG)
        assert (turn.status, session.turn_running) == ("done", False)

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_03_a_session_has_one_turn_at_a_time(self, stage: Stage) -> None:
        """A session runs one turn at a time.

        Otherwise two answers are interleaved, and each takes the results of the other's calls.
        """
        session = stage.start()
        session.start_turn(waiting(stage))
        at_work(session)
        before = session.events()

        refused("TURN_BUSY", session.start_turn, idle)

        assert session.events() == before
        assert session.interrupt()

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS, Capability.PROCESSES)
    @without_search
    def test_trn_04_whoever_starts_it_there_is_one_turn_at_a_time(self, stage: Stage) -> None:
        """A session runs one turn at a time across processes.

        Otherwise the person's terminal and the agent's server let the same agent answer twice.
        """
        session = stage.start()
        session.start_turn(waiting(stage))
        at_work(session)
        before = session.events()

        refused("TURN_BUSY", stage.reopen().get_session(session.id).start_turn, idle)

        assert session.events() == before
        assert session.interrupt()

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_05_sessions_do_not_wait_for_the_turns_of_others(self, stage: Stage) -> None:
        """Otherwise one agent that hangs keeps all others from working."""
        slow, quick = stage.start(), stage.start()
        slow.start_turn(waiting(stage))
        at_work(slow)

        finished(quick, idle)

        assert (slow.turn_running, quick.turn_running) == (True, False)
        assert slow.interrupt()

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    @protects_work
    def test_trn_06_an_interrupt_ends_the_turn_and_not_the_session(self, stage: Stage) -> None:
        """An interrupt ends the turn but not the session.

        Otherwise stopping an agent that went astray costs all its earlier work.
        """
        session = stage.start()
        session.write("app.py", "agent\n")
        turn = session.start_turn(waiting(stage))
        at_work(session)

        assert session.interrupt()

        assert turn.wait(LONG)
        assert (turn.status, session.turn_running, session.state) == ("interrupted", False, "active")
        assert session.read("app.py") == b"agent\n"
        session.write("README.md", "agent\n")
        finished(session, idle)

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_07_a_turn_that_is_deaf_is_ended(self, stage: Stage) -> None:
        """A turn that ignores an interrupt is ended.

        Otherwise the agent that most needs to be stopped cannot be stopped.
        """
        session = stage.start()
        turn = session.start_turn(waiting(stage, ignoring_signals()))
        at_work(session)

        assert session.interrupt()

        assert turn.wait(LONG)
        assert turn.status == "interrupted"
        assert not acts(stage, "turn")

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_08_what_a_turn_started_ends_with_it(self, stage: Stage) -> None:
        """Programs that a turn started end with it.

        Otherwise a build that nobody needs goes on, and writes into the workspace of the next turn.
        """
        session = stage.start()
        with child_ended(stage):
            session.start_turn(waiting(stage, starting_child(stage)))
            at_work(session)

            assert session.interrupt()

            assert not acts(stage, "child")

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_09_a_turn_that_was_interrupted_says_no_more(self, stage: Stage) -> None:
        """An interrupted turn records nothing more.

        Otherwise an old answer arrives after the person's next question, and is taken for the answer to it.
        """
        session = stage.start()
        session.start_turn(waiting(stage, then=lambda context: answer(context, "late")))
        at_work(session)
        assert session.interrupt()
        before = session.events()

        acts(stage, "turn")

        assert session.events() == before

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_10_an_interrupt_of_no_turn_says_so_and_answers(self, stage: Stage) -> None:
        """An interrupt without a turn reports it and still answers open calls.

        Otherwise a person who interrupts too late leaves a history that no model accepts.
        """
        session = stage.start()
        call(session.record, "c1")

        assert not session.interrupt()

        assert answered(session, "interrupt_no_turn") == ["c1"]
        assert session.state == "active"

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_11_calls_left_open_are_answered_before_the_next_turn(self, stage: Stage) -> None:
        """Open calls are answered before the next turn.

        Otherwise one crash in a tool makes every later turn fail, since no provider accepts a call without a result.
        """
        session = stage.start()
        finished(session, lambda context: call(context.record, "c1"))
        assert of_type(session, RESULT) == []

        finished(session, lambda context: answer(context, "next"))

        assert answered(session, "before_start_turn") == ["c1"]
        assert [event["type"] for event in session.events() if event["type"] in (CALL, RESULT, ANSWERED)] == [CALL, RESULT, ANSWERED]

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_12_calls_open_at_an_interrupt_are_answered(self, stage: Stage) -> None:
        """An interrupt answers the open calls.

        Otherwise the history of an interrupted agent ends in the middle, and every program that forks or shows it must repair it.
        """
        session = stage.start()
        session.start_turn(waiting(stage, lambda context: call(context.record, "c1")))
        at_work(session)

        assert session.interrupt()

        assert answered(session, "interrupt") == ["c1"]

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_13_an_answer_by_the_system_says_what_it_is(self, stage: Stage) -> None:
        """An answer that the system made up says so.

        Otherwise the model takes it for the tool's result, and nobody can find out why the call failed.
        """
        session = stage.start()
        call(session.record, "c1", "grep")

        session.interrupt()

        data = of_type(session, RESULT)[0]["data"]
        assert (data["call_id"], data["ok"], data["error"]["kind"]) == ("c1", False, "orphan_tool_call")
        assert data["error"]["details"] == {"call_id": "c1", "tool": "grep", "reason": "interrupt_no_turn"}

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_14_calls_are_answered_in_the_order_of_their_ids(self, stage: Stage) -> None:
        """Open calls are answered in the order of their ids.

        Otherwise the same history is repaired in a different way each time, and no two replays of it are equal.
        """
        session = stage.start()
        for call_id in ("c2", "c3", "c1"):
            call(session.record, call_id)

        session.interrupt()

        assert answered(session) == ["c1", "c2", "c3"]

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_15_a_result_before_its_call_does_not_answer_it(self, stage: Stage) -> None:
        """Otherwise a call after such a result is never answered."""
        session = stage.start()
        session.record(RESULT, {"call_id": "c1", "ok": True})
        call(session.record, "c1")

        session.interrupt()

        assert answered(session, "interrupt_no_turn") == ["c1"]

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_16_a_call_id_that_is_used_again_is_a_new_call(self, stage: Stage) -> None:
        """A reused call id is a new call.

        Otherwise the second call of a model that restarts its numbering in each turn counts as already answered.
        """
        session = stage.start()
        call(session.record, "c1")
        session.record(RESULT, {"call_id": "c1", "ok": True})
        call(session.record, "c1")

        session.interrupt()

        assert answered(session, "interrupt_no_turn") == ["c1"]

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_17_a_call_is_answered_once(self, stage: Stage) -> None:
        """Otherwise the history gains another answer with each turn, and a provider refuses the second one."""
        session = stage.start()
        call(session.record, "c1")
        call(session.record, "c2")
        session.record(RESULT, {"call_id": "c2", "ok": True})

        session.interrupt()
        finished(session, idle)
        session.interrupt()

        assert answered(session) == ["c1"]

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    @protects_work
    def test_trn_18_a_late_result_is_kept_or_refused(self, stage: Stage) -> None:
        """Otherwise the result of a tool is silently lost."""
        session = stage.start()
        call(session.record, "c1")
        session.interrupt()
        before = session.events()
        late = {"call_id": "c1", "ok": True, "output": "late"}

        code = allowed_to_refuse(("INVALID_INPUT", "TURN_OVER"), session.record, RESULT, late)

        stored = [event["data"] for event in session.events()[len(before) :] if event["type"] == RESULT]
        assert stored == ([] if code else [late])
        session.interrupt()
        assert answered(session) == ["c1"]

    @needs(Capability.TURNS)
    @protects_work
    def test_trn_19_a_turn_that_fails_says_so_and_harms_nothing(self, stage: Stage) -> None:
        """A failed turn is reported and harms nothing.

        Otherwise a bug in the agent looks like an answer, or ends the session and all the work in it.
        """
        session = stage.start()
        session.write("app.py", "agent\n")

        turn = session.start_turn(fail)

        assert turn.wait(LONG)
        assert (turn.status, session.turn_running, session.state) == ("failed", False, "active")
        assert session.touched_files() == ["app.py"]
        finished(session, idle)

    @needs(Capability.EVENTS, Capability.TURNS)
    def test_trn_20_what_the_agent_did_not_say_is_not_said_for_it(self, stage: Stage) -> None:
        """The system adds no failure event of its own to a failed turn.

        Otherwise the agent's own error report stands beside a second one that the system made up.
        """
        session = stage.start()

        assert session.start_turn(fail).wait(LONG)

        assert [event["type"] for event in session.events() if event["type"] in ("turn_failed", ANSWERED, RESULT)] == []

    @needs(Capability.EVENTS, Capability.TURNS)
    def test_trn_21_an_ended_session_takes_no_turn(self, stage: Stage) -> None:
        """An ended session starts no turn.

        Otherwise an agent goes on working after a person has judged its work, and nobody will review it again.
        """
        session = stage.start()
        session.evict()
        before = session.events()

        refused("SESSION_EXPIRED", session.start_turn, idle)

        assert (session.turn_running, session.events()) == (False, before)


def idle(_context: TurnContext) -> None:
    """A turn that does nothing."""


def fail(_context: TurnContext) -> None:
    """A turn with a bug."""
    raise ValueError("a bug of the agent's")


def answer(context: TurnContext, text: str) -> None:
    """Record an answer of the agent."""
    context.record(ANSWERED, {"text": text})


def call(record: Callable[[str, dict[str, Any]], object], call_id: str, tool: str = "shell") -> None:
    """Record a call of a tool."""
    record(CALL, {"call_id": call_id, "name": tool, "args": {}})


def finished(session: DrivenSession, fn: Callable[[TurnContext], object]) -> None:
    """Run a turn to its end, and check that it succeeded."""
    turn = session.start_turn(fn)
    assert turn.wait(LONG), "the turn does not end"
    assert turn.status == "done"


def of_type(session: DrivenSession, type_: str) -> list[Mapping[str, Any]]:
    """The events of a type."""
    return [event for event in session.events() if event["type"] == type_]


def answered(session: DrivenSession, reason: str | None = None) -> list[str]:
    """The calls that the system answered, in the order of its answers; for one reason, or any."""
    results = [event["data"] for event in of_type(session, RESULT) if not event["data"]["ok"]]
    return [data["call_id"] for data in results if reason is None or data["error"]["details"]["reason"] == reason]


# A turn that waits -------------------------------------------------------------------------------------------------------------


def waiting(
    stage: Stage, first: Callable[[TurnContext], object] = idle, *, then: Callable[[TurnContext], object] = idle
) -> Callable[[TurnContext], None]:
    """A turn that records that it works, and waits for the file ``go``; it ends by itself once the stage is removed.

    Args:
        stage: the turn writes its files in this stage's directory.
        first: what the turn does before it waits.
        then: what the turn does once ``go`` exists; after that it makes the file ``turn-acted``.
    """
    path = stage.path

    def fn(context: TurnContext) -> None:
        with locked_file(path / "turn"):
            first(context)
            answer(context, "working")
            until(lambda: (path / "go").exists() or not path.exists(), "a word to go on")
            with suppress(Exception):
                then(context)
            (path / "turn-acted").touch()

    return fn


def ignoring_signals() -> Callable[[TurnContext], None]:
    """A turn that ignores every signal that can be ignored, unless it runs in this very process."""
    here = os.getpid()

    def fn(_context: TurnContext) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if os.getpid() != here:
                signal.signal(number, signal.SIG_IGN)

    return fn


def starting_child(stage: Stage) -> Callable[[TurnContext], None]:
    """A turn that starts a process which ignores signals, writes its id to the file ``child``, and holds a lock on that file."""
    path = stage.path

    def fn(_context: TurnContext) -> None:
        with locked_file(path / "child.pid") as lock:
            subprocess.Popen(["sh", "-c", _CHILD], cwd=path, pass_fds=[lock])
        until((path / "child").exists, "the child to start")

    return fn


@contextmanager
def child_ended(stage: Stage) -> Iterator[None]:
    """A block at whose end the child of the turn is killed if the system did not end it."""
    try:
        yield
    finally:
        child = stage.path / "child"
        if child.exists() and not is_free(child):
            with suppress(ProcessLookupError):
                os.kill(int(child.read_text()), signal.SIGKILL)


def at_work(session: DrivenSession) -> None:
    """Wait until a session's turn records that it works."""
    until(lambda: bool(of_type(session, ANSWERED)), "the turn to say that it works")


def acts(stage: Stage, name: str) -> bool:
    """Make the file ``go``; whether the turn or its child, whose name is given, was still there to act on it."""
    (stage.path / "go").touch()
    acted = stage.path / f"{name}-acted"
    until(lambda: acted.exists() or is_free(stage.path / name), f"the {name} to go on, or to be gone")
    return acted.exists()


def is_free(path: Path) -> bool:
    """Whether nobody holds a lock on a file."""
    with open(path) as file:
        return try_lock(file.fileno())


def until(holds: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds. Raises AssertionError if it does not within ``LONG`` seconds."""
    deadline = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < deadline, f"waited {LONG:.0f} seconds for {what}"
        time.sleep(0.002)
