"""TRN: an agent has one turn at a time, which can be ended at any moment without harm to its session.

Source: docs/explanation/you-know-pixir.md.
"""

from __future__ import annotations

from pytest_gittrix.conformance.base.clause import needs, protects_work, without_search
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import allowed_to_refuse, at_work, refused
from pytest_gittrix.conformance.base.turn_kit import (
    ANSWERED,
    CALL,
    LONG,
    RESULT,
    acts,
    answer,
    answered,
    call,
    child_ended,
    fail,
    finished,
    idle,
    ignoring_signals,
    in_a_turn,
    of_type,
    starting_child,
    wait_for_work,
    waiting,
)
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability


class TurnClauses(Clauses):
    """Turns, interrupts, and unanswered calls."""

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
        """A turn runs concurrently with the program. Otherwise a server is blocked while one of its agents thinks."""
        session, turn = in_a_turn(stage)

        assert (turn.status, session.turn_running, turn.wait(0)) == ("running", True, False)
        assert session.read("app.py") == b"one\ntwo\nthree\n"

        (stage.path / "go").touch()
        assert turn.wait(LONG)
        assert (turn.status, session.turn_running) == ("done", False)

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_03_a_session_has_one_turn_at_a_time(self, stage: Stage) -> None:
        """A session runs one turn at a time. Otherwise two answers are interleaved, and each takes the results of the other's calls."""
        session = in_a_turn(stage)[0]
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
        session = in_a_turn(stage)[0]
        before = session.events()

        refused("TURN_BUSY", stage.reopen().get_session(session.id).start_turn, idle)

        assert session.events() == before
        assert session.interrupt()

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_05_sessions_do_not_wait_for_the_turns_of_others(self, stage: Stage) -> None:
        """Otherwise one agent that hangs keeps all others from working."""
        slow, quick = stage.start(), stage.start()
        slow.start_turn(waiting(stage))
        wait_for_work(slow)

        finished(quick, idle)

        assert (slow.turn_running, quick.turn_running) == (True, False)
        assert slow.interrupt()

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    @protects_work
    def test_trn_06_an_interrupt_ends_the_turn_and_not_the_session(self, stage: Stage) -> None:
        """An interrupt ends the turn but not the session. Otherwise stopping an agent that went astray costs all its earlier work."""
        session = at_work(stage)
        turn = session.start_turn(waiting(stage))
        wait_for_work(session)

        assert session.interrupt()

        assert turn.wait(LONG)
        assert (turn.status, session.turn_running, session.state) == ("interrupted", False, "active")
        assert session.read("app.py") == b"agent\n"
        session.write("README.md", "agent\n")
        finished(session, idle)

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_07_a_turn_that_is_deaf_is_ended(self, stage: Stage) -> None:
        """A turn that ignores an interrupt is ended. Otherwise the agent that most needs to be stopped cannot be stopped."""
        session, turn = in_a_turn(stage, ignoring_signals())

        assert session.interrupt()

        assert turn.wait(LONG)
        assert turn.status == "interrupted"
        assert not acts(stage, "turn")

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_08_what_a_turn_started_ends_with_it(self, stage: Stage) -> None:
        """Programs that a turn started end with it. Otherwise an unneeded build goes on, and writes into the workspace of the next turn."""
        session = stage.start()
        with child_ended(stage):
            session.start_turn(waiting(stage, starting_child(stage)))
            wait_for_work(session)

            assert session.interrupt()

            assert not acts(stage, "child")

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_09_a_turn_that_was_interrupted_says_no_more(self, stage: Stage) -> None:
        """An interrupted turn records nothing more.

        Otherwise an old answer arrives after the person's next question, and is taken for the answer to it.
        """
        session = in_a_turn(stage, then=lambda context: answer(context, "late"))[0]
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
        session = in_a_turn(stage, lambda context: call(context.record, "c1"))[0]

        assert session.interrupt()

        assert answered(session, "interrupt") == ["c1"]

    @needs(Capability.EVENTS, Capability.HISTORY, Capability.TURNS)
    def test_trn_13_an_answer_by_the_system_says_what_it_is(self, stage: Stage) -> None:
        """An answer that the system made up says so.

        Otherwise the model takes it for the tool's result, and the reason of the failure is lost.
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
        session = at_work(stage)

        turn = session.start_turn(fail)

        assert turn.wait(LONG)
        assert (turn.status, session.turn_running, session.state) == ("failed", False, "active")
        assert session.touched_files() == ["app.py"]
        finished(session, idle)

    @needs(Capability.EVENTS, Capability.TURNS)
    def test_trn_20_what_the_agent_did_not_say_is_not_said_for_it(self, stage: Stage) -> None:
        """The system adds no failure event of its own to a failed turn.

        Otherwise the agent's own error report appears next to a second one that the system made up.
        """
        session = stage.start()

        assert session.start_turn(fail).wait(LONG)

        assert [event["type"] for event in session.events() if event["type"] in ("turn_failed", ANSWERED, RESULT)] == []

    @needs(Capability.EVENTS, Capability.TURNS)
    def test_trn_21_an_ended_session_takes_no_turn(self, stage: Stage) -> None:
        """An ended session starts no turn.

        Otherwise an agent goes on working after a person has judged its work, and this work is never reviewed.
        """
        session = stage.start()
        session.evict()
        before = session.events()

        refused("SESSION_EXPIRED", session.start_turn, idle)

        assert (session.turn_running, session.events()) == (False, before)
