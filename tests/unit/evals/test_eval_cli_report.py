"""``gittrix eval report``, and the page at the end of a run: where it is, and what happens where it cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import Cli
from support.evals import SOLVES, suite


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    made = Cli(tmp_path, monkeypatch, capfdbinary)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return made


def run(cli: Cli, name: str, *more: str) -> tuple[str, ...]:
    place = cli.root / "suite" if (cli.root / "suite").exists() else suite(cli.root)
    return ("eval", "run", str(place), "--agent", SOLVES, "--out", str(cli.root / name), "--confine", "off", *more)


def test_a_run_ends_with_a_page_and_says_where_it_is(cli: Cli) -> None:
    page = cli.root / "a" / "report.html"

    output = cli.ok(*run(cli, "a")).text
    data = cli.data(*run(cli, "b"))

    assert output.splitlines()[-1] == f"report {page}"
    assert "1 of 1 samples passed." in page.read_text(encoding="utf-8")
    assert data["report"] == str(cli.root / "b" / "report.html")


def test_a_run_writes_no_page_where_none_is_wanted(cli: Cli) -> None:
    data = cli.data(*run(cli, "a", "--no-report"))

    assert data["report"] is None
    assert not (cli.root / "a" / "report.html").exists()


def test_a_page_is_written_again_and_somewhere_else(cli: Cli) -> None:
    cli.ok(*run(cli, "a", "--no-report"))

    here = cli.ok("eval", "report", str(cli.root / "a")).text
    there = cli.data("eval", "report", str(cli.root / "a"), "--out", str(cli.root / "page.html"))

    assert here == f"{cli.root / 'a' / 'report.html'}\n"
    assert there == {"run": str(cli.root / "a"), "report": str(cli.root / "page.html")}
    assert (cli.root / "page.html").read_bytes() == (cli.root / "a" / "report.html").read_bytes()


@pytest.mark.parametrize(("words", "code"), [(("nowhere",), "INVALID_INPUT"), (("a", "--out", "a"), "ADAPTER_UNAVAILABLE")])
def test_what_is_no_run_or_cannot_be_written_is_refused(words: tuple[str, ...], code: str, cli: Cli) -> None:
    cli.ok(*run(cli, "a", "--no-report"))

    error = cli.error("eval", "report", *(word if word.startswith("-") else str(cli.root / word) for word in words))

    assert error["code"] == code


def test_a_comparison_is_written_as_a_page_beside_the_text(cli: Cli) -> None:
    for name in "ab":
        cli.ok(*run(cli, name, "--no-report"))
    words = ("eval", "compare", str(cli.root / "a"), str(cli.root / "b"))

    text = cli.ok(*words, "--html", str(cli.root / "page.html")).text
    data = cli.data(*words, "--html", str(cli.root / "page.html"))

    assert text == f"{cli.ok(*words).text}report {cli.root / 'page.html'}\n"
    assert data["report"] == str(cli.root / "page.html")
    same = "The runs are the same: outcomes, trees and logs."
    assert same in text
    assert f"<h1>{same}</h1>" in (cli.root / "page.html").read_text(encoding="utf-8")
    assert cli.error(*words, "--html", str(cli.root / "no" / "page.html"))["code"] == "ADAPTER_UNAVAILABLE"
