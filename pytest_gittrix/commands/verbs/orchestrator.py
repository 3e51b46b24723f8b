"""The verbs for orchestrated sessions: spawn, restore, kill, retire, send, claim, report.

See docs/explanation/you-know-agent-orchestrator.md.
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import CONFINED, DRY_RUN, SESSION, TEAM, arg, verb
from pytest_gittrix.commands.output import CommandResult, working
from pytest_gittrix.commands.render import archive_notes, confinement_note, facts_text, text_of
from pytest_gittrix.commands.values import number
from pytest_gittrix.errors import InvalidInput

if TYPE_CHECKING:
    from pytest_gittrix.orchestrator.session import Session

REASONS: Final = ("manually_killed", "pr_merged", "auto_cleanup", "runtime_lost", "error_in_process")


@verb(
    arg("project", metavar="PROJECT", help="the project, as the team file names it"),
    arg("--issue", metavar="ISSUE", help="what it is to work on"),
    arg("--branch", metavar="NAME", help="what its work is called; made up by default"),
    arg("--prompt", metavar="TEXT", help="the first message to the agent"),
    arg("--agent", metavar="NAME", help="which agent of the project's; its first by default"),
    *CONFINED,
    arg("--lead", action="store_true", help="the session that leads the project's others; there is one, and it is shown"),
    arg(
        "--keep-after-promote",
        action="store_true",
        default=True,
        help="go on after a promotion to a pull request, as by default",
        excludes="after promote",
    ),
    arg(
        "--end-after-promote",
        dest="keep_after_promote",
        action="store_false",
        help="end with the promotion to a pull request",
        excludes="after promote",
    ),
    TEAM,
    examples=(
        "gittrix session spawn parser --issue INT-7",
        "gittrix session spawn parser --prompt 'fix the bug' --agent claude",
        "gittrix session spawn parser --lead --prompt 'work through the open issues'",
    ),
)
def spawn(options: Namespace) -> CommandResult:
    """Start a session of a project, with an agent at work in it; prints its id, then its workspace."""
    from pytest_gittrix.confine.limits import check_limits
    from pytest_gittrix.orchestrator.config import SpawnConfig

    config = SpawnConfig(
        options.project,
        issue_id=options.issue,
        branch=options.branch,
        prompt=options.prompt,
        agent=options.agent,
        confine=options.confine,
        limits=check_limits(options.limit),
        keep_after_promote=options.keep_after_promote,
    )
    if options.lead and (options.issue is not None or options.branch is not None or not options.keep_after_promote):
        raise InvalidInput(
            "The session that leads a project's others works on no issue of its own.",
            fix="Leave out --issue, --branch and --end-after-promote, or --lead.",
        )
    with working("Starting a session"), context.engine(options) as gittrix:
        manager = context.orchestrator(gittrix, options)
        if options.lead:
            session = manager.spawn_orchestrator(
                options.project, system_prompt=options.prompt, agent=options.agent, confine=options.confine, limits=config.limits
            )
        else:
            session = manager.spawn(config)
    confined = "" if session.runtime_handle is None else session.runtime_handle.data.get("confinement", "")
    return CommandResult(session.to_wire(), text_of([session.id, session.workspace_path or ""]), confinement_note(confined))


@verb(SESSION, TEAM, examples=("gittrix session restore par-7",))
def restore(options: Namespace) -> CommandResult:
    """Continue an ended session with a new agent."""
    with working("Restoring"), context.engine(options) as gittrix:
        session = context.orchestrator(gittrix, options).restore(context.full_id(gittrix, options.id))
    return CommandResult(session.to_wire(), _facts(session))


@verb(
    SESSION,
    arg("--reason", choices=REASONS, default="manually_killed", help="why (%(default)s)"),
    arg("--purge", action="store_true", help="archive what it did, and remove its workspace too"),
    TEAM,
    examples=("gittrix session kill par-7", "gittrix session kill par-7 --purge"),
)
def kill(options: Namespace) -> CommandResult:
    """End a session's agent; its workspace stays until its time passes."""
    with working("Ending"), context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        done = context.orchestrator(gittrix, options).kill(id_, reason=options.reason, purge=options.purge)
    text = f"{id_} was over already" if done.already_terminated else f"{id_} ended"
    data = {"id": id_, "cleaned": done.cleaned, "alreadyTerminated": done.already_terminated, "archives": [*done.archives]}
    return CommandResult(data, text_of([text]), archive_notes(done.archives))


@verb(
    arg("--project", metavar="PROJECT", help="only those of this project"),
    arg("--ended", action="store_true", help="also those that ended earlier; they cannot be restored then"),
    DRY_RUN,
    TEAM,
    examples=("gittrix session retire --dry-run", "gittrix session retire --project parser --ended"),
)
def retire(options: Namespace) -> CommandResult:
    """Remove orchestrated sessions whose work is over: merged, closed, completed, or without an agent."""
    with working("Retiring"), context.engine(options) as gittrix:
        done = context.orchestrator(gittrix, options).cleanup(project_id=options.project, dry_run=options.dry_run, ended=options.ended)
    verb = "would be retired" if options.dry_run else "is retired"
    lines = [f"{id_} {verb}" for id_ in done.killed] or ["Nothing to retire."]
    notes = [note for id_, paths in done.archives.items() for note in archive_notes(paths, id_)]
    failed = [f"{id_} is not: {reason}" for id_, reason in done.errors.items()]
    archives = {id_: [*paths] for id_, paths in done.archives.items()}
    data = {"killed": done.killed, "skipped": done.skipped, "errors": done.errors, "archives": archives, "dryRun": options.dry_run}
    return CommandResult(data, text_of(lines), (*notes, *failed), status=1 if done.errors else 0)


@verb(
    SESSION, arg("text", metavar="TEXT", help="what to tell it"), TEAM, examples=("gittrix session send par-7 'look at the failing test'",)
)
def send(options: Namespace) -> CommandResult:
    """Send a message to a session's agent; an ended session is restored first."""
    with working("Sending"), context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        context.orchestrator(gittrix, options).send(id_, options.text)
    return CommandResult({"id": id_, "sent": True})


@verb(
    SESSION, arg("number", type=number, metavar="NUMBER", help="of the pull request"), TEAM, examples=("gittrix session claim-pr par-7 42",)
)
def claim_pr(options: Namespace) -> CommandResult:
    """Let a session take a pull request over."""
    with context.engine(options) as gittrix:
        session = context.orchestrator(gittrix, options).claim_pr(context.full_id(gittrix, options.id), options.number)
    return CommandResult(session.to_wire(), _facts(session))


@verb(
    SESSION,
    arg("progress", metavar="STATE", help="started, working, needs_input, pr_created, completed and so on"),
    arg("--note", metavar="TEXT", help="what else there is to say"),
    TEAM,
    examples=("gittrix session report par-7 working", "gittrix session report par-7 needs_input --note 'which branch?'"),
)
def report(options: Namespace) -> CommandResult:
    """Say how far a session's agent is, as the agent."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        reported = context.orchestrator(gittrix, options).report(id_, options.progress, options.note)
    data = {"id": id_, "accepted": reported.accepted, "reason": reported.reason}
    text = f"{id_}: accepted" if reported.accepted else f"{id_}: refused: {reported.reason}"
    return CommandResult(data, text_of([text]), status=0 if reported.accepted else 1)


def _facts(session: Session) -> str:
    wire: dict[str, Any] = session.to_wire()
    return facts_text((name, value) for name, value in wire.items() if name != "metadata")


VERBS = (spawn, restore, kill, retire, send, claim_pr, report)
"""The verbs of ``gittrix session`` that are about orchestrated sessions."""
