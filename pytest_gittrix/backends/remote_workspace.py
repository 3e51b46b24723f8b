"""Workspaces whose files are behind another process, which serves them over HTTP (docs/reference/http.md, "A workspace behind HTTP").

The server's files are the session's. This machine holds a copy of them, which is brought up to date before it is read, so everything that
the engine does with a workspace works on it. What the server did not take did not happen, and what was archived is removed there only if
nothing was added since.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.backends.protocol import Ephemeral
from pytest_gittrix.backends.served_workspace import ServedWorkspace, ServerRefusal
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, WriteRejected
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, parents
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.open_below import system_refused
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.kinds import Capabilities
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.trash import Trash
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import Workspace

KIND: Final = "remote"
_NOTE: Final = "remote.json"
_ONLY_FILES: Final = Capabilities(git=False, shell=False, isolated=True)

_Stamp = tuple[str, int, int, int, int]
_LARGEST_LIST: Final = 64 << 20
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")

Listing = Mapping[str, tuple[int, str]]
"""Mode and SHA-256 of each file, by path."""


class _RemoteFiles(SafeDir):
    """The copy on this machine, whose changes are made at the server, too; on an error the copy is outdated."""

    _owner: RemoteWorkspace

    def of(self, owner: RemoteWorkspace) -> Self:
        """The same, for a workspace."""
        self._owner = owner
        return self

    def write(
        self, path: str, data: bytes, *, executable: bool | None = None, sync: bool = False, over_link: bool = True
    ) -> os.stat_result:
        """As in ``SafeDir``, and at the server."""
        status = super().write(path, data, executable=executable, sync=sync, over_link=over_link)
        self._owner.send(path, EXECUTABLE if status.st_mode & stat.S_IXUSR else FILE, data)
        return status

    def make_link(self, path: str, target: bytes) -> None:
        """As in ``SafeDir``, and at the server."""
        super().make_link(path, target)
        self._owner.send(path, SYMLINK, target)

    def delete(self, path: str) -> bool:
        """As in ``SafeDir``, and at the server."""
        there = super().delete(path)
        if there:
            self._owner.send(path, 0, None)
        return there


class RemoteWorkspace(Workspace):
    """A workspace at a server, with its copy on this machine.

    Args:
        copy: the copy.
        place: where its files are.
        largest: most bytes that a file there may have.
        is_made: whether the server confirmed that it made the workspace.
    """

    def __init__(self, copy: Workspace, place: ServedWorkspace, largest: int, *, is_made: bool) -> None:
        super().__init__(KIND, copy.path, copy.seed, copy.created, None, copy.state_dir, copy.began, copy.bases)
        self._place = place
        self._largest = largest
        self._is_made = is_made
        self._tag = ""
        self._held: SafeDir | None = None
        self._hashes: dict[_Stamp, str] = {}
        self._is_leaving = False
        self._is_gone = False
        self._operations = threading.local()

    @property
    def capabilities(self) -> Capabilities:
        """No git and no programs: the files are elsewhere."""
        return _ONLY_FILES

    @contextmanager
    def operation(self) -> Iterator[None]:
        """A block with one connection, in which the files stay as at its beginning, except for its own changes."""
        if self._is_current():
            yield
            return
        with self._place.connected():
            self.pull()
            self._operations.under_way = True
            try:
                yield
            finally:
                self._operations.under_way = False

    def _is_current(self) -> bool:
        return self._is_leaving or getattr(self._operations, "under_way", False)

    @property
    def files(self) -> SafeDir:
        """Its files as they are at the server now, or were at the beginning of the ``operation``.

        Raises:
            AdapterUnavailable: they cannot be had.
        """
        if not self._is_current():
            self.pull()
        return self._copy

    @property
    def _copy(self) -> SafeDir:
        held = self._held
        if held is None or not held.is_in_place():
            held = self._held = _RemoteFiles.open(self.path).of(self)
        return held

    def snapshot(self, **options: Any) -> Snapshot:
        """As of every workspace, of the same files as ``files`` gives."""
        if not self._is_current():
            self.pull()
        return super().snapshot(**options)

    def pull(self) -> None:
        """Bring the copy up to date. Raises AdapterUnavailable or AuthFailed; then the copy is as before, or on its way."""
        with self._place.connected():
            self._update(may_miss=False)

    def _update(self, *, may_miss: bool) -> Mapping[str, str]:
        """As ``pull``. With ``may_miss`` it skips files that cannot be stored, and returns the reasons by path."""
        asked = {"If-None-Match": self._tag} if self._tag else None
        answer = self._place.request("GET", headers=asked, most=_LARGEST_LIST)
        if answer.status == 304 and asked:
            return {}
        if answer.status != 200 or not answer.tag or answer.tag.startswith("W/"):
            raise AdapterUnavailable(
                f"{self._place.url} answered GET with status {answer.status} and the tag {answer.tag!r}.",
                why="Without a list and its strong tag, files that are added later could be removed unseen.",
                fix="Check that the server serves workspaces (docs/reference/http.md).",
            )
        os.makedirs(self.path, exist_ok=True)
        if answer.body is None:
            there, missing = None, {".": f"its list has more than {_LARGEST_LIST} bytes"}
        else:
            there, missing = _listing(self._place.url, answer.body, self.seed.entries)
        if missing and not may_miss:
            raise self._unfit(*next(iter(missing.items())))
        if there is not None:
            missing = self._take(there, missing, may_miss=may_miss)
        self._tag = answer.tag
        return missing

    def _take(self, there: Listing, unfit: Mapping[str, str], *, may_miss: bool) -> dict[str, str]:
        """Refresh the copy from the server's files, except at unfit paths; returns by path why something is missing in the copy."""
        missing = dict(unfit)
        with SafeDir.open(self.path) as copy:
            here = self._contents(copy)
            for path in here.keys() - there.keys() - missing.keys():
                copy.delete(path)
            for path, what in there.items():
                if here.get(path) == what:
                    continue
                try:
                    _put(copy, path, what, self._fetch(path, what[1]))
                except (ServerRefusal, WriteRejected) as problem:
                    if problem.is_passing if isinstance(problem, ServerRefusal) else system_refused(problem):
                        raise
                    if not may_miss:
                        raise self._unfit(path, problem.fact.rstrip(".")) from problem
                    missing[path] = problem.fact.rstrip(".")
        return missing

    def _unfit(self, path: str, reason: str) -> AdapterUnavailable:
        return AdapterUnavailable(
            f"{self._place.url} has {path!r}, which cannot be stored in the session: {reason}.",
            why="The local copy would differ from the server's files.",
            fix="Fix or remove it at the server, then try again. A discard ends the session anyway, and archives the rest.",
        )

    def _contents(self, files: SafeDir) -> Listing:
        """The files of the copy. A file with an unchanged status is not read again."""
        known, self._hashes = self._hashes, {}
        contents: dict[str, tuple[int, str]] = {}
        for found in files.scan():
            mode = _mode(found.stat.st_mode)
            if mode is None:
                continue
            stamp = (found.path, found.stat.st_ino, found.stat.st_size, found.stat.st_mtime_ns, found.stat.st_ctime_ns)
            digest = known.get(stamp)
            if digest is None:
                data = files.read_link(found.path) if mode == SYMLINK else files.read(found.path)[0]
                digest = hashlib.sha256(data).hexdigest()
            self._hashes[stamp] = digest
            contents[found.path] = (mode, digest)
        return contents

    def _fetch(self, path: str, digest: str) -> bytes:
        data = self._place.request("GET", self._place.file(path), most=self._largest).body
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            fault = "it was changed while it was fetched" if data is not None else f"it has more than {self._largest} bytes"
            raise ServerRefusal(f"{path!r} was not fetched from {self._place.url}: {fault}.")
        return data

    def send(self, path: str, mode: int, data: bytes | None) -> None:
        """Change a file at the server; None deletes it. Raises as ``pull``; the next use then starts from what the server has."""
        self._tag = ""
        if data is None:
            try:
                self._place.request("DELETE", self._place.file(path))
            except ServerRefusal as problem:
                if problem.status != 404:
                    raise
        else:
            self._place.request("PUT", f"{self._place.file(path)}?mode={mode:o}", data)

    def make(self, files: Mapping[str, Any]) -> None:
        """Have the server make the workspace. Raises AdapterUnavailable or AuthFailed, as one of that name there is."""
        headers = {"Content-Type": "application/json", "If-None-Match": "*"}
        self._place.request("PUT", body=json.dumps(files).encode(), headers=headers)
        self._is_made = True

    def close(self) -> None:
        """Release the descriptor of the copy."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def move_aside(self, path: str) -> None:
        """Move the copy, and bring it up to date for the last time; ``remove`` fails if the server's files change afterwards.

        What cannot be taken does not keep the session from ending: ``left_out`` names it. A workspace that is gone at the server was
        removed there by an end whose answer was lost; then the copy is as it was.
        """
        super().move_aside(path)
        try:
            with self._place.connected():
                missing = self._update(may_miss=True)
        except ServerRefusal as problem:
            if problem.status != 404:
                raise
            self._is_gone, missing = True, {}
        if missing:
            first, reason = next(iter(missing.items()))
            self.left_out = f"{len(missing)} of its files at {self._place.url} could not be taken, such as {first[:200]!r}: {reason}"
        self._is_leaving = True

    def remove(self, trash: Trash) -> None:
        """Remove the workspace at the server and its copy.

        Raises:
            AdapterUnavailable: the server cannot be reached, or its files were changed since they were archived; both stay.
        """
        if not self._is_gone:
            self.withdraw()
        super().remove(trash)

    def withdraw(self) -> None:
        """Remove the workspace at the server, if its files are as at the last update, or without one, as at the session's start.

        One that the server did not confirm to have made may be another's. It is removed only if it holds exactly the baseline.

        Raises:
            AdapterUnavailable: the server cannot be reached, or its files were changed since.
        """
        tag = self._tag
        if not tag and not self._is_made:
            try:
                answer = self._place.request("GET", most=_LARGEST_LIST)
            except ServerRefusal as problem:
                if problem.status != 404:
                    raise
                return
            with SafeDir.open(self.path) as copy:
                if answer.body is None or _listing(self._place.url, answer.body, self.seed.entries) != (self._contents(copy), {}):
                    return
            tag = answer.tag
        self._place.request("DELETE", headers={"If-Match": tag} if tag else None)


class RemoteEphemeral(Ephemeral):
    """Workspaces whose files are behind another process: ``workspaceKind: remote``.

    Agents work through the session, or at the server. No program runs in such a workspace on this machine, and it has no git.

    Args:
        address: the server's address, below which each session has its workspace.
        token: what the server wants as a bearer token; in no record and no message.
        timeout: seconds that the server may take for the whole of an answer.
        limits: how large a session's changes may be.

    Raises:
        InvalidInput: the address is not one of ``http`` or ``https``, or the token has a character that no header can have.
    """

    def __init__(self, address: str, token: str | None = None, *, timeout: float = 30.0, limits: Limits | None = None) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise InvalidInput(
                "RemoteEphemeral needs the address of a server.",
                why="Records of sessions contain the address, so it must have no password.",
                fix="Give http://host:port/path or https://..., and the token as token=.",
            )
        if token is not None and not _TOKEN.fullmatch(token):
            raise InvalidInput(
                "The token has a character that is not allowed in a header.", fix="Give it as the server shows it, without line ends."
            )
        self._address = address.rstrip("/")
        self._token, self._timeout = token, timeout
        self._limits = limits or Limits()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"

    @property
    def address(self) -> str:
        return self._address

    @property
    def kind(self) -> str:
        """``remote``."""
        return KIND

    @property
    def limits(self) -> Limits:
        return self._limits

    def create(self, path: str, state_dir: str, seed: Seed, *, branch: str, durable_objects: str | None, name: str) -> RemoteWorkspace:
        """Send the baseline to the server. Raises AdapterUnavailable or AuthFailed."""
        copy = LocalEphemeral("copy").create(path, state_dir, seed, branch=branch, durable_objects=durable_objects, name=name)
        note = os.path.join(state_dir, _NOTE)
        write_file(note, json.dumps({"name": name, "made": False}).encode())
        sent = {
            os.fsencode(path).decode("latin-1"): [f"{entry.mode:o}", base64.b64encode(seed.blob(entry.id)).decode()]
            for path, entry in seed.entries.items()
            if entry.mode != SUBMODULE
        }
        made = self._workspace(copy, name, is_made=False)
        try:
            made.make({"files": sent})
            write_file(note, json.dumps({"name": name, "made": True}).encode())
        except BaseException as problem:
            if not isinstance(problem, ServerRefusal):  # the server may have made it all the same
                with suppress(GittrixError, OSError):
                    made.withdraw()
            raise
        return made

    def _workspace(self, copy: Workspace, name: str, *, is_made: bool) -> RemoteWorkspace:
        place = ServedWorkspace(f"{self._address}/{quote(name)}", self._token, self._timeout)
        return RemoteWorkspace(copy, place, self._limits.max_total, is_made=is_made)

    def open(self, path: str, state_dir: str, seeds: str | None = None) -> RemoteWorkspace:
        """Open a workspace; the server is not asked before its files are. Raises AdapterUnavailable if the engine's note is gone."""
        copy = LocalEphemeral("copy").open(path, state_dir, seeds)
        try:
            with open(os.path.join(state_dir, _NOTE), "rb") as file:
                note = json.load(file)
            name, is_made = note["name"], note.get("made", True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise AdapterUnavailable(
                f"The engine's note of the workspace {path} cannot be read: {problem}.", fix="Discard the session."
            ) from problem
        return self._workspace(copy, name, is_made=is_made)


def _mode(mode: int) -> int | None:
    """The mode in a list for one of the disk; None for what no commit can hold."""
    if stat.S_ISLNK(mode):
        return SYMLINK
    if stat.S_ISREG(mode):
        return EXECUTABLE if mode & stat.S_IXUSR else FILE
    return None


def _put(files: SafeDir, path: str, what: tuple[int, str], data: bytes) -> None:
    if what[0] == SYMLINK:
        files.make_link(path, data)
    else:
        files.write(path, data, executable=what[0] == EXECUTABLE)


def _listing(url: str, body: bytes, known: Collection[str]) -> tuple[Listing, dict[str, str]]:
    """Parse a server's list of files; returns those that can be stored, and by path why others cannot. Raises AdapterUnavailable.

    Args:
        url: of the workspace.
        body: what the server answered.
        known: paths that may be there in any case, since the baseline has them.
    """
    try:
        files = json.loads(body)["files"].items()
        listed = {_decoded(path): (int(mode, 8), str(digest)) for path, (mode, digest) in files}
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeError, RecursionError) as problem:
        raise AdapterUnavailable(
            f"{url} did not answer with a list of files: {problem}.",
            why="The files of the session are unknown.",
            fix="Check that the server serves workspaces.",
        ) from problem
    faults = {path: _fault(path, mode, listed, known) for path, (mode, _) in listed.items()}
    return {path: what for path, what in listed.items() if not faults[path]}, {path: fault for path, fault in faults.items() if fault}


def _decoded(path: str) -> str:
    return os.fsdecode(path.encode("latin-1"))


def _fault(path: str, mode: int, listed: Collection[str], known: Collection[str]) -> str:
    """Why a session cannot take a file that a server lists; empty if it can."""
    if mode not in (FILE, EXECUTABLE, SYMLINK):
        return "its mode is none of 100644, 100755 and 120000"
    above = next((parent for parent in parents(path) if parent in listed), None)
    if above is not None:
        return f"{above!r} is listed as a file"
    try:
        return "" if path in known or check_path(path) == path else "it is not canonical"
    except WriteRejected as problem:
        return problem.fact
