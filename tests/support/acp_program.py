"""A scripted agent of the Agent Client Protocol, with no library: the prompt is the Python that it runs."""

from __future__ import annotations

import sys

AGENT = """
import json, os, sys, time
numbers, cancelled = iter(range(1000)), []
def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()
def receive(answer_to=None):
    while True:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        message = json.loads(line)
        if message.get("method") == "session/cancel":
            cancelled.append(True)
            if answer_to is None:
                return message
        elif "method" in message or message["id"] == answer_to:
            return message
def ask(method, **params):
    number = next(numbers)
    send(id=number, method=method, params={"sessionId": "s1", **params})
    answer = receive(number)
    return answer["result"] if "result" in answer else answer["error"]["code"]
def update(which, **fields):
    send(method="session/update", params={"sessionId": "s1", "update": {"sessionUpdate": which, **fields}})
def say(text):
    update("agent_message_chunk", content={"type": "text", "text": text})
while True:
    message = receive()
    method, params = message["method"], message.get("params")
    if method == "initialize":
        send(id=message["id"], result={"protocolVersion": params["protocolVersion"], "agentCapabilities": {}})
    elif method == "session/new":
        cwd = params["cwd"]
        send(id=message["id"], result={"sessionId": "s1"})
    elif method == "session/prompt":
        reason = "end_turn"
        exec(params["prompt"][0]["text"])
        send(id=message["id"], result={"stopReason": "cancelled" if cancelled else reason})
        cancelled.clear()
"""
"""Its source; ``ask`` sends a request and waits for the answer, and ``say`` is a piece of what it answers."""


ARGV = [sys.executable, "-I", "-S", "-c", AGENT]
"""Its command line."""
MEMBER = [f"acp:{ARGV[0]}", *ARGV[1:]]
"""The command of a member that runs it."""
SAVES = """
import subprocess
subprocess.run(["git", "-C", "projects/app", "checkout", "-q", "-b", "feature"], check=True, stdout=2)
open("projects/app/new.py", "w").write("code")
"""
"""A prompt that leaves work in a member's workspace, on a branch."""


def agent_that(work: str) -> str:
    """The source of an agent that does the same at every prompt."""
    return AGENT.replace('exec(params["prompt"][0]["text"])', f"task = params['prompt'][0]['text']; exec({work!r})")
