"""The tools of an agent in its session: methods with plain values, whose docstrings are the descriptions for the model.

They are verbs of ``AgentSession``. None of them promotes: an agent requests a promotion (``request_promotion``), and a person decides.
"""

from __future__ import annotations

import threading
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_gittrix.durations import format_instant
from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.programs import Programs, exit_code, run_while_live
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.mcp.request import promotion_request

Encoding = Literal["utf-8", "base64"]
FilePath = Annotated[str, Field(description="Path from the workspace's root, with /; never absolute and without ..")]
AsText = Annotated[Encoding, Field(description="utf-8 for text; base64 for any other bytes")]


class Listed(BaseModel):
    """One line of a listing."""

    path: str
    type: str


class Committed(BaseModel):
    """One commit of the agent's."""

    sha: str
    author: str
    timestamp: str
    message: str


class Ran(BaseModel):
    """How a program ended; its output as text, with a mark where a byte was none."""

    exit_code: int | None
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool


class RequestedPromotion(BaseModel):
    """A promotion that a person was asked for."""

    model_config = ConfigDict(title="Asked")  # the name in the tool's schema, which clients know

    review: str
    command: str
    note: str


class SessionTools:
    """The tools on one session. Calls run one at a time, so concurrent calls never interleave."""

    def __init__(self, agent: AgentSession, store: Path, programs: Programs | None = None) -> None:
        """Make the tools of one session.

        Args:
            agent: the session, with the rights of its agent.
            store: the store that the session is in, for the command that a person runs.
            programs: runs programs in the session; without it there is no tool ``run``.
        """
        self._agent = agent
        self._store = store
        self._programs = programs
        self._lock = threading.Lock()

    @property
    def session(self) -> str:
        """The session's id."""
        return self._agent.id

    @property
    def tools(self) -> Sequence[Callable[..., Any]]:
        """The tools of this session."""
        always = (self.read_file, self.write_file, self.delete_file, self.list_files, self.touched, self.diff, self.commit, self.log)
        return (*always, *(() if self._programs is None else (self.run,)), self.request_promotion)

    def read_file(self, path: FilePath, encoding: AsText = "utf-8") -> str:
        """Read a file of the workspace."""
        with self._lock:
            data = self._agent.read(path)
        if encoding == "base64":
            return b64encode(data).decode("ascii")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{path!r} is not text: byte {error.start} is no UTF-8.",
                why="A tool's answer is text, and what is no text would come out changed.",
                fix='Read it with encoding="base64".',
            ) from None

    def write_file(self, path: FilePath, contents: str, encoding: AsText = "utf-8") -> str:
        """Create or replace a file of the workspace, whole or not at all."""
        data: str | bytes = contents
        if encoding == "base64":
            try:
                data = b64decode(contents, validate=True)
            except (NotBase64, ValueError) as error:
                raise InvalidInput(f"The contents of {path!r} are not base64: {error}.", fix='Send text with encoding="utf-8".') from None
        with self._lock:
            self._agent.write(path, data)
        return f"Wrote {path}."

    def delete_file(self, path: FilePath) -> str:
        """Delete a file of the workspace; one that is not there is no error."""
        with self._lock:
            self._agent.delete(path)
        return f"{path} is not there any more."

    def list_files(self, path: Annotated[str, Field(description="A directory; the whole workspace by default")] = ".") -> list[Listed]:
        """List everything below a directory of the workspace."""
        with self._lock:
            found = self._agent.list(path)
        return [Listed(path=_shown(entry.path), type=entry.type) for entry in found]

    def touched(self) -> list[str]:
        """List the paths that differ from what the session started with."""
        with self._lock:
            return [_shown(path) for path in self._agent.touched_files()]

    def diff(self, paths: Annotated[list[str] | None, Field(description="Only these paths; all that differ by default")] = None) -> str:
        """Show every change since the session started, as a unified diff."""
        with self._lock:
            return _shown(self._agent.diff(paths))

    def commit(self, message: str) -> str:
        """Commit everything that differs, in the workspace only; nothing reaches the durable repository. Gives the commit's id."""
        with self._lock:
            return self._agent.commit(message)

    def log(self) -> list[Committed]:
        """List the commits made in this session, newest first."""
        with self._lock:
            commits = self._agent.log()
        return [
            Committed(
                sha=one.sha,
                author=_shown(f"{one.author_name} <{one.author_email}>"),
                timestamp=format_instant(one.timestamp),
                message=_shown(one.message),
            )
            for one in commits
        ]

    def run(
        self,
        argv: Annotated[list[str], Field(description='A program and its words, such as ["pytest", "-q"]; no shell', min_length=1)],
        stdin: Annotated[str, Field(description="What the program reads")] = "",
        timeout_seconds: Annotated[float, Field(description="After which it is ended with all it started", gt=0, le=3600)] = 120.0,
    ) -> Ran:
        """Run a program in the workspace, confined to it, and wait for its end."""
        assert self._programs is not None
        with self._lock:
            self._agent.exists(".gitignore")  # whether it is there does not matter: it is refused once the session has ended
            done = run_while_live(self._programs, argv, stdin=stdin.encode(), timeout=timeout_seconds)
        return Ran(
            exit_code=exit_code(done),
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
            timed_out=done.timed_out,
            truncated=done.truncated,
        )

    def request_promotion(
        self, message: Annotated[str, Field(description="The commit message to propose: what changed and why")]
    ) -> RequestedPromotion:
        """Ask a person to promote the work. Nothing is promoted by this: it gives the command that a person may run."""
        with self._lock:
            request = promotion_request(self._agent.id, self._store, message)
            call = f"request_promotion_{len(self._agent.history(['tool_call'])) + 1}"
            self._agent.record("tool_call", {"call_id": call, "name": "request_promotion", "args": {"message": message}})
            self._agent.record("tool_result", {"call_id": call, "ok": True, "output": request.command})
        note = "Show both commands to the person in charge. What is promoted is the work as it is when they run the second one."
        return RequestedPromotion(review=request.review, command=request.command, note=note)


def _shown(text: str) -> str:
    """Text that JSON can hold: bytes of names that are not UTF-8 are shown as escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
