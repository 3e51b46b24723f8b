"""The verbs for orchestrated sessions: spawn, restore, kill, retire, send, claim, report.

See docs/explanation/you-know-agent-orchestrator.md.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.output import CommandResult, working
from pytest_gittrix.commands.render import archive_notes, confinement_note, facts_text, text_of
from pytest_gittrix.commands.values import number
from pytest_gittrix.errors import InvalidInput

if TYPE_CHECKING:
    from pytest_gittrix.orchestrator.session import Session

EXAMPLES = {
    "spawn": [
        "gittrix session spawn parser --issue INT-7",
        "gittrix session spawn parser --prompt 'fix the bug' --agent claude",
        "gittrix session spawn parser --lead --prompt 'see to the open issues'",
    ],
    "restore": ["gittrix session restore par-7"],
    "kill": ["gittrix session kill par-7", "gittrix session kill par-7 --purge"],
    "retire": ["gittrix session retire --dry-run", "gittrix session retire --project parser --ended"],
    "send": ["gittrix session send par-7 'look at the failing test'"],
    "claim-pr": ["gittrix session claim-pr par-7 42"],
    "report": ["gittrix session report par-7 working", "gittrix session report par-7 needs_input --note 'which branch?'"],
}
REASONS: Final = ("manually_killed", "pr_merged", "auto_cleanup", "runtime_lost", "error_in_process")


def arguments(add: Callable[..., ArgumentParser]) -> None:
    """Declare the verbs; ``add`` makes one of a name, a command and a sentence."""
    spawning = add("spawn", spawn, "start a session of a project, with an agent at work in it; prints its id, then its workspace")
    spawning.add_argument("project", metavar="PROJECT", help="the project, as the team file names it")
    spawning.add_argument("--issue", metavar="ISSUE", help="what it is to work on")
    spawning.add_argument("--branch", metavar="NAME", help="what its work is called; made up by default")
    spawning.add_argument("--prompt", metavar="TEXT", help="the first message to the agent")
    spawning.add_argument("--agent", metavar="NAME", help="which agent of the project's; its first by default")
    context.confine_options(spawning)
    spawning.add_argument("--lead", action="store_true", help="the session that leads the project's others; there is one, and it is shown")
    lasts = spawning.add_mutually_exclusive_group()
    lasts.add_argument(
        "--keep-after-promote", action="store_true", default=True, help="go on after a promotion to a pull request, as by default"
    )
    lasts.add_argument(
        "--end-after-promote", dest="keep_after_promote", action="store_false", help="end with the promotion to a pull request"
    )
    _team(spawning)
    _team(add("restore", restore, "continue an ended session with a new agent", of_session=True))
    killing = add("kill", kill, "end a session's agent; its workspace stays until its time passes", of_session=True)
    killing.add_argument("--reason", choices=REASONS, default="manually_killed", help="why (%(default)s)")
    killing.add_argument("--purge", action="store_true", help="archive what it did, and remove its workspace too")
    _team(killing)
    retiring = add("retire", retire, "remove orchestrated sessions whose work is over: merged, closed, completed, or without an agent")
    retiring.add_argument("--project", metavar="PROJECT", help="only those of this project")
    retiring.add_argument("--ended", action="store_true", help="also those that ended earlier; they cannot be restored then")
    retiring.add_argument("--dry-run", action="store_true", help="only say which")
    _team(retiring)
    sending = add("send", send, "send a message to a session's agent; an ended session is restored first", of_session=True)
    sending.add_argument("text", metavar="TEXT", help="what to tell it")
    _team(sending)
    claiming = add("claim-pr", claim_pr, "let a session take a pull request over", of_session=True)
    claiming.add_argument("number", type=number, metavar="NUMBER", help="of the pull request")
    _team(claiming)
    reporting = add("report", report, "say how far a session's agent is, as the agent", of_session=True)
    reporting.add_argument("progress", metavar="STATE", help="started, working, needs_input, pr_created, completed and so on")
    reporting.add_argument("--note", metavar="TEXT", help="what else there is to say")
    _team(reporting)


def _team(verb: ArgumentParser) -> None:
    verb.add_argument("--team", metavar="FILE", help="who is managed; team.toml in GITTRIX_HOME or ~/.gittrix by default")


def spawn(options: Namespace) -> CommandResult:
    """Start a session of a project; people get its id and its workspace, a line each."""
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


def restore(options: Namespace) -> CommandResult:
    """Start a new agent in a session that is over."""
    with working("Restoring"), context.engine(options) as gittrix:
        session = context.orchestrator(gittrix, options).restore(context.full_id(gittrix, options.id))
    return CommandResult(session.to_wire(), _facts(session))


def kill(options: Namespace) -> CommandResult:
    """End a session's agent; a second kill does nothing."""
    with working("Ending"), context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        done = context.orchestrator(gittrix, options).kill(id_, reason=options.reason, purge=options.purge)
    text = f"{id_} was over already" if done.already_terminated else f"{id_} ended"
    data = {"id": id_, "cleaned": done.cleaned, "alreadyTerminated": done.already_terminated, "archives": [*done.archives]}
    return CommandResult(data, text_of([text]), archive_notes(done.archives))


def retire(options: Namespace) -> CommandResult:
    """Kill and purge the sessions that are over; one that cannot be is an error, and the others go on."""
    with working("Retiring"), context.engine(options) as gittrix:
        done = context.orchestrator(gittrix, options).cleanup(project_id=options.project, dry_run=options.dry_run, ended=options.ended)
    verb = "would be retired" if options.dry_run else "is retired"
    lines = [f"{id_} {verb}" for id_ in done.killed] or ["Nothing to retire."]
    notes = [note for id_, paths in done.archives.items() for note in archive_notes(paths, id_)]
    failed = [f"{id_} is not: {reason}" for id_, reason in done.errors.items()]
    archives = {id_: [*paths] for id_, paths in done.archives.items()}
    data = {"killed": done.killed, "skipped": done.skipped, "errors": done.errors, "archives": archives, "dryRun": options.dry_run}
    return CommandResult(data, text_of(lines), (*notes, *failed), status=1 if done.errors else 0)


def send(options: Namespace) -> CommandResult:
    """Send a text to a session's agent."""
    with working("Sending"), context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        context.orchestrator(gittrix, options).send(id_, options.text)
    return CommandResult({"id": id_, "sent": True})


def claim_pr(options: Namespace) -> CommandResult:
    """Assign a pull request to a session."""
    with context.engine(options) as gittrix:
        session = context.orchestrator(gittrix, options).claim_pr(context.full_id(gittrix, options.id), options.number)
    return CommandResult(session.to_wire(), _facts(session))


def report(options: Namespace) -> CommandResult:
    """Report an agent's progress. A report that is refused is no error, but the command exits with 1."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        reported = context.orchestrator(gittrix, options).report(id_, options.progress, options.note)
    data = {"id": id_, "accepted": reported.accepted, "reason": reported.reason}
    text = f"{id_}: accepted" if reported.accepted else f"{id_}: refused: {reported.reason}"
    return CommandResult(data, text_of([text]), status=0 if reported.accepted else 1)


def _facts(session: Session) -> str:
    wire: dict[str, Any] = session.to_wire()
    return facts_text((name, value) for name, value in wire.items() if name != "metadata")
