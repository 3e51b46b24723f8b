"""Where sessions are kept: one directory each, with the event log as the only truth in it.

``metadata.json`` is written for people and for the TypeScript GitTrix, and is read only when there is no log. No directory is made before
the first session.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, LogDamaged, SessionNotFound
from pytest_gittrix.os_level.files import private_directory, sync_directory, write_file
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.eventlog.change_feed import FILE as CHANGES
from pytest_gittrix.record.eventlog.log import Durability, EventLog, ReadPolicy
from pytest_gittrix.record.state.fold import SessionState, fold, metadata_of, state_from_metadata
from pytest_gittrix.record.store.fold_checkpoint import fold_log
from pytest_gittrix.record.store.home import home
from pytest_gittrix.record.store.listing import ID as ID
from pytest_gittrix.record.store.listing import LOG as LOG
from pytest_gittrix.record.store.listing import METADATA as METADATA

if TYPE_CHECKING:
    from pytest_gittrix.record.state.records import SessionMetadata

WORKSPACE = "workspace"
_DERIVED: Final = {"log": LOG}
"""An addition to ``metadata.json`` that the TypeScript GitTrix does not write: without this log, the record says nothing."""
LOCK = ".lock"
TURN = ".turn"
USE = ".use"


class Problem(NamedTuple):
    """A session that could not be read, and why."""

    id: str
    message: str


def default_home(environ: Mapping[str, str] | None = None) -> Path:
    """``home`` as a path."""
    return Path(home(environ))


def default_store(environ: Mapping[str, str] | None = None) -> Path:
    """``sessions`` in :func:`default_home`."""
    return default_home(environ) / "sessions"


class Store:
    """A directory of sessions.

    Args:
        root: the directory; made with its parents by the first :meth:`create`.
        durability: see ``EventLog``.
    """

    def __init__(self, root: Path | str, *, durability: Durability = "full") -> None:
        self.root = Path(root)
        self._root = os.fspath(root)
        self._changes = os.path.join(self._root, CHANGES)
        self.durability: Durability = durability

    def create(self, id: str) -> Path:
        """Make the empty directory of a new session; it is no session until its log has an event.

        Raises:
            InvalidInput: the id is malformed or taken.
            AdapterUnavailable: the directory cannot be made.
        """
        directory = self.directory(id)
        try:
            try:
                directory.mkdir(0o700)
            except FileNotFoundError:
                private_directory(self.root)
                directory.mkdir(0o700)
            if self.durability == "full":
                sync_directory(self.root)
        except FileExistsError:
            raise InvalidInput(f"There is a session {id!r} already in {self.root}.", why="Ids are never used twice.") from None
        except OSError as problem:
            raise _unavailable(directory, problem) from problem
        return directory

    def ids(self) -> list[str]:
        """The ids in the store, sorted: directories with a log that is not empty, or a record. What else lies there is passed over."""
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        except OSError as problem:
            raise _unavailable(self.root, problem) from problem
        return sorted(name for name in names if ID.fullmatch(name) and self._has_session(name))

    def directory(self, id: str) -> Path:
        """The directory of a session, there or not.

        Raises:
            InvalidInput: the id is malformed.
        """
        return Path(self._of(id))

    def _of(self, id: str, name: str = "") -> str:
        if not ID.fullmatch(id):
            raise InvalidInput(
                f"{id!r} is not a session id.",
                why="An id is the name of a directory, and must not lead anywhere else.",
                fix="An id is 1 to 128 letters, digits, _ and -.",
            )
        return os.path.join(self._root, id, name) if name else os.path.join(self._root, id)

    def log(self, id: str) -> EventLog:
        """The session's event log, there or not. Raises InvalidInput as :meth:`directory`."""
        return EventLog(self._of(id, LOG), id, durability=self.durability, changes=self._changes)

    def lease(self, id: str, *, wait: float = 10.0) -> Lease:
        """The right to write the session, not yet taken. Raises InvalidInput as :meth:`directory`."""
        return Lease(self._of(id, LOCK), wait=wait)

    def load(self, id: str, *, policy: ReadPolicy = "repair-tail") -> SessionState:
        """The session's state: folded from its log, or from its record when it has no log (a TypeScript store).

        ``policy`` is that of ``EventLog.read``; with ``skip`` the fold skips too.

        Raises:
            SessionNotFound: no such session, or its creation was never completed.
            LogDamaged: the log is damaged.
            MetadataVersionUnsupported: the log or record is of another version or shape.
            InvalidInput: the id is malformed, or the record is another session's.
        """
        if policy == "repair-tail":
            state = fold_log(self.log(id))
        else:
            events = self.log(id).read(policy)
            state = fold(events, policy="skip" if policy == "skip" else "strict") if events else None
        return self.located(state) if state is not None else self._legacy(id)

    def located(self, state: SessionState) -> SessionState:
        """A session's state with its workspace where this store has it, and not where the store was when the session was recorded.

        A copy of a store must not reach into the original. Only the workspace of another system may have another name than this store
        would give it, and is where the record says.
        """
        if state.workspace is not None and os.path.normpath(state.workspace).endswith(f"/{state.id}/{WORKSPACE}"):
            state.workspace = self._of(state.id, WORKSPACE)
        return state

    def scan(self) -> tuple[list[SessionState], list[Problem]]:
        """Every session in order of id, and those that cannot be read; one bad record does not stop the rest (rule 8)."""
        states: list[SessionState] = []
        problems: list[Problem] = []
        for id in self.ids():
            try:
                states.append(self.load(id))
            except GittrixError as problem:
                problems.append(Problem(id, str(problem)))
        return states, problems

    def write_metadata(self, id: str, state: SessionState) -> None:
        """Write the derived ``metadata.json``, whole or not at all.

        Raises:
            InvalidInput: the id is malformed, or the state is another session's.
            AdapterUnavailable: it cannot be written.
        """
        path = self._of(id, METADATA)
        if state.id != id:
            raise InvalidInput(f"The state of session {state.id!r} is not the record of {id!r}.")
        # One name per writer, so that two never write one file, and a killed writer leaves at most one behind.
        fresh = self._of(id, f".{METADATA}.{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            # A line a field, for people; json's own indent is ten times slower, being written in Python.
            fields = ",\n".join([f'  "{name}": {_json(value)}' for name, value in (metadata_of(state) | _DERIVED).items()])
            data = f"{{\n{fields}\n}}\n".encode("ascii")
            full, fast = self.durability == "full", self.durability == "fast"
            # ext4 writes a file out, for 0.3 ms and more, when it replaces another. Without a record for an instant there is still the log.
            write_file(path, data, sync=full, temporary=fresh, unlink_first=fast)
        except OSError as problem:
            raise _unavailable(path, problem) from problem

    def import_legacy(self, id: str, *, ts: int) -> SessionState:
        """Give a session of a TypeScript store a log, so that it can go on here. The caller holds its lease.

        Its first event, ``session.imported``, holds the record as it was. A session that has a log is left alone.

        Args:
            ts: now, in nanoseconds since 1970 UTC.

        Raises:
            SessionNotFound, LogDamaged, MetadataVersionUnsupported, InvalidInput, AdapterUnavailable: as :meth:`load` and ``append``.
        """
        log = self.log(id)
        if not log.read():
            record = self._record(id).wire()
            record.setdefault("ephemeralPath", str(self._legacy_workspace(id)))
            log.append("session.imported", {"metadata": record}, ts=ts, commit_point=True)
        return self.located(fold(log.read()))

    def _legacy(self, id: str) -> SessionState:
        state = state_from_metadata(self._record(id).wire())
        state.workspace = state.workspace or str(self._legacy_workspace(id))
        return self.located(state)

    def _legacy_workspace(self, id: str) -> Path:
        return self.directory(id) / WORKSPACE

    def _record(self, id: str) -> SessionMetadata:
        from pytest_gittrix.record.state.records import load_metadata

        path = self.directory(id) / METADATA
        try:
            raw, written_ns = path.read_bytes(), path.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            raise SessionNotFound(
                f"There is no session {id!r} in {self.root}.", fix="`gittrix session list` shows the existing ones."
            ) from None
        except OSError as problem:
            raise _unavailable(path, problem) from problem
        record = load_metadata(raw, expected_id=id, written_ns=written_ns)
        if record.wire().get("log") == LOG:
            raise LogDamaged(
                f"The log of session {id!r} in {self.root} is missing or empty.",
                why=f"{METADATA} is derived from it, and is never the truth: what the session did since it was written is not known.",
                fix=f"Restore {self._of(id, LOG)} from a backup. The workspace is untouched.",
            )
        return record

    def _has_session(self, id: str) -> bool:
        directory = os.path.join(self.root, id)
        try:
            if os.stat(os.path.join(directory, LOG)).st_size:
                return True
        except OSError:
            pass
        return os.path.lexists(os.path.join(directory, METADATA))


_any_json = json.JSONEncoder().encode
_CONSTANTS: Mapping[object, str] = {None: "null", True: "true", False: "false"}


def _json(value: object) -> str:
    # An encoder costs more to set up than a field takes to write.
    if type(value) is str:
        return encode_basestring_ascii(value)
    return _CONSTANTS[value] if value is None or type(value) is bool else _any_json(value)


def _unavailable(path: Path | str, problem: OSError) -> AdapterUnavailable:
    return AdapterUnavailable(
        f"{path} cannot be used: {problem.strerror}.", fix="Check that the store is a writable directory with space (GITTRIX_HOME)."
    )
