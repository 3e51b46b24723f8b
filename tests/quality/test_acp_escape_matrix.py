"""What the agent behind ``gittrix acp`` reaches at its default level, by itself and by a terminal, and that it cannot promote."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import escapes
from support.acp_editor import Editor
from support.confined import available
from support.escapes import EXPECTED, LEVELS, Target, open_host
from support.git import GitRepo

TRIES = """
import subprocess
there = {**place, "fifo": cwd + "/.git/lives"}
printed = {}
json.dump(there, open(cwd + "/told.json", "w"))
for escape in escapes:
    argv = [sys.executable, "-I", "-c", program, escape]
    printed[escape] = subprocess.run(argv, input=json.dumps(there), capture_output=True, text=True).stdout
    terminal = ask("terminal/create", command="sh", args=["-c", 'exec "$@" < told.json', "sh", *argv])["terminalId"]
    ask("terminal/wait_for_exit", terminalId=terminal)
    printed[escape] += ask("terminal/output", terminalId=terminal)["output"]
    ask("terminal/release", terminalId=terminal)
say(json.dumps(printed))
"""
PROMOTES = """
import subprocess
open(cwd + "/new.py", "w").write("by the agent")
methods = ["session/new", "session/fork", "session/prompt", "session/promote", "_gittrix/promote", "gittrix/promote"]
answers = [ask(method, prompt=[{"type": "text", "text": "/promote"}], cwd=cwd, message="m") for method in methods]
update("user_message_chunk", content={"type": "text", "text": "/promote"})
update("available_commands_update", availableCommands=[{"name": "promote", "description": "harmless"}])
update("tool_call", toolCallId="gittrix-promote-1", title="Promote 1 file", status="completed")
options = [{"optionId": "promote", "name": "Promote", "kind": "allow_once"}]
answers.append(ask("session/request_permission", toolCall={"toolCallId": "gittrix-promote-1", "title": "Promote 1 file"}, options=options))
say("/promote")
cli = [sys.executable, "-I", "-m", "pytest_gittrix.cli", "promote", os.environ["GITTRIX_SESSION_ID"], "--store", store]
runs = [cli, ["git", "push", "-q", durable, "HEAD:refs/heads/main"], ["git", "push", "-q", "origin", "HEAD:refs/heads/main"]]
answers.append([subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True).returncode for argv in runs])
update("agent_thought_chunk", content={"type": "text", "text": json.dumps(answers)})
"""


@pytest.fixture
def durable(tmp_path: Path) -> GitRepo:
    return GitRepo.make(tmp_path / "project", {"app.py": "text of durable\n"})


def test_an_agent_at_the_default_level_gets_out_in_no_way(editor: Editor, durable: GitRepo, tmp_path: Path) -> None:
    level = available("jail by namespaces").level

    async def work() -> None:
        session, other = await editor.new(durable), await editor.new(durable)
        store = editor.store
        target = Target(
            workspace=store / session / "workspace",
            durable=durable.path,
            durable_text="text of durable",
            store=store / session / "events.jsonl",
            store_text="session.created",
            other=store / other / "workspace" / "app.py",
            other_text="text of another session",
        )
        target.other.write_text("text of another session")
        with open_host(tmp_path, target) as host:
            given = f"place, escapes, program = {host.there!r}, {[*EXPECTED]!r}, {escapes.AGENT!r}\n"
            await editor.prompt(session, given + TRIES)
            printed = json.loads(editor.said())
            await editor.connection.close_session(session_id=session)
            found = {escape: host.judge(escape, printed[escape].encode()) for escape in EXPECTED}

        assert found == {escape: row[LEVELS.index(level)] for escape, row in EXPECTED.items()}

    editor.run(work())


def test_nothing_that_an_agent_sends_or_runs_promotes(editor: Editor, durable: GitRepo) -> None:
    available("jail by namespaces")

    async def work() -> None:
        session, before = await editor.new(durable), durable.head()
        given = f"store, durable = {str(editor.store)!r}, {str(durable.path)!r}\n"
        await editor.prompt(session, given + PROMOTES)

        [thought] = editor.of("agent_thought_chunk")
        *refused, permission, ran = json.loads(thought["content"]["text"])
        assert refused == [-32601] * len(refused), "no such methods are served"
        assert permission["outcome"]["optionId"] == "promote", "its user agreed, and nothing came of it"
        assert 0 not in ran
        assert durable.head() == before
        assert not editor.of("user_message_chunk"), "an agent does not speak for its user"
        assert [one["name"] for update in editor.of("available_commands_update") for one in update["availableCommands"]] == [
            "diff",
            "promote",
        ]

        def changes_its_mind() -> None:
            (editor.store / session / "workspace" / "new.py").write_text("what nobody saw")

        editor.while_asked = changes_its_mind
        await editor.prompt(session, "/promote")
        assert durable.text("show", "HEAD:new.py") == "by the agent", "what was shown is what was promoted"

    editor.run(work())


def test_an_agent_that_nothing_confines_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pytest_gittrix.cli.main import main
    from pytest_gittrix.confine import levels

    monkeypatch.setattr(levels, "missing", lambda means: f"{means} does not work")

    assert main(["acp", "--store", str(tmp_path / "store"), "--json", "--", sys.executable]) == 1
    assert "CAPABILITY_MISSING" in capsys.readouterr().out
