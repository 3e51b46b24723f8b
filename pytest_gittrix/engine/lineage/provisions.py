"""Gives a new workspace what a person's checkout has beyond its commit, as the engine's options and the project's own settings say."""

from __future__ import annotations

import os
from typing import Any, Final

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.backends.protocol import Durable, Ephemeral
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.record.eventlog.events import path_fields
from pytest_gittrix.workspaces.additions.include import include_files
from pytest_gittrix.workspaces.additions.settings import SETTINGS, ProjectSettings, project_settings
from pytest_gittrix.workspaces.workspace import Workspace

_NO_CHECKOUT: Final = "durable has no checkout on this machine, so there are no ignored files to include"


def provide(ephemeral: Ephemeral, durable: Durable, workspace: Workspace, resources: Resources) -> dict[str, Any]:
    """Include files of durable's checkout in a new workspace; gives what ``workspace.ready`` says of that.

    Workspaces that another adapter makes get nothing: no file that git ignores is sent elsewhere.

    Raises:
        InvalidInput: a setting of the project has a value that is not allowed.
        WriteRejected, OSError: the disk refused.
    """
    if not isinstance(ephemeral, LocalEphemeral):
        return {}
    checkout = durable.path if durable.path is not None and os.path.lexists(os.path.join(durable.path, ".git")) else None
    asked = ephemeral.project_settings and (checkout is None or any(os.path.lexists(os.path.join(checkout, name)) for name in SETTINGS))
    project = project_settings(checkout, workspace.seed) if asked else ProjectSettings()
    patterns = (*project.include, *ephemeral.include)
    if not patterns:
        return {}
    if checkout is None:
        return {"left_out": [_NO_CHECKOUT]}
    assert workspace.state_dir is not None  # this engine has just made it
    found = include_files(workspace, workspace.state_dir, checkout, patterns, (str(resources.store.root), str(resources.home)))
    listed = [{**path_fields(one.path), "files": one.files, "size": one.size} for one in found.paths]
    return ({"included": listed} if listed else {}) | ({"left_out": [*found.left_out]} if found.left_out else {})
