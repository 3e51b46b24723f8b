"""What a run of a thousand samples takes: memory of the runner, and its page: written, on the disk, and until it can be used in Chromium.

Usable is when the script of the page has run: then rows are there, and search, sort and links work. Without Playwright and a Chromium
there are no numbers of a browser.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.evals import SOLVED, prepared, run_turn
from benchmarks.measure import TOTAL, Measurement, peak_memory, scratch, timed
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.report.eval_report import NAME, write_report

BENCH: Final = "eval page"
RUN, PAGE, BROWSER = "the runner", "the page", "the page in Chromium"

_AGENT: Final = f"""
def work(toolbox):
    toolbox.write("app.py", {SOLVED!r})
    toolbox.write("notes.md", "# Plan" + "".join(f"\\n- step {{number}} of {{toolbox.seed}}" for number in range(20)))
"""
_FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu")
_MILLION: Final = 1e6


def eval_page(*, quick: bool = False) -> list[Measurement]:
    """Memory of a run, time and size of its page, and elements and milliseconds in a browser."""
    samples, rounds = (20, 3) if quick else (1000, 5)
    with scratch() as root:
        memory = peak_memory(partial(_run, root, samples))
        store = RunStore.open(root / "run")
        written = [timed(partial(write_report, store))[TOTAL] for _ in range(rounds)]
        page = root / "run" / NAME
        return [
            _measured(RUN, "peak memory", samples, [memory], "MB"),
            _measured(PAGE, "written", samples, written, "ms"),
            _measured(PAGE, "size", samples, [page.stat().st_size / _MILLION], "MB"),
            *_in_browser(page, samples, rounds),
        ]


def _run(root: Path, samples: int) -> None:
    suite, options = prepared(root, samples)
    (root / "agent.py").write_text(_AGENT, encoding="utf-8")
    run_turn(suite, options, samples, 0)


def _in_browser(page: Path, samples: int, rounds: int) -> list[Measurement]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return []
    if program is None:
        return []
    usable, elements = [], 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(_FLAGS))
        for _ in range(rounds):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(page.as_uri())
            usable.append(float(tab.evaluate("performance.getEntriesByName('usable')[0].startTime")))
            elements = int(tab.evaluate("document.querySelectorAll('*').length"))
            tab.close()
        browser.close()
    return [
        _measured(BROWSER, "until usable", samples, usable, "ms"),
        _measured(BROWSER, "elements", samples, [elements], "elements"),
    ]


def _measured(name: str, phase: str, samples: int, values: list[float], unit: str) -> Measurement:
    return Measurement(BENCH, name, phase, samples, median(values), min(values), len(values), unit)
