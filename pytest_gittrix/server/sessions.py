"""The requests about members' sessions, as BotMinter documents them: paths, shapes and status codes.

docs/reference/http.md says where this daemon differs from the document and from BotMinter's code.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import Response

from pytest_gittrix.commands.managers import cleanup_data, inspection_data, start_member
from pytest_gittrix.durations import parse_instant
from pytest_gittrix.errors import GittrixError, InvalidInput, PersonRequired, SessionNotFound, WorkItemHeld
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.record.state.retention import Selector
from pytest_gittrix.server.responses import FAILURES, Conflict, done, failed
from pytest_gittrix.server.schema import (
    CleanupRequest,
    ErrorResponse,
    LockRequest,
    LockResponse,
    MemberStartRequest,
    OkResponse,
    SendRequest,
    SessionResponse,
    SessionsResponse,
    StartResponse,
    StopManyRequest,
    StopRequest,
)
from pytest_gittrix.server.state import Daemon
from pytest_gittrix.views import botminter

_SECOND: Final = 1_000_000_000
_NOT_STARTED: Final[dict[int | str, dict[str, Any]]] = {
    500: {"model": ErrorResponse, "description": "No workspace could be made, or its agent not started."}
}
_CLEANABLE: Final = frozenset({"completed", "failed", "killed", "retained"})


def routes(daemon: Daemon) -> APIRouter:
    """The requests, answered by a daemon."""
    api = APIRouter(prefix="/api/sessions", tags=["sessions"], responses=FAILURES)
    members = daemon.members

    @api.post("/start", response_model=StartResponse, responses=_NOT_STARTED)
    def start(body: MemberStartRequest) -> Response:
        """Start a session: a workspace, and in it what the team file says that the member runs."""
        try:
            life = start_member(
                members,
                daemon.team,
                body.member_name,
                body.session_type.lower(),
                task=body.task,
                work_item=body.work_item_id,
                confine=body.confine,
                limits=body.limits,
            )
        except (WorkItemHeld, InvalidInput, PersonRequired):
            raise
        except GittrixError as error:
            response = failed(error)
            response.status_code = 500
            return response
        return done(session_id=life.id, workspace_path=life.workspace)

    @api.get("", response_model=SessionsResponse)
    def every() -> Response:
        """All sessions whose workspace was not removed, oldest first."""
        lives = [life for life in members.list() if life.state != "removed"]
        active = Counter(life.member for life in lives if life.state == "active")
        return done(sessions=[{**_record(daemon, life.id), "concurrent_count": active[life.member]} for life in lives])

    @api.post("/stop", response_model=OkResponse)
    async def stop_many(body: StopManyRequest) -> Response:
        """Stop the sessions of a member, or all that run by themselves; those of people are counted, and go on."""
        if (body.member is None) == (body.mode == "member"):
            raise InvalidInput("member goes with the mode member, and with no other.", fix='Send {"mode": "member", "member": "ada"}.')
        key = f"stop {body.mode} {body.member} {body.force}"
        summary = await daemon.wait_for(key, lambda: members.stop_all(member=body.member, force=body.force), urgent=body.force)
        if summary is None:
            return done(under_way=True)
        return done(
            deactivated=len(summary.deactivated),
            killed=len(summary.killed),
            skipped_interactive=len(summary.skipped_interactive),
            errors=[f"{id_}: {reason}" for id_, reason in summary.errors.items()],
        )

    @api.get("/history", response_model=OkResponse)
    def history(member: str | None = None, since: str | None = None) -> Response:
        """The sessions that ended, the newest end first; a ``since`` that is no instant is left out of account."""
        instant: datetime | None = None
        if since is not None:
            with suppress(InvalidInput):
                instant = parse_instant(since)
        return done(sessions=members.history(member=member, since=instant))

    @api.post("/cleanup", response_model=OkResponse)
    def clean_up(body: CleanupRequest) -> Response:
        """Remove retained workspaces; of those that hold work which is nowhere else, none."""
        report = members.cleanup(_selector(body), dry_run=body.dry_run)
        return done(**cleanup_data(report))

    @api.get("/{id}", response_model=SessionResponse)
    def detail(id: str) -> Response:
        """One session."""
        life = life_of(daemon, id)
        active = sum(other.state == "active" for other in members.list(member=life.member))
        return done(session={**_record(daemon, id), "concurrent_count": active})

    @api.post("/{id}/stop", response_model=OkResponse)
    async def stop(id: str, body: StopRequest | None = None) -> Response:
        """Stop a session; of one that is over, nothing is left to stop, and that is no error."""
        options = body or StopRequest()
        await run_sync(life_of, daemon, id)
        stopping = f"stop {id} {options.force}"
        await daemon.wait_for(stopping, lambda: members.stop(id, force=options.force, reason=options.reason), urgent=options.force)
        return done(session_id=id, current_state=await run_sync(_state, daemon, id))

    @api.get("/{id}/inspect", response_model=OkResponse)
    def inspect(id: str) -> Response:
        """A session, what its finalization came to, and how its repositories are now."""
        life_of(daemon, id)
        record = _record(daemon, id)
        repositories = inspection_data(members.inspect(id))
        return done(session=record, finalization_results=record["finalization_result"], git_state={"repos": repositories})

    @api.post("/{id}/finalize", response_model=OkResponse)
    async def finalize(id: str) -> Response:
        """Save once more what is in a retained workspace."""
        require_retained(await run_sync(life_of, daemon, id))
        try:
            await daemon.wait_for(f"finalize {id}", lambda: members.finalize(id))
        except InvalidInput:
            require_retained(await run_sync(life_of, daemon, id))  # another request finalized it first
            raise
        return done(session_id=id, current_state=await run_sync(_state, daemon, id))

    @api.delete("/{id}", response_model=OkResponse)
    def clean_up_one(id: str) -> Response:
        """Remove the workspace of a session that is over, whatever is in it; work that no remote has is archived."""
        life = life_of(daemon, id)
        if life.state not in _CLEANABLE:
            raise SessionNotFound(f"Session {id} is {life.state}, and has nothing to clean up.", fix="Stop it first.")
        report = members.cleanup(Selector(id=id))
        removed = id in report.removed
        reason = report.failed.get(id)
        archive = report.archived.get(id)
        return done(session_id=id, workspace_removed=removed, registry_removed=removed, reason=reason, archive=archive)

    @api.post("/{id}/send", response_model=OkResponse)
    def send(id: str, body: SendRequest) -> Response:
        """Send a text to a session's agent: a prompt, or a line of its input."""
        life_of(daemon, id)
        members.send(id, body.text)
        return done(session_id=id, sent=True)

    @api.post("/{id}/locks", response_model=LockResponse)
    def lock(id: str, body: LockRequest) -> Response:
        """Ask for a work item for a session; that another has it is no error."""
        life_of(daemon, id)
        acquired = members.lock(id, body.work_item_id)
        return done(acquired=acquired.acquired, **({} if acquired.acquired else {"holder": acquired.holder}))

    @api.delete("/{id}/locks/{item:path}", response_model=OkResponse)
    def unlock(id: str, item: str) -> Response:
        """Give a work item back; ``released`` says whether this session had it."""
        life_of(daemon, id)
        return done(released=members.unlock(id, item))

    return api


def life_of(daemon: Daemon, id_: str) -> Life:
    """The lifecycle of a member's session. Raises SessionNotFound if there is no such session, or if it is no member's."""
    try:
        return daemon.members.get(id_)
    except InvalidInput as problem:
        raise SessionNotFound(problem.fact, why=problem.why, fix=problem.fix) from None


def require_retained(life: Life) -> None:
    """Raise Conflict for a session that is not retained, which cannot be finalized."""
    if life.state != "retained":
        raise Conflict(
            f"Cannot transition from {life.state.capitalize()} to Finalizing.",
            why="Only what was finalized once, or ended without it, can be finalized again.",
            fix="Stop it, and wait until it is retained." if life.state != "removed" else "Its workspace is gone.",
        )


def _record(daemon: Daemon, id_: str) -> dict[str, Any]:
    return botminter.record(daemon.engine.store.log(id_).read())


def _state(daemon: Daemon, id_: str) -> str:
    return daemon.members.get(id_).state.capitalize()


def _selector(body: CleanupRequest) -> Selector:
    match body.filter, body.value:
        case "all", None:
            return Selector(all=True)
        case "member", str(member):
            return Selector(member=member)
        case "older_than", int(age):
            return Selector(older_than_ns=age * _SECOND)
        case "older_than", str(age) if age.isascii() and age.isdigit() and len(age) < 11:
            return Selector(older_than_ns=int(age) * _SECOND)
    raise InvalidInput(
        f"value={body.value!r} does not go with the filter {body.filter}.",
        fix="all takes no value, member a name, older_than a whole number of seconds.",
    )
