"""An exchange with a model as the point from which a run goes another way: what was said before it, and the files at its moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.engine.agents.exchanges import tape_of
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.errors import Advice, InvalidInput
from pytest_gittrix.model.tapes.tape import Tape
from pytest_gittrix.record.eventlog.events import Event

EXCHANGE: Final = "model.exchange"
_BEGINNINGS: Final = ("run.started", "turn.started")
_SHOWN: Final = 8


@dataclass(frozen=True)
class ExchangePoint:
    """An exchange of a session, and the run of the agent that it belongs to.

    Attributes:
        seq: the event of the exchange.
        number: of the exchange.
        begin: the event of the first exchange of the run, whose files the run begins with.
        earlier: the exchanges of the run before it.
        files: the tree of the files when its request came.
        home: the digest of the files that the home of its program began with; empty for an empty home, None if that is unknown.
    """

    seq: int
    number: int
    begin: int
    earlier: Tape
    files: str
    home: str | None = None

    @classmethod
    def of(cls, recorder: Recorder, at_seq: int | None = None) -> ExchangePoint:
        """The exchange of an event.

        A run begins at the last start of a program or of a turn before it, or else with the session.

        Args:
            recorder: of the session, perhaps ended.
            at_seq: the event; that of the last exchange by default.

        Raises:
            InvalidInput: it is no exchange, or what it needs was not kept.
        """
        events = recorder.log.twin().read()
        asked = [event for event in events if event.type == EXCHANGE and "side" not in event.data]
        point = asked[-1] if at_seq is None and asked else next((event for event in asked if event.seq == at_seq), None)
        if point is None:
            raise _no_exchange(recorder.id, at_seq, [event.seq for event in asked])
        began = max((event.seq for event in events[: point.seq] if event.type in _BEGINNINGS), default=-1)
        named = point.data.get("run")
        since = began if named is None else -1
        run = [event for event in asked if since < event.seq <= point.seq and event.data.get("run") == named]
        for one in run:
            if "tape" not in one.data or (one in (run[0], point) and "files" not in one.data):
                raise _not_kept(recorder.id, one)
        kept = [event for event in asked if event.data.get("run") == named and "tape" in event.data and event.seq <= point.seq]
        lines = tape_of(recorder.directory, kept).exchanges
        earlier = Tape(lines[len(lines) - len(run) : -1])
        home = next((one.data.get("home") for one in events if one.type == "run.started" and one.data["run"] == named), None)
        return cls(point.seq, point.data["number"], run[0].seq, earlier, point.data["files"], home)


def _no_exchange(id_: str, seq: int | None, found: Sequence[int]) -> InvalidInput:
    listed = ", ".join(map(str, found[-_SHOWN:]))
    return InvalidInput(
        f"Session {id_} has no exchange with a model." if not found else f"Event {seq} of session {id_} is no exchange with a model.",
        why="A run goes another way at one of its exchanges.",
        fix=f"Its exchanges are the events {listed}." if found else "Run its agent with a model whose exchanges are kept: session run.",
        opt_out=Advice("Without model=, any event will do.", "Without --model, any event will do."),
    )


def _not_kept(id_: str, event: Event) -> InvalidInput:
    what = "files" if "tape" in event.data else "contents"
    return InvalidInput(
        f"The {what} of exchange {event.data['number']} of session {id_} were not kept.",
        why="A run is repeated up to the exchange at which it goes another way: with the answers and the files of then.",
        fix=Advice(
            "Set gittrix_model.keep_content = True before the agent starts.", "Run the agent with `gittrix session run`, which keeps them."
        ),
    )
