"""Durable and ephemeral behind two protocols: a local repository, and a remote with its forge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.github import GitHubForge as GitHubForge
    from pytest_gittrix.backends.local import LocalDurable as LocalDurable
    from pytest_gittrix.backends.local import LocalEphemeral as LocalEphemeral
    from pytest_gittrix.backends.remote import RemoteDurable as RemoteDurable

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.backends.local": (
            "LocalDurable",
            "LocalEphemeral",
        ),
        "pytest_gittrix.backends.remote": ("RemoteDurable",),
        "pytest_gittrix.backends.forge.github": ("GitHubForge",),
    },
)
