"""Creates remotes next to a world: bare repositories to push to, and a forge over one. On the world's clock, removed with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.repos.cloned import clone_into
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.history import Contents, History, Step
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.repos.remote_repos import BareRemote

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Remotes:
    """Creates bare remotes of a world; each call creates one more. Created by ``remotes``.

    Attributes:
        made: the remotes that were created, in order.
    """

    def __init__(self, place: Place, closing: ExitStack, durable: Callable[[], DurableRepo] | None = None) -> None:
        self.made: list[BareRemote] = []
        self._place = place
        self._durable = durable if durable is not None else lambda: place.durable
        self._closing = closing

    def __call__(
        self,
        *,
        files: Contents | None = None,
        history: History | Iterable[Step | Contents] | None = None,
        name: str | None = None,
        branch: str | None = None,
    ) -> BareRemote:
        """Create a remote.

        Args:
            files: the contents of its one commit.
            history: its commits, instead of ``files``; without either it has the commits of the durable repository.
            name: the name of its directory, without ``.git``; ``remote``, ``remote-2`` and so on by default.
            branch: its branch; that of the durable repository by default.

        Raises:
            InvalidInput: the name is not allowed, or there is a remote of that name already.
        """
        number = len(self.made) + 1
        chosen = name if name is not None else "remote" if number == 1 else f"remote-{number}"
        if not _NAME.fullmatch(chosen):
            raise InvalidInput(f"name={chosen!r} is no name of a remote.", fix="Use letters, digits, '.', '_' and '-'.")
        place, path = self._place, self._place.path / "remotes" / f"{chosen}.git"
        path.parent.mkdir(exist_ok=True)
        when = place.clock.now
        if files is not None or history is not None:
            on = branch if branch is not None else place.durable.branch
            made = BareRemote.make(path, files=files, history=history, branch=on, clock_start=when(), when=when, templates=place.templates)
        else:
            if path.exists():
                raise InvalidInput(f"{path} is there already.", fix="Give each remote a name of its own.")
            durable = self._durable()
            on = branch if branch is not None else durable.branch
            clone_into(durable.path, path, branch=on, bare=True, home=place.path / "home")
            made = BareRemote(path, on, when=when)
        self.made.append(made)
        self._closing.callback(made.close)
        return made


@contextmanager
def remotes(place: Place, durable: Callable[[], DurableRepo] | None = None) -> Iterator[Remotes]:
    """Give a creator of remotes next to a world, in ``remotes`` of its directory. They are closed when the block ends.

    Args:
        place: the world.
        durable: returns the repository whose commits a remote without ``files`` has; the world's by default.
    """
    with ExitStack() as closing:
        yield Remotes(place, closing, durable)


@contextmanager
def forge_at(place: Place, **options: Any) -> Iterator[ForgeServer]:
    """Serve a forge on this machine, over a remote with the commits of the world's durable repository.

    Args:
        place: the world.
        options: as for ``ForgeServer``, such as ``tokens`` and ``page``.
    """
    with remotes(place) as make, ForgeServer(make(name="forge"), when=place.clock.now, **options) as server:
        yield server
