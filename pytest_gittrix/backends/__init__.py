"""Durable and ephemeral behind two protocols: on this machine, behind an address, and at a forge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.github import GitHubForge as GitHubForge
    from pytest_gittrix.backends.local import LocalDurable as LocalDurable
    from pytest_gittrix.backends.local import LocalEphemeral as LocalEphemeral
    from pytest_gittrix.backends.protocol import Durable as Durable
    from pytest_gittrix.backends.protocol import Ephemeral as Ephemeral
    from pytest_gittrix.backends.remote import RemoteDurable as RemoteDurable
    from pytest_gittrix.backends.remote_workspace import RemoteEphemeral as RemoteEphemeral
    from pytest_gittrix.workspaces.kinds import Capabilities as Capabilities
    from pytest_gittrix.workspaces.workspace import Workspace as Workspace

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.backends.local": (
            "LocalDurable",
            "LocalEphemeral",
        ),
        "pytest_gittrix.backends.protocol": (
            "Durable",
            "Ephemeral",
        ),
        "pytest_gittrix.backends.remote": ("RemoteDurable",),
        "pytest_gittrix.backends.remote_workspace": ("RemoteEphemeral",),
        "pytest_gittrix.workspaces.kinds": ("Capabilities",),
        "pytest_gittrix.workspaces.workspace": ("Workspace",),
        "pytest_gittrix.backends.forge.github": ("GitHubForge",),
    },
)
