"""What each verb does: from a parsed command line to an answer, over the engine.

Every command takes the options that its verb parsed and returns an ``Answer``; whatever it raises becomes the error that is told. The
engine is loaded inside the commands, so that naming them costs nothing. Data has the camelCase keys of the TypeScript CLI.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from pytest_gittrix.cli import engine as on
from pytest_gittrix.cli.output import Answer, Diff, Table, working
from pytest_gittrix.errors import InvalidInput

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pytest_gittrix.git.hunks import Hunk
    from pytest_gittrix.record.events import Event
    from pytest_gittrix.record.model import SessionMetadata
    from pytest_gittrix.record.store import Problem
    from pytest_gittrix.session.content import Review
    from pytest_gittrix.session.session import SessionInfo

_POLICY = ("ttl_idle", "ttl_absolute", "until_promote", "manual")
_HEADINGS = ("id", "state", "task", "branch", "age", "expires in", "touched")
_STYLES = {"active": 32, "promoted": 36, "discarded": 2, "expired": 33, "overdue": 33}
_INDENT = "\n" + " " * 12


def start(options: Namespace) -> Answer:
    """Start a session; people get its id and its workspace, a line each, for a shell to take apart."""
    from pytest_gittrix.adapters.local import LocalEphemeral
    from pytest_gittrix.record.model import EvictionPolicy

    limits = {name: getattr(options, name) for name in _POLICY if hasattr(options, name)}
    policy = EvictionPolicy(**limits) if limits else None
    durable = on.local_durable(options.durable, options.branch)
    ephemeral = LocalEphemeral(options.workspace, options.history)
    with working("Starting a session"), on.engine(options, durable, ephemeral) as gittrix:
        started = gittrix.start_session(options.task, durable_branch=durable.branch, eviction=policy).info()
    return Answer(_info_data(started), _lines([started.session_id, started.workspace_path or ""]))


def list_sessions(options: Namespace) -> Answer:
    """The sessions of the store, or those in one state or of one repository."""
    with on.engine(options) as gittrix:
        found = gittrix.list_sessions(None if options.status in (None, "all") else options.status)
        problems = gittrix.problems()
        now = gittrix.clock.now()
    if options.durable is not None:
        path = on.repository_path(options.durable)
        found = [one for one in found if one.durable_path is not None and os.path.realpath(one.durable_path) == path]
    table = Table(_HEADINGS, [_row(one, now) for one in found], elastic="task", styles=_STYLES)
    return Answer([one.wire() for one in found], table if found else "There are no sessions.\n", _notes(problems))


def info(options: Namespace) -> Answer:
    """How a session stands, also after its end; with ``--events`` what happened to it, in order."""
    with on.engine(options) as gittrix:
        one = gittrix.info(on.full_id(gittrix.store, options.id))
        events = [_event_data(event) for event in gittrix.store.log(one.session_id).read()] if options.events else None
        now = gittrix.clock.now()
    facts = {
        "id": one.session_id,
        "task": one.task,
        "state": one.state,
        "durable": one.durable_path or one.durable_ref,
        "branch": one.durable_branch,
        "baseline": one.baseline_sha,
        "workspace": one.workspace_path and f"{one.workspace_path} ({one.workspace_kind})",
        "age": _brief(now - one.created_at),
        "expires in": _until(one.deadline, now) if one.deadline else None,
        "touched": _INDENT.join(one.touched_files),
    }
    happened = [f"{event['seq']:>10}  {event['ts']}  {event['actor']:<6}  {event['type']}" for event in events or []]
    shown = _lines([*(f"{name:<10}  {fact}" for name, fact in facts.items() if fact), *happened])
    return Answer(_info_data(one) | _known({"events": events}), shown)


def read(options: Namespace) -> Answer:
    """A file's bytes."""
    from base64 import b64encode

    with on.session(options) as session:
        contents = session.read(options.path)
    return Answer({"path": options.path, "contentBase64": b64encode(contents).decode("ascii")}, contents)


def write(options: Namespace) -> Answer:
    """Write standard input, byte for byte, to a file."""
    from pytest_gittrix.git.snapshot import Limits

    if sys.stdin is None:
        raise InvalidInput("Standard input is closed.", why="It is what the file is to hold.", fix="For an empty file: </dev/null.")
    contents = sys.stdin.buffer.read(Limits().max_file + 1)  # one more than is allowed is refused; an endless stream must not fill memory
    with on.session(options) as session:
        session.write(options.path, contents)
    return Answer({"path": options.path, "size": len(contents)})


def delete(options: Namespace) -> Answer:
    """Delete a file; one that is not there is no error."""
    with on.session(options) as session:
        session.delete(options.path)
    return Answer({"path": options.path})


def list_files(options: Namespace) -> Answer:
    """Everything below a directory; directories end in a slash for people."""
    with on.session(options) as session:
        found = session.list(options.path)
    shown = _lines(f"{entry.path}/" if entry.type == "dir" else entry.path for entry in found)
    return Answer([{"path": entry.path, "type": entry.type} for entry in found], shown)


def touched(options: Namespace) -> Answer:
    """The paths that differ from the baseline."""
    with on.session(options) as session:
        paths = session.touched_files()
    return Answer(paths, _lines(paths))


def diff(options: Namespace) -> Answer:
    """The changes as a patch; with ``--hunks`` each hunk under its name, and what has none or can never be promoted."""
    with on.session(options) as session:
        review = _only(session.review(), options.paths)
        if not options.hunks:
            return Answer({"diff": review.diff}, Diff(review.diff))
        hunks = {path: [_hunk_data(hunk) for hunk in of_path] for path, of_path in review.hunks.items()}
        data = {"diff": review.diff, "hunks": hunks, "refused": dict(review.refused)}
        return Answer(data, Diff(_hunk_list(review)), tuple(f"{path}: {reason}" for path, reason in review.refused.items()))


def log(options: Namespace) -> Answer:
    """The agent's own commits, newest first."""
    from pytest_gittrix.timetext import format_instant

    with on.session(options) as session:
        commits = session.log()
    data = [
        {
            "sha": commit.sha,
            "authorName": commit.author_name,
            "authorEmail": commit.author_email,
            "timestamp": format_instant(commit.timestamp),
            "message": commit.message,
        }
        for commit in commits
    ]
    return Answer(data, _lines(f"{one['sha'][:12]}  {one['timestamp']}  {one['authorName']}  {_subject(one['message'])}" for one in data))


def commit(options: Namespace) -> Answer:
    """Commit in the workspace, as the agent."""
    with on.session(options) as session:
        sha = session.commit(options.message)
    return Answer({"sha": sha}, _lines([sha]))


def discard(options: Namespace) -> Answer:
    """End a session without a promotion."""
    with on.session(options) as session:
        session.discard()
    return Answer({"discarded": session.id}, _lines([session.id]))


def extend(options: Namespace) -> Answer:
    """Replace the idle time of a session."""
    from pytest_gittrix.timetext import format_duration

    with on.session(options) as session:
        session.extend(options.ttl)
        extended = session.info()
    return Answer(_info_data(extended), _lines([f"{session.id} may now lie idle for {format_duration(options.ttl)}"]))


def evict(options: Namespace) -> Answer:
    """End a session and remove its workspace, whatever its time."""
    with on.engine(options) as gittrix:
        id_ = on.full_id(gittrix.store, options.id)
        gittrix.evict(id_, options.state)
    return Answer({"evicted": id_}, _lines([id_]))


def promote(options: Namespace) -> Answer:
    """Make the selection one commit in durable, or a patch."""
    files = [*options.paths, *(options.files or [])]
    hunks: dict[str, set[int]] = {}
    for path, numbers in options.hunks or []:
        hunks.setdefault(path, set()).update(numbers)
    with on.session(options) as session:
        result = session.promote(
            files=files or None,
            hunks=hunks or None,
            strategy=options.strategy,
            message=options.message,
            on_overlap=options.on_overlap,
        )
    extras = {"prUrl": result.pr_url, "patch": result.patch}
    data = {"sha": result.sha or None, "branch": result.branch, **_known(extras), "warnings": list(result.warnings)}
    shown: str | Diff = Diff(result.patch) if result.patch is not None else _lines([f"{result.sha} {result.branch}"])
    return Answer(data, shown, result.warnings)


def sweep(options: Namespace) -> Answer:
    """Evict every session past its time."""
    with working("Sweeping"), on.engine(options, tidy=False) as gittrix:
        evicted = gittrix.sweep()
    return Answer({"evicted": evicted}, _lines(evicted))


def recover(options: Namespace) -> Answer:
    """Bring every session, after a kill, to a state that somebody meant."""
    with working("Recovering"), on.engine(options, tidy=False) as gittrix:
        report = gittrix.recover()
    done = {"rolled forward": report.rolled_forward, "rolled back": report.rolled_back, "removed": report.removed}
    data = {
        "rolledForward": report.rolled_forward,
        "rolledBack": report.rolled_back,
        "removed": report.removed,
        "problems": [{"id": problem.id, "message": problem.message} for problem in report.problems],
    }
    shown = _lines(f"{what:<14}  {id_}" for what, ids in done.items() for id_ in ids)
    return Answer(data, shown or ("" if report.problems else "Everything was in order.\n"), _notes(report.problems))


def _only(review: Review, paths: Collection[str]) -> Review:
    from dataclasses import replace

    if untouched := [path for path in paths if path not in review.changes]:
        raise InvalidInput(
            f"{', '.join(map(repr, untouched))} does not differ from the baseline.",
            why="An empty diff would look the same for a name that is spelled wrong.",
            fix="`gittrix session touched` lists what differs.",
        )
    return replace(review, changes={path: review.changes[path] for path in paths}) if paths else review


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _subject(message: str) -> str:
    return message.partition("\n")[0]


def _notes(problems: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(f"{problem.id}: {_subject(problem.message)}" for problem in problems)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _info_data(one: SessionInfo) -> dict[str, Any]:
    return {"id": one.session_id, **one.to_wire()}


def _event_data(event: Event) -> dict[str, Any]:
    from pytest_gittrix.timetext import format_instant, instant_at

    ts = format_instant(instant_at(event.ts))
    return {"seq": event.seq, "ts": ts, "type": event.type, "actor": event.actor, "data": dict(event.data)}


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


def _hunk_list(review: Review) -> str:
    parts = []
    for path in review.changes:
        hunks = review.hunks.get(path, ())
        parts += [f"{path}:{hunk.index}\n{hunk.text}" for hunk in hunks] or [f"{path} (only as a whole)\n"]
    return "".join(part if part.endswith("\n") else f"{part}\n" for part in parts)


def _row(one: SessionMetadata, now: datetime) -> tuple[str, ...]:
    from pytest_gittrix.record.state import deadline_ns, state_from_metadata
    from pytest_gittrix.timetext import instant_at

    deadline = deadline_ns(state_from_metadata(one.wire())) if one.state == "active" else None
    left = "" if deadline is None else _until(instant_at(deadline), now)
    return one.id, one.state, one.task, one.durable_branch or "", _brief(now - one.created_at), left, str(len(one.touched_files))


def _until(deadline: datetime, now: datetime) -> str:
    return _brief(deadline - now) if deadline > now else "overdue"


def _brief(span: timedelta) -> str:
    """A duration, rounded to what matters at its size: ``2d5h``, ``3h59m``, ``12m40s``."""
    from datetime import timedelta

    from pytest_gittrix.timetext import format_duration

    seconds = max(round(span.total_seconds()), 0)
    unit = 3600 if seconds >= 86400 else 60 if seconds >= 3600 else 1
    return format_duration(timedelta(seconds=round(seconds / unit) * unit))
