"""The examples of the Agent Client Protocol's own package, as they are: its agent behind our client, and its client in front of ours.

Only the package's source distribution has them; ``make tools`` puts that beside the environment.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("acp", reason='needs pip install "pytest-gittrix[acp]"')

from support.frameworks import available, programs_of

from pytest_gittrix.acp import acp_agent, take_turn
from pytest_gittrix.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.integrations.archives import unpack

LONG = 120


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """The directory of their examples."""
    archives = sorted(Path(sys.prefix, "sdists").glob("agent_client_protocol-*.tar.gz"))
    if not archives:
        pytest.skip("the source distribution of agent-client-protocol is not here; `make tools` fetches it")
    with tarfile.open(archives[-1]) as archive:
        (tmp_path / "theirs").mkdir()
        unpack(archive, tmp_path / "theirs")
    [found] = (tmp_path / "theirs").glob("*/examples")
    return found


def said(session: UserSession) -> list[tuple[str, str]]:
    """The messages of a session's conversation, and how its turns ended."""
    names = {"user_message": "text", "assistant_message": "text", "turn.ended": "status"}
    return [(event.type, event.data[names[event.type]]) for event in session.history(names)]


@pytest.mark.parametrize("level", ["jail", "guard"])
def test_their_agent_works_behind_our_client(engine: GitTrix, examples: Path, level: str) -> None:
    session = engine.start_session("talk")

    async def talk() -> list[str]:
        agents_side = session.for_agent()
        with agents_side.programs(confine=available(level), readable=[examples]) as programs:
            argv = [sys.executable, str(examples / "agent.py")]
            async with asyncio.timeout(LONG), acp_agent(agents_side, argv, programs=programs) as agent:
                return [(await take_turn(session, agent, text)).text for text in ("one", "two")]

    assert asyncio.run(talk()) == ["Client sent:one", "Client sent:two"]
    ones = [("user_message", "one"), ("assistant_message", "Client sent:one"), ("turn.ended", "done")]
    assert said(session) == [*ones, *((type_, text.replace("one", "two") if type_ != "turn.ended" else text) for type_, text in ones)]
    assert programs_of(session.id) == []


def test_their_client_talks_to_our_sessions_with_their_agent_in_each(engine: GitTrix, examples: Path, project: Path) -> None:
    available("jail")
    ours = [sys.executable, "-m", "pytest_gittrix.cli", "acp", "--store", str(engine.store.root), "--readable", str(examples)]
    theirs = [sys.executable, str(examples / "client.py"), *ours, "--", sys.executable, str(examples / "agent.py")]
    done = subprocess.run(theirs, cwd=project, input="hello\n/diff\n", capture_output=True, text=True, timeout=LONG, check=True)

    shown = [line.removeprefix("> ") for line in done.stdout.splitlines()]
    assert shown[:3] == ["| Agent: Client sent:", "| Agent: hello", "| Agent: Nothing differs from the repository."]
    [listed] = engine.list_sessions()
    session = engine.get_session(listed.id)
    assert said(session) == [("user_message", "hello"), ("assistant_message", "Client sent:hello"), ("turn.ended", "done")]
    assert programs_of(session.id) == []
