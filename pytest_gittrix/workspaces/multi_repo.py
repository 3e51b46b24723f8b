"""Workspaces of several repositories, filled from bare clones that all workspaces share.

One bare clone per address is kept under a directory of clones, and fetched again when it is old. It holds what the remote has as
remote-tracking references (``+refs/heads/*:refs/remotes/origin/*``), so that a fetch really moves them: into a bare clone without a refspec
git fetches nothing, and every later workspace starts from the first clone's commit (session-systems 4.6, rule 10). A clone never throws
an object away, because the repositories of workspaces borrow from it. Each of those is a repository of its own all the same: own ``.git``,
own references, ``origin`` at the real address, detached at the head of a branch. It must not know sessions or clocks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, GitFailed, InvalidInput
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.objects import SHA1, SHA256, ObjectFormat
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.refs import References, short_branch
from pytest_gittrix.os_level.files import read_text, write_file, write_new

MARKER: Final = ".botminter.workspace"
"""The file at the root of a workspace that says whose it is."""

TEAM: Final = "team"
PROJECTS: Final = "projects"

REFETCH_AFTER: Final = 300.0
"""Seconds after which a shared clone is fetched again (BotMinter)."""

PROTOCOLS: Final = "file:http:https:ssh:git"
_LAST_FETCH: Final = ".bm_last_fetch"
_ORIGIN: Final = "refs/remotes/origin/"
_REFSPEC: Final = f"+refs/heads/*:{_ORIGIN}*"
_ADDRESS: Final = re.compile(r"(?:file|https?|ssh|git)://[^\n\0]+|[\w.~-]+@[\w.-]+:[^\n\0]+|/[^\n\0]*")
_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")
_STALE: Final = ("*.lock", "objects/pack/tmp_*", "objects/*/tmp_obj_*")
_PAUSE: Final = 0.01
# What is checked out is what is in the commit, byte for byte, whatever its attributes say: finalization compares bytes.
_RAW: Final = b"* -text -ident -filter -working-tree-encoding\n"

Progress = Callable[[str, str], object]
"""Called with the name of a repository and what is being done: ``clone``, ``fetch``, ``checkout``, ``ready``."""


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """One repository that a workspace shall have.

    Attributes:
        name: ``app`` or ``org/app``; its place is ``projects/<name>``.
        url: where it really is: a URL, ``user@host:path`` or an absolute path.
        branch: the branch whose head is checked out; the remote's default branch if None.
        team: whether it is the team's repository, whose place is ``team``.
    """

    name: str
    url: str
    branch: str | None = None
    team: bool = False

    @property
    def place(self) -> str:
        """Where it stands in the workspace."""
        return TEAM if self.team else f"{PROJECTS}/{self.name}"


@dataclass(frozen=True, slots=True)
class HydratedRepository:
    """One repository of a workspace, as it was put there.

    Attributes:
        name, url, place, team: as in its ``RepositorySpec``.
        branch: whose head it was detached at.
        commit: that head; None if the remote has none yet (then HEAD is on the unborn branch).
    """

    name: str
    url: str
    place: str
    branch: str
    commit: str | None
    team: bool = False


Planned = Callable[[tuple[HydratedRepository, ...]], object]
"""Called with the repositories that a workspace is about to have."""


@dataclass(frozen=True, slots=True)
class Hydrated:
    """A workspace.

    Attributes:
        path: its directory.
        clones: the directory of the shared clones that its repositories borrow from.
        repositories: those that were put there.
    """

    path: str
    clones: str
    repositories: tuple[HydratedRepository, ...] = field(default=())


def clone_path(clones: str | os.PathLike[str], url: str) -> str:
    """Where the shared clone of an address stands: 16 hex digits of the address's SHA-256."""
    return os.path.join(os.fspath(clones), hashlib.sha256(os.fsencode(url)).hexdigest()[:16])


def format_of_clone(clone: str, commit: str | None = None) -> ObjectFormat:
    """The object format of a shared clone; of one that is gone, that of a commit it had (sha1 if there was none)."""
    config = read_text(os.path.join(clone, "config"))
    wide = "objectformat = sha256" in config.lower() if config is not None else len(commit or "") == SHA256.hex_size
    return SHA256 if wide else SHA1


def hydrate(
    specs: Sequence[RepositorySpec],
    workspace: str | os.PathLike[str],
    clones: str | os.PathLike[str],
    *,
    now: Callable[[], float] = time.time,
    marker: Mapping[str, str] | None = None,
    refetch_after: float = REFETCH_AFTER,
    environment: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    progress: Progress | None = None,
    planned: Planned | None = None,
) -> Hydrated:
    """Make a workspace. It is there whole, or not at all; shared clones that came to be on the way stay, for the next one.

    Args:
        specs: its repositories.
        workspace: its directory, which is not there yet (or is empty).
        clones: the directory of shared clones; made if need be.
        now: gives the time, in seconds since 1970, by which clones grow old.
        marker: lines of the marker file, such as ``{"session_id": ..., "member": ...}``.
        refetch_after: seconds after which a clone is fetched again.
        environment: more variables for git, such as ``SSH_AUTH_SOCK``.
        timeout: seconds that one git program, or the wait for another engine that uses a clone, may take.
        progress: told what is being done.
        planned: told which repositories it will have and where they will begin, before anything of the workspace is made. What it raises
            is raised here, and nothing is made.

    Raises:
        InvalidInput: a name, a place or an address is not allowed, or the workspace is there already.
        AdapterUnavailable: a remote cannot be read, or has not the branch; nothing of the workspace is left.
        OSError: the disk refused; nothing of the workspace is left.
    """
    path, told = os.path.abspath(workspace), progress or (lambda _name, _step: None)
    _check(specs, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.makedirs(clones, exist_ok=True)
    shared = _Clones(os.path.abspath(clones), now, refetch_after, timeout, environment or {})
    building = f"{path}.hydrating-{secrets.token_hex(4)}"
    for left in Path(path).parent.glob(f"{_literal(os.path.basename(path))}.hydrating-*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        heads = [shared.head(spec, told) for spec in specs]
        made = tuple(
            HydratedRepository(spec.name, spec.url, spec.place, head.branch, head.commit, spec.team)
            for spec, head in zip(specs, heads, strict=True)
        )
        if planned is not None:
            planned(made)
        os.mkdir(building)
        lines = ["# Made for one session; removed with it.", *(f"{key}: {value}" for key, value in (marker or {}).items())]
        write_new(os.path.join(building, MARKER), "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
        for spec, head in zip(specs, heads, strict=True):
            told(spec.name, "checkout")
            _put(os.path.join(building, spec.place), spec, head, timeout)
            told(spec.name, "ready")
        with suppress(FileNotFoundError):
            os.rmdir(path)
        os.rename(building, path)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return Hydrated(path, shared.directory, made)


def _check(specs: Sequence[RepositorySpec], path: str) -> None:
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)):
        raise InvalidInput(f"{path} is there already.", why="A workspace begins empty.", fix="Give each session a directory of its own.")
    check_specs(specs)


def check_specs(specs: Sequence[RepositorySpec]) -> None:
    """Judge repositories before anything is made of them, or asked of a network.

    Raises:
        InvalidInput: a name, an address or a branch is none, or two would be in one place.
        WriteRejected: a name leads out of the workspace, or into repository data.
    """
    places: list[str] = []
    for spec in specs:
        if check_path(spec.name, what="name of a repository") != spec.name:
            raise InvalidInput(f"{spec.name!r} is no name of a repository.", fix="Write it like 'app' or 'org/app'.")
        if not _ADDRESS.fullmatch(spec.url):
            raise InvalidInput(
                f"{shown(spec.url)!r} is no address of a repository.",
                why="An address that git would run as a command, read as an option or look for beside itself is never one.",
                fix=f"Give an absolute path, user@host:path, or a URL of one of these: {PROTOCOLS.replace(':', ', ')}.",
            )
        if spec.branch is not None:
            short_branch(spec.branch)
        clash = next((place for place in places if f"{place}/".startswith(f"{spec.place}/") or spec.place.startswith(f"{place}/")), None)
        if clash is not None:
            raise InvalidInput(f"{spec.place} and {clash} would be in each other's way.", fix="Give each repository a place of its own.")
        places.append(spec.place)


def shown(text: str) -> str:
    """A text with the credentials taken out of every address in it."""
    return _CREDENTIALS.sub("//", text)


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


@dataclass(frozen=True, slots=True)
class _Head:
    """A branch of a shared clone: the clone's directory, the branch, its commit, and every reference that a workspace gets."""

    clone: str
    branch: str
    commit: str | None
    format: ObjectFormat
    refs: Mapping[str, str]
    default: str | None


@dataclass(frozen=True)
class _Clones:
    """The directory of shared clones, and how they are fetched."""

    directory: str
    now: Callable[[], float]
    refetch_after: float
    timeout: float
    environment: Mapping[str, str]

    def head(self, spec: RepositorySpec, told: Progress) -> _Head:
        """Where a repository's branch is now, with all its objects in the shared clone."""
        path = clone_path(self.directory, spec.url)
        with self._locked(path):
            fresh = self._refresh(path, spec, told)
            found = _head_in(path, spec)
            if found is None and not fresh:
                # The branch may have been made since.
                self._fetch(path, spec, told)
                found = _head_in(path, spec)
        if found is None:
            raise AdapterUnavailable(
                f"{shown(spec.url)} has no branch {spec.branch!r}.",
                why="A workspace starts at the head of a branch of the remote.",
                fix="Push the branch first, or leave branch= out for the default branch.",
            )
        return found

    @contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + self.timeout
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise AdapterUnavailable(
                        f"{path}.lock was held by another program for {self.timeout:g} s.",
                        why="One program at a time fetches into a shared clone.",
                        fix="Wait for it to end.",
                    )
                time.sleep(_PAUSE)
            yield
        finally:
            os.close(descriptor)

    def _refresh(self, path: str, spec: RepositorySpec, told: Progress) -> bool:
        """Make the clone, or fetch into one that is old. Says whether it talked to the remote."""
        for left in Path(self.directory).glob(f"{os.path.basename(path)}.tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        if os.path.isdir(path):
            if self._age(path) < self.refetch_after:
                return False
            self._fetch(path, spec, told)
            return True
        building = f"{path}.tmp-{secrets.token_hex(4)}"
        told(spec.name, "clone")
        try:
            _initialise(building, spec.url, self._listed(building, spec)[1])
            self._fetch(building, spec, lambda _name, _step: None)
            os.rename(building, path)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        return True

    def _age(self, path: str) -> float:
        """Seconds since the last fetch; for ever if nobody knows, or if it was in the future (a clock that was set back)."""
        text = read_text(os.path.join(path, _LAST_FETCH))
        try:
            age = self.now() - float(text or "nan")
        except ValueError:
            return float("inf")
        return age if age >= 0 else float("inf")

    def _fetch(self, path: str, spec: RepositorySpec, told: Progress) -> None:
        told(spec.name, "fetch")
        at = self.now()
        for pattern in _STALE:
            # The lock of the clone is held: whoever left these is dead.
            for left in Path(path).rglob(pattern) if "/" not in pattern else Path(path).glob(pattern):
                with suppress(OSError):
                    left.unlink()
        default, _ = self._listed(path, spec)
        # Pruned are references only: a branch renamed from `a` to `a/b` must not stop the fetch. No object is ever thrown away.
        self._git(["fetch", "-q", "--prune", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "origin"], path, spec)
        head = os.path.join(path, _ORIGIN, "HEAD")
        if default is None:
            with suppress(FileNotFoundError):
                os.unlink(head)
        else:
            os.makedirs(os.path.dirname(head), exist_ok=True)
            write_file(head, f"ref: {_ORIGIN}{default}\n".encode(errors="surrogateescape"))
        write_file(os.path.join(path, _LAST_FETCH), f"{at!r}\n".encode())

    def _listed(self, path: str, spec: RepositorySpec) -> tuple[str | None, ObjectFormat]:
        """The remote's default branch, if it says so, and its object format (sha1 while it is empty)."""
        where = ["origin"] if os.path.isdir(path) else ["--", spec.url]
        answer = os.fsdecode(self._git(["ls-remote", "-q", "--symref", *where, "HEAD"], path, spec))
        default, format_ = None, SHA1
        for line in answer.splitlines():
            value, _, name = line.partition("\t")
            if name == "HEAD" and value.startswith("ref: refs/heads/"):
                default = value.removeprefix("ref: refs/heads/")
            elif len(value) == SHA256.hex_size:
                format_ = SHA256
        return default, format_

    def _git(self, arguments: list[str], path: str, spec: RepositorySpec) -> bytes:
        environment = hermetic_env() | {"GIT_ALLOW_PROTOCOL": PROTOCOLS} | dict(self.environment)
        if os.path.isdir(path):
            environment["GIT_DIR"] = path
        try:
            return run_git(arguments, env=environment, timeout=self.timeout)
        except GitFailed as error:
            raise AdapterUnavailable(
                f"{shown(spec.url)} cannot be read: {shown(error.fact)}",
                why="A workspace starts from what the remote has; without it there is none.",
                fix="See that the address is right and the remote can be reached, then try again.",
            ) from None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _head_in(clone: str, spec: RepositorySpec) -> _Head | None:
    """The branch that a workspace shall start at; None if the clone has not the one that was named."""
    format_ = format_of_clone(clone)
    refs = References(clone, format_).below(_ORIGIN)
    symbolic = read_text(os.path.join(clone, _ORIGIN, "HEAD"))
    default = symbolic.removeprefix(f"ref: {_ORIGIN}") if symbolic is not None else None
    branch = short_branch(spec.branch) if spec.branch is not None else default
    if branch is None:
        # An empty remote does not say; one whose HEAD leads nowhere has branches all the same.
        branch = next((name for name in ("main", "master") if _ORIGIN + name in refs), "main")
    commit = refs.get(_ORIGIN + branch)
    if commit is None and spec.branch is not None and refs:
        return None
    return _Head(clone, branch, commit, format_, refs, default if default is not None and _ORIGIN + default in refs else None)


def _configuration(url: str, format_: ObjectFormat, *, bare: bool) -> bytes:
    quoted = url.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    lines = [
        f"[core]\n\trepositoryFormatVersion = {int(format_ is SHA256)}\n\tfileMode = true\n\tbare = {str(bare).lower()}",
        *(["[extensions]\n\tobjectFormat = sha256"] if format_ is SHA256 else []),
        f'[remote "origin"]\n\turl = "{quoted}"\n\tfetch = {_REFSPEC}',
        "[gc]\n\tauto = 0",
        # Workspaces borrow its objects, so not even a person's own `git gc` may take one.
        "\tpruneExpire = never\n[core]\n\tlogAllRefUpdates = false" if bare else "[core]\n\tlogAllRefUpdates = true",
    ]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _skeleton(git_dir: str, url: str, format_: ObjectFormat, *, bare: bool) -> None:
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        os.makedirs(os.path.join(git_dir, name))
    write_new(os.path.join(git_dir, "config"), _configuration(url, format_, bare=bare))


def _initialise(path: str, url: str, format_: ObjectFormat) -> None:
    _skeleton(path, url, format_, bare=True)
    write_new(os.path.join(path, "HEAD"), b"ref: refs/heads/none\n")


def _put(path: str, spec: RepositorySpec, head: _Head, timeout: float) -> None:
    """A repository at ``path``, its files checked out."""
    git_dir = os.path.join(path, ".git")
    _skeleton(git_dir, spec.url, head.format, bare=False)
    write_new(os.path.join(git_dir, "objects", "info", "alternates"), os.fsencode(os.path.join(head.clone, "objects")) + b"\n")
    packed = "# pack-refs with: sorted \n" + "".join(f"{id_} {name}\n" for name, id_ in sorted(head.refs.items()))
    write_new(os.path.join(git_dir, "packed-refs"), packed.encode(errors="surrogateescape"))
    if head.default is not None:
        os.makedirs(os.path.join(git_dir, _ORIGIN))
        write_new(os.path.join(git_dir, _ORIGIN, "HEAD"), f"ref: {_ORIGIN}{head.default}\n".encode(errors="surrogateescape"))
    if head.commit is None:
        write_new(os.path.join(git_dir, "HEAD"), f"ref: refs/heads/{head.branch}\n".encode(errors="surrogateescape"))
        return
    write_new(os.path.join(git_dir, "HEAD"), head.commit.encode() + b"\n")
    attributes = os.path.join(git_dir, "info", "attributes")
    write_new(attributes, _RAW)
    environment = hermetic_env() | {"GIT_DIR": git_dir, "GIT_WORK_TREE": path}
    run_git(["read-tree", "--reset", "-u", head.commit], cwd=Path(path), env=environment, timeout=timeout)
    os.unlink(attributes)
