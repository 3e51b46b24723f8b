"""The verbs for members' sessions (BotMinter): start, stop, inspect and clean up (docs/explanation/you-know-botminter.md).

A daemon finishes sessions whose agents have ended; without a daemon, each of these commands does so first.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import CONFINED, DRY_RUN, OPTIONAL_SESSION, SESSION, TEAM, Group, arg, verb
from pytest_gittrix.commands.output import CommandResult, Table, working
from pytest_gittrix.commands.render import confinement_note, facts_text, text_of
from pytest_gittrix.commands.values import age, moment
from pytest_gittrix.commands.verbs.find import before
from pytest_gittrix.errors import InvalidInput, SessionNotFound, WorkItemHeld

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.record.state.lifecycle import Life
    from pytest_gittrix.record.state.retention import Selector

KINDS: Final = ("loop", "interactive", "brain")

_NAMED: Final = 5
_GOES: Final = 5.0
_RUNS: Final = ("creating", "active", "finalizing")
_STYLES: Final[Mapping[str, int]] = {"Active": 32, "Finalizing": 36, "Failed": 31, "Killed": 31, "Retained": 33, "Removed": 2}


_MEMBER = arg("member", metavar="MEMBER", help="whose session it is")
_COMMAND = arg("command", nargs="*", metavar="COMMAND", help="what it runs, behind --; as the team file says by default")
_WORK_ITEM = arg("--work-item", metavar="ITEM", help="what it alone is to work on")
_ITEM = arg("item", metavar="ITEM", help="what is worked on")
_ONLY_OF_MEMBER = arg("--member", metavar="MEMBER", help="only those of this member")


@verb(
    _MEMBER,
    _COMMAND,
    arg("--kind", choices=KINDS, help="what runs in it; as the team file says, or loop"),
    arg("-t", "--task", default="", metavar="TEXT", help="what it is to do"),
    _WORK_ITEM,
    *CONFINED,
    arg("--id", dest="chosen_id", metavar="ID", help="its id; made here by default"),
    TEAM,
    examples=("gittrix member start ada", "gittrix member start ada --work-item td-7 --task 'the parser' -- claude -p go"),
)
def start(options: Namespace) -> CommandResult:
    """Start a member's agent in a workspace of its own; prints its id, then its workspace."""
    from pytest_gittrix.commands.managers import start_member
    from pytest_gittrix.confine.limits import check_limits

    with working("Starting a session"), context.engine(options) as gittrix:
        life = start_member(
            context.members(gittrix, options),
            context.team(options),
            options.member,
            options.kind,
            task=options.task,
            work_item=options.work_item,
            command=options.command or None,
            confine=options.confine,
            limits=check_limits(options.limit),
            id=options.chosen_id,
        )
        return CommandResult(_record(gittrix, life.id), text_of([life.id, life.workspace]), confinement_note(_confined(life)))


@verb(
    _MEMBER,
    _COMMAND,
    arg("-t", "--task", default="", metavar="TEXT", help="what it is about, for the record"),
    _WORK_ITEM,
    *CONFINED,
    TEAM,
    examples=("gittrix member chat ada", "gittrix member chat ada -- claude --append-system-prompt '{persona}'"),
    terminal_only=True,
)
def chat(options: Namespace) -> CommandResult:
    """Talk to a member's agent on this terminal, in a workspace of its own; its work is saved when it ends."""
    from pytest_gittrix.commands.managers import start_member
    from pytest_gittrix.confine.limits import check_limits
    from pytest_gittrix.members.conversation.terminal import lent_terminal

    with context.engine(options) as gittrix, lent_terminal() as terminal:
        members = context.members(gittrix, options)
        life = start_member(
            members,
            context.team(options),
            options.member,
            "interactive",
            task=options.task,
            work_item=options.work_item,
            command=options.command or None,
            confine=options.confine,
            limits=check_limits(options.limit),
            terminal=terminal.agents,
        )
        process = members.process(life.id)
        assert process is not None
        terminal.relay(lambda: process.observe().state == "alive")
        terminal.close()
        process.wait(_GOES)
        process.stop()
        ended = members.finish(life.id)
        record, notes = _record(gittrix, life.id), _not_saved(gittrix, life.id)
    return CommandResult(record, text_of([f"{life.id} is {ended.state}"]), notes, status=_status_of(ended))


def _status_of(life: Life) -> int:
    """The exit status of a session's agent, as a shell gives it."""
    agent = life.agent
    if agent is None or (agent.code is None and agent.signal is None):
        return 1
    return 128 + agent.signal if agent.code is None and agent.signal is not None else agent.code or 0


@verb(SESSION, arg("text", metavar="TEXT", help="what to tell it"), TEAM, examples=("gittrix member send 4f1c09aa 'the build is red'",))
def send(options: Namespace) -> CommandResult:
    """Send a text to a member's agent: a prompt, or a line of its input."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        context.members(gittrix, options).send(id_, options.text)
    return CommandResult({"session_id": id_, "sent": True}, text_of([f"sent to {id_}"]))


@verb(
    OPTIONAL_SESSION,
    arg("--member", metavar="MEMBER", help="every session of this member"),
    arg("--all", action="store_true", help="every session but interactive ones"),
    arg("--force", action="store_true", help="kill at once, and save nothing; the workspace is retained"),
    arg("--reason", metavar="TEXT", help="why, for the record"),
    TEAM,
    examples=("gittrix member stop 4f1c09aa", "gittrix member stop --member ada", "gittrix member stop --all --force"),
)
def stop(options: Namespace) -> CommandResult:
    """Stop members' agents and save their work; those that are over are no error."""
    given = [options.id is not None, options.member is not None, options.all]
    if sum(given) != 1:
        raise InvalidInput("It is not clear which sessions to stop.", fix="Give one of: an id, --member, --all.")
    with working("Stopping"), context.engine(options) as gittrix:
        members = context.members(gittrix, options)
        if options.id is not None:
            life = members.stop(context.full_id(gittrix, options.id), force=options.force, reason=options.reason)
            return CommandResult(_record(gittrix, life.id), text_of([f"{life.id} is {life.state}"]), _not_saved(gittrix, life.id))
        done = members.stop_all(member=options.member, force=options.force)
    outcomes = {"deactivated": done.deactivated, "killed": done.killed, "skipped interactive": done.skipped_interactive}
    data = {name.replace(" ", "_"): list(ids) for name, ids in outcomes.items()} | {"errors": dict(done.errors)}
    notes = tuple(f"{id_}: {reason}" for id_, reason in done.errors.items())
    return CommandResult(data, text_of(f"{id_} {name}" for name, ids in outcomes.items() for id_ in ids), notes, status=1 if notes else 0)


@verb(_ONLY_OF_MEMBER, TEAM, examples=("gittrix member status",), only_looks=True)
def status(options: Namespace) -> CommandResult:
    """Show the sessions that run."""
    from pytest_gittrix.record.state.retention import elapsed_text

    with context.engine(options) as gittrix:
        lives = context.members(gittrix, options).list(member=options.member, states=_RUNS)
        records = [_record(gittrix, life.id) for life in lives]
        now = gittrix.clock.now_ns()
    rows: list[tuple[str, ...]] = [
        (
            life.member,
            life.id,
            life.kind,
            life.state.capitalize(),
            _pid(life),
            elapsed_text(max(now - life.created_ns, 0)),
            _confined(life),
            life.task,
        )
        for life in lives
    ]
    headings = ("member", "session", "type", "state", "pid", "for", "confined", "task")
    return CommandResult(records, Table(headings, rows, "task", dict(_STYLES)) if rows else "No member is at work.\n")


@verb(_ONLY_OF_MEMBER, TEAM, name="list", examples=("gittrix member list", "gittrix member list --member ada --json"), only_looks=True)
def list_lives(options: Namespace) -> CommandResult:
    """List members' sessions, oldest first."""
    from pytest_gittrix.views.botminter import history_row

    with context.engine(options) as gittrix:
        lives = context.members(gittrix, options).list(member=options.member)
        rows = [history_row(gittrix.store.log(life.id).read()) for life in lives]
    return CommandResult(rows, _table(rows))


@verb(
    _ONLY_OF_MEMBER,
    TEAM,
    arg("--since", type=moment, metavar="TIME", help="only those that ended then or later: 24h ago, or an instant"),
    examples=("gittrix member history --since 24h",),
    only_looks=True,
)
def history(options: Namespace) -> CommandResult:
    """List the sessions that ended, the newest end first."""
    with context.engine(options) as gittrix:
        since = None if options.since is None else before(gittrix.clock.now(), options.since)
        rows = context.members(gittrix, options).history(member=options.member, since=since)
    return CommandResult(rows, _table(rows))


@verb(SESSION, _ITEM, TEAM, examples=("gittrix member lock 4f1c09aa td-7",))
def lock(options: Namespace) -> CommandResult:
    """Have a session alone work on an item; fails if another one does."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        acquired = context.members(gittrix, options).lock(id_, options.item)
    if not acquired.acquired:
        raise WorkItemHeld(
            f"Session {acquired.holder} works on {options.item!r}.",
            holder=acquired.holder,
            fix="Work on something else, or wait until it is done.",
        )
    return CommandResult({"acquired": True, "session_id": id_, "item": options.item}, text_of([f"{id_} works on {options.item}"]))


@verb(SESSION, _ITEM, TEAM, examples=("gittrix member unlock 4f1c09aa td-7",))
def unlock(options: Namespace) -> CommandResult:
    """Give an item back."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        released = context.members(gittrix, options).unlock(id_, options.item)
    text = f"{id_} gave {options.item} back" if released else f"{id_} did not work on {options.item}"
    return CommandResult({"released": released, "session_id": id_, "item": options.item}, text_of([text]))


@verb(SESSION, TEAM, examples=("gittrix session inspect 4f1c09aa",), only_looks=True)
def inspect(options: Namespace) -> CommandResult:
    """Show a member's session and what its repositories hold."""
    from pytest_gittrix.commands.managers import inspection_data

    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        repositories = inspection_data(context.members(gittrix, options).inspect(id_))
        record, notes = _record(gittrix, id_), _not_saved(gittrix, id_)
    data = {"session": record, "finalization_results": record["finalization_result"], "git_state": {"repos": repositories}}
    facts = [(name.replace("_", " "), value) for name, value in record.items()]
    return CommandResult(data, facts_text([*facts, *((one["repo_name"], _repository_text(one)) for one in repositories)]), notes)


@verb(
    SESSION,
    arg(
        "--allow-secret",
        action="append",
        default=[],
        metavar="WHAT",
        help="push this file although it seems to hold credentials: a path, or a fingerprint of the report; repeatable",
    ),
    TEAM,
    examples=("gittrix session finalize 4f1c09aa", "gittrix session finalize 4f1c09aa --allow-secret=tests/key.pem"),
)
def finalize(options: Namespace) -> CommandResult:
    """Save the work of a retained session once more."""
    with working("Saving"), context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        context.members(gittrix, options).finalize(id_, allow_secrets=options.allow_secret)
        record, notes = _record(gittrix, id_), _not_saved(gittrix, id_)
    result = record["finalization_result"] or {"exit_status": None}
    return CommandResult(record, facts_text([("session", id_), ("state", record["current_state"]), *result.items()]), notes)


@verb(
    arg("id", nargs="?", metavar="ID", help="the session's id, or enough of its beginning; unsaved work is archived"),
    arg("--all", action="store_true", help="all that hold no work which is nowhere else"),
    arg("--member", metavar="MEMBER", help="the same, of this member"),
    arg("--older-than", type=age, metavar="TIME", help="the same, of sessions created longer ago: 48h"),
    DRY_RUN,
    TEAM,
    examples=("gittrix session cleanup 4f1c09aa", "gittrix session cleanup --older-than 48h --dry-run"),
)
def cleanup(options: Namespace) -> CommandResult:
    """Remove workspaces of members' sessions that are over."""
    from pytest_gittrix.commands.managers import cleanup_data

    with working("Cleaning up"), context.engine(options) as gittrix:
        report = context.members(gittrix, options).cleanup(_selector(gittrix, options), dry_run=options.dry_run)
    what = "would be removed" if report.dry_run else "removed"
    outcomes = [(what, report.removed), ("spared: it holds work that is nowhere else", report.spared)]
    failed = tuple(f"{id_}: {reason}" for id_, reason in report.failed.items())
    notes = (*failed, *(f"{id_}: what no remote has is in {path}" for id_, path in report.archived.items()))
    text = text_of(f"{id_} {how}" for how, ids in outcomes for id_ in ids)
    return CommandResult(
        cleanup_data(report), text or ("" if failed else "There is nothing to clean up.\n"), notes, status=1 if failed else 0
    )


def _selector(gittrix: GitTrix, options: Namespace) -> Selector:
    from pytest_gittrix.record.state.retention import Selector

    older: timedelta | None = options.older_than
    return Selector(
        id=None if options.id is None else context.full_id(gittrix, options.id),
        all=options.all,
        member=options.member,
        older_than_ns=None if older is None else older // timedelta(microseconds=1) * 1000,
    )


def _record(gittrix: GitTrix, id_: str) -> dict[str, Any]:
    from pytest_gittrix.record.state.fold import fold
    from pytest_gittrix.views.botminter import record

    events = gittrix.store.log(id_).read()
    if not events:
        raise SessionNotFound(f"There is no session {id_!r} in {gittrix.store.root}.")
    return {**record(events), "agent_confinement": _confined(fold(events).life) or None}


def _not_saved(gittrix: GitTrix, id_: str) -> tuple[str, ...]:
    """What the last finalization of a session did not push, and why, a line each."""
    lines: list[str] = []
    for event in gittrix.store.log(id_).read():
        if event.type == "finalize.started":
            lines = []
        if event.type == "finalize.repository" and event.data["action"] in ("skipped", "left", "failed"):
            files, branch = event.data.get("files", ()), event.data.get("branch")
            if files or event.data["action"] != "skipped":
                named = ", ".join(files[:_NAMED]) or branch or "all of it"
                lines.append(f"{event.data['name']}: {named}: {event.data.get('reason', '')}")
    return tuple(lines)


def _pid(life: Life) -> str:
    return str(life.agent.pid) if life.agent is not None and life.agent.exited_ns is None else ""


def _confined(life: Life | None) -> str:
    return (life.agent.confinement if life is not None and life.agent is not None else None) or ""


def _repository_text(repository: Mapping[str, Any]) -> str:
    """The state of a repository, for people."""
    parts = [f"on {repository['current_branch']}" if repository["current_branch"] else "detached"]
    pushed = repository["pushed_files"]
    parts += [f"not committed: {path}" for path in repository["uncommitted_files"] if path not in pushed]
    parts += [f"pushed as it is: {path}" for path in pushed]
    parts += [f"not pushed: {branch}" for branch in repository["unpushed_branches"]]
    return "\n".join(parts)


def _table(rows: list[dict[str, Any]]) -> str | Table:
    headings = ("session", "member", "type", "state", "finalization", "started", "ended")
    keys = ("session_id", "member", "session_type", "state", "finalization_status", "started_at", "ended_at")
    cells = [tuple(str(row[key] or "") for key in keys) for row in rows]
    return Table(headings, cells, "member", dict(_STYLES)) if cells else "There are no such sessions.\n"


MEMBER = Group(
    "member",
    "start, stop and look at the agents of a team's members",
    {"work": (start, chat, send, stop), "look": (status, list_lives, history), "work items": (lock, unlock)},
)

VERBS = (inspect, finalize, cleanup)
"""The verbs of ``gittrix session`` that are about members' sessions."""
