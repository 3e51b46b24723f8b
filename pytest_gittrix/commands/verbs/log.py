"""The verbs for sessions' records: the agent's commits, the log of events, and the export as files of Gas Town."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import SESSION, arg, verb
from pytest_gittrix.commands.output import CommandResult, Table, visible, working
from pytest_gittrix.commands.render import event_data, facts_text, first_line, notes_of, text_of
from pytest_gittrix.commands.values import duration, number, types
from pytest_gittrix.commands.verbs.find import before
from pytest_gittrix.errors import InvalidInput

_HEADINGS = ("seq", "time", "actor", "type", "data")


@verb(
    SESSION,
    arg(
        "--timeline",
        action="store_true",
        help="tell all that happened instead, in order: files, commits, exchanges with the model; ended ones too",
    ),
    examples=("gittrix session log sess_V1St", "gittrix session log sess_V1St --timeline"),
    only_looks=True,
)
def log(options: Namespace) -> CommandResult:
    """List the agent's own commits, newest first."""
    from pytest_gittrix.durations import format_instant

    if options.timeline:
        return _timeline(options)
    with context.session(options) as session:
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
    return CommandResult(
        data, text_of(f"{one['sha'][:12]}  {one['timestamp']}  {one['authorName']}  {visible(first_line(one['message']))}" for one in data)
    )


def _timeline(options: Namespace) -> CommandResult:
    """What happened in a session, in order; of a live one, also the commits that its agent made with git."""
    from pytest_gittrix.durations import format_instant, instant_at, ns_of
    from pytest_gittrix.views.timeline import timeline

    with context.engine(options) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        state, events = gittrix.store.load(id_), gittrix.store.log(id_).read()
        commits = [] if state.ended or state.life is not None else gittrix.get_session(id_).log()
    moments = timeline(events, [(ns_of(one.timestamp), one.sha, one.message) for one in commits])
    data = [{"at": format_instant(instant_at(one.at_ns)), "what": one.what, "text": one.text, "seq": one.seq} for one in moments]
    return CommandResult(data, text_of(f"{one['at']}  {one['what']:<9}  {visible(str(one['text']))}" for one in data))


@verb(
    SESSION,
    arg("--types", type=types, metavar="A,B", help="only events of these names"),
    arg("--after", type=number, metavar="SEQ", help="only what came after this event"),
    arg("--json-lines", action="store_true", help="a JSON object for each, on a line of its own"),
    examples=("gittrix session history sess_V1St", "gittrix session history sess_V1St --types user_message,tool_call --json-lines"),
    only_looks=True,
)
def history(options: Namespace) -> CommandResult:
    """Show what happened in a session, in order; ended ones too."""
    from pytest_gittrix.engine.operations.conversation import check_types, of_types

    with context.engine(options) as gittrix:
        wanted = check_types(options.types)
        id_ = context.full_id(gittrix, options.id)
        gittrix.store.load(id_)  # raises for an unknown session; one of a TypeScript store has no events yet
        events = of_types(gittrix.store.log(id_).read(), wanted)
    found = [event_data(event) for event in events if options.after is None or event.seq > options.after]
    if options.json_lines:
        return CommandResult(found, text_of(json.dumps(one) for one in found))
    return CommandResult(
        found, Table(_HEADINGS, [_row(one) for one in found], elastic="data", styles={}) if found else "There are no events.\n"
    )


@verb(
    SESSION,
    arg("type", metavar="TYPE", help="user_message, assistant_message, tool_call and so on"),
    examples=("gittrix session record sess_V1St user_message < said.json",),
    reads_stdin=True,
)
def record(options: Namespace) -> CommandResult:
    """Store an event, whose data standard input has as JSON; prints its number."""
    data = _object(context.standard_input("what the event is to hold"))
    with context.session(options) as session:
        try:
            event = session.record(options.type, data)
        except RecursionError:
            raise InvalidInput("Standard input is nested too deeply.", fix="Store what is in there as a text.") from None
    return CommandResult(event_data(event), text_of([str(event.seq)]))


@verb(
    arg("directory", metavar="DIRECTORY", help="where to write them; not the directory of a town"),
    arg("--archive-older-than", type=duration, metavar="TIME", help="archive the sessions that ended longer ago"),
    examples=("gittrix session export town", "gittrix session export town --archive-older-than 30d"),
)
def export(options: Namespace) -> CommandResult:
    """Write all sessions as the files that Gas Town keeps."""
    from pytest_gittrix.gastown.files import export as export_files

    older = options.archive_older_than
    with working("Exporting"), context.engine(options) as gittrix:
        archive_before = None if older is None else before(gittrix.clock.now(), older)
        done = export_files(gittrix.store, context.absolute_path(options.directory), archive_before=archive_before)
    counts = {"sessions": done.sessions, "archived": done.archived, "events": done.events}
    problems = [{"id": problem.id, "message": problem.message} for problem in done.problems]
    return CommandResult({**counts, "problems": problems}, facts_text(counts.items()), notes_of(done.problems))


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return str(one["seq"]), one["ts"], one["actor"], one["type"], json.dumps(one["data"], ensure_ascii=False)


def _object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        InvalidInput: it is no JSON object, or a name is in it twice.
    """
    from pytest_gittrix.workspaces.walk import Limits

    if len(raw) > Limits().max_file:
        raise InvalidInput(f"Standard input has more than {Limits().max_file} bytes.", why="Every reader of the log reads all of it.")
    try:
        found = json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"Standard input is not JSON: {problem}.", fix="Give one JSON object, the data of the event.") from None
    if not isinstance(found, dict):
        raise InvalidInput(
            f"Standard input is {type(found).__name__}, not an object.", fix='Give the data of the event, as {"text": "hello"}.'
        )
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidInput("A name occurs twice in one object of standard input.", why="One of the two values would be lost.")
    return found
