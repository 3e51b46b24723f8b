"""The page of a session in a real browser: at a desk and on a telephone, light and dark, without scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import coding_agent

from pytest_gittrix.commands.verbs.page import view_of
from pytest_gittrix.model import call, stop
from pytest_gittrix.report.session_page import write_session_page
from pytest_gittrix.testing.world import World
from tests.browser.test_eval_page import CONTRASTS, DESK, ENOUGH, SPILLS, TELEPHONE


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the page of a session with long names, long lines and all kinds of entries."""
    with World.open(files={"app.py": "v1\n"}) as world:
        world.model.keep_content = True
        world.model.script(call("bash", command=f"mkdir -p {'deep/' * 30} && echo {'x' * 400} > {'deep/' * 30}file"), stop("word " * 300))
        session = world.start("A task " * 40)
        environment = {**os.environ, **world.model.env(session.id)}
        subprocess.run(
            [sys.executable, coding_agent.__file__], cwd=session.workspace_path, env=environment, capture_output=True, check=True
        )
        yield write_session_page(view_of(world.gittrix, session.id), tmp_path_factory.mktemp("page") / "page.html").as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, TELEPHONE], ids=["desk", "telephone"])
def test_everything_fits_and_can_be_read(chromium: Any, address: str, viewport: dict[str, int], scheme: str) -> None:
    asked: list[str] = []
    page = chromium.new_page(viewport=viewport, color_scheme=scheme)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")

    assert page.evaluate(SPILLS) == []
    assert [found for found in page.evaluate(CONTRASTS) if found[0] < ENOUGH] == []
    assert asked == [address]
    page.close()


def test_the_theme_is_switched_and_the_page_reads_without_scripts(chromium: Any, address: str) -> None:
    page = chromium.new_page(viewport=DESK, color_scheme="light")
    page.goto(address)
    page.click("#theme")
    assert page.evaluate("document.documentElement.classList.contains('dark')")
    page.close()

    plain = chromium.new_context(java_script_enabled=False).new_page()
    plain.goto(address)
    assert "exchange 1 called bash" in plain.inner_text("#timeline")
    plain.context.close()
    assert Path(address.removeprefix("file://")).stat().st_size < 200_000
