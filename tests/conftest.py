"""What every test here shares: pytester, the Hypothesis profiles, and an environment no outer git can reach into.

There is no autouse fixture: what a test needs, it names.
"""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "support.fixtures", "pytest_gittrix.more_fixtures"]

# Examples work on real repositories: how long one takes says nothing about the code, so none has a deadline.
settings.register_profile("quick", deadline=None, max_examples=25, stateful_step_count=20, derandomize=True)
settings.register_profile("default", deadline=None, max_examples=100, stateful_step_count=50, print_blob=True)
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=5_000,
    stateful_step_count=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("PYTEST_GITTRIX_PROFILE", "quick"))


def pytest_configure() -> None:
    """Forget what was inherited.

    Started from a git hook, ``GIT_DIR`` would send a test's commits to the repository of the hook. Started in the background of a shell
    script, interrupts are ignored, here and in every program that a test starts and interrupts.
    """
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that only root can run where another user does."""
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("needs_root") is not None:
                item.add_marker(pytest.mark.skip(reason="only root can do what the test does"))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from what was collected: it would go through 350,000 objects again and again, and in each fork anew."""
    gc.collect()
    gc.freeze()
