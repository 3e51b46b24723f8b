"""A person's terminal, lent to an agent: the agent gets one of its own, and what is typed and shown goes between the two.

So a confined program never has the person's terminal itself, and a person whose terminal is closed closes the agent's.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from pytest_gittrix.confine.started_program import set_size
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.os_level.monotonic import real_seconds

_LARGEST_READ = 1 << 16
_LOOK = 0.2


@dataclass
class LentTerminal:
    """A terminal for an agent.

    Attributes:
        agents: the descriptor of the agent's side; closed by ``relay``.
    """

    agents: int
    _ours: int

    def relay(self, runs: Callable[[], bool]) -> None:
        """Pass on what is typed and what is shown, until nothing has the agent's side any more or the agent does not run.

        Args:
            runs: whether the agent runs.
        """
        os.close(self.agents)
        self.agents = -1
        with _raw(), _resizing(self._ours):
            sources, look = [self._ours, 0], real_seconds() + _LOOK
            while True:
                ready = select.select(sources, [], [], _LOOK)[0]
                if self._ours in ready and not _copy(self._ours, 1):
                    return
                if 0 in ready and not _copy(0, self._ours):
                    return  # the person has gone
                if real_seconds() >= look:
                    if not runs():  # what it left behind can have the agent's side still
                        return
                    look = real_seconds() + _LOOK

    def close(self) -> None:
        """Close both sides; the agent hears a hangup."""
        for fd in (self.agents, self._ours):
            if fd >= 0:
                os.close(fd)
        self.agents = self._ours = -1


@contextmanager
def lent_terminal() -> Iterator[LentTerminal]:
    """A terminal of the size of this process's own, for a block.

    Raises:
        CapabilityMissing: standard input or output is no terminal.
    """
    if not (os.isatty(0) and os.isatty(1)):
        raise CapabilityMissing(
            "There is no terminal to talk on.",
            why="A chat is between a person and a program on one terminal.",
            fix="Run it in a terminal, without a pipe or a redirection.",
            opt_out="`gittrix member start` starts an agent without a terminal.",
        )
    ours, agents = os.openpty()
    lent = LentTerminal(agents, ours)
    try:
        _same_size(ours)
        yield lent
    finally:
        lent.close()


def _copy(source: int, to: int) -> bool:
    """Pass on what can be read at once; whether there can be more."""
    try:
        data = os.read(source, _LARGEST_READ)
        view = memoryview(data)
        while view:
            view = view[os.write(to, view) :]
    except OSError:  # EIO: nothing has the other side
        return False
    return bool(data)


@contextmanager
def _raw() -> Iterator[None]:
    """Let every key through, Ctrl-C too: the agent's terminal says what it means."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is for the agent, too
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stdout.flush()


@contextmanager
def _resizing(terminal: int) -> Iterator[None]:
    def changed(_number: int, _frame: FrameType | None) -> None:
        _same_size(terminal)

    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _same_size(terminal: int) -> None:
    with suppress(OSError):
        size = os.get_terminal_size(1)
        set_size(terminal, size.lines, size.columns)
