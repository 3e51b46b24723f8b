"""The durable repository in a test: what a person does with it, what assertions read of it, and a second person to race against.

Everything is read from the repository itself, never through the system under test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self

from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.clock.propagation import git_dates
from pytest_gittrix.durations import ns_of
from pytest_gittrix.errors import CapabilityMissing, DurableLocked, GittrixError, InvalidInput, WorktreeDirty, first_few
from pytest_gittrix.git.commit import BuiltCommit, Commit, Signature, build_commit
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.refs import RefMoved, branch_ref
from pytest_gittrix.git.repository import Repository, require_head
from pytest_gittrix.git.tree import EXECUTABLE, SUBMODULE, SYMLINK, Changes, Entry, TreeClash, entry_at
from pytest_gittrix.git.worktree.checkout_update import LockedCheckout, lock_checkout
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.testing.repos.checkout_watch import CheckoutWatch
from pytest_gittrix.testing.repos.fingerprint import Fingerprint
from pytest_gittrix.testing.repos.history import Contents, check_fit, resolve
from pytest_gittrix.testing.repos.templates import HUMAN

if TYPE_CHECKING:
    from git import Repo

RIVAL: Final = ("Rival", "rival@example.com")
"""Name and address of the second person."""

_ATTEMPTS: Final = 1000
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NAMED: Final = 3


class DurableRepo:
    """A repository that a person works in. Close it, or use it as a context manager.

    Every method that names a branch or a path may raise ``InvalidInput`` (no such branch, a content that is not allowed) and
    ``WriteRejected`` (a name that may not be written).

    Args:
        path: root of its main work tree, or a bare repository.
        branch: the default branch of the methods below.
        when: returns the instant of commits, aware; the real time by default.
        home: HOME of the git programs; a directory of this process by default.

    Attributes:
        path: as given, absolute.
        branch: as given.
        run_from: the directory that the test run was started in, if ``unchanged`` is to watch the checkout there; None for no other.
    """

    person: ClassVar[tuple[str, str]] = HUMAN
    """Name and address on this person's commits."""

    _in_checkout: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        branch: str = "main",
        *,
        when: Callable[[], datetime] | None = None,
        home: Path | None = None,
    ) -> None:
        branch_ref(branch)
        self.path = Path(os.path.abspath(path))
        self.branch = branch
        self.run_from: Path | None = None
        self._when = when if when is not None else SystemClock().now
        self._home = home
        self._repo: Repo | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}#{self.branch}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close descriptors and end processes; a later call opens them again."""
        self._forget()
        if self._repo is not None:
            self._repo.close()
            self._repo = None

    # Looking -------------------------------------------------------------------------------------------------------------------

    def head(self, branch: str | None = None) -> str:
        """Return the commit that a branch is at."""
        return require_head(self._repository, branch_ref(branch or self.branch))

    def read(self, path: str, at: str | None = None) -> bytes:
        """Return the bytes of a file, or the target of a symbolic link.

        Args:
            path: the file.
            at: a commit id or a branch; this repository's branch by default.

        Raises:
            PathNotFound: there is no file.
        """
        return self._repository.read(path, self._commit_of(at))

    def entry(self, path: str, at: str | None = None) -> Entry | None:
        """Return the entry at a path (mode and id), or None. ``at`` as for ``read``."""
        return self._entry(self._repository.tree(self._commit_of(at)), path)

    def tree(self, at: str | None = None) -> Mapping[str, Entry]:
        """Return the entries of a commit, by path. ``at`` as for ``read``."""
        return self._repository.entries(self._commit_of(at))

    def log(self, at: str | None = None) -> list[Commit]:
        """Return the commits, newest first, along first parents. ``at`` as for ``read``."""
        return list(self._repository.log(self._commit_of(at)))

    def fingerprint(self, *, objects: bool = False) -> Fingerprint:
        """Return the state of the repository as one value to compare; see ``Fingerprint.of``."""
        return Fingerprint.of(self.path, objects=objects)

    @contextmanager
    def unchanged(self, *, objects: bool = False, elsewhere: bool = True) -> Iterator[Fingerprint]:
        """Check that the block changes nothing: references, HEAD, configuration, hooks, stash, reflogs, index, work tree bytes.

        It is checked also when the block raises, so that a refusal which left something behind does not go unnoticed.

        Args:
            objects: check the object database too.
            elsewhere: check also that HEAD, its branch and the index are as before in the checkout that the test run was started in.

        Raises:
            AssertionError: something changed; the message has a line for each difference.
        """
        before = self.fingerprint(objects=objects)
        watch = self._watch_elsewhere() if elsewhere else None
        with nullcontext() if watch is None else watch:
            try:
                yield before
            finally:
                differences = before.diff(self.fingerprint(objects=objects))
                found = ["\n  ".join([f"{self.path} changed:", *differences])] if differences else []
                if watch is not None and (lines := watch.changes()):
                    found.append(_changed_elsewhere(watch.root, lines))
                if found:
                    raise AssertionError("\n".join(found))

    def _watch_elsewhere(self) -> CheckoutWatch | None:
        """The watch of the checkout that the run was started in, unless it is of this repository, which is compared whole."""
        watch = None if self.run_from is None else CheckoutWatch.around(self.run_from)
        if watch is None or not Path(os.path.realpath(watch.common_dir)).is_relative_to(os.path.realpath(self.path)):
            return watch
        watch.close()
        return None

    @property
    def repo(self) -> Repo:
        """A GitPython ``Repo`` of the repository, opened when it is first used. The programs that its ``.git`` runs are hermetic."""
        from git import Repo

        if self._repo is None:
            self._repo = Repo(self.path, expand_vars=False)
        self._repo.git.update_environment(**self._environment())
        return self._repo

    def rival(self) -> Rival:
        """Return a second person who writes to this repository, at the same instants. Close it, or use it as a context manager."""
        rival = Rival(self.path, self.branch, when=self._when, home=self._home)
        rival.run_from = self.run_from
        return rival

    # Committing ----------------------------------------------------------------------------------------------------------------

    def commit(
        self,
        changes: Contents,
        message: str | None = None,
        *,
        branch: str | None = None,
        author: tuple[str, str] | None = None,
        worktree: bool | None = None,
    ) -> str:
        """Commit to a branch, on top of its head at that moment; no commit of another writer is ever lost.

        Args:
            changes: contents by path, None to delete. Other paths stay as they are; ``{}`` makes an empty commit.
            message: the commit message; one that names the paths by default.
            branch: the branch; ``self.branch`` by default.
            author: name and address of the author; this person by default.
            worktree: whether a checkout of the branch is updated, as by a commit made there; one in which one of the paths is not clean
                stays as it is. By default it is for the owner and not for a rival.

        Returns:
            The new commit's id.
        """
        resolved, blobs = resolve(changes, self._repository.format)
        text = message if message is not None else _default_message(resolved)
        for _ in range(_ATTEMPTS):
            built = self._built(self.head(branch), resolved, blobs, text, author)
            with suppress(RefMoved):
                self._land(branch or self.branch, built, resolved, text.partition("\n")[0], self._updates_checkout(worktree))
                return built.id
        raise DurableLocked(f"{branch or self.branch} moved {_ATTEMPTS} times while a commit was made.", stage="apply")

    def rename(self, a: str, b: str, message: str | None = None, *, branch: str | None = None, worktree: bool | None = None) -> str:
        """Commit a rename that keeps contents and kind; a file at ``b`` is replaced. Arguments and result as for ``commit``."""
        entry = self.entry(a, branch)
        if entry is None:
            raise InvalidInput(f"{a!r} cannot be renamed: there is no file there.", fix=f"Files there: {', '.join(self.tree(branch))}.")
        return self.commit({a: None, b: entry}, message or f"Rename {a} to {b}", branch=branch, worktree=worktree)

    def rewind(self, sha: str, *, branch: str | None = None, worktree: bool | None = None) -> None:
        """Move a branch to any commit, as ``git reset --hard`` or a forced push does.

        A checkout that is updated loses its uncommitted changes.

        Args:
            sha: the commit.
            branch: the branch; ``self.branch`` by default.
            worktree: whether checkouts of the branch are updated, as for ``commit``.

        Raises:
            MissingObject: there is no such commit.
        """
        name = branch or self.branch
        target = self._repository.commit(self._commit_of(sha)).id
        self.git("update-ref", "-m", f"rewind: to {target}", branch_ref(name), target, self.head(name))
        environment = self._environment()
        environment.pop("GIT_DIR", None)
        for checkout in self._repository.checkouts() if self._updates_checkout(worktree) else ():
            if checkout.branch == branch_ref(name) and os.path.isdir(checkout.path):
                run_git(["reset", "-q", "--hard"], cwd=Path(checkout.path), env=environment)

    # The work tree -------------------------------------------------------------------------------------------------------------

    def dirty(self, changes: Contents) -> None:
        """Change files of the work tree without staging or committing them.

        Args:
            changes: contents by path, None to remove the file. An executable file that is overwritten stays executable.

        Raises:
            CapabilityMissing: the repository is bare.
        """
        self._write(changes)

    def stage(self, changes: Contents) -> None:
        """Change files of the work tree and stage them, as ``git add`` does. Arguments and errors as for ``dirty``."""
        resolved = self._write(changes)
        pointers = {path: entry for path, entry in resolved.items() if entry is not None and entry.mode == SUBMODULE}
        for path, entry in pointers.items():
            self.git("update-index", "--add", "--replace", "--cacheinfo", f"{entry.mode:o},{entry.id},{path}")
        names = b"".join(os.fsencode(path) + b"\0" for path in resolved if path not in pointers)
        self.git("update-index", "--add", "--remove", "--replace", "-z", "--stdin", input=names)

    def git(self, *arguments: str, input: str | bytes | None = None) -> str:
        """Run git in the repository as this person, hermetic, at the instant of the clock.

        Args:
            arguments: the command line after ``git``.
            input: its standard input.

        Returns:
            Its standard output without trailing newlines, as the shell's ``$(...)`` gives it.

        Raises:
            GitFailed: it failed; the message has its error output.
        """
        try:
            output = run_git(arguments, cwd=self.path, env=self._environment(), stdin=os.fsencode(input) if input is not None else None)
        finally:
            self._forget()
        return os.fsdecode(output).rstrip("\n")

    # Parts ---------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _repository(self) -> Repository:
        return Repository.open(self.path)

    def _forget(self) -> None:
        """Drop what is cached of the repository, since git may have repacked, pruned or reconfigured it."""
        repository = self.__dict__.pop("_repository", None)
        if repository is not None:
            repository.close()

    def _commit_of(self, at: str | None) -> str:
        return at if at is not None and _COMMIT_ID.fullmatch(at) else self.head(at)

    def _entry(self, tree: str, path: str) -> Entry | None:
        return entry_at(self._repository.trees.read, tree, path)

    def _seconds(self) -> int:
        return ns_of(self._when()) // 10**9

    def _environment(self) -> dict[str, str]:
        name, email = self.person
        people = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in (("NAME", name), ("EMAIL", email))}
        git_dir = {} if (self.path / ".git").exists() else {"GIT_DIR": str(self.path)}
        return hermetic_env(self._home) | git_dates(ns_of(self._when())) | people | git_dir

    def _built(self, head: str, changes: Changes, blobs: Mapping[str, bytes], message: str, author: tuple[str, str] | None) -> BuiltCommit:
        repository = self._repository
        tree = repository.tree(head)
        check_fit(changes, partial(self._entry, tree), lambda id_: id_ in blobs or repository.objects.read(id_)[0] == "blob")
        seconds = self._seconds()
        try:
            return build_commit(
                repository.trees.read,
                tree,
                changes,
                blobs,
                parent=head,
                author=Signature(*(author or self.person), seconds),
                committer=Signature(*self.person, seconds),
                message=message,
                format_=repository.format,
            )
        except TreeClash as clash:
            raise InvalidInput(
                f"The commit does not fit on {head}: {clash}.",
                why="Git holds a file or a directory at a path, not both.",
                fix="Delete the one (None) in the same commit.",
            ) from clash

    def _updates_checkout(self, worktree: bool | None) -> bool:
        return self._in_checkout if worktree is None else worktree

    def _land(self, branch: str, built: BuiltCommit, changes: Changes, subject: str, worktree: bool) -> None:
        signature = Signature(*self.person, self._seconds())
        ref = branch_ref(branch)
        with ExitStack() as locks:
            checkouts = self._lock_checkouts(ref, built, changes, locks) if worktree else []
            self._repository.land(ref, built, signature=signature, note=f"commit: {subject}", keep="commit", expected=built.parent)
            for checkout in checkouts:
                checkout.update()

    def _lock_checkouts(self, ref: str, built: BuiltCommit, changes: Changes, locks: ExitStack) -> list[LockedCheckout]:
        """Lock the checkouts of a branch that are clean at the changed paths; return none if one is not."""
        repository = self._repository
        assert built.parent is not None
        parent = repository.tree(built.parent)
        sides = {path: (self._entry(parent, path), entry) for path, entry in changes.items()}
        try:
            return [
                locks.enter_context(lock_checkout(checkout, repository.format, sides, repository.blob, token=built.id))
                for checkout in repository.checkouts()
                if checkout.branch == ref and os.path.isdir(checkout.path)
            ]
        except WorktreeDirty:
            locks.close()
            return []

    def _write(self, changes: Contents) -> Changes:
        if not (self.path / ".git").exists():
            raise CapabilityMissing(
                f"{self.path} is bare.", why="It has no work tree to change.", fix="Use commit(), or a repository that is not bare."
            )
        resolved, blobs = resolve(changes, self._repository.format)
        with SafeDir.open(self.path) as files:
            # Deletions first: a file may become a directory, or the reverse.
            for path, entry in sorted(resolved.items(), key=lambda item: item[1] is not None):
                if entry is None:
                    if not files.delete(path):
                        raise InvalidInput(f"{path!r} cannot be removed: it is not in the work tree.", fix="Name a file that is there.")
                elif entry.mode == SUBMODULE:
                    os.makedirs(self.path / path, exist_ok=True)
                else:
                    data = blobs[entry.id] if entry.id in blobs else self._repository.blob(entry.id)
                    _put(files, path, entry.mode, data)
        return resolved


class Rival(DurableRepo):
    """A second person who writes to the same repository from elsewhere: a work tree is updated only on request."""

    person = RIVAL
    _in_checkout = False


def _changed_elsewhere(root: str, lines: list[str]) -> str:
    return str(
        GittrixError(
            "\n  ".join([f"{root}, where this test run was started, changed:", *lines]),
            why="Nothing in a world works there: a program of this test found that repository, and what it changed is there for good.",
            fix="Start programs in workspace_path (cwd=), or by session.run; git's reflog has what HEAD was at. If a person or another "
            "program did it meanwhile, run the test again.",
            opt_out="unchanged(elsewhere=False) watches the durable repository alone.",
        )
    )


def _put(files: SafeDir, path: str, mode: int, data: bytes) -> None:
    if mode == SYMLINK:
        files.make_link(path, data)
    else:
        files.write(path, data, executable=mode == EXECUTABLE or None)


def _default_message(changes: Changes) -> str:
    return f"Change {first_few(changes, _NAMED) or 'nothing'}"
