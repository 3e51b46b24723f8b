"""An editor of the Agent Client Protocol, by the protocol's own client, and a ``gittrix acp`` for it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import acp
from acp import schema
from support.acp_program import ARGV
from support.git import GitRepo

T = TypeVar("T")


class Editor:
    """An editor that notes what it is told, and answers questions as a test says.

    Attributes:
        store: of the sessions.
        connection: to ``gittrix acp``.
        runner: the event loop of both.
        updates: what it is told, as JSON.
        asked: the titles of what it was asked permission for.
        calls: the ids of these tool calls.
        answer: the kind of option that its user takes; ``None`` answers that the turn was cancelled.
        while_asked: what happens while its user thinks about an answer.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.connection: Any = None
        self.runner: asyncio.Runner | None = None
        self.updates: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.calls: list[str] = []
        self.answer: str | None = "allow_once"
        self.while_asked: Callable[[], Awaitable[object] | None] = lambda: None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something of a test, for a minute at most."""
        assert self.runner is not None
        return self.runner.run(asyncio.wait_for(work, 60))

    def anew(self) -> Editor:
        """The same editor, as it begins."""
        self.updates.clear()
        self.asked.clear()
        self.calls.clear()
        self.answer, self.while_asked = "allow_once", lambda: None
        return self

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **_: Any) -> Any:
        self.asked.append(str(tool_call.title))
        self.calls.append(tool_call.tool_call_id)
        if (meanwhile := self.while_asked()) is not None:
            await meanwhile
        if self.answer is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        chosen = next(one.option_id for one in options if one.kind == self.answer)
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen))

    async def prompt(self, session: str, text: str) -> str:
        answer = await self.connection.prompt(session, [acp.text_block(text)])
        return str(answer.stop_reason)

    async def new(self, repository: GitRepo) -> str:
        return str((await self.connection.new_session(cwd=str(repository.path))).session_id)

    def said(self) -> str:
        """What the agent's side said since the last time."""
        text = "".join(one["content"].get("text", "") for one in self.of("agent_message_chunk"))
        self.updates.clear()
        return text

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.updates if one["sessionUpdate"] == kind]


@contextmanager
def editing(store: Path, *options: str) -> Iterator[Editor]:
    """An editor with a ``gittrix acp`` of its own, for several tests: that process takes longest to start."""
    editor = Editor(store)
    words = ["-m", "pytest_gittrix.cli", "acp", "--store", str(store), *options, "--", *ARGV]
    settings = {"env": dict(os.environ), "transport_kwargs": {"stderr": None}, "use_unstable_protocol": True}
    process = acp.spawn_agent_process(editor, sys.executable, *words, **settings)
    with asyncio.Runner() as runner:
        editor.runner = runner
        editor.connection, _ = runner.run(process.__aenter__())
        try:
            assert editor.run(editor.connection.initialize(acp.PROTOCOL_VERSION)).agent_capabilities.load_session
            yield editor
        finally:
            runner.run(process.__aexit__(None, None, None))
