"""A session as an MCP server, as a client of the official SDK has it: in memory, and over standard input and output."""

from __future__ import annotations

import pytest

pytest.importorskip("mcp", reason='needs pip install "pytest-gittrix[mcp]"')

import asyncio
import base64
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from support.frameworks import begun
from support.git import git

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.cli.main import main
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.mcp.server import server
from pytest_gittrix.mcp.tools import SessionTools

ALWAYS = {"read_file", "write_file", "delete_file", "list_files", "touched", "diff", "commit", "log", "request_promotion"}
ESCAPES = ["../out", "/etc/passwd", "a/../../out", ".git/config", "link/out", "", "a\0b", ".GIT/hooks/post-commit"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine(project: Path, tmp_path: Path) -> Iterator[GitTrix]:
    with GitTrix(LocalDurable(project, "main"), LocalEphemeral("clone"), store=tmp_path / "store", sweep_interval=None) as engine:
        yield engine


@pytest.fixture
def session(engine: GitTrix) -> UserSession:
    return engine.start_session("fix the sum")


@pytest.fixture
def programs(session: UserSession, engine: GitTrix) -> Iterator[Programs]:
    with Programs(session.for_agent(), engine.clock, "off") as programs:
        yield programs


@pytest.fixture
def tools(session: UserSession, engine: GitTrix, programs: Programs) -> SessionTools:
    return SessionTools(session.for_agent(), engine.store.root, programs)


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool that must not fail gives."""
    done = await client.call_tool(tool, arguments)
    assert not done.is_error, done.content
    found = done.structured_content
    return found["result"] if set(found) == {"result"} else found


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool that must fail tells."""
    done = await client.call_tool(tool, arguments)
    assert done.is_error, done.structured_content
    return done.content[0].text


async def test_the_tools_are_those_of_an_agent_and_none_promotes(tools: SessionTools) -> None:
    async with Client(server(tools)) as client:
        found = (await client.list_tools()).tools

    assert {tool.name for tool in found} == ALWAYS | {"run"}
    assert all(tool.description for tool in found)


async def test_without_confined_programs_there_is_no_tool_that_runs_any(session: UserSession, engine: GitTrix) -> None:
    async with Client(server(SessionTools(session.for_agent(), engine.store.root))) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == ALWAYS
        assert "run" in await refused(client, "run", argv=["id"])


async def test_an_agent_reads_changes_and_commits_and_durable_stays_as_it_is(
    tools: SessionTools, session: UserSession, project: Path
) -> None:
    before = git("rev-parse", "HEAD", cwd=project)

    async with Client(server(tools)) as client:
        text = await call(client, "read_file", path="app.py")
        await call(client, "write_file", path="app.py", contents=text.replace("-", "+"))
        await call(client, "write_file", path="data.bin", contents=base64.b64encode(b"\x00\xff").decode(), encoding="base64")
        await call(client, "delete_file", path="README.md")
        touched = await call(client, "touched")
        diff = await call(client, "diff", paths=["app.py"])
        sha = await call(client, "commit", message="Add, do not subtract")
        log = await call(client, "log")
        listed = await call(client, "list_files")
        again = await call(client, "read_file", path="data.bin", encoding="base64")

    assert touched == ["README.md", "app.py", "data.bin"]
    assert "+    return a + b" in diff
    assert "README" not in diff
    assert [(one["sha"], one["message"]) for one in log] == [(sha, "Add, do not subtract")]
    assert [one["path"] for one in listed] == ["app.py", "data.bin"]
    assert base64.b64decode(again) == b"\x00\xff"
    assert session.read("data.bin") == b"\x00\xff"
    assert git("rev-parse", "HEAD", cwd=project) == before


@pytest.mark.parametrize("path", ESCAPES)
async def test_paths_that_leave_the_workspace_are_refused_by_code_and_nothing_is_written(
    path: str, tools: SessionTools, session: UserSession, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (session.workspace_path / "link").symlink_to(outside)

    async with Client(server(tools)) as client:
        refusals = [await refused(client, "read_file", path=path), await refused(client, "write_file", path=path, contents="x")]
        if path:
            refusals.append(await refused(client, "delete_file", path=path))

    assert all("WRITE_REJECTED" in words or "PATH_NOT_FOUND" in words for words in refusals), refusals
    assert [*outside.iterdir()] == []
    assert not (tmp_path / "out").exists()


async def test_what_is_no_text_is_refused_as_text_and_what_is_no_base64_as_base64(tools: SessionTools, session: UserSession) -> None:
    session.write("data.bin", b"\xff")

    async with Client(server(tools)) as client:
        assert "INVALID_INPUT" in await refused(client, "read_file", path="data.bin")
        assert "INVALID_INPUT" in await refused(client, "write_file", path="x", contents="no base64!", encoding="base64")
        assert "encoding" in await refused(client, "read_file", path="data.bin", encoding="latin-1")

    assert not session.exists("x")


async def test_a_program_runs_in_the_workspace_and_how_it_ended_is_told(tools: SessionTools) -> None:
    async with Client(server(tools)) as client:
        done = await call(client, "run", argv=["sh", "-c", "cat README.md; cat; echo no >&2; exit 3"], stdin="from outside\n")
        missing = await call(client, "run", argv=["no-such-program"])
        late = await call(client, "run", argv=["sleep", "600"], timeout_seconds=0.2)

    assert (done["exit_code"], done["stdout"], done["stderr"]) == (3, "# A project\nfrom outside\n", "no\n")
    assert missing["exit_code"] == 127
    assert (late["exit_code"], late["timed_out"]) == (None, True)


@pytest.mark.parametrize(
    "message",
    [
        "Fix the sum",
        'it\'s "quoted" $(touch pwned) `id` ; rm -rf / # \\',
        "--strategy=patch",
        "-m",
        "two\n\nparagraphs\n",
        "ünïcödé 🙂",
        "!!",
    ],
)
async def test_the_command_that_a_person_runs_promotes_with_exactly_that_message(
    message: str, tools: SessionTools, session: UserSession, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.write("app.py", "fixed\n")

    async with Client(server(tools)) as client:
        asked = await call(client, "request_promotion", message=message)
    head = git("rev-parse", "HEAD", cwd=project)
    words = shlex.split(asked["command"])

    assert words[:2] == ["gittrix", "promote"]
    assert main(words[1:]) == 0
    assert git("rev-parse", "HEAD~1", cwd=project) == head
    assert git("log", "-1", "--format=%B", cwd=project).decode().strip() == message.strip()
    assert not (project / "pwned").exists()


async def test_asking_promotes_nothing_and_is_recorded_in_the_session(tools: SessionTools, session: UserSession, project: Path) -> None:
    session.write("app.py", "fixed\n")
    head = git("rev-parse", "HEAD", cwd=project)

    async with Client(server(tools)) as client:
        asked = [await call(client, "request_promotion", message=text) for text in ("first", "second")]

    assert git("rev-parse", "HEAD", cwd=project) == head
    assert session.info().state == "active"
    calls = session.history(["tool_call"])
    results = session.history(["tool_result"])
    assert [(one.data["name"], one.data["args"]["message"]) for one in calls] == [
        ("request_promotion", "first"),
        ("request_promotion", "second"),
    ]
    assert [one.data["output"] for one in results] == [one["command"] for one in asked]
    assert {one.actor for one in calls} == {"agent"}


@pytest.mark.parametrize("message", ["", " \n", "a\x1b[2Jb", "a\rb", "a\0b", "a\u202eb", "a\x07", "x" * 10_001])
async def test_a_message_that_would_steer_a_terminal_or_says_nothing_is_refused(
    message: str, tools: SessionTools, session: UserSession
) -> None:
    async with Client(server(tools)) as client:
        assert "INVALID_INPUT" in await refused(client, "request_promotion", message=message)

    assert session.history(["tool_call"]) == []


async def test_a_program_that_ends_with_its_session_says_so(tools: SessionTools, session: UserSession) -> None:
    async with Client(server(tools)) as client:
        running = await begun(session, refused(client, "run", argv=["sh", "-c", "touch started; sleep 600"]))
        await asyncio.to_thread(session.discard, force=True)

        assert "SESSION_EXPIRED" in await running


async def test_after_the_session_has_ended_every_tool_says_so(tools: SessionTools, session: UserSession) -> None:
    session.discard()

    async with Client(server(tools)) as client:
        refusals = [
            await refused(client, "read_file", path="app.py"),
            await refused(client, "write_file", path="app.py", contents="x"),
            await refused(client, "diff"),
            await refused(client, "commit", message="x"),
            await refused(client, "run", argv=["id"]),
            await refused(client, "request_promotion", message="x"),
        ]

    assert all("SESSION_EXPIRED" in words for words in refusals), refusals


# Over standard input and output ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def served(*arguments: str, cwd: Path, errors: Path) -> AsyncIterator[Client]:
    """A client of ``gittrix mcp`` in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "pytest_gittrix.cli", "mcp", *arguments], cwd=str(cwd), env=environment
    )
    with errors.open("w") as log:
        async with Client(stdio_client(parameters, errlog=log)) as client:
            yield client


async def test_a_server_starts_a_session_and_a_person_promotes_what_comes_of_it(project: Path, tmp_path: Path) -> None:
    store, errors = str(tmp_path / "store"), tmp_path / "errors"

    async with served("--task", "fix the sum", "--store", store, "--confine", "off", cwd=project, errors=errors) as client:
        await call(client, "write_file", path="app.py", contents="fixed\n")
        seen = await call(client, "run", argv=["cat", "app.py"])
        asked = await call(client, "request_promotion", message="It's fixed")

    assert seen["stdout"] == "fixed\n"
    assert "serving sess_" in errors.read_text()
    assert main(shlex.split(asked["command"])[1:]) == 0
    assert (project / "app.py").read_text() == "fixed\n"


async def test_a_server_goes_on_with_a_session_that_there_is(session: UserSession, engine: GitTrix, project: Path, tmp_path: Path) -> None:
    store = str(engine.store.root)

    async with served(session.id[:12], "--store", store, cwd=project, errors=tmp_path / "errors") as client:
        await call(client, "write_file", path="new.txt", contents="x")

    assert session.read("new.txt") == b"x"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), "INVALID_INPUT"), (("sess_x", "--task", "y"), "INVALID_INPUT"), (("sess_nobody",), "SESSION_NOT_FOUND")],
)
def test_a_server_without_one_session_is_refused(
    arguments: tuple[str, ...], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["mcp", *arguments, "--store", str(tmp_path / "store"), "--json"])

    assert status == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
