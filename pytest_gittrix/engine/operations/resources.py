"""The resources of sessions: directories, durable repositories by path, workspaces, records and ids, and the leases on repositories."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.backends.protocol import MIRROR, Durable, Ephemeral, check_durable, registered_ephemeral
from pytest_gittrix.clock.clock import Clock
from pytest_gittrix.engine.operations.ids import claim_id
from pytest_gittrix.engine.operations.recorder import Emitter, Recorder
from pytest_gittrix.errors import AdapterUnavailable, Advice, CapabilityMissing, InvalidInput
from pytest_gittrix.extensions import Names
from pytest_gittrix.git.objects import MissingObject
from pytest_gittrix.git.refs import short_branch
from pytest_gittrix.os_level.files import private_directory
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.workspaces.kinds import KINDS, check_kind
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.spares import KINDS_WITH_SPARES, SpareOrder, Spares
from pytest_gittrix.workspaces.trash import Trash
from pytest_gittrix.workspaces.workspace import Workspace, adopt_workspace

if TYPE_CHECKING:
    from pytest_gittrix.backends.remote import RemoteDurable

Credentials = Callable[[str], tuple[str, str] | None]
"""User and password (or token) by the address of a remote; None for one that needs none."""

LOCAL = "local://"
"""How the names of repositories and workspaces on this machine begin."""

QUEUE_WAIT = timedelta(minutes=2)
"""How long a promotion waits for its turn in a repository, by default."""
_SSH_AGENT = ("SSH_AUTH_SOCK",)
_SECRET = re.compile(r"//[^/@]*@")


class Resources:
    """What one engine makes sessions of: its directories, repositories, clock and ids.

    Args:
        home: directory of locks and preferences.
        store: the sessions.
        clock: the time.
        durable: the engine's own repository, if it has one: an adapter, a path, or the address of a remote.
        ephemeral: how workspaces are made.
        make_id: makes ids of sessions.
        credentials: user and password (or token) for a remote of which the address holds none.
        queue_wait: how long a promotion waits for its turn in a repository.

    Raises:
        AdapterUnavailable, UnsupportedRepository: a path leads to no repository that can be used.
        InvalidInput: an address is none that git takes.
    """

    def __init__(
        self,
        home: Path,
        store: Store,
        clock: Clock,
        durable: Durable | str | os.PathLike[str] | None,
        ephemeral: Ephemeral,
        *,
        make_id: Callable[[], str],
        credentials: Credentials | None,
        queue_wait: timedelta,
    ) -> None:
        self.home = home
        self.store = store
        self.clock = clock
        self.ephemeral = ephemeral
        self.queue_wait = queue_wait
        self.emitter = Emitter()
        self.make_id = make_id
        self.trash = Trash(str(store.root / ".trash"))
        self.spares = Spares(str(store.root / ".spares"), self.trash, sync=store.durability == "full")
        self._credentials: Credentials = credentials if credentials is not None else lambda _address: None
        self._durables: dict[str, LocalDurable | RemoteDurable] = {}
        self._remotes: list[RemoteDurable] = []
        self.durable: Durable | None
        if durable is None or isinstance(durable, (str, os.PathLike)):
            self.durable = None if durable is None else self._named(durable)
        else:
            self.durable = check_durable(durable)

    def _named(self, durable: str | os.PathLike[str]) -> LocalDurable | RemoteDurable:
        address, _, branch = str(durable).partition("#")
        if not isinstance(durable, str) or not is_address(address):
            return self._adapter(durable)
        if address.startswith(LOCAL):
            return self._adapter(_path_of(address), branch or "main")
        return self._remote(address, branch or "main", mirror_of(self.home, address))

    def _adapter(self, path: str | os.PathLike[str], branch: str = "main") -> LocalDurable | RemoteDurable:
        if os.path.isfile(os.path.join(path, MIRROR)):
            from pytest_gittrix.backends.mirror import mirror_url

            url = mirror_url(path)
            if url is None:
                raise AdapterUnavailable(f"{path} is no longer a mirror of a remote repository.", fix="Give the remote's address.")
            return self._remote(url, branch, path)
        return LocalDurable(path, branch, sync=self.store.durability == "full")

    def _remote(self, address: str, branch: str, mirror: str | os.PathLike[str]) -> RemoteDurable:
        from pytest_gittrix.backends.remote import RemoteDurable  # slow to import, and most engines have no remote
        from pytest_gittrix.backends.transport import Transport

        transport = Transport.to(address)
        # An address does not say where the SSH agent listens.
        environment = {name: os.environ[name] for name in _SSH_AGENT if name in os.environ} if transport.protocol == "ssh" else {}
        made = RemoteDurable(
            address,
            branch,
            mirror=mirror,
            credentials=self._credentials(transport.url) if address == transport.url or address.startswith("github://") else None,
            environment=environment,
            sync=self.store.durability == "full",
        )
        self._remotes.append(made)
        return made

    def recorder(self, id_: str) -> Recorder:
        """A recorder of a session, which may not be in the store. Raises InvalidInput for a malformed id."""
        return Recorder(self.store, id_, self.clock, self.emitter.emit)

    def claim(self, chosen: str | None = None) -> tuple[Recorder, Lease]:
        """Make the directory of a new session; gives its recorder, and its lease, held.

        Args:
            chosen: its id; made here by default.

        Raises:
            InvalidInput, AdapterUnavailable: as ``claim_id``.
        """
        id_, lease = claim_id(self.store, self.make_id, chosen)
        return self.recorder(id_), lease

    def is_own(self, durable: Durable) -> bool:
        """Whether a repository is the engine's own; of an engine without one, every one is."""
        return self.durable is None or durable is self.durable

    def resolve(self, path: str | os.PathLike[str] | None, ref: str | None, branch: str | None) -> tuple[Durable, str]:
        """The durable repository and branch that a start names.

        Raises:
            InvalidInput: the reference is malformed, or there is no repository at all.
        """
        if ref is not None:
            address, _, named = ref.partition("#")
            if path is not None or not is_address(address):
                raise InvalidInput(
                    f"durable_ref={_SECRET.sub('//', ref)!r} cannot be used.",
                    fix="Give local://<absolute path>#<branch>, or a remote as https://..., github://owner/repo, ssh://..., file://... or "
                    "user@host:path with #<branch>, without durable_path.",
                )
            branch = named or None if branch is None else branch
            path = _path_of(address) if address.startswith(LOCAL) else self.mirror(address)
        durable = self.durable if path is None else self.at(os.fspath(path))
        if durable is None:
            raise InvalidInput("The engine has no durable repository.", fix="Give one to GitTrix(), or durable_path= here.")
        return durable, short_branch(durable.branch if branch is None else branch)

    def at(self, path: str) -> Durable:
        """The repository at a path of this machine, opened once."""
        real = path if path in self._durables or (self.durable and path == self.durable.path) else os.path.realpath(path)
        if self.durable is not None and self.durable.path == real:
            return self.durable
        if real not in self._durables:
            self._durables[real] = self._adapter(real)
        return self._durables[real]

    def mirror(self, address: str) -> str:
        """The path of the mirror of a remote, which sessions store. The remote is not contacted.

        Raises:
            InvalidInput: git takes no such address.
        """
        from pytest_gittrix.backends.transport import Transport

        url, own = Transport.to(address).url, self.durable
        if own is not None and own.path is not None and getattr(own, "url", None) == url:
            return own.path
        path = mirror_of(self.home, address)
        if path not in self._durables or address != url:  # the address may have other credentials
            self._durables[path] = self._remote(address, "main", path)
        return path

    def durable_of(self, state: SessionState) -> Durable:
        """The durable repository of a session. Raises AdapterUnavailable if it is not here."""
        if state.durable_path is None:
            raise AdapterUnavailable(
                f"The durable repository of session {state.id} ({state.durable_ref}) is not on this machine.",
                fix="Promote it with the system that started it.",
            )
        if not os.path.isdir(state.durable_path):
            raise AdapterUnavailable(
                f"The durable repository of session {state.id} is not at {state.durable_path} any more.",
                why="It was moved or removed, and the session still has its old path.",
                fix=Advice(
                    "Move it back, or give its new path with session.relocate(path).",
                    f"Move it back, or give its new path with `gittrix session relocate {state.id} PATH`.",
                ),
            )
        return self.at(state.durable_path)

    def moved_durable(self, state: SessionState, path: str) -> Durable:
        """The repository of a session at its new path.

        Raises:
            AdapterUnavailable: there is no repository, or it is another one.
            CapabilityMissing: the workspace is a linked work tree, which the repository refers to by its path; or durable is elsewhere.
        """
        if state.workspace_kind == "worktree" or state.durable_path is None or os.path.isfile(os.path.join(state.durable_path, MIRROR)):
            raise CapabilityMissing(
                f"Session {state.id} cannot be given another path of its durable repository.",
                why="It is behind an address, or the workspace is a linked work tree, which refers to the repository by its path.",
                fix="Move the repository back to its old path.",
            )
        durable = self.at(os.path.realpath(path))
        try:
            durable.commit(state.baseline)
        except MissingObject as problem:
            raise AdapterUnavailable(
                f"{path} has no commit {state.baseline}, which session {state.id} started from.",
                why="It is another repository, or it has lost that commit.",
                fix="Give the path of the session's own repository.",
            ) from problem
        return durable

    def open_workspace(self, state: SessionState) -> Workspace:
        """A session's workspace, our own or a TypeScript store's.

        Raises:
            AdapterUnavailable: it cannot be opened.
            CapabilityMissing: another adapter made it.
            InvalidInput: it is a member's, of several repositories, which only its agent uses (BotMinter).
        """
        if state.life is not None:
            raise InvalidInput(
                f"Session {state.id} is a member's: its workspace has repositories of its agent's own.",
                why="They have no baseline, so their files cannot be read, written or promoted as in other sessions.",
                fix="Inspect it, stop it, or clean it up; what its agent did is saved to the remotes when it ends.",
            )
        directory = self.store.directory(state.id)
        path = state.workspace or str(directory / "workspace")
        if (directory / "engine" / "workspace.json").exists():
            opened = self.ephemeral_of(state).open(path, str(directory / "engine"), str(self.seeds_path))
            opened.seeds = str(self.seeds_path)
            return opened
        durable = self.durable_of(state)
        seed = durable.seed(self.seeds(), state.baseline, "none")
        adopted = adopt_workspace(path, state.workspace_kind or "copy", seed, durable.worktree_admin_dir(path))
        adopted.confine = self.ephemeral.confine or "auto"
        return adopted

    def ephemeral_of(self, state: SessionState) -> Ephemeral:
        """The adapter that opens a session's workspace: the engine's own, or the one that is registered for its kind.

        Raises:
            CapabilityMissing: another adapter made it, or the registered one cannot be loaded.
        """
        if state.workspace_kind == self.ephemeral.kind or (state.workspace_kind in KINDS and isinstance(self.ephemeral, LocalEphemeral)):
            return self.ephemeral
        if state.workspace_kind is not None and state.workspace_kind in Names("workspaces"):
            return registered_ephemeral(state.workspace_kind)
        raise CapabilityMissing(
            f"The workspace of session {state.id} is {state.workspace_kind!r}, and this engine makes {self.ephemeral.kind!r}.",
            why="Only the adapter that made it knows where its files are.",
            fix="Install the package that registers this kind, or open the session with GitTrix(durable, ephemeral=...).",
        )

    def ephemeral_for(self, kind: str | None) -> Ephemeral:
        """The adapter that makes a kind of workspace: the engine's own, or one that another package registered. None is the engine's.

        Raises:
            InvalidInput: there is no such kind.
            CapabilityMissing: the engine's own adapter makes no such workspaces, or the registered one cannot be loaded.
        """
        if kind is None:
            return self.ephemeral
        if kind in (*KINDS, self.ephemeral.kind) or not isinstance(kind, str) or kind not in Names("workspaces"):
            return self.ephemeral.with_kind(kind)
        return registered_ephemeral(kind)

    def create_workspace(self, ephemeral: Ephemeral, directory: Path, seed: Seed, *, durable: Durable, branch: str) -> Workspace:
        """Make a session's workspace at the seed's baseline: a spare if there is one.

        Raises:
            CapabilityMissing: the kind is ``overlay``, and none can be mounted here; or as ``LocalEphemeral.create``.
        """
        if ephemeral.kind == "overlay":
            _require_layers(str(self.store.root))
        path, state_dir = str(directory / "workspace"), str(directory / "engine")
        order = self._spare_order(ephemeral, durable, branch)
        made = self.spares.take(order, seed, path, state_dir) if order is not None else None
        if made is None:
            made = ephemeral.create(path, state_dir, seed, branch=branch, durable_objects=durable.objects_dir, name=directory.name)
        else:
            made.confine = ephemeral.confine or "auto"
        made.seeds = str(self.seeds_path)
        return made

    def order_spares(self, ephemeral: Ephemeral, durable: Durable, branch: str) -> None:
        """Have ``spares.refill`` make spares for the next sessions like this one."""
        order = self._spare_order(ephemeral, durable, branch)
        if order is not None:
            self.spares.order(order)

    def _spare_order(self, ephemeral: Ephemeral, durable: Durable, branch: str) -> SpareOrder | None:
        if not ephemeral.spares or ephemeral.kind not in KINDS_WITH_SPARES or durable.objects_dir is None:
            return None
        kind = check_kind(ephemeral.kind)
        source = f"{durable.objects_dir} {ephemeral.history}"
        return SpareOrder(
            kind,
            branch,
            source,
            lambda: durable.seed(self.seeds(), durable.head(branch), ephemeral.history),
            ephemeral.spares,
        )

    def prepare_baseline(self, state: SessionState, durable: Durable, commit: str) -> None:
        """Make the seed of a session's next baseline, from which its workspace follows without durable. Raises as ``Durable.seed``."""
        durable.seed(self.seeds(), commit, self.open_workspace(state).seed.history)

    @property
    def seeds_path(self) -> Path:
        """The directory of seeds, which may not exist yet."""
        return self.store.root / ".seeds"

    def seeds(self) -> str:
        """The directory of seeds, made if it is missing. Each store has its own, so a recovery knows every session that needs one."""
        return str(_made(self.seeds_path))

    def repository_lease(
        self, durable: Durable, session: str = "", waiting: Callable[[str], object] | None = None
    ) -> AbstractContextManager[Any]:
        """The lease under which this store's promotions into one repository take turns, instead of waiting for git's own lock."""
        locks = _made(self.home / "locks")
        name = hashlib.sha256(os.fsencode(durable.objects_dir or durable.uri)).hexdigest()[:32]
        about = f"the promotion of session {session}" if session else ""
        return Lease(locks / f"{name}.lock", wait=self.queue_wait.total_seconds(), about=about, waiting=waiting)

    def close(self) -> None:
        """Give back descriptors and processes."""
        self.spares.close()
        for durable in (*self._durables.values(), *self._remotes):
            durable.close()
        if self.durable is not None:
            self.durable.close()


def _require_layers(directory: str) -> None:
    from pytest_gittrix.confine.levels import missing_layers  # most engines make no overlays, and start no programs

    why = missing_layers(directory)
    if why:
        raise CapabilityMissing(
            f"No overlay can be mounted above {directory}: {why}.",
            why="Programs in an overlay workspace see it through a mount of their own; without it they would see only the changed files.",
            fix="Use Linux 5.11 (6.6 for a store in memory), allow this user namespaces, and keep the store on tmpfs or ext4.",
            opt_out=Advice("Start the session with workspace='clone'.", "Start the session with --workspace clone."),
        )


def durable_ref(durable: Durable, branch: str) -> str:
    """The name of a repository's branch in a record: ``local://...``, or the address of a remote."""
    if durable.objects_dir is None:
        return f"{durable.uri.partition('#')[0]}#{branch}"
    return local_ref(durable.path or "", branch)


def local_ref(path: str, branch: str | None = None) -> str:
    """The ``local://<path>#<branch>`` of a path; bytes that are no UTF-8, which JSON cannot hold, are written as ``%XX``."""
    if path.isascii():
        return f"local://{path}" + (f"#{branch}" if branch is not None else "")
    text = "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in path)
    return f"local://{text}" + (f"#{branch}" if branch is not None else "")


def mirror_of(home: Path, address: str) -> str:
    """The path of the engine's mirror of a remote; credentials in the address make no difference.

    Raises:
        InvalidInput: git takes no such address.
    """
    from pytest_gittrix.backends.transport import Transport

    url = Transport.to(address).url
    name = re.sub(r"[^A-Za-z0-9]+", "-", url.rstrip("/").removesuffix(".git").rpartition("/")[2])[:40].strip("-")
    return os.path.realpath(home / "mirrors" / f"{name or 'remote'}-{hashlib.sha256(os.fsencode(url)).hexdigest()[:16]}")


def is_address(text: str) -> bool:
    """Whether a text is ``local://...`` or the address of a remote, and not a path."""
    if text.startswith(LOCAL):
        return True
    if ":" not in text:
        return False
    from pytest_gittrix.backends.transport import is_address

    return is_address(text)


def _path_of(address: str) -> str:
    path = address.removeprefix(LOCAL)
    return path if os.path.lexists(path) else os.fsdecode(unquote_to_bytes(path))


def _made(directory: Path) -> Path:
    try:
        private_directory(directory, close=True)
    except OSError as problem:
        raise AdapterUnavailable(
            f"{directory} cannot be made: {problem.strerror}.", fix="Set GITTRIX_HOME to a writable directory with free space."
        ) from problem
    return directory
