"""A remote that sessions start from, with an engine on it, behind ``file://`` or HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from support.engine import FILES, Content, DurableGit, Site, open_site

from pytest_gittrix.backends.remote import RemoteDurable
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote

Wire = Literal["file", "http"]
WIRES: tuple[Wire, ...] = ("file", "http")
TOKEN = "hush-0123456789"
AUTHOR = ("Human", "human@example.com")


@dataclass
class Far:
    """A site whose durable repository is a bare remote, reached over a wire.

    Attributes:
        site: engines and sessions.
        remote: the remote, and what it does to pushes.
        forge: what serves it over HTTP; None for ``file://``.
        url: its address, without credentials.
    """

    site: Site
    remote: BareRemote
    forge: ForgeServer | None
    url: str

    @property
    def git(self) -> DurableGit:
        """The remote as git itself sees it."""
        return self.site.durable

    @property
    def mirror(self) -> Path:
        """The engine's mirror."""
        return self.site.root / "mirror"

    def durable(self, **options: Any) -> RemoteDurable:
        """One more adapter to the remote, on the same mirror by default."""
        given: dict[str, Any] = {"mirror": self.mirror, "author": AUTHOR, "timeout": 30.0, "grace": 0.3, "sync": False}
        if self.forge is not None:
            given["credentials"] = ("git", TOKEN)
        return RemoteDurable(self.url, **given | options)

    def left_in_mirror(self) -> list[str]:
        """Locks, half-written packs and objects of rejected pushes."""
        found = [path for pattern in ("*.lock", "tmp_*", "gittrix-*-push") for path in self.mirror.rglob(pattern)]
        return sorted(str(path.relative_to(self.mirror)) for path in found)


@contextmanager
def open_far(
    root: Path, wire: Wire = "file", files: Mapping[str, Content] = FILES, *, object_format: str = "sha1", **options: Any
) -> Iterator[Far]:
    """Open a remote with an engine below an existing directory. ``options`` are those of its ``RemoteDurable``."""
    with ExitStack() as held:
        site = held.enter_context(open_site(root, files, bare=True, object_format=object_format))
        remote = held.enter_context(BareRemote(site.durable.path))
        forge = held.enter_context(ForgeServer(remote, tokens={TOKEN})) if wire == "http" else None
        far = Far(site, remote, forge, forge.git_url if forge is not None else remote.url)
        site.options["durable"] = far.durable(**options)
        yield far
