"""Records what an agent reports while it works, as events of its session's conversation.

Whole texts, tool calls, their results and decisions are stored; pieces of texts and plans are only announced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

SOURCE: Final = "acp"
"""The source of the workflow events that are recorded of an agent."""

_ENDED: Final = ("completed", "failed")


class Log(Protocol):
    """What a conversation is recorded in: a session, or what does the same."""

    def record(self, type: str, data: Mapping[str, Any], /) -> object:
        """Store an event of the conversation."""
        ...

    def emit(self, type: str, data: Mapping[str, Any], /) -> None:
        """Announce an event without storing it."""
        ...


class Transcript:
    """Records the conversation of one agent; one thread at a time calls it.

    Args:
        log: what it is recorded in. Each method raises what its ``record`` raises.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._text: list[str] = []
        self._said: list[str] = []
        self._open: dict[str, str] = {}

    def begin(self, text: str) -> None:
        """Record a person's prompt, after what came late of the turn before. Calls that began late have failed, too."""
        self._flush()
        self._fail_open("cancelled")
        self._said = []
        self._log.record("user_message", {"text": text})

    def take(self, update: Mapping[str, Any]) -> None:
        """Record an update of the agent, as the protocol's JSON has it."""
        kind = update.get("sessionUpdate")
        match kind:
            case "agent_message_chunk":
                text = update["content"].get("text", "")
                self._text.append(text)
                self._log.emit("text_delta", {"chunk": text})
            case "agent_thought_chunk":
                self._log.emit("reasoning_delta", {"chunk": update["content"].get("text", "")})
            case "plan":
                self._log.emit("plan", {"entries": update["entries"]})
            case "tool_call" | "tool_call_update":
                self._take_call(update)
            case "usage_update":
                self._log.record("provider_usage", _without_kind(update))
            case _:
                self._log.record("workflow_event", {"source": SOURCE, "update": kind, **_without_kind(update)})

    def decided(self, call: str, decision: str) -> None:
        """Record what was decided about a call."""
        self._log.record("permission_decision", {"call_id": call, "decision": decision})

    def end(self, reason: str) -> str:
        """Record the end of the prompt, and return what the agent said. Calls that it left open have failed."""
        self._flush()
        self._fail_open(reason)
        self._log.record("workflow_event", {"source": SOURCE, "stop_reason": reason})
        return "".join(self._said)

    def _fail_open(self, reason: str) -> None:
        for call in [*self._open]:
            self._result(call, ok=False, error=reason)

    def _take_call(self, update: Mapping[str, Any]) -> None:
        call, status = update["toolCallId"], update.get("status")
        if (call not in self._open and status not in _ENDED) or update["sessionUpdate"] == "tool_call":
            self._flush()
            self._open[call] = update.get("kind") or "other"
            arguments = update.get("rawInput")
            named = {"title": update.get("title") or "", "locations": [one["path"] for one in update.get("locations") or []]}
            self._log.record(
                "tool_call",
                {"call_id": call, "name": self._open[call], "args": arguments if isinstance(arguments, Mapping) else named},
            )
        if status in _ENDED and call in self._open:
            self._result(call, ok=status == "completed", output=update.get("rawOutput"))

    def _result(self, call: str, *, ok: bool, output: Any = None, error: str | None = None) -> None:
        del self._open[call]
        more = {name: value for name, value in (("output", output), ("error", error)) if value is not None}
        self._log.record("tool_result", {"call_id": call, "ok": ok, **more})

    def _flush(self) -> None:
        if self._text:
            text = "".join(self._text)
            self._said.append(text)
            self._text.clear()
            self._log.record("assistant_message", {"text": text})


def _without_kind(update: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in update.items() if name not in ("sessionUpdate", "_meta")}
