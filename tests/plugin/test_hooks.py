"""The hooks a conftest can implement."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]


def test_the_environment_of_the_tests_own_programs_can_be_changed(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        def pytest_gittrix_git_env(env):
            env["GIT_AUTHOR_NAME"] = "From the hook"
    """)
    source = """
        import subprocess

        def test_env(gittrix_env, gittrix_race, gittrix_durable):
            assert gittrix_race.env["GIT_AUTHOR_NAME"] == "From the hook"
            make = ["git", "commit", "--quiet", "--allow-empty", "--message=mine"]
            subprocess.run(make, cwd=gittrix_durable.path, env=gittrix_env, check=True)
            assert gittrix_durable.git("show", "--no-patch", "--format=%an") == "From the hook"
    """
    run(source).assert_outcomes(passed=1)


def test_every_world_can_be_prepared(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        def pytest_gittrix_world(config, world):
            world.durable.commit({"CODEOWNERS": "*"}, message="owners")
    """)
    source = """
        def test_session(gittrix_session, gittrix_durable):
            assert gittrix_session.info().baseline_sha == gittrix_durable.head()
            assert "CODEOWNERS" in gittrix_durable.tree()

        def test_worlds(gittrix_worlds):
            with gittrix_worlds.open() as world:
                assert "CODEOWNERS" in world.durable.tree()
    """
    run(source).assert_outcomes(passed=2)
