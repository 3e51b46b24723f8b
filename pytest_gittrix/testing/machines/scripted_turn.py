"""A turn that does what a test tells it through a pipe, one request at a time, so that nothing depends on which process is quicker.

``scenarios.turn_kit`` has turns whose steps are known before they start.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any, Final

from pytest_gittrix.engine.agents.turn_log import Status
from pytest_gittrix.engine.agents.turns import Turn, TurnContext
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.testing.oracle import require
from pytest_gittrix.testing.session_model import OK

_LONG: Final = 60.0  # real seconds


class ScriptedTurn:
    """A turn's function that carries out requests."""

    def __init__(self) -> None:
        self._theirs, self._ours = Pipe()
        self._done = threading.Event()

    def __call__(self, context: TurnContext) -> Any:
        """Run as the turn."""
        try:
            return self._serve(context)
        finally:
            self._done.set()

    def _serve(self, context: TurnContext) -> Any:
        while True:
            what, argument = self._theirs.recv()
            if what == "return":
                return argument
            if what == "raise":
                raise ValueError(argument)
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            self._theirs.send(_answer(context, what, argument))

    def send(self, what: str, argument: Any = None) -> None:
        """Send a request that has no answer: ``return`` a value, ``raise`` an error with a text, or ``die``."""
        self._ours.send((what, argument))

    def request(self, what: str, argument: Any) -> str:
        """Have the turn ``write`` bytes to the file ``a``, or record an event of a type with data; gives ``OK``, or the error's code."""
        self.send(what, argument)
        require(self._ours.poll(_LONG), "A turn that runs carries out requests.", f"{what} was not answered")
        return str(self._ours.recv())

    def dismiss(self, *, in_thread: bool) -> None:
        """Close the pipe once the turn's process is gone, or its thread has returned."""
        if in_thread:
            self.send("return")
            self._done.wait(_LONG)
        self._ours.close()
        self._theirs.close()


class OwnTurn:
    """A turn that the machine runs by itself: it is to ``RunningTurn`` both the turn and its function.

    Args:
        session: the session, whose turn begins.

    Attributes:
        ref: its name.
        runs: ``task``.
        status: running, or how it ended.
        value: what it returned.
        error: why it failed.
    """

    runs: Final = "task"

    def __init__(self, session: UserSession) -> None:
        self.status: Status = "running"
        self.value: Any = None
        self.error: str | None = None
        self._session = session
        self._announced = threading.Event()
        self._unsubscribe = session.subscribe(lambda _event: self._announced.set(), ["status"])
        try:
            self._context = session.begin_turn()
        except BaseException:
            self._unsubscribe()
            raise
        self.ref = self._context.turn

    def send(self, what: str, argument: Any = None) -> None:
        """End it: ``return`` a value, or ``raise`` an error with a text."""
        if what == "return":
            self.status, self.value = "done", argument
        else:
            self.status, self.error = "failed", f"ValueError: {argument}"
        self._session.end_turn(self._context, error=self.error)

    def request(self, what: str, argument: Any) -> str:
        """As ``ScriptedTurn.request``."""
        return _answer(self._context, what, argument)

    def wait(self, timeout: float) -> bool:
        """Wait until it is over: it has ended, or its interrupt was announced."""
        if self.status == "running" and self._announced.wait(timeout):
            self.status = "interrupted"
        return self.status != "running"

    def dismiss(self, *, in_thread: bool) -> None:  # noqa: ARG002  (as ScriptedTurn.dismiss)
        """Listen no more."""
        self._unsubscribe()


def _answer(context: TurnContext, what: str, argument: Any) -> str:
    try:
        if what == "write":
            context.session.write("a", argument)
        else:
            context.record(what, argument)
    except GittrixError as error:
        return error.code
    return OK


@dataclass(eq=False)
class RunningTurn:
    """A turn that runs, or that was interrupted and whose thread has not noticed.

    Attributes:
        turn: the turn as its engine has it.
        engine: the number of that engine.
        scripted: the function that runs.
    """

    turn: Turn | OwnTurn
    engine: int
    scripted: ScriptedTurn | OwnTurn

    @classmethod
    def start(cls, session: UserSession, engine: int, runs: str) -> RunningTurn:
        """Start a turn in a process or a thread, or begin one as a task. Raises as ``start_turn`` and ``begin_turn``."""
        if runs == "task":
            own = OwnTurn(session)
            return cls(own, engine, own)
        scripted = ScriptedTurn()
        return cls(session.start_turn(scripted, runs=runs), engine, scripted)

    def dismiss(self) -> None:
        """Release the function, once its process is gone or its thread has returned."""
        self.scripted.dismiss(in_thread=self.turn.runs == "thread")


def at_once(start: Callable[[int, ScriptedTurn], Turn], engines: Iterable[int]) -> tuple[list[RunningTurn], list[str]]:
    """Have several engines start a turn at the same time.

    Args:
        start: has the engine of a number start a turn in a thread with a function.
        engines: the numbers of the engines.

    Returns:
        The turns that began, and the error codes of those that were refused.
    """
    numbers = [*engines]
    begun: list[RunningTurn] = []
    refused: list[str] = []
    barrier = threading.Barrier(len(numbers))

    def go(by: int) -> None:
        scripted = ScriptedTurn()
        barrier.wait(_LONG)
        try:
            begun.append(RunningTurn(start(by, scripted), by, scripted))
        except GittrixError as error:
            refused.append(error.code)
            scripted.dismiss(in_thread=False)

    threads = [threading.Thread(target=go, args=(by,)) for by in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LONG)
    return begun, refused
