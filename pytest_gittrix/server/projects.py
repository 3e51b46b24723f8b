"""The requests about orchestrated sessions: agent-orchestrator's operations over HTTP, with its field names (docs/reference/http.md)."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from pytest_gittrix.errors import SessionNotFound
from pytest_gittrix.orchestrator.config import SpawnConfig
from pytest_gittrix.server.responses import FAILURES, done
from pytest_gittrix.server.schema import (
    ClaimPrRequest,
    InstructRequest,
    KillRequest,
    LeadRequest,
    OkResponse,
    ReportRequest,
    RetireRequest,
    SpawnRequest,
)
from pytest_gittrix.server.state import Daemon


def routes(daemon: Daemon) -> APIRouter:
    """The requests, answered by a daemon."""
    api = APIRouter(prefix="/api/orchestrator/sessions", tags=["orchestrator"], responses=FAILURES)

    @api.post("", response_model=OkResponse)
    def spawn(body: SpawnRequest) -> Response:
        """Start a session of a project."""
        named = (body.projectId, body.issueId, body.branch, body.prompt, body.agent)
        config = SpawnConfig(*named, confine=body.confine, limits=body.limits, keep_after_promote=body.keepAfterPromote)
        return done(session=daemon.orchestrator.spawn(config).to_wire())

    @api.get("", response_model=OkResponse)
    def every(project: str | None = None) -> Response:
        """The sessions there are, or those of a project."""
        return done(sessions=[one.to_wire() for one in daemon.orchestrator.list(project)])

    @api.post("/orchestrator", response_model=OkResponse)
    def lead(body: LeadRequest) -> Response:
        """The session that leads a project's others: the one there is, or a new one."""
        leading = daemon.orchestrator.spawn_orchestrator(
            body.projectId, system_prompt=body.systemPrompt, agent=body.agent, confine=body.confine, limits=body.limits
        )
        return done(session=leading.to_wire())

    @api.post("/cleanup", response_model=OkResponse)
    def clean_up(body: RetireRequest | None = None) -> Response:
        """End the sessions whose pull request is merged or closed, whose issue is done, or whose agent is gone."""
        options = body or RetireRequest()
        cleaned = daemon.orchestrator.cleanup(project_id=options.projectId, dry_run=options.dryRun, ended=options.ended)
        archives = {id_: [*paths] for id_, paths in cleaned.archives.items()}
        return done(killed=cleaned.killed, skipped=cleaned.skipped, errors=dict(cleaned.errors), archives=archives)

    @api.get("/{id}", response_model=OkResponse)
    def detail(id: str) -> Response:
        """One session."""
        found = daemon.orchestrator.get(id)
        if found is None:
            raise SessionNotFound(f"There is no orchestrated session {id!r}.", fix="GET /api/orchestrator/sessions lists them.")
        return done(session=found.to_wire())

    @api.post("/{id}/kill", response_model=OkResponse)
    def kill(id: str, body: KillRequest | None = None) -> Response:
        """End a session; a second time, nothing is done."""
        options = body or KillRequest()
        killed = daemon.orchestrator.kill(id, reason=options.reason, purge=options.purge)
        return done(cleaned=killed.cleaned, alreadyTerminated=killed.already_terminated, archives=[*killed.archives])

    @api.post("/{id}/restore", response_model=OkResponse)
    def restore(id: str) -> Response:
        """Let a session that is over go on."""
        return done(session=daemon.orchestrator.restore(id).to_wire())

    @api.post("/{id}/send", response_model=OkResponse)
    def send(id: str, body: InstructRequest) -> Response:
        """Tell the agent something; a session that is over goes on first."""
        daemon.orchestrator.send(id, body.text)
        return done(sent=True)

    @api.post("/{id}/claim-pr", response_model=OkResponse)
    def claim_pr(id: str, body: ClaimPrRequest) -> Response:
        """Let a session take a pull request over."""
        return done(session=daemon.orchestrator.claim_pr(id, body.number).to_wire())

    @api.post("/{id}/report", response_model=OkResponse)
    def report(id: str, body: ReportRequest) -> Response:
        """What an agent says of itself; whether it was believed, and why not."""
        reported = daemon.orchestrator.report(id, body.state, body.note)
        return done(accepted=reported.accepted, reason=reported.reason)

    return api
