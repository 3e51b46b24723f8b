"""Scripted turns: they do their steps in order, stop where the test says, and end with the kit whatever they do."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Site, types

from pytest_gittrix.engine.agents.turns import RUNS
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import Deadlock, InvalidInput
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.testing.scenarios.log_kit import LogKit
from pytest_gittrix.testing.scenarios.turn_kit import TurnKit

FILES = {"app.py": "v1\n"}

LONG = 60.0

everywhere = pytest.mark.parametrize("runs", RUNS)


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[TurnKit]:
    """A kit; closed before the engine is."""
    with TurnKit(tmp_path / "turns", timeout=LONG) as kit:
        yield kit


@everywhere
def test_the_steps_are_done_in_order(site: Site, session: UserSession, turns: TurnKit, runs: str) -> None:
    seen: list[Event] = []
    site.engine.on("text_delta", seen.append)
    script = (
        turns.script()
        .say("fix it", by="user")
        .emit("text_delta", chunk="he")
        .call("c1", "edit", path="app.py")
        .write("app.py", "v2\n")
        .result("c1", "written")
        .call("c2")
        .result("c2", "no such command", ok=False)
        .record("provider_usage", type="tokens", count=3)
        .do(lambda context: context.record("assistant_message", {"text": context.role}))
        .say("done")
        .returns({"files": 1})
    )

    turn = session.start_turn(script, runs=runs, role="review")

    assert turn.wait(LONG)
    assert (turn.status, turn.value) == ("done", {"files": 1})
    said = ["user_message", "tool_call", "session.write", "tool_result", "tool_call", "tool_result", "provider_usage"]
    # What the user says is a moment that is kept, and so is the end of a turn.
    done = [name for name in types(session) if name != "workspace.kept"]
    assert done == ["turn.started", *said, "assistant_message", "assistant_message", "turn.ended"]
    assert [event.data for event in seen] == [{"chunk": "he"}]
    assert [event.data["text"] for event in session.history("assistant_message")] == ["review", "done"]
    assert session.history("tool_result")[1].data["error"] == {"kind": "failed", "message": "no such command"}
    assert session.read("app.py") == b"v2\n"
    assert LogKit.of(session).invariants() == []


@everywhere
def test_a_turn_stops_at_a_point_until_it_is_told_to_go(session: UserSession, turns: TurnKit, runs: str) -> None:
    turn = session.start_turn(turns.script().call("c1").at("inside").result("c1"), runs=runs)

    turns.wait_for("inside")
    assert types(session) == ["turn.started", "tool_call"]
    assert session.turn_running
    turns.go("inside")

    assert turn.wait(LONG)
    assert types(session)[2:] == ["tool_result", "turn.ended"]


@everywhere
def test_a_point_can_be_passed_again_and_again(session: UserSession, turns: TurnKit, runs: str) -> None:
    turn = session.start_turn(turns.script().at("round").say("1").at("round").say("2").at("round"), runs=runs)

    for number in range(3):
        turns.wait_for("round")
        assert len(session.history("assistant_message")) == number
        turns.go("round")
    assert turn.wait(LONG)


@everywhere
def test_who_is_told_to_go_before_it_comes_does_not_stop(session: UserSession, turns: TurnKit, runs: str) -> None:
    script = turns.script().at("first").at("second")
    turns.go("first")
    turns.go("second")

    assert session.start_turn(script, runs=runs).wait(LONG)


@everywhere
def test_an_interrupt_inside_a_tool_answers_it(session: UserSession, turns: TurnKit, runs: str) -> None:
    turn = session.start_turn(turns.script().call("c1").at("inside").result("c1"), runs=runs)
    turns.wait_for("inside")

    assert session.interrupt()

    assert turn.status == "interrupted"
    assert types(session) == ["turn.started", "tool_call", "turn.ended", "tool_result"]
    assert session.history("tool_result")[0].data["error"]["details"]["reason"] == "interrupt"


@everywhere
def test_what_was_interrupted_at_a_point_takes_no_word_meant_for_the_next(session: UserSession, turns: TurnKit, runs: str) -> None:
    script = turns.script().at("here").returns("through")
    session.start_turn(script, runs=runs)
    turns.wait_for("here")
    session.interrupt()

    second = session.start_turn(script, runs=runs)
    turns.step("here")

    assert second.wait(LONG)
    assert second.value == "through"


@everywhere
def test_turns_of_two_sessions_stand_at_one_point(site: Site, turns: TurnKit, runs: str) -> None:
    script = turns.script().at("here")
    both = [site.start().start_turn(script, runs=runs) for _ in range(2)]
    turns.wait_for("here")
    turns.wait_for("here")

    turns.go("here", times=2)

    assert [turn.wait(LONG) and turn.status for turn in both] == ["done", "done"]


@everywhere
@pytest.mark.parametrize("how", ["hang", "ignore_interrupt"])
def test_a_turn_that_hangs_is_ended_by_an_interrupt(session: UserSession, turns: TurnKit, runs: str, how: str) -> None:
    turn = session.start_turn(getattr(turns.script().at("before"), how)().say("never"), runs=runs)
    turns.step("before")

    assert session.interrupt()

    assert turn.status == "interrupted"
    assert session.history("assistant_message") == []


def test_a_polite_turn_ends_when_it_is_asked_to(session: UserSession, turns: TurnKit) -> None:
    passed = threading.Event()
    script = turns.script().until_cancelled().do(lambda _context: passed.set())
    turn = session.start_turn(script, runs="thread")
    session.interrupt()

    assert passed.wait(LONG)
    assert turn.status == "interrupted"


def test_a_deaf_turn_outlives_every_signal_but_the_last(session: UserSession, turns: TurnKit) -> None:
    script = (
        turns.script().do(lambda context: context.record("assistant_message", {"text": str(os.getpid())})).deaf().at("deaf").at("still")
    )
    turn = session.start_turn(script)
    turns.wait_for("deaf")
    pid = int(session.history("assistant_message")[0].data["text"])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(pid, number)
    turns.go("deaf")

    turns.wait_for("still")
    assert session.interrupt()
    assert turn.status == "interrupted"


def test_children_deaf_to_signals_end_with_their_turn(session: UserSession, turns: TurnKit) -> None:
    session.start_turn(turns.script().spawn_child("tool").spawn_child("other").at("both").hang())
    turns.wait_for("both")
    started = turns.children()
    assert len(set(started)) == 4
    assert turns.alive() == started
    assert turns.children("tool") == started[:2]

    session.interrupt()

    assert turns.gone()


def test_children_outlive_a_signal_that_can_be_ignored(session: UserSession, turns: TurnKit) -> None:
    session.start_turn(turns.script().spawn_child().at("started").hang())
    turns.wait_for("started")

    for pid in turns.children():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)

    assert not turns.gone(timeout=0.05)
    session.interrupt()
    assert turns.gone()


@everywhere
def test_a_crash_fails_the_turn(session: UserSession, turns: TurnKit, runs: str) -> None:
    turn = session.start_turn(turns.script().crash(ValueError("no such model")).say("never"), runs=runs)

    assert turn.wait(LONG)
    assert (turn.status, turn.error) == ("failed", "ValueError: no such model")
    other = session.start_turn(turns.script().crash(), runs=runs)
    assert other.wait(LONG)
    assert other.error == "RuntimeError: the script crashes here"


def test_a_process_can_kill_itself_and_a_thread_cannot(session: UserSession, turns: TurnKit) -> None:
    script = turns.script().kill_itself()

    turn = session.start_turn(script)
    assert turn.wait(LONG)
    assert (turn.status, turn.error) == ("failed", "its process ended with -9")
    turn = session.start_turn(script, runs="thread")
    assert turn.wait(LONG)
    assert turn.error is not None
    assert turn.error.startswith("InvalidInput: This turn runs in a thread.")


@everywhere
def test_whatever_hangs_ends_with_the_kit(session: UserSession, tmp_path: Path, runs: str) -> None:
    before = {*threading.enumerate()}
    with TurnKit(tmp_path / "kit") as turns:
        turn = session.start_turn(turns.script().spawn_child().at("before").ignore_interrupt(), runs=runs)
        turns.step("before")

    assert turn.wait(LONG)
    assert turn.status == "failed"
    assert turns.gone()
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name.startswith("gittrix-turn-body")]


@everywhere
def test_one_that_stands_at_a_point_ends_with_the_kit_too(session: UserSession, tmp_path: Path, runs: str) -> None:
    with TurnKit(tmp_path / "kit") as turns:
        turn = session.start_turn(turns.script().at("here").say("never"), runs=runs)
        turns.wait_for("here")

    assert turn.wait(LONG)
    assert session.history("assistant_message") == []


def test_a_kit_can_be_closed_again_and_a_temporary_one_leaves_nothing() -> None:
    turns = TurnKit()
    place = turns.directory
    turns.close()
    turns.close()

    assert not place.exists()


def test_waiting_for_a_point_that_is_not_reached_says_what_was(session: UserSession, turns: TurnKit) -> None:
    session.start_turn(turns.script().at("here").at("there"), runs="thread")
    turns.wait_for("here")

    with pytest.raises(Deadlock, match="'there' was not reached") as caught:
        turns.wait_for("there", timeout=0.05)
    assert "1 turns began, 0 ended; the last that was heard: it stood at 'here'." in caught.value.fix


def test_waiting_for_a_turn_that_has_ended_is_over_before_the_time_is_up(
    session: UserSession, turns: TurnKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns._rendezvous, "grace", 0.0)
    turn = session.start_turn(turns.script().crash().at("there"), runs="thread")
    assert turn.wait(LONG)

    with pytest.raises(Deadlock, match="Every turn has ended, and 'there' was not reached") as caught:
        turns.wait_for("there")
    assert "it raised RuntimeError." in caught.value.fix


@pytest.mark.parametrize("ask", ["wait_for", "go", "step"])
def test_a_point_that_no_script_has_is_refused(turns: TurnKit, ask: str) -> None:
    turns.script().at("here")

    with pytest.raises(InvalidInput, match="No script stops at 'heer'") as caught:
        getattr(turns, ask)("heer")
    assert caught.value.fix.startswith("Points: here.")


def test_only_the_user_and_the_assistant_say_something(turns: TurnKit) -> None:
    with pytest.raises(InvalidInput, match="'nobody' says nothing"):
        turns.script().say("hello", by="nobody")
