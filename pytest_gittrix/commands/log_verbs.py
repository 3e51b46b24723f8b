"""The verbs for sessions' event logs: read one, append to it, and export all as the files of Gas Town."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.find_verbs import before
from pytest_gittrix.commands.output import CommandResult, Table, working
from pytest_gittrix.commands.render import event_data, facts_text, notes_of, text_of
from pytest_gittrix.commands.values import duration, number, types
from pytest_gittrix.errors import InvalidInput

EXAMPLES = {
    "history": ["gittrix session history sess_V1St", "gittrix session history sess_V1St --types user_message,tool_call --json-lines"],
    "record": ["gittrix session record sess_V1St user_message < said.json"],
    "export": ["gittrix session export town", "gittrix session export town --archive-older-than 30d"],
}

_HEADINGS = ("seq", "time", "actor", "type", "data")


def arguments(add: Callable[..., ArgumentParser]) -> None:
    """Declare the verbs; ``add`` makes one of a name, a command and a sentence."""
    reading = add("history", history, "show what happened in a session, in order; ended ones too", of_session=True)
    reading.add_argument("--types", type=types, metavar="A,B", help="only events of these names")
    reading.add_argument("--after", type=number, metavar="SEQ", help="only what came after this event")
    reading.add_argument("--json-lines", action="store_true", help="a JSON object for each, on a line of its own")
    add("record", record, "store an event, whose data standard input has as JSON; prints its number", of_session=True).add_argument(
        "type", metavar="TYPE", help="user_message, assistant_message, tool_call and so on"
    )
    exporting = add("export", export_files, "write all sessions as the files that Gas Town keeps")
    exporting.add_argument("directory", metavar="DIRECTORY", help="where to write them; not the directory of a town")
    exporting.add_argument("--archive-older-than", type=duration, metavar="TIME", help="archive the sessions that ended longer ago")


def history(options: Namespace) -> CommandResult:
    """The events of a session, in order."""
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


def record(options: Namespace) -> CommandResult:
    """Append an event to a session's log."""
    data = _object(context.standard_input("what the event is to hold"))
    with context.session(options) as session:
        try:
            event = session.record(options.type, data)
        except RecursionError:
            raise InvalidInput("Standard input is nested too deeply.", fix="Store what is in there as a text.") from None
    return CommandResult(event_data(event), text_of([str(event.seq)]))


def export_files(options: Namespace) -> CommandResult:
    """Write all sessions as the files that Gas Town's document describes."""
    from pytest_gittrix.gastown.files import export

    older = options.archive_older_than
    with working("Exporting"), context.engine(options) as gittrix:
        archive_before = None if older is None else before(gittrix.clock.now(), older)
        done = export(gittrix.store, context.absolute_path(options.directory), archive_before=archive_before)
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
