"""The hooks: what this package registers, by name. They load nothing."""

from __future__ import annotations

from pytest_gittrix.extensions import Extension


def gittrix_views() -> dict[str, Extension]:
    """Return the view ``acme``."""
    return {"acme": Extension("acme_gittrix.ticket")}


def gittrix_commands() -> dict[str, Extension]:
    """Return the command ``gittrix count``, and the group ``gittrix acme``, which has it too."""
    return {
        "count": Extension("acme_gittrix.count", "count the sessions of a store"),
        "acme": Extension("acme_gittrix.count:ACME", "the commands of Acme"),
    }


def gittrix_workspaces() -> dict[str, Extension]:
    """Return the kind of workspace ``jailed``."""
    return {"jailed": Extension("acme_gittrix.jailed:Jailed")}


def gittrix_forges() -> dict[str, Extension]:
    """Return the forge ``acme``."""
    return {"acme": Extension("acme_gittrix.forge:forge")}


def gittrix_clauses() -> dict[str, Extension]:
    """Return the family of clauses ``ACM``."""
    return {"ACM": Extension("acme_gittrix.clauses", "rules of Acme")}
