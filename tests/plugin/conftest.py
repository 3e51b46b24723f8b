"""Small runs of pytest itself, with the plugin as an installed user has it: through its entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages

import pytest
from hypothesis.vendor.pretty import RepresentationPrinter
from support.eval_tests import EvalTests

import pytest_gittrix

# A run in this process forgets what it was the first to import, and the next one would load it again: some megabytes each time, and classes
# that are no longer the same ones. So everything of ours is loaded here, but for what needs a framework that may not be installed.
for found in walk_packages(pytest_gittrix.__path__, "pytest_gittrix."):
    if not found.name.startswith(("pytest_gittrix.integrations.", "pytest_gittrix.mcp.")) and not found.name.endswith("__main__"):
        import_module(found.name)

# Plugins of the environment that would be loaded anew by each run, the largest in half a second.
_OTHERS = ("randomly", "cacheprovider", "schemathesis", "anyio", "syrupy", "inline_snapshot")
PLAIN = tuple(argument for plugin in _OTHERS for argument in ("-p", f"no:{plugin}"))

MORE = ("-p", "pytest_gittrix.more_fixtures")

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run(source, *arguments)``: a test file and the arguments of a run in this process."""
    base = pytester.path.parent / f"{pytester.path.name}-base"
    monkeypatch.delenv("PYTEST_GITTRIX_PROFILE", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    # Schemathesis gives Hypothesis a printer without values for the whole process, once any test has imported it.
    monkeypatch.setattr("hypothesis.core.RepresentationPrinter", RepresentationPrinter)

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_inprocess(*PLAIN, *MORE, f"--basetemp={base}", *arguments)

    return run


@pytest.fixture
def evals(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> EvalTests:
    """A project whose tests are evals, and runs of pytest in it."""
    return EvalTests(pytester, monkeypatch)
