"""Remotes beside a world: bare repositories that are pushed to, and a forge over one, on the world's clock and gone with it.

What a remote does to pushes is in ``remotes``, what a forge does in ``forge_server``; this only makes them and clears them away. Must not
know pytest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.repos.cloned import clone_into
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.history import Contents, History, Step
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.repos.remote_repos import BareRemote

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Remotes:
    """Makes bare remotes of a world; calling it gives one more. Made by ``remotes``.

    Attributes:
        made: those that were made, in order.
    """

    def __init__(self, place: Place, held: ExitStack) -> None:
        self.made: list[BareRemote] = []
        self._place = place
        self._held = held

    def __call__(
        self,
        *,
        files: Contents | None = None,
        history: History | Iterable[Step | Contents] | None = None,
        name: str | None = None,
        branch: str | None = None,
    ) -> BareRemote:
        """Make a remote.

        Args:
            files: the contents of its one commit.
            history: its commits, instead of ``files``; without either it has the commits of the world's durable repository.
            name: of its directory, without ``.git``; ``remote``, ``remote-2`` and so on by default.
            branch: its branch; that of the world's durable repository by default.

        Raises:
            InvalidInput: the name cannot be one, or there is a remote of that name already.
        """
        number = len(self.made) + 1
        called = name if name is not None else "remote" if number == 1 else f"remote-{number}"
        if not _NAME.fullmatch(called):
            raise InvalidInput(f"name={called!r} is no name of a remote.", fix="Use letters, digits, '.', '_' and '-'.")
        place, path = self._place, self._place.path / "remotes" / f"{called}.git"
        path.parent.mkdir(exist_ok=True)
        on = branch if branch is not None else place.durable.branch
        when = place.clock.now
        if files is not None or history is not None:
            made = BareRemote.make(path, files=files, history=history, branch=on, epoch=when(), when=when, templates=place.templates)
        else:
            if path.exists():
                raise InvalidInput(f"{path} is there already.", fix="Give each remote a name of its own.")
            clone_into(place.durable.path, path, branch=on, bare=True, home=place.path / "home")
            made = BareRemote(path, on, when=when)
        self.made.append(made)
        self._held.callback(made.close)
        return made


@contextmanager
def remotes(place: Place) -> Iterator[Remotes]:
    """What makes remotes beside a world, in ``remotes`` of its directory; closed when the block ends."""
    with ExitStack() as held:
        yield Remotes(place, held)


@contextmanager
def forge_at(place: Place, **options: Any) -> Iterator[ForgeServer]:
    """A forge on this machine, over a remote with the commits of the world's durable repository.

    Args:
        place: the world.
        options: as for ``ForgeServer``, such as ``tokens`` and ``page``.
    """
    with remotes(place) as make, ForgeServer(make(name="forge"), when=place.clock.now, **options) as server:
        yield server
