"""``session list`` and ``session info`` of a store at rest, answered from its index; and ``session list`` of a store with nothing in it.

The engine, and the parser of all verbs, take several times as long to load as the answer takes to find. So the two commands that people and
scripts type most are tried here first: without further flags, where no daemon runs, and where nothing needs to be recovered or swept. In
every other case the ordinary command runs, and gives the same bytes. Where a session goes on, ``info`` looks into its workspace, with the
part of the engine that an agent has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.record.store.home import home

if TYPE_CHECKING:
    from sqlite3 import Connection

    from pytest_gittrix.commands.output import CommandResult

_SESSION: Final = ("session", "s", "sessions")
_LIST: Final = ("list", "ls")
_CLOCK: Final = "PYTEST_GITTRIX_CLOCK"
_RECORDS: Final = "SELECT id, size, mtime_ns, inode, metadata FROM session ORDER BY created_us, id"
_RECORD: Final = "SELECT size, mtime_ns, inode, metadata, state, seq, chain, turn, said FROM session WHERE id = ?"

_ENDED_CAPABILITIES: Final = {
    "filesystem": False,
    "apiReadWrite": False,
    "git": False,
    "shell": False,
    "isolated": True,
    "patchImport": False,
    "patchExport": True,
    "promote": False,
}


def quick_look(arguments: Sequence[str]) -> tuple[CommandResult, bool] | None:
    """Answer a command line from the index of its store.

    Args:
        arguments: the command line, without the program's name.

    Returns:
        The result and whether it is to be printed as JSON; None if the ordinary command has to run.
    """
    line = _read(arguments)
    if line is None or os.environ.get(_CLOCK):
        return None
    id, as_json, root = line
    if id is None and _is_empty(root):
        from pytest_gittrix.commands.output import CommandResult
        from pytest_gittrix.commands.render import NO_SESSIONS

        return CommandResult([], NO_SESSIONS), as_json
    if _may_change_mode(root):
        return None
    from pytest_gittrix.record.store.up_to_date import up_to_date_index

    now_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
    with up_to_date_index(root, now_ns) as index:
        if index is None:
            return None
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now_ns // 1000)
        try:
            found = _listed(index, root, now) if id is None else _info(index, root, id, now)
        except Exception:  # noqa: BLE001  (a damaged index can hold anything; the ordinary command rebuilds it, or says what is wrong)
            return None
    return None if found is None else (found, as_json)


def _read(arguments: Sequence[str]) -> tuple[str | None, bool, str] | None:
    """The session that is asked for (None for all), whether JSON is, and the store; None for a line that is not for here."""
    words, as_json, direct, store = [], False, os.environ.get("GITTRIX_DAEMON") == "0", None
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--json", "-j"):
            as_json = True
        elif argument == "--no-daemon":
            direct = True
        elif argument == "--store":
            store = next(rest, None)
            if store is None or store.startswith("-"):
                return None
        elif argument.startswith("-"):
            return None
        else:
            words.append(argument)
    root = os.path.abspath(store) if store else _sessions()
    if ".." in f"{store}{os.environ.get('GITTRIX_HOME')}":
        return None  # behind a symbolic link, that is another directory than the text says
    if not direct and os.path.exists(os.path.join(os.path.dirname(root), "daemon.json")):
        return None
    match words:
        case [area, verb] if area in _SESSION and verb in _LIST:
            return None, as_json, root
        case [area, "info", id] if area in _SESSION:
            return id, as_json, root
    return None


def _sessions() -> str:
    return os.path.abspath(os.path.join(home(), "sessions"))


def _is_empty(root: str) -> bool:
    """Whether there is nothing in a store, or no store."""
    try:
        return not os.listdir(root)
    except OSError as problem:
        return isinstance(problem, FileNotFoundError)


def _may_change_mode(root: str) -> bool:
    """Whether an engine would close the directory of sessions to other users, or complain that there is none."""
    try:
        return bool(os.stat(root).st_mode & 0o077) and root == _sessions()
    except OSError:
        return True


def _listed(index: Connection, root: str, now: datetime) -> CommandResult | None:
    import json

    from pytest_gittrix.commands.output import CommandResult
    from pytest_gittrix.commands.render import session_table
    from pytest_gittrix.record.store.listing import signatures

    rows = index.execute(_RECORDS).fetchall()
    if not rows or signatures(root, names=[row[0] for row in rows]) != {row[0]: row[1:4] for row in rows}:
        return None
    records = [json.loads(row[4]) for row in rows]
    return CommandResult(records, session_table(records, now))


def _info(index: Connection, root: str, id: str, now: datetime) -> CommandResult | None:
    import json

    from pytest_gittrix.commands.output import CommandResult
    from pytest_gittrix.commands.render import facts_text, info_data, info_facts
    from pytest_gittrix.record.store.listing import signatures

    row = index.execute(_RECORD, (id,)).fetchone()
    if row is None or signatures(root, names=[id]).get(id) != row[:3]:
        return None
    if row[4] == "promoted" and not json.loads(row[3])["evictionPolicy"]["untilPromote"]:
        return None  # its workspace may be kept
    wire = _live(root, id) if row[4] == "active" else _ended(json.loads(row[3]), *row[5:])
    if wire is None:
        return None
    return CommandResult(info_data(wire), facts_text(info_facts(wire, now)))


def _live(root: str, id: str) -> dict[str, Any] | None:
    """What ``SessionInfo.to_wire`` gives for a session that goes on; None if to look may change its workspace, or it has a life cycle."""
    from pathlib import Path

    from pytest_gittrix.clock.clock import SystemClock
    from pytest_gittrix.engine.agents.agent_session import AgentSession, look_at
    from pytest_gittrix.engine.operations.recorder import Recorder
    from pytest_gittrix.record.store.store import Store
    from pytest_gittrix.workspaces.walk import Limits
    from pytest_gittrix.workspaces.workspace import open_workspace

    recorder = Recorder(Store(Path(root)), id, SystemClock(), lambda _event: None)
    state = recorder.read()
    if state.life is not None or state.kept is not None:
        return None
    path, state_dir = state.workspace or str(recorder.directory / "workspace"), str(recorder.directory / "engine")
    workspace = open_workspace(path, state_dir, os.path.join(root, ".seeds"))
    return look_at(AgentSession(recorder, workspace, Limits())).to_wire()


def _ended(record: Mapping[str, Any], seq: int, chain: str, turn: str | None, said: int) -> dict[str, Any]:
    """What ``SessionInfo.to_wire`` gives for a session that has ended."""
    from pytest_gittrix.record.eventlog.vocabulary import ROLE

    lineage, identity = record.get("lineage") or {}, record.get("identity") or {}
    copied = ("task", "state", "durableRef", "durablePath", "durableBranch", "ephemeralRef", "workspaceKind", "baselineSha")
    wire = {
        "sessionId": record["id"],
        **{key: record.get(key) for key in copied},
        **{key: record[key] for key in ("touchedFiles", "createdAt", "updatedAt", "lastAccessAt")},
        "capabilities": _ENDED_CAPABILITIES,
        "nextSeq": said,
        "turn": turn,
        "identity": identity,
        "chain": chain,
        "parent": lineage.get("parent"),
        "relation": lineage.get("relation"),
        "forkRoot": lineage.get("root", record["id"]),
        "successor": record.get("successor"),
        "outcome": record.get("outcome"),
        "beside": [],
        "role": identity.get("role", ROLE),
        "nextEvent": seq + 1,
    }
    return {key: value for key, value in wire.items() if value is not None}
