"""Sessions in the packages that store snapshots: syrupy and inline-snapshot themselves, in runs of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

CI = (
    *("CI", "bamboo.buildKey", "BUILD_ID", "BUILD_NUMBER", "BUILDKITE", "CIRCLECI", "CONTINUOUS_INTEGRATION", "GITHUB_ACTIONS"),
    *("HUDSON_URL", "JENKINS_URL", "TEAMCITY_VERSION", "TRAVIS"),
)
SYRUPY = """
import pytest
from pytest_gittrix.testing import to_snapshot

pytestmark = pytest.mark.gittrix(files={"app.py": "v1\\n"})

@pytest.fixture
def snapshot(snapshot):
    return snapshot.with_defaults(matcher=to_snapshot)

def test_work(gittrix_agent, snapshot):
    gittrix_agent.write("app.py", "VERSION\\n")
    gittrix_agent.write("where", f"{gittrix_agent.workspace_path}\\n")
    assert gittrix_agent == snapshot

def test_promotion(gittrix_session, snapshot):
    gittrix_session.write("app.py", "VERSION\\n")
    gittrix_session.promote()
    assert gittrix_session == snapshot(name="landed")
"""
INLINE = """
import pytest
from inline_snapshot import snapshot
from pytest_gittrix.testing import to_snapshot

@pytest.mark.gittrix(files={"app.py": "v1\\n"})
def test_work(gittrix_agent):
    gittrix_agent.write("app.py", "VERSION\\n")
    assert to_snapshot(gittrix_agent) == snapshot()
"""


@pytest.fixture(autouse=True)
def on_a_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """inline-snapshot does other things in a worker of xdist, and under CI."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", *CI):
        monkeypatch.delenv(name, raising=False)


def run(pytester: pytest.Pytester, base: str, *arguments: str) -> pytest.RunResult:
    others = [argument for plugin in ("randomly", "schemathesis", "anyio", "xdist") for argument in ("-p", f"no:{plugin}")]
    return pytester.runpytest_subprocess(*others, f"--basetemp={pytester.path.parent / base}", *arguments)


def replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_syrupy_stores_a_session_and_finds_it_again_elsewhere(pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile(test_it=SYRUPY.replace("VERSION", "v2"))
    run(pytester, "one", "-p", "no:inline_snapshot", "--snapshot-update").assert_outcomes(passed=2)
    stored = (pytester.path / "__snapshots__" / "test_it.ambr").read_text()
    assert "+v2" in stored
    assert "{workspace}" in stored
    assert str(pytester.path.parent) not in stored

    run(pytester, "two", "-p", "no:inline_snapshot").assert_outcomes(passed=2)
    replaced(file, "v2", "v3")
    changed = run(pytester, "three", "-p", "no:inline_snapshot")
    changed.assert_outcomes(failed=2)
    changed.stdout.fnmatch_lines(["*-*+v2", "*+*+v3"])


def test_inline_snapshot_writes_a_session_into_the_test(pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile(test_it=INLINE.replace("VERSION", "v2"))
    run(pytester, "one", "-p", "no:syrupy", "--inline-snapshot=create")
    assert "'change': 'changed'" in file.read_text()

    run(pytester, "two", "-p", "no:syrupy").assert_outcomes(passed=1)
    replaced(file, '"v2\\n"', '"v3\\n"')
    changed = run(pytester, "three", "-p", "no:syrupy")
    changed.assert_outcomes(failed=1, errors=1)  # the package itself fails the teardown, too
    changed.stdout.fnmatch_lines(["+v3"])
