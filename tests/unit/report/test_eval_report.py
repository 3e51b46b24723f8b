"""The page of a run says what came of it in its first line, shows each sample, needs nothing from elsewhere, and obeys nothing it shows."""

from __future__ import annotations

import json
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pytest_gittrix.evals.inputs.sample_record import OUTCOMES
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.run import Options, run_suite
from pytest_gittrix.report.eval_report import page_of, verdict, write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"
VOID = frozenset({"meta", "input", "br", "col", "img", "link", "line", "rect", "circle"})


class Page(HTMLParser):
    """What a page holds: its elements with their attributes, its text, and whether all that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def case(place: Path, name: str, task: str, check: str, **files: str) -> None:
    """Write a case whose check is a command."""
    folder = place / "cases" / name
    (folder / "repo").mkdir(parents=True)
    (folder / "repo" / "app.py").write_text("x = 1\n")
    for path, text in files.items():
        (folder / path).write_text(text)
    lines = [f"task = {json.dumps(task)}", "[durable]", 'files = "repo/"', "[check]", f'command = ["sh", "-c", {json.dumps(check)}]']
    (folder / "case.toml").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A run with a sample that passes and one that fails, told of in words that would do harm if they were markup."""
    place = tmp_path_factory.mktemp("report")
    suite = place / "suite"
    suite.mkdir()
    (suite / "suite.toml").write_text('schema = 1\nname = "small"\n')
    case(suite, "good", "Write it.", "test -f new.py")
    case(suite, "bad", HOSTILE, f"printf %s {shlex.quote(HOSTILE)}; false")
    agent = "sh -c 'echo \"y = <b>\" > new.py'"
    out = place / "run"
    run_suite(Suite.load(suite), Options(out=out, agent=agent, confine="off", epochs=2))
    return RunStore.open(out)


@pytest.fixture(scope="module")
def page(store: RunStore) -> Page:
    return Page(page_of(store))


def test_the_first_line_says_what_came_of_it(page: Page) -> None:
    assert "2 of 4 samples passed." in page.text
    assert "2 failed a check." in page.text


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_has_words(outcome: str) -> None:
    counts = {**dict.fromkeys(OUTCOMES, 0), outcome: 1}

    assert verdict(counts)[0] == ("1 of 1 samples passed." if outcome == "pass" else "0 of 1 samples passed.")
    assert bool(verdict(counts)[1]) == (outcome != "pass")


def test_a_run_without_samples_says_so() -> None:
    assert verdict(dict.fromkeys(OUTCOMES, 0)) == ("No sample has been run.", "")


def test_each_sample_has_a_row_and_a_part_of_its_own_failures_first(page: Page, store: RunStore) -> None:
    rows = [attributes["data-key"] for attributes in page.all("tr") if "data-key" in attributes]
    parts = [(attributes["id"] or "").removeprefix("d-") for attributes in page.all("article")]

    assert sorted(filter(None, rows)) == store.keys()
    assert rows == parts
    assert [store.record(str(key)).outcome for key in rows] == ["fail", "fail", "pass", "pass"]


def test_what_a_control_names_is_there(page: Page) -> None:
    ids = {attributes.get("id") for _, attributes in page.elements}

    for _, attributes in page.elements:
        for name in ("aria-controls", "aria-labelledby"):
            assert attributes.get(name) is None or attributes[name] in ids


def test_an_id_is_there_once(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]

    assert len(ids) == len(set(ids))


def test_nothing_is_fetched_from_elsewhere(page: Page) -> None:
    assert page.all("link") == page.all("img") == []
    assert [attributes for attributes in page.all("script") if attributes] == []
    assert [attributes["href"] for attributes in page.all("a")] == ["#samples"]


def test_what_was_said_is_shown_and_not_obeyed(page: Page, store: RunStore) -> None:
    assert page.text.count("alert(1)") >= 4
    assert page.text.count("{{ 7 * 7 }}") >= 4
    assert len(page.all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "y = <b>" in page.text


def test_a_sample_tells_its_task_its_checks_and_what_happened(page: Page) -> None:
    for said in ("Write it.", "passed command", "failed command", "The session started", "The work was promoted", "new.py"):
        assert said in " ".join(page.text.split())


def test_cases_that_ran_several_times_have_their_rates(page: Page, store: RunStore) -> None:
    labels = [attributes.get("aria-label") for attributes in page.all("svg")]

    assert labels == ["How long the agents took", "How often each case passed"]


def test_the_page_is_written_beside_the_run_and_says_the_same_again(store: RunStore, tmp_path: Path) -> None:
    first = write_report(store)

    assert first == store.path / "report.html"
    assert write_report(store, tmp_path / "elsewhere.html").read_bytes() == first.read_bytes()


def test_a_part_that_is_missing_leaves_the_rest(store: RunStore, tmp_path: Path) -> None:
    copy = RunStore.open(shutil.copytree(store.path, tmp_path / "run"))
    key = copy.keys()[0]
    (copy.path / "patches" / f"{key}.diff").unlink()
    (copy.path / "timing" / f"{key}.jsonl").unlink()

    assert "2 of 4 samples passed." in page_of(copy)
