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
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.run import run_suite
from pytest_gittrix.report.eval_report import page_of, verdict, write_report
from pytest_gittrix.report.page import duration

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"
VOID = frozenset({"meta", "input", "br", "col", "img", "link", "line", "rect", "circle"})
DATA = "application/json"


class Page(HTMLParser):
    """What a page or a part of one holds: elements with attributes, text, and data. Everything that is opened must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    @property
    def rows(self) -> list[tuple[str, str, str, list[str | float], str]]:
        """Key, group, searched text, values and cells of each row, in their order."""
        found: list[tuple[str, str, str, list[str | float], str]] = json.loads(self.data["rows"])
        return found

    @property
    def details(self) -> dict[str, Page]:
        """What opens under each row, by its key."""
        return {row[0]: Page(json.loads(line)) for row, line in zip(self.rows, self.data["details"].split("\n"), strict=True)}

    @property
    def table(self) -> str:
        """The text of all rows and of all that opens under them."""
        return " ".join([*(Page(row[4]).text for row in self.rows), *(part.text for part in self.details.values())])

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
        latest = self.elements[-1][1] if self.elements else {}
        if self._open and self._open[-1] == "script" and latest.get("type") == DATA:
            self.data[str(latest["id"])] = self.data.get(str(latest["id"]), "") + data
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


def test_each_sample_has_a_row_and_details_failures_first(page: Page, store: RunStore) -> None:
    keys = [key for key, *_ in page.rows]

    assert sorted(keys) == store.keys()
    assert [store.record(key).outcome for key in keys] == ["fail", "fail", "pass", "pass"]
    assert all(store.replay_command(store.record(key)) in part.text for key, part in page.details.items())


def test_the_elements_are_few_however_many_rows_there_are(page: Page) -> None:
    names = {name for name, _ in page.elements}

    assert "thead" in names
    assert not names & {"tbody", "td", "article"}


def test_a_row_is_sorted_and_found_by_what_it_shows(page: Page) -> None:
    headings = page.all("th")

    for _, group, find, values, cells in page.rows:
        shown = Page(cells)
        assert len(values) == len(shown.all("td")) == len(headings)
        assert group in shown.text
        assert str(values[0]) in shown.text
        assert find.startswith(str(values[0]))
        assert "new.py" in find


def test_without_javascript_a_sentence_says_which_command_prints_the_samples(page: Page, store: RunStore) -> None:
    assert len(page.all("noscript")) == 1
    assert f"gittrix eval show {store.path}" in page.text


def test_what_a_control_names_is_there(page: Page) -> None:
    ids = {attributes.get("id") for _, attributes in page.elements}

    for _, attributes in page.elements:
        for name in ("aria-controls", "aria-labelledby"):
            assert attributes.get(name) is None or attributes[name] in ids


def test_an_id_is_there_once(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]

    assert len(ids) == len(set(ids))


def test_nothing_is_fetched_from_elsewhere(page: Page) -> None:
    for part in (page, *page.details.values()):
        assert part.all("link") == part.all("img") == []
        assert all("src" not in attributes for attributes in part.all("script"))
        assert [attributes["href"] for attributes in part.all("a")] == (["#samples"] if part is page else [])


def test_what_was_said_is_shown_and_not_obeyed(page: Page) -> None:
    assert page.table.count("alert(1)") >= 4
    assert page.table.count("{{ 7 * 7 }}") >= 4
    assert [attributes.get("type") for attributes in page.all("script")] == [DATA, DATA, None]
    for part in (page, *page.details.values(), *(Page(row[4]) for row in page.rows)):
        assert part is page or part.all("script") == []
        assert not any(name.startswith("on") for _, attributes in part.elements for name in attributes)
    assert "y = <b>" in page.table


def test_a_sample_tells_its_task_its_checks_and_what_happened(page: Page) -> None:
    for said in ("Write it.", "passed command", "failed command", "The session started", "The work was promoted", "new.py"):
        assert said in " ".join(page.table.split())


def test_cases_that_ran_several_times_have_their_rates(page: Page) -> None:
    assert "How often each case passed" in page.text
    assert "0 of 2" in page.text
    assert "2 of 2" in page.text


@pytest.mark.parametrize(("seconds", "text"), [(0.0123, "12 ms"), (1.26, "1.3 s"), (125, "2 min 5 s")])
def test_a_duration_is_told_in_its_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


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
