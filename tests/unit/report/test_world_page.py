"""The page of a world that a failing test left: read from the disk alone, with every session in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import Cli

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.report.world_page import kept_world, write_world_page
from pytest_gittrix.testing.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world with a promoted session and one at work, whose files hold markup."""
    with World.open(tmp_path / "world", files={"app.py": "v1\n"}) as world:
        first = world.start("The first <i>task</i>")
        first.write("app.py", "<b>v2</b>\n")
        first.promote(message="Land <u>it</u>")
        world.clock.advance(minutes=5)
        second = world.start("The second task")
        second.write("new.py", "x = 1\n")
        world.rival.commit({"new.py": "x = 2\n"})
        yield world


def page(world: World, tmp_path: Path) -> str:
    store, parts = kept_world(world.path)
    return write_world_page("test_it", store, {**parts, "nothing": ""}, tmp_path / "page.html").read_text()


def test_it_has_every_session_with_its_diff_and_durable(world: World, tmp_path: Path) -> None:
    text = page(world, tmp_path)

    assert re.findall(r'<h2 class="of-session" id="s\d-">(.*?) <small>', text) == ["The first &lt;i&gt;task&lt;/i&gt;", "The second task"]
    assert "Promoted to main as" in text
    assert "Active; nothing of it is promoted." in text
    assert text.count('class="plus">+1') == 2  # what landed, and what the second session changed
    assert "Land &lt;u&gt;it&lt;/u&gt;" in text
    assert "<h2>durable</h2>" in text
    assert "<h2>nothing</h2>" not in text


def test_addresses_are_unique_and_nothing_is_fetched_or_markup(world: World, tmp_path: Path) -> None:
    text = page(world, tmp_path)
    ids = re.findall(r'\bid="([^"]+)"', text)

    assert len(ids) == len({*ids})
    assert "<i>task" not in text
    assert "<b>v2" not in text
    assert re.findall(r'(?:src|href)="(?!#)', text) == []


def test_reading_changes_nothing(world: World, tmp_path: Path) -> None:
    logs = {path: path.read_bytes() for path in world.path.rglob("events.jsonl")}
    page(world, tmp_path)

    assert logs
    assert {path: path.read_bytes() for path in world.path.rglob("events.jsonl")} == logs


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no world of a test"):
        kept_world(tmp_path)


def test_the_command_writes_it(cli: Cli, world: World, tmp_path: Path) -> None:
    written = cli.ok("world", "page", str(world.path), "--out", str(tmp_path / "out.html")).lines
    assert written == [str(tmp_path / "out.html")]
    assert "The second task" in (tmp_path / "out.html").read_text()
    assert cli("world", "page", str(tmp_path)).status == 1
