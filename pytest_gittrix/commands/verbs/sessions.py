"""The verbs of single sessions and of the whole store, as functions of their options.

Every command takes the options that its verb parsed and returns a ``CommandResult``; any exception becomes the command's error. The engine
is loaded inside the commands, so that importing them costs nothing. Data has the camelCase keys of the TypeScript CLI.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands import forge_options
from pytest_gittrix.commands.declaration import OWN_SESSION, SESSION, arg, verb
from pytest_gittrix.commands.output import CommandResult, Diff, put_note, working
from pytest_gittrix.commands.render import archive_notes, event_data, facts_text, info_data, info_facts, notes_of, text_of
from pytest_gittrix.commands.values import duration, hunks, names, number
from pytest_gittrix.errors import InvalidInput, PathNotFound, did_you_mean

if TYPE_CHECKING:
    from pytest_gittrix.engine.operations.review import Review
    from pytest_gittrix.engine.user_session import UserSession
    from pytest_gittrix.git.hunks import Hunk
    from pytest_gittrix.record.eventlog.events import Event

STRATEGIES = ("auto", "commit", "branch", "patch", "pr")
OUTCOMES = ("done", "crash", "killed")
ON_OVERLAP = ("refuse", "allow-identical", "merge")
ON_HAZARD = ("warn", "refuse", "allow")
MANY_FILES = 200


_FORCE = arg("--force", action="store_true", help="do so although processes work in it; those of the engine are ended")
_OUTCOME = arg("--outcome", choices=OUTCOMES, help="the result of its agent")
_PATH = arg("path", metavar="PATH", help="from the workspace's root")


@verb(
    SESSION,
    arg("--events", action="store_true", help="also its events, in order"),
    examples=("gittrix session info sess_V1St", "gittrix session info sess_V1St --events --json"),
    only_looks=True,
)
def info(options: Namespace) -> CommandResult:
    """Show the state of a session; ended ones too."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        wire = gittrix.info(id_).to_wire()
        events = [event_data(event) for event in gittrix.store.log(id_).read()] if options.events else None
        now = gittrix.clock.now()
    rows = [f"{event['seq']:>10}  {event['ts']}  {event['actor']:<6}  {event['type']}" for event in events or []]
    return CommandResult(info_data(wire) | _known({"events": events}), facts_text(info_facts(wire, now)) + text_of(rows))


@verb(SESSION, _PATH, examples=("gittrix session read sess_V1St app.py > app.py",), only_looks=True)
def read(options: Namespace) -> CommandResult:
    """Print a file, byte for byte."""
    from base64 import b64encode

    with context.session(options) as session:
        try:
            contents = session.read(options.path)
        except PathNotFound as problem:
            meant = did_you_mean(options.path, [entry.path for entry in session.list(".")])
            raise PathNotFound(problem.fact, why=problem.why, fix=f"{meant}`gittrix session list-files` shows the existing ones.") from None
    return CommandResult({"path": options.path, "contentBase64": b64encode(contents).decode("ascii")}, contents)


@verb(SESSION, _PATH, examples=("gittrix session write sess_V1St app.py < new.py",), reads_stdin=True)
def write(options: Namespace) -> CommandResult:
    """Write standard input to a file."""
    contents = context.standard_input("what the file is to hold")
    with context.session(options) as session:
        session.write(options.path, contents)
    return CommandResult({"path": options.path, "size": len(contents)})


@verb(SESSION, _PATH, examples=("gittrix session delete sess_V1St old.py",))
def delete(options: Namespace) -> CommandResult:
    """Delete a file."""
    with context.session(options) as session:
        session.delete(options.path)
    return CommandResult({"path": options.path})


@verb(
    SESSION,
    arg("path", nargs="?", default=".", metavar="DIRECTORY", help="where to start; the workspace's root by default"),
    examples=("gittrix session list-files sess_V1St", "gittrix session list-files sess_V1St src"),
    only_looks=True,
)
def list_files(options: Namespace) -> CommandResult:
    """List files and directories."""
    with context.session(options) as session:
        found = session.list(options.path)
    text = text_of(f"{entry.path}/" if entry.type == "dir" else entry.path for entry in found)
    return CommandResult([{"path": entry.path, "type": entry.type} for entry in found], text)


@verb(SESSION, examples=("gittrix session touched sess_V1St",), only_looks=True)
def touched(options: Namespace) -> CommandResult:
    """List the paths that differ from the baseline."""
    with context.session(options) as session:
        review = session.review()
    shown = {*review.snapshot.changes, *review.snapshot.refused, *review.snapshot.withheld_tops}
    withheld = (f"Left out of a promotion of everything: {line}." for line in review.snapshot.withheld_lines)
    return CommandResult(review.touched, text_of(sorted(shown)), (*_refusals(review), *withheld))


@verb(
    SESSION,
    arg("paths", nargs="*", default=(), metavar="PATH", help="only these"),
    arg("--hunks", action="store_true", help="show each hunk under the name that promote --hunks takes"),
    examples=("gittrix session diff sess_V1St | git apply --check", "gittrix session diff sess_V1St app.py --hunks"),
    only_looks=True,
)
def diff(options: Namespace) -> CommandResult:
    """Print what was changed, as git apply takes it."""
    with context.session(options) as session:
        review = _review_of(session, options.paths)
        notes = {"hazards": dict(review.hazards), "filtered": dict(review.filtered)}
        if not options.hunks:
            data = {"diff": review.diff, "refused": dict(review.refused), "secrets": _lists(review.secrets), **notes}
            return CommandResult(data, Diff(review.diff), _review_notes(review))
        hunks = {path: [_hunk_data(hunk) for hunk in of_path] for path, of_path in review.hunks.items()}
        data = {
            "diff": review.diff,
            "hunks": hunks,
            "refused": dict(review.refused),
            "secrets": _lists(review.secrets),
            "beside": [*review.beside],
            **notes,
        }
        return CommandResult(data, Diff(_hunk_list(review)), _review_notes(review))


@verb(
    SESSION,
    arg("-m", "--message", required=True, metavar="TEXT", help="the commit message"),
    examples=('gittrix session commit sess_V1St -m "First half"',),
)
def commit(options: Namespace) -> CommandResult:
    """Commit in the workspace, as the agent."""
    with context.session(options) as session:
        sha = session.commit(options.message)
        left_out = session.history(["session.commit"])[-1].data.get("left_out", [])
    return CommandResult({"sha": sha, "leftOut": left_out}, text_of([sha]), tuple(f"Not in this commit: {line}." for line in left_out))


@verb(
    OWN_SESSION,
    _OUTCOME,
    _FORCE,
    examples=(
        "gittrix session discard --outcome done",
        "gittrix session discard sess_V1St",
        "gittrix session discard sess_V1St --outcome crash",
    ),
)
def discard(options: Namespace) -> CommandResult:
    """End a session without a promotion, and remove its workspace; its work is archived."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        gittrix.evict(id_, "discarded", outcome=options.outcome, force=options.force)
        archives = gittrix.archives(id_)
    return CommandResult({"discarded": id_, "archives": [*archives]}, text_of([id_]), archive_notes(archives))


@verb(
    SESSION, arg("ttl", type=duration, metavar="DURATION", help="such as 2h, 30m or 1d"), examples=("gittrix session extend sess_V1St 2h",)
)
def extend(options: Namespace) -> CommandResult:
    """Replace the time a session may lie idle."""
    from pytest_gittrix.durations import format_duration

    with context.session(options) as session:
        session.extend(options.ttl)
        extended = session.info()
    return CommandResult(info_data(extended.to_wire()), text_of([f"{session.id} may now lie idle for {format_duration(options.ttl)}"]))


@verb(SESSION, arg("durable_now", metavar="PATH", help="the repository"), examples=("gittrix session relocate sess_V1St ~/projects/app",))
def relocate(options: Namespace) -> CommandResult:
    """Name the place where a session's durable repository is now."""
    with context.session(options) as session:
        session.relocate(options.durable_now)
        moved = session.info()
    return CommandResult(info_data(moved.to_wire()), text_of([f"{session.id} is of {moved.durable_path} now"]))


@verb(
    SESSION,
    arg("--state", choices=("expired", "discarded"), default="expired", help="how it ends (%(default)s)"),
    _OUTCOME,
    _FORCE,
    examples=("gittrix session evict sess_V1St", "gittrix session evict sess_V1St --state discarded"),
)
def evict(options: Namespace) -> CommandResult:
    """End a session and remove its workspace; its work is archived."""
    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        gittrix.evict(id_, options.state, outcome=options.outcome, force=options.force)
        archives = gittrix.archives(id_)
    return CommandResult({"evicted": id_, "archives": [*archives]}, text_of([id_]), archive_notes(archives))


@verb(
    SESSION,
    arg("paths", nargs="*", default=(), metavar="PATH", help="promote only these; everything touched by default"),
    arg("-f", "--files", type=names, action="extend", metavar="A,B", help="the same, separated by commas; repeatable"),
    arg(
        "--hunks",
        type=hunks,
        action="append",
        metavar="PATH:1,3",
        help="only these hunks of a file, as session diff --hunks names them; repeatable",
    ),
    arg("-m", "--message", metavar="TEXT", help="the commit message; by default 'gittrix: <task>'"),
    arg("-s", "--strategy", choices=STRATEGIES, default="auto", help="where the work lands (%(default)s)"),
    arg("--on-overlap", choices=ON_OVERLAP, default="refuse", help="what to do where durable changed a selected file too (%(default)s)"),
    arg("--keep", action=BooleanOptionalAction, help="go on with the session, or end it; by default as it was started"),
    arg(
        "--refuse-secrets",
        action=BooleanOptionalAction,
        help="promote nothing if a file or a new line looks like credentials; by default where the commit leaves this machine",
    ),
    arg("--allow-secret", action="append", default=[], metavar="PATH", help="a file that may look like credentials; repeatable"),
    arg("--allow-filtered", action="store_true", help="promote files as they are that a filter such as Git LFS would change"),
    arg("--on-hazard", choices=ON_HAZARD, default="warn", help="what to do about new names that other machines cannot have (%(default)s)"),
    arg(
        "--many-files",
        type=number,
        default=MANY_FILES,
        metavar="N",
        help="warn of a promotion of everything that has more files (%(default)s); 0 for never",
    ),
    *forge_options.ARGUMENTS,
    examples=(
        "gittrix promote sess_V1St",
        'gittrix promote sess_V1St --files app.py,README.md -m "Fix the bug"',
        'gittrix promote sess_V1St --hunks "app.py:1,3" --on-overlap merge',
        "gittrix promote sess_V1St --strategy patch > work.patch",
        "gittrix promote sess_V1St --files app.py --keep",
        "gittrix promote sess_V1St --refuse-secrets --allow-secret tests/key.pem",
        'gittrix promote sess_V1St --strategy pr --forge-repo acme/app --title "Fix the bug" --draft',
    ),
    aliases=("p",),
)
def promote(options: Namespace) -> CommandResult:
    """Make one commit of a session's work on durable."""
    files = [*options.paths, *(options.files or [])]
    hunks: dict[str, set[int]] = {}
    for path, numbers in options.hunks or []:
        hunks.setdefault(path, set()).update(numbers)
    with context.session(options) as session, ExitStack() as subscriptions:
        subscriptions.callback(session.subscribe(lambda event: put_note(f"Waiting: {event.data['holder']}."), ["promote.waiting"]))
        subscriptions.callback(session.subscribe(_tell_secrets, ["promote.secrets"]))
        result = session.promote(
            files=files or None,
            hunks=hunks or None,
            strategy=options.strategy,
            message=options.message,
            on_overlap=options.on_overlap,
            base=options.base,
            title=options.title,
            body=options.body,
            draft=options.draft,
            refuse_secrets=options.refuse_secrets,
            allow_secrets=options.allow_secret,
            keep=options.keep,
            allow_filtered=options.allow_filtered,
            on_hazard=options.on_hazard,
            many_files=options.many_files,
        )
    extras = {"prUrl": result.pr_url, "patch": result.patch}
    notes = {"warnings": list(result.warnings), "secrets": _lists(result.secrets)}
    data = {"sha": result.sha or None, "branch": result.branch, **_known(extras), **notes}
    landed = text_of([f"{result.sha} {result.branch}", *([result.pr_url] if result.pr_url is not None else [])])
    text: str | Diff = Diff(result.patch) if result.patch is not None else landed
    return CommandResult(data, text, (*result.warnings, *_secret_notes(result.secrets)))


@verb(SESSION, examples=("gittrix session rebase sess_V1St", "gittrix session rebase sess_V1St --json"))
def rebase(options: Namespace) -> CommandResult:
    """Move a session's baseline to durable's head; its work stays on top."""
    with context.session(options) as session:
        result = session.rebase()
        id_ = session.id
    merged = [*result.merged]
    data: dict[str, Any] = {"baseline": result.baseline, "before": result.before, "changed": [*result.changed], "merged": merged}
    data |= {"checkpoint": result.checkpoint, "warnings": [*result.warnings]}
    if result.checkpoint is None:
        return CommandResult(data, text_of([f"{result.baseline} is durable's head already"]), result.warnings)
    kept = f"The files of before: gittrix session fork {id_} --at {result.checkpoint}"
    lines = [result.baseline, *(f"merged {path}" for path in merged)]
    return CommandResult(data, text_of(lines), (kept, *result.warnings))


@verb(examples=("gittrix sweep",))
def sweep(options: Namespace) -> CommandResult:
    """Evict every session past its time."""
    with working("Sweeping"), context.engine(options, tidy=False) as gittrix:
        evicted = gittrix.sweep()
        archives = {id_: [*gittrix.archives(id_)] for id_ in evicted}
        postponed, in_use = gittrix.postponed(), gittrix.in_use()
    notes = (
        *(f"Session {id_} is postponed: to archive its work takes longer than one session may take." for id_ in postponed),
        *(f"Session {one.id} is postponed: it is in use by {one.users}." for one in in_use),
    )
    users = [{"id": one.id, "processes": [process._asdict() for process in one.users.processes]} for one in in_use]
    return CommandResult({"evicted": evicted, "archives": archives, "postponed": postponed, "inUse": users}, text_of(evicted), notes)


@verb(examples=("gittrix recover --json",))
def recover(options: Namespace) -> CommandResult:
    """Put sessions in order after a kill."""
    with working("Recovering"), context.engine(options, tidy=False) as gittrix:
        report = gittrix.recover()
    done = {"rolled forward": report.rolled_forward, "rolled back": report.rolled_back, "removed": report.removed}
    done |= {"postponed": report.postponed, "in use": report.in_use}
    data = {
        "rolledForward": report.rolled_forward,
        "rolledBack": report.rolled_back,
        "removed": report.removed,
        "postponed": report.postponed,
        "inUse": report.in_use,
        "problems": [{"id": problem.id, "message": problem.message} for problem in report.problems],
    }
    text = text_of(f"{what:<14}  {id_}" for what, ids in done.items() for id_ in ids)
    return CommandResult(data, text or ("" if report.problems else "Everything was in order.\n"), notes_of(report.problems))


def _review_of(session: UserSession, paths: Collection[str]) -> Review:
    """A review of a session, or of some of its touched paths. Raises InvalidInput if one of them is not touched."""
    from dataclasses import replace

    review = session.review()
    if untouched := [path for path in paths if path not in review.touched and path not in review.refused]:
        raise InvalidInput(
            f"{', '.join(map(repr, untouched))} does not differ from the baseline.",
            why="An empty diff would look the same for a name that is spelled wrong.",
            fix=f"{did_you_mean(untouched[0], review.touched)}`gittrix session touched` lists what differs.",
        )
    if not paths:
        return review
    if not review.is_alike_for(paths):
        return session.review([path for path in paths if path not in review.refused])
    return replace(
        review,
        changes={path: review.changes[path] for path in paths if path in review.changes},
        filtered={path: name for path, name in review.filtered.items() if path in paths},
    )


def _tell_secrets(event: Event) -> None:
    """Say what looks like credentials before it lands; the result says it once more."""
    put_note("\n".join(["About to land what looks like credentials:", *event.data["found"]]))


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _hunk_data(hunk: Hunk) -> dict[str, Any]:
    return {
        "index": hunk.index,
        "id": hunk.id,
        "oldStart": hunk.old_start,
        "oldLines": hunk.old_lines,
        "newStart": hunk.new_start,
        "newLines": hunk.new_lines,
        "text": hunk.text,
    }


def _review_notes(review: Review) -> tuple[str, ...]:
    """What a person should know before promoting, apart from the diff."""
    outside = (*review.snapshot.withheld_lines, *review.beside)
    hazards = (f"{path}: {reason}" for path, reason in review.hazards.items())
    kept_raw = (f"{path}: not known to be as the filter {name} would store it" for path, name in review.filtered.items())
    return (*_refusals(review), *_secret_notes(review.secrets), *hazards, *kept_raw, *(f"Not part of this: {line}." for line in outside))


def _refusals(review: Review) -> tuple[str, ...]:
    """The files that cannot be promoted, each with the reason."""
    return tuple(f"{path}: {reason}" for path, reason in review.refused.items())


def _secret_notes(secrets: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    return tuple(f"{path}: {'; '.join(found)}" for path, found in secrets.items())


def _lists(secrets: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    return {path: [*found] for path, found in secrets.items()}


def _hunk_list(review: Review) -> str:
    parts = []
    for path in review.changes:
        hunks = review.hunks.get(path, ())
        parts += [f"{path}:{hunk.index}\n{hunk.text}" for hunk in hunks] or [f"{path} (only as a whole)\n"]
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)
