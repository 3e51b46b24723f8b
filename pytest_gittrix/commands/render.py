"""Sessions and their events as output: the data that programs get, and text and tables for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_gittrix.commands.output import Table, visible

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pytest_gittrix.engine.overlaps import SessionOverlap
    from pytest_gittrix.record.eventlog.events import Event
    from pytest_gittrix.record.state.records import SessionMetadata
    from pytest_gittrix.record.store.store import Problem

NO_SESSIONS = "There are no sessions.\n"

_HEADINGS = ("id", "state", "task", "branch", "age", "expires in", "touched")
_STYLES = {"active": 32, "promoted": 36, "discarded": 2, "expired": 33, "overdue": 33} | {
    "needs_input": 33,
    "waiting_input": 33,
    "stuck": 31,
    "blocked": 31,
    "errored": 31,
}
_TOWN_HEADINGS = ("id", "agent", "started", "outcome", "work unit", "activity")
_TOWN_STYLES = {"green": 32, "yellow": 33, "red": 31, "handoff": 36, "done": 36, "crash": 31, "killed": 2}
_OVERLAP_STYLES = {"lands": 32, "merges": 33, "conflict": 31, "unknown": 31}
# The record's field below each heading.
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "pixir": {
        "id": "id",
        "role": "role",
        "seq": "seq",
        "turn running": "turn_running?",
        "fork root": "fork_root_session_id",
        "workspace": "workspace",
    },
    "orchestrator": {
        "id": "id",
        "project": "projectId",
        "status": "status",
        "activity": "activity",
        "since": "lastActivityAt",
        "issue": "issueId",
        "branch": "branch",
        "workspace": "workspacePath",
    },
    "botminter": {
        "id": "session_id",
        "member": "member_name",
        "type": "session_type",
        "state": "current_state",
        "created": "created_at",
        "workspace": "workspace_path",
    },
}
_NARROWEST = 10


def text_of(lines: Iterable[str]) -> str:
    """Lines as text."""
    return "".join(f"{line}\n" for line in lines)


def archive_notes(archives: Sequence[str], whose: str = "") -> tuple[str, ...]:
    """What says where the work of a session that was ended is."""
    return (f"{f'The work of {whose}' if whose else 'Its work'} is in {', '.join(archives)}.",) if archives else ()


def confinement_note(confinement: str) -> tuple[str, ...]:
    """What a person who started an agent should know about its confinement, as it is recorded; nothing if nothing is recorded."""
    if not confinement:
        return ()
    if confinement == "off":
        return ("The agent is not confined: it can read and change what you can.",)
    if "network" in confinement:
        return ()
    way = 'network = ["model:anthropic"] in the team file lets it reach its model'
    return (f"The agent is confined ({confinement}) and has no network; {way}.",)


def first_line(message: str) -> str:
    """The first line of a message."""
    return message.partition("\n")[0]


def notes_of(problems: Iterable[Problem]) -> tuple[str, ...]:
    """The sessions that cannot be read and why, one line each."""
    return tuple(f"{problem.id}: {first_line(problem.message)}" for problem in problems)


def info_data(wire: Mapping[str, Any]) -> dict[str, Any]:
    """A session for programs, under both names of its id; ``wire`` is ``SessionInfo.to_wire()``."""
    return {"id": wire["sessionId"], **wire}


def event_data(event: Event) -> dict[str, Any]:
    """An event for programs, as it is in the log."""
    from pytest_gittrix.durations import format_instant, instant_at

    ts = format_instant(instant_at(event.ts))
    return {"seq": event.seq, "ts": ts, "type": event.type, "actor": event.actor, "data": dict(event.data)}


def facts_text(facts: Iterable[tuple[str, object]]) -> str:
    """A line for each fact that has a value, with the names in one column; further lines of a value are indented below its first."""
    texts = [(name, text) for name, value in facts if (text := _fact(value))]
    width = max([_NARROWEST, *(len(name) for name, _ in texts)])
    below = "\n" + " " * (width + 2)
    return text_of(f"{name:<{width}}  {visible(text).replace(chr(10), below)}" for name, text in texts)


def info_facts(wire: Mapping[str, Any], now: datetime) -> list[tuple[str, object]]:
    """A session for people; ``wire`` is ``SessionInfo.to_wire()``."""
    from pytest_gittrix.durations import parse_instant

    id_, known = wire["sessionId"], wire.get
    return [
        ("id", id_),
        ("task", wire["task"]),
        ("state", wire["state"]),
        ("outcome", known("outcome")),
        *((name.replace("_", " "), value) for name, value in wire["identity"].items()),
        ("parent", ("parent" in wire and f"{wire['parent']} ({known('relation')})") or None),
        ("successor", known("successor")),
        ("chain", wire["chain"] if wire["chain"] != id_ or "successor" in wire else None),
        ("fork root", wire["forkRoot"] if wire["forkRoot"] != id_ else None),
        ("turn", known("turn")),
        ("durable", known("durablePath") or wire["durableRef"]),
        ("branch", known("durableBranch")),
        ("baseline", wire["baselineSha"]),
        ("workspace", ("workspacePath" in wire and f"{wire['workspacePath']} ({known('workspaceKind')})") or None),
        ("age", brief(now - parse_instant(wire["createdAt"]))),
        ("expires in", until(parse_instant(wire["deadline"]), now) if "deadline" in wire else None),
        ("touched", wire["touchedFiles"]),
        ("not part of this", wire["beside"]),
    ]


def session_table(records: Sequence[Mapping[str, Any]], now: datetime, lives: Mapping[str, str] | None = None) -> Table:
    """Sessions by their version-1 records, a row each, as GitTrix sees them; ``lives`` are the states of members' sessions by id.

    The columns of agent and rig are there if a session has one, and that of overlaps if live sessions touch the same paths.
    """
    town = [name for name in ("agent", "rig") if any(name in (one.get("identity") or {}) for one in records)]
    others = _overlapping(records)
    headings = (*_HEADINGS, *(("overlaps",) if others else ()), *town)
    rows: list[tuple[str, ...]] = []
    for one in records:
        beside = (others.get(one["id"], ""),) if others else ()
        rows.append((*_row(one, now, lives or {}), *beside, *((one.get("identity") or {}).get(name, "") for name in town)))
    return Table(headings, rows, elastic="task", styles=_STYLES)


def _overlapping(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """With how many others each live session touches the same paths, by its id; without those that share none."""
    groups: dict[str, dict[str, list[str]]] = {}
    for one in records:
        if one["state"] == "active" and "life" not in one:
            groups.setdefault(one["durableRef"], {})[one["id"]] = one["touchedFiles"]
    if all(len(group) < 2 for group in groups.values()):
        return {}
    from pytest_gittrix.git.path_rules import shared_paths  # a list of one session needs none of it

    shared = {id_: len(others) for group in groups.values() for id_, others in shared_paths(group).items() if others}
    return {id_: f"{count} session{'s' if count > 1 else ''}" for id_, count in shared.items()}


def overlap_table(found: Sequence[SessionOverlap]) -> Table:
    """Live sessions, a row each, with what each overlaps with."""
    rows: list[tuple[str, ...]] = [
        (
            one.id,
            one.ends,
            ", ".join(f"{path} ({kind})" for path, kind in one.durable.items()),
            "; ".join(f"{id_}: {', '.join(paths)}" for id_, paths in one.sessions.items()),
        )
        for one in found
    ]
    return Table(("session", "a promotion", "durable changed", "others touch"), rows, elastic="others touch", styles=_OVERLAP_STYLES)


def gastown_table(found: Sequence[SessionMetadata], records: Sequence[Mapping[str, Any]], now: datetime, marks: Mapping[str, str]) -> Table:
    """Sessions, a row each, as Gas Town sees them.

    Args:
        found: the sessions.
        records: Gas Town's record of each.
        now: the present time; the colour of an active session depends on it.
        marks: the line drawing before each id.
    """
    rows: list[tuple[str, ...]] = [
        (
            marks.get(one.id, "") + one.id,
            record["agent"],
            record["started_at"],
            record.get("outcome", ""),
            record.get("work_unit", ""),
            "" if "outcome" in record else _activity(one, now),
        )
        for one, record in zip(found, records, strict=True)
    ]
    return Table(_TOWN_HEADINGS, rows, elastic="agent", styles=_TOWN_STYLES)


def record_table(records: Sequence[Mapping[str, Any]], system: str, now: datetime) -> Table:
    """Sessions, a row each, in the terms of another system; ``records`` are those of that system.

    ``since`` is how long ago the agent was last seen doing something.
    """
    ours = _COLUMNS.get(system)
    columns = ours or {name: name for record in records for name in record}  # a system of another package: all fields
    rows = [
        tuple(_ago(record[field], now) if ours and name == "since" else _fact(record.get(field)) for name, field in columns.items())
        for record in records
    ]
    return Table(tuple(columns), rows, elastic=[*columns][-1], styles=_STYLES)


def until(deadline: datetime, now: datetime) -> str:
    """The time left until a deadline, or ``overdue``."""
    return brief(deadline - now) if deadline > now else "overdue"


def brief(span: timedelta) -> str:
    """A duration, rounded to the hour, minute or second by its size: ``2d5h``, ``3h59m``, ``12m40s``."""
    from datetime import timedelta

    from pytest_gittrix.durations import format_duration

    seconds = max(round(span.total_seconds()), 0)
    unit = 3600 if seconds >= 86400 else 60 if seconds >= 3600 else 1
    return format_duration(timedelta(seconds=round(seconds / unit) * unit))


def _ago(instant: str, now: datetime) -> str:
    from pytest_gittrix.durations import parse_instant

    return brief(now - parse_instant(instant))


def _row(one: Mapping[str, Any], now: datetime, lives: Mapping[str, str]) -> tuple[str, ...]:
    from pytest_gittrix.durations import parse_instant

    id_, branch, age = one["id"], one.get("durableBranch") or "", brief(now - parse_instant(one["createdAt"]))
    return id_, lives.get(id_, one["state"]), one["task"], branch, age, _time_left(one, now), str(len(one["touchedFiles"]))


def _time_left(one: Mapping[str, Any], now: datetime) -> str:
    from pytest_gittrix.durations import instant_at, ns_of, parse_instant

    policy = one["evictionPolicy"]
    if one["state"] != "active" or policy["manual"]:
        return ""
    limits = ((one["lastAccessAt"], policy["ttlIdleMs"]), (one["createdAt"], policy["ttlAbsoluteMs"]))
    ends = [ns_of(parse_instant(since)) + round(ms * 1_000_000) for since, ms in limits if ms is not None]
    return until(instant_at(min(ends)), now) if ends else ""


def _activity(one: SessionMetadata, now: datetime) -> str:
    from pytest_gittrix.durations import ns_of
    from pytest_gittrix.views.gastown import activity

    return activity(ns_of(max(one.updated_at, one.last_access_at)), ns_of(now))


def _fact(value: object) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False) if value else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return "" if value is None else str(value)
