"""``gittrix acp`` as an editor has it: the protocol's own client over real pipes, and a scripted agent confined in each session."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import acp
import pytest
from acp import schema
from markdown_it import MarkdownIt
from support.acp_editor import Editor
from support.acp_program import MCP_SERVER, USES_MCP
from support.git import GitRepo

from pytest_gittrix.acp.mcp_servers import reaches
from pytest_gittrix.confine.network import check_network
from pytest_gittrix.engine.engine import GitTrix

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")


@pytest.fixture
def durable(tmp_path: Path) -> GitRepo:
    return GitRepo.make(tmp_path / "project", {"app.py": "v1\n"})


WRITES = """
ask("fs/write_text_file", path=cwd + "/new.py", content="# new\\n")
update("tool_call", toolCallId="c1", title="Write", kind="edit", status="completed", locations=[{"path": cwd + "/new.py"}])
say("written")
"""


def turns_of(editor: Editor, session: str) -> list[tuple[str, str]]:
    """Where each turn ran, and how it ended; each has one prompt and one stop reason, and there are no others."""
    with GitTrix(None, store=editor.store) as engine:
        events = engine.history(session)
    wanted = ("turn.started", "user_message", "workflow_event", "turn.ended")
    order = [event.type for event in events if event.type in wanted and "update" not in event.data]
    assert order == [*wanted] * (len(order) // len(wanted))
    runs, ends = ([event for event in events if event.type == f"turn.{name}"] for name in ("started", "ended"))
    return [(run.data["runs"], end.data["status"]) for run, end in zip(runs, ends, strict=True)]


def test_a_conversation_ends_in_one_commit_that_its_user_agreed_to(editor: Editor, durable: GitRepo) -> None:
    async def work() -> None:
        session = await editor.new(durable)
        assert await editor.prompt(session, WRITES) == "end_turn"
        assert [one["name"] for one in editor.of("available_commands_update")[0]["availableCommands"]] == ["diff", "promote"]
        [location] = editor.of("tool_call")[0]["locations"]
        assert Path(location["path"]).read_text() == "# new\n", "the editor can open it"
        assert editor.said() == "written"

        await editor.prompt(session, "open(cwd + '/app.py', 'w').write('v1 \u202e reversed')")
        await editor.prompt(session, "/diff")
        assert "+v1 \\u202e reversed" in editor.said(), "nothing in a diff hides what it says"
        await editor.prompt(session, "open(cwd + '/app.py', 'w').write('v1\\n')")
        await editor.prompt(session, "/diff")
        assert "+# new" in editor.said()
        editor.answer = "reject_once"
        await editor.prompt(session, "/promote Add new")
        assert editor.said() == "Nothing was promoted."
        assert durable.text("log", "--format=%s") == "first"
        editor.answer = "allow_once"
        await editor.prompt(session, "/promote Add new")
        assert editor.said().startswith("Promoted 1 file to ")
        assert editor.asked == ["Promote 1 file"] * 2
        shown = [call.removeprefix("gittrix-promote-") for call in editor.calls]
        assert [len({*shown}), *map(len, shown)] == [2, 64, 64], "an agent cannot guess under which id its changes are shown"
        assert durable.text("show", "HEAD:new.py") == "# new"
        assert durable.text("log", "-1", "--format=%s") == "Add new"

        theirs = durable.commit({"other.py": "theirs\n"})
        await editor.prompt(session, "say(open(cwd + '/new.py').read()); open(cwd + '/more.py', 'w').write('more')")
        assert editor.said() == "# new\n", "the same agent goes on"
        await editor.prompt(session, "/promote Add more")
        sha = editor.said().rpartition(" as ")[2].removesuffix(".")
        assert durable.text("show", f"{sha}:more.py") == "more"
        assert durable.text("rev-parse", f"{sha}^") == theirs

    editor.run(work())


def test_conversations_are_cancelled_forked_listed_closed_and_loaded(editor: Editor, durable: GitRepo) -> None:
    async def work() -> None:
        first, other = await editor.new(durable), await editor.new(durable)
        hangs = asyncio.create_task(editor.prompt(first, "say('hanging'); receive()"))
        while not editor.of("agent_message_chunk"):
            await asyncio.sleep(0.005)
        with GitTrix(None, store=editor.store) as engine:
            assert engine.view(first, "pixir")["turn_running?"], "whoever looks at the session sees it"
        await editor.connection.cancel(session_id=first)
        assert await hangs == "cancelled"
        assert await editor.prompt(first, WRITES) == "end_turn"
        await editor.prompt(first, "/diff")
        assert turns_of(editor, first) == [("task", "interrupted"), ("task", "done")]

        fork = (await editor.connection.fork_session(session_id=first, cwd=str(durable.path))).session_id
        editor.updates.clear()
        await editor.prompt(fork, "say(open(cwd + '/new.py').read())")
        await editor.prompt(other, "say(str(os.path.exists(cwd + '/new.py')))")
        assert editor.said() == "# new\nFalse"

        listed = (await editor.connection.list_sessions(cwd=str(durable.path))).sessions
        assert {one.session_id for one in listed} == {first, other, fork}
        await editor.connection.close_session(session_id=first)
        with pytest.raises(acp.RequestError, match="Invalid params"):
            await editor.prompt(first, "say('gone')")
        editor.updates.clear()
        await editor.connection.load_session(session_id=first, cwd=str(durable.path))
        kinds = [one["sessionUpdate"] for one in editor.updates if one["sessionUpdate"] != "available_commands_update"]
        assert kinds[:2] == ["user_message_chunk", "agent_message_chunk"]
        assert kinds[-3:] == ["tool_call", "tool_call_update", "agent_message_chunk"]
        editor.updates.clear()
        assert await editor.prompt(first, "say(open(cwd + '/new.py').read())") == "end_turn"
        assert editor.said() == "# new\n"

    editor.run(work())


def test_what_an_agent_asks_its_user_decides_and_an_agent_that_dies_is_started_again(editor: Editor, durable: GitRepo) -> None:
    asks = """
answer = ask("session/request_permission", toolCall={"toolCallId": "c1", "title": "Delete"},
    options=[{"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "name": "No", "kind": "reject_once"}])
say(answer["outcome"].get("optionId", "none"))
"""

    async def work() -> None:
        session = await editor.new(durable)
        for editor.answer in ("allow_once", "reject_once", None):
            await editor.prompt(session, asks)
        assert (editor.asked, editor.said()) == (["Delete"] * 3, "ynnone")
        with pytest.raises(acp.RequestError):
            await editor.prompt(session, "os._exit(3)")
        assert turns_of(editor, session)[2:] == [("task", "done"), ("task", "failed")]
        assert await editor.prompt(session, "say('back')") == "end_turn"
        assert editor.said() == "back"
        editor.answer = "allow_once"
        durable.commit({"app.py": "theirs\n"})
        await editor.prompt(session, "open(cwd + '/app.py', 'w').write('ours')")
        await editor.prompt(session, "/promote")
        assert "app.py" in editor.said()
        assert durable.text("show", "HEAD:app.py") == "theirs"

    editor.run(work())


def shown_in_one_fence(text: str) -> str:
    [fence] = MarkdownIt().parse(text)
    assert fence.type == "fence"
    return fence.content


def test_nothing_in_a_diff_ends_the_fence_that_shows_it(editor: Editor, durable: GitRepo) -> None:
    durable.commit({"page.md": "one\n ```\n<!--\n~~~\nlast\n"})
    linked = acp.resource_link_block("app.py", f"file://{durable.path}/app.py")

    async def work() -> None:
        session = await editor.new(durable)
        writes = "open(cwd + '/page.md', 'a').write('more'); open(cwd + '/-->.pem', 'w').write('-----BEGIN RSA PRIVATE KEY-----')"
        await editor.prompt(session, writes)
        await editor.connection.prompt(session, [acp.text_block("/diff"), linked])
        assert "+more" in shown_in_one_fence(editor.said())

        await editor.prompt(session, "/promote\nA subject\n\nA body.")
        [call] = editor.of("tool_call")
        [content] = call["content"]
        shown = shown_in_one_fence(content["content"]["text"])
        assert "+more" in shown
        assert "-->.pem seems to hold credentials" in shown
        assert durable.text("log", "-1", "--format=%B").strip() == "A subject\n\nA body."

    editor.run(work())


def test_paths_lead_to_the_files_of_the_session_and_nowhere_else(editor: Editor, durable: GitRepo) -> None:
    durable.commit({"a file.py": "v1\n"})
    reports = """
os.symlink("/etc", cwd + "/link")
paths = [cwd + "/./a file.py", cwd + "/../../../etc/passwd", cwd + "/link/passwd", "/etc/passwd", cwd + "-other/app.py", "app.py"]
diffs = [{"type": "diff", "path": path, "newText": "new"} for path in paths]
words = [{"type": "content", "content": {"type": "text", "text": "words"}}]
update("tool_call", toolCallId="c1", title="Look", locations=[{"path": path} for path in paths], content=words + diffs)
say(str([block["uri"].replace(cwd, "here") for block in params["prompt"][1:]]))
"""
    uris = [f"file://{durable.path}/a%20file.py#L2", f"file://{durable.path}/../x", "file:///etc/passwd", "https://example.org/a%20b"]

    async def work() -> None:
        session = await editor.new(durable)
        await editor.connection.prompt(session, [acp.text_block(reports), *(acp.resource_link_block("a", uri) for uri in uris)])
        [call] = editor.of("tool_call")
        [location] = call["locations"]
        assert Path(location["path"]).read_text() == "v1\n"
        assert [one.get("path", "words") for one in call["content"]] == ["words", location["path"]]
        assert editor.said() == str(["file://here/a%20file.py#L2", *uris[1:]])

    editor.run(work())


def test_a_conversation_that_is_closed_while_its_agent_starts_takes_no_turn(editor: Editor, durable: GitRepo) -> None:
    async def work() -> None:
        session = await editor.new(durable)
        prompts = [asyncio.create_task(editor.prompt(session, "open(cwd + '/late', 'w').close()")) for _ in range(2)]
        await asyncio.sleep(0)
        await editor.connection.close_session(session_id=session)
        assert [await one for one in prompts] == ["cancelled"] * 2
        await editor.connection.load_session(session_id=session, cwd=str(durable.path))
        assert await editor.prompt(session, "say(str(os.path.exists(cwd + '/late')))") == "end_turn"
        assert editor.said().endswith("False")

    editor.run(work())


def test_a_turn_that_is_cancelled_while_its_agent_starts_is_none_of_the_agent(editor: Editor, durable: GitRepo) -> None:
    async def work() -> None:
        session = await editor.new(durable)
        prompt = asyncio.create_task(editor.prompt(session, "open(cwd + '/late', 'w').close()"))
        await asyncio.sleep(0)
        await editor.connection.cancel(session_id=session)
        assert await prompt == "cancelled"
        assert await editor.prompt(session, "say(str(os.path.exists(cwd + '/late')))") == "end_turn"
        assert editor.said() == "False"

    editor.run(work())


def test_beside_the_question_about_a_promotion_nothing_of_the_agent_is_shown(editor: Editor, durable: GitRepo) -> None:
    noise = """
def noise():
    while not os.path.exists(cwd + "/go"):
        time.sleep(0.005)
    say("noise")
    send(id="q", method="session/request_permission", params={"sessionId": "s1", "toolCall": {"toolCallId": "c2", "title": "Promote"},
        "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]})
    open(cwd + "/gone", "w").close()
import threading
threading.Thread(target=noise, daemon=True).start()
"""

    async def work() -> None:
        session = await editor.new(durable)
        await editor.prompt(session, WRITES)
        workspace = Path(editor.of("tool_call")[0]["locations"][0]["path"]).parent
        await editor.prompt(session, noise)
        editor.updates.clear()
        beside: list[str] = []

        async def while_asked() -> None:
            (workspace / "go").touch()
            while not (workspace / "gone").exists():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            beside.extend(one["sessionUpdate"] for one in editor.updates)

        editor.while_asked = while_asked
        await editor.prompt(session, "/promote")
        assert beside == ["tool_call"]
        while "noise" not in str(editor.updates):
            await asyncio.sleep(0.005)
        assert editor.asked == ["Promote 1 file"], "the agent asks within its turn, or nobody answers"

    editor.run(work())


def test_an_mcp_server_of_the_editor_runs_where_the_agent_does_or_is_refused(editor: Editor, durable: GitRepo, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(MCP_SERVER)
    inside = schema.McpServerStdio(
        name="words", command=sys.executable, args=["-I", "-S", "-c", MCP_SERVER], env=[schema.EnvVariable(name="WORD", value="hello")]
    )
    outside = schema.McpServerStdio(name="words", command=sys.executable, args=[str(script)], env=[])
    far = schema.HttpMcpServer(name="far", url="https://user:SECRET@tools.example.org/mcp?key=SECRET", headers=[], type="http")
    malformed = schema.HttpMcpServer(name="malformed", url="https://user:SECRET@[tools/mcp", headers=[], type="http")
    borrowed = schema.AcpMcpServer(name="borrowed", server_id="b", type="acp")

    async def work() -> None:
        cwd = str(durable.path)
        session = (await editor.connection.new_session(cwd=cwd, mcp_servers=[inside])).session_id
        fork = (await editor.connection.fork_session(session_id=session, cwd=cwd, mcp_servers=[inside])).session_id
        await editor.connection.close_session(session_id=session)
        await editor.connection.load_session(session_id=session, cwd=cwd, mcp_servers=[inside])
        for id_ in (session, fork):
            await editor.prompt(id_, USES_MCP)
            assert editor.said() == "hello in here"
        reasons = [
            (outside, f"cannot start the MCP server words: it cannot read {script}."),
            (far, "does not reach the MCP server far: https://tools.example.org."),
            (malformed, "does not reach the MCP server malformed: its address is malformed."),
            (borrowed, "cannot be passed on"),
        ]
        for server, reason in reasons:
            with pytest.raises(acp.RequestError) as caught:
                await editor.connection.new_session(cwd=cwd, mcp_servers=[server])
            assert (caught.value.data["code"], reason in caught.value.data["details"]) == ("CAPABILITY_MISSING", True)
            assert "SECRET" not in str(caught.value.data)
        with GitTrix(None, store=editor.store) as engine:
            states = {one.id: one.state for one in engine.list_sessions() if one.durable_path == cwd}
        assert [states.pop(session), states.pop(fork), *states.values()] == ["active", "active", *["discarded"] * 4]

    editor.run(work())


def test_a_load_of_an_open_conversation_gives_its_servers_to_an_agent_that_is_still_to_start(editor: Editor, durable: GitRepo) -> None:
    def server(word: str) -> schema.McpServerStdio:
        variable = schema.EnvVariable(name="WORD", value=word)
        return schema.McpServerStdio(name="words", command=sys.executable, args=["-I", "-S", "-c", MCP_SERVER], env=[variable])

    missing = schema.McpServerStdio(name="words", command="no-such-program", args=[], env=[])

    async def work() -> None:
        session = await editor.new(durable)

        async def refusal(given: schema.McpServerStdio) -> str:
            with pytest.raises(acp.RequestError) as caught:
                await load(given)
            assert caught.value.data["code"] == "CAPABILITY_MISSING"
            return str(caught.value.data["details"])

        async def load(*given: schema.McpServerStdio) -> None:
            await editor.connection.load_session(session_id=session, cwd=str(durable.path), mcp_servers=[*given])

        assert "cannot start the MCP server words" in await refusal(missing)
        await load(server("first"))
        await load(server("second"))
        await editor.prompt(session, USES_MCP)
        assert editor.said() == "second in here"

        await load(server("second"))
        await load()
        assert "cannot start the MCP server words" in await refusal(missing)
        assert "at work with the MCP servers that it began with" in await refusal(server("third"))
        editor.updates.clear()
        await editor.prompt(session, USES_MCP)
        assert editor.said() == "second in here"

        await editor.connection.close_session(session_id=session)
        await load(server("third"))
        editor.updates.clear()
        await editor.prompt(session, USES_MCP)
        assert editor.said() == "third in here"

    editor.run(work())


def test_an_address_is_reached_by_an_entry_for_its_protocol() -> None:
    network = check_network(["tools.example.org:443", "*.example.com:8443", "tcp://plain.example.org:80"])
    urls = ["https://tools.example.org/mcp", "https://a.example.com:8443/", "http://plain.example.org/mcp"]
    others = ["https://tools.example.org:444/", "http://tools.example.org:443/", "https://example.com:8443/", "https://a:b:c/", "none"]

    assert [reaches(network, url) for url in (*urls, *others)] == [True] * len(urls) + [False] * len(others)
    assert (reaches("all", urls[0]), reaches("none", urls[0])) == (True, False)


def test_a_directory_without_a_repository_is_an_error_of_the_protocol(editor: Editor, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    async def work() -> None:
        with pytest.raises(acp.RequestError) as caught:
            await editor.connection.new_session(cwd=str(tmp_path / "empty"))
        assert "ADAPTER_UNAVAILABLE" in str(caught.value.data)
        with pytest.raises(acp.RequestError):
            await editor.connection.load_session(session_id="sess_nobody", cwd=str(tmp_path / "empty"))

    editor.run(work())
