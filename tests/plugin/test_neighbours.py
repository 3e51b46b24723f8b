"""The plugin among others: unused, switched off, in several processes, in random order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]

# What pytest itself loads already is no cost of ours.
ALLOWED = {
    "pytest_gittrix",
    "pytest_gittrix.plugin",
    "pytest_gittrix.plugin.config",
    "pytest_gittrix.plugin.core_fixtures",
    "pytest_gittrix.plugin.options",
    "pytest_gittrix.plugin.run_state",
    "pytest_gittrix.hookspecs",
    "pytest_gittrix.lazy_exports",
}


def test_an_unused_plugin_loads_nothing_but_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import json, sys

        def test_it():
            with open("loaded.json", "w") as file:
                json.dump(sorted(sys.modules), file)
            assert {"a": 1} == {"a": 1}
    """)

    def loaded(*arguments: str) -> set[str]:
        pytester.runpytest_subprocess(*arguments, "-p", "no:hypothesispytest", "-p", "no:xdist").assert_outcomes(passed=1)
        return set(json.loads(Path(pytester.path, "loaded.json").read_text()))

    assert loaded() - loaded("-p", "no:gittrix") == ALLOWED


def test_the_plugin_can_be_switched_off(run: Run) -> None:
    result = run("def test_it(gittrix_session): pass", "-p", "no:gittrix")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'gittrix_session' not found*"])


def test_workers_share_what_is_prepared_and_report_failures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(r"""
        import pytest

        @pytest.mark.parametrize("turn", range(6))
        def test_it(gittrix_session, turn):
            gittrix_session.write("b.txt", b"\xff\n")
            gittrix_session.write("a.txt", f"turn {turn}")
            assert turn != 3
    """)

    result = pytester.runpytest_subprocess("-p", "no:schemathesis", "-n", "2", "--gittrix-freeze=none")

    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["*gittrix session events*", "*session.write*path=a.txt*", "*gittrix diff*", "+turn 3", "kept in *"])


def test_tests_run_in_any_order(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        seen = set()

        @pytest.mark.gittrix(task="same")
        @pytest.mark.parametrize("turn", range(4))
        def test_it(gittrix_session, gittrix_durable, turn):
            gittrix_session.write("a.txt", "x")
            seen.add((gittrix_session.id, gittrix_session.promote().sha))
            assert len(seen) == 1
    """)

    pytester.runpytest_inprocess("-p", "no:schemathesis", "-p", "randomly", "-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_nothing_warns_under_development_mode(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_it(gittrix_session, gittrix_durable, gittrix_rival, gittrix_ephemeral):
            gittrix_durable.repo.head.commit
            gittrix_session.write("a.txt", "x")
            gittrix_session.promote()
    """)

    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-m", "pytest", "-q"],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
