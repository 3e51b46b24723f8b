"""What sessions are made from and kept in: the home directory, durable repositories by path, workspaces, and the leases on repositories.

Knows where things are, and nothing of what is done with them.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from pytest_gittrix.adapters.local import LocalDurable, LocalEphemeral
from pytest_gittrix.adapters.protocol import MIRROR, Durable
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.git.refs import short_branch
from pytest_gittrix.git.workspace import Trash, Workspace, adopt_workspace
from pytest_gittrix.record.lease import Lease
from pytest_gittrix.record.state import SessionState
from pytest_gittrix.record.store import Store

if TYPE_CHECKING:
    from pytest_gittrix.adapters.remote import RemoteDurable

_LEASE_WAIT = 120.0


class Resources:
    """The places and repositories of one engine.

    Args:
        home: directory of locks and preferences.
        store: the sessions.
        durable: the engine's own repository, if it has one.
        ephemeral: how workspaces are made.
    """

    def __init__(self, home: Path, store: Store, durable: Durable | str | os.PathLike[str] | None, ephemeral: LocalEphemeral) -> None:
        self.home = home
        self.store = store
        self.ephemeral = ephemeral
        self.trash = Trash(str(store.root / ".trash"))
        self._durables: dict[str, LocalDurable | RemoteDurable] = {}
        self.durable: Durable | None = self._adapter(durable) if isinstance(durable, (str, os.PathLike)) else durable

    def _adapter(self, path: str | os.PathLike[str], branch: str = "main") -> LocalDurable | RemoteDurable:
        if os.path.isfile(os.path.join(path, MIRROR)):
            from pytest_gittrix.adapters.remote import RemoteDurable  # dear to load, and most have none

            return RemoteDurable.reopen(path, branch)
        return LocalDurable(path, branch, sync=self.store.durability == "full")

    def resolve(self, path: str | os.PathLike[str] | None, ref: str | None, branch: str | None) -> tuple[Durable, str]:
        """The durable repository and branch that a start names.

        Raises:
            InvalidInput: the reference is malformed, or there is no repository at all.
        """
        if ref is not None:
            place, _, named = ref.removeprefix("local://").partition("#")
            if not ref.startswith("local://") or path is not None:
                raise InvalidInput(
                    f"durable_ref={ref!r} cannot be used.", fix="Give local://<absolute path>#<branch>, without durable_path."
                )
            path, branch = _path_of(place), branch or named or None
        durable = self.durable if path is None else self.at(os.fspath(path))
        if durable is None:
            raise InvalidInput("The engine has no durable repository.", fix="Give one to GitTrix(), or durable_path= here.")
        return durable, short_branch(branch or durable.branch)

    def at(self, path: str) -> Durable:
        """The repository at a path of this machine, opened once."""
        real = os.path.realpath(path)
        if self.durable is not None and self.durable.path == real:
            return self.durable
        if real not in self._durables:
            self._durables[real] = self._adapter(real)
        return self._durables[real]

    def durable_of(self, state: SessionState) -> Durable:
        """The durable repository of a session. Raises AdapterUnavailable if it is not here."""
        if state.durable_path is None:
            raise AdapterUnavailable(
                f"The durable repository of session {state.id} ({state.durable_ref}) is not on this machine.",
                fix="Promote it with the system that started it.",
            )
        return self.at(state.durable_path)

    def open_workspace(self, state: SessionState) -> Workspace:
        """A session's workspace, our own or a TypeScript store's. Raises AdapterUnavailable if it cannot be opened."""
        directory = self.store.directory(state.id)
        path = state.workspace or str(directory / "workspace")
        if (directory / "engine" / "workspace.json").exists():
            return self.ephemeral.open(path, str(directory / "engine"))
        durable = self.durable_of(state)
        seed = durable.seed(self.seeds(), state.baseline, "none")
        return adopt_workspace(path, state.workspace_kind or "copy", seed, durable.admin_of(path))

    @property
    def seeds_path(self) -> Path:
        """Where seeds are, made or not."""
        return self.store.root / ".seeds"

    def seeds(self) -> str:
        """The directory of seeds; each store has its own, so that a recovery knows every session that needs one."""
        return str(_made(self.seeds_path))

    def repository_lease(self, durable: Durable) -> AbstractContextManager[Any]:
        """Promotions of this store into one repository take turns, so that they do not wear out git's own lock waiting."""
        locks = _made(self.home / "locks")
        name = hashlib.sha256(os.fsencode(durable.objects_dir or durable.uri)).hexdigest()[:32]
        return Lease(locks / f"{name}.lock", wait=_LEASE_WAIT)

    def close(self) -> None:
        """Give back descriptors and processes."""
        for durable in self._durables.values():
            durable.close()
        if self.durable is not None:
            self.durable.close()


def durable_ref(durable: Durable, branch: str) -> str:
    """What a record calls the branch of a repository: ``local://...``, or the address of a remote."""
    if durable.objects_dir is None:
        return f"{durable.uri.partition('#')[0]}#{branch}"
    return local_ref(durable.path or "", branch)


def local_ref(path: str, branch: str | None = None) -> str:
    """The ``local://<path>#<branch>`` of a path; bytes that are no UTF-8, which JSON cannot hold, are written as ``%XX``."""
    if path.isascii():
        return f"local://{path}" + (f"#{branch}" if branch is not None else "")
    text = "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in path)
    return f"local://{text}" + (f"#{branch}" if branch is not None else "")


def _path_of(place: str) -> str:
    return place if os.path.lexists(place) else os.fsdecode(unquote_to_bytes(place))


def _made(directory: Path) -> Path:
    if directory.is_dir():
        return directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise AdapterUnavailable(
            f"{directory} cannot be made: {problem.strerror}.", fix="See that the home is a writable directory with space (GITTRIX_HOME)."
        ) from problem
    return directory
