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
        capabilities = {"mcpCapabilities": {"http": True}}
        send(id=message["id"], result={"protocolVersion": params["protocolVersion"], "agentCapabilities": capabilities})
    elif method == "session/new":
        cwd, servers = params["cwd"], params["mcpServers"]
        send(id=message["id"], result={"sessionId": "s1"})
    elif method == "session/prompt":
        reason = "end_turn"
        exec(params["prompt"][0]["text"])
        send(id=message["id"], result={"stopReason": "cancelled" if cancelled else reason})
        cancelled.clear()
"""
"""Its source; ``ask`` sends a request and waits for the answer, and ``say`` is a piece of what it answers."""


MCP_SERVER = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
            "serverInfo": {"name": "words", "version": "1"}}
    else:
        result = {"content": [{"type": "text", "text": os.environ["WORD"] + " in " + os.getcwd()}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
"""A server of the Model Context Protocol with one tool, which says a word of its environment and where it works."""
USES_MCP = """
import subprocess
[server] = servers
given = {**os.environ, **{one["name"]: one["value"] for one in server["env"]}}
tool = subprocess.Popen([server["command"], *server["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=given, text=True)
def call(number, method, **params):
    tool.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\\n")
    tool.stdin.flush()
    return json.loads(tool.stdout.readline())["result"]
call(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "agent", "version": "1"})
[content] = call(2, "tools/call", name="say", arguments={})["content"]
say(content["text"].replace(cwd, "here"))
tool.stdin.close()
tool.wait()
"""
"""A prompt that calls the tool of the only server that the agent was given."""

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
