"""Bare remotes that behave as remotes do: they refuse a push by a hook, move meanwhile, are read-only, or are slow.

A remote is a real repository that only real git serves; its own hooks and configuration decide about a push.
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from pytest_gittrix.clock.clock import CLOCK_START
from pytest_gittrix.errors import Deadlock, InvalidInput
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
from pytest_gittrix.testing.repos.history import Contents, History, Step
from pytest_gittrix.testing.repos.templates import Templates, shared_templates

Hook = Literal["pre-receive", "update", "post-receive"]

_HOOKS: Final = ("pre-receive", "update", "post-receive")
_LEFT: Final = ("*.lock", "*.keep", "tmp_*", "incoming-*", "quarantine-*")
_POLL: Final = 0.01  # seconds


class BareRemote:
    """A bare repository that others push to. Use ``BareRemote.make``; close it, or use it as a context manager.

    Attributes:
        path: the repository.
        url: its ``file://`` address.
        repo: the repository in its owner's hands: commits made through it run no hook.
        rival: the same repository in a second person's hands.
    """

    def __init__(self, path: str | os.PathLike[str], branch: str = "main", *, when: Callable[[], datetime] | None = None) -> None:
        self.repo = DurableRepo(path, branch, when=when)
        self.rival = Rival(path, branch, when=when)
        self.path = self.repo.path
        self.url = self.path.as_uri()

    @classmethod
    def make(
        cls,
        path: str | os.PathLike[str],
        *,
        files: Contents | None = None,
        history: History | Iterable[Step | Contents] | None = None,
        branch: str = "main",
        clock_start: datetime = CLOCK_START,
        when: Callable[[], datetime] | None = None,
        object_format: str = "sha1",
        templates: Templates | None = None,
    ) -> Self:
        """Create a remote.

        Args:
            path: its directory, which must not exist.
            files: the contents of its one commit; see ``History.of``.
            history: its commits, instead of ``files``.
            branch: its branch.
            clock_start: when its last commit was made, less one minute.
            when: returns the instant of later commits; ``clock_start`` by default.
            object_format: ``sha1`` or ``sha256``.
            templates: the cache of prepared histories; that of this process by default.

        Raises:
            InvalidInput: ``path`` exists already.
        """
        if os.path.lexists(path):
            raise InvalidInput(f"{os.fspath(path)} is there already.", fix="Give each remote a directory of its own.")
        used = templates if templates is not None else shared_templates()
        template = used.of(History.of(files, history), clock_start=clock_start, object_format=object_format)
        template.materialise(path, branch=branch, bare=True)
        return cls(path, branch, when=when if when is not None else lambda: clock_start)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}#{self.repo.branch}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close descriptors and end processes; a later call opens them again."""
        self.repo.close()
        self.rival.close()

    # What it does to pushes ------------------------------------------------------------------------------------------------------

    def reject(self, message: str = "not today", *, hook: Hook = "pre-receive") -> None:
        """Refuse every push from now on, by a hook that prints a message."""
        self.hook(hook, f"echo {shlex.quote(message)} >&2\nexit 1\n")

    def read_only(self) -> None:
        """Refuse every push from now on: over HTTP with status 403, otherwise by a hook that gives the reason."""
        self.repo.git("config", "http.receivepack", "false")
        self.reject("this repository is read-only")

    def slow(self, seconds: float) -> None:
        """Delay every push by so many seconds."""
        self.hook("pre-receive", f"exec sleep {seconds:f}\n")

    def accept(self) -> None:
        """Accept pushes again: remove all hooks and the read-only setting."""
        for name in _HOOKS:
            (self.path / "hooks" / name).unlink(missing_ok=True)
        self.repo.git("config", "--replace-all", "http.receivepack", "true")

    def hook(self, name: Hook, script: str) -> None:
        """Install a shell script as a hook; it runs in the repository at each push."""
        if name not in _HOOKS:
            raise InvalidInput(f"{name!r} is no hook of a push.", fix=f"Use one of: {', '.join(_HOOKS)}.")
        directory = self.path / "hooks"
        directory.mkdir(exist_ok=True)
        write_file(directory / name, f"#!/bin/sh\n{script}".encode(), mode=0o755, prefix=f"{name}.new-")

    @contextmanager
    def held(self, hook: Hook = "pre-receive") -> Iterator[HeldPushes]:
        """Hold pushes in a hook until the block ends or they are released.

        Args:
            hook: the hook: ``pre-receive`` runs before the branch moves, ``post-receive`` after.
        """
        directory = self.path / "held"
        directory.mkdir()
        self.hook(hook, f"echo $$ >held/new.$$\nmv held/new.$$ held/$$\nwhile [ ! -e held/go ] && [ -e held ]; do sleep {_POLL}; done\n")
        held = HeldPushes(directory)
        try:
            yield held
        finally:
            held.release()
            (self.path / "hooks" / hook).unlink(missing_ok=True)
            for left in directory.iterdir():
                left.unlink()
            directory.rmdir()

    # What happens to it meanwhile --------------------------------------------------------------------------------------------------

    def diverge(self, changes: Contents | None = None, *, branch: str | None = None) -> str:
        """Commit to its branch as a second person; return the commit.

        Args:
            changes: contents by path; one new file by default.
            branch: the branch; its own by default.
        """
        return self.rival.commit(changes if changes is not None else {"rival.txt": "somebody else was here\n"}, branch=branch)

    def rewrite(self, changes: Contents | None = None) -> str:
        """Replace the last commit of its branch as a second person, as a forced push does; return the new commit."""
        parents = self.repo.log()[0].parents
        if not parents:
            raise InvalidInput(f"{self.url} has one commit only.", fix="Give it a history of two or more to rewrite.")
        self.rival.rewind(parents[0])
        return self.diverge(changes)

    def leftovers(self) -> list[str]:
        """List locks, ``.keep`` files and half-received objects below its directory; a push that ended leaves none."""
        found = {path for pattern in _LEFT for path in self.path.rglob(pattern)}
        return sorted(str(path.relative_to(self.path)) for path in found)


class HeldPushes:
    """Pushes that wait in a hook of a remote; see ``BareRemote.held``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def wait(self, timeout: float = 30.0) -> None:
        """Wait until a push has reached the hook.

        Raises:
            Deadlock: none did in ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self._waiting():
            if time.monotonic() > deadline:
                raise Deadlock(f"No push came to the hook of {self._directory.parent} in {timeout:g} s.", fix="Push to it, or wait longer.")
            time.sleep(_POLL)

    def release(self) -> None:
        """Let the held pushes go on, and all later ones."""
        (self._directory / "go").touch()

    def kill(self) -> None:
        """Kill the waiting hooks, as a remote that crashes does: the held pushes do not land."""
        for pid in self._waiting():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _waiting(self) -> list[int]:
        return [int(path.name) for path in self._directory.iterdir() if path.name.isdigit()]
