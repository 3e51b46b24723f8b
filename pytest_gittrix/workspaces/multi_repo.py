"""Make workspaces of several repositories, which share objects with one bare clone per remote.

The bare clones are kept in one directory, and fetched again when they are old. A clone holds the remote's branches as remote-tracking
references (``+refs/heads/*:refs/remotes/origin/*``), so that a fetch moves them: without a refspec git fetches nothing into a bare clone,
and every later workspace would start from the first clone's commit (docs/explanation/you-know-botminter.md). A clone never deletes an
object, because the workspaces' repositories read objects from it as their alternate. Otherwise each of these is a complete repository:
its own ``.git`` and references, ``origin`` at the real address, HEAD detached at the head of a branch.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, Advice, GitFailed, InvalidInput
from pytest_gittrix.git.environment import hermetic_env, quote_config, run_git
from pytest_gittrix.git.objects import SHA1, SHA256, ObjectFormat
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.refs import References, short_branch
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.files import private_directory, read_text, whole_directory, write_file, write_new
from pytest_gittrix.os_level.monotonic import real_wall_seconds

MARKER: Final = ".botminter.workspace"
"""The file at the root of a workspace that names its session and member."""

TEAM: Final = "team"
PROJECTS: Final = "projects"

REFETCH_AFTER: Final = 300.0
"""Seconds after which a shared clone is fetched again (BotMinter)."""

PROTOCOLS: Final = "file:http:https:ssh:git"
_OF_A_CLONE: Final = "[core]\n\tlogAllRefUpdates = false\n\tsharedRepository = 0600"
_LAST_FETCH: Final = ".bm_last_fetch"
_ORIGIN: Final = "refs/remotes/origin/"
_REFSPEC: Final = f"+refs/heads/*:{_ORIGIN}*"
_ADDRESS: Final = re.compile(r"(?:file|https?|ssh|git)://[^\n\0]+|[\w.~-]+@[\w.-]+:[^\n\0]+|/[^\n\0]*")
_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")
_STALE: Final = ("*.lock", "objects/pack/tmp_*", "objects/*/tmp_obj_*")
# Files are checked out byte for byte as in the commit, whatever its attributes say, because finalization compares bytes.
_RAW: Final = b"* -text -ident -filter -working-tree-encoding\n"

Progress = Callable[[str, str], object]
"""Called with the name of a repository and the step: ``clone``, ``fetch``, ``checkout``, ``ready``."""


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """A repository to be checked out in a workspace.

    Attributes:
        name: ``app`` or ``org/app``; its directory is ``projects/<name>``.
        url: address of the remote: a URL, ``user@host:path`` or an absolute path.
        branch: the branch whose head is checked out; the remote's default branch if None.
        team: whether it is the team's repository, whose directory is ``team``.
    """

    name: str
    url: str
    branch: str | None = None
    team: bool = False

    @property
    def directory(self) -> str:
        """Its directory, relative to the workspace."""
        return TEAM if self.team else f"{PROJECTS}/{self.name}"


@dataclass(frozen=True, slots=True)
class CheckedOutRepository:
    """A repository as it was checked out in a workspace.

    Attributes:
        name, url, directory, team: as in its ``RepositorySpec``.
        branch: the branch at whose head HEAD was detached.
        commit: that head; None if the remote has no commit yet (then HEAD is on the unborn branch).
    """

    name: str
    url: str
    directory: str
    branch: str
    commit: str | None
    team: bool = False


Planned = Callable[[tuple[CheckedOutRepository, ...]], object]
"""Called with the repositories that are about to be checked out."""


@dataclass(frozen=True, slots=True)
class MultiRepoWorkspace:
    """A workspace of several repositories. Made by ``checkout_all``.

    Attributes:
        path: its directory.
        clones: directory of the shared clones, which its repositories read objects from.
        repositories: the repositories in it.
    """

    path: str
    clones: str
    repositories: tuple[CheckedOutRepository, ...] = field(default=())


def clone_path(clones: str | os.PathLike[str], url: str) -> str:
    """The path of the shared clone of an address, named by 16 hex digits of the address's SHA-256."""
    return os.path.join(os.fspath(clones), hashlib.sha256(os.fsencode(url)).hexdigest()[:16])


def clone_format(clone: str, commit: str | None = None) -> ObjectFormat:
    """The object format of a shared clone. If the clone is gone, the format of ``commit``; sha1 without one."""
    config = read_text(os.path.join(clone, "config"))
    is_sha256 = "objectformat = sha256" in config.lower() if config is not None else len(commit or "") == SHA256.hex_size
    return SHA256 if is_sha256 else SHA1


def checkout_all(
    specs: Sequence[RepositorySpec],
    workspace: str | os.PathLike[str],
    clones: str | os.PathLike[str],
    *,
    now: Callable[[], float] = real_wall_seconds,
    marker: Mapping[str, str] | None = None,
    refetch_after: float = REFETCH_AFTER,
    environment: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    progress: Progress | None = None,
    planned: Planned | None = None,
) -> MultiRepoWorkspace:
    """Make a workspace with every repository checked out, or make none.

    After a failure nothing of the workspace is left, but shared clones that were made stay for the next workspace.

    Args:
        specs: the repositories.
        workspace: the workspace's directory, which does not exist yet or is empty.
        clones: directory of the shared clones; made if it is missing.
        now: returns the time in seconds since 1970, by which the age of clones is judged.
        marker: contents of the marker file, such as ``{"session_id": ..., "member": ...}``.
        refetch_after: seconds after which a clone is fetched again.
        environment: more variables for git, such as ``SSH_AUTH_SOCK``.
        timeout: seconds that one git program, or the wait for another engine that uses a clone, may take.
        progress: called at each step.
        planned: called with the repositories and the commits they start at, before anything of the workspace is made. An error that it
            raises is raised here, and no workspace is made.

    Raises:
        InvalidInput: a name, a directory or an address is not allowed, or the workspace exists already.
        AdapterUnavailable: a remote cannot be read, or lacks the branch.
        OSError: the disk refused.
    """
    path, report = os.path.abspath(workspace), progress or (lambda _name, _step: None)
    _check(specs, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    private_directory(clones, close=True)
    shared = _SharedClones(os.path.abspath(clones), now, refetch_after, timeout, environment or {})
    building = f"{path}.hydrating-{secrets.token_hex(4)}"
    for left in Path(path).parent.glob(f"{_literal(os.path.basename(path))}.hydrating-*"):
        shutil.rmtree(left, ignore_errors=True)
    with whole_directory(path, building):
        heads = [shared.head(spec, report) for spec in specs]
        repositories = tuple(
            CheckedOutRepository(spec.name, spec.url, spec.directory, head.branch, head.commit, spec.team)
            for spec, head in zip(specs, heads, strict=True)
        )
        if planned is not None:
            planned(repositories)
        os.mkdir(building)
        lines = ["# Made for one session; removed with it.", *(f"{key}: {value}" for key, value in (marker or {}).items())]
        write_new(os.path.join(building, MARKER), "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
        for spec, head in zip(specs, heads, strict=True):
            report(spec.name, "checkout")
            _checkout(os.path.join(building, spec.directory), spec, head, timeout)
            report(spec.name, "ready")
        with suppress(FileNotFoundError):
            os.rmdir(path)
    return MultiRepoWorkspace(path, shared.directory, repositories)


def _check(specs: Sequence[RepositorySpec], path: str) -> None:
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)):
        raise InvalidInput(f"{path} is there already.", why="A workspace begins empty.", fix="Give each session a directory of its own.")
    check_specs(specs)


def check_specs(specs: Sequence[RepositorySpec]) -> None:
    """Validate repository specs before anything is made or a network is used.

    Raises:
        InvalidInput: a name, an address or a branch is not valid, or the directories of two repositories collide.
        WriteRejected: a name leads out of the workspace, or into repository data.
    """
    directories: list[str] = []
    for spec in specs:
        if check_path(spec.name, what="name of a repository") != spec.name:
            raise InvalidInput(f"{spec.name!r} is no name of a repository.", fix="Write it like 'app' or 'org/app'.")
        if not _ADDRESS.fullmatch(spec.url):
            raise InvalidInput(
                f"{hide_credentials(spec.url)!r} is no address of a repository.",
                why="An address that git would run as a command, read as an option or look for in its own directory is never one.",
                fix=f"Give an absolute path, user@host:path, or a URL of one of these: {PROTOCOLS.replace(':', ', ')}.",
            )
        if spec.branch is not None:
            short_branch(spec.branch)
        clash = next((other for other in directories if _overlap(other, spec.directory)), None)
        if clash is not None:
            fix = "Give each repository a directory of its own."
            raise InvalidInput(f"{spec.directory} and {clash} would be in each other's way.", fix=fix)
        directories.append(spec.directory)


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or other.startswith(f"{one}/")


def hide_credentials(text: str) -> str:
    """Remove the credentials from every address in a text."""
    return _CREDENTIALS.sub("//", text)


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


@dataclass(frozen=True, slots=True)
class _Head:
    """The branch of a shared clone that a workspace starts at.

    Attributes:
        clone: the clone's directory.
        branch: short name of the branch.
        commit: the branch's head; None if the remote is empty.
        format: the clone's object format.
        refs: every remote-tracking reference, which the workspace gets too.
        default: the remote's default branch, if it is known and exists.
    """

    clone: str
    branch: str
    commit: str | None
    format: ObjectFormat
    refs: Mapping[str, str]
    default: str | None


@dataclass(frozen=True)
class _SharedClones:
    """The directory of shared clones, which makes and fetches them."""

    directory: str
    now: Callable[[], float]
    refetch_after: float
    timeout: float
    environment: Mapping[str, str]

    def head(self, spec: RepositorySpec, report: Progress) -> _Head:
        """The current head of a repository's branch, with all its objects in the shared clone."""
        path = clone_path(self.directory, spec.url)

        def refusal() -> AdapterUnavailable:
            return AdapterUnavailable(
                f"{path}.lock was held by another program for {self.timeout:g} s.",
                why="One program at a time fetches into a shared clone.",
                fix="Wait for it to end.",
            )

        with locked_file(f"{path}.lock", wait=self.timeout, refusal=refusal):
            fresh = self._refresh(path, spec, report)
            head = _head_in(path, spec)
            if head is None and not fresh:
                # The branch may have been created since the last fetch.
                self._fetch(path, spec, report)
                head = _head_in(path, spec)
        if head is None:
            raise AdapterUnavailable(
                f"{hide_credentials(spec.url)} has no branch {spec.branch!r}.",
                why="A workspace starts at the head of a branch of the remote.",
                fix=Advice(
                    "Push the branch first, or leave branch= out for the default branch.",
                    "Push the branch first, or leave branch out of the team file for the default branch.",
                ),
            )
        return head

    def _refresh(self, path: str, spec: RepositorySpec, report: Progress) -> bool:
        """Make the clone, or bring one that is old forward. Returns whether the remote was contacted."""
        for left in Path(self.directory).glob(f"{os.path.basename(path)}.tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        if os.path.isdir(path):
            if self._age(path) < self.refetch_after:
                return False
            self._fetch(path, spec, report)
            return True
        building = f"{path}.tmp-{secrets.token_hex(4)}"
        report(spec.name, "clone")
        with whole_directory(path, building):
            _init_clone(building, spec.url, self._query(building, spec)[1])
            self._fetch(building, spec, lambda _name, _step: None)
        return True

    def _age(self, path: str) -> float:
        """Seconds since the last fetch; infinite if that is unknown or in the future (the clock was set back)."""
        text = read_text(os.path.join(path, _LAST_FETCH))
        try:
            age = self.now() - float(text or "nan")
        except ValueError:
            return float("inf")
        return age if age >= 0 else float("inf")

    def _fetch(self, path: str, spec: RepositorySpec, report: Progress) -> None:
        report(spec.name, "fetch")
        started = self.now()
        for pattern in _STALE:
            # The clone is locked, so the program that left these files is dead.
            for left in Path(path).rglob(pattern) if "/" not in pattern else Path(path).glob(pattern):
                with suppress(OSError):
                    left.unlink()
        default, format_, branches = self._query(path, spec)
        there = References(path, format_).below(_ORIGIN)
        if {name: id_ for name, id_ in there.items() if name != f"{_ORIGIN}HEAD"} != branches:
            # --prune removes references only, so that a branch renamed from `a` to `a/b` does not block the fetch. Objects always stay.
            self._git(["fetch", "-q", "--prune", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "origin"], path, spec)
        head = os.path.join(path, _ORIGIN, "HEAD")
        if default is None:
            with suppress(FileNotFoundError):
                os.unlink(head)
        else:
            os.makedirs(os.path.dirname(head), exist_ok=True)
            write_file(head, f"ref: {_ORIGIN}{default}\n".encode(errors="surrogateescape"))
        write_file(os.path.join(path, _LAST_FETCH), f"{started!r}\n".encode())

    def _query(self, path: str, spec: RepositorySpec) -> tuple[str | None, ObjectFormat, dict[str, str]]:
        """The remote's default branch, if it reports one; its object format (sha1 if it is empty); and its branches, by a clone's names."""
        remote = ["origin"] if os.path.isdir(path) else ["--", spec.url]
        listed = os.fsdecode(self._git(["ls-remote", "-q", "--symref", *remote, "HEAD", "refs/heads/*"], path, spec))
        default, format_ = None, SHA1
        branches: dict[str, str] = {}
        for line in listed.splitlines():
            value, _, name = line.partition("\t")
            if name == "HEAD" and value.startswith("ref: refs/heads/"):
                default = value.removeprefix("ref: refs/heads/")
                continue
            if len(value) == SHA256.hex_size:
                format_ = SHA256
            if name.startswith("refs/heads/") and not value.startswith("ref: "):
                branches[_ORIGIN + name.removeprefix("refs/heads/")] = value
        return default, format_, branches

    def _git(self, arguments: list[str], path: str, spec: RepositorySpec) -> bytes:
        environment = hermetic_env() | {"GIT_ALLOW_PROTOCOL": PROTOCOLS} | dict(self.environment)
        if os.path.isdir(path):
            environment["GIT_DIR"] = path
        try:
            return run_git(arguments, env=environment, timeout=self.timeout)
        except GitFailed as error:
            raise AdapterUnavailable(
                f"{hide_credentials(spec.url)} cannot be read: {hide_credentials(error.fact)}",
                why="A workspace starts from what the remote has; without it there is none.",
                fix="See that the address is right and the remote can be reached, then try again.",
            ) from None


def _head_in(clone: str, spec: RepositorySpec) -> _Head | None:
    """The branch that a workspace starts at; None if the clone lacks the requested branch."""
    format_ = clone_format(clone)
    refs = References(clone, format_).below(_ORIGIN)
    symbolic = read_text(os.path.join(clone, _ORIGIN, "HEAD"))
    default = symbolic.removeprefix(f"ref: {_ORIGIN}") if symbolic is not None else None
    branch = short_branch(spec.branch) if spec.branch is not None else default
    if branch is None:
        # An empty remote reports no default branch, nor does one whose HEAD points to a missing branch.
        branch = next((name for name in ("main", "master") if _ORIGIN + name in refs), "main")
    commit = refs.get(_ORIGIN + branch)
    if commit is None and spec.branch is not None and refs:
        return None
    return _Head(clone, branch, commit, format_, refs, default if default is not None and _ORIGIN + default in refs else None)


def _configuration(url: str, format_: ObjectFormat, *, bare: bool) -> bytes:
    lines = [
        f"[core]\n\trepositoryFormatVersion = {int(format_ is SHA256)}\n\tfileMode = true\n\tbare = {str(bare).lower()}",
        *(["[extensions]\n\tobjectFormat = sha256"] if format_ is SHA256 else []),
        f'[remote "origin"]\n\turl = {quote_config(url)}\n\tfetch = {_REFSPEC}',
        "[gc]\n\tauto = 0",
        # Workspaces use its objects, so not even a person's own `git gc` may delete one.
        f"\tpruneExpire = never\n{_OF_A_CLONE}" if bare else "[core]\n\tlogAllRefUpdates = true",
    ]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def _init_git_dir(git_dir: str, url: str, format_: ObjectFormat, *, bare: bool) -> None:
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info"):
        os.makedirs(os.path.join(git_dir, name))
    write_new(os.path.join(git_dir, "config"), _configuration(url, format_, bare=bare))


def _init_clone(path: str, url: str, format_: ObjectFormat) -> None:
    _init_git_dir(path, url, format_, bare=True)
    write_new(os.path.join(path, "HEAD"), b"ref: refs/heads/none\n")


def _checkout(path: str, spec: RepositorySpec, head: _Head, timeout: float) -> None:
    """Make a repository at ``path`` and check out its files."""
    git_dir = os.path.join(path, ".git")
    _init_git_dir(git_dir, spec.url, head.format, bare=False)
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
