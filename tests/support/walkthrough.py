"""What the walks through the documents of Gas Town and Pixir share."""

from __future__ import annotations

from typing import Any

from support.engine import Site

from pytest_gittrix.views import view

FILES = {"app.py": "v1\n"}
TOAST = {"agent": "gastown/polecats/Toast", "rig": "gastown", "role": "polecat", "tmux_session": "gt-gastown-Toast"}
NUX = {"agent": "gastown/polecats/Nux", "rig": "gastown", "role": "polecat", "tmux_session": "gt-gastown-Nux"}
CALL = {"call_id": "c1", "name": "grep", "args": {}}
LONG = 60.0
"""Real seconds to wait for what comes at once."""


def in_town(site: Site, id_: str) -> dict[str, Any]:
    """A session's record as Gas Town has it, ended or not, as anybody finds it who has only the id."""
    return view(site.events(id_), "gastown")
