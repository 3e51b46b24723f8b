"""The verbs for members' sessions (BotMinter): start, stop, inspect and clean up (docs/explanation/you-know-botminter.md).

A daemon finishes sessions whose agents have ended; without a daemon, each of these commands does so first.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.find_verbs import before
from pytest_gittrix.commands.output import CommandResult, Table, working
from pytest_gittrix.commands.render import confinement_note, facts_text, text_of
from pytest_gittrix.commands.values import age, moment
from pytest_gittrix.errors import InvalidInput, SessionNotFound, WorkItemHeld

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.record.state.lifecycle import Life
    from pytest_gittrix.record.state.retention import Selector

KINDS: Final = ("loop", "interactive", "brain")
EXAMPLES = {
    "member start": ["gittrix member start ada", "gittrix member start ada --work-item td-7 --task 'the parser' -- claude -p go"],
    "member chat": ["gittrix member chat ada", "gittrix member chat ada -- claude --append-system-prompt '{persona}'"],
    "member send": ["gittrix member send 4f1c09aa 'the build is red'"],
    "member stop": ["gittrix member stop 4f1c09aa", "gittrix member stop --member ada", "gittrix member stop --all --force"],
    "member status": ["gittrix member status"],
    "member list": ["gittrix member list", "gittrix member list --member ada --json"],
    "member history": ["gittrix member history --since 24h"],
    "member lock": ["gittrix member lock 4f1c09aa td-7"],
    "member unlock": ["gittrix member unlock 4f1c09aa td-7"],
    "inspect": ["gittrix session inspect 4f1c09aa"],
    "finalize": ["gittrix session finalize 4f1c09aa", "gittrix session finalize 4f1c09aa --allow-secret=tests/key.pem"],
    "cleanup": ["gittrix session cleanup 4f1c09aa", "gittrix session cleanup --older-than 48h --dry-run"],
}

_NAMED: Final = 5
_GOES: Final = 5.0
_RUNS: Final = ("creating", "active", "finalizing")
_STYLES: Final[Mapping[str, int]] = {"Active": 32, "Finalizing": 36, "Failed": 31, "Killed": 31, "Retained": 33, "Removed": 2}


def arguments(add: Callable[..., ArgumentParser]) -> None:
    """Declare the verbs of ``gittrix member``; ``add`` makes one of a name, a command and a sentence."""
    starting = add("start", start, "start a member's agent in a workspace of its own; prints its id, then its workspace")
    starting.add_argument("member", metavar="MEMBER", help="whose session it is")
    starting.add_argument("command", nargs="*", metavar="COMMAND", help="what it runs, behind --; as the team file says by default")
    starting.add_argument("--kind", choices=KINDS, help="what runs in it; as the team file says, or loop")
    starting.add_argument("-t", "--task", default="", metavar="TEXT", help="what it is to do")
    starting.add_argument("--work-item", metavar="ITEM", help="what it alone is to work on")
    context.confine_options(starting)
    starting.add_argument("--id", dest="chosen_id", metavar="ID", help="its id; made here by default")
    _team(starting)
    talking = add("chat", chat, "talk to a member's agent on this terminal, in a workspace of its own; its work is saved when it ends")
    talking.add_argument("member", metavar="MEMBER", help="whose session it is")
    talking.add_argument("command", nargs="*", metavar="COMMAND", help="what it runs, behind --; as the team file says by default")
    talking.add_argument("-t", "--task", default="", metavar="TEXT", help="what it is about, for the record")
    talking.add_argument("--work-item", metavar="ITEM", help="what it alone is to work on")
    context.confine_options(talking)
    _team(talking)
    sending = add("send", send, "send a text to a member's agent: a prompt, or a line of its input", of_session=True)
    sending.add_argument("text", metavar="TEXT", help="what to tell it")
    _team(sending)
    stopping = add("stop", stop, "stop members' agents and save their work; those that are over are no error")
    stopping.add_argument("id", nargs="?", metavar="ID", help="the session's id, or enough of its beginning")
    _member(stopping, "every session of this member")
    stopping.add_argument("--all", action="store_true", help="every session but interactive ones")
    stopping.add_argument("--force", action="store_true", help="kill at once, and save nothing; the workspace is retained")
    stopping.add_argument("--reason", metavar="TEXT", help="why, for the record")
    _team(stopping)
    for name, run, what in (
        ("status", status, "show the sessions that run"),
        ("list", list_lives, "list members' sessions, oldest first"),
        ("history", history, "list the sessions that ended, the newest end first"),
    ):
        verb = add(name, run, what)
        _member(verb, "only those of this member")
        _team(verb)
        if name == "history":
            verb.add_argument("--since", type=moment, metavar="TIME", help="only those that ended then or later: 24h ago, or an instant")
    for name, run, what in (
        ("lock", lock, "have a session alone work on an item; fails if another one does"),
        ("unlock", unlock, "give an item back"),
    ):
        verb = add(name, run, what, of_session=True)
        verb.add_argument("item", metavar="ITEM", help="what is worked on")
        _team(verb)


def session_arguments(add: Callable[..., ArgumentParser]) -> None:
    """Declare the verbs of ``gittrix session`` that are about members' sessions."""
    _team(add("inspect", inspect, "show a member's session and what its repositories hold", of_session=True))
    saving = add("finalize", finalize, "save the work of a retained session once more", of_session=True)
    saving.add_argument(
        "--allow-secret",
        action="append",
        default=[],
        metavar="WHAT",
        help="push this file although it seems to hold credentials: a path, or a fingerprint of the report; repeatable",
    )
    _team(saving)
    cleaning = add("cleanup", cleanup, "remove workspaces of members' sessions that are over")
    cleaning.add_argument("id", nargs="?", metavar="ID", help="the session's id, or enough of its beginning; unsaved work is archived")
    cleaning.add_argument("--all", action="store_true", help="all that hold no work which is nowhere else")
    _member(cleaning, "likewise, of this member")
    cleaning.add_argument("--older-than", type=age, metavar="TIME", help="likewise, of sessions created longer ago: 48h")
    cleaning.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    _team(cleaning)


def _member(verb: ArgumentParser, what: str) -> None:
    verb.add_argument("--member", metavar="MEMBER", help=what)


def _team(verb: ArgumentParser) -> None:
    verb.add_argument("--team", metavar="FILE", help="who is managed; team.toml in GITTRIX_HOME or ~/.gittrix by default")


def start(options: Namespace) -> CommandResult:
    """Start a session of a member; people get its id and its workspace, a line each."""
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


def chat(options: Namespace) -> CommandResult:
    """Run a member's agent on this terminal to its end, and save its work; the exit status is that of the program."""
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


def send(options: Namespace) -> CommandResult:
    """Send a text to a session's agent."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        context.members(gittrix, options).send(id_, options.text)
    return CommandResult({"session_id": id_, "sent": True}, text_of([f"sent to {id_}"]))


def stop(options: Namespace) -> CommandResult:
    """Stop one session, those of a member, or all but interactive ones."""
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


def status(options: Namespace) -> CommandResult:
    """The sessions that run, and how long they have run."""
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
    return CommandResult(records, Table(headings, rows, "task", dict(_STYLES)) if rows else "Nobody is at work.\n")


def list_lives(options: Namespace) -> CommandResult:
    """Members' sessions, with the columns of ``bm session list``."""
    from pytest_gittrix.views.botminter import history_row

    with context.engine(options) as gittrix:
        lives = context.members(gittrix, options).list(member=options.member)
        rows = [history_row(gittrix.store.log(life.id).read()) for life in lives]
    return CommandResult(rows, _table(rows))


def history(options: Namespace) -> CommandResult:
    """The sessions that ended."""
    with context.engine(options) as gittrix:
        since = None if options.since is None else before(gittrix.clock.now(), options.since)
        rows = context.members(gittrix, options).history(member=options.member, since=since)
    return CommandResult(rows, _table(rows))


def lock(options: Namespace) -> CommandResult:
    """Lock a work item for a session."""
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


def unlock(options: Namespace) -> CommandResult:
    """Release a session's lock of a work item."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        released = context.members(gittrix, options).unlock(id_, options.item)
    text = f"{id_} gave {options.item} back" if released else f"{id_} did not work on {options.item}"
    return CommandResult({"released": released, "session_id": id_, "item": options.item}, text_of([text]))


def inspect(options: Namespace) -> CommandResult:
    """A session, what its finalization came to, and what its repositories hold."""
    from pytest_gittrix.commands.managers import inspection_data

    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        repositories = inspection_data(context.members(gittrix, options).inspect(id_))
        record, notes = _record(gittrix, id_), _not_saved(gittrix, id_)
    data = {"session": record, "finalization_results": record["finalization_result"], "git_state": {"repos": repositories}}
    facts = [(name.replace("_", " "), value) for name, value in record.items()]
    return CommandResult(data, facts_text([*facts, *((one["repo_name"], _repository_text(one)) for one in repositories)]), notes)


def finalize(options: Namespace) -> CommandResult:
    """Save the work of a retained session once more."""
    with working("Saving"), context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        context.members(gittrix, options).finalize(id_, allow_secrets=options.allow_secret)
        record, notes = _record(gittrix, id_), _not_saved(gittrix, id_)
    result = record["finalization_result"] or {"exit_status": None}
    return CommandResult(record, facts_text([("session", id_), ("state", record["current_state"]), *result.items()]), notes)


def cleanup(options: Namespace) -> CommandResult:
    """Remove workspaces; what holds work that is nowhere else is spared, unless it is named by its id: then that work is archived."""
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
