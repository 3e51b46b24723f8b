"""The hooks that a ``conftest.py`` or another plugin can implement. pytest loads this in every run, so it imports nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from pytest_gittrix.testing.world import World


def pytest_gittrix_git_env(config: pytest.Config, env: dict[str, str]) -> None:
    """Change the environment that a test's own programs run in.

    Called once for each test that uses ``gittrix_env`` or ``gittrix_race``. Change ``env`` in place. Dates follow the clock in any case.
    The engine and the verbs of ``gittrix_durable`` run git in environments of their own.

    In ``conftest.py``, to let agents find a tool of yours and fetch by ssh::

        def pytest_gittrix_git_env(env):
            env["PATH"] = f"/opt/agent/bin:{env['PATH']}"
            env["GIT_ALLOW_PROTOCOL"] = "file:ssh"

    Args:
        config: the configuration of this run.
        env: the variables by name.
    """


def pytest_gittrix_world(config: pytest.Config, world: World) -> None:
    """Prepare a world that has just been opened, before the test or the example gets it.

    In ``conftest.py``, to give every durable repository of a test run a protected file::

        def pytest_gittrix_world(world):
            world.durable.commit({"CODEOWNERS": "* @maintainers\\n"}, message="owners")

    Args:
        config: the configuration of this run.
        world: the open world, which the fixtures of the test show.
    """
