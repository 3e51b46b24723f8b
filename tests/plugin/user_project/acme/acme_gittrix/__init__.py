"""The hooks: what this package registers, by name. They load nothing."""

from __future__ import annotations

from pytest_gittrix.extensions import Extension


def gittrix_views() -> dict[str, Extension]:
    """Return the view ``acme``."""
    return {"acme": Extension("acme_gittrix.ticket")}


def gittrix_commands() -> dict[str, Extension]:
    """Return the command ``gittrix count``."""
    return {"count": Extension("acme_gittrix.count", "count the sessions of a store")}
