"""The shapes of the daemon's requests and responses: those that BotMinter documents, and those of the further requests.

Requests are strict: an unknown name is refused, since its sender expects it to have an effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_gittrix.os_level.command import Level

Word = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]*$")]
Text = Annotated[str, Field(max_length=1 << 20, pattern=r"^[^\x00]*$")]

Limits = dict[Word, int | float | Word]
"""What an agent may use, such as ``{"memory": "2GB", "processes": 200}``."""


class RequestBody(BaseModel):
    """A request."""

    model_config = ConfigDict(extra="forbid", strict=True)


class MemberStartRequest(RequestBody):
    """Start a session of a member.

    ``work_item_id`` is what it alone is to work on, ``confine`` how its agent is confined, ``limits`` what its agent may use.
    """

    member_name: Word
    session_type: Literal["Interactive", "Loop", "Brain"]
    work_item_id: Word | None = None
    task: Text = ""
    confine: Level | None = None
    limits: Limits | None = None


class StopRequest(RequestBody):
    """Stop a session: with ``force`` at once, and without saving its work."""

    force: bool = False
    reason: Text | None = None


class StopManyRequest(RequestBody):
    """Stop the sessions of a member, or all that run by themselves."""

    mode: Literal["member", "autonomous"]
    member: Word | None = None
    force: bool = False


class CleanupRequest(RequestBody):
    """Remove retained workspaces: all, those of a member, or those of sessions created longer ago than so many seconds."""

    filter: Literal["all", "member", "older_than"]
    value: Word | Annotated[int, Field(ge=0, le=10**10)] | None = None
    dry_run: bool = False


class SendRequest(RequestBody):
    """Send a text to a member's agent."""

    text: str


class LockRequest(RequestBody):
    """Ask for a work item."""

    work_item_id: Word


class SpawnRequest(RequestBody):
    """Start a session of a project (agent-orchestrator's SessionSpawnConfig)."""

    projectId: Word  # noqa: N815  (the document's names, here and below)
    issueId: Word | None = None  # noqa: N815
    branch: Word | None = None
    prompt: Text | None = None
    agent: Word | None = None
    confine: Level | None = None
    limits: Limits | None = None
    keepAfterPromote: bool = True  # noqa: N815


class LeadRequest(RequestBody):
    """Start the session that leads a project's others; there is one for each project."""

    projectId: Word  # noqa: N815
    systemPrompt: Text | None = None  # noqa: N815
    agent: Word | None = None
    confine: Level | None = None
    limits: Limits | None = None


class KillRequest(RequestBody):
    """End an orchestrated session; ``purge`` also what it left."""

    reason: Word = "manually_killed"
    purge: bool = False


class InstructRequest(RequestBody):
    """Tell an agent something."""

    text: Text


class ClaimPrRequest(RequestBody):
    """Let a session take a pull request over."""

    number: Annotated[int, Field(ge=1, le=2**31)]


class ReportRequest(RequestBody):
    """What an agent says of itself."""

    state: Word
    note: Text | None = None


class RetireRequest(RequestBody):
    """End what is over; of one project, if it is named; with ``ended``, also remove what ended earlier."""

    projectId: Word | None = None  # noqa: N815
    dryRun: bool = False  # noqa: N815
    ended: bool = False


class CommandRequest(RequestBody):
    """A command line of ``gittrix`` without its first word, the directory it is typed in, and its standard input as base64.

    ``runtime_session_id`` is the caller's ``CLAUDE_SESSION_ID``, which names a session that the command starts.
    """

    argv: Annotated[list[Annotated[str, Field(max_length=1 << 20)]], Field(min_length=1, max_length=1 << 20)]
    cwd: Annotated[str, Field(min_length=1, max_length=1 << 16, pattern=r"^/[^\x00]*$")]
    stdin_base64: str | None = None
    runtime_session_id: Annotated[str, Field(max_length=1 << 16)] | None = None


class OkResponse(BaseModel):
    """Base of every response; docs/reference/http.md lists the fields of each."""

    model_config = ConfigDict(extra="allow")

    ok: Literal[True]


class ErrorBody(BaseModel):
    """What went wrong: a stable code, and a message for people. Some errors carry more."""

    model_config = ConfigDict(extra="allow")

    code: str
    message: str


class ErrorResponse(BaseModel):
    """The answer to a request that was refused, or that failed."""

    ok: Literal[False]
    error: ErrorBody


class SessionRecord(BaseModel):
    """A session of a member, with each field of BotMinter's record, and how many of its member's are active."""

    model_config = ConfigDict(extra="allow")

    session_id: str
    member_name: str
    session_type: str
    current_state: str
    created_at: str
    state_transitioned_at: str
    agent_pid: int | None
    workspace_path: str | None
    finalization_result: dict[str, Any] | None
    finalization_agent_pid: int | None


class SessionsResponse(OkResponse):
    """All sessions of members that have a workspace still."""

    sessions: list[SessionRecord]


class SessionResponse(OkResponse):
    """One session of a member."""

    session: SessionRecord


class StartResponse(OkResponse):
    """A session that was started."""

    session_id: str
    workspace_path: str


class LockResponse(OkResponse):
    """Whether a work item was to be had, and who has it if not."""

    acquired: bool
    holder: str | None = None


class CommandResponse(BaseModel):
    """The outcome of a command: its exit status, and its result or error, which the caller prints."""

    status: int
    answer: dict[str, Any]
