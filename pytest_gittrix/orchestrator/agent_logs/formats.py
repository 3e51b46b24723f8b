"""What the coding agents of the field write in their homes: where, and what each kind of record means.

The formats are those of Claude Code 2.1, Codex 0.171, pi 0.73, Gemini CLI 0.61 and opencode 1.18. They are no contract of theirs: a record
that no rule knows is passed over, and an agent whose files say nothing has no activity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pytest_gittrix.orchestrator.agent_logs.rules import ANY, ActivityRule, RecordFormat


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A kind of logs of JSON lines, of which an agent writes one for each of its conversations.

    Attributes:
        places: where they are in a home; ``*`` is any text without ``/``.
        records: how their records are read.
        whose: the key of the working directory in one of a log's first records.
        named: how a working directory is written there.
    """

    places: tuple[str, ...]
    records: RecordFormat
    whose: str = "cwd"
    named: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class DatabaseFormat:
    """A kind of database.

    Attributes:
        place: where it is in a home.
        sql: gives records as JSON, the newest first; ``:directory`` is the working directory, or null for those of any.
        records: how these are read.
    """

    place: str
    sql: str
    records: RecordFormat


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


_QUESTIONS: Final = ("AskUserQuestion", "ExitPlanMode")
_STOPPED: Final = ("[Request interrupted by user]", "[Request interrupted by user for tool use]")
_CLAUDE: Final = RecordFormat(
    (
        ActivityRule({"type": "assistant", "isApiErrorMessage": True}, "blocked"),
        ActivityRule({"type": "assistant", "message.content.name": _QUESTIONS}, "waiting_input", calls="message.content.id"),
        ActivityRule({"type": "assistant", "message.content.type": "tool_use"}, "active", calls="message.content.id"),
        # The agent that started a subagent goes on when that has finished.
        ActivityRule({"type": "assistant", "isSidechain": True}, "active"),
        ActivityRule({"type": "assistant", "message.stop_reason": ("end_turn", "stop_sequence", "max_tokens", "refusal")}, "ready"),
        ActivityRule({"type": "assistant"}, "active"),
        ActivityRule({"type": "user", "message.content.text": _STOPPED}, "ready"),
        ActivityRule({"type": "user", "message.content": _STOPPED}, "ready"),
        ActivityRule({"type": "user", "message.content.type": "tool_result"}, "active", answers="message.content.tool_use_id"),
        ActivityRule({"type": "user"}, "active"),
        ActivityRule({"type": "system", "subtype": "turn_duration"}, "ready"),
        ActivityRule({"type": "system", "subtype": "api_error"}, "active"),
    ),
    trusted={"permissionMode": ("bypassPermissions",)},
)

_CALLS: Final = ("function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output", "tool_search_output")
_CODEX: Final = RecordFormat(
    (
        ActivityRule({"type": "event_msg", "payload.type": "task_complete", "payload.error": ANY}, "blocked"),
        ActivityRule({"type": "event_msg", "payload.type": ("task_complete", "turn_complete", "turn_aborted")}, "ready"),
        ActivityRule({"type": "event_msg", "payload.type": ("error", "stream_error")}, "blocked"),
        ActivityRule({"type": "event_msg", "payload.type": ("task_started", "turn_started", "user_message", "agent_message")}, "active"),
        ActivityRule({"type": "response_item", "payload.name": "request_user_input"}, "waiting_input", calls="payload.call_id"),
        ActivityRule({"type": "response_item", "payload.type": _CALLS, "payload.call_id": ANY}, "active", calls="payload.call_id"),
        ActivityRule({"type": "response_item", "payload.type": _OUTPUTS}, "active", answers="payload.call_id"),
        ActivityRule({"type": "response_item"}, "active"),
    ),
    trusted={"payload.approval_policy": ("never",)},
)

_PI: Final = RecordFormat(
    (
        ActivityRule({"message.role": "assistant", "message.stopReason": "error"}, "blocked"),
        ActivityRule({"message.role": "assistant", "message.stopReason": "aborted"}, "ready"),
        ActivityRule({"message.role": "assistant", "message.content.type": "toolCall"}, "active", calls="message.content.id"),
        ActivityRule({"message.role": "assistant", "message.stopReason": ("stop", "length")}, "ready"),
        ActivityRule({"message.role": "toolResult"}, "active", answers="message.toolCallId"),
        ActivityRule({"message.role": ANY}, "active"),
    ),
    asks=False,
)

_GEMINI: Final = RecordFormat(
    (
        ActivityRule({"type": "error"}, "blocked"),
        # A call is written once it has its result, and then the model goes on.
        ActivityRule({"type": "gemini", "toolCalls.id": ANY}, "active"),
        ActivityRule({"type": "gemini"}, "ready"),
        ActivityRule({"type": "user"}, "active"),
    )
)

_OPENCODE: Final = RecordFormat(
    (
        ActivityRule({"message.error.name": "MessageAbortedError"}, "ready"),
        ActivityRule({"message.error.name": ANY}, "blocked"),
        ActivityRule({"part.tool": "question", "part.state.status": ("pending", "running")}, "waiting_input", calls="part.callID"),
        ActivityRule({"part.type": "tool", "part.state.status": ("pending", "running")}, "active", calls="part.callID"),
        # The session that started another one goes on when that has finished.
        ActivityRule({"child": 1, "message.finish": ANY}, "active"),
        ActivityRule({"message.finish": ("stop", "length", "content-filter")}, "ready"),
        ActivityRule({"part.type": "tool"}, "active", answers="part.callID"),
        ActivityRule({"message.role": ANY}, "active"),
    ),
    time="time",
)
_OPENCODE_SQL: Final = """
SELECT json_object('message', json(message.data), 'part', json(part.data), 'child', session.parent_id IS NOT NULL,
                   'time', max(message.time_updated, coalesce(part.time_updated, 0)))
FROM (SELECT message.* FROM message JOIN session ON session.id = message.session_id
      WHERE :directory IS NULL OR session.directory = :directory ORDER BY message.time_created DESC, message.id DESC LIMIT 8) AS message
JOIN session ON session.id = message.session_id LEFT JOIN part ON part.message_id = message.id
ORDER BY message.time_created DESC, message.id DESC, part.time_created DESC, part.id DESC
"""

LOGS: Final[Mapping[str, LogFormat]] = {
    "claude": LogFormat((".claude/projects/*/*.jsonl", ".claude/projects/*/*/subagents/*.jsonl"), _CLAUDE),
    "codex": LogFormat((".codex/sessions/*/*/*/rollout-*.jsonl",), _CODEX, "payload.cwd"),
    "pi": LogFormat((".pi/agent/sessions/*/*.jsonl",), _PI),
    "gemini": LogFormat((".gemini/tmp/*/chats/*.jsonl",), _GEMINI, "projectHash", _sha256),
}
"""The agents that write logs."""

DATABASES: Final[Mapping[str, DatabaseFormat]] = {"opencode": DatabaseFormat(".local/share/opencode/opencode.db", _OPENCODE_SQL, _OPENCODE)}
"""The agents that write databases."""
