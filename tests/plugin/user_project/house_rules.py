"""What this project does to every world and environment of its tests. ``optionalhook``: it also runs where the plugin is switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gittrix import World


@pytest.hookimpl(optionalhook=True)
def pytest_gittrix_world(world: World) -> None:
    world.durable.commit({"OWNERS": "* ada@example.org\n"}, message="Say who owns what")


@pytest.hookimpl(optionalhook=True)
def pytest_gittrix_git_env(env: dict[str, str]) -> None:
    env["HOUSE"] = "acme"
