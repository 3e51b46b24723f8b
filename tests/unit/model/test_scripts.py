"""Scripts of a model: what each step answers, and how a script runs in agents whose tools differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model_client import ask, post, results

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.model.answers.delivery import ScriptFailed
from pytest_gittrix.model.answers.faults import fail
from pytest_gittrix.model.answers.script import call, call_any, edit, say, stop, when
from pytest_gittrix.model.answers.tools import read_call, shell_call, write_call
from pytest_gittrix.model.protocols.values import Message, Request, Text, Tool
from pytest_gittrix.model.server import ModelServer
from pytest_gittrix.testing import ModelServer as DoorsServer


@settings(max_examples=5, deadline=None)
@given(said=st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_server_from_the_door_of_tests_answers_within_given(said: str) -> None:
    with DoorsServer() as model:
        model.script(call("bash", command="ls"), say(said))
        assert [ask(model.url, "chat", "Hello").calls[0][2], ask(model.url, "chat", "And now").text] == [{"command": "ls"}, said]
        model.check()
    assert DoorsServer is ModelServer


def tool(name: str, required: tuple[str, ...] = (), **kinds: Any) -> Tool:
    properties = {one: kind if isinstance(kind, Mapping) else {"type": kind} for one, kind in kinds.items()}
    return Tool(name, "", {"type": "object", "properties": properties, "required": [*required]})


CLAUDE = (
    tool("Task", ("prompt",), prompt="string"),
    tool("Bash", ("command",), command="string", timeout="number", description="string"),
    tool("Edit", ("file_path", "old_string", "new_string"), file_path="string", old_string="string", new_string="string"),
    tool("Read", ("file_path",), file_path="string", offset="number"),
    tool("Write", ("file_path", "content"), file_path="string", content="string"),
)
CODEX = (tool("exec_command", ("cmd",), cmd="string", workdir="string"), tool("update_plan", ("plan",), plan="array"))
OLD_CODEX = (tool("shell", ("command",), command={"type": "array", "items": {"type": "string"}}, workdir="string"),)
GEMINI = (
    tool("run_shell_command", ("command",), command="STRING", description="STRING"),
    tool("read_file", ("absolute_path",), absolute_path="STRING"),
    tool("write_file", ("file_path", "content"), file_path="STRING", content="STRING"),
)
OPENCODE = (
    tool("bash", ("command", "description"), command="string", description="string"),
    tool("read", ("filePath",), filePath="string"),
    tool("write", ("filePath", "content"), filePath="string", content="string"),
)
MINI = (tool("bash", ("command",), command="string"),)
OPENHANDS = (
    tool("terminal", ("command", "security_risk"), command="string", security_risk={"type": "string", "enum": ["LOW", "HIGH"]}),
    tool("file_editor", ("command", "path"), command={"type": "string", "enum": ["view", "create"]}, path="string", file_text="string"),
)


def offering(*tools: Tool, system: str = "", said: str = "Do it") -> Request:
    return Request("chat", "m", system, (Message("user", (Text(said),)),), tools)


@pytest.mark.parametrize(
    ("tools", "name", "arguments"),
    [
        pytest.param(CLAUDE, "Bash", {"command": "ls"}, id="Claude Code"),
        pytest.param(CODEX, "exec_command", {"cmd": "ls"}, id="Codex"),
        pytest.param(OLD_CODEX, "shell", {"command": ["bash", "-lc", "ls"]}, id="a shell that takes words"),
        pytest.param(GEMINI, "run_shell_command", {"command": "ls"}, id="Gemini CLI"),
        pytest.param(OPENCODE, "bash", {"command": "ls", "description": "as the task asks"}, id="opencode"),
        pytest.param(OPENHANDS, "terminal", {"command": "ls", "security_risk": "LOW"}, id="OpenHands"),
        pytest.param((tool("do_it", ("script",), script="string"),), "do_it", {"script": "ls"}, id="a tool of an unknown name"),
    ],
)
def test_a_command_goes_to_the_tool_that_runs_commands(tools: tuple[Tool, ...], name: str, arguments: Mapping[str, Any]) -> None:
    asked = shell_call(offering(*tools), "ls")
    assert (asked.name, asked.arguments) == (name, arguments)


@pytest.mark.parametrize(
    ("tools", "name", "arguments"),
    [
        pytest.param(CLAUDE, "Write", {"file_path": "a", "content": "b"}, id="Claude Code"),
        pytest.param(CODEX, "exec_command", {"cmd": "printf %s b > a"}, id="Codex, by its shell"),
        pytest.param(GEMINI, "write_file", {"file_path": "a", "content": "b"}, id="Gemini CLI"),
        pytest.param(OPENCODE, "write", {"filePath": "a", "content": "b"}, id="opencode"),
        pytest.param(MINI, "bash", {"command": "printf %s b > a"}, id="mini-swe-agent, by its shell"),
    ],
)
def test_contents_go_to_the_tool_that_writes_files_or_else_to_the_shell(
    tools: tuple[Tool, ...], name: str, arguments: Mapping[str, Any]
) -> None:
    asked = write_call(offering(*tools), "a", "b")
    assert (asked.name, asked.arguments) == (name, arguments)


def test_a_file_is_read_by_a_tool_that_reads_or_else_by_the_shell() -> None:
    assert read_call(offering(*CLAUDE), "a b").arguments == {"file_path": "a b"}
    assert read_call(offering(*MINI), "a b").arguments == {"command": "cat 'a b'"}


def test_an_agent_without_a_tool_for_it_is_named_with_its_tools() -> None:
    with pytest.raises(CapabilityMissing, match="offers no tool that can") as refused:
        shell_call(offering(tool("ask_user", question="string")), "ls")
    assert "ask_user" in refused.value.why


def test_a_script_answers_in_order_and_is_used_up(model: ModelServer) -> None:
    model.script("one", say("two"), call("bash", command="ls"))
    first, second, third = (ask(model.url, "chat", f"message {number}") for number in range(3))
    assert (first.text, second.text, third.calls[0][2]) == ("one", "two", {"command": "ls"})
    model.check()


def test_what_a_script_has_left_fails_the_test_with_the_conversation(model: ModelServer) -> None:
    model.script("one", "two", "three")
    ask(model.url, "chat", "Hello")
    with pytest.raises(ScriptFailed, match="2 steps of the model's script were not asked for") as failed:
        model.check()
    assert "user: Hello\nmodel: one" in str(failed.value)


def test_a_script_that_nobody_asked_is_left_whole(model: ModelServer) -> None:
    model.script("one")
    with pytest.raises(ScriptFailed, match="1 step of the model's script was not asked for"):
        model.check()


def test_asking_for_more_than_a_script_has_fails_the_client_and_the_test(model: ModelServer) -> None:
    model.script("one")
    ask(model.url, "anthropic", "Hello")
    heard = ask(model.url, "anthropic", "And now?")
    assert (heard.status, "used up" in heard.error["error"]["message"]) == (400, True)
    with pytest.raises(ScriptFailed, match="after 1 of 1 answers it was asked for one more"):
        model.check()


def test_a_model_without_a_script_says_so(model: ModelServer) -> None:
    assert ask(model.url, "chat", "Hello").status == 400
    with pytest.raises(ScriptFailed, match="has no script"):
        model.check()


def test_when_takes_the_steps_that_fit_the_request(model: ModelServer) -> None:
    failed = lambda request: any("error" in one.text for one in request.results)  # noqa: E731
    model.script(call("bash", command="make"), when(failed, call("bash", command="fix"), otherwise=[say("Fine.")]), stop())
    first = ask(model.url, "chat", "Build")
    after: list[Any] = ["Build", *results("chat", first, "an error")]
    second = ask(model.url, "chat", *after)
    assert second.calls[0][2] == {"command": "fix"}
    assert ask(model.url, "chat", *after, *results("chat", second, "mended")).text == "Done."
    model.check()


def test_when_without_steps_expects_a_request(model: ModelServer) -> None:
    def passed(request: Request) -> bool:
        return any("1 passed" in one.text for one in request.results)

    model.script(call("bash", command="pytest"), when(passed), stop())
    first = ask(model.url, "chat", "Test")
    assert ask(model.url, "chat", "Test", *results("chat", first, "1 failed")).status == 400
    with pytest.raises(ScriptFailed, match=r"expected another request at this place \(.*passed"):
        model.check()


def test_steps_within_when_that_nobody_asked_for_are_left_over(model: ModelServer) -> None:
    model.script(when(lambda _: True, "one", "two"))
    ask(model.url, "chat", "Hello")
    with pytest.raises(ScriptFailed, match="1 step"):
        model.check()


def test_a_file_that_must_be_read_first_is_read_and_written_again(model: ModelServer) -> None:
    offered = [{"name": one.name, "description": "", "schema": one.schema} for one in CLAUDE]
    model.script(edit("app.py", "v2\n"), stop())
    said: list[Any] = ["Edit app.py"]
    asked = []
    for output in ("File has not been read yet. Read it first before writing to it.", "v1", "written"):
        heard = ask(model.url, "anthropic", *said, tools=offered)
        asked.append(heard.calls[0][1])
        said += results("anthropic", heard, output)
    assert asked == ["Write", "Read", "Write"]
    assert ask(model.url, "anthropic", *said, tools=offered).text == "Done."
    model.check()


def test_where_a_tool_takes_only_absolute_paths_the_shell_writes_the_file(model: ModelServer) -> None:
    offered = [{"name": one.name, "description": "", "schema": one.schema} for one in CLAUDE]
    model.script(edit("app.py", "v2\n"), stop())
    said: list[Any] = ["Edit app.py"]
    asked = []
    for output in ("File path must be absolute: app.py", "written"):
        heard = ask(model.url, "anthropic", *said, tools=offered)
        asked.append(heard.calls[0][1:])
        said += results("anthropic", heard, output)
    assert asked[1] == ("Bash", {"command": "printf %s 'v2\n' > app.py"})
    assert ask(model.url, "anthropic", *said, tools=offered).text == "Done."
    model.check()


def test_an_agent_without_tools_gets_an_edit_as_a_block_of_text(model: ModelServer) -> None:
    model.script(edit("app.py", "v2\n"))
    system = {"role": "system", "content": "Use blocks: <<<<<<< SEARCH ... ======= ... >>>>>>> REPLACE"}
    heard = ask(model.url, "chat", system, "app.py\n```\nv1\n```\n\nMake it v2", tools=())
    assert heard.text == "app.py\n```\n<<<<<<< SEARCH\nv1\n=======\nv2\n>>>>>>> REPLACE\n```\n"


@pytest.mark.parametrize(
    ("request_", "text", "call_"),
    [
        (offering(*MINI), "Done.", None),
        (offering(*MINI, tool("finish", ("message",), message="string")), "", ("finish", {"message": "Done."})),
        (
            offering(*MINI, said="To end, run echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
            "",
            ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
        ),
    ],
)
def test_stop_ends_a_task_in_the_way_of_the_agent(request_: Request, text: str, call_: tuple[str, Any] | None) -> None:
    answer: Any = next(stop()(request_))
    assert answer.text == text
    assert [(one.name, one.arguments) for one in answer.calls] == ([call_] if call_ else [])


def test_conversations_of_two_agents_have_scripts_of_their_own(model: ModelServer) -> None:
    model.script("for all others", "for all others again")
    model.script("for the reviewer", about="review")
    assert ask(model.url, "chat", "Please review this").text == "for the reviewer"
    assert ask(model.url, "anthropic", "Please write this").text == "for all others"
    assert ask(model.url, "gemini", "Please test this").text == "for all others again"
    assert model.conversation("review") == "user: Please review this\nmodel: for the reviewer"
    model.check()


@pytest.mark.parametrize(
    "asks", ["Generate a title for: Hello", "Generate a concise, sentence-case title (3-7 words) of this session: Hello"]
)
def test_a_title_is_answered_beside_the_script_and_is_not_counted(model: ModelServer, asks: str) -> None:
    model.script("one")
    shape = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"title": {"type": "string"}}}}}
    title = ask(model.url, "chat", asks, tools=(), response_format=shape)
    assert title.text == '{"title": "A task"}'
    assert ask(model.url, "chat", "Hello").text == "one"
    assert [one.side for one in model.exchanges] == ["title", None]
    assert [request.text for request in model.requests] == ["Hello"]
    model.check()


def test_a_function_is_a_script_too(model: ModelServer) -> None:
    model.answer_with(lambda request: request.text.upper())
    assert [ask(model.url, "chat", word).text for word in ("one", "two")] == ["ONE", "TWO"]
    model.check()


def test_all_that_ever_left_can_be_searched(model: ModelServer) -> None:
    model.script(call("bash", command="cat .env"), stop())
    first = ask(model.url, "chat", "Look")
    ask(model.url, "chat", "Look", *results("chat", first, 'KEY="a\nsecret"'))
    assert 'KEY="a\nsecret"' in model.sent
    assert "another secret" not in model.sent


def test_keys_are_told_apart_from_all_that_was_sent(model: ModelServer, tmp_path: Path) -> None:
    model.tape(tmp_path / "tape.jsonl", "rewrite")
    model.script("one", "two")
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    post(model.url, "/v1/messages", body, {"x-api-key": "sk-of-a-person"})
    post(model.url, "/v1/chat/completions", body, {"authorization": "Bearer another-key"})
    model.check()

    assert model.keys == {"sk-of-a-person", "another-key"}
    for text in (model.sent, (tmp_path / "tape.jsonl").read_text(), repr(model.exchanges)):
        assert not any(key in text for key in model.keys)


@pytest.mark.parametrize("wrong", [3, ModelServer, object()])
def test_what_is_no_step_is_named(model: ModelServer, wrong: Any) -> None:
    model.script(wrong)
    assert ask(model.url, "chat", "Hello").status == 400
    with pytest.raises(ScriptFailed, match="is not a step of a model's script"):
        model.check()


def test_call_any_takes_one_thing_to_do() -> None:
    with pytest.raises(InvalidInput, match="takes one thing"):
        call_any()
    with pytest.raises(InvalidInput, match="takes one thing"):
        call_any(shell="ls", read="a")


def test_an_equal_request_is_the_next_exchange_when_its_answer_came(model: ModelServer) -> None:
    model.script("one", "two")
    assert [ask(model.url, "chat", "Hello").text for _ in range(2)] == ["one", "two"]


def test_a_request_that_is_sent_again_after_an_error_gets_what_is_next(model: ModelServer) -> None:
    model.script(fail(429), fail(500), "one", "two")
    assert [ask(model.url, "chat", "Hello").status for _ in range(2)] == [429, 500]
    assert [ask(model.url, "chat", "Hello").text for _ in range(2)] == ["one", "two"]
    model.check()
