"""The page of a session: all that happened, what was said, the diff, and nothing that an agent wrote as markup."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import coding_agent
from support.cli import Cli

from pytest_gittrix.commands.verbs.page import view_of
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.model.answers.faults import fail
from pytest_gittrix.model.answers.script import call, stop
from pytest_gittrix.report.session_page import session_page
from pytest_gittrix.testing.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World.open(files={"app.py": "v1\n"}) as world:
        yield world


@pytest.fixture
def session(world: World) -> UserSession:
    """A session with three exchanges, one of which failed at first, a commit and a change."""
    world.model.keep_content = True
    world.model.script(
        call("bash", command="echo '<b>bold</b>' > new.html"), fail(529), call("bash", command="rm app.py"), stop("<i>Done.</i>")
    )
    session = world.start("Make it <script>alert(1)</script>")
    environment = {**os.environ, **world.model.env(session.id)}
    subprocess.run([sys.executable, coding_agent.__file__], cwd=session.workspace_path, env=environment, capture_output=True, check=True)
    session.for_agent().commit("What I did & why")
    return session


def page(world: World, session: UserSession) -> str:
    return session_page(view_of(world.gittrix, session.id))


def test_it_tells_what_happened_in_order(world: World, session: UserSession) -> None:
    told = re.findall(r"<b>(.*?)</b> <span class=\"who\">(\w+)", page(world, session))

    what = [text for text, kind in told if kind in ("model", "file", "commit")]
    assert [text.partition(",")[0] for text in what] == [
        "exchange 1 called bash",
        "changed new.html",
        "exchange 2 failed: overloaded",
        "exchange 3 called bash",
        "changed app.py",
        "exchange 4 answered",
        what[-1],
    ]
    assert what[-1].endswith("What I did &amp; why")


def test_it_has_what_was_said_and_the_diff(world: World, session: UserSession) -> None:
    text = page(world, session)

    assert "calls bash(command=" in text
    assert "Improve the project" in text
    assert "&lt;i&gt;Done.&lt;/i&gt;" in text
    assert "new.html" in text
    assert 'class="minus">−1' in text


def test_nothing_that_somebody_wrote_is_markup_and_nothing_is_fetched(world: World, session: UserSession) -> None:
    text = page(world, session)

    assert "<script>alert" not in text
    assert "<b>bold" not in text
    assert re.findall(r'(?:src|href)="(?!#)', text) == []


def test_exchanges_that_were_not_kept_are_told_without_what_was_said(world: World) -> None:
    world.model.script(stop())
    session = world.start()
    environment = {**os.environ, **world.model.env(session.id)}
    subprocess.run([sys.executable, coding_agent.__file__], cwd=session.workspace_path, env=environment, capture_output=True, check=True)
    text = page(world, session)

    assert "exchange 1 answered" in text
    assert "What was said" not in text
    assert "Nothing differs from the baseline." in text


def test_an_ended_session_says_where_its_work_is(world: World, session: UserSession) -> None:
    landed = session.promote()
    text = page(world, session)

    assert f"Promoted to main as {landed.sha[:12]}." in text
    assert f"What was promoted is commit {landed.sha}." in text


def test_the_command_writes_it(cli: Cli, tmp_path: Path) -> None:
    id_ = cli.start()
    written = cli.ok("session", "page", id_, "--out", str(tmp_path / "page.html")).lines
    assert written == [str(tmp_path / "page.html")]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert cli("session", "page", id_, "--out", str(tmp_path / "no" / "page.html")).status == 1
