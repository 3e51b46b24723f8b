"""The forge of the command line: flags and variables that say where pull requests are opened, and with which token.

The token is taken from the environment only, since every user can read command lines. Nothing is loaded before a forge is needed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pytest_gittrix.commands.declaration import arg
from pytest_gittrix.extensions import OURS, Names, made

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.protocol import Forge
    from pytest_gittrix.backends.protocol import Durable

NAME: Final = "GITTRIX_FORGE"
REPO: Final = "GITTRIX_FORGE_REPO"
URL: Final = "GITTRIX_FORGE_URL"
TOKEN: Final = "GITTRIX_FORGE_TOKEN"

_GITHUB: Final = "github"
_GITHUB_API: Final = "https://api.github.com"
_USER: Final = "x-access-token"


_GROUP: Final = "pull request, with --strategy pr"

ARGUMENTS: Final = (
    arg("--title", metavar="TEXT", help="its title; the first line of the message by default", group=_GROUP),
    arg("--body", metavar="TEXT", help="what it says; the rest of the message, and the session, by default", group=_GROUP),
    arg("--draft", action="store_true", help="mark it as not ready to merge", group=_GROUP),
    arg("--base", metavar="NAME", help="the branch it goes to; the session's durable branch by default", group=_GROUP),
    arg(
        "--forge",
        choices=Names("forges"),
        metavar="NAME",
        help=f"the kind of forge: {', '.join(OURS['forges'])}, or one of another package; {NAME} or {_GITHUB} by default",
        group=_GROUP,
    ),
    arg("--forge-repo", metavar="OWNER/NAME", help=f"the repository at the forge; {REPO} by default", group=_GROUP),
    arg(
        "--forge-url",
        metavar="URL",
        help=f"the forge's API; {URL} or {_GITHUB_API} by default. The token is {TOKEN} in the environment",
        group=_GROUP,
    ),
)
"""The flags of a pull request."""


class ForgeSettings:
    """The settings of the forge.

    Args:
        name: the kind of forge, which is registered under this name.
        repo: ``owner/name``; None if there is no forge.
        url: the address of its API; None for the one that this kind of forge has.
        token: for the API, and for git where the durable repository is the same one.
    """

    def __init__(self, name: str, repo: str | None, url: str | None, token: str | None) -> None:
        self.name, self.repo, self.url, self.token = name, repo, url, token

    @classmethod
    def of(cls, options: Namespace, environment: Mapping[str, str]) -> ForgeSettings:
        """The settings of a command: its flags first, then the environment."""
        repo = getattr(options, "forge_repo", None) or environment.get(REPO) or None
        name = getattr(options, "forge", None) or environment.get(NAME) or _GITHUB
        url = getattr(options, "forge_url", None) or environment.get(URL) or (_GITHUB_API if name == _GITHUB else None)
        return cls(name, repo, url, environment.get(TOKEN) or None)

    def open(self, durable: Durable) -> Forge | None:
        """The forge of a repository; None if no forge is set, or if the repository is at a forge under another name.

        Raises:
            InvalidInput: a setting cannot be used, or no forge is registered under the name.
            CapabilityMissing: the client of the forge is not installed.
        """
        if self.repo is None or not self._is_of(getattr(durable, "url", None)):
            return None
        where = {} if self.url is None else {"base_url": self.url}
        forge: Forge = made("forges", self.name, self.repo, token=self.token, **where)
        return forge

    def credentials(self, address: str) -> tuple[str, str] | None:
        """User and token for git, if the address is that of the forge's repository; the token is sent nowhere else."""
        from urllib.parse import urlsplit

        if self.url is None:
            return None
        remote, api = urlsplit(address), urlsplit(self.url)
        same_host = remote.scheme == api.scheme and api.netloc in (remote.netloc, f"api.{remote.netloc}")
        if self.token is None or self.repo is None or not same_host or _name_in(remote.path) != self.repo.lower():
            return None
        return _USER, self.token

    def _is_of(self, address: str | None) -> bool:
        """Whether an address can be the forge's repository; a repository on this machine can be a clone of any."""
        if address is None or address.startswith("file://"):
            return True
        return f"/{_name_in(address.replace(':', '/'))}".endswith(f"/{(self.repo or '').lower()}")


def _name_in(path: str) -> str:
    """``owner/name`` from the path of an address."""
    return path.strip("/").removesuffix(".git").lower()
