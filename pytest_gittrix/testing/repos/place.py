"""A place for any session system: a durable repository, the people who write to it, and a clock in one hermetic directory.

A world is a place with the engine of this package in it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from pytest_gittrix.clock.clock import CLOCK_START, FrozenClock
from pytest_gittrix.clock.shown import for_programs
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.testing.repos.cloned import clone_into
from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
from pytest_gittrix.testing.repos.history import Contents, History, Step
from pytest_gittrix.testing.repos.journal import Journal
from pytest_gittrix.testing.repos.templates import Templates, shared_templates
from pytest_gittrix.workspaces.trash import Trash


class Place:
    """A durable repository, its people and a clock. Created by ``Place.open``; a context manager that closes it.

    Attributes:
        path: the directory of the place.
        durable: the repository in its owner's hands.
        rival: the same repository in a second person's hands.
        clock: the clock of all of them.
        home: the directory for the session system, which creates it.
        templates: the cache of prepared histories.
        directory: where the commands of the system run; durable, but for a block of ``called_from``.
        journal: what the system and the people did in the place, as far as a ``Stage`` or an engine writes it down.
    """

    def __init__(
        self, path: Path, *, durable: DurableRepo, rival: Rival, clock: FrozenClock, templates: Templates, closing: ExitStack
    ) -> None:
        self.path = path
        self.durable = durable
        self.rival = rival
        self.clock = clock
        self.home = path / "gittrix"
        self.templates = templates
        self.journal = Journal()
        self.directory = durable.path
        self._variables: Mapping[str, str] = {}
        clock.offer_file(path / "clock")
        self._closing = closing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        files: Contents | None = None,
        history: History | Iterable[Step | Contents] | None = None,
        repository: str | os.PathLike[str] | None = None,
        bare: bool = False,
        branch: str = "main",
        clock_start: datetime = CLOCK_START,
        object_format: str = "sha1",
        templates: Templates | None = None,
        clock: FrozenClock | None = None,
        separate_files: bool = True,
        keep: bool | None = None,
    ) -> Self:
        """Create a place. Its arguments and errors are those of ``World.open``."""
        branch_ref(branch)
        chosen = templates if templates is not None else shared_templates()
        with ExitStack() as closing:
            if clock is None:
                clock = FrozenClock(clock_start, separate_files=separate_files)
                closing.callback(clock.close)
            if repository is not None and (files is not None or history is not None):
                raise InvalidInput("A world was given a repository and its own files or history.", fix="Give one of them.")
            root = _directory(path)
            if not (path is not None if keep is None else keep):
                closing.callback(_throw_away, root)
            if repository is not None:
                clone_into(repository, root / "durable", branch=branch, bare=bare, home=root / "home")
            else:
                template = chosen.of(History.of(files, history), clock_start=clock.now(), object_format=object_format)
                template.materialise(root / "durable", branch=branch, bare=bare)
            durable = DurableRepo(root / "durable", branch, when=clock.now, home=root / "home")
            closing.callback(durable.close)
            with suppress(FileNotFoundError):  # the current directory was removed
                durable.run_from = Path.cwd()
            rival = closing.enter_context(durable.rival())
            return cls(root, durable=durable, rival=rival, clock=clock, templates=chosen, closing=closing.pop_all())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} at {self.clock.now().isoformat()}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing.__exit__(kind, error, trace)

    def close(self) -> None:
        """Close everything in the place and the clock, and remove the directory unless it is to stay. Closing again does nothing."""
        self._closing.close()

    @contextmanager
    def called_from(self, directory: Path, **variables: str) -> Iterator[None]:
        """A block in which the system is called from elsewhere: by commands in this directory, with these variables in ``env``."""
        before = self.directory, self._variables
        self.directory, self._variables = directory, variables
        try:
            yield
        finally:
            self.directory, self._variables = before

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of programs in the place: hermetic git, dates and clock file of its clock, and ``GITTRIX_HOME``.

        The dates are those of now: read it again when the clock has moved.
        """
        self.clock.require_file()
        own = self.clock.environment() | {"GITTRIX_HOME": str(self.home)}
        return MappingProxyType(for_programs(self.clock, hermetic_env(self.path / "home") | own | dict(self._variables)))


def _directory(path: str | os.PathLike[str] | None) -> Path:
    if path is None:
        return Path(os.path.realpath(tempfile.mkdtemp(prefix="gittrix-world-")))
    root = Path(os.path.realpath(path))
    root.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(root / "durable"):
        raise InvalidInput(
            f"{root} holds a durable repository already.",
            why="A world starts from its arguments alone.",
            fix="Give a directory of its own to each world.",
        )
    return root


def _throw_away(root: Path) -> None:
    directory = f"{root}.trash"
    trash = Trash(directory)
    trash.discard(str(root))
    trash.empty()
    with suppress(OSError):
        os.rmdir(directory)
