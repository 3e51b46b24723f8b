"""Runs ``git config --system`` as root in every environment that the project makes, in a device directory of its own.

git replaces the file that it configures by a rename. An environment that names the null device as the system's configuration therefore
turns the device into a regular file. This program is run in a mount namespace, where the device directory is private; it prints, by the
name of each environment, what became of its null device: ``python system_config.py DIRECTORY``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from support.evals import ran, suite

from pytest_gittrix import World
from pytest_gittrix.confine.levels import missing
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.testing.scenarios.agent_kit import AgentKit

SETTING = ("config", "--system", "gittrix.test", "changed")
FIXTURE_TEST = """
import subprocess

def test_in_the_environment_of_the_fixtures(gittrix_env, gittrix_durable):
    subprocess.run(["git", *{setting!r}], env=gittrix_env, check=True)
    gittrix_durable.git(*{setting!r})
"""


def environments(root: Path) -> Mapping[str, Callable[[], object]]:
    """What configures the system's git in each environment, by name of the environment."""
    git = ["git", *SETTING]
    world = World.open(root / "world")
    agent = world.start(task="configure git").for_agent()

    def at_level(level: str) -> None:
        done = agent.run(git, confine=level)
        assert done.code == 0, done.stderr.decode()

    def in_fixtures() -> None:
        test = root / "fixtures" / "test_environment.py"
        test.parent.mkdir()
        test.write_text(FIXTURE_TEST.format(setting=SETTING))
        plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
        subprocess.run(command, cwd=test.parent, env=plain, check=True)

    def as_scripted_agent() -> None:
        with AgentKit(root / "kit") as kit:
            kit.start(kit.script().run(*git))
            assert kit.gone()

    def in_eval() -> None:
        command = " ".join(git)
        summary = ran(suite(root), root, f"sh -c '{command}'")
        assert len(summary.records) == 1

    levels = {f"level {level}": lambda level=level: at_level(level) for level in ("off", *available_levels())}
    return {
        **levels,
        "the place": lambda: subprocess.run(git, env=world.env, check=True),
        "the durable repository": lambda: world.durable.git(*SETTING),
        "a git of the engine": lambda: run_git(SETTING),
        "the fixtures": in_fixtures,
        "an agent of the harness": as_scripted_agent,
        "an eval": in_eval,
        "one that names the null device": lambda: subprocess.run(git, env=hermetic_env() | {"GIT_CONFIG_SYSTEM": os.devnull}, check=True),
    }


def available_levels() -> list[str]:
    """The levels of confinement, besides ``off``, that this machine has."""
    jailed = not missing("bwrap") or not missing("namespaces")
    return [level for level, has in (("guard", not missing("landlock")), ("jail", jailed)) if has]


def null_device() -> tuple[int, int, int]:
    """What tells one file at the null device's path from another."""
    seen = os.lstat(os.devnull)
    return seen.st_ino, seen.st_mode, seen.st_rdev


def main(root: Path) -> None:
    """Try one environment after another until one has replaced the null device; print as JSON which left it alone."""
    outlived = {}
    for name, configure in environments(root).items():
        before = null_device()
        configure()
        outlived[name] = null_device() == before
        if not outlived[name]:
            break
    print(json.dumps(outlived))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
