"""The engine's mirror of a remote repository: a bare repository, in a directory that cannot be opened as a local repository.

``<mirror>/repository`` holds objects, and one reference for each branch that was fetched. These references are not branches, so that
nothing can be promoted to them by mistake. ``<mirror>/.git`` points to an invalid repository, so git and the engine refuse to open the
directory. One lock serialises threads and processes. A git program that runs in the mirror holds the lock too: after a kill, the next owner
of the lock knows that no push of the dead engine is still running.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.backends.protocol import MIRROR
from pytest_gittrix.backends.transport import FETCH_COMMAND, GIT_SETTINGS, PUSH_COMMAND, GitResult, Transport
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.consolidation import consolidate, finish
from pytest_gittrix.git.environment import hermetic_env, quote_config, run_git
from pytest_gittrix.git.objects import object_format
from pytest_gittrix.git.pack import install_pack
from pytest_gittrix.git.refs import temporary_prefix
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.files import read_text, write_file

_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOTE: Final = "remote"
_REPOSITORY: Final = "repository"
_LOCK: Final = "lock"
_GIT: Final = ".git"
_INVALID: Final = "no-repository"
_INVALID_CONFIG: Final = "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\topenWithRemoteDurable = true\n"
_OWN: Final = frozenset({_NOTE, _REPOSITORY, MIRROR, _LOCK, _GIT, _INVALID})
_STALE: Final = ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*", "objects/tmp_*", "objects/??/tmp_obj_*", "gittrix-*-push")


@dataclass(frozen=True)
class RemoteMirror:
    """The mirror in one directory, which is made when it is first needed.

    Attributes:
        path: the directory.
        transport: runs git against the remote.
        sync: write what is stored through to the disk.
    """

    path: str
    transport: Transport
    sync: bool = True

    @property
    def repository(self) -> str:
        """The mirror's git directory."""
        return os.path.join(self.path, _REPOSITORY)

    @property
    def objects_dir(self) -> str:
        """The mirror's object directory."""
        return os.path.join(self.repository, "objects")

    # The remote itself -----------------------------------------------------------------------------------------------------------

    def list_refs(self, *refs: str) -> dict[str, str]:
        """Ask the remote for its references.

        Args:
            refs: full names of the references; every branch and tag without any.

        Returns:
            The id of each reference that exists, by full name.

        Raises:
            AuthFailed: the remote requires other credentials.
            AdapterUnavailable: the remote cannot be read.
        """
        self._prepare()
        patterns = ["--", self.transport.url, *refs] if refs else ["--heads", "--tags", "--", self.transport.url]
        result = self._run(["ls-remote", "-q", "--refs", *patterns])
        if result.status != 0:
            raise self.transport.read_error(result)
        listed = (line.split("\t", 1) for line in result.stdout.splitlines() if "\t" in line)
        return {name: id_ for id_, name in listed if _ID.fullmatch(id_) and (not refs or name in refs)}

    def head(self, ref: str) -> str | None:
        """Ask the remote for the head of a branch, and fetch the head into the mirror.

        Returns:
            The head, whose objects are all in the mirror; None if the remote has no such branch.

        Raises:
            AuthFailed, AdapterUnavailable: as ``list_refs``.
        """
        id_ = self.list_refs(ref).get(ref)
        if id_ is None or self._fetched_commit(ref) == id_:
            return id_
        with self.lock() as lock_fd:
            self._initialise(_format_of(id_))
            self._remove_stale_files()
            refspec = f"+{ref}:{tracking_ref(ref)}"
            result = self._run([*FETCH_COMMAND, "--", self.transport.url, refspec], {"GIT_DIR": self.repository}, lock_fd)
            if result.status != 0:
                raise self.transport.read_error(result)
            return self._fetched_commit(ref)

    def push(self, built: BuiltCommit, ref: str, expected: str | None, lock_fd: int) -> GitResult:
        """Push a commit to the remote as the new head of a branch, by compare-and-swap.

        During the push the commit's objects are in a quarantine directory, so that a rejected push leaves nothing in the mirror.

        Args:
            built: the commit.
            ref: full name of the branch.
            expected: the commit that the remote's branch must be at; None for a branch that must not exist.
            lock_fd: the descriptor that ``lock`` yielded.

        Returns:
            What git reported, for ``transport.parse_push``.

        Raises:
            OSError: the disk refused.
        """
        self._remove_stale_files()
        directory = self._quarantine(built.id)
        try:
            os.makedirs(os.path.join(directory, "info"))
            write_file(os.path.join(directory, "info", "alternates"), os.fsencode(self.objects_dir) + b"\n")
            install_pack(directory, built.pack)
            lease = f"--force-with-lease={ref}:{expected or ''}"
            variables = {"GIT_DIR": self.repository, "GIT_OBJECT_DIRECTORY": directory}
            target = ["--", self.transport.url, f"{built.id}:{ref}"]
            result = self._run([*PUSH_COMMAND, "--atomic", lease, *target], variables, lock_fd)
            if "does not support --atomic" in result.stderr:
                result = self._run([*PUSH_COMMAND, lease, *target], variables, lock_fd)  # a push of one branch is atomic anyway
            return result
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _run(self, arguments: list[str], variables: Mapping[str, str] | None = None, lock_fd: int | None = None) -> GitResult:
        settings = os.path.join(self.path, MIRROR)
        return self.transport.run(arguments, settings=settings, variables=variables, inherit_fds=() if lock_fd is None else (lock_fd,))

    # The mirror ------------------------------------------------------------------------------------------------------------------

    def store(self, built: BuiltCommit, ref: str, lock_fd: int) -> None:
        """Add a commit that the remote has accepted to the mirror. Raises OSError; the next ``head`` then fetches the commit."""
        install_pack(self.objects_dir, built.pack, sync=self.sync)
        self._run(["update-ref", tracking_ref(ref), built.id], {"GIT_DIR": self.repository}, lock_fd)
        consolidate(self.objects_dir, built.pack.name, built.format)

    def contains(self, head: str, commit: str) -> bool:
        """Whether a commit is ``head`` or one of its ancestors (through all parents). The mirror must have ``head``."""
        if not _ID.fullmatch(commit):
            return False
        kind = run_git(["cat-file", "--batch-check"], env=self._environment(), stdin=commit.encode() + b"\n")
        if b" commit " not in kind:
            return False
        return not run_git(["rev-list", "--max-count=1", commit, f"^{head}"], env=self._environment())

    def repair(self, commit: str, pack: str | None) -> list[str]:
        """Remove the remains of a killed ``push`` or ``store`` of a commit from the mirror. Returns the removed paths.

        Args:
            commit: its id.
            pack: the name of its pack, if it is known.
        """
        if pack is not None:
            finish(self.objects_dir, pack, object_format(_format_of(commit)))
        quarantine = self._quarantine(commit)
        if not os.path.lexists(quarantine):
            return []
        shutil.rmtree(quarantine, ignore_errors=True)
        return [quarantine]

    def _environment(self) -> dict[str, str]:
        return hermetic_env() | {"GIT_DIR": self.repository}

    def _quarantine(self, commit: str) -> str:
        return os.path.join(self.repository, f"{temporary_prefix(commit)}push")

    def _fetched_commit(self, ref: str) -> str | None:
        text = read_text(os.path.join(self.repository, tracking_ref(ref)))
        return text if text is not None and _ID.fullmatch(text) else None

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Lock the mirror. Yields the lock's descriptor, which a git program can inherit to hold the lock too.

        Raises:
            AdapterUnavailable: another owner held the lock for longer than one git program may take.
        """
        self._prepare()
        path = os.path.join(self.path, _LOCK)

        def refusal() -> AdapterUnavailable:
            return AdapterUnavailable(
                f"{path} is held by another program.",
                why="A push may be under way, of another engine or of one that was killed; until it ends the branch may still move.",
                fix="Wait for it to end. A program that a hook of the remote left running can hold the lock, too: end it.",
            )

        with locked_file(path, wait=self.transport.timeout + 1, refusal=refusal) as descriptor:
            yield descriptor

    def _prepare(self) -> None:
        """Make the directory, or verify that it is a mirror of this remote."""
        directory, url = Path(self.path), self.transport.url
        note = directory / _NOTE
        known = read_text(str(note)) or ""
        if known == url:
            return
        if known:
            raise InvalidInput(
                f"{self.path} is the mirror of {known}, not of {url}.",
                why="A mirror has the objects of one repository only.",
                fix="Give each remote a mirror= of its own.",
            )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            strange = sorted({entry.name for entry in directory.iterdir() if not entry.name.startswith("tmp_")} - _OWN)
            if strange:
                raise InvalidInput(f"{self.path} holds {strange[0]!r}, so it cannot be made a mirror.", fix="Give an empty directory.")
            safe = "".join(f"[safe]\n\tdirectory = {quote_config(path)}\n" for path in self._safe_directories())
            write_file(str(directory / MIRROR), (GIT_SETTINGS + safe).encode(errors="surrogateescape"), sync=self.sync)
            (directory / _INVALID).mkdir(exist_ok=True)
            write_file(str(directory / _INVALID / "config"), _INVALID_CONFIG.encode())
            write_file(str(directory / _GIT), f"gitdir: {_INVALID}\n".encode())
            write_file(str(note), f"{url}\n".encode(errors="surrogateescape"), sync=self.sync)
        except OSError as problem:
            raise AdapterUnavailable(
                f"{self.path} cannot be made a mirror: {problem.strerror}.", fix="Give a writable directory with free space."
            ) from problem

    def _safe_directories(self) -> list[str]:
        """The git directories that a remote on this machine may have: its path, and its path with ``.git``."""
        path = self.transport.local_path
        return [path, os.path.join(path, ".git"), f"{path}.git"] if path is not None else []

    def _initialise(self, format_name: str) -> None:
        if os.path.exists(os.path.join(self.repository, "gittrix-ready")):
            return
        run_git(["init", "-q", "--bare", "--template=", f"--object-format={format_name}", "--", self.repository])
        for name, value in (("core.hooksPath", os.devnull), ("core.fsync", "committed" if self.sync else "none")):
            run_git(["config", name, value], env=self._environment())
        write_file(os.path.join(self.repository, "gittrix-ready"), b"")

    def _remove_stale_files(self) -> None:
        """Remove the remains of a killed git or a full disk. The caller holds the lock, so no git is running in the mirror."""
        for pattern in _STALE:
            for path in Path(self.repository).glob(pattern):
                with suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def mirror_url(path: str | os.PathLike[str]) -> str | None:
    """The address of the remote that a directory mirrors; None if the directory is not a mirror."""
    directory = os.fspath(path)
    return read_text(os.path.join(directory, _NOTE)) if os.path.isfile(os.path.join(directory, MIRROR)) else None


def _format_of(id_: str) -> str:
    return "sha256" if len(id_) == 64 else "sha1"


def tracking_ref(ref: str) -> str:
    """The mirror's reference for a branch. The names are flat, so that ``a`` and ``a/b`` can exist together, and are not branches."""
    return f"refs/gittrix/{hashlib.sha256(os.fsencode(ref)).hexdigest()[:40]}"
