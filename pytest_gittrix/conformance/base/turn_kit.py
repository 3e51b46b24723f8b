"""Turns for clauses.

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

from pytest_gittrix.os_level.file_lock import locked_file, try_lock
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import TurnContext, TurnHandle

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


def in_a_turn(
    stage: Stage, first: Callable[[TurnContext], object] = idle, *, then: Callable[[TurnContext], object] = idle
) -> tuple[DrivenSession, TurnHandle]:
    """Start a session and a turn in it, which has recorded that it works and waits; the arguments are those of ``waiting``."""
    session = stage.start()
    turn = session.start_turn(waiting(stage, first, then=then))
    wait_for_work(session)
    return session, turn


def wait_for_work(session: DrivenSession) -> None:
    """Wait until a session's turn records that it works."""
    until(lambda: bool(of_type(session, ANSWERED)), "the turn to say that it works")


def acts(stage: Stage, name: str) -> bool:
    """Make the file ``go``; whether the turn or its child, whose name is given, was still there to act on it."""
    (stage.path / "go").touch()
    acted = stage.path / f"{name}-acted"
    until(lambda: acted.exists() or is_free(stage.path / name), f"the {name} to go on, or to be gone")
    return acted.exists()


def is_free(path: Path) -> bool:
    """Whether a file is unlocked."""
    with open(path) as file:
        return try_lock(file.fileno())


def until(holds: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds. Raises AssertionError if it does not within ``LONG`` seconds."""
    deadline = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < deadline, f"waited {LONG:.0f} seconds for {what}"
        time.sleep(0.002)
