"""Bare remotes that do what remotes do: refuse by a hook, move on meanwhile, be read-only, take their time.

A remote is a real repository that only real git serves; what it does to a push is done by its own hooks and configuration. Must not
know pytest, nor what pushes to it.
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

from pytest_gittrix.clock.clock import EPOCH
from pytest_gittrix.errors import Deadlock, InvalidInput
from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
from pytest_gittrix.testing.repos.history import Contents, History, Step
from pytest_gittrix.testing.repos.templates import Templates, shared_templates

Hook = Literal["pre-receive", "update", "post-receive"]

_HOOKS: Final = ("pre-receive", "update", "post-receive")
_LEFT: Final = ("*.lock", "*.keep", "tmp_*", "incoming-*", "quarantine-*")
_LOOK: Final = 0.01


class BareRemote:
    """A bare repository that others push to. Use ``BareRemote.make``; close it, or use it as a context manager.

    Attributes:
        path: the repository.
        url: its ``file://`` address.
        repo: the repository as its owner holds it: commits made through it pass no hook.
        rival: the same, as somebody else does.
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
        epoch: datetime = EPOCH,
        when: Callable[[], datetime] | None = None,
        object_format: str = "sha1",
        templates: Templates | None = None,
    ) -> Self:
        """Make a remote.

        Args:
            path: its directory, which is not there yet.
            files: the contents of its one commit; see ``History.of``.
            history: its commits, instead of ``files``.
            branch: its branch.
            epoch: when its last commit was made, less one minute.
            when: gives the instant of commits made later; the epoch by default.
            object_format: ``sha1`` or ``sha256``.
            templates: where prepared histories are remembered; those of this process by default.

        Raises:
            InvalidInput: something is at ``path`` already.
        """
        if os.path.lexists(path):
            raise InvalidInput(f"{os.fspath(path)} is there already.", fix="Give each remote a directory of its own.")
        used = templates if templates is not None else shared_templates()
        template = used.of(History.of(files, history), epoch=epoch, object_format=object_format)
        template.materialise(path, branch=branch, bare=True)
        return cls(path, branch, when=when if when is not None else lambda: epoch)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}#{self.repo.branch}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give back descriptors and processes; a later call opens them again."""
        self.repo.close()
        self.rival.close()

    # What it does to pushes ------------------------------------------------------------------------------------------------------

    def reject(self, words: str = "not today", *, hook: Hook = "pre-receive") -> None:
        """Have a hook refuse every push from now on, with these words."""
        self.hook(hook, f"echo {shlex.quote(words)} >&2\nexit 1\n")

    def read_only(self) -> None:
        """Take no push any more: over HTTP by status 403, otherwise by a hook that says so."""
        self.repo.git("config", "http.receivepack", "false")
        self.reject("this repository is read-only")

    def slow(self, seconds: float) -> None:
        """Have every push wait before it is taken."""
        self.hook("pre-receive", f"exec sleep {seconds:f}\n")

    def accept(self) -> None:
        """Take pushes again: no hook, not read-only."""
        for name in _HOOKS:
            (self.path / "hooks" / name).unlink(missing_ok=True)
        self.repo.git("config", "--replace-all", "http.receivepack", "true")

    def hook(self, name: Hook, script: str) -> None:
        """Put a shell script in a hook's place; it runs in the repository, at each push."""
        if name not in _HOOKS:
            raise InvalidInput(f"{name!r} is no hook of a push.", fix=f"Use one of: {', '.join(_HOOKS)}.")
        directory = self.path / "hooks"
        directory.mkdir(exist_ok=True)
        made = directory / f"{name}.new"
        made.write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
        made.chmod(0o755)
        made.rename(directory / name)

    @contextmanager
    def held(self, hook: Hook = "pre-receive") -> Iterator[HeldPushes]:
        """Have pushes wait in a hook, for as long as the block lasts or until they are let go.

        Args:
            hook: where: in ``pre-receive`` before the branch moves, in ``post-receive`` after.
        """
        place = self.path / "held"
        place.mkdir()
        self.hook(hook, f"echo $$ >held/new.$$\nmv held/new.$$ held/$$\nwhile [ ! -e held/go ] && [ -e held ]; do sleep {_LOOK}; done\n")
        held = HeldPushes(place)
        try:
            yield held
        finally:
            held.release()
            (self.path / "hooks" / hook).unlink(missing_ok=True)
            for left in place.iterdir():
                left.unlink()
            place.rmdir()

    # What happens to it meanwhile --------------------------------------------------------------------------------------------------

    def diverge(self, changes: Contents | None = None, *, branch: str | None = None) -> str:
        """Have somebody else commit to its branch; gives the commit.

        Args:
            changes: contents by path; one file that nobody else has, by default.
            branch: the branch; its own by default.
        """
        return self.rival.commit(changes if changes is not None else {"rival.txt": "somebody else was here\n"}, branch=branch)

    def rewrite(self, changes: Contents | None = None) -> str:
        """Have somebody else replace the last commit of its branch by another one, as a forced push does; gives the new one."""
        parents = self.repo.log()[0].parents
        if not parents:
            raise InvalidInput(f"{self.url} has one commit only.", fix="Give it a history of two or more to rewrite.")
        self.rival.rewind(parents[0])
        return self.diverge(changes)

    def leftovers(self) -> list[str]:
        """Locks, shields and half-received objects below its directory; a push that ended leaves none."""
        found = {path for pattern in _LEFT for path in self.path.rglob(pattern)}
        return sorted(str(path.relative_to(self.path)) for path in found)


class HeldPushes:
    """Pushes that wait in a hook of a remote; see ``BareRemote.held``."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def wait(self, timeout: float = 30.0) -> None:
        """Wait until a push has come to the hook.

        Raises:
            Deadlock: none came in ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self._waiting():
            if time.monotonic() > deadline:
                raise Deadlock(
                    f"No push came to the hook of {self._place.parent} in {timeout:g} s.", fix="See that something pushes to it."
                )
            time.sleep(_LOOK)

    def release(self) -> None:
        """Let all that wait go on, and all that come."""
        (self._place / "go").touch()

    def kill(self) -> None:
        """Kill the hooks that wait, as a remote that crashes does: what they held does not land."""
        for pid in self._waiting():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _waiting(self) -> list[int]:
        return [int(path.name) for path in self._place.iterdir() if path.name.isdigit()]
