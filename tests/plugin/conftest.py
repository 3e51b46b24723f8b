"""Small runs of pytest itself, with the plugin as an installed user has it: through its entry point."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# A run in this process forgets what it was the first to import. These hold C extensions and classes that must not be loaded twice.

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run(source, *arguments)``: a test file and the arguments of a run in this process."""
    base = pytester.path.parent / f"{pytester.path.name}-base"
    monkeypatch.delenv("PYTEST_GITTRIX_PROFILE", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider", f"--basetemp={base}", *arguments)

    return run
