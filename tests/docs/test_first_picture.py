"""The run that the first page of the documentation shows is a real one: its steps are what git and the session's log say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cli import Cli

from docs.drawing import RUN_BLOCK, read_run, run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "index.md").read_text(encoding="utf-8")
[SHOWN] = map(read_run, RUN_BLOCK.findall(PAGE))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(tmp_path, monkeypatch, capfdbinary)


def commits(cli: Cli) -> list[tuple[str, str]]:
    return [("main", subject) for subject in cli.git("log", "--reverse", "--format=%s", "main").splitlines()]


def events(cli: Cli, id_: str) -> list[tuple[str, str]]:
    """What the time line of a session says, without times, kinds and shas."""
    entries = cli.data("session", "log", id_, "--timeline")
    return [("session", re.sub(r" (at|as) [0-9a-f]{12}( of main)?", "", one["text"])) for one in entries if one["what"] != "other"]


def test_the_first_page_shows_what_happens(cli: Cli) -> None:
    cli.git("checkout", "-q", "--orphan", "main")
    cli.commit({}, "Start")
    happened = commits(cli)

    id_ = cli.ok("session", "start", "--task", "fix the bug").lines[0]
    workspace = cli.workspace(id_)
    (workspace / "app.py").write_text("print('v2')\n", encoding="utf-8")
    (workspace / "notes.txt").write_text("what I tried\n", encoding="utf-8")
    cli.ok("session", "touched", id_)
    happened += events(cli, id_)

    cli.commit({"page.md": "# A page\n"}, "Add a page")
    happened += commits(cli)[1:]

    cli.ok("promote", id_, "app.py", "--message", "Fix the bug")
    promoted, removed = events(cli, id_)[2:]
    happened += [promoted, *commits(cli)[2:], removed]

    assert happened == SHOWN
    assert cli.git("show", "--name-only", "--format=", "main").split() == ["app.py"]
    [patch] = cli.home.rglob("archive.patch")
    assert re.findall(r"^[+-].*", patch.read_text(encoding="utf-8"), re.MULTILINE)[1:] == ["+++ b/notes.txt", "+what I tried"]


def test_the_picture_has_a_mark_and_a_text_for_each_step() -> None:
    figure = run(SHOWN)

    assert figure.count("<circle") == len(SHOWN)
    assert re.findall(r"<text[^>]*>([^<]+)</text>", figure) == ["main", "session", *(what for _, what in SHOWN)]


def test_the_picture_fits_on_a_phone() -> None:
    found = re.search(r"min-width:(\d+)px", run(SHOWN))

    assert found is not None
    assert int(found[1]) <= 358
