"""A real browser, and a run of evals with every outcome as a page. Tests skip where there is no browser to drive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.evals import case, options, write

from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.run import run_suite
from pytest_gittrix.report.eval_report import write_report

CHECK = '[check]\nfunction = "check.py:check"\n'
AGENT = """
def work(toolbox):
    if toolbox.case == "timeout":
        toolbox.run(["sleep", "60"])
    if toolbox.case == "agent-error":
        raise RuntimeError("it was <too> hard")
    toolbox.run(["sh", "-c", "echo looked around"])
    if toolbox.case != "fail":
        text = 'VERSION = 2\\n\\n\\ndef greet(name):\\n    # A word of welcome.\\n    return f"hello {name}, {VERSION}"\\n'
        toolbox.write("app.py", text)
    toolbox.write(f"a/rather/long/path/to/see/what/becomes/of/it/on/a/telephone/{toolbox.case}.txt", "x" * 300 + "\\n")
"""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_CHECKS = "def check(result):\n    assert b'VERSION = 2' in result.read('app.py'), 'the version is not 2'\n"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A Chromium of the system, driven by Playwright, whose event loop nobody else may meet: it ends with the module."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pytest-gittrix[browser])")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A run with a sample of each outcome, and one more that passes, twice each."""
    root = tmp_path_factory.mktemp("browser")
    place = write(root / "suite", {"suite.toml": "schema = 1\n"})
    extra = {"check.py": _CHECKS, "drift/app.py": "VERSION = 3\n"}
    for id_, more in {
        "pass": "",
        "pass-too": "",
        "fail": "",
        "conflict": '[drift]\nfiles = "drift"\n',
        "refused": '[review]\ndeny = ["app.py"]\n',
        "agent-error": "",
        "limit": "",
        "unjudgeable": "",
        "timeout": '[limits]\ntimeout = "150ms"\n',
    }.items():
        case(place, id_, more=f"{more}{CHECK}", extra=extra)
    case(place, "infra-error", more=CHECK, extra={**extra, "check.py": "raise OSError('out of order')\ndef check(result): pass\n"})
    write(root, {"agent.py": AGENT})
    run_suite(Suite.load(place), options(root, f"python:{root / 'agent.py'}:work", epochs=2, retries=0))
    kept = RunStore.open(root / "run")
    for epoch in (0, 1):  # only an agent with a model of the run meets a limit, so this one is written
        kept.save_record(replace(kept.sample("limit", epoch), outcome="limit", reason="the agent had its 3 exchanges"))
        kept.save_record(replace(kept.sample("unjudgeable", epoch), outcome="unjudgeable", reason="no judge can judge its tests"))
    return kept


@pytest.fixture(scope="module")
def address(store: RunStore) -> str:
    """Of the page."""
    return Path(write_report(store)).as_uri()
