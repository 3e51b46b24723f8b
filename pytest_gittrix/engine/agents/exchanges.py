"""Stores what an agent and its model said to each other as events of the agent's session.

What is kept of an exchange is a line of a tape, and the tree of the files when its request came, while the agent waits for the answer. So
a run can be started again from any exchange: see docs/decisions/045-files-are-saved-when-a-request-comes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.engine.agents.session_parts import SessionParts
from pytest_gittrix.engine.operations.attachments import attach, attached
from pytest_gittrix.engine.operations.checkpoints import save_checkpoint
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.review import current_snapshot
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.model.conversations import readable
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.protocols.values import Answer
from pytest_gittrix.model.tapes.matching import key_of
from pytest_gittrix.model.tapes.neutral import request_to_json
from pytest_gittrix.model.tapes.placeholders import Known
from pytest_gittrix.model.tapes.tape import Recorded, Tape, TapeLines, recorded
from pytest_gittrix.record.eventlog.events import Event

_WAIT: Final = 2.0
"""Real seconds to wait for another operation on the session; the agent's answer waits, too."""


def record_exchange(recorder: Recorder, exchange: Exchange) -> None:
    """Store an exchange as a ``model.exchange`` event of a session. One that cannot be stored is dropped: the agent waits for its answer.

    Args:
        recorder: of the session, used by this alone.
        exchange: what was asked, and what it got.
    """
    with suppress(GittrixError, OSError), recorder.leased(wait=_WAIT) as state:
        recorder.append("model.exchange", _data_of(exchange, state.turn))


class KeptExchanges:
    """Stores the exchanges of one session with what was said, and its files at each of them.

    Args:
        parts: of the session, used by this alone.
        known: gives the placeholders of the session.

    Attributes:
        run: the run of a program that they are of, whose lines read by themselves; None for all that are of no run.
    """

    run: str | None = None

    def __init__(self, parts: SessionParts, known: Callable[[], Known]) -> None:
        self._recorder, self._workspace, self._limits = parts.recorder, parts.workspace, parts.limits
        self._known = known
        self._lines: TapeLines | None = None

    def came(self) -> str | None:
        """Save the files as they are when a request comes; gives their tree, or None if they cannot be saved whole."""
        with suppress(GittrixError, OSError), self._recorder.leased(wait=_WAIT) as state:
            if state.ended:
                return None
            with self._workspace.operation():
                snapshot = current_snapshot(state, self._workspace, self._limits)
                save_checkpoint(self._recorder, self._recorder.note_touched(state, snapshot.touched), snapshot)
            return None if snapshot.left_out else snapshot.tree
        return None

    def record(self, exchange: Exchange) -> None:
        """Store an exchange, as ``record_exchange`` does, with what was said."""
        with suppress(GittrixError, OSError), self._recorder.leased(wait=_WAIT) as state:
            data = _data_of(exchange, state.turn)
            data["content"] = self._attach(readable([exchange]))
            if exchange.side is None:
                data["tape"] = self._attach(self._line(exchange))
            data |= {} if self.run is None else {"run": self.run}
            self._recorder.append("model.exchange", data)

    def _line(self, exchange: Exchange) -> str:
        if self._lines is None:
            events = [event for event in self._recorder.log.twin().read() if event.data.get("run") == self.run]
            self._lines = TapeLines(tape_of(self._recorder.directory, events).exchanges)
        return self._lines.line(recorded(exchange, self._known()))

    def _attach(self, text: str) -> str:
        sync = self._recorder.store.durability == "full"
        return attach(self._recorder.directory, text.encode("utf-8", "surrogatepass"), sync=sync)


def tape_of(directory: Path, events: Iterable[Event]) -> Tape:
    """The tape of the exchanges of a session that were kept.

    Args:
        directory: of the session.
        events: of the session.

    Raises:
        InvalidInput, PathNotFound, LogDamaged: a line is gone, or is not what it was.
    """
    kept = [event for event in events if event.type == "model.exchange" and "tape" in event.data]
    found: dict[int, Recorded] = {}
    for run in {event.data.get("run") for event in kept}:  # programs may run at the same time, and each has lines of its own
        of_run = [event for event in kept if event.data.get("run") == run]
        lines = [attached(directory, event.data["tape"]).decode("utf-8", "surrogatepass") for event in of_run]
        tape = Tape.of_lines([TapeLines().head, *lines], name=f"of {directory.name}")
        found |= {event.seq: one for event, one in zip(of_run, tape.exchanges, strict=True)}
    return Tape([found[event.seq] for event in kept])


def _data_of(exchange: Exchange, turn: str | None) -> dict[str, Any]:
    content = exchange.content
    data: dict[str, Any] = {
        "number": exchange.number,
        "protocol": exchange.request.protocol,
        "model": exchange.request.model,
        "digest": key_of(request_to_json(exchange.request)),
        "input": exchange.usage.input,
        "output": exchange.usage.output,
        "duration_ns": round(exchange.seconds * 1e9),
        "delivered": exchange.delivered,
    }
    if isinstance(content, Answer):
        data["calls"] = [call.name for call in content.calls]
    else:
        data["failure"] = content.kind
    more = {"turn": turn, "origin": exchange.origin or None, **{name: getattr(exchange, name) for name in ("fault", "side", "files")}}
    return data | {name: value for name, value in more.items() if value is not None}
