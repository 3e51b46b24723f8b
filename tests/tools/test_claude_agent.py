"""The Claude Agent SDK in a session: the real program, with a model that is a server of these tests."""

from __future__ import annotations

import pytest

pytest.importorskip("claude_agent_sdk", reason='needs pip install "pytest-gittrix[claude]"')

import asyncio
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeSDKClient, ResultMessage
from claude_agent_sdk.testing import run_session_store_conformance
from support.frameworks import available, programs_of
from support.git import git

from pytest_gittrix import GitTrix, UserSession
from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.integrations.claude_agent import GittrixSessionStore, claude_options
from pytest_gittrix.model import ModelServer, call
from pytest_gittrix.model.protocols.values import ToolResult

# The kit leaves streams of its own open; whatever is collected later would be told of a test that has nothing to do with it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LONG = 120
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "use-with-claude-agent-sdk.md"
KEY = "sk-a-key-that-stays-outside"
LOOK = "cat app.py; env; ls -a ~; cat /etc/shadow; true"
MOVES = re.compile(r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[()78][B0]?|\x1b\][^\x07]*\x07")
SLEEP = call("Bash", command=": > up; sleep 600 & sleep 600", description="wait")


@pytest.fixture(params=["jail", "guard"])
def level(request: pytest.FixtureRequest) -> str:
    return available(request.param)


@pytest.fixture
def of_model(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModelServer], None]:
    def use_model(model: ModelServer) -> None:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    return use_model


@contextmanager
def answering(*steps: Any) -> Iterator[ModelServer]:
    """A model that answers by a script."""
    with ModelServer() as model:
        model.script(*steps)
        yield model


def results(model: ModelServer) -> list[str]:
    """What tools gave, as the model was told last."""
    return [part.text for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)]


def prompted(session: UserSession, prompt: str, **options: Any) -> ResultMessage:
    """The result of one prompt to an agent."""

    async def ask() -> ResultMessage:
        async with asyncio.timeout(LONG), claude_options(session.for_agent(), **options) as chosen, ClaudeSDKClient(chosen) as client:
            await client.query(prompt)
            return [message async for message in client.receive_response() if isinstance(message, ResultMessage)][-1]

    return asyncio.run(ask())


def sleeping(session: UserSession, end: Callable[[ClaudeSDKClient], Awaitable[object]]) -> None:
    """Have an agent run a command that sleeps, and end that."""

    async def main() -> None:
        async with asyncio.timeout(LONG), claude_options(session.for_agent(), confine="auto") as chosen, ClaudeSDKClient(chosen) as client:
            await client.query("Wait.")
            while not os.path.exists(f"{chosen.cwd}/up"):
                await asyncio.sleep(0.05)
            await end(client)

    asyncio.run(main())


async def no_deletion(tool: str, arguments: Mapping[str, Any]) -> str | None:
    return "Nothing is deleted here." if "rm " in arguments.get("command", "") else None


def test_an_agent_works_confined_is_judged_recorded_and_resumed(
    engine: GitTrix, level: str, of_model: Callable[[ModelServer], None]
) -> None:
    looks = [call("Bash", command=LOOK, description="look"), call("Bash", command="rm app.py", description="delete")]
    with answering(looks, call("Write", file_path="new.py", content="x = 1\n"), "Done.", "Nothing more.", "Nothing more.") as model:
        of_model(model)
        session = engine.start_session("look around")
        done = prompted(session, "Look around.", policy=no_deletion, confine=level)

        assert (done.result, session.touched_files()) == ("Done.", ["new.py"])
        look, deletion, _ = results(model)
        assert "return a - b" in look
        assert KEY not in look
        assert "root:" not in look
        assert "Nothing is deleted here." in deletion
        assert model.keys == {KEY}
        events = [event for event in session.history() if event.type in ("user_message", "tool_call", "tool_result", "assistant_message")]
        assert [event.type for event in events] == ["user_message", *["tool_call", "tool_result"] * 3, "assistant_message"]
        assert [event.data["ok"] for event in events if event.type == "tool_result"] == [True, False, True]

        for resumed in (session, session.fork(task="go on")):
            assert prompted(resumed, "Go on.", resume=done.session_id, confine=level).session_id == done.session_id
            assert "Look around." in str(model.requests[-1].messages)
        assert programs_of(session.id) == []
    session.promote(message="Add x")


def test_an_interrupted_command_ends_and_the_agent_stays(engine: GitTrix, of_model: Callable[[ModelServer], None]) -> None:
    async def end(client: ClaudeSDKClient) -> None:
        await client.interrupt()
        _ = [message async for message in client.receive_response()]
        await client.query("Still there?")
        assert [message async for message in client.receive_response() if isinstance(message, ResultMessage)][-1].result == "Yes."

    with answering(SLEEP, "Yes.") as model:
        of_model(model)
        session = engine.start_session("wait")
        sleeping(session, end)

    assert [event.data["ok"] for event in session.history(["tool_result"])] == [False]
    assert programs_of(session.id) == []


def test_the_agent_ends_with_its_session(engine: GitTrix, of_model: Callable[[ModelServer], None]) -> None:
    with answering(SLEEP) as model:
        of_model(model)
        session = engine.start_session("wait")

        async def end(client: ClaudeSDKClient) -> None:
            await asyncio.to_thread(session.discard, force=True)
            assert programs_of(session.id) == []

        sleeping(session, end)


@pytest.fixture
def command(project: Path, tmp_path: Path) -> Command:
    return Command(project, tmp_path)


class Command:
    """``gittrix agent claude`` as a person runs it in a project."""

    def __init__(self, project: Path, directory: Path) -> None:
        self.store, self._project, self._temporary = directory / "of-the-command", project, directory / "temporary"
        self._temporary.mkdir()

    def options(self, model: ModelServer, *arguments: str) -> dict[str, Any]:
        """The command line and what surrounds it, for ``subprocess``."""
        variables = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": KEY, "TMPDIR": str(self._temporary), "TERM": "xterm-256color"}
        argv = [sys.executable, "-m", "pytest_gittrix.cli", "agent", "claude", "--store", str(self.store), *arguments]
        return {"args": argv, "cwd": self._project, "env": {**os.environ, **variables}}

    def left(self) -> tuple[dict[str, list[str]], list[int], list[Path]]:
        """What each session touched, and what is left of all programs: processes, and temporary files."""
        with GitTrix(None, store=self.store, sweep_interval=None) as engine:
            touched = {one.id: engine.get_session(one.id).touched_files() for one in engine.list_sessions()}
        return touched, [pid for id_ in touched for pid in programs_of(id_)], [*self._temporary.glob("gittrix-claude-*")]


def test_a_prompt_on_the_command_line(command: Command) -> None:
    with answering(call("Write", file_path="new.py", content="x = 1\n"), "Done.") as model:
        options = command.options(model, "--", "-p", "Add x.", "--permission-mode", "acceptEdits")
        done = subprocess.run(**options, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG, check=False)
    touched, *left = command.left()

    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr
    [(session, files)] = touched.items()
    assert f"gittrix: {session} differs in new.py" in done.stderr
    assert (files, left, model.keys) == (["new.py"], [[], []], {KEY})


def test_a_conversation_in_a_terminal(command: Command) -> None:
    with answering("Forty-two.") as model, Terminal(command.options(model)) as terminal:
        terminal.type_until("Yes, I trust this folder", "")
        terminal.type_until("\u276f Yes, I trust this folder", "\x1b[B")
        terminal.type_until("Claude Code v", "\r")
        terminal.type_until("What is it?", "What is it?")
        terminal.type_until("Forty-two.", "\r")
        terminal.type_until("again to exit", "\x03")
        status = terminal.leave("\x03")
    touched, *left = command.left()

    assert status == 0
    assert ([*touched.values()], left, model.keys) == ([[]], [[], []], {KEY})
    [session] = touched
    assert f"gittrix: to go on: gittrix agent claude --session {session}" in terminal.shown


class Terminal:
    """A program in a terminal of its own, and what it shows there, without what moves the cursor."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.shown = ""
        self._near, far = os.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        argv = ["setsid", "--ctty", "--wait", *options["args"]]
        self._process = subprocess.Popen(**{**options, "args": argv}, stdin=far, stdout=far, stderr=far)
        os.close(far)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._near)

    def type_until(self, words: str, keys: str) -> None:
        """Type once the screen stands still, as a person does, and wait until these words come, whatever is between them."""
        for _ in range(20):
            if not self._read(0.5):
                break
        before = len(self.shown) if keys else 0  # what nobody typed for may have come already
        os.write(self._near, keys.encode())
        while "".join(words.split()) not in "".join(self.shown[before:].split()):
            assert self._read(30), f"{words!r} does not come: {self.shown[before:]}"

    def leave(self, keys: str) -> int:
        """Type while the program reads keys, until it has ended; gives its exit status. Then a key could be a signal to its parent."""
        while self._process.poll() is None:
            with suppress(OSError, termios.error):  # it ends just now
                if not termios.tcgetattr(self._near)[3] & termios.ISIG:
                    os.write(self._near, keys.encode())
            while self._read(0.2):
                pass
        while self._read(0):
            pass
        return self._process.wait()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._near], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._near, 1 << 16)
        except OSError:  # the program has closed its side
            return False
        self.shown += MOVES.sub("", piece.decode(errors="replace"))
        return True


def test_the_program_of_the_page_runs_as_shown(project: Path) -> None:
    [program] = re.findall(r"^```python\n(# file: agent\.py.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    mend = call("Bash", command="sed -i 's/a - b/a + b/' app.py", description="mend")
    with answering(mend, "Mended.") as model:
        environment = {**os.environ, "ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": KEY}
        subprocess.run([sys.executable, "-c", program], cwd=project.parent, env=environment, timeout=LONG, check=True)

    assert git("show", "HEAD:app.py", cwd=project) == b"def add(a, b):\n    return a + b\n"


def test_the_store_of_transcripts_passes_the_conformance_of_the_sdk(engine: GitTrix) -> None:
    asyncio.run(run_session_store_conformance(lambda: GittrixSessionStore(engine.start_session("store").for_agent())))


def test_an_agent_that_nothing_confines_is_refused(engine: GitTrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    async def enter() -> None:
        async with claude_options(engine.start_session("off").for_agent(), confine="off", network="all"):
            pass

    with pytest.raises(CapabilityMissing, match="would not be confined"):
        asyncio.run(enter())
