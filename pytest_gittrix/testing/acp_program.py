"""The agent of ``acp_story``: it speaks the Agent Client Protocol, and does by each prompt what the story wants.

It is run by its path, without this package, in the confinement of its session.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

GREETING = 'def greet():\n    return "hello"\n'
FAREWELL = 'def leave():\n    return "goodbye"\n'
TESTS = "import app\n\nassert app.greet() == 'hello'\nprint('1 passed')\n"
_CANCEL = "session/cancel"
_OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


class Cancelled(Exception):
    """The turn is cancelled."""


class StoryAgent:
    """One agent on standard input and output."""

    def __init__(self) -> None:
        self._cwd = ""
        self._asked = 0
        self._calls = 0

    def serve(self) -> None:
        """Answer until the client goes away."""
        for message in self._messages():
            number, parameters = message.get("id"), message.get("params", {})
            match message.get("method"):
                case "initialize":
                    self._send(id=number, result={"protocolVersion": parameters["protocolVersion"], "agentCapabilities": {}})
                case "session/new":
                    self._cwd = parameters["cwd"]
                    self._send(id=number, result={"sessionId": "one"})
                case "session/prompt":
                    self._send(id=number, result={"stopReason": self._turn(parameters["prompt"][0]["text"])})

    def _turn(self, prompt: str) -> str:
        try:
            if prompt == "greet":
                self._edit("app.py", GREETING)
                self._edit("test_app.py", TESTS)
                self._run(sys.executable, "test_app.py")
                self._run("sleep", "600")
            elif prompt == "go on":
                self._say("The tests pass.")
            elif prompt == "leave":
                self._edit("farewell.py", FAREWELL)
        except Cancelled:
            return "cancelled"
        return "end_turn"

    def _edit(self, name: str, text: str) -> None:
        """Write a file, if that is permitted."""
        call = self._call("edit", f"Write {name}")
        answer = self._ask("session/request_permission", toolCall={"toolCallId": call, "title": f"Write {name}"}, options=_OPTIONS)
        permitted = answer["outcome"].get("optionId") == "yes"
        if permitted:
            self._ask("fs/write_text_file", path=os.path.join(self._cwd, name), content=text)
        self._update("tool_call_update", toolCallId=call, status="completed" if permitted else "failed")

    def _run(self, *argv: str) -> None:
        """Run a program in a terminal, and say what it printed."""
        call = self._call("execute", " ".join(argv[1:]))
        terminal = self._ask("terminal/create", command=argv[0], args=[*argv[1:]], cwd=self._cwd)["terminalId"]
        try:
            ended = self._ask("terminal/wait_for_exit", terminalId=terminal)
        except Cancelled:
            self._ask("terminal/release", terminalId=terminal)
            raise
        printed = self._ask("terminal/output", terminalId=terminal)["output"]
        self._ask("terminal/release", terminalId=terminal)
        self._update("tool_call_update", toolCallId=call, status="failed" if ended["exitCode"] else "completed", rawOutput=printed)

    def _call(self, kind: str, title: str) -> str:
        self._calls += 1
        self._update("tool_call", toolCallId=f"call-{self._calls}", title=title, kind=kind, status="in_progress")
        return f"call-{self._calls}"

    def _say(self, text: str) -> None:
        self._update("agent_message_chunk", content={"type": "text", "text": text})

    def _update(self, update: str, /, **fields: Any) -> None:
        self._send(method="session/update", params={"sessionId": "one", "update": {"sessionUpdate": update, **fields}})

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the client for something. Raises Cancelled if the turn is cancelled meanwhile."""
        self._asked += 1
        self._send(id=self._asked, method=method, params={"sessionId": "one", **parameters})
        for message in self._messages():
            if message.get("method") == _CANCEL:
                raise Cancelled
            if message.get("id") == self._asked and "method" not in message:
                answer: dict[str, Any] = message["result"]
                return answer
        raise SystemExit

    @staticmethod
    def _messages() -> Iterator[dict[str, Any]]:
        while line := sys.stdin.readline():
            yield json.loads(line)

    @staticmethod
    def _send(**message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    StoryAgent().serve()
