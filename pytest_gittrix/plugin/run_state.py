"""What a run of pytest knows of this plugin: its options, its worlds and the arguments of a test's markers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gittrix.plugin.config import GittrixConfig
    from pytest_gittrix.plugin.worlds import Worlds

WORLDS: pytest.StashKey[Worlds] = pytest.StashKey()
_CONFIG: pytest.StashKey[GittrixConfig] = pytest.StashKey()
_MARKER: pytest.StashKey[Mapping[str, Any]] = pytest.StashKey()


def resolved(config: pytest.Config) -> GittrixConfig:
    """Return the options of the run, read and checked once."""
    if _CONFIG not in config.stash:
        from pytest_gittrix.plugin.config import resolve

        config.stash[_CONFIG] = resolve(config)
    return config.stash[_CONFIG]


def given(config: pytest.Config) -> bool:
    """Return whether any option was given."""
    from pytest_gittrix.plugin.config import settings

    return any(setting.given for setting in settings(config))


def marker_of(item: pytest.Item) -> Mapping[str, Any]:
    """The arguments of the markers of a test, merged once for all its fixtures."""
    stash = item.stash
    if _MARKER not in stash:
        from pytest_gittrix.plugin.marker import marker_arguments

        stash[_MARKER] = marker_arguments(item)
    return stash[_MARKER]
