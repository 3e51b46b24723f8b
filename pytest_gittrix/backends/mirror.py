"""The engine's own copy of a remote repository: a bare repository in a directory that nobody can take for the human's.

``<mirror>/repository`` holds objects, and one reference for each branch that was fetched, under a name that is no branch's, so that
nothing there can be promoted to by mistake. ``<mirror>/.git`` leads to what is none: who opens the directory as a local repository
is refused. One lock serialises all that is done in it, by threads and processes; a git program holds it too while it runs, so that whoever
gets it after a kill knows that no push of a dead engine is still under way. It must not know what a promotion is.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.backends.protocol import MIRROR
from pytest_gittrix.backends.transport import FETCH_COMMAND, GIT_SETTINGS, PUSH_COMMAND, GitResult, Transport
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.pack import install_pack
from pytest_gittrix.git.refs import temporary_prefix
from pytest_gittrix.os_level.files import read_text, write_file

if sys.platform != "win32":
    import fcntl

_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NOTE: Final = "remote"
_REPOSITORY: Final = "repository"
_LOCK: Final = "lock"
_GIT: Final = ".git"
_NONE: Final = "no-repository"
_REFUSED: Final = "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\topenWithRemoteDurable = true\n"
_OWN: Final = frozenset({_NOTE, _REPOSITORY, MIRROR, _LOCK, _GIT, _NONE})
_STALE: Final = ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*", "objects/tmp_*", "objects/??/tmp_obj_*", "gittrix-*-push")
_FIRST_NAP, _LONGEST_NAP = 0.0005, 0.02


@dataclass(frozen=True)
class Mirror:
    """The copy in one directory, which is made when it is first needed.

    Attributes:
        path: the directory.
        transport: how the remote is reached.
        sync: write what is kept through to the disk.
    """

    path: str
    transport: Transport
    sync: bool = True

    @property
    def repository(self) -> str:
        """The git directory of the copy."""
        return os.path.join(self.path, _REPOSITORY)

    @property
    def objects_dir(self) -> str:
        """Its objects."""
        return os.path.join(self.repository, "objects")

    # The remote itself -----------------------------------------------------------------------------------------------------------

    def list_refs(self, *refs: str) -> dict[str, str]:
        """References of the remote as they are now, each with its id: those of these full names, or every branch and tag.

        Raises:
            AuthFailed: the remote wants other credentials.
            AdapterUnavailable: it cannot be read.
        """
        self._prepare()
        what = ["--", self.transport.url, *refs] if refs else ["--heads", "--tags", "--", self.transport.url]
        answer = self._run(["ls-remote", "-q", "--refs", *what])
        if answer.status != 0:
            raise self.transport.read_error(answer)
        found = (line.split("\t", 1) for line in answer.stdout.splitlines() if "\t" in line)
        return {name: id_ for id_, name in found if _ID.fullmatch(id_) and (not refs or name in refs)}

    def head(self, ref: str) -> str | None:
        """Where a branch (full name) of the remote is now, with the commit and all it needs in the copy; None if there is no such branch.

        Raises:
            AuthFailed, AdapterUnavailable: as ``list_refs``.
        """
        id_ = self.list_refs(ref).get(ref)
        if id_ is None or self._fetched_commit(ref) == id_:
            return id_
        with self.lock() as held:
            self._initialise("sha256" if len(id_) == 64 else "sha1")
            self._sweep()
            refspec = f"+{ref}:{tracking_ref(ref)}"
            answer = self._run([*FETCH_COMMAND, "--", self.transport.url, refspec], {"GIT_DIR": self.repository}, held)
            if answer.status != 0:
                raise self.transport.read_error(answer)
            return self._fetched_commit(ref)

    def push(self, built: BuiltCommit, ref: str, expected: str | None, held: int) -> GitResult:
        """Offer a commit to the remote as the new head of a branch, provided that it is at ``expected`` there (None: is not there).

        The commit's objects are in a directory of their own meanwhile: what the remote refuses leaves nothing in the copy.

        Args:
            built: the commit.
            ref: full name of the branch.
            expected: where it must be.
            held: what ``lock`` gave.

        Raises:
            OSError: the disk refused.
        """
        self._sweep()
        directory = self._quarantine(built.id)
        try:
            os.makedirs(os.path.join(directory, "info"))
            write_file(os.path.join(directory, "info", "alternates"), os.fsencode(self.objects_dir) + b"\n")
            install_pack(directory, built.pack)
            lease = f"--force-with-lease={ref}:{expected or ''}"
            variables = {"GIT_DIR": self.repository, "GIT_OBJECT_DIRECTORY": directory}
            place = ["--", self.transport.url, f"{built.id}:{ref}"]
            answer = self._run([*PUSH_COMMAND, "--atomic", lease, *place], variables, held)
            if "does not support --atomic" in answer.stderr:
                answer = self._run([*PUSH_COMMAND, lease, *place], variables, held)  # one branch moves whole or not at all anyway
            return answer
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _run(self, arguments: list[str], variables: Mapping[str, str] | None = None, held: int | None = None) -> GitResult:
        settings = os.path.join(self.path, MIRROR)
        return self.transport.run(arguments, settings=settings, variables=variables, inherit_fds=() if held is None else (held,))

    # The copy --------------------------------------------------------------------------------------------------------------------

    def store(self, built: BuiltCommit, ref: str, held: int) -> None:
        """Take a commit that the remote has by now into the copy. Raises OSError: the disk refused; the next ``head`` fetches it."""
        install_pack(self.objects_dir, built.pack, sync=self.sync)
        self._run(["update-ref", tracking_ref(ref), built.id], {"GIT_DIR": self.repository}, held)

    def contains(self, head: str, commit: str) -> bool:
        """Whether a commit is ``head`` or among its ancestors (all parents followed), ``head`` being in the copy."""
        if not _ID.fullmatch(commit):
            return False
        known = run_git(["cat-file", "--batch-check"], env=self._local(), stdin=commit.encode() + b"\n")
        if b" commit " not in known:
            return False
        return not run_git(["rev-list", "--max-count=1", commit, f"^{head}"], env=self._local())

    def repair(self, commit: str) -> list[str]:
        """Remove what a killed ``push`` of a commit left in the copy; gives what was removed."""
        left = self._quarantine(commit)
        if not os.path.lexists(left):
            return []
        shutil.rmtree(left, ignore_errors=True)
        return [left]

    def _local(self) -> dict[str, str]:
        return hermetic_env() | {"GIT_DIR": self.repository}

    def _quarantine(self, commit: str) -> str:
        return os.path.join(self.repository, f"{temporary_prefix(commit)}push")

    def _fetched_commit(self, ref: str) -> str | None:
        text = read_text(os.path.join(self.repository, tracking_ref(ref)))
        return text if text is not None and _ID.fullmatch(text) else None

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Hold the copy; gives a descriptor by which a program that is started can hold it as well.

        Raises:
            AdapterUnavailable: somebody else holds it, and did not let go for as long as a git program may take.
        """
        self._prepare()
        path = os.path.join(self.path, _LOCK)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline, nap = time.monotonic() + self.transport.timeout + 1, _FIRST_NAP
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise AdapterUnavailable(
                        f"{path} is held by another program.",
                        why="A push may be under way, of another engine or of one that was killed; until it ends nobody knows what is in.",
                        fix="Wait for it to end. A program that a hook of the remote left running can hold it: end that one.",
                    )
                time.sleep(nap)
                nap = min(nap * 2, _LONGEST_NAP)
            yield descriptor
        finally:
            os.close(descriptor)

    def _prepare(self) -> None:
        """Make the directory, or see that it is a mirror of this remote."""
        directory, wanted = Path(self.path), f"{self.transport.url}\n"
        note = directory / _NOTE
        known = read_text(str(note)) or ""
        if known and known != self.transport.url:
            raise InvalidInput(
                f"{self.path} is the mirror of {known}, not of {self.transport.url}.",
                why="What was fetched from one repository says nothing of another.",
                fix="Give each remote a mirror= of its own.",
            )
        if known:
            return
        try:
            directory.mkdir(parents=True, exist_ok=True)
            strange = sorted({entry.name for entry in directory.iterdir() if not entry.name.startswith("tmp_")} - _OWN)
            if strange:
                raise InvalidInput(f"{self.path} holds {strange[0]!r}, so it cannot be made a mirror.", fix="Give an empty directory.")
            safe = "".join(f"[safe]\n\tdirectory = {_quoted(place)}\n" for place in self._local_places())
            write_file(str(directory / MIRROR), (GIT_SETTINGS + safe).encode(errors="surrogateescape"), sync=self.sync)
            (directory / _NONE).mkdir(exist_ok=True)
            write_file(str(directory / _NONE / "config"), _REFUSED.encode())
            write_file(str(directory / _GIT), f"gitdir: {_NONE}\n".encode())
            write_file(str(note), wanted.encode(errors="surrogateescape"), sync=self.sync)
        except OSError as problem:
            raise AdapterUnavailable(
                f"{self.path} cannot be made a mirror: {problem.strerror}.", fix="Give a directory that is yours to write, with space."
            ) from problem

    def _local_places(self) -> list[str]:
        """The directories that git may find the remote in, where it is on this machine: as named, and with ``.git``."""
        place = self.transport.local_path
        return [place, os.path.join(place, ".git"), f"{place}.git"] if place is not None else []

    def _initialise(self, format_name: str) -> None:
        if os.path.exists(os.path.join(self.repository, "gittrix-ready")):
            return
        run_git(["init", "-q", "--bare", "--template=", f"--object-format={format_name}", "--", self.repository])
        for name, value in (("core.hooksPath", os.devnull), ("core.fsync", "committed" if self.sync else "none")):
            run_git(["config", name, value], env=self._local())
        write_file(os.path.join(self.repository, "gittrix-ready"), b"")

    def _sweep(self) -> None:
        """Remove what a killed git, or a disk that refused, left in the copy. The lock is held, so nobody is at work."""
        for pattern in _STALE:
            for left in Path(self.repository).glob(pattern):
                with suppress(OSError):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()


def mirror_url(path: str | os.PathLike[str]) -> str | None:
    """The address of the remote that a directory is a mirror of; None if it is no mirror."""
    directory = os.fspath(path)
    return read_text(os.path.join(directory, _NOTE)) if os.path.isfile(os.path.join(directory, MIRROR)) else None


def tracking_ref(ref: str) -> str:
    """The copy's own reference for a branch: flat, so that ``a`` and ``a/b`` never stand in each other's way, and no branch."""
    return f"refs/gittrix/{hashlib.sha256(os.fsencode(ref)).hexdigest()[:40]}"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
