"""The story that ``gittrix agent --demo`` tells, and that nothing is left of it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.confined import available

from pytest_gittrix.cli.main import main
from pytest_gittrix.testing.acp_story import Counts, run_stories

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")
SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"
PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/use-with-acp.md"


def test_the_story_is_told_as_the_page_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    available("jail by namespaces")
    status = main(["agent", "--demo", "--confine", "jail"])
    story = capsys.readouterr().out

    shown = PAGE.read_text().partition("$ gittrix agent --demo\n")[2].partition("```")[0]
    varying = re.compile(r"sess_\w+|\b[0-9a-f]{8}\b")
    assert status == 0
    assert varying.sub("ID", story) == varying.sub("ID", shown)


def test_of_stories_nothing_is_left() -> None:
    available("jail by namespaces")
    assert run_stories(3 if SOAK else 1) == Counts(0, 0, 0, 0)


def test_what_is_left_is_counted(tmp_path: Path) -> None:
    before = Counts.now(tmp_path)
    (tmp_path / "index.lock").touch()

    assert Counts.now(tmp_path).beyond(before) == Counts(0, 0, 1, 1)
    assert before.beyond(Counts.now(tmp_path)) == Counts(0, 0, 0, 0)
