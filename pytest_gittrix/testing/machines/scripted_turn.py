"""A turn that does what it is told, through a pipe, so that nothing a test sees depends on who is quicker.

Must know no Hypothesis and no pytest.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any, Final

from pytest_gittrix.engine.agents.turns import Turn, TurnContext
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.testing.oracle import require
from pytest_gittrix.testing.session_model import OK

_LONG: Final = 60.0  # real seconds


class Puppet:
    """A turn's function that does what it is told."""

    def __init__(self) -> None:
        self._orders, self._ours = Pipe()
        self._done = threading.Event()

    def __call__(self, context: TurnContext) -> Any:
        """Be the turn."""
        try:
            return self._obey(context)
        finally:
            self._done.set()

    def _obey(self, context: TurnContext) -> Any:
        while True:
            what, told = self._orders.recv()
            if what == "return":
                return told
            if what == "raise":
                raise ValueError(told)
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            self._orders.send(_answer(context, what, told))

    def tell(self, what: str, told: Any = None) -> None:
        """Have it do what it does not answer to."""
        self._ours.send((what, told))

    def asked(self, what: str, told: Any) -> str:
        """Have it do something to its session; gives ``OK``, or the error's code."""
        self.tell(what, told)
        require(self._ours.poll(_LONG), "A turn that runs does what it is told.", f"{what} was not answered")
        return str(self._ours.recv())

    def dismiss(self, *, in_thread: bool) -> None:
        """Let go of it, once its process is gone or its thread has returned."""
        if in_thread:
            self.tell("return")
            self._done.wait(_LONG)
        self._ours.close()
        self._orders.close()


def _answer(context: TurnContext, what: str, told: Any) -> str:
    try:
        if what == "write":
            context.session.write("a", told)
        else:
            context.record(what, told)
    except GittrixError as error:
        return error.code
    return OK


@dataclass(eq=False)
class Running:
    """A turn that runs, or that was interrupted and whose thread does not know.

    Attributes:
        turn: as its engine has it.
        engine: which engine.
        puppet: what runs.
    """

    turn: Turn
    engine: int
    puppet: Puppet

    def dismiss(self) -> None:
        """Let go of what ran."""
        self.puppet.dismiss(in_thread=self.turn.runs == "thread")


def at_once(start: Callable[[int, Puppet], Turn], engines: Iterable[int]) -> tuple[list[Running], list[str]]:
    """Have several engines start a turn at the same time; gives those that began, and the codes of the errors of the others.

    Args:
        start: has the engine of a number start a turn in a thread, with a puppet for its function.
        engines: their numbers.
    """
    numbers = [*engines]
    begun: list[Running] = []
    refused: list[str] = []
    gate = threading.Barrier(len(numbers))

    def go(by: int) -> None:
        puppet = Puppet()
        gate.wait(_LONG)
        try:
            begun.append(Running(start(by, puppet), by, puppet))
        except GittrixError as error:
            refused.append(error.code)
            puppet.dismiss(in_thread=False)

    threads = [threading.Thread(target=go, args=(by,)) for by in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LONG)
    return begun, refused
