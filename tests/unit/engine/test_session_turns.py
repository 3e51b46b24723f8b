"""Turns: run beside the program, one at a time, and ended at any moment without harm to their session."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.daemon import wait_until
from support.engine import Site, types

from pytest_gittrix import EvictionPolicy
from pytest_gittrix.engine.agents.turns import RUNS, TurnContext
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, SessionExpired, TurnBusy, TurnOver
from pytest_gittrix.os_level.monotonic import pause, real_seconds
from pytest_gittrix.record.eventlog.events import Event

FILES = {"app.py": "v1\n"}

LONG = 60.0
CALL = {"call_id": "c1", "name": "grep", "args": {}}

everywhere = pytest.mark.parametrize("runs", RUNS)


@pytest.fixture
def session(site: Site) -> UserSession:
    """One that was just started; that its turn runs does not lengthen its absolute time."""
    return site.start(eviction=EvictionPolicy(ttl_absolute="4h"))


def hang(context: TurnContext) -> None:
    """Say that it runs, and never end."""
    context.record("assistant_message", {"text": "working"})
    threading.Event().wait()


def until_said(site: Site, name: str = "assistant_message") -> threading.Event:
    """Set once an event of that name was announced."""
    said = threading.Event()
    site.engine.on(name, lambda _event: said.set())
    return said


@everywhere
def test_a_turn_gives_what_its_function_returns(session: UserSession, runs: str) -> None:
    turn = session.start_turn(lambda context: (context.session_id, context.role, context.turn), runs=runs, role="review")

    assert turn.wait(LONG)
    assert (turn.status, turn.value) == ("done", (session.id, "review", turn.ref))
    assert types(session) == ["turn.started", "turn.ended"]
    assert not session.turn_running


@everywhere
def test_a_coroutine_function_is_run_to_its_end(session: UserSession, runs: str) -> None:
    async def answer(context: TurnContext) -> str:
        await asyncio.sleep(0)
        return context.fork_root_session_id

    turn = session.start_turn(answer, runs=runs)

    assert turn.wait(LONG)
    assert turn.value == session.id


@everywhere
def test_what_a_turn_does_is_stored_in_order_and_announced_here(site: Site, session: UserSession, runs: str) -> None:
    seen: list[Event] = []
    site.engine.on("*", seen.append)

    def work(context: TurnContext) -> None:
        context.emit("text_delta", {"chunk": "he"})
        context.record("tool_call", CALL)
        context.session.write("app.py", "v2\n")
        context.record("tool_result", {"call_id": "c1", "ok": True})

    assert session.start_turn(work, runs=runs).wait(LONG)

    stored = ["turn.started", "tool_call", "session.write", "tool_result", "workspace.kept", "turn.ended"]
    assert types(session) == stored
    assert [event.type for event in seen] == [stored[0], "text_delta", *stored[1:]]
    assert [event.seq for event in session.history()] == list(range(len(session.history())))
    assert session.read("app.py") == b"v2\n"


@everywhere
def test_a_turn_that_raises_has_failed_and_its_session_goes_on(session: UserSession, runs: str) -> None:
    def fail(_context: TurnContext) -> None:
        raise ValueError("no such model")

    turn = session.start_turn(fail, runs=runs)

    assert turn.wait(LONG)
    assert (turn.status, turn.error) == ("failed", "ValueError: no such model")
    assert session.history("turn.ended")[0].data == {"turn": turn.ref, "status": "failed", "reason": "ValueError: no such model"}
    assert session.start_turn(lambda _context: 1, runs=runs).wait(LONG)


@everywhere
def test_one_turn_at_a_time(site: Site, session: UserSession, runs: str) -> None:
    said = until_said(site)
    session.start_turn(hang, runs=runs)
    assert said.wait(LONG)
    before = session.history()

    with pytest.raises(TurnBusy, match="has a turn running"):
        session.start_turn(hang, runs=runs)
    with site.another() as other, pytest.raises(TurnBusy):
        other.get_session(session.id).start_turn(hang, runs=runs)

    assert session.turn_running
    assert session.history() == before
    assert session.interrupt()


@everywhere
def test_an_interrupt_ends_a_turn_and_answers_its_calls(site: Site, session: UserSession, runs: str) -> None:
    said, statuses = until_said(site), []
    site.engine.on("status", lambda event: statuses.append(event.data["status"]))

    def call_and_hang(context: TurnContext) -> None:
        context.record("tool_call", CALL)
        hang(context)

    turn = session.start_turn(call_and_hang, runs=runs)
    assert said.wait(LONG)

    assert session.interrupt()

    assert (turn.status, statuses) == ("interrupted", ["interrupted"])
    assert types(session) == ["turn.started", "tool_call", "assistant_message", "turn.ended", "tool_result"]
    assert session.history("tool_result")[0].data["error"]["details"]["reason"] == "interrupt"
    session.write("app.py", "v3\n")
    assert session.start_turn(lambda _context: None, runs=runs).wait(LONG)


def test_a_turn_that_is_deaf_and_has_children_is_ended_with_all_of_them(site: Site, session: UserSession) -> None:
    said = until_said(site)
    program = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"

    def dig_in(context: TurnContext) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        stray = subprocess.Popen(["/bin/sh", "-c", f"setsid {sys.executable} -c '{program}' & wait"], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert stray.stdout is not None
        pids = [int(child.stdout.readline()), int(stray.stdout.readline())]
        stray.kill()
        context.record("assistant_message", {"text": " ".join(map(str, [os.getpid(), *pids]))})
        while True:
            signal.pause()

    session.start_turn(dig_in)
    assert said.wait(LONG)
    pids = [int(pid) for pid in session.history("assistant_message")[0].data["text"].split()]

    assert session.interrupt()

    assert len(pids) == 3
    assert [pid for pid in pids if is_alive(pid)] == []


def test_programs_of_an_agent_that_is_started_from_a_git_hook_work_in_its_workspace(
    session: UserSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/real/.git")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    top = ["git", "rev-parse", "--show-toplevel"]

    def found(context: TurnContext) -> str:
        return subprocess.check_output(top, cwd=context.session.workspace_path, text=True).strip()

    turn = session.start_turn(found)
    assert turn.wait(LONG)
    assert turn.value == str(session.workspace_path)
    environment = session.environment()
    assert subprocess.check_output(top, cwd=session.workspace_path, env=environment, text=True).strip() == str(session.workspace_path)
    assert environment["GITTRIX_SESSION_ID"] == session.id
    assert "GIT_CONFIG_KEY_0" not in environment
    assert session.environment({"GIT_DIR": "named"})["GIT_DIR"] == "named"
    assert os.environ["GIT_DIR"] == "/real/.git"


def test_what_a_turn_leaves_running_ends_with_it(session: UserSession) -> None:
    turn = session.start_turn(lambda _context: subprocess.Popen(["sleep", "600"]).pid)

    assert turn.wait(LONG)
    wait_until(lambda: not is_alive(turn.value))  # the system takes a moment for a killed process


def test_a_turn_whose_process_dies_has_failed(session: UserSession) -> None:
    turn = session.start_turn(lambda _context: os.kill(os.getpid(), signal.SIGKILL))

    assert turn.wait(LONG)
    assert (turn.status, turn.error) == ("failed", "its process ended with -9")


def test_what_cannot_be_sent_back_is_a_failure_that_says_so(session: UserSession) -> None:
    turn = session.start_turn(lambda _context: threading.Lock())

    assert turn.wait(LONG)
    assert turn.status == "failed"
    assert "cannot be sent" in str(turn.error)


def test_a_turn_in_a_thread_can_do_nothing_after_its_interrupt(site: Site, session: UserSession) -> None:
    said, tried = until_said(site), threading.Event()
    refusals: list[BaseException] = []

    def go_on(context: TurnContext) -> None:
        context.record("assistant_message", {"text": "working"})
        context.cancelled.wait()
        for attempt in (lambda: context.record("tool_result", {"call_id": "c1", "ok": True}), lambda: context.session.write("a", "b")):
            try:
                attempt()
            except TurnOver as refusal:
                refusals.append(refusal)
        tried.set()

    session.start_turn(go_on, runs="thread")
    assert said.wait(LONG)
    session.interrupt()
    before = session.history()

    assert tried.wait(LONG)
    assert len(refusals) == 2
    assert session.history() == before


@everywhere
def test_an_interrupt_ends_a_turn_that_another_thread_is_just_beginning(site: Site, session: UserSession, runs: str) -> None:
    beginning = threading.Event()

    def listen(_: Event) -> None:
        beginning.set()
        pause(0.3)  # longer than a claim waits; the turn cannot be ended yet

    site.engine.on("turn.started", listen)
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(session.start_turn, lambda context: context.cancelled.wait(LONG), runs=runs)
        assert beginning.wait(LONG)

        assert session.interrupt()

        assert started.result(LONG).wait(LONG)
    assert [event.data["status"] for event in session.history("turn.ended")] == ["interrupted"]


def test_an_interrupt_by_a_listener_of_the_beginning_turn_is_refused(site: Site, session: UserSession) -> None:
    refused: list[Exception] = []

    def listen(_: Event) -> None:
        try:
            session.interrupt()
        except TurnBusy as error:
            refused.append(error)

    site.engine.on("turn.started", listen)

    assert session.start_turn(lambda context: None).wait(LONG)
    assert len(refused) == 1


@pytest.mark.parametrize("again", [1, 2])
def test_an_interrupt_without_a_turn_answers_open_calls_once(session: UserSession, again: int) -> None:
    session.record("tool_call", CALL)

    assert [session.interrupt() for _ in range(again)] == [False] * again
    assert [event.data["error"]["details"]["reason"] for event in session.history("tool_result")] == ["interrupt_no_turn"]


def test_a_turn_that_died_with_its_engine_is_found_lost_and_its_calls_are_answered(site: Site, session: UserSession) -> None:
    reading, writing = os.pipe()

    def call_and_hang(context: TurnContext) -> None:
        context.record("tool_call", CALL)
        os.write(writing, b"%d\n" % os.getpid())
        threading.Event().wait()

    engine = os.fork()
    if engine == 0:
        session.start_turn(call_and_hang)
        threading.Event().wait()
    turn = int(os.read(reading, 20))
    os.kill(engine, signal.SIGKILL)
    os.waitpid(engine, 0)
    deadline = time.monotonic() + LONG
    while is_alive(turn):
        assert time.monotonic() < deadline, "the turn outlives its engine"

    assert session.start_turn(lambda _context: "again").wait(LONG)

    events = session.history(["turn.started", "turn.ended", "tool_result"])
    assert [event.data.get("status") for event in events if event.type == "turn.ended"] == ["lost", "done"]
    assert events[2].data["error"]["details"]["reason"] == "before_start_turn"


def test_an_ended_session_has_no_turns(session: UserSession) -> None:
    session.discard()

    with pytest.raises(SessionExpired):
        session.start_turn(lambda _context: None)


def test_a_turn_runs_in_a_process_or_in_a_thread(session: UserSession) -> None:
    with pytest.raises(InvalidInput, match="process, thread"):
        session.start_turn(lambda _context: None, runs="moon")


def test_closing_the_engine_ends_its_turns(site: Site, session: UserSession) -> None:
    said = until_said(site)
    turn = session.start_turn(hang)
    assert said.wait(LONG)

    site.engine.close()

    assert turn.status == "interrupted"


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_a_session_tells_nothing_of_a_turn_that_could_not_begin(session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_args: Any) -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", no_more)
    with pytest.raises(BlockingIOError):
        session.start_turn(lambda _context: None)
    monkeypatch.undo()

    assert not session.turn_running
    assert session.start_turn(lambda _context: 1).wait(LONG)
    assert [event.data["status"] for event in session.history("turn.ended")] == ["lost", "done"]


def test_a_turn_that_its_caller_runs_is_a_turn_until_the_caller_ends_it(site: Site, session: UserSession) -> None:
    context = session.begin_turn(role="review")
    context.record("user_message", {"text": "go"})
    context.session.write("app.py", "v2\n")

    assert (context.role, context.session_id, session.turn_running) == ("review", session.id, True)
    with pytest.raises(TurnBusy):
        session.start_turn(hang)
    with site.another() as other, pytest.raises(TurnBusy):
        other.get_session(session.id).begin_turn()
    with site.another() as other, pytest.raises(TurnBusy):
        other.get_session(session.id).interrupt()
    with pytest.raises(TurnBusy):
        session.handoff()
    with pytest.raises(InvalidInput, match="error is int"):
        session.end_turn(context, error=3)  # type: ignore[arg-type]

    session.end_turn(context)

    assert types(session) == ["turn.started", "user_message", "session.write", "workspace.kept", "turn.ended"]
    assert session.history("turn.started")[0].data == {"turn": context.turn, "runs": "task"}
    assert session.history("turn.ended")[0].data == {"turn": context.turn, "status": "done"}
    assert not session.turn_running
    assert ".turn" not in os.listdir(site.directory(session))


def test_a_turn_of_a_block_fails_with_the_block(session: UserSession) -> None:
    with session.turn():
        session.record("tool_call", CALL)
    with pytest.raises(ValueError, match="no such model"), session.turn():
        raise ValueError("no such model")

    ended = [event.data for event in session.history("turn.ended")]
    assert [(one["status"], one.get("reason")) for one in ended] == [("done", None), ("failed", "ValueError: no such model")]
    assert session.history("tool_result")[0].data["error"]["details"]["reason"] == "before_start_turn"


def test_only_a_turn_that_its_caller_runs_is_ended_by_its_caller_and_only_once(site: Site, session: UserSession) -> None:
    over = session.begin_turn()
    session.end_turn(over)
    begun, other = session.begin_turn(), site.start("another")

    with pytest.raises(TurnOver, match="is over"):
        session.end_turn(over)
    with pytest.raises(InvalidInput, match="none that end_turn"):
        other.end_turn(begun)
    with pytest.raises(TurnOver, match="is over"):
        over.session.write("app.py", "v2\n")
    assert session.turn_running
    session.end_turn(begun)

    contexts: list[TurnContext] = []
    running, said = threading.Event(), until_said(site)
    session.start_turn(
        lambda context: (contexts.append(context), context.record("assistant_message", {"text": "here"}), running.wait(LONG)), runs="thread"
    )
    assert said.wait(LONG)
    with pytest.raises(InvalidInput, match="none that end_turn"):
        session.end_turn(contexts[0])
    assert session.turn_running
    running.set()


def test_an_interrupt_ends_a_turn_that_its_caller_runs(site: Site, session: UserSession) -> None:
    statuses: list[str] = []
    site.engine.on("status", lambda event: statuses.append(event.data["status"]))
    context = session.begin_turn()
    context.record("tool_call", CALL)

    assert session.interrupt()

    assert (context.cancelled.is_set(), session.turn_running, statuses) == (True, False, ["interrupted"])
    assert types(session) == ["turn.started", "tool_call", "turn.ended", "tool_result"]
    assert session.history("tool_result")[0].data["error"]["details"]["reason"] == "interrupt"
    before = session.history()
    following = session.begin_turn()
    attempts = (
        lambda: context.record("assistant_message", {"text": "late"}),
        lambda: context.emit("text_delta", {"chunk": "late"}),
        lambda: context.session.write("app.py", "late\n"),
        lambda: session.end_turn(context),
    )
    for attempt in attempts:
        with pytest.raises(TurnOver):
            attempt()
    assert [event.type for event in session.history()[len(before) :]] == ["turn.started"]
    following.record("assistant_message", {"text": "in time"})
    session.end_turn(following)


def test_an_interrupt_within_a_block_is_what_the_block_raises(session: UserSession) -> None:
    with pytest.raises(TurnOver, match="was interrupted"), session.turn() as context:
        session.interrupt()
        context.record("assistant_message", {"text": "late"})

    assert [event.data["status"] for event in session.history("turn.ended")] == ["interrupted"]


@pytest.mark.parametrize("end", ["discard", "promote", "sweep", "close"])
def test_the_end_of_a_session_or_an_engine_ends_the_turn_that_its_caller_runs(site: Site, session: UserSession, end: str) -> None:
    session.write("app.py", "v2\n")
    context = session.begin_turn()
    if end == "sweep":
        site.clock.advance(hours=5)
        assert site.engine.sweep() == [session.id]
    else:
        (site.engine.close if end == "close" else getattr(session, end))()

    with pytest.raises(TurnOver):
        session.end_turn(context)
    with pytest.raises(TurnOver):
        context.record("assistant_message", {"text": "late"})
    with pytest.raises(AdapterUnavailable if end == "close" else SessionExpired):
        session.begin_turn()
    given_up = real_seconds() + LONG
    while not (ends := [event for event in site.events(session.id) if event.type == "turn.ended"]) and real_seconds() < given_up:
        time.sleep(0.01)
    assert [event.data["status"] for event in ends] == ["interrupted"]


def test_a_turn_is_lost_with_the_caller_that_ran_it(session: UserSession) -> None:
    caller = os.fork()
    if caller == 0:
        try:
            session.begin_turn().record("tool_call", CALL)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(caller, 0)

    assert not session.turn_running
    with session.turn():
        pass

    assert [event.data["status"] for event in session.history("turn.ended")] == ["lost", "done"]
    assert session.history("tool_result")[0].data["error"]["details"]["reason"] == "before_start_turn"


def test_the_history_and_the_attachments_of_an_ended_session_are_read_by_its_handle(session: UserSession) -> None:
    agent = session.for_agent()
    with session.turn() as context:
        name = context.session.attach("a picture")
        said = context.record("user_message", {"text": "look", "resources": [{"sha256": name}]})
    session.discard()

    for handle in (session, agent, context.session):
        assert handle.attached(name) == b"a picture"
        assert handle.history("user_message") == [said]
    with pytest.raises(SessionExpired):
        agent.attach("another")


@everywhere
@pytest.mark.parametrize("end", ["promote", "discard", "evict", "sweep"])
def test_a_session_that_ends_takes_its_turn_along(site: Site, session: UserSession, runs: str, end: str) -> None:
    session.write("app.py", "v2\n")
    said = until_said(site)

    def work(context: TurnContext) -> None:
        context.record("assistant_message", {"text": "begun"})
        context.cancelled.wait()
        context.record("assistant_message", {"text": "too late"})

    turn = session.start_turn(work, runs=runs)
    assert said.wait(LONG)
    if end == "promote":
        session.promote()
    elif end == "discard":
        session.discard()
    elif end == "evict":
        site.engine.evict(session.id)
    else:
        site.clock.advance(hours=5)
        swept: list[str] = []
        given_up = real_seconds() + LONG
        while not swept and real_seconds() < given_up:  # it passes over a session whose turn is just storing something
            swept = site.engine.sweep()
        assert swept == [session.id]

    assert turn.wait(LONG)
    assert turn.status == "interrupted"
    events = site.events(session.id)
    assert [event.type for event in events if event.type.startswith("turn.")] == ["turn.started", "turn.ended"]
    assert [event.data["text"] for event in events if event.type == "assistant_message"] == ["begun"]
    assert ".lock" not in os.listdir(site.directory(session))
