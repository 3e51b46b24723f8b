"""A kind of workspace: copies whose programs always run in a jail."""

from __future__ import annotations

from typing import Any

from pytest_gittrix.backends import Ephemeral, LocalEphemeral, Workspace


class Jailed(Ephemeral):
    """Makes and opens them."""

    kind = "jailed"
    confine = "jail"

    def __init__(self, kind: str) -> None:
        self._copies = LocalEphemeral("copy", confine="jail")

    def create(self, path: str, state_dir: str, seed: Any, **options: Any) -> Workspace:
        return self._copies.create(path, state_dir, seed, **options)

    def open(self, path: str, state_dir: str, seeds: str | None = None) -> Workspace:
        return self._copies.open(path, state_dir, seeds)
