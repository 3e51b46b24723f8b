"""Workspaces whose files are behind another process, which serves them over HTTP (docs/reference/http.md, "A workspace behind HTTP").

The server's files are the session's. This machine holds a copy of them, which is brought up to date before it is read, so everything that
the engine does with a workspace works on it. What the server did not take did not happen, and what was archived is removed there only if
nothing was added since.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import stat
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote, urlsplit

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.backends.protocol import Ephemeral
from pytest_gittrix.errors import AdapterUnavailable, AuthFailed, InvalidInput
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.seed import Seed
from pytest_gittrix.workspaces.snapshot import Limits, Snapshot
from pytest_gittrix.workspaces.workspace import Capabilities, Trash, Workspace

KIND: Final = "remote"
_NOTE: Final = "remote.json"
_ANSWERS: Final = frozenset({200, 201, 204, 304})
_ONLY_FILES: Final = Capabilities(git=False, shell=False, isolated=True)

Listing = Mapping[str, tuple[int, str]]
"""Mode and SHA-256 of each file, by path."""


class _Answer(NamedTuple):
    """What the server said: its status, the tag of all files, and the body."""

    status: int
    tag: str
    body: bytes


@dataclass(frozen=True)
class _Place:
    """One workspace at a server."""

    url: str
    token: str | None = field(repr=False)
    timeout: float

    def request(self, method: str, below: str = "", body: bytes | None = None, headers: Mapping[str, str] | None = None) -> _Answer:
        """Ask the server once. Raises AuthFailed, or AdapterUnavailable for whatever else is not done."""
        parts = urlsplit(self.url)
        sent = {**({"Authorization": f"Bearer {self.token}"} if self.token is not None else {}), **(headers or {})}
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        try:
            with closing(make(parts.netloc, timeout=self.timeout)) as connection:
                connection.request(method, f"{parts.path}{below}", body, sent)
                response = connection.getresponse()
                answer = _Answer(response.status, response.headers.get("ETag", ""), response.read())
        except (OSError, http.client.HTTPException) as problem:
            raise AdapterUnavailable(
                f"{self.url} cannot be reached: {problem or type(problem).__name__}.",
                why="The files of the session are there; what it did not confirm may not be stored.",
                fix="Try again when the server answers. Nothing that it confirmed is lost.",
            ) from problem
        if answer.status in (401, 403):
            raise AuthFailed(f"{self.url} wants another token.", fix="Give RemoteEphemeral(token=...) the server's token.")
        if answer.status not in _ANSWERS:
            raise AdapterUnavailable(
                f"{self.url} answered {method} with status {answer.status}: {answer.body[:200].decode(errors='replace')!r}.",
                why="The files of the session are there, and the server did not do what it was asked.",
                fix="Mend the server, then try again.",
            )
        return answer

    def file(self, path: str) -> str:
        """The address of a file, below that of the workspace."""
        return f"/files/{quote(os.fsencode(path))}"


class _RemoteFiles(SafeDir):
    """The copy on this machine; what is changed in it is changed at the server, or an error is raised and the copy is outdated."""

    _owner: RemoteWorkspace

    def of(self, owner: RemoteWorkspace) -> Self:
        """The same, for a workspace."""
        self._owner = owner
        return self

    def write(self, path: str, data: bytes, *, executable: bool | None = None, sync: bool = False) -> os.stat_result:
        """As in ``SafeDir``, and at the server."""
        status = super().write(path, data, executable=executable, sync=sync)
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
    """

    def __init__(self, copy: Workspace, place: _Place) -> None:
        super().__init__(KIND, copy.path, copy.seed, copy.created, None)
        self._place = place
        self._tag = ""
        self._held: SafeDir | None = None
        self._is_leaving = False

    @property
    def capabilities(self) -> Capabilities:
        """No git and no programs: the files are elsewhere."""
        return _ONLY_FILES

    @property
    def files(self) -> SafeDir:
        """Its files as they are at the server now. Raises AdapterUnavailable if they cannot be had."""
        if not self._is_leaving:
            self.pull()
        return self._copy

    @property
    def _copy(self) -> SafeDir:
        held = self._held
        if held is None or not held.is_in_place():
            held = self._held = _RemoteFiles.open(self.path).of(self)
        return held

    def snapshot(self, **options: Any) -> Snapshot:
        """As of every workspace, of the files as they are at the server now."""
        if not self._is_leaving:
            self.pull()
        return super().snapshot(**options)

    def pull(self) -> None:
        """Bring the copy up to date. Raises AdapterUnavailable or AuthFailed; then the copy is as before, or on its way."""
        answer = self._place.request("GET", headers={"If-None-Match": self._tag} if self._tag else None)
        if answer.status == 304:
            return
        there = _listing(self._place.url, answer.body)
        with SafeDir.open(self.path) as copy:
            here = _contents(copy)
            for path in here.keys() - there.keys():
                copy.delete(path)
            for path, what in there.items():
                if here.get(path) != what:
                    _put(copy, path, what, self._fetch(path, what[1]))
        self._tag = answer.tag

    def _fetch(self, path: str, digest: str) -> bytes:
        data = self._place.request("GET", self._place.file(path)).body
        if hashlib.sha256(data).hexdigest() != digest:
            raise AdapterUnavailable(
                f"{path!r} was changed at {self._place.url} while it was fetched.",
                why="The copy would hold files of two times.",
                fix="Try again.",
            )
        return data

    def send(self, path: str, mode: int, data: bytes | None) -> None:
        """Change a file at the server; None deletes it. Raises as ``pull``; the next use then starts from what the server has."""
        self._tag = ""
        if data is None:
            self._place.request("DELETE", self._place.file(path))
        else:
            self._place.request("PUT", f"{self._place.file(path)}?mode={mode:o}", data)

    def close(self) -> None:
        """Release the descriptor of the copy."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def move_aside(self, path: str) -> None:
        """Move the copy, and bring it up to date for the last time; ``remove`` sees that nothing is added at the server afterwards."""
        super().move_aside(path)
        self.pull()
        self._is_leaving = True

    def remove(self, trash: Trash) -> None:
        """Remove the workspace at the server and its copy.

        Raises:
            AdapterUnavailable: the server cannot be reached, or its files were changed since they were archived; both stay.
        """
        self._place.request("DELETE", headers={"If-Match": self._tag} if self._tag else None)
        super().remove(trash)


class RemoteEphemeral(Ephemeral):
    """Workspaces whose files are behind another process: ``workspaceKind: remote``.

    Agents work through the session, or at the server. No program runs in such a workspace on this machine, and it has no git.

    Args:
        address: the server's address, below which each session has its workspace.
        token: what the server wants as a bearer token; in no record and no message.
        timeout: seconds that the server may take to answer.
        limits: how large a session's changes may be.

    Raises:
        InvalidInput: the address is not one of ``http`` or ``https``.
    """

    def __init__(self, address: str, token: str | None = None, *, timeout: float = 30.0, limits: Limits | None = None) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
            raise InvalidInput(
                "RemoteEphemeral was given no address of a server.",
                why="It is in the records of sessions, so it holds no password.",
                fix="Give http://host:port/path or https://..., and the token as token=.",
            )
        self._address = address.rstrip("/")
        self._token, self._timeout = token, timeout
        self._limits = limits or Limits()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"

    @property
    def address(self) -> str:
        """The server's address."""
        return self._address

    @property
    def kind(self) -> str:
        """``remote``."""
        return KIND

    @property
    def limits(self) -> Limits:
        """How large a session's changes may be."""
        return self._limits

    def _place(self, name: str) -> _Place:
        return _Place(f"{self._address}/{quote(name)}", self._token, self._timeout)

    def create(self, path: str, state_dir: str, seed: Seed, *, branch: str, durable_objects: str | None, name: str) -> RemoteWorkspace:
        """Send the baseline to the server. Raises AdapterUnavailable or AuthFailed."""
        copy = LocalEphemeral("copy").create(path, state_dir, seed, branch=branch, durable_objects=durable_objects, name=name)
        write_file(os.path.join(state_dir, _NOTE), json.dumps({"name": name}).encode())
        sent = {
            os.fsencode(path).decode("latin-1"): [f"{entry.mode:o}", base64.b64encode(seed.blob(entry.id)).decode()]
            for path, entry in seed.entries.items()
            if entry.mode != SUBMODULE
        }
        place = self._place(name)
        place.request("PUT", body=json.dumps({"files": sent}).encode(), headers={"Content-Type": "application/json", "If-None-Match": "*"})
        return RemoteWorkspace(copy, place)

    def open(self, path: str, state_dir: str, seeds: str | None = None) -> RemoteWorkspace:
        """Open a workspace; the server is not asked before its files are. Raises AdapterUnavailable if the engine's note is gone."""
        copy = LocalEphemeral("copy").open(path, state_dir, seeds)
        try:
            with open(os.path.join(state_dir, _NOTE), "rb") as file:
                name = json.load(file)["name"]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise AdapterUnavailable(
                f"What the engine noted about the workspace {path} cannot be read: {problem}.", fix="Discard the session."
            ) from problem
        return RemoteWorkspace(copy, self._place(name))


def _modes(files: SafeDir) -> dict[str, int]:
    modes: dict[str, int] = {}
    for found in files.scan():
        if stat.S_ISLNK(found.stat.st_mode):
            modes[found.path] = SYMLINK
        elif stat.S_ISREG(found.stat.st_mode):
            modes[found.path] = EXECUTABLE if found.stat.st_mode & stat.S_IXUSR else FILE
    return modes


def _read(files: SafeDir, path: str, mode: int) -> bytes:
    return files.read_link(path) if mode == SYMLINK else files.read(path)[0]


def _contents(files: SafeDir) -> Listing:
    return {path: (mode, hashlib.sha256(_read(files, path, mode)).hexdigest()) for path, mode in _modes(files).items()}


def _put(files: SafeDir, path: str, what: tuple[int, str], data: bytes) -> None:
    if what[0] == SYMLINK:
        files.make_link(path, data)
    else:
        files.write(path, data, executable=what[0] == EXECUTABLE)


def _listing(url: str, body: bytes) -> Listing:
    """The files that a server lists. Raises AdapterUnavailable for what is no list of files."""
    try:
        files = json.loads(body)["files"].items()
        listed = {os.fsdecode(path.encode("latin-1")): (int(mode, 8), str(digest)) for path, (mode, digest) in files}
        strange = [path for path, (mode, _) in listed.items() if mode not in (FILE, EXECUTABLE, SYMLINK) or ".git" in path.split("/")]
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeError) as problem:
        raise AdapterUnavailable(
            f"{url} gave no list of files: {problem}.",
            why="Nobody can say what the session holds.",
            fix="See that the server is one of workspaces.",
        ) from problem
    if strange:
        raise AdapterUnavailable(
            f"{url} lists {strange[0]!r}, which is in a repository, or whose mode is none of 100644, 100755 and 120000.",
            why="No commit of files can hold it.",
            fix="Keep repositories out of the workspace, and see that the server lists files and symlinks only.",
        )
    return listed
