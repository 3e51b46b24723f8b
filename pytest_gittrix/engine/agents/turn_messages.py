"""What the process of a turn and the engine that started it tell each other, over two pipes.

The process sends events, warnings that its model's context fills up, and how its function ended. The engine answers the warnings, and when
it is gone, the process ends with all that it started.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.engine.agents.context_pressure import Pressure
from pytest_gittrix.os_level.process_tree import end_tree
from pytest_gittrix.record.eventlog.events import Event

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SILENT: Final = "its process said nothing more"
"""The error of a turn whose process ended before its function did."""


def receive(messages: Connection, emit: Callable[[Event], None], warn: Callable[[tuple[Any, Any]], None]) -> tuple[Any, str | None]:
    """Handle the messages of a turn's process, until it reports how it ended, or is gone; returns its value and its error."""
    while True:
        try:
            kind, content = messages.recv()
        except (EOFError, OSError):
            return None, SILENT
        except Exception as problem:  # noqa: BLE001  (a value whose class cannot be made again here)
            return None, f"what it returned cannot be read: {problem}"
        if kind == "event":
            emit(content)
            continue
        if kind == "pressure":
            with suppress(OSError):  # it is gone, which the next recv() finds
                warn(content)
            continue
        return (content, None) if kind == "done" else (None, content)


def ask_engine(send: Callable[[str, Any], None], answers: SimpleQueue[str], checkpoint_to_seq: int | None, tier: str) -> str:
    """Send a warning to the engine, and return its answer."""
    Pressure().register("", checkpoint_to_seq, tier)  # refuses wrong arguments in this process
    send("pressure", (checkpoint_to_seq, tier))
    return answers.get()


def follow_engine(engine: Connection, answers: SimpleQueue[str]) -> None:
    """Receive the engine's answers; when it is gone, end with it."""
    with suppress(EOFError, OSError):
        while True:
            answers.put(engine.recv())
    end_tree(os.getpid())
