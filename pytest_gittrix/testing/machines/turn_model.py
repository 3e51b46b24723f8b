"""The model of ``turn_machine``: each session's expected history, its open calls and its turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.testing.machines.machine_base import MachineSession, require_equal
from pytest_gittrix.testing.machines.scripted_turn import Running
from pytest_gittrix.testing.oracle import require
from pytest_gittrix.testing.session_model import FINE

ENDED: Final = frozenset({"SESSION_EXPIRED"})
ExpectedEvent = tuple[str, dict[str, Any] | None]
"""What is expected of an event: its type, and its data; None for any data."""


@dataclass(eq=False, repr=False)
class TurnSession(MachineSession):
    """One session and its expected state.

    Attributes:
        events: its expected history.
        calls: the tool of each call without an answer, by the id of the call.
        running: its turn; None while none runs.
        lost: the name of a turn that died with its engine.
        over: interrupted turns whose threads still run.
        written: whether a file was ever written.
        unsaved: whether a file was written since the last checkpoint.
        ended: whether it has ended.
    """

    events: list[ExpectedEvent]
    calls: dict[str, str] = field(default_factory=dict)
    running: Running | None = None
    lost: str | None = None
    over: list[Running] = field(default_factory=list)
    written: bool = False
    unsaved: bool = False
    ended: bool = False

    @property
    def allowed(self) -> frozenset[str]:
        """The answers to an operation that only a live session allows."""
        return ENDED if self.ended else FINE

    def happens(self, type_: str, data: dict[str, Any] | None) -> None:
        """Enter an event; calls are opened and answered by it."""
        if type_ == "tool_call" and data:
            self.calls[data["call_id"]] = data["name"]
        if type_ == "tool_result" and data:
            self.calls.pop(data["call_id"], None)
        if type_ == "session.write":
            self.written = self.unsaved = True
        self.events.append((type_, data))

    def turn_starts(self, runs: str) -> str:
        """Enter that a turn starts, after all that an earlier turn left open is closed; gives its name."""
        self.lost_turn_ends()
        self.orphans_are_answered("before_start_turn")
        self.files_are_saved()
        ref = f"t{len(self.events)}"
        self.happens("turn.started", {"turn": ref, "runs": runs})
        return ref

    def lost_turn_ends(self) -> None:
        """Enter the end of a turn that died with its engine, if there is such a turn."""
        if self.lost is not None:
            self.happens("turn.ended", {"turn": self.lost, "status": "lost"})
            self.lost = None

    def turn_ends(self, ref: str, status: str, error: str | None) -> None:
        """Enter the end of a turn; if it was interrupted, its open calls are answered."""
        self.files_are_saved()
        reason = {"reason": error} if error is not None and status == "failed" else {}
        self.happens("turn.ended", {"turn": ref, "status": status, **reason})
        if status == "interrupted" and not self.ended:
            self.orphans_are_answered("interrupt")

    def files_are_saved(self) -> None:
        """Enter a checkpoint, if files were written since the last one."""
        if self.unsaved and not self.ended:
            self.events.append(("workspace.kept", None))
            self.unsaved = False

    def orphans_are_answered(self, reason: str) -> None:
        """Enter the documented answer to each open call, in the order of their ids."""
        for call_id, tool in sorted(self.calls.items()):
            details = {"call_id": call_id, "tool": tool, "reason": reason}
            error = {"kind": "orphan_tool_call", "message": "The call was never answered.", "details": details}
            self.happens("tool_result", {"call_id": call_id, "ok": False, "error": error})


def require_turns_in_order(events: Iterable[Event]) -> None:
    """Raise AssertionError unless turns follow one another, and an orphan's answer is that of a call that is open."""
    turn: str | None = None
    calls: dict[str, str] = {}
    for event in events:
        data = event.data
        if event.type == "turn.started":
            require(turn is None, "A turn begins when the one before it is over.", f"event {event.seq} comes during {turn}")
            turn = data["turn"]
        elif event.type == "turn.ended":
            require_equal("The turn that ends is the one that runs.", turn, data["turn"])
            turn = None
        elif event.type == "tool_call":
            calls[data["call_id"]] = data["name"]
        elif event.type == "tool_result":
            tool = calls.pop(data["call_id"], None)
            if "error" in data:
                require_equal("An orphan's answer is that of a call that is open.", tool, data["error"]["details"]["tool"])
